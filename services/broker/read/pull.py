"""Pull: from a request to what the store answers, held while there is nothing.

The rules of what a pull gets are ``shared.files.pull``; here is the shell around them: the tag
filter's words, the loop that goes on behind filtered messages, and the wait. Nothing beyond
``dispatched`` is ever handed out, so no consumer sees a message that a crash can take back. Before:
reput rang (read path, step 1). After: ``http_api`` sends the answer (step 2).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from services.broker.api.fields import shown
from services.broker.api.pools import held
from services.broker.log.queue_offsets import Queue, QueueOffsets
from services.broker.log.unit_checks import UnitChecks
from services.broker.metrics import BrokerMetrics
from services.broker.read.held_pulls import HeldPulls, Polls, Wake, Watcher
from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import ConsumeQueues
from shared.files.pull import PullResult, PullStatus, get_message
from shared.runtime.budget import Budget
from shared.runtime.doorbell import Doorbell
from tidemark.clock import Clock
from tidemark.errors import BadTags, DamagedFile, NotServing
from tidemark.formats import hashing
from tidemark.formats.record import Checks
from tidemark.formats.select import Wanted
from tidemark.offsets import PhysicalOffset, QueueOffset

TAGS_MAX: Final = 128
POLL_BUSY_S: Final = 0.001
POLL_IDLE_S: Final = 0.1
LOOK_AFTER_CLIENT_S: Final = 1.0
"""How often held pulls are asked whether their client has gone away: all in one go."""

SHORT_MAX: Final = 4096
"""Queues remembered that end before their last message. Of more the oldest is forgotten."""

_AGAIN: Final = frozenset({PullStatus.NO_MATCHED_MESSAGE, PullStatus.MESSAGE_WAS_REMOVING})
_END: Final = frozenset({PullStatus.OFFSET_OVERFLOW_ONE, PullStatus.NO_MESSAGE_IN_QUEUE})
_REASONS: Final = {
    Wake.MESSAGE: "message",
    Wake.TIME: "timeout",
    Wake.GONE: "timeout",
    Wake.CLOSE: "close",
    Wake.CHANGED: "assignment",
}
"""What the metric of ended waits calls them."""


def parse_tags(expression: str | None) -> Wanted | None:
    """Read ``a || b``; None takes every message. Raises BadTags.

    The tags themselves are compared, too: other tags may have the same hash.
    """
    if expression is None or expression.strip() in ("", "*"):
        return None
    tags = frozenset(tag.strip() for tag in expression.split("||"))
    if "" in tags or len(tags) > TAGS_MAX or "*" in tags or any("&&" in tag for tag in tags):
        raise BadTags(
            f"tags must be * or up to {TAGS_MAX} tags separated by ||, not {shown(expression)}.",
            "Write tags as a || b, or * for all. A message has one tag: none has both of a && b.",
            field="tags",
        )
    return Wanted(frozenset(map(hashing.string_hash, tags)), tags)


class PullRequest(NamedTuple):
    """One checked pull."""

    topic: str
    queue: int
    offset: int
    count_max: int
    bytes_max: int | None
    tags: Wanted | None
    wait_ms: int
    bulk: bool
    """Whether the store's own bounds of one answer give way to the caller's (raw pulls)."""


class Puller:
    """Answers pulls."""

    def __init__(
        self,
        queues: ConsumeQueues,
        log: CommitLogReader,
        queue_offsets: QueueOffsets,
        clock: Clock,
        metrics: BrokerMetrics,
        *,
        floor: Callable[[str, int], QueueOffset],
        dispatched: Callable[[], PhysicalOffset],
        written: Callable[[], PhysicalOffset],
        held_max: int,
        unit_checks: UnitChecks | None = None,
    ) -> None:
        """floor: queue offset below which a queue shows nothing, of a topic that was deleted and
        made again. dispatched: end of what may be seen. written: end of the log. unit_checks: asked
        where a queue ends before its last message; None: queues are not compared with the log.
        """
        self.unit_checks = unit_checks
        self._short: dict[Queue, tuple[QueueOffset, PhysicalOffset]] = {}
        """Queues that ended before their last message at the last look: where they ended, and how
        far dispatch has to come for that to be damage."""
        self._floor = floor
        self._queues = queues
        self._log = log
        self._queue_offsets = queue_offsets
        self._clock = clock
        self._metrics = metrics
        self._dispatched = dispatched
        self._written = written
        self.held = HeldPulls()
        self._polls = Polls()
        self._dispatched_seen = PhysicalOffset(-1)
        self._shown = PhysicalOffset(0)
        """The largest end of what may be seen that a pull has gone by."""
        self._looked_at = clock.monotonic()
        self._places = Budget("held pulls", held_max, "Pull with a shorter wait_ms, or again.")

    def checks_at(self, offset: int) -> Checks:
        """What the record at offset has to keep."""
        return self._log.checks_at(offset)

    def look(self, request: PullRequest) -> PullResult:
        """Answer from what is there now."""
        floor = self._floor(request.topic, request.queue)
        # Without a floor the store answers, for it knows the minimum: a negative offset included.
        if floor and request.offset < floor:
            result = self._get(request._replace(offset=floor, count_max=0))
            first = max(floor, result.min_offset)
            return result._replace(
                status=PullStatus.OFFSET_TOO_SMALL,
                next_offset=first,
                min_offset=first,
                max_offset=max(first, result.max_offset),
                stretches=[],
                message_count=0,
                bytes_total=0,
            )
        result = self._get(request)
        return result._replace(min_offset=floor) if result.min_offset < floor else result

    def bounds(self, topic: str, queue: int) -> tuple[QueueOffset, QueueOffset]:
        """First and next queue offset of what can be pulled; equal if there is nothing."""
        reader = self._queues.get(topic, queue)
        # The minimum first: see shared.files.pull.get_message.
        first = max(reader.min_offset(self._log.min_offset), self._floor(topic, queue))
        return first, max(reader.max_offset(self._dispatched()), first)

    def next_of(self, queue: Queue) -> QueueOffset:
        """The number that the queue's next message gets, dispatched so far or not."""
        return self._queue_offsets.next_of(queue)

    def _get(self, request: PullRequest) -> PullResult:
        try:
            return self._read(request)
        except DamagedFile:
            # A start of reput may have cut the queue: what a reader knows of it is outdated.
            if self.unit_checks is None or not self.unit_checks.began_anew():
                raise
            return self._read(request)

    def _read(self, request: PullRequest) -> PullResult:
        dispatched = self._dispatched()
        self._shown = max(self._shown, dispatched)
        reader = self._queues.get(request.topic, request.queue)
        result = get_message(
            reader,
            self._log,
            offset=request.offset,
            dispatched=dispatched,
            count_max=request.count_max,
            bytes_max=request.bytes_max,
            wanted=request.tags,
            bulk=request.bulk,
        )
        queue = (request.topic, request.queue)
        if result.max_offset < self._queue_offsets.next_of(queue) and not reader.directory_is_empty:
            # Without files it is one of a deleted topic; files that go are noticed by reput.
            if self.unit_checks is not None and self.unit_checks.began_anew():
                return self._read(request)  # the queue may have been shorter at the last look
            self._check_short(queue, request.offset, result.max_offset, dispatched)
        elif self._short:
            self._short.pop(queue, None)
        return result

    def _check_short(
        self, queue: Queue, offset: int, end: QueueOffset, dispatched: PhysicalOffset
    ) -> None:
        """A queue ends before its last message: usually that one is not dispatched yet. Once it is,
        the unit at the end is damaged, and hides those behind it.

        Raises NotServing for a reader that is past that end already: it would be sent back.
        """
        seen, last = self._short.get(queue, (QueueOffset(-1), PhysicalOffset(0)))
        if seen != end:
            last = self._written()
            self._short[queue] = end, last
            if len(self._short) > SHORT_MAX:  # a deleted queue is not asked for again
                del self._short[next(iter(self._short))]
        if dispatched < last or self.unit_checks is None:
            return
        if self.unit_checks.is_open(*queue, end) and offset > end:
            raise NotServing(
                f"queue {queue[1]} of topic {queue[0]!r} ends at {end} for a damaged unit, which "
                "reput compares with the log now. Nothing is read.",
                "Try again; the queue's other messages and all sends go on. If it stays so: does "
                "reput run?",
                topic=queue[0],
                queue=queue[1],
                queue_offset=int(end),
            )

    async def pull(self, request: PullRequest, is_gone: Callable[[], bool]) -> PullResult:
        """Answer at once, or when there is a message, or after ``wait_ms``.

        is_gone: whether the client has closed its connection; nobody waits for it then.
        """
        result = self._look_if_whole(request)
        if request.wait_ms == 0 or not _wants_more(result, request.offset):
            return result
        if not self.may_hold:
            return result._replace(poll_after_ms=self.poll_after_ms(request.wait_ms / 1000))
        with self.place():
            return await self._wait(request, result, is_gone)

    def _look_if_whole(self, request: PullRequest) -> PullResult:
        """Answer from what is there now.

        Raises NotServing if the queue ends before the offset and less can be seen than a pull has
        gone by before. Reput makes the queues again then, and the answer would send the consumer
        back to the end of a shorter queue.
        """
        result = self.look(request)
        if result.max_offset < request.offset and (dispatched := self._dispatched()) < self._shown:
            raise NotServing(
                f"the queues are made again from the log: {dispatched} of {self._shown} bytes. "
                "Nothing is read.",
                "Try again; /ready of reput shows the progress.",
                done_bytes=int(dispatched),
                total_bytes=int(self._shown),
            )
        return result

    @property
    def may_hold(self) -> bool:
        """Whether one more call may be held now."""
        return self._places.used < self._places.limit

    def poll_after_ms(self, wait_s: float) -> int:
        """When a call comes again that wanted to be held for wait_s, and cannot be."""
        return math.ceil(self._polls.after_s(self._clock.monotonic(), wait_s) * 1000)

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """One of the places of held calls; see ``may_hold``. Raises Overloaded."""
        self._places.take(1)
        self._metrics.long_polls.set(self._places.used)
        try:
            with held(self._clock):
                yield
        finally:
            self._places.give_back(1)
            self._metrics.long_polls.set(self._places.used)

    def watch(self, queue: Queue, offset: int, watcher: Watcher) -> None:
        """Tell the watcher when the queue has a message from queue offset ``offset`` on."""
        waits = self._queue_offsets.next_of(queue) > offset
        self.held.watch(queue, watcher, appended_to=self._written() if waits else None)

    def unwatch(self, queue: Queue, watcher: Watcher) -> None:
        """Tell the watcher no more; nothing if it does not watch."""
        self.held.unwatch(queue, watcher)

    def ended(self, why: Wake) -> None:
        """Count a held call that ended."""
        self._metrics.long_poll_wakeups.labels(_REASONS[why]).inc()

    async def _wait(
        self, request: PullRequest, result: PullResult, is_gone: Callable[[], bool]
    ) -> PullResult:
        deadline = self._clock.monotonic() + request.wait_ms / 1000
        started_at = request.offset
        while True:
            left_s = deadline - self._clock.monotonic()
            wake = Wake.MESSAGE
            if left_s <= 0:
                wake = Wake.TIME
            elif is_gone():
                wake = Wake.GONE
            elif self.held.is_closed:
                # Nothing is held any more: to go on would turn in a circle, and never yield.
                wake = Wake.CLOSE
            elif result.status in _AGAIN:
                await asyncio.sleep(0)  # a long run of filtered messages must not hold the loop
            else:
                wake = await self._held(request, left_s, is_gone)
            if wake is not Wake.MESSAGE:
                self.ended(wake)
                break
            request = request._replace(offset=result.next_offset)
            result = self._look_if_whole(request)
            if not _wants_more(result, request.offset):
                self.ended(wake)
                return result
        if result.status in _END and request.offset != started_at:
            # It went on behind filtered messages: tell where, or they are scanned every time.
            return result._replace(status=PullStatus.NO_MATCHED_MESSAGE)
        return result

    async def _held(
        self, request: PullRequest, timeout_s: float, is_gone: Callable[[], bool]
    ) -> Wake:
        """Wait for a message in the queue, at most timeout_s; tell why the wait has ended."""
        queue = (request.topic, request.queue)
        waits = self._queue_offsets.next_of(queue) > request.offset
        held = self.held.hold(
            queue, appended_to=self._written() if waits else None, is_gone=is_gone
        )
        timer = asyncio.get_running_loop().call_later(timeout_s, held.wake, Wake.TIME)
        try:
            return await held.woken
        finally:
            timer.cancel()
            self.held.let_go(held)

    async def run(self, stop: asyncio.Event, doorbell: Doorbell) -> None:
        """Wake held pulls as ``dispatched`` moves, until stop; then let all of them go."""
        stopper = asyncio.create_task(_wake_on(stop, doorbell))
        try:
            while not stop.is_set():
                expects = self.wake_held()
                await doorbell.wait(POLL_BUSY_S if expects else POLL_IDLE_S)
        finally:
            stopper.cancel()
            self.held.close()

    def wake_held(self) -> bool:
        """Wake the held pulls that have something to look at; whether some message is expected."""
        dispatched = self._dispatched()
        if dispatched != self._dispatched_seen:
            self._dispatched_seen = dispatched
            self.held.dispatched_to(dispatched)
        checks = self.unit_checks
        if checks is not None and (checks.settle() or checks.began_anew()):
            self.held.dispatched_to(dispatched)  # wakes pulls that wait for hidden messages
        if (now := self._clock.monotonic()) - self._looked_at >= LOOK_AFTER_CLIENT_S:
            self._looked_at = now
            self.held.let_go_of_gone()
        return self.held.expects


def _wants_more(result: PullResult, offset: int) -> bool:
    """Whether a pull that may wait goes on: it is at the end, or behind filtered messages."""
    return result.status in _AGAIN or (result.status in _END and result.next_offset == offset)


async def _wake_on(stop: asyncio.Event, doorbell: Doorbell) -> None:
    await stop.wait()
    doorbell.wake()
