"""Writes pooled records to the log's file: at once if senders wait, otherwise at intervals.

With a write buffer pool an append is only in the memory of this process, and a kill loses it.
Therefore a send with ``ack=memory`` waits until its records are in the file. All appends of one
iteration of the event loop share one commit. Records that no sender waits for are committed
according to ``commit_due``. A flush commits first, so it may write the records earlier. ``append``
puts the bytes into the pool before this step; after it ``waiting`` releases the senders.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from services.broker.log.waiting import Waiting
from shared.files.commit_log_appender import CommitLogAppender
from shared.files.write_pool import CommitPace, commit_due
from tidemark.clock import Clock
from tidemark.offsets import PhysicalOffset


class Committer:
    """Owns the queue of senders that wait for the file, and the commit interval.

    The commit runs on the event loop. It only copies memory, and the amount is bounded by what
    waiting senders appended, or by what arrived within one interval.
    """

    def __init__(
        self,
        log: CommitLogAppender,
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
        self._check_is_due = False
        self._committed_at = clock.monotonic()

    def appended(self) -> None:
        """Record that there are new bytes. Called for every append, so it must be cheap."""
        if self._timer is None:
            self._check_soon()

    def committed(self, end: PhysicalOffset) -> asyncio.Future[bool]:
        """Return a future that is done once the bytes below end are in the file.

        Call ``appended`` first. The future raises NotServing if the committer ends first.
        """
        future = self._waiting.wait(end)
        if not future.done():
            self._check_soon()
        return future

    def flushed(self) -> None:
        """Release senders after a flush, which commits the bytes that it flushes."""
        self._committed_at = self._clock.monotonic()
        self._waiting.reach(self._log.written)

    async def run(self, stop: asyncio.Event) -> None:
        """Commit until stop is set. Raises WriteFailed, FlushFailed."""
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        stopper = asyncio.create_task(self._stop_on(stop))
        self._check_soon()
        try:
            await self._ended
        finally:
            self._loop = None
            stopper.cancel()
            if self._timer is not None:
                self._timer.cancel()
            self._waiting.close()

    def _check_soon(self) -> None:
        """Call ``_check`` after the callbacks that are ready now; their appends share a commit."""
        if self._loop is not None and not self._check_is_due:
            self._check_is_due = True
            self._loop.call_soon(self._check)

    def _check(self) -> None:
        """Commit if that is due; otherwise set the timer."""
        self._check_is_due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._loop is None:
            return
        # A flush, or the search for a repeated send, may have committed bytes of waiting senders.
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
            # More bytes may make it due sooner: check again after the interval.
            self._timer = self._loop.call_later(min(due_s, self._pace.interval_s), self._check)

    def _commit(self) -> None:
        try:
            end = self._log.commit()
        except Exception as fault:  # noqa: BLE001 - any error ends the committer
            self._end(fault)
            return
        self._committed_at = self._clock.monotonic()
        self._waiting.reach(end)
        self._on_committed()

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
        if len(self._waiting.places):
            self._commit()
        self._end(None)
