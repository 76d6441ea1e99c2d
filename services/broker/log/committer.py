"""Puts pooled records into the log's file: at once for senders that wait, else at intervals.

With a write buffer pool an append is in memory of this process only, and a kill loses it: a send
with ``ack=memory`` waits until it is in the file. All appends of one turn of the loop share one
commit. Records that no sender waits for follow ``commit_due``; a flush commits first, so that it
may be faster than both. Before: ``append`` put the bytes into the pool. After: ``waiting`` releases
the senders.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from services.broker.log.waiting import Waiting
from shared.files.write_pool import CommitPace, commit_due
from tidemark.clock import Clock
from tidemark.offsets import PhysicalOffset


class PooledLog(Protocol):
    """What the committer needs of the commit log's appender."""

    @property
    def appended(self) -> PhysicalOffset:
        """End of what was appended."""
        ...

    @property
    def written(self) -> PhysicalOffset:
        """End of what is in the file and published."""
        ...

    def commit(self) -> PhysicalOffset:
        """Put everything appended into the file, publish it, return its end."""
        ...


class Committer:
    """Owns the line of senders that wait for the file, and the pace of the rest.

    Commits on the loop: the bytes go from memory to memory, and as many of them as senders wait
    for, or as a share of a second brought in.
    """

    def __init__(
        self,
        log: PooledLog,
        pace: CommitPace,
        clock: Clock,
        on_committed: Callable[[], None],
    ) -> None:
        """on_committed: called on the loop after each commit, once its offset is published."""
        self._log = log
        self._pace = pace
        self._clock = clock
        self._on_committed = on_committed
        self._waiting = Waiting(log.written, clock)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._look_is_due = False
        self._committed_at = clock.monotonic()

    def appended(self) -> None:
        """Note that there are new bytes. Cheap: called for every append."""
        if self._timer is None:
            self._look_soon()

    def committed(self, end: PhysicalOffset) -> asyncio.Future[bool]:
        """A future that is done once bytes below end are in the file.

        Call ``appended`` first. It raises NotServing if the part ends before.
        """
        future = self._waiting.wait(end)
        if not future.done():
            self._look_soon()
        return future

    def flushed(self) -> None:
        """A flush has committed what it flushed: release the senders that waited for that."""
        self._committed_at = self._clock.monotonic()
        self._waiting.reach(self._log.written)

    async def run(self, stop: asyncio.Event) -> None:
        """Commit until stop is set. Raises WriteFailed, FlushFailed."""
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        stopper = asyncio.create_task(self._stop_on(stop))
        self._look_soon()
        try:
            await self._ended
        finally:
            self._loop = None
            stopper.cancel()
            if self._timer is not None:
                self._timer.cancel()
            self._waiting.close()

    def _look_soon(self) -> None:
        """Call ``_look`` when the loop has run what is ready now: all of that shares the commit."""
        if self._loop is not None and not self._look_is_due:
            self._look_is_due = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        """Commit, or set the timer to when that is due."""
        self._look_is_due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._loop is None:
            return
        # A flush, or the search for a repeated send, may have put their bytes into the file.
        self._waiting.reach(self._log.written)
        due_s = commit_due(
            self._pace,
            pooled=self._log.appended - self._log.written,
            waiting=len(self._waiting.places) > 0,
            since_commit_s=self._clock.monotonic() - self._committed_at,
        )
        if due_s == 0.0:
            self._commit()
        elif due_s is not None:
            # It may become due sooner, when there are enough bytes: checked again then.
            self._timer = self._loop.call_later(min(due_s, self._pace.interval_s), self._look)

    def _commit(self) -> None:
        try:
            end = self._log.commit()
        except Exception as fault:  # noqa: BLE001 - whatever it is ends the part
            self._end(fault)
            return
        self._committed_at = self._clock.monotonic()
        self._waiting.reach(end)
        self._on_committed()

    def _end(self, fault: Exception | None) -> None:
        """End the part: with fault, or at the stop."""
        if self._ended is None or self._ended.done():
            return
        if fault is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(fault)

    async def _stop_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        if len(self._waiting.places):
            self._commit()
        self._end(None)
