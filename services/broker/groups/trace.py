"""Trace: the history of one message, from the sender to the last commit.

A trace needs no records of its own. The records that a message left are found by its unique id: in
its own topic, among waiting messages, and in the retry and dead-letter topics of the groups that
have an offset in its topic or sent it back for another try. Deliveries are those that the
coordinator remembers. A group was done with the message when its offset passed it
(``commit_times``). Everything is bounded, and the result says what was left out.
Step before: ``retry_calls``. Step after: ``trace_events`` derives the events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from services.broker.groups.commit_times import CommitTimes, StateHistory
from services.broker.groups.stored_messages import StoredMessages
from services.broker.groups.trace_events import (
    CONSUMED,
    DELAY_TOPICS,
    Delivered,
    Event,
    Reader,
    Step,
    events,
    group_of,
    home_of,
    role_of,
)
from services.broker.limits import QUERY_MAX
from services.broker.read.message_map import message_map, tags_code
from services.broker.read.query import look_up
from services.broker.read.unpacking import named_messages
from services.broker.state.topics import Topics
from shared.files.index import Asked, IndexReader
from tidemark.clock import Clock
from tidemark.errors import UnknownMessage
from tidemark.formats import delay
from tidemark.formats.nack import dead_topic, nacked_place, nacked_unique_id, retry_topic
from tidemark.formats.record import Record
from tidemark.offsets import PhysicalOffset, Queue

GROUPS_MAX: Final = 256
"""Groups whose retry and dead-letter topics are searched."""
GROUPS_AT_ONCE: Final = 1000
"""Groups whose offsets are read between two turns of the loop."""


class HandedOut(Protocol):
    """One delivery that the coordinator remembers."""

    @property
    def member(self) -> str:
        """Member that received the message."""
        ...

    @property
    def generation(self) -> int:
        """Generation of the assignment at that time."""
        ...

    @property
    def at_ms(self) -> int:
        """Wall clock time."""
        ...


class Deliveries(Protocol):
    """The deliveries of the coordinator, as far as this module needs them."""

    def deliveries(
        self, group: str, topic: str, queue: int, queue_offset: int
    ) -> Sequence[HandedOut]:
        """Return the deliveries of a message, oldest first, as far as they are remembered."""
        ...


class Committed(Protocol):
    """Committed offsets (implemented by ``offsets.Offsets``)."""

    def groups(self) -> Iterable[str]:
        """Return the groups with a committed offset."""
        ...

    def of_group(self, group: str) -> Mapping[Queue, int]:
        """Return all offsets of a group."""
        ...


class Trace(NamedTuple):
    """The known history of a message."""

    message: Record
    """Its oldest record that still exists."""
    unique_id: str | None
    events: Sequence[Event]
    groups_left_out: int
    """Groups that read its topic but were not searched."""
    complete: bool
    """Whether every existing record of it was found."""

    def as_dict(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return the response's body. message: the record as the caller's encoding shows it."""
        return {
            "message": message,
            "unique_id": self.unique_id,
            "groups_left_out": self.groups_left_out,
            "complete": self.complete,
            "events": [event.as_dict() for event in self.events],
        }


class GroupProgress(NamedTuple):
    """What is known of the progress of groups."""

    committed: Committed
    deliveries: Deliveries
    commit_times: CommitTimes


