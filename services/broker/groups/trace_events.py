"""The events of a message, derived from its records and from the groups that read it. Pure.

The topic and properties of each record show what had happened: stored, delayed, released when due,
nacked, dead, sent again. The store time of a record is the time of its event. Events without a
record (a flush, dispatch) have no known time; such an event has a reason instead of a time.
Step before: ``trace`` found the records and the readers. Step after: ``retry_calls`` shows the
events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from tidemark.formats import delay, hashing, nack, properties
from tidemark.formats.hashing import SCHEDULE_TOPIC
from tidemark.formats.nack import DEAD_PREFIX, RETRY_PREFIX
from tidemark.formats.record import Record

NOT_RECORDED: Final = "not_recorded"
"""It has happened; the store does not record when."""
EXPIRED: Final = "expired"
"""The record with the time no longer exists."""
NOT_FOUND: Final = "commit_not_found"
"""The commit's own record no longer exists, or lies further away than a trace searches."""
DELAY_TOPICS: Final = (SCHEDULE_TOPIC, delay.TIMER_TOPIC)


class Role(Enum):
    """Part of a record in its message's history."""

    PRODUCED = "a sender sent it to where it is consumed"
    DELAYED = "a sender sent it, to be consumed later"
    CARRIED = "it waits on, in a new record, for its old one expired"
    RELEASED = "its time came: it is where it is consumed"
    RETRIED = "a member sent it back; it waits for the next try"
    DEAD = "it was given up"
    REDRIVEN = "a dead letter was sent again"


CONSUMED: Final = frozenset({Role.PRODUCED, Role.RELEASED, Role.REDRIVEN})
"""Records that members receive."""


class Event(NamedTuple):
    """One event of the message's history."""

    what: str
    at_ms: int | None
    """Wall clock time; None if it is unknown, and then there is a reason."""
    sorts_at_ms: int
    """The time, or the latest known one before it; for sorting."""
    facts: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Return the event as the API shows it."""
        return {"what": self.what, "at_ms": self.at_ms, **self.facts}


class Delivered(NamedTuple):
    """A record was handed to a member."""

    member: str
    generation: int
    at_ms: int


class Reader(NamedTuple):
    """A group that reads the queue of a record, and its position."""

    group: str
    delivered: Sequence[Delivered]
    """Oldest first; the broker remembers only recent ones."""
    committed: int | None
    """The group's offset in the queue."""
    committed_at_ms: int | None = None
    """When the offset passed the record."""

    def is_done_with(self, stored: Record) -> bool:
        """Return whether the group's offset has passed the record."""
        return self.committed is not None and self.committed > stored.queue_offset


class Step(NamedTuple):
    """One record of a message, and the groups that read it."""

    record: Record
    readers: Sequence[Reader] = ()
    cancelled_at_ms: int | None = None
    """When a waiting record was cancelled."""


def role_of(stored: Record) -> Role:
    """Return the part of a record in its message's history."""
    raw = stored.properties
    if stored.topic in DELAY_TOPICS:
        if delay.origin_of(raw) is not None:
            return Role.CARRIED
        place = delay.real_place(raw)
        back = place is not None and place.topic.startswith(RETRY_PREFIX)
        return Role.RETRIED if back else Role.DELAYED
    if stored.topic.startswith(DEAD_PREFIX):
        return Role.DEAD
    # Retries of a redriven message carry its origin too, and have been retried at least once.
    if stored.reconsume_times == 0 and nack.redrive_origin(raw) is not None:
        return Role.REDRIVEN
    if stored.topic.startswith(RETRY_PREFIX) or delay.origin_of(raw) is not None:
        return Role.RELEASED
    return Role.PRODUCED


def home_of(stored: Record) -> str:
    """Return the topic that the message was first sent to."""
    if properties.find(stored.properties, properties.RETRY_TOPIC.encode()) is None:
        place = delay.real_place(stored.properties) if stored.topic in DELAY_TOPICS else None
        if place is not None:
            return place.topic
    return nack.original_topic(stored)


def group_of(stored: Record) -> str | None:
    """Return the group whose retry or dead-letter topic the record is in or on its way to."""
    place = delay.real_place(stored.properties) if stored.topic in DELAY_TOPICS else None
    topic = stored.topic if place is None else place.topic
    for prefix in (RETRY_PREFIX, DEAD_PREFIX):
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return None


