"""Flushes the log: one fdatasync at a time, in a thread; waiting senders share the next one.

While there are unflushed bytes, a flush is running or due within ``flush_interval_ms``; it is due
at once if a sender waits. Appends continue during a flush, and the next flush starts when it ends
if a sender waits. "At once" means after the loop has processed all senders that are ready, so that
they share one flush instead of waiting for each other's. With ``visible_after = "written"`` bytes
without a waiting sender follow RocketMQ's intervals instead. A failed flush is
never repeated, because the bytes in the page cache may never reach the disk; ``FlushFailed`` ends
the flusher and the process. ``append`` writes the bytes before this step; after it ``waiting``
releases the senders (write path, steps 5 and 6).
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from services.broker.log.wait_queue import NO_DEADLINE
from services.broker.log.waiting import Waiting
from services.broker.traffic_metrics import TrafficMetrics
from shared.files.commit_log_appender import CommitLogAppender
from tidemark.clock import Clock
from tidemark.errors import StoreError
from tidemark.offsets import PhysicalOffset

GATHER_MAX_S: Final = 0.001
"""Longest time for which a flush with waiting senders is delayed to let more senders join."""


class FlushIntervals(NamedTuple):
    """When bytes without a waiting sender are flushed. Times in seconds."""

    interval_s: float
    """Continuous mode: time after the first unflushed byte. Interval mode: after the last flush."""
    least_bytes: int = 0
    """Interval mode: fewer bytes than this wait for the thorough flush."""
    thorough_s: float | None = None
    """Interval mode: time after which any number of bytes is flushed. None: continuous mode."""


def due_in_s(
    intervals: FlushIntervals,
    *,
    unflushed: int,
    waiting: bool,
    since_first_s: float,
    since_flush_s: float,
) -> float | None:
    """Return the time until the next flush: 0 at once, None if there is nothing to flush.

    unflushed: bytes. since_first_s: age of the oldest of them. since_flush_s: time since the last
    flush ended.
    """
    if unflushed <= 0:
        return None
    if waiting:
        return 0.0
    if intervals.thorough_s is None:
        return max(0.0, intervals.interval_s - since_first_s)
    if unflushed >= intervals.least_bytes:
        return max(0.0, intervals.interval_s - since_flush_s)
    return max(0.0, intervals.thorough_s - since_flush_s)


class Flusher:
    """Owns the flush thread and the queue of senders that wait for it.

    Everything except the flush itself runs on the event loop, in callbacks: a task would add an
    iteration of the loop to every flush.
    """

    def __init__(
        self,
        log: CommitLogAppender,
        intervals: FlushIntervals,
        clock: Clock,
        metrics: TrafficMetrics,
        on_flushed: Callable[[], None],
    ) -> None:
        """on_flushed: called on the loop after each flush, once its offset is published."""
        self._log = log
        self._intervals = intervals
        self._clock = clock
        self._flush_duration = metrics.flush_duration
        self._group_commit_size = metrics.group_commit_size
        self._on_flushed = on_flushed
        self._waiting = Waiting(log.flushed, clock)
        self._orders: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._check_is_due = False
        self._in_flight = False
        self._stopping = False
        self._first_at: float | None = None
        self._flushed_at = clock.monotonic()
        self._gathers_from: float | None = None
        self._seen_in_line = 0
        self._hurries = 0
        self._fault: StoreError | None = None

    def fail(self, fault: StoreError) -> None:
        """End the flusher, and with it the process, because a write failed."""
        self._fault = fault
        self._end(fault)

    @property
    def failed(self) -> bool:
        """Whether a write or flush has failed; nothing more is written to disk then."""
        return self._fault is not None or (
            self._ended is not None
            and self._ended.done()
            and not self._ended.cancelled()
            and self._ended.exception() is not None
        )

    def appended(self) -> None:
        """Record that there are new bytes. Called for every append, so it must be cheap."""
        if self._first_at is None:
            self._first_at = self._clock.monotonic()
            self._check_soon()

    def hurry(self) -> None:
        """Flush the appended bytes at once for a caller that waits elsewhere, e.g. for the group.

        Call ``appended`` first, as for ``durable``.
        """
        self._hurries += 1
        if not self._check_is_due:
            self._check_soon()

    def durable(self, end: PhysicalOffset, deadline: float = NO_DEADLINE) -> asyncio.Future[bool]:
        """Return a future: True once bytes below end are on disk, False if the deadline passed.

        Call ``appended`` first. deadline: on the monotonic clock [s]. The future raises NotServing
        if the flusher ends first.
        """
        future = self._waiting.wait(end, deadline)
        if not self._check_is_due:
            self._check_soon()
        return future

    def poll(self) -> bool:
        """Return False: each flush wakes its callers."""
        return False

    def end_waits(self) -> None:
        """Do nothing: the last flush wakes the callers."""

    async def run(self, stop: asyncio.Event) -> None:
        """Flush until stop is set and all bytes are on disk. Raises FlushFailed, WriteFailed."""
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        thread = threading.Thread(target=self._work, args=(self._loop,), name="flush", daemon=True)
        thread.start()
        stopper = asyncio.create_task(self._stop_on(stop))
        if self._fault is not None:
            self._end(self._fault)
        self._check_soon()
        try:
            await self._ended
        finally:
            self._loop = None
            stopper.cancel()
            if self._timer is not None:
                self._timer.cancel()
            self._waiting.close()
            self._orders.put(False)
            thread.join()  # at most as long as the flush in flight takes

    # -- when -----------------------------------------------------------------------------------

    def _check_soon(self) -> None:
        """Call ``_check`` after the callbacks that are ready now, which may append."""
        if self._loop is not None and not self._check_is_due and not self._in_flight:
            self._check_is_due = True
            self._loop.call_soon(self._check)

    def _check(self) -> None:
        """Start a flush if one is due; otherwise set the timer."""
        self._check_is_due = False
        if self._loop is None or self._in_flight:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        unflushed = self._log.appended - self._log.flushed
        if self._stopping and unflushed <= 0:
            self._end(None)
            return
        if unflushed <= 0:
            self._hurries = 0  # the previous flush covered the bytes of all hurry calls
        in_line = len(self._waiting.places) + self._hurries
        now = self._clock.monotonic()
        if in_line and self._gathers(in_line, now):
            self._check_soon()
            return
        due_s = due_in_s(
            self._intervals,
            unflushed=unflushed,
            waiting=self._stopping or in_line > 0,
            since_first_s=0.0 if self._first_at is None else now - self._first_at,
            since_flush_s=now - self._flushed_at,
        )
        if due_s == 0.0:
            self._start()
        elif due_s is not None:
            # In interval mode more bytes may make it due sooner: check again after the interval.
            self._timer = self._loop.call_later(min(due_s, self._intervals.interval_s), self._check)

    def _gathers(self, in_line: int, now: float) -> bool:
        """Return whether more senders joined in the last loop iteration, so the flush waits.

        Otherwise the first of 64 senders that are woken together would get its own flush, and the
        other 63 would wait for two flushes.
        """
        if self._gathers_from is None:
            self._gathers_from = now
        if in_line > self._seen_in_line and now - self._gathers_from < GATHER_MAX_S:
            self._seen_in_line = in_line
            return True
        return False

    # -- the flush ------------------------------------------------------------------------------

    def _start(self) -> None:
        self._in_flight = True
        self._gathers_from, self._seen_in_line = None, 0
        self._hurries = 0
        # Bytes appended from here on may miss this flush: their age is measured anew.
        self._first_at = None
        self._orders.put(True)

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        """Thread function: flush on each True from the queue and report to the loop; end on False.

        It uses a queue instead of an executor: a future per flush, and another one to pass the
        result to the loop, would cost a fifth of the flush.
        """
        clock, log, orders = self._clock, self._log, self._orders
        while orders.get():
            started = clock.monotonic()
            try:
                end = log.flush()
            except Exception as error:  # noqa: BLE001 - any error ends the flusher
                loop.call_soon_threadsafe(self._end, error)
            else:
                took_s = clock.monotonic() - started
                loop.call_soon_threadsafe(self._flushed, end, started, took_s)

    def _flushed(self, end: PhysicalOffset, started: float, took_s: float) -> None:
        """Process a finished flush on the loop: bytes below end are on disk."""
        if self._loop is None:
            return  # the flusher has ended meanwhile, and no sender waits any more
        self._in_flight = False
        self._flushed_at = started + took_s
        self._flush_duration.observe(took_s)
        if self._log.appended <= end:
            self._first_at = None  # bytes appended during the flush were covered by it
        elif self._first_at is None:
            self._first_at = started
        released = self._waiting.reach(end)
        if released:
            self._group_commit_size.observe(released)
        self._on_flushed()
        if self._stopping or self._first_at is not None or len(self._waiting.places):
            self._check_soon()

    # -- the end --------------------------------------------------------------------------------

    def _end(self, fault: Exception | None) -> None:
        """End ``run``: with fault, or normally if it is None."""
        if self._ended is None or self._ended.done():
            return
        if fault is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(fault)

    async def _stop_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._stopping = True
        self._check_soon()
