"""One fdatasync in flight, in a thread of its own; everybody who waits is answered by the next one.

While bytes are unflushed a flush is in flight or due within ``flush_interval_ms``, at once when a
sender waits. Appends go on while it runs; the next one starts when it ends, if somebody waits.
"At once" means when the loop has no more senders to take in: they all share the flush then, instead
of each waiting for that of the one before. With ``visible_after = "written"`` bytes that nobody
waits for follow RocketMQ's intervals instead (store layout 9.2). A failed flush is never repeated:
what the page cache holds may never reach the disk, so ``FlushFailed`` ends the part, and with it
the process. Before: ``append`` put the bytes. After: ``waiting`` releases the senders (write
path, steps 5 and 6).
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from services.broker.log.group_commit import NO_DEADLINE
from services.broker.log.waiting import Waiting
from services.broker.metrics import BrokerMetrics
from tidemark.clock import Clock
from tidemark.errors import StoreError
from tidemark.offsets import PhysicalOffset

PAGE_SIZE: Final = 4096
GATHER_MAX_S: Final = 0.001
"""A flush that somebody waits for is not held back longer, however many senders keep coming."""


class FlushedLog(Protocol):
    """What the flusher needs of the commit log's appender."""

    @property
    def appended(self) -> PhysicalOffset:
        """End of what was appended."""
        ...

    @property
    def flushed(self) -> PhysicalOffset:
        """End of what is on disk."""
        ...

    def flush(self) -> PhysicalOffset:
        """Make everything appended durable, publish it, return its end. Blocks."""
        ...


class Pace(NamedTuple):
    """When bytes that nobody waits for are flushed. Times in seconds."""

    interval_s: float
    """After the first unflushed byte (continuous), after the last flush (by interval)."""
    least_bytes: int = 0
    """By interval: fewer than this wait for the thorough flush."""
    thorough_s: float | None = None
    """By interval: flush whatever there is after this long. None: continuous."""


def due_in_s(
    pace: Pace, *, unflushed: int, waiting: bool, since_first_s: float, since_flush_s: float
) -> float | None:
    """Say when to flush: 0 at once, None when there is nothing to flush.

    unflushed: bytes. since_first_s: age of the oldest of them. since_flush_s: since the last flush
    ended.
    """
    if unflushed <= 0:
        return None
    if waiting:
        return 0.0
    if pace.thorough_s is None:
        return max(0.0, pace.interval_s - since_first_s)
    if unflushed >= pace.least_bytes:
        return max(0.0, pace.interval_s - since_flush_s)
    return max(0.0, pace.thorough_s - since_flush_s)


