"""Pull: reads messages for a request, and holds the request while there are none (long poll).

``shared.files.pull`` has the rules for what a pull returns. This module is the shell around it: it
parses the tag filter, continues after filtered messages, and waits. Nothing beyond ``dispatched``
is returned, so no consumer sees a message that a crash can lose, unless ``visible_after`` is
``written``. Reput rings the doorbell before this step (read path, step 1); after it ``http_api``
sends the answer (step 2).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from services.broker.fields import shown
from services.broker.log.log_context import LogContext
from services.broker.log.queue_offsets import QueueOffsets
from services.broker.log.unit_checks import UnitChecks
from services.broker.read.long_polls import LongPolls, Polls, Wake, Watcher
from services.broker.request_classes import held
from shared.files.pull import PullResult, PullStatus, get_message
from shared.runtime.budget import Budget
from tidemark.errors import BadTags, DamagedFile, NotServing
from tidemark.formats import hashing
from tidemark.formats.record import Checks
from tidemark.formats.select import Wanted
from tidemark.offsets import PhysicalOffset, Queue, QueueOffset

TAGS_MAX: Final = 128
CHECK_CLIENTS_S: Final = 1.0
"""Interval at which all held pulls are checked for disconnected clients."""
WAKE_EARLY_S: Final = 0.1
"""Shortest interval between two wakes of the pulls that wait for a message for whose end only an
upper bound is known: each reads its queue again."""

SHORT_MAX: Final = 4096
"""Remembered queues that end before their last message. If there are more, the oldest is dropped.
"""

_AGAIN: Final = frozenset({PullStatus.NO_MATCHED_MESSAGE, PullStatus.MESSAGE_WAS_REMOVING})
_END: Final = frozenset({PullStatus.OFFSET_OVERFLOW_ONE, PullStatus.NO_MESSAGE_IN_QUEUE})
_REASONS: Final = {
    Wake.MESSAGE: "message",
    Wake.TIME: "timeout",
    Wake.GONE: "timeout",
    Wake.CLOSE: "close",
    Wake.CHANGED: "assignment",
}
"""Label values of the metric of ended waits."""


def parse_tags(expression: str | None) -> Wanted | None:
    """Parse ``a || b``; None selects every message. Raises BadTags.

    The result holds the tags in addition to their hashes, because other tags may have equal hashes.
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
    """Whether the caller's limits replace the store's own limits of one answer (raw pulls)."""


