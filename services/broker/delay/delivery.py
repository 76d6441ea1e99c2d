"""Delivers what is due: the turns around ``waiting``, and the record of how far they are.

One turn: the thread says what is due; each slice is appended, and in the same step of the loop the
progress moves, so that no record of it and no cancellation can come in between; one fdatasync is
for many turns, and after it the thread keeps what follows. Progress is told by a ``delay`` record
once a second while it moves. A kill anywhere costs nothing: what was appended names its origin.

Turns, and what ``delayed`` does, exclude each other by one lock. Where the log cannot be
read, or takes no messages, delivery waits and tries again; it never skips. Before: ``sender`` or a
send-back put the message where it waits. After: dispatch, like any other message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from services.broker.delay.progress import Progress
from services.broker.delay.slices import Slice
from services.broker.delay.waiting import Ends, Look, Waiting
from services.broker.log.append import Append
from services.broker.log.lasting import Lasting
from services.broker.state.state_log import StateLog
from shared.state import records
from shared.state.records import DelayRecord
from shared.state.values import DelayState
from tidemark.clock import Clock
from tidemark.errors import FileNotReady, NotServing, StoreError
from tidemark.formats import delay
from tidemark.formats.delay import TIMER_LEVEL
from tidemark.offsets import PhysicalOffset

log = logging.getLogger(__name__)

POLL_S: Final = 0.04
"""How late a message may be noticed that was not known when it was last looked: half of the 100 ms
that a delivery may be late."""
IDLE_POLL_S: Final = 0.08
"""The same while nothing waits at all."""
LET_GO_AFTER_S: Final = 1.0
"""After the log's start has moved."""
KEEP_INTERVAL_S: Final = 0.5
"""What was delivered meanwhile, a start after a kill has to learn from the log."""
RETRY_S: Final = 1.0
"""Between two tries while the log takes no messages or cannot be read."""
HAND_OVER_S: Final = 2.0
"""How long what was delivered may take to be on disk as delivery ends."""
TELL_INTERVAL_S: Final = 1.0
TELL_BYTES: Final = 16 << 20
"""Of log, after which progress that moves is told."""
TELL_ANYWAY_BYTES: Final = 64 << 20
"""Of log, after which progress is told although it stands: what a start reads at most."""
NOT_KNOWN: Final = (-1, -1)
"""Stands for what is due first where that is not known: progress cannot be told then."""

T = TypeVar("T")


