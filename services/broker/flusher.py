"""One fdatasync in flight, in a worker thread; everybody who waits is answered by the next one.

While bytes are unflushed a flush is in flight or due within ``flush_interval_ms``, at once when a
sender waits. With ``visible_after = "written"`` bytes that nobody waits for follow RocketMQ's
intervals instead (store layout 9.2). A failed flush is never repeated: what the page cache holds
may never reach the disk, so ``FlushFailed`` ends the part, and with it the process. Before:
``append`` put the bytes. After: ``group_commit`` releases the senders (walk steps 6 and 9).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, Protocol

from services.broker.group_commit import GroupCommit
from services.broker.metrics import BrokerMetrics
from tidemark.clock import Clock
from tidemark.errors import NotServing, StoreError
from tidemark.offsets import PhysicalOffset

PAGE_SIZE: Final = 4096


class FlushedLog(Protocol):
    """What the flusher needs of the commit log's appender."""

    @property
    def written(self) -> PhysicalOffset:
        """End of what was appended."""
        ...

    @property
    def flushed(self) -> PhysicalOffset:
        """End of what is on disk."""
        ...

    def flush(self) -> PhysicalOffset:
        """Make everything written durable, publish it, return its end. Blocks."""
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
    """Owns the flush thread and the line of senders that wait for it."""

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
        self._metrics = metrics
        self._on_flushed = on_flushed
        self._line: GroupCommit[asyncio.Future[None]] = GroupCommit(log.flushed)
        self._wake = asyncio.Event()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="flush")
        self._first_at: float | None = None
        self._flushed_at = clock.monotonic()
        self._open = True
        self._fault: StoreError | None = None

    def fail(self, fault: StoreError) -> None:
        """Writing failed: end the part, and with it the process, as a failed flush does."""
        self._fault = fault
        self._wake.set()

    def appended(self) -> None:
        """Note that there are new bytes. Cheap: called for every append."""
        if self._first_at is None:
            self._first_at = self._clock.monotonic()
            self._wake.set()

    def durable(self, end: PhysicalOffset) -> asyncio.Future[None]:
        """A future that is done when bytes below end are on disk; call ``appended`` first."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._open:
            future.set_exception(_stopping())
        elif self._line.join(end, future):
            self._wake.set()
        else:
            future.set_result(None)
        return future

    async def run(self, stop: asyncio.Event) -> None:
        """Flush until stop is set and all is on disk. Raises FlushFailed, WriteFailed."""
        loop = asyncio.get_running_loop()
        stopper = asyncio.create_task(self._wake_on(stop))
        try:
            while True:
                if self._fault is not None:
                    raise self._fault
                unflushed = self._log.written - self._log.flushed
                if unflushed <= 0 and stop.is_set():
                    return
                delay_s = self._delay_s(unflushed, stopping=stop.is_set())
                if delay_s != 0.0:
                    await self._sleep(delay_s)
                    continue
                # Bytes appended from here on may miss this flush: their time starts anew.
                self._first_at = None
                started = self._clock.monotonic()
                flushed = await loop.run_in_executor(self._executor, self._log.flush)
                self._flushed_at = self._clock.monotonic()
                self._metrics.flush_duration.observe(self._flushed_at - started)
                self._release(flushed)
                if self._log.written > flushed and self._first_at is None:
                    self._first_at = started
        finally:
            self._open = False
            stopper.cancel()
            for future in self._line.dissolve():
                if not future.done():
                    future.set_exception(_stopping())
            self._executor.shutdown(wait=True)

    def _delay_s(self, unflushed: int, *, stopping: bool) -> float | None:
        now = self._clock.monotonic()
        return due_in_s(
            self._pace,
            unflushed=unflushed,
            waiting=stopping or len(self._line) > 0,
            since_first_s=0.0 if self._first_at is None else now - self._first_at,
            since_flush_s=now - self._flushed_at,
        )

    def _release(self, flushed: PhysicalOffset) -> None:
        released = self._line.advance(flushed)
        if released:
            self._metrics.group_commit_size.observe(len(released))
        self._on_flushed()
        for future in released:
            if not future.done():  # the sender may have run out of time, or gone away
                future.set_result(None)

    async def _sleep(self, delay_s: float | None) -> None:
        """Until woken, or delay_s are over."""
        self._wake.clear()
        try:
            async with asyncio.timeout(delay_s):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _wake_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._wake.set()


def _stopping() -> NotServing:
    return NotServing(
        "the node is stopping: the messages are appended and may not be on disk yet.",
        "Look for them by key before sending them again.",
    )
