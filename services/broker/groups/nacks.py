"""Nack: a message that a member could not handle is retried later, or becomes a dead letter.

The rules are in ``tidemark.formats.nack`` and ``delay``. This module finds the message, checks
whether the caller may nack it, appends once and waits until the copy is on disk. Only then does the
caller get its response, and only then may it commit the message: a crash in between delivers the
message once more, but never loses it.
Step before: ``retry_calls``. Step after: the delay service delivers the copy to the group's retry
topic, whose queues are assigned to members like any others.
"""

from __future__ import annotations

import logging
from typing import Final, Protocol

from services.broker.groups.coordinator import not_assigned
from services.broker.groups.copies import Copies
from services.broker.groups.counters import GroupCounters
from services.broker.groups.repeated_nacks import Nacked, RepeatedNacks, StoredNack
from services.broker.groups.stored_messages import Place, StoredMessages
from services.broker.state.topics import Topics, check_consumed
from shared.state.values import GroupConfig
from tidemark.errors import (
    AckTimeout,
    BroadcastGroup,
    DelayOutOfRange,
    NotServing,
)
from tidemark.formats import batch, delay, ids, nack, record
from tidemark.formats.batch import WireMessage
from tidemark.formats.nack import DEAD_AT_ONCE, DEAD_QUEUE, Verdict
from tidemark.formats.record import Record
from tidemark.formats.runs import Run
from tidemark.offsets import PhysicalOffset

RETRY: Final = "RETRY"
DEAD: Final = "DEAD"
IGNORED: Final = "IGNORED"
"""The group's configuration, written by RocketMQ, has no retry queues: nothing was stored."""
_TIMES_MAX: Final = (1 << 31) - 1

log = logging.getLogger(__name__)


class GroupConfigs(Protocol):
    """The configurations of groups, as far as this module needs them."""

    async def ensure(self, name: str) -> GroupConfig:
        """Return the group; create it if that is allowed. Raises UnknownGroup, BadName."""
        ...

    async def retry_topic(self, name: str) -> str:
        """Return the group's retry topic; it exists on return."""
        ...

    async def dead_topic(self, name: str) -> str:
        """Return the group's dead-letter topic; it exists on return."""
        ...


class Members(Protocol):
    """The members of groups, as far as this module needs them."""

    def check_caller(self, group: str, member: str | None, generation: int | None) -> None:
        """Raises MemberRequired, UnknownMember, StaleGeneration; see ``Coordinator``."""
        ...

    def holds(self, group: str, member: str, queue: tuple[str, int]) -> bool:
        """Return whether the member owns the queue, or owned it last and is not done yet."""
        ...


