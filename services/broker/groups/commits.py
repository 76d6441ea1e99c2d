"""Commits and resets: the offsets of a group, moved by its members or by an operator.

A commit is checked and accepted as a whole. While a group has members only they may commit, with
the current generation: a commit from before a rebalance or a restart would undo the progress of the
queue's next owner. A member's commit never moves an offset back, because it may be a late retry. An
operator moves offsets back with a reset, which requires a group without members.
Step before: ``group_calls``, ``fetch`` (messages that no tag of the group selects). Step after:
``offsets``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from services.broker.groups.configs import GroupConfigs
from services.broker.groups.coordinator import Coordinator
from services.broker.groups.counters import GroupCounters
from services.broker.groups.initial_offsets import InitialOffsets
from services.broker.groups.offsets import Offsets
from services.broker.groups.refusals import not_assigned
from services.broker.schema.offsets import Commit, CommitLevel, MovedQueue, Reset, ResetPlace
from services.broker.state.topics import Topics
from shared.state.records import GroupConfig, Start
from tidemark.clock import Clock
from tidemark.errors import BroadcastGroup, OffsetBeyondEnd
from tidemark.offsets import Queue


class Bounds(Protocol):
    """The range of a queue (implemented by ``pull.Puller``)."""

    def bounds(self, topic: str, queue: int) -> tuple[int, int]:
        """First and next queue offset of what can be pulled."""
        ...


class Commits:
    """Moves the offsets of groups."""

    def __init__(
        self,
        configs: GroupConfigs,
        offsets: Offsets,
        coordinator: Coordinator,
        topics: Topics,
        bounds: Bounds,
        initial_offsets: InitialOffsets,
        counters: GroupCounters,
        clock: Clock,
    ) -> None:
        self._configs = configs
        self._offsets = offsets
        self._coordinator = coordinator
        self._topics = topics
        self._bounds = bounds
        self._initial_offsets = initial_offsets
        self._counters = counters
        self._clock = clock

    async def commit(self, group: str, request: Commit) -> CommitLevel:
        """Accept all of the offsets or none; return the level that was reached.

        Raises UnknownGroup, BadName, BroadcastGroup, MemberRequired, StaleGeneration,
        UnknownMember, NotAssigned, UnknownTopic, UnknownQueue, NotPermitted, OffsetBeyondEnd,
        Overloaded, and what a flush raises if the commit waits for the disk.
        """
        moves = request.moves
        if self._configs.find(group) is None:
            for queue, offset in moves.items():
                self._check_end(queue, offset)  # a wrong commit must not create a group
        config = await self._configs.ensure(group)
        self._commit(config, request, moves)
        if request.ack is CommitLevel.DISK:
            await self._offsets.durable()
        return request.ack

    def _commit(self, config: GroupConfig, request: Commit, wanted: Mapping[Queue, int]) -> None:
        """Check and accept in one step of the loop, so that the checks still hold at the end."""
        group = config.name
        self._refuse_broadcast(config)
        self._coordinator.check_caller(group, request.member, request.generation)
        moves: dict[Queue, int] = {}
        for queue, offset in wanted.items():
            if request.member is None:
                self._check_end(queue, offset)
                moves[queue] = offset
            elif not self._coordinator.holds(group, request.member, queue):
                raise not_assigned(group, request.member, queue)
            elif (moved := self._member_move(group, queue, offset)) is not None:
                moves[queue] = moved
        before = {queue: self._offsets.get(group, *queue) for queue in moves}
        self._offsets.accept(group, moves)
        if request.member is None:
            self._coordinator.moved(config, moves)
        now_ms = self._clock.wall_ms()
        for queue, offset in moves.items():
            session = self._coordinator.session_of(group, queue)
            place = None if session is None else session.places.get(queue)
            oldest = None if place is None else place.committed(offset)
            if config.order and session is not None and place is not None:
                session.ready(place)  # in an ordered group it may be blocked until this commit
            self._counters.committed(
                group,
                queue[0],
                before=before[queue],
                after=offset,
                oldest_delay_s=None
                if oldest is None
                else max(0, now_ms - oldest.store_timestamp_ms) / 1000,
            )

    def _member_move(self, group: str, queue: Queue, offset: int) -> int | None:
        """Return where a member's commit moves the queue; None if it does not move it.

        Raises OffsetBeyondEnd.
        """
        session = self._coordinator.session_of(group, queue)
        place = None if session is None else session.places.get(queue)
        if place is None or place.is_claimed or offset > place.next_offset:
            self._check_end(queue, offset, known=True)
        elif offset >= place.handed_to:
            offset = place.next_offset  # what follows are messages that the member's tags exclude
        committed = self._offsets.get(group, *queue)
        return offset if committed is None or offset > committed else None

    def _check_end(self, queue: Queue, offset: int, *, known: bool = False) -> None:
        topic, number = queue
        if not known:
            self._topics.for_reading(topic, number)
        _, end = self._bounds.bounds(topic, number)
        if offset > end:
            raise OffsetBeyondEnd(
                f"queue {number} of topic {topic!r} ends at queue offset {end}, {offset} is beyond "
                "it. Nothing was changed.",
                "Give the offset after the last message that is done: at most max_offset.",
                topic=topic,
                queue=number,
                offset=offset,
                max_offset=end,
            )

    def committed(self, group: str) -> Mapping[Queue, int]:
        """Return all offsets of a group. Raises UnknownGroup, BadName."""
        self._configs.get(group)
        return self._offsets.of_group(group)

    async def reset(self, group: str, request: Reset) -> Sequence[MovedQueue]:
        """Move the offsets of a topic's queues, or of one of them; durable on return.

        A dry run moves nothing and is allowed while the group has members. Raises UnknownGroup,
        BroadcastGroup, GroupInUse, UnknownTopic, UnknownQueue, NotPermitted, OffsetBeyondEnd, and
        what a flush raises.
        """
        config = self._configs.get(group)
        self._refuse_broadcast(config)
        if not request.dry_run:
            self._coordinator.check_unused(group)
        topic = self._topics.get(request.topic)
        numbers = self._topics.queue_numbers(topic) if request.queue is None else (request.queue,)
        for number in numbers:
            self._topics.for_reading(topic.name, number)
        resets = [
            MovedQueue(
                number,
                self._offsets.get(group, topic.name, number),
                self._target(request.to, (topic.name, number)),
            )
            for number in numbers
        ]
        if not request.dry_run:
            # In the same step of the loop as the check that the group has no members.
            moves = {(topic.name, each.queue): each.to_offset for each in resets}
            self._offsets.accept(group, moves)
            self._coordinator.moved(config, moves)
            for each in resets:
                self._counters.was_reset(
                    group, topic.name, before=each.from_offset, after=each.to_offset
                )
            await self._offsets.durable()
        return resets

    def _target(self, to: Start | ResetPlace, queue: Queue) -> int:
        if isinstance(to, ResetPlace):
            if isinstance(offset := to.offset, int):
                self._check_end(queue, offset, known=True)
                first, _ = self._bounds.bounds(*queue)
                return max(first, offset)
            assert isinstance(to.timestamp_ms, int), "one of the two is given"
            to = to.timestamp_ms
        return self._initial_offsets.at(to, queue)

    def _refuse_broadcast(self, config: GroupConfig) -> None:
        if config.broadcast:
            raise BroadcastGroup(
                f"group {config.name!r} is a broadcasting one: each member reads everything and "
                "keeps its own position. Nothing was changed.",
                "Give positions with the fetch, or use a clustering group.",
                group=config.name,
            )
