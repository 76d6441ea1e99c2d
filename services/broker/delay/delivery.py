"""Delivers due messages in turns of ``waiting``, and records the progress.

In one turn the thread returns the due messages. Each slice is appended and the progress moves in
the same step of the loop, so that no checkpoint or cancellation comes in between. One fdatasync
covers many turns; then the thread commits their effects to the sorted file. While the progress
moves, a ``delay`` record stores it once a second: the checkpoint. A kill is safe at any point,
because each appended copy names its origin.

Turns and the operations of ``delayed`` exclude each other by one lock. If the log cannot be read,
or accepts no messages, delivery waits and tries again; it never skips. Step before: ``sender`` or a
nack stored the waiting message. Step after: dispatch, as for any message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from services.broker.delay.delay_queues import DelayQueues
from services.broker.delay.progress import Progress
from services.broker.delay.slices import Slice
from services.broker.delay.waiting import Scan, Waiting
from services.broker.log.append import Append
from services.broker.log.log_context import LogContext
from services.broker.send.batches import Batches
from services.broker.state.state_log import StateLog
from shared.state import records
from shared.state.records import DelayRecord
from tidemark.errors import FileNotReady, NotServing, StoreError
from tidemark.formats import delay
from tidemark.formats.checkpoint import Slot
from tidemark.formats.delay import TIMER_LEVEL
from tidemark.offsets import PhysicalOffset

log = logging.getLogger(__name__)

POLL_S: Final = 0.04
"""Poll interval for messages that became known after the last turn: half of the 100 ms by which a
delivery may be late."""
IDLE_POLL_S: Final = 0.08
"""Poll interval while no message waits."""
LET_GO_AFTER_S: Final = 1.0
"""Time between a move of the log's start and the release of the deleted files' mappings."""
KEEP_INTERVAL_S: Final = 0.5
"""Maximum time between two commits. After a kill, the next start finds later deliveries in the
log."""
RETRY_S: Final = 1.0
"""Interval of attempts while the log accepts no messages or cannot be read."""
HAND_OVER_S: Final = 2.0
"""Maximum wait at the end of delivery until delivered copies are on disk."""
CHECKPOINT_INTERVAL_S: Final = 1.0
CHECKPOINT_BYTES: Final = 16 << 20
"""Bytes appended between two progress checkpoints while the progress moves."""
CHECKPOINT_BYTES_MAX: Final = 64 << 20
"""Maximum number of bytes appended between two checkpoints; a start has to read at most these."""
NOT_KNOWN: Final = (-1, -1)
"""First due time while it is unknown; no checkpoint can be written then."""

T = TypeVar("T")


class Delivery:
    """Delivers delayed messages; callers use it through ``delayed``."""

    def __init__(
        self,
        waiting: Waiting,
        queues: DelayQueues,
        log_context: LogContext,
        append: Append,
        state_log: StateLog,
        batches: Batches,
        *,
        on_fault: Callable[[StoreError | None], None],
    ) -> None:
        """waiting: used in this object's thread only. batches: makes inner batches of the copies
        for batch topics. on_fault: called with the error that stops delivery, and with None when
        delivery continues.
        """
        self._waiting = waiting
        self._queues = queues
        self._append = append
        self._batches = batches
        self._durability = log_context.durability
        self._state_log = state_log
        self._clock = log_context.clock
        self._positions = log_context.positions
        self._log_end = log_context.end
        self._on_fault = on_fault
        self.lock = asyncio.Lock()
        """Held by the task that uses the thread or moves the progress."""
        self._begun = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="delay")
        self._stopped = False
        self._progress: Progress | None = None
        self.last_scan: Scan | None = None
        """Result of the last turn; None while it is unknown."""
        self._scanned_to = PhysicalOffset(0)
        self._start_seen = self._positions.get(Slot.MIN)
        self._let_go_at: float | None = None
        self._appended = PhysicalOffset(0)
        self._flush: asyncio.Future[bool] | None = None
        self._flush_end = PhysicalOffset(0)
        self._unkept_since: float | None = None
        self._checkpoint_at = 0.0
        self._checkpoint_end = 0
        self._fault: StoreError | None = None

    # -- start and end ---------------------------------------------------------------------------

    def begin(self) -> None:
        """Allow delivery: sends are open, the recovered log is dispatched and the state is
        known."""
        self._begun.set()

    async def run(self, stop: asyncio.Event, closed: asyncio.Future[bool]) -> None:
        """Deliver until stop is set, but not before ``begin``.
        closed: done once the log accepts no more appends; True if the process ends. Then the files
        for RocketMQ are written; only the end of the process waits for that."""
        stopped = asyncio.ensure_future(stop.wait())
        begun = asyncio.ensure_future(self._begun.wait())
        try:
            await asyncio.wait({stopped, begun}, return_when=asyncio.FIRST_COMPLETED)
            while not stop.is_set():
                pause_s = await self.turn()
                if pause_s:
                    await asyncio.wait({stopped}, timeout=pause_s)
            await self.hand_over(closed)
        finally:
            stopped.cancel()
            begun.cancel()
            await asyncio.to_thread(self.abandon)

    def abandon(self) -> None:
        """End at once, as a kill does. Blocks while the thread is working."""
        self._stopped = True
        self._thread.shutdown()
        self._waiting.close()

    async def hand_over(self, closed: asyncio.Future[bool]) -> None:
        """Write the files that a RocketMQ broker needs to take over this store, if the process
        ends.

        Nothing is written if the delivered copies are not on disk in time: RocketMQ then delivers
        those messages again.
        """
        if self._progress is None:
            return
        # The offset is read first. Otherwise: 1. The broker of a master is stopped. 2. ha switches
        # to another node, which ends the term. 3. The confirmer is closed and answers NotServing,
        # even for confirmed copies. 4. Nothing is written. Until closed is done, this node holds
        # the append lock, and the confirm offset is of no later epoch.
        lasts = not closed.done() and self._appended <= self._queues.ends().flushed
        deadline = self._clock.monotonic() + HAND_OVER_S
        durable = asyncio.ensure_future(self._durability.durable(self._appended, deadline))
        durable.add_done_callback(_seen)
        # A master that steps down writes no files: as a slave it would remove them. The thread also
        # must not compete with the loop before another node can become the master.
        if not await asyncio.shield(closed):
            return
        async with self.lock:
            try:
                if lasts or await durable:
                    await self.in_thread(
                        self._waiting.write_wheel, self._queues.ends(), self._clock.wall_ms()
                    )
            except (StoreError, NotServing) as error:
                log.warning(
                    "the files of RocketMQ's timer are not written",
                    extra={"event": "timer-wheel-not-written", "detail": str(error)},
                )

    async def turn(self) -> float:
        """Deliver due messages; return the pause until the next turn [s], 0 if there is more to
        do."""
        try:
            async with self.lock:
                if self._progress is None:
                    await self._recover()
                if self._may_let_go():
                    await self.in_thread(self._waiting.let_go)
                await self._keep_what_is_flushed()
                pause_s = await self._deliver() if self._has_work() else self._pause_s()
                self._checkpoint()
        except NotServing:
            return RETRY_S  # the node stops, or dispatch is behind
        except StoreError as fault:
            self._say_fault(fault)
            return RETRY_S
        # The levels are delivered without the timer's file. The timer's queue stalls, which is
        # reported.
        self._say_fault(None if self.last_scan is None else self.last_scan.stands_still)
        return pause_s

    def _say_fault(self, fault: StoreError | None) -> None:
        """Log and report the error that stops delivery, or its end; once for each code."""
        if (None if self._fault is None else self._fault.code) == (
            None if fault is None else fault.code
        ):
            return
        self._fault = fault
        if fault is None:
            log.info("delivery of delayed messages continues", extra={"event": "delay-goes-on"})
        else:
            log.error(
                "delayed messages are not delivered now: %s",
                fault,
                extra={"event": "delay-waits", "code": fault.code},
            )
        self._on_fault(fault)

    async def _recover(self) -> None:
        levels = [
            level
            for level in self._queues.levels()
            if self._queues.next_of(delay.place_of(level)) > 0
        ]
        progress, self._checkpoint_end = await self.in_thread(
            self._waiting.recover, self._state_log.delay_now(), levels, self._queues.ends()
        )
        for level in self._queues.levels():
            if level != TIMER_LEVEL:
                progress.levels.setdefault(level, 0)
        self._progress = progress

    async def in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        """Run work in the thread, one call at a time. Raises NotServing once the node stops."""
        if self._stopped:
            raise NotServing("the node is stopping. Nothing was changed.", "Try again.")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: work(*arguments))

    def names_gone(self) -> None:
        """Note that files of queues or of the index were removed: a mapping keeps their blocks."""
        self._let_go_at = self._clock.monotonic()

    def _may_let_go(self) -> bool:
        """Return whether removed files may still be mapped by the thread, which is idle."""
        if (start := self._positions.get(Slot.MIN)) != self._start_seen:
            # The log's start is published before the files are removed a little later.
            self._start_seen = start
            self._let_go_at = self._clock.monotonic() + LET_GO_AFTER_S
        if self._let_go_at is None or self._clock.monotonic() < self._let_go_at:
            return False
        self._let_go_at = None
        return True

    # -- one turn --------------------------------------------------------------------------------

    def _has_work(self) -> bool:
        """Return whether a turn may find something. It is called very often, so it must be
        cheap."""
        scan = self.last_scan
        if scan is None or scan.more or scan.timer_count is None:
            return True
        if scan.next_due_ms is not None and scan.next_due_ms <= self._clock.wall_ms():
            return True
        if self._queues.ends().kept == self._scanned_to:
            return False
        return any(
            self._queues.next_of(delay.place_of(level)) > seen for level, seen in scan.seen.items()
        )

    def _pause_s(self) -> float:
        scan = self.last_scan
        if scan is None:
            return POLL_S
        if scan.next_due_ms is None:
            return IDLE_POLL_S
        left_s = (scan.next_due_ms - self._clock.wall_ms()) / 1000
        return min(POLL_S, max(0.001, left_s))

    async def _deliver(self) -> float:
        ends = self._queues.ends()
        scan = await self.in_thread(self._waiting.scan, ends, self._clock.wall_ms())
        self.last_scan, self._scanned_to = scan, ends.kept
        await self.append_all(scan.slices, own=False, delivers=True)
        if scan.slices:
            if self._unkept_since is None:
                self._unkept_since = self._clock.monotonic()
            await self._keep_what_is_flushed()
        return 0.0 if scan.more else self._pause_s()

    async def append_all(self, slices: Sequence[Slice], *, own: bool, delivers: bool) -> None:
        """Append slices and move the progress; the caller commits them once they are on disk.
        own: see ``Append.append``. delivers: False if the messages only move and keep waiting.
        Raises what ``Append.append`` raises, after putting back the remaining slices."""
        progress = self.known()
        count = 0
        try:
            for each in slices:
                if each.runs:
                    runs = self._batches.of(each.runs)
                    self._appended = (await self._append.append(runs, own=own)).end
                    if not delivers:
                        progress.carried_to = self._appended
                # This is the same step of the loop as the append, so no checkpoint separates the
                # two.
                for level, queue_offset in each.levels.items():
                    progress.passed_level(level, queue_offset)
                if delivers:
                    for row in each.rows:
                        progress.passed_timer(row.due_ms, row.queue_offset)
                count += 1
                await asyncio.sleep(0)  # senders run in between
        except Exception:
            await self._wait_on(slices[count:], delivers=delivers)
            raise

    async def _wait_on(self, slices: Sequence[Slice], *, delivers: bool) -> None:
        """Put back slices that could not be appended; due messages count as late."""
        await self.in_thread(self._waiting.put_back, slices)
        scan = self.last_scan
        if scan is not None:
            next_due_ms = slices[0].due_ms if delivers else scan.next_due_ms
            self.last_scan = scan._replace(more=True, next_due_ms=next_due_ms, first=NOT_KNOWN)

    async def _keep_what_is_flushed(self) -> None:
        """Commit deliveries that are on disk, normally without making a delivery wait for the disk.

        A flush is always requested, so it begins at once and consumers see the copies. Deliveries
        wait for it only if the disk has been slow for long.
        """
        if self._unkept_since is None:
            return
        if self._clock.monotonic() - self._unkept_since >= KEEP_INTERVAL_S:
            await self.keep()
            return
        if self._flush is not None and self._flush.done():
            self._flush.result()  # raises NotServing if the node stops
            self._flush = None
            if self._flush_end >= self._appended:
                await self.keep()
                return
        if self._flush is None:
            self._flush_end = self._appended
            self._flush = asyncio.ensure_future(self._durability.durable(self._appended))
            self._flush.add_done_callback(_seen)

    async def keep(self) -> None:
        """Commit the thread's changes, once the log up to the last append is on disk."""
        await self._durability.durable(self._appended)
        await self.in_thread(self._waiting.commit)
        self._unkept_since = None

    async def append_record(self, record: DelayRecord) -> None:
        """Append a record of cancellations and apply it in one step; then wait for the disk."""
        self._appended = await self._state_log.append_soon(records.encode(record))
        self.known().cancel(record.cancelled)
        await self._durability.durable(self._appended)

    def scan_again(self) -> None:
        """Make the next turn read everything."""
        if self.last_scan is not None:
            self.last_scan = self.last_scan._replace(more=True)

    def wait_no_more(self, count: int) -> None:
        """Lower the number of messages that wait in the timer's queue by count."""
        scan = self.last_scan
        if scan is not None and scan.timer_count is not None:
            self.last_scan = scan._replace(timer_count=scan.timer_count - count)

    # -- checkpoints -----------------------------------------------------------------------------

    async def finish(self) -> None:
        """Write a last checkpoint when the node stops, if there is progress that it can store."""
        async with self.lock:
            if self._progress is not None and self._progress.has_moved:
                self._checkpoint(at_once=True)

    def _checkpoint(self, *, at_once: bool = False) -> None:
        """Append a checkpoint if one is due and the progress can be expressed."""
        progress, scan = self.known(), self.last_scan
        grown = self._log_end() - self._checkpoint_end
        now = self._clock.monotonic()
        if progress.has_moved:
            waited = now - self._checkpoint_at >= CHECKPOINT_INTERVAL_S
            is_time = at_once or waited or grown >= CHECKPOINT_BYTES
        else:
            is_time = grown >= CHECKPOINT_BYTES_MAX
        if not is_time or scan is None or not any(scan.seen.values()):
            return  # without delayed messages no record is needed
        record = progress.record(self._queues.ends().flushed, scan.first, scan.read_to)
        if record is None:
            return
        try:
            self._checkpoint_end = self._state_log.append_state_now(records.encode(record))
        except FileNotReady:
            return  # the next turn opens the file
        self._checkpoint_at = now
        progress.recorded(record)

    def known(self) -> Progress:
        """The progress. Raises NotServing while it is unknown which messages have been
        delivered."""
        if self._progress is None:
            raise NotServing(
                "it is not known yet which delayed messages have been delivered.", "Try again."
            )
        return self._progress


def _seen(flush: asyncio.Future[bool]) -> None:
    """Retrieve the error so that asyncio does not log it; the next turn raises it again."""
    if not flush.cancelled():
        flush.exception()