class Nacks:
    """Carries out nacks."""

    def __init__(
        self,
        copies: Copies,
        messages: StoredMessages,
        topics: Topics,
        configs: GroupConfigs,
        members: Members,
        counters: GroupCounters,
        repeated: RepeatedNacks,
        *,
        delay_levels_ms: tuple[int, ...],
    ) -> None:
        """delay_levels_ms: delays of the store's levels, level 1 first."""
        self._copies = copies
        self._messages = messages
        self._topics = topics
        self._configs = configs
        self._members = members
        self._counters = counters
        self._repeated = repeated
        self._store_host = copies.store_host
        self._delay_levels_ms = delay_levels_ms

    async def nack(
        self,
        group: str,
        message: str | Place,
        *,
        delay_level: int = 0,
        member: str | None = None,
        generation: int | None = None,
        without_member: bool = False,
        nack_id: str | None = None,
        is_repeat: bool = False,
    ) -> Nacked:
        """Nack one message; its copy is on disk on return.

        message: its message id, or its topic, queue and offset; a message of an inner batch has no
        message id of its own. delay_level: 0 for the rule (third
        level first, one more at each retry), DEAD_AT_ONCE for no more retries, else that level.
        member, generation: the caller; required while the group has members. without_member: the
        caller is a tool and no member has the message in hand; members are then not checked.
        nack_id: id of this call and its repetitions, which together store one copy; None: each
        call stores its own. is_repeat: the nack may have been carried out before.
        Raises BadName, UnknownGroup, BroadcastGroup, MemberRequired, UnknownMember,
        StaleGeneration, NotAssigned, DelayOutOfRange, UnknownMessage, UnknownTopic, UnknownQueue,
        NotPermitted, MessageTooLarge, DispatchBehind, what an append raises, and AckTimeout if the
        node stops before it is on disk.
        """
        self._check_level(delay_level)
        stored = (
            self._messages.only_message(message)
            if isinstance(message, str)
            else self._messages.by_place(message)
        )
        check_consumed(stored.topic)
        # Only now: a call without a valid message must not create the group that it names.
        config = await self._configs.ensure(group)
        if config.broadcast:
            raise BroadcastGroup(
                f"group {group!r} is a broadcast group: every member has every message, and none "
                "is sent back. Nothing was stored.",
                "Let the member handle it again itself, or make the group a clustering one.",
                group=group,
            )
        if not without_member:
            self._members.check_caller(group, member, generation)
        queue = (stored.topic, stored.queue_id)
        if member is not None and not self._members.holds(group, member, queue):
            # The present owner of the queue receives the message too, so no retry is needed.
            raise not_assigned(group, member, queue)
        if config.retry_queues <= 0:
            return Nacked(IGNORED, None, stored.reconsume_times, 0, None, None, stored.unique_id)
        verdict = nack.judge(
            stored.reconsume_times,
            delay_level,
            retry_max=config.retry_max,
            level_count=len(self._delay_levels_ms),
        )

        async def store() -> StoredNack:
            if nack_id is not None and is_repeat:
                before = await self._repeated.find(group, nack_id, stored)
                if before is not None:
                    return self._as_stored(group, before)
            return await self._store(group, stored, verdict, nack_id)

        if nack_id is None:
            done = await store()
        else:
            done = await self._repeated.once(group, nack_id, store)
        try:
            await self._copies.durability.durable(done.end)
        except NotServing as stopping:
            raise AckTimeout(
                "the node is stopping: the message was sent back, but not yet on disk. The "
                "outcome is unknown: the copy may survive, or be lost with the node.",
                "Do not commit it: it is delivered again, at worst twice.",
                **done.sent.as_dict(),
            ) from stopping
        return done.sent

    async def _store(
        self, group: str, stored: Record, verdict: Verdict, nack_id: str | None
    ) -> StoredNack:
        """Append the retry or the dead letter."""
        place: delay.Delayed | None = None
        if not verdict.dead:
            topic = await self._configs.retry_topic(group)
            found = self._topics.find(topic)
            queue = self._copies.pick(max(1, found.queues if found is not None else 1))
            raw = nack.nacked(stored, dead=False, nack_id=nack_id)
            place = delay.by_level(
                topic, queue, raw, verdict.delay_level, len(self._delay_levels_ms)
            )
            if len(place.properties) > self._room(stored, place.topic):
                place, verdict = None, Verdict(dead=True, delay_level=0)
        if place is None:
            topic = await self._configs.dead_topic(group)
            place = delay.Delayed(topic, DEAD_QUEUE, self._letter(group, topic, stored, nack_id))
        times = min(stored.reconsume_times + 1, _TIMES_MAX)
        run = Run(
            place.topic,
            place.queue_id,
            batch.encode([WireMessage(stored.body, place.properties, stored.flag)]),
            1,
            stored.born_host,
            self._store_host,
            stored.born_timestamp_ms,
            stored.sys_flag,
            times,
        )
        # own: members can go on while the disk is full, as long as the reserve lasts.
        appended = await self._copies.append.append([run], own=True)
        self._copies.on_stored(topic, 1, appended.end - appended.start)
        if verdict.dead:
            self._counters.dead(group, nack.original_topic(stored))
        sent = Nacked(
            DEAD if verdict.dead else RETRY,
            topic,
            times,
            verdict.delay_level,
            self._due_ms(appended.store_timestamp_ms, verdict.delay_level),
            ids.offset_id(self._store_host, appended.start),
            nack.nacked_unique_id(stored),
        )
        return StoredNack(sent, appended.end)

    def _as_stored(self, group: str, found: Record) -> StoredNack:
        """Return what an earlier attempt of a nack has stored, with the same result as then."""
        dead = found.topic == nack.dead_topic(group)
        level = 0 if dead else found.queue_id + 1
        sent = Nacked(
            DEAD if dead else RETRY,
            found.topic if dead else nack.retry_topic(group),
            found.reconsume_times,
            level,
            self._due_ms(found.store_timestamp_ms, level),
            ids.offset_id(self._store_host, found.physical_offset),
            found.unique_id,
        )
        return StoredNack(sent, PhysicalOffset(found.physical_offset + found.size))

    def _due_ms(self, stored_ms: int, delay_level: int) -> int | None:
        """Return when the stored copy is delivered; None for a dead letter, which has no level."""
        return stored_ms + self._delay_levels_ms[delay_level - 1] if delay_level else None

    def _check_level(self, delay_level: int) -> None:
        count = len(self._delay_levels_ms)
        if not DEAD_AT_ONCE <= delay_level <= count:
            raise DelayOutOfRange(
                f"delay_level is {delay_level}; there are the levels 1 to {count}, 0 for the next "
                f"longer one, and {DEAD_AT_ONCE} for the dead letters at once. Nothing was stored.",
                field="delay_level",
                limit=count,
            )

    def _letter(self, group: str, topic: str, stored: Record, nack_id: str | None) -> bytes:
        """Return the properties of a dead letter, shortened if there is not enough room for all.

        Only messages that were not sent through this API, or by an earlier version, lack the room.
        Refusing such a message would fail every member that receives it, one after another.
        """
        raw = nack.nacked(stored, dead=True, nack_id=nack_id)
        room = self._room(stored, topic)
        if len(raw) <= room:
            return raw
        # With room for a redrive and for the retries of the copy.
        raw, dropped = nack.shortened(raw, max(0, room - nack.PROPERTIES_ROOM))
        log.warning(
            "a message sent back has no room for a retry; its dead letter lacks properties",
            extra={
                "event": "dead-letter-shortened",
                "group": group,
                "message_id": stored.message_id,
                "topic": stored.topic,
                "count": len(dropped),
            },
        )
        return raw

    def _room(self, stored: Record, topic: str) -> int:
        """Return the bytes of properties that fit into the message's record in a topic."""
        bare = record.Message(
            topic, 0, stored.body, stored.born_host, self._store_host, properties=b""
        )
        # The record CRC follows the properties, and 0x02 if they do not end in one.
        size = record.encoded_size(bare, record_crc=True) + 1
        return min(self._copies.properties_size_max, self._copies.append.records_size_max - size)
