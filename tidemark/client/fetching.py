"""Fetches for a member, ahead of the program and bounded, and keeps what was not taken yet.

The broker moves its cursor with every answer, whether the answer arrives or not. So the member
keeps its own place in every queue (``HeldQueue.fetched_to``) and says it again after anything went
wrong: 1. a fetch is answered, the connection breaks, the messages are gone; 2. the next fetch would
go on behind them; 3. their offsets would be committed with later ones: lost. An answer that leaves
a gap behind our place, other than by expiry, is not taken.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from tidemark import errors
from tidemark.client.committing import Committing
from tidemark.client.group_calls import FetchedQueue
from tidemark.client.holdings import HeldQueue, Hold
from tidemark.client.member import Member
from tidemark.client.progress import QueueProgress
from tidemark.client.received import received
from tidemark.client.retries import is_transient
from tidemark.client.tags import Wanted
from tidemark.formats.message import Message
from tidemark.formats.record import UndecodableRecord

FETCH_COUNT_MAX: Final = 8192
"""Messages that a broker gives in one answer at most."""
FETCH_SIZE_MAX: Final = 4 << 20
FETCH_WAIT_MS: Final = 15_000
OFFSET_TOO_SMALL: Final = "OFFSET_TOO_SMALL"
OFFSET_BEYOND: Final = "OFFSET_OVERFLOW_BADLY"

log = logging.getLogger(__name__)


class _Slice:
    """Consecutive messages of one queue that the program has not taken."""

    __slots__ = ("at", "held", "messages", "next_offset")

    def __init__(self, held: HeldQueue, messages: Sequence[Message], next_offset: int) -> None:
        self.held, self.messages, self.next_offset = held, messages, next_offset
        self.at = 0
        """Index of the first that is not taken."""


class Fetching:
    """Keeps the program supplied."""

    def __init__(
        self,
        member: Member,
        committing: Committing,
        wanted: Mapping[str, Wanted],
        *,
        max_in_flight: int,
        session_ms: int,
    ) -> None:
        """max_in_flight: messages fetched and not finished, at most."""
        self._member, self._committing, self._wanted = member, committing, wanted
        self._in_flight_max = max_in_flight
        self._count_max = min(FETCH_COUNT_MAX, max(1, max_in_flight // 2))
        # A fetch on a connection that is dead without saying so must not outlive a session.
        self._wait_ms = min(FETCH_WAIT_MS, session_ms // 2)
        self._slices: deque[_Slice] = deque()
        self._in_flight = self._size_in_flight = 0
        self._waits_for_room = False

    async def run(self) -> None:
        """Fetch for ever."""
        member = self._member
        failed = 0
        while True:
            await self._until_wanted()
            generation = member.generation
            try:
                await self._fetch(generation)
                failed = 0
            except (errors.StaleGeneration, errors.UnknownMember):
                self._displace()
                await member.until_other_than(generation)
            except errors.TidemarkError as error:
                if not is_transient(error):
                    raise
                self._displace()
                failed += 1
                await member.calls.connection.pause(failed, error)

    def take(self, count: int) -> tuple[HeldQueue, Sequence[Message]] | None:
        """Up to ``count`` messages of a queue that is ours, handed out from now on.

        None while there are none, or the lease is over. Who takes them says ``done`` of each.
        """
        slices = self._slices
        while slices:
            first = slices[0]
            held = first.held
            if held.hold is not Hold.OWNED:
                slices.popleft()
                self.done(first.messages[first.at :])
                continue
            if not self._member.may_hand_out:
                return None
            taken = first.messages[first.at : first.at + count]
            first.at += len(taken)
            held.progress.hand_all([message.queue_offset for message in taken])
            if first.at == len(first.messages):
                slices.popleft()
                held.progress.cover(first.next_offset)
                self._committing.moved()  # if nothing of it passed the filter
            if taken:
                return held, taken
        return None

    def done(self, messages: Sequence[Message]) -> None:
        """Messages that were taken are done, given up or dropped: there is room for others."""
        self._in_flight -= len(messages)
        for message in messages:
            self._size_in_flight -= message.size
        if self._waits_for_room and self._has_room:  # a ring for every message would cost too much
            self._waits_for_room = False
            self._member.pulse.ring()

    @property
    def _has_room(self) -> bool:
        return (
            self._in_flight + self._count_max <= self._in_flight_max
            and self._size_in_flight <= FETCH_SIZE_MAX
        )

    async def _until_wanted(self) -> None:
        """Wait for room, a lease, and no queue that the program has not been told of yet."""
        member = self._member
        while not self._has_room or not member.may_hand_out or member.holdings.of(Hold.ARRIVING):
            self._waits_for_room = not self._has_room
            await member.pulse.wait()

    async def _fetch(self, generation: int) -> None:
        await self._place()
        owned = self._member.holdings.of(Hold.OWNED)
        placed = [held for held in owned if not held.is_placed and held.fetched_to is not None]
        if placed:
            self._committing.moved()  # a broker that was killed may have lost the last commits
        fetched = await self._member.calls.fetch(
            generation=generation,
            count_max=self._count_max,
            size_max=FETCH_SIZE_MAX,
            wait_ms=self._wait_ms,
            timeout_s=self._wait_ms / 1000,
            positions=[(held.queue, held.fetched_to or 0) for held in placed],
        )
        if generation == self._member.generation:
            for held in placed:
                held.is_placed = True
        for each in fetched.queues:
            self._accept(each)
        self._member.heard_of(fetched.generation)
        self._member.pulse.ring()

    async def _place(self) -> None:
        """Learn where queues begin whose first answer may have been lost."""
        unknown = [
            held
            for held in self._member.holdings.of(Hold.OWNED)
            if not held.is_placed and held.fetched_to is None
        ]
        if not unknown:
            return
        committed: Mapping[tuple[str, int], int] = {}
        if not self._member.joined.broadcast:
            committed = await self._committing.committed()
        for held in unknown:
            offset = committed.get(held.queue)
            if offset is None:
                held.is_placed = True
            else:
                held.start_at(offset)

    def _displace(self) -> None:
        for held in self._member.holdings:
            held.is_placed = False

    def _accept(self, fetched: FetchedQueue) -> None:
        """Take what came of one queue, if it goes on where we are."""
        held = self._member.holdings.get(fetched.queue)
        if held is None or held.hold is not Hold.OWNED:
            return  # whoever has it next begins at what is committed
        expected = held.fetched_to
        if expected is None:
            expected = fetched.from_offset
        if fetched.status == OFFSET_BEYOND:
            # A committed offset behind the queue's end, after the node lost what was not on disk:
            # the broker goes on from the end, and so do we. Nothing there can be under way.
            held.progress, held.fetched_to = QueueProgress(fetched.next_offset), fetched.next_offset
            return
        is_gap = fetched.from_offset > max(expected, fetched.min_offset)
        if is_gap or fetched.next_offset < expected:
            held.is_placed = False
            return
        if fetched.status == OFFSET_TOO_SMALL and fetched.min_offset > expected:
            log.warning(
                "messages expired before this group read them",
                extra={
                    "event": "messages-expired",
                    "group": self._member.calls.group,
                    "topic": fetched.queue[0],
                    "queue": fetched.queue[1],
                    "messages": fetched.min_offset - expected,
                    "next_offset": fetched.min_offset,
                },
            )
        try:
            messages = received(
                fetched.records, fetched.queue[0], self._wanted, from_offset=expected
            )
        except UndecodableRecord as error:
            raise errors.BrokenAnswer(f"queue {fetched.queue} at {expected}: {error}") from error
        held.fetched_to = fetched.next_offset
        self._slices.append(_Slice(held, messages, fetched.next_offset))
        self._in_flight += len(messages)
        self._size_in_flight += sum(message.size for message in messages)