class Puller:
    """Answers pull requests."""

    def __init__(
        self,
        log_context: LogContext,
        queue_offsets: QueueOffsets,
        *,
        floor: Callable[[str, int], QueueOffset],
    ) -> None:
        """floor: returns the first visible queue offset, e.g. of a topic that was deleted and
        recreated.
        """
        self.unit_checks: UnitChecks | None = log_context.unit_checks
        """Used where a queue ends before its last message; None: queues are not compared with the
        log."""
        self._short: dict[Queue, tuple[QueueOffset, PhysicalOffset]] = {}
        """Queues that ended before their last message at the last read: the queue offset at which
        they ended, and the dispatched offset from which on that means damage."""
        self._floor = floor
        self._queues = log_context.queues
        self._log = log_context.reader
        self._queue_offsets = queue_offsets
        self._clock = log_context.clock
        self._metrics = log_context.metrics
        self._dispatched = log_context.dispatched
        self._written = log_context.end
        self.long_polls = LongPolls()
        self._polls = Polls()
        self._seen = self._seen_early = 0, PhysicalOffset(-1)
        """Number of changes of the queues, and the dispatched offset, when held pulls were last
        woken, and those that wait for an earlier message."""
        self._shown = PhysicalOffset(0)
        """The largest dispatched offset that a pull has used."""
        self._checked_at = self._woken_early_at = self._clock.monotonic()
        held_max = log_context.config.held_pulls_max
        self._places = Budget("held pulls", held_max, "Pull with a shorter wait_ms, or again.")

    def checks_at(self, offset: int) -> Checks:
        """Return the checks that the record at offset has to pass."""
        return self._log.checks_at(offset)

    def read(self, request: PullRequest) -> PullResult:
        """Answer with the messages that can be read now."""
        floor = self._floor(request.topic, request.queue)
        # Without a floor the store compares with its own min offset, even for negative offsets.
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
        """Return the first and the end queue offset that can be pulled; equal if there is none."""
        reader = self._queues.get(topic, queue)
        # The min offset must be read first: see shared.files.pull.get_message.
        first = max(reader.min_offset(self._log.min_offset), self._floor(topic, queue))
        return first, max(reader.max_offset(self._dispatched()), first)

    def next_of(self, queue: Queue) -> QueueOffset:
        """Return the queue's next offset to be assigned; messages before may be undispatched."""
        return self._queue_offsets.next_of(queue)

    def _get(self, request: PullRequest) -> PullResult:
        try:
            return self._read(request)
        except DamagedFile:
            # A restart of reput may have truncated the queue: the reader's cache is outdated.
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
            # A queue without files belongs to a deleted topic; reput notices missing files.
            if self.unit_checks is not None and self.unit_checks.began_anew():
                return self._read(request)  # the first read may have used outdated bounds
            self._check_short(queue, request.offset, result.max_offset, dispatched)
        elif self._short:
            self._short.pop(queue, None)
        return result

    def _check_short(
        self, queue: Queue, offset: int, end: QueueOffset, dispatched: PhysicalOffset
    ) -> None:
        """Handle a queue that ends before its last message.

        Usually the last message is not dispatched yet. If it is, the unit at the end is damaged and
        hides the units after it. Raises NotServing for a reader whose offset is already after that
        end: otherwise it would be sent back.
        """
        seen, last = self._short.get(queue, (QueueOffset(-1), PhysicalOffset(0)))
        if seen != end:
            last = self._written()
            self._short[queue] = end, last
            if len(self._short) > SHORT_MAX:  # deleted queues would stay here
                del self._short[next(iter(self._short))]
        if dispatched < last or self.unit_checks is None:
            return
        if self.unit_checks.is_open(*queue, end) and offset > end:
            raise NotServing(
                f"queue {queue[1]} of topic {queue[0]!r} ends at {end} because of a damaged unit, "
                "which reput compares with the log now. Nothing was read.",
                "Try again; the queue's other messages and all sends are not affected. If this "
                "persists, check that reput runs.",
                topic=queue[0],
                queue=queue[1],
                queue_offset=int(end),
            )

    async def pull(self, request: PullRequest, is_gone: Callable[[], bool]) -> PullResult:
        """Answer at once, or when there is a message, or after ``wait_ms``.

        is_gone: returns whether the client has closed its connection, which ends the wait.
        """
        result = self._read_if_whole(request)
        if request.wait_ms == 0 or not _wants_more(result, request.offset):
            return result
        if not self.may_hold:
            return result._replace(poll_after_ms=self.poll_after_ms(request.wait_ms / 1000))
        with self.place():
            return await self._wait(request, result, is_gone)

    def _read_if_whole(self, request: PullRequest) -> PullResult:
        """Answer with the messages that can be read now.

        Raises NotServing if the queue ends before the offset and the dispatched offset is smaller
        than an earlier pull has seen. Reput is rebuilding the queues then, and an answer would send
        the consumer back to the end of a shorter queue.
        """
        result = self.read(request)
        if result.max_offset < request.offset and (dispatched := self._dispatched()) < self._shown:
            raise NotServing(
                f"the queues are being rebuilt from the log: {dispatched} of {self._shown} bytes. "
                "Nothing was read.",
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
        """Return the delay before the next poll for a call that could not be held for wait_s."""
        return math.ceil(self._polls.after_s(self._clock.monotonic(), wait_s) * 1000)

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """Occupy one of the places for held calls; see ``may_hold``. Raises Overloaded."""
        self._places.take(1)
        self._metrics.long_polls.set(self._places.used)
        try:
            with held(self._clock):
                yield
        finally:
            self._places.give_back(1)
            self._metrics.long_polls.set(self._places.used)

    def watch(self, queue: Queue, offset: int, watcher: Watcher) -> None:
        """Wake the watcher when the queue has a message at or after queue offset ``offset``."""
        waits = self._queue_offsets.next_of(queue) > offset
        self.long_polls.watch(queue, watcher, appended_to=self._written() if waits else None)

    def unwatch(self, queue: Queue, watcher: Watcher) -> None:
        """Remove the watcher of the queue; no effect if there is none."""
        self.long_polls.unwatch(queue, watcher)

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
            elif self.long_polls.is_closed:
                # Calls are no longer held: the loop would repeat without ever yielding.
                wake = Wake.CLOSE
            elif result.status in _AGAIN:
                await asyncio.sleep(0)  # a long run of filtered messages must not hold the loop
            else:
                wake = await self._held(request, left_s, is_gone)
            if wake is not Wake.MESSAGE:
                self.ended(wake)
                break
            request = request._replace(offset=result.next_offset)
            result = self._read_if_whole(request)
            if not _wants_more(result, request.offset):
                self.ended(wake)
                return result
        if result.status in _END and request.offset != started_at:
            # The pull skipped filtered messages: report the next offset, or the client's next pull
            # scans them again.
            return result._replace(status=PullStatus.NO_MATCHED_MESSAGE)
        return result

    async def _held(
        self, request: PullRequest, timeout_s: float, is_gone: Callable[[], bool]
    ) -> Wake:
        """Wait for a message in the queue, at most timeout_s; return why the wait ended."""
        queue = (request.topic, request.queue)
        waits = self._queue_offsets.next_of(queue) > request.offset
        held = self.long_polls.hold(
            queue, appended_to=self._written() if waits else None, is_gone=is_gone
        )
        timer = asyncio.get_running_loop().call_later(timeout_s, held.wake, Wake.TIME)
        try:
            return await held.woken
        finally:
            timer.cancel()
            self.long_polls.let_go(held)

    def wake_held(self) -> bool:
        """Wake the held pulls with new messages; return whether undispatched ones are expected."""
        # The changes must be read first: see replication.slave.
        changes = 0 if self.unit_checks is None else self.unit_checks.changes()
        seen = changes, self._dispatched()
        if seen != self._seen:
            self._seen = seen
            self.long_polls.dispatched_to(seen[1])
        now = self._clock.monotonic()
        if seen != self._seen_early and now - self._woken_early_at >= WAKE_EARLY_S:
            self._seen_early, self._woken_early_at = seen, now
            self.long_polls.wake_early()
        if now - self._checked_at >= CHECK_CLIENTS_S:
            self._checked_at = now
            self.long_polls.wake_disconnected()
        return self.long_polls.expects


def _wants_more(result: PullResult, offset: int) -> bool:
    """Return whether a pull may wait: it is at the queue's end, or after filtered messages."""
    return result.status in _AGAIN or (result.status in _END and result.next_offset == offset)