class Tracer:
    """Traces messages. Belongs to one loop."""

    def __init__(
        self,
        messages: StoredMessages,
        topics: Topics,
        index: IndexReader | None,
        progress: GroupProgress,
        clock: Clock,
        *,
        delay_levels_ms: Sequence[int],
        flushed: Callable[[], PhysicalOffset],
        dispatched: Callable[[], PhysicalOffset],
    ) -> None:
        """index: None if the store has none. flushed: end of what is on disk. dispatched: end of
        what queues and index cover.
        """
        self._messages = messages
        self._topics = topics
        self._index = index
        self._committed, self._deliveries, self._commit_times = progress
        self._clock = clock
        self._delay_levels_ms = delay_levels_ms
        self._flushed = flushed
        self._dispatched = dispatched

    async def trace(
        self, message_id: str, topic: str | None = None, queue_offset: int | None = None
    ) -> Trace:
        """Return the history of a message.

        message_id: id of any of its records; with a topic: the unique id of a message of that
        topic. queue_offset: which message of a record that is an inner batch; None: the first.
        Raises BadRequest, UnknownTopic, UnknownMessage.
        """
        found: dict[PhysicalOffset, Record] = {}
        if topic is None:
            known = self._messages.by_message_id(message_id, queue_offset)
            home, unique_id = home_of(known), known.unique_id
            found[known.physical_offset] = known
            name = nacked_unique_id(known)
        else:
            self._topics.get(topic)
            home, unique_id, name = topic, message_id, message_id
        self._add_original(home, name, found)
        left_out, complete = 0, False
        if self._index is not None:
            left_out, complete = await self._gather(home, name, found)
            # Copies that earlier versions made of a message without a unique id have none either.
            complete &= unique_id is not None
        if not found:
            raise UnknownMessage(
                f"topic {home!r} has no message with the unique id {message_id[:80]!r}.",
                "It has expired, was never stored, or is not dispatched yet.",
                topic=home,
                unique_id=message_id,
            )
        steps = await self._steps(found.values())
        happened = events(steps, self._delay_levels_ms, flushed=self._flushed())
        oldest = found[min(found)]
        return Trace(oldest, unique_id, happened, left_out, complete and not left_out)

    def as_map(self, stored: Record, *, json_body: bool) -> dict[str, object]:
        """Return a record as the API shows it."""
        return message_map(
            stored, code=tags_code(stored, self._delay_levels_ms), json_body=json_body
        )

    def _add_original(self, home: str, unique_id: str, found: dict[PhysicalOffset, Record]) -> None:
        """Add the message whose nacks made up this unique id, because it had none."""
        place = nacked_place(unique_id)
        if place is None:
            return
        try:
            original = self._messages.by_message_id(*place)
        except UnknownMessage:
            return  # it has expired, or a sender has made up such an id
        if home_of(original) == home:
            found.setdefault(original.physical_offset, original)

    async def _gather(
        self, home: str, unique_id: str, found: dict[PhysicalOffset, Record]
    ) -> tuple[int, bool]:
        """Add every record of the message to found; return groups left out, and whether it is
        complete.
        """
        complete = await self._search(home, home, unique_id, found)
        for topic in DELAY_TOPICS:
            complete &= await self._search(topic, home, unique_id, found)
        groups = {group for each in found.values() if (group := group_of(each)) is not None}
        groups |= await self._groups_of(home)
        for group in sorted(groups)[:GROUPS_MAX]:
            for topic in (retry_topic(group), dead_topic(group)):
                if self._topics.find(topic) is not None:
                    complete &= await self._search(topic, home, unique_id, found)
            await asyncio.sleep(0)
        return max(0, len(groups) - GROUPS_MAX), complete

    async def _search(
        self, topic: str, home: str, unique_id: str, found: dict[PhysicalOffset, Record]
    ) -> bool:
        """Add the topic's records of the message; return False if there may be more."""
        assert self._index is not None
        asked = Asked(topic, unique_id, self._dispatched(), unique_id_only=True)
        search = await look_up(self._index, asked, self._clock, hits_max=QUERY_MAX)
        for each in search.found:
            # Skips the records of a deleted topic of the same name.
            if home_of(each) == home and each.queue_offset >= self._topics.min_offset(
                each.topic, each.queue_id
            ):
                message = named_messages(each, unique_id, unique_id_only=True)[0]
                found.setdefault(each.physical_offset, message)
        return search.has_ended and len(search.found) < QUERY_MAX

    async def _groups_of(self, topic: str) -> set[str]:
        """Return the groups with an offset in some queue of the topic."""
        readers: set[str] = set()
        for number, group in enumerate(list(self._committed.groups()), 1):
            if any(name == topic for name, _ in self._committed.of_group(group)):
                readers.add(group)
            if number % GROUPS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return readers

    # -- what happened to each record ------------------------------------------------------------

    async def _steps(self, found: Collection[Record]) -> list[Step]:
        """Return the records with the groups that read them, and with facts from state records."""
        of_topic: dict[str, set[str]] = {}
        for each in found:
            if role_of(each) in CONSUMED and each.topic not in of_topic:
                group = group_of(each)
                groups = await self._groups_of(each.topic) if group is None else {group}
                of_topic[each.topic] = groups
        steps = [Step(each, self._readers(each, of_topic)) for each in found]
        delivered = {delay.origin_of(step.record.properties) for step in steps}
        waiting = {
            (delay.level_of(step.record), step.record.queue_offset): step
            for step in steps
            if step.record.topic in DELAY_TOPICS
        }
        history = await self._commit_times.since(
            min((step.record.store_timestamp_ms for step in steps), default=0),
            {
                (reader.group, _queue_of(step.record))
                for step in steps
                for reader in step.readers
                if reader.is_done_with(step.record)
            },
            waiting.keys() - delivered,
        )
        return [
            Step(
                step.record,
                [_dated(reader, step.record, history) for reader in step.readers],
                history.cancelled.get((delay.level_of(step.record), step.record.queue_offset))
                if step.record.topic in DELAY_TOPICS
                else None,
            )
            for step in steps
        ]

    def _readers(self, stored: Record, of_topic: Mapping[str, set[str]]) -> list[Reader]:
        """Return the groups that read a record. of_topic: the groups that read each topic."""
        if role_of(stored) not in CONSUMED:
            return []
        groups = sorted(of_topic[stored.topic])[:GROUPS_MAX]
        return [self._reader(name, stored) for name in groups]

    def _reader(self, group: str, stored: Record) -> Reader:
        topic, queue = _queue_of(stored)
        handed = self._deliveries.deliveries(group, topic, queue, stored.queue_offset)
        delivered = [Delivered(each.member, each.generation, each.at_ms) for each in handed]
        return Reader(group, delivered, self._committed.of_group(group).get((topic, queue)))


def _queue_of(stored: Record) -> Queue:
    return stored.topic, stored.queue_id


def _dated(reader: Reader, stored: Record, history: StateHistory) -> Reader:
    """Return the reader with the time at which its offset first passed the record."""
    key = (reader.group, _queue_of(stored))
    for at_ms, moves in history.moves:
        if moves.get(key, 0) > stored.queue_offset:
            return reader._replace(committed_at_ms=at_ms)
    return reader