class Delivery:
    """Delivers delayed messages. ``delayed`` is what others see of it."""

    def __init__(
        self,
        waiting: Waiting,
        append: Append,
        lasting: Lasting,
        state_log: StateLog,
        clock: Clock,
        *,
        state: Callable[[], DelayState],
        levels: Callable[[], Sequence[int]],
        next_of: Callable[[tuple[str, int]], int],
        ends: Callable[[], Ends],
        log_start: Callable[[], int],
        log_end: Callable[[], int],
        on_fault: Callable[[StoreError | None], None],
    ) -> None:
        """waiting: used in this object's thread alone. state: delay progress as the log tells it.
        levels: in which messages ever waited, TIMER_LEVEL among them, and all that are configured.
        next_of: the number that a queue's next message gets. log_start, log_end: of the log as it
        is, what is appended included. on_fault: called with what stops delivery, and with None when
        it goes on.
        """
        self._waiting = waiting
        self._append = append
        self._lasting = lasting
        self._state_log = state_log
        self._clock = clock
        self._state = state
        self._levels = levels
        self._next_of = next_of
        self._ends = ends
        self._log_start = log_start
        self._log_end = log_end
        self._on_fault = on_fault
        self.lock = asyncio.Lock()
        """Held by whoever lets the thread work, or moves the progress."""
        self._begun = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="delay")
        self._stopped = False
        self._progress: Progress | None = None
        self.last_look: Look | None = None
        """What the last turn found; None: nothing is known now."""
        self._looked_to = PhysicalOffset(0)
        self._start_seen = log_start()
        self._let_go_at: float | None = None
        self._appended = PhysicalOffset(0)
        self._flush: asyncio.Future[bool] | None = None
        self._flush_end = PhysicalOffset(0)
        self._unkept_since: float | None = None
        self._told_at = 0.0
        self._told_end = 0
        self._fault: StoreError | None = None

    # -- the life --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Sends are open: the log is dispatched to its recovered end and the state is known."""
        self._begun.set()

    async def run(self, stop: asyncio.Event, closed: asyncio.Future[bool]) -> None:
        """Deliver until stop is set; not before ``begin``.

        closed: done once the log takes no more, and True if the process ends. Then RocketMQ's files
        are written: nothing waits for that but the end of the process.
        """
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
        """End where it stands, as a kill does. Blocks while the thread is in the middle of work."""
        self._stopped = True
        self._thread.shutdown()
        self._waiting.close()

    async def hand_over(self, closed: asyncio.Future[bool]) -> None:
        """Write what a RocketMQ broker needs to go on with this store, if the process ends.

        Nothing is written if the delivered copies are not on disk in time: RocketMQ then delivers
        those messages again.
        """
        if self._progress is None:
            return
        # The offset first. Otherwise: 1. the broker of a master is stopped; 2. ha switches to
        # another node, which ends the term; 3. the confirmer is closed by then and answers with
        # NotServing, also for copies that are confirmed; 4. nothing is written. Until closed is
        # done, this node holds the append lock and the confirm offset is of no later epoch.
        lasts = not closed.done() and self._appended <= self._ends().flushed
        deadline = self._clock.monotonic() + HAND_OVER_S
        durable = asyncio.ensure_future(self._lasting.durable(self._appended, deadline))
        durable.add_done_callback(_seen)
        # A master that steps down is a slave next, which removes these files: it writes none. Nor
        # does the thread compete with the loop before another node can be the master.
        if not await asyncio.shield(closed):
            return
        async with self.lock:
            try:
                if lasts or await durable:
                    await self.in_thread(
                        self._waiting.write_wheel, self._ends(), self._clock.wall_ms()
                    )
            except (StoreError, NotServing) as error:
                log.warning(
                    "the files of RocketMQ's timer are not written",
                    extra={"event": "timer-wheel-not-written", "detail": str(error)},
                )

    async def turn(self) -> float:
        """Deliver what is due; how long to wait until the next turn [s], 0 if there is more."""
        try:
            async with self.lock:
                if self._progress is None:
                    await self._recover()
                if self._may_let_go():
                    await self.in_thread(self._waiting.let_go)
                await self._keep_what_is_flushed()
                pause_s = await self._deliver() if self._has_work() else self._pause_s()
                self._tell()
        except NotServing:
            return RETRY_S  # the node stops, or dispatch is behind
        except StoreError as fault:
            self._say_fault(fault)
            return RETRY_S
        # Levels are delivered without the timer's file: what waits in its queue would stand still,
        # and nobody would know.
        self._say_fault(None if self.last_look is None else self.last_look.stands_still)
        return pause_s

    def _say_fault(self, fault: StoreError | None) -> None:
        """Say what stops delivery, or that nothing does; once for each code."""
        if (None if self._fault is None else self._fault.code) == (
            None if fault is None else fault.code
        ):
            return
        self._fault = fault
        if fault is None:
            log.info("delayed messages go on", extra={"event": "delay-goes-on"})
        else:
            log.error(
                "delayed messages are not delivered now: %s",
                fault,
                extra={"event": "delay-waits", "code": fault.code},
            )
        self._on_fault(fault)

    async def _recover(self) -> None:
        levels = [level for level in self._levels() if self._next_of(delay.place_of(level)) > 0]
        progress, self._told_end = await self.in_thread(
            self._waiting.recover, self._state(), levels, self._ends()
        )
        for level in self._levels():
            if level != TIMER_LEVEL:
                progress.levels.setdefault(level, 0)
        self._progress = progress

    async def in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        """Let the thread work, one thing after another. Raises NotServing once the node stops."""
        if self._stopped:
            raise NotServing("the node is stopping. Nothing was changed.", "Try again.")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: work(*arguments))

    def names_gone(self) -> None:
        """Files of queues or of the index were removed: what is mapped of them keeps its blocks."""
        self._let_go_at = self._clock.monotonic()

    def _may_let_go(self) -> bool:
        """Whether files were removed that may still be mapped here, where nobody looks for long."""
        if (start := self._log_start()) != self._start_seen:
            # It is published before the files go: a little later they are gone.
            self._start_seen = start
            self._let_go_at = self._clock.monotonic() + LET_GO_AFTER_S
        if self._let_go_at is None or self._clock.monotonic() < self._let_go_at:
            return False
        self._let_go_at = None
        return True

    # -- one turn --------------------------------------------------------------------------------

    def _has_work(self) -> bool:
        """Whether a look may find something: cheap, for it is asked all the time."""
        look = self.last_look
        if look is None or look.more or look.timer_count is None:
            return True
        if look.next_due_ms is not None and look.next_due_ms <= self._clock.wall_ms():
            return True
        if self._ends().kept == self._looked_to:
            return False
        return any(self._next_of(delay.place_of(level)) > seen for level, seen in look.seen.items())

    def _pause_s(self) -> float:
        look = self.last_look
        if look is None:
            return POLL_S
        if look.next_due_ms is None:
            return IDLE_POLL_S
        left_s = (look.next_due_ms - self._clock.wall_ms()) / 1000
        return min(POLL_S, max(0.001, left_s))

    async def _deliver(self) -> float:
        ends = self._ends()
        look = await self.in_thread(self._waiting.look, ends, self._clock.wall_ms())
        self.last_look, self._looked_to = look, ends.kept
        await self.append_all(look.slices, own=False, delivers=True)
        if look.slices:
            if self._unkept_since is None:
                self._unkept_since = self._clock.monotonic()
            await self._keep_what_is_flushed()
        return 0.0 if look.more else self._pause_s()

    async def append_all(self, slices: Sequence[Slice], *, own: bool, delivers: bool) -> None:
        """Append slices and move the progress; to be kept, once that is on disk.

        own: as for ``Append.append``. delivers: False if the messages wait on elsewhere. Raises
        what ``Append.append`` raises: the slices from there on wait on.
        """
        progress = self.known()
        count = 0
        try:
            for each in slices:
                if each.runs:
                    self._appended = (await self._append.append(each.runs, own=own)).end
                    if not delivers:
                        progress.carried_to = self._appended
                # Still the same step of the loop as the append: a record of the progress comes
                # before both or after both.
                for level, queue_offset in each.levels.items():
                    progress.passed_level(level, queue_offset)
                if delivers:
                    for row in each.rows:
                        progress.passed_timer(row.due_ms, row.queue_offset)
                count += 1
                await asyncio.sleep(0)  # senders get their turn
        except Exception:
            await self._wait_on(slices[count:], delivers=delivers)
            raise

    async def _wait_on(self, slices: Sequence[Slice], *, delivers: bool) -> None:
        """Slices could not be appended: their messages wait on, and are late if they were due."""
        await self.in_thread(self._waiting.put_back, slices)
        look = self.last_look
        if look is not None:
            next_due_ms = slices[0].due_ms if delivers else look.next_due_ms
            self.last_look = look._replace(more=True, next_due_ms=next_due_ms, first=NOT_KNOWN)

    async def _keep_what_is_flushed(self) -> None:
        """Let the thread keep what was delivered, without a delivery's having to wait for the disk.

        Somebody waits for the flush all the time, so it begins at once and consumers see the
        copies; only where the disk has been behind for long do deliveries wait for it.
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
            self._flush = asyncio.ensure_future(self._lasting.durable(self._appended))
            self._flush.add_done_callback(_seen)

    async def keep(self) -> None:
        """Let the thread keep what it did, once all that it follows from is on disk."""
        await self._lasting.durable(self._appended)
        await self.in_thread(self._waiting.commit)
        self._unkept_since = None

    async def append_record(self, record: DelayRecord) -> None:
        """Append a record of cancellations in one step with their taking effect; then on disk."""
        self._appended = await self._state_log.append_soon(records.encode(record))
        self.known().cancel(record.cancelled)
        await self._lasting.durable(self._appended)

    def look_again(self) -> None:
        """Look at everything in the next turn."""
        if self.last_look is not None:
            self.last_look = self.last_look._replace(more=True)

    def wait_no_more(self, count: int) -> None:
        """So many fewer wait in the timer's queue than the last look says."""
        look = self.last_look
        if look is not None and look.timer_count is not None:
            self.last_look = look._replace(timer_count=look.timer_count - count)

    # -- telling ---------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Tell what has moved since it was told last, if it can be told: the node stops."""
        async with self.lock:
            if self._progress is not None and self._progress.has_moved:
                self._tell(at_once=True)

    def _tell(self, *, at_once: bool = False) -> None:
        """Append a record of the progress if it is time and it can be told."""
        progress, look = self.known(), self.last_look
        grown = self._log_end() - self._told_end
        now = self._clock.monotonic()
        if progress.has_moved:
            waited = now - self._told_at >= TELL_INTERVAL_S
            is_time = at_once or waited or grown >= TELL_BYTES
        else:
            is_time = grown >= TELL_ANYWAY_BYTES
        if not is_time or look is None or not any(look.seen.values()):
            return  # what nobody has used needs no record
        told = progress.record(self._ends().flushed, look.first, look.read_to)
        if told is None:
            return
        try:
            self._told_end = self._state_log.append_state_now(records.encode(told))
        except FileNotReady:
            return  # the next turn finds the file
        self._told_at = now
        progress.told(told)

    def known(self) -> Progress:
        """The progress. Raises NotServing before it is known what has been delivered."""
        if self._progress is None:
            raise NotServing(
                "it is not known yet which delayed messages have been delivered.", "Try again."
            )
        return self._progress


def _seen(flush: asyncio.Future[bool]) -> None:
    """Its error is looked at in the next turn, if there is one."""
    if not flush.cancelled():
        flush.exception()