def events(steps: Iterable[Step], delay_levels_ms: Sequence[int], *, flushed: int) -> list[Event]:
    """Return the events in the order of time.

    steps: the records of one message, each once. flushed: end of what is on disk.
    """
    in_order = sorted(steps, key=lambda step: step.record.physical_offset)
    found: list[Event] = []
    if in_order and role_of(in_order[0].record) not in (Role.PRODUCED, Role.DELAYED):
        found.append(_expired(in_order[0].record))
    for step in in_order:
        found += _of_record(step.record, delay_levels_ms, flushed)
        if (at_ms := step.cancelled_at_ms) is not None:
            found.append(Event("cancelled", at_ms, at_ms, _place(step.record)))
        for reader in step.readers:
            found += _of_reader(step.record, reader)
    return sorted(found, key=lambda event: event.sorts_at_ms)


def _expired(first: Record) -> Event:
    """Return the event for a message whose own record is gone: it was sent, at its born time."""
    facts = {
        "reason": EXPIRED,
        "topic": home_of(first),
        "message_id": nack.original_message_id(first),
        "born_timestamp_ms": first.born_timestamp_ms,
    }
    return Event("produced", None, first.store_timestamp_ms, facts)


def _of_record(stored: Record, delay_levels_ms: Sequence[int], flushed: int) -> list[Event]:
    role, at_ms = role_of(stored), stored.store_timestamp_ms
    place = _place(stored)

    def event(what: str, **facts: Any) -> Event:
        return Event(what, at_ms, at_ms, {**facts, **place})

    def unrecorded(what: str) -> Event:
        return Event(what, None, at_ms, {"reason": NOT_RECORDED, **place})

    match role:
        case Role.PRODUCED | Role.DELAYED:
            found = [
                event(
                    "produced",
                    for_topic=home_of(stored),
                    born_host=stored.born_host.text,
                    born_timestamp_ms=stored.born_timestamp_ms,
                )
            ]
            if role is Role.DELAYED:
                found.append(event("delayed", **_waits(stored, delay_levels_ms)))
        case Role.CARRIED:
            found = [event("delayed", carried=True, **_waits(stored, delay_levels_ms))]
        case Role.RELEASED:
            found = [event("released", reconsume_times=stored.reconsume_times)]
        case Role.RETRIED:
            found = [
                event(
                    "retried",
                    group=group_of(stored),
                    reconsume_times=stored.reconsume_times,
                    **_waits(stored, delay_levels_ms),
                )
            ]
        case Role.DEAD:
            found = [event("dead", group=group_of(stored), reconsume_times=stored.reconsume_times)]
        case Role.REDRIVEN:
            origin = nack.redrive_origin(stored.properties)
            assert origin is not None, "that is what the role says"
            found = [event("redriven", group=origin.group, dead_queue_offset=origin.queue_offset)]
    if role in (Role.PRODUCED, Role.DELAYED, Role.REDRIVEN):
        if stored.physical_offset < flushed:  # a flush ends at the end of a record
            found.append(unrecorded("flushed"))
        found.append(unrecorded("dispatched"))  # otherwise the index would not have it
    return found


def _of_reader(stored: Record, reader: Reader) -> list[Event]:
    place, since_ms = _place(stored), stored.store_timestamp_ms
    found: list[Event] = []
    for handed in reader.delivered:
        since_ms = max(since_ms, handed.at_ms)
        facts = {"group": reader.group, "member": handed.member, "generation": handed.generation}
        found.append(Event("delivered", handed.at_ms, handed.at_ms, {**facts, **place}))
    if reader.is_done_with(stored):
        known = reader.committed_at_ms
        reason = {} if known is not None else {"reason": NOT_FOUND}
        facts = {**reason, "group": reader.group, "committed_offset": reader.committed}
        found.append(
            Event("committed", known, since_ms if known is None else known, {**facts, **place})
        )
    return found


def _place(stored: Record) -> dict[str, Any]:
    return {
        "topic": stored.topic,
        "queue": stored.queue_id,
        "queue_offset": stored.queue_offset,
        "physical_offset": stored.physical_offset,
        "message_id": stored.message_id,
    }


def _waits(stored: Record, delay_levels_ms: Sequence[int]) -> dict[str, Any]:
    """Return how long a record under a delay topic waits."""
    if stored.topic != SCHEDULE_TOPIC:
        return {"delay_level": None, "deliver_at_ms": delay.timer_due_ms(stored.properties)}
    due_ms = hashing.delivery_time_code(
        stored.property_map.get(properties.DELAY), stored.store_timestamp_ms, delay_levels_ms
    )
    return {"delay_level": delay.level_of(stored), "deliver_at_ms": due_ms}
