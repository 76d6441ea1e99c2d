"""Prefetches messages for a member within bounds, and buffers those not yet taken.

The broker advances its cursor with every answer, whether or not the answer arrives. Therefore the
member keeps its own fetch position per queue (``HeldQueue.fetched_to``) and sends it again after
any failure. Otherwise: 1. a fetch is answered, the connection breaks, the messages are gone; 2. the
next fetch continues after them; 3. their offsets are committed with later ones, and they are lost.
An answer that leaves a gap after our position is dropped unless the gap is due to expiry.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from typing import Final

from tidemark import errors
from tidemark.client.committing import Committing
from tidemark.client.group_calls import Fetched, FetchedQueue
from tidemark.client.holdings import HeldQueue, Hold
from tidemark.client.member import Member
from tidemark.client.queue_names import Queue
from tidemark.client.received import decode_sound, received
from tidemark.client.retries import delay_s, is_transient
from tidemark.client.tags import Wanted
from tidemark.formats.message import Message

FETCH_COUNT_MAX: Final = 8192
"""Maximum number of messages in one answer of the broker."""
FETCH_SIZE_MAX: Final = 4 << 20
FETCH_WAIT_MS: Final = 15_000
OFFSET_TOO_SMALL: Final = "OFFSET_TOO_SMALL"
OFFSET_BEYOND: Final = "OFFSET_OVERFLOW_BADLY"

log = logging.getLogger(__name__)


class _Slice:
    """Consecutive fetched messages of one queue that the program has not taken yet."""

    __slots__ = ("at", "begin", "held", "messages", "next_offset")

    def __init__(
        self, held: HeldQueue, messages: Sequence[Message], begin: int, next_offset: int
    ) -> None:
        """begin, next_offset: range in the queue, including messages that were filtered out."""
        self.held, self.messages = held, messages
        self.begin, self.next_offset = begin, next_offset
        self.at = 0
        """Index of the first message that is not taken."""


class Fetching:
    """Buffer of fetched messages and the task that refills it."""

    def __init__(
        self,
        member: Member,
        committing: Committing,
        wanted: Mapping[str, Wanted],
        *,
        max_in_flight: int,
        max_span: int,
        session_ms: int,
    ) -> None:
        """max_in_flight: maximum number of messages fetched and not finished.

        max_span: maximum distance in one queue from the lowest unfinished message to the newest
        delivered one.
        """
        self._member, self._committing, self._wanted = member, committing, wanted
        self._in_flight_max = max_in_flight
        self._count_max = min(FETCH_COUNT_MAX, max(1, max_in_flight // 2))
        # A fetch on a dead connection must end before a session does.
        self._wait_ms = min(FETCH_WAIT_MS, session_ms // 2)
        self._span_max = max_span
        self._slices: deque[_Slice] = deque()
        """Messages that can be taken, in the order in which they arrived."""
        self._full: dict[HeldQueue, deque[_Slice]] = {}
        """Queues whose span is at its limit, with their fetched messages."""
        self._call: asyncio.Task[None] | None = None
        """The fetch in progress."""
        self._without: Sequence[HeldQueue] = ()
        """Queues that the fetch in progress excludes."""
        self._in_flight = self._size_in_flight = 0
        self._waits_for_room = False
        self._early = 0
        """Consecutive fetches that the broker answered early without a reason."""

    async def run(self) -> None:
        """Fetch forever."""
        member = self._member
        failed = 0
        while True:
            await self._wait_for_demand()
            generation = member.generation
            try:
                await self._interruptible(self._fetch_in_turn(generation))
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
        """Take up to ``count`` messages of an owned queue.

        Returns None if there are none or the session may have expired. The caller calls ``done``
        for each message when it is finished or given up.
        """
        while slices := self._slices:
            first = slices[0]
            held = first.held
            if held.hold is not Hold.OWNED:
                slices.popleft()
                self._give_room(first.messages[first.at :])
                continue
            if not self._member.may_deliver:
                return None
            room = self._span_max - held.progress.span
            if room <= 0 and first.at < len(first.messages):
                self._exclude(held)
                continue
            taken = first.messages[first.at : first.at + min(count, room)]
            first.at += len(taken)
            held.progress.hand_all([message.queue_offset for message in taken])
            if first.at == len(first.messages):
                slices.popleft()
                held.progress.cover(first.next_offset)
                self._committing.moved()  # needed if all messages were filtered out
            if taken:
                return held, taken
        return None

    def done(self, held: HeldQueue, messages: Sequence[Message]) -> None:
        """Record that taken messages are done or given up, which makes room for others."""
        self._give_room(messages)
        # Not at the first free place: otherwise each fetch would bring a single message.
        if self._full and held in self._full and held.progress.span <= self._span_max // 2:
            self._slices.extendleft(reversed(self._full.pop(held)))
            self.refetch(held)
        elif held.damaged_at is not None and held.is_idle:
            self.refetch(held)

    def drop(self, held: HeldQueue) -> None:
        """Drop the buffered messages of a queue; they are fetched again."""
        mine = [each for each in self._slices if each.held is held]
        self._slices = deque(each for each in self._slices if each.held is not held)
        if held in self._full:
            mine += self._full.pop(held)
            if held.hold is Hold.OWNED:
                self._full[held] = deque()  # its span is still at the limit
        if mine:
            first = mine[0]
            held.go_on_at(first.messages[first.at].queue_offset if first.at else first.begin)
        for each in mine:
            self._give_room(each.messages[each.at :])

    def take_back(self, held: HeldQueue, messages: Sequence[Message]) -> None:
        """Return the last taken messages of a queue unused; they are fetched again.

        Its buffered messages, which come after them, are dropped before.
        """
        held.progress.take_back(messages[0].queue_offset)
        held.go_on_at(messages[0].queue_offset)
        self.done(held, messages)

    def refetch(self, held: HeldQueue) -> None:
        """Fetch from a queue again that was excluded."""
        if held in self._without:
            self.interrupt()
        self._member.pulse.ring()

    def interrupt(self) -> None:
        """Cancel the fetch in progress, because its request is out of date."""
        if self._call is not None:
            self._call.cancel()

    async def _interruptible(self, fetch: Coroutine[object, object, None]) -> None:
        self._call = call = asyncio.create_task(fetch)
        try:
            await asyncio.wait({call})
        finally:
            self._call = None
            if not call.done():
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
            elif not call.cancelled():
                # If this task is cancelled in the same loop iteration, the code below does not
                # retrieve the exception, and asyncio would report it as never retrieved.
                call.exception()
        if call.cancelled():
            self._displace()  # the broker may have answered it
        else:
            call.result()

    def _exclude(self, held: HeldQueue) -> None:
        """Stop delivering from a queue until fewer of its messages are in progress."""
        self._full[held] = deque(each for each in self._slices if each.held is held)
        self._slices = slices = deque(each for each in self._slices if each.held is not held)
        if not slices:
            self._member.pulse.ring()  # other queues may have to be fetched instead

    def _give_room(self, messages: Sequence[Message]) -> None:
        self._in_flight -= len(messages)
        self._size_in_flight -= sum([message.size for message in messages])
        if self._waits_for_room and self._has_room:  # ringing for every message costs too much
            self._waits_for_room = False
            self._member.pulse.ring()

    @property
    def _has_room(self) -> bool:
        return (
            self._in_flight + self._count_max <= self._in_flight_max
            and self._size_in_flight <= FETCH_SIZE_MAX
        )

    async def _wait_for_demand(self) -> None:
        """Wait until there is room, the session runs, there is a queue to fetch, and callbacks have
        returned."""
        member = self._member
        while True:
            for held in [held for held in self._full if held.hold is not Hold.OWNED]:
                self.drop(held)
            owned, left_out = member.holdings.of(Hold.OWNED), self._left_out()
            if not self._has_room and not self._slices and len(left_out) < len(owned):
                # 1. Handlers of a queue hang; 2. everything buffered is of that queue and waits for
                # them; 3. there would never be room for messages of the other queues.
                for held in list(self._full):
                    self.drop(held)
            if (
                self._has_room
                and member.may_deliver
                and not member.holdings.of(Hold.ARRIVING)
                and (not owned or len(left_out) < len(owned))
            ):
                return
            self._waits_for_room = not self._has_room
            await member.pulse.wait()

    def _left_out(self) -> list[HeldQueue]:
        """Owned queues from which nothing is to be fetched now."""
        return [
            held
            for held in self._member.holdings.of(Hold.OWNED)
            if held.is_paused or held in self._full or self._ends_at_damage(held)
        ]

    def _ends_at_damage(self, held: HeldQueue) -> bool:
        """Whether the next record is damaged and messages before it are not finished yet."""
        if held.damaged_at is None or held.damaged_at != held.fetched_to:
            return False
        return not held.is_idle or any(each.held is held for each in self._slices)

    def _leaves_out(self, queue: Queue) -> bool:
        """Whether the current or last fetch excluded this queue."""
        return any(held.queue == queue for held in self._without)

    async def _fetch_in_turn(self, generation: int) -> None:
        """Fetch. If the broker could not hold the call, return when the next one is due."""
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        fetched = await self._fetch(generation)
        now = loop.time()
        is_held = now - asked_at >= self._wait_ms / 2000
        brought = any(not self._leaves_out(each.queue) for each in fetched.queues)
        if brought or fetched.generation != generation or is_held:
            self._early = 0
        elif fetched.poll_after_ms is not None:
            await self._until(now + fetched.poll_after_ms / 1000, generation)
        else:
            # The broker answered early without a reason: it may be stopping, or be a previous
            # version, which returns messages of excluded queues.
            self._early += 1
            await self._until(now + delay_s(self._early, jitter=random.random()), generation)

    async def _until(self, fetch_at: float, generation: int) -> None:
        """Wait until a time of the loop's clock, or until the generation changes.

        With a new generation there may be other queues.
        """
        member, loop = self._member, asyncio.get_running_loop()
        while member.generation == generation and (left_s := fetch_at - loop.time()) > 0:
            await member.pulse.wait(left_s * 1000)

    async def _fetch(self, generation: int) -> Fetched:
        await self._place()
        owned = self._member.holdings.of(Hold.OWNED)
        placed = [
            (held, held.fetched_to)
            for held in owned
            if not held.is_placed and held.fetched_to is not None
        ]
        if placed:
            self._committing.moved()  # a broker that crashed may have lost the last commits
        self._without = self._left_out()
        fetched = await self._member.calls.fetch(
            generation=generation,
            count_max=self._count_max,
            size_max=FETCH_SIZE_MAX,
            wait_ms=self._wait_ms,
            timeout_s=self._wait_ms / 1000,
            positions=[(held.queue, offset) for held, offset in placed],
            paused=[held.queue for held in self._without],
        )
        if generation == self._member.generation:
            for held, offset in placed:
                # Not if messages were dropped while the broker moved its cursor.
                held.is_placed = held.fetched_to == offset
        for each in fetched.queues:
            try:
                self._accept(each)
            except errors.BrokenAnswer:
                await self._member.calls.check(each)
                raise
        self._member.check_generation(fetched.generation)
        self._member.pulse.ring()
        return fetched

    async def _place(self) -> None:
        """Look up where queues start whose first answer may have been lost."""
        unknown = [
            held
            for held in self._member.holdings.of(Hold.OWNED)
            if not held.is_placed and held.fetched_to is None
        ]
        if not unknown:
            return
        committed: Mapping[Queue, int] = {}
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
        """Buffer the messages of one queue if they continue at our position."""
        held = self._member.holdings.get(fetched.queue)
        if held is None or held.hold is not Hold.OWNED:
            return  # its next owner starts at the committed offset
        if held.is_paused or self._leaves_out(fetched.queue):
            held.is_placed = False
            return
        expected = fetched.from_offset if held.fetched_to is None else held.fetched_to
        if fetched.status == OFFSET_BEYOND:
            # Our position is beyond the queue's end, after the node lost data that was not on disk.
            # The broker continues from the end, and so does this member. Messages in progress or
            # buffered may be among the lost ones: they count no more.
            self._member.holdings.restart(held, fetched.next_offset)
            return
        is_gap = fetched.from_offset > max(expected, fetched.min_offset)
        if is_gap or fetched.next_offset < expected:
            held.is_placed = False
            return
        if fetched.status == OFFSET_TOO_SMALL and fetched.min_offset > expected:
            log.warning(
                "%s: %d messages of %s/%s expired before the group read them",
                self._member.calls,
                fetched.min_offset - expected,
                *fetched.queue,
                extra={
                    "event": "messages-expired",
                    "group": self._member.calls.group,
                    "member": self._member.calls.member,
                    "topic": fetched.queue[0],
                    "queue": fetched.queue[1],
                    "messages": fetched.min_offset - expected,
                    "next_offset": fetched.min_offset,
                },
            )
        decoded, damage = decode_sound(fetched.records, self._member.calls.names)
        next_offset = fetched.next_offset
        if damage is not None:
            next_offset = decoded[-1].queue_offset + 1 if decoded else expected
            if next_offset <= expected:
                raise errors.BrokenAnswer(
                    f"queue {fetched.queue} at {expected}: {damage}"
                ) from damage
            # The program first handles the messages before it. Then it is fetched again, and the
            # error names it.
            held.damaged_at, held.is_placed = next_offset, False
        messages = received(decoded, fetched.queue[0], self._wanted, from_offset=expected)
        held.fetched_to = next_offset
        made = _Slice(held, messages, expected, next_offset)
        self._full.get(held, self._slices).append(made)
        self._in_flight += len(messages)
        self._size_in_flight += sum([message.size for message in messages])