class Flusher:
    """Owns the flush thread and the line of senders that wait for it.

    Everything but the flush itself happens on the loop, in callbacks: a task would add a turn of
    the loop to every flush.
    """

    def __init__(
        self,
        log: FlushedLog,
        pace: Pace,
        clock: Clock,
        metrics: BrokerMetrics,
        on_flushed: Callable[[], None],
    ) -> None:
        """on_flushed: called on the loop after each flush, once its offset is published."""
        self._log = log
        self._pace = pace
        self._clock = clock
        self._flush_duration = metrics.flush_duration
        self._group_commit_size = metrics.group_commit_size
        self._on_flushed = on_flushed
        self._waiting = Waiting(log.flushed, clock)
        self._orders: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._look_is_due = False
        self._in_flight = False
        self._stopping = False
        self._first_at: float | None = None
        self._flushed_at = clock.monotonic()
        self._gathers_from: float | None = None
        self._seen_in_line = 0
        self._hurries = 0
        self._fault: StoreError | None = None

    def fail(self, fault: StoreError) -> None:
        """Writing failed: end the part, and with it the process, as a failed flush does."""
        self._fault = fault
        self._end(fault)

    @property
    def failed(self) -> bool:
        """Whether writing or flushing has failed: nothing more reaches the disk."""
        return self._fault is not None or (
            self._ended is not None
            and self._ended.done()
            and not self._ended.cancelled()
            and self._ended.exception() is not None
        )

    def appended(self) -> None:
        """Note that there are new bytes. Cheap: called for every append."""
        if self._first_at is None:
            self._first_at = self._clock.monotonic()
            self._look_soon()

    def hurry(self) -> None:
        """Flush what is appended now at once: somebody waits, elsewhere, for more than the disk.

        Call ``appended`` first, like with ``durable``.
        """
        self._hurries += 1
        if not self._look_is_due:
            self._look_soon()

    def durable(self, end: PhysicalOffset, deadline: float = NO_DEADLINE) -> asyncio.Future[bool]:
        """A future: True once bytes below end are on disk, False if the deadline came first.

        Call ``appended`` first. deadline: on the monotonic clock. The future raises NotServing if
        the part ends before.
        """
        future = self._waiting.wait(end, deadline)
        if not self._look_is_due:
            self._look_soon()
        return future

    async def run(self, stop: asyncio.Event) -> None:
        """Flush until stop is set and all is on disk. Raises FlushFailed, WriteFailed."""
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        thread = threading.Thread(target=self._work, args=(self._loop,), name="flush", daemon=True)
        thread.start()
        stopper = asyncio.create_task(self._stop_on(stop))
        if self._fault is not None:
            self._end(self._fault)
        self._look_soon()
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

    def _look_soon(self) -> None:
        """Look when the loop has run what is ready now: whoever is about to append has, then."""
        if self._loop is not None and not self._look_is_due and not self._in_flight:
            self._look_is_due = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        """Start a flush, or set the timer to when one is due."""
        self._look_is_due = False
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
            self._hurries = 0  # whoever hurried was served by the flush in flight
        in_line = len(self._waiting.places) + self._hurries
        now = self._clock.monotonic()
        if in_line and self._gathers(in_line, now):
            self._look_soon()
            return
        due_s = due_in_s(
            self._pace,
            unflushed=unflushed,
            waiting=self._stopping or in_line > 0,
            since_first_s=0.0 if self._first_at is None else now - self._first_at,
            since_flush_s=now - self._flushed_at,
        )
        if due_s == 0.0:
            self._start()
        elif due_s is not None:
            # By interval it may become due sooner, when there are enough bytes: look again then.
            self._timer = self._loop.call_later(min(due_s, self._pace.interval_s), self._look)

    def _gathers(self, in_line: int, now: float) -> bool:
        """Whether more senders joined during the last turn of the loop: the flush waits for more.

        Without it the first of 64 senders that are woken together would have a flush of its own,
        and the other 63 would wait for two.
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
        # Bytes appended from here on may miss this flush: their time starts anew.
        self._first_at = None
        self._orders.put(True)

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        """In the thread: flush when told, tell the loop; until told to leave.

        Plain hand-over, no executor: a future for each flush, and one more to bring it to the loop,
        would cost a fifth of the flush.
        """
        clock, log, orders = self._clock, self._log, self._orders
        while orders.get():
            started = clock.monotonic()
            try:
                end = log.flush()
            except Exception as error:  # noqa: BLE001 - whatever it is ends the part
                loop.call_soon_threadsafe(self._end, error)
            else:
                took_s = clock.monotonic() - started
                loop.call_soon_threadsafe(self._flushed, end, started, took_s)

    def _flushed(self, end: PhysicalOffset, started: float, took_s: float) -> None:
        """On the loop: bytes below end are on disk."""
        if self._loop is None:
            return  # the part has ended meanwhile, and nobody waits any more
        self._in_flight = False
        self._flushed_at = started + took_s
        self._flush_duration.observe(took_s)
        if self._log.appended <= end:
            self._first_at = None  # what came while it ran was in time for it
        elif self._first_at is None:
            self._first_at = started
        released = self._waiting.reach(end)
        if released:
            self._group_commit_size.observe(released)
        self._on_flushed()
        if self._stopping or self._first_at is not None or len(self._waiting.places):
            self._look_soon()

    # -- the end --------------------------------------------------------------------------------

    def _end(self, fault: Exception | None) -> None:
        """End the part: with fault, or because all is on disk."""
        if self._ended is None or self._ended.done():
            return
        if fault is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(fault)

    async def _stop_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._stopping = True
        self._look_soon()
