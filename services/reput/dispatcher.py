"""Dispatch: write queue units and index entries for log records, up to the published end.

It carries out the decision of ``resume`` and the plans of ``formats.plan``, publishes the progress
and makes it durable. It is synchronous and has no loop or clock of its own, so that a simulation
can run it on a simulated disk; ``dispatch_loop`` is its shell. Invariants:

- DISPATCHED moves after the units and entries of everything below it are stored. It never moves
  back within one boot and generation, except when damaged queues are rebuilt from the log.
- DISPATCHED_DURABLE and the totals move after everything below was synced; see ``dispatched_mark``.
- A step that was interrupted by a full disk continues where it stopped; nothing is skipped.
- A bad record below the end stops dispatch permanently; ``stopped`` has the location.

Read path, step 1: the step before published the end (FLUSHED, in a group CONFIRM); afterwards the
broker answers pending long polls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from services.reput.cleaning import Cleaning
from services.reput.dispatched_mark import DispatchedMark
from services.reput.index_writer import IndexIncomplete, IndexWriter
from services.reput.log_source import LogSource, Read
from services.reput.queue_survey import Found
from services.reput.queue_writer import QueueWriter, lost_queue_file
from services.reput.resume import (
    Counted,
    Decision,
    IndexMode,
    Marks,
    QueueMode,
    are_all,
    bounds,
    decide,
)
from services.reput.sync_job import SyncJob
from services.reput.unit_mending import UnitMending
from shared.files.commit_log import CommitLogReader
from shared.files.positions import Positions
from shared.files.store_dir import StoreDir
from shared.runtime.clock import SystemClock
from tidemark.clock import Clock
from tidemark.errors import (
    CorruptRecord,
    DamagedFile,
    FlushFailed,
    QueueGap,
    ReadOnlyDisk,
    StoreError,
)
from tidemark.formats.checkpoint import Slot
from tidemark.formats.index_file import ROW
from tidemark.formats.plan import Plan
from tidemark.offsets import PhysicalOffset

STEP_SIZE: Final = 1 << 20
"""Default size of a step [bytes of log]: about a millisecond of work."""
UNITS_PER_RUN: Final = 64
"""Minimum units per run; with fewer, writing the run dominates the cost of its records."""
WIDER_MAX: Final = 16
"""Maximum factor by which a step over many queues is enlarged."""
WATCHED_AT_ONCE: Final = 500
"""Queue files checked for existence per call."""
WIDE_SIZE_MAX: Final = 64 << 20
"""Maximum size of an enlarged step [bytes of log], because its plan is in memory until written."""


class Took(NamedTuple):
    """Durations of one step, for metrics."""

    queues_s: float
    """Time to store its units."""
    index_s: float
    """Time to put its keys into the index; 0.0 if it had none."""
    oldest_ms: int | None
    """Store time of the first record; None if the step made nothing newly visible."""


@dataclass(slots=True)
class _Batch:
    """A planned step that may be partly written."""

    end: PhysicalOffset
    plan: Plan
    oldest_ms: int | None
    """Store time of the first record; None if the step only passes a filler."""
    runs_done: int = 0
    rows_done: int = 0
    queues_s: float = 0.0
    index_s: float = 0.0


class Dispatcher:
    """Dispatches one store. Call ``resume`` first, then ``step`` and ``sync`` repeatedly. For one
    thread at a time, except ``SyncJob.run``."""

    def __init__(
        self,
        store: StoreDir,
        positions: Positions,
        log: CommitLogReader,
        *,
        clock: Clock | None = None,
        boot_id: tuple[int, int] | None = None,
        utc_offset_s: Callable[[int], int] = lambda _: 0,
    ) -> None:
        """boot_id: (high, low) of this boot; default: the boot in which the log was recovered.
        clock, utc_offset_s: see ``IndexWriter``.
        """
        self._store = store
        self._positions = positions
        self._log = log
        self._boot_id = boot_id
        slot = store.config.confirm_slot
        self._end: Callable[[], int] = lambda: positions.get(slot)
        self._source = LogSource(
            store,
            positions,
            log,
            lambda: self._end(),
            batch_topics=frozenset(
                entry.name
                for entry in store.disk.list_directory(store.batch_queues_dir)
                if entry.is_directory
            ),
        )
        self._queues = QueueWriter(store)
        clock = clock or SystemClock()
        self._monotonic = clock.monotonic
        self._index = IndexWriter(store, clock, utc_offset_s)
        self.mending = UnitMending(self._queues, self._source, log)
        """Compares units that a reader could not follow; see ``may_mend``."""
        self.dispatched_mark = DispatchedMark(store, positions, log, self._queues, self._index)
        self._cleaning = Cleaning(positions, log, self._queues, self._index, self.dispatched_mark)
        self.position = PhysicalOffset(0)
        """Everything below is in queues and index, as far as the current pass has progressed."""
        self.dispatched = 0
        """Published DISPATCHED: end of what the queues cover."""
        self.stopped: StoreError | None = None
        """Error that stopped dispatch permanently."""
        self.decision: Decision | None = None
        self.bytes_count = self.records_count = self.units_count = 0
        """Counts since the start of the process."""
        self.took: Took | None = None
        """Durations of the last completed step."""
        self._batch: _Batch | None = None
        self._wider = 1
        """Factor of the step size at which the last step would have had UNITS_PER_RUN units per
        run.
        """
        self._pass_end = 0
        self._in_pass = False
        self._may_rebuild = True
        self._expected: Marks | None = None

    @property
    def boot_id(self) -> tuple[int, int]:
        """(high, low) of this boot of the machine."""
        if self._boot_id is not None:
            return self._boot_id
        return self._positions.get(Slot.BOOT_ID_HIGH), self._positions.get(Slot.BOOT_ID_LOW)

    @property
    def end(self) -> int:
        """End of what may be dispatched now."""
        return self._end()

    def end_at(self, end: int) -> None:
        """Dispatch up to end instead of the published end, which may be missing in an offline
        store.
        """
        self._end = lambda: end

    @property
    def is_catching_up(self) -> bool:
        """Whether the work left by a restart is not finished yet."""
        return self._in_pass

    def oldest_waiting_ms(self) -> int | None:
        """Return the store time of the first record not yet dispatched; None if there is none. Any
        thread."""
        return self._source.oldest_waiting_ms(self.position)

    @property
    def index_entries_count(self) -> int:
        """Number of index entries put since the start of the process."""
        return self._index.put_count

    @property
    def repaired_count(self) -> int:
        """Number of units replaced according to the log since the start of the process."""
        return self._queues.repaired_count

    # -- resume -------------------------------------------------------------------------------

    def resume(self) -> Decision:
        """Bring queues and index into a consistent state; publish what consumers may read. Raises
        DiskFull, ReadOnlyDisk or OSError if something cannot be cut: call it again."""
        positions = self._positions
        generation = positions.get(Slot.GENERATION)
        marks = self._marks(generation)
        limits = bounds(marks)
        self._batch, self.stopped = None, None
        self.dispatched_mark.forget_syncs()
        found = self._queues.survey()
        units, firsts = self._queues.count(found, limits.durable)
        entries = self._entries_at(limits.durable, marks)
        is_whole = not any(one.has_wrong_size for one in found) and (
            limits.never_ran
            or self._queues.are_sound(found, limits.durable, self._source.is_of_another)
        )
        decision = decide(marks, limits, Counted(units, firsts, entries, is_whole))
        keep = max(limits.keep, decision.start)
        if decision.index_mode is not IndexMode.CONTINUE:
            self._positions.publish(Slot.INDEX_BEHIND, 1)
        try:
            index_start = self._carry_out(decision, found, keep, marks)
        except ReadOnlyDisk:
            if positions.is_private:
                # The store is not writable. What cannot be cut is above DISPATCHED, so it is
                # invisible.
                self._publish_resumed(decision, generation)
            raise
        start, log_min = decision.start, marks.log_min
        if index_start < start:
            self._positions.publish(Slot.INDEX_BEHIND, 1)
        self._expected = (
            marks if decision.index_mode is IndexMode.REOPEN and limits.durable == start else None
        )
        self._in_pass = self._may_rebuild = True
        self.position = PhysicalOffset(max(log_min, min(start, index_start)))
        self._publish_resumed(decision, generation)
        self.dispatched_mark.resumed()
        self.decision = decision
        self._cleaning.begin()
        self._end_pass_if_due()
        return decision

    def _entries_at(self, durable: int, marks: Marks) -> int:
        """Return the number of index entries of records below durable, if it is meaningful. After a
        power cut it is not, and unsynced files must not be read."""
        if not marks.boot_is_ours:
            return 0
        try:
            return self._index.survey(durable)
        except ReadOnlyDisk:
            if self._positions.is_private:
                return marks.index_entries
            raise

    def _carry_out(self, decision: Decision, found: list[Found], keep: int, marks: Marks) -> int:
        """Cut queues and index; return the offset from which the index needs the log."""
        start, log_min = decision.start, marks.log_min
        self._pass_end = self._compare_until = keep
        match decision.queue_mode:
            case QueueMode.CONTINUE:
                cache_is_whole = marks.boot_is_ours or marks.generation_is_ours
                self._queues.continue_from(
                    found, start=start, keep=keep, thorough=not cache_is_whole
                )
                self._pass_end = start
            case QueueMode.ADOPT:
                self._queues.adopt(
                    found, keep=keep, is_real=self._source.is_of, is_whole=self._source.is_whole
                )
            case QueueMode.REBUILD:
                self.dispatched_mark.withdraw(log_min)
                self._queues.rebuild(found, log_min=log_min, keep=keep)
        self._queues.begin_comparing()
        return self._index.resume(
            decision.index_mode,
            start=start,
            keep=keep,
            log_min=log_min,
            store_time_of=self._source.store_time_of,
        )

    def _publish_resumed(self, decision: Decision, generation: int) -> None:
        # Publish DISPATCHED before the generation that validates it. In the other order: 1. the
        # generation is stored; 2. the process is killed; 3. the next start trusts the old
        # DISPATCHED.
        self._publish_dispatched(decision.dispatched)
        self._positions.publish(Slot.REPUT_GENERATION, generation)
        self._positions.publish(Slot.RESUMED_BY, self._positions.get(Slot.REPUT_PID))

    def _marks(self, generation: int) -> Marks:
        get = self._positions.proven
        log_boot = (get(Slot.BOOT_ID_HIGH), get(Slot.BOOT_ID_LOW))
        index_boot = (get(Slot.REPUT_BOOT_ID_HIGH), get(Slot.REPUT_BOOT_ID_LOW))
        is_resumed = generation == get(Slot.REPUT_GENERATION) != 0
        return Marks(
            log_min=self._log.min_offset,
            log_end=max(self.end, self._log.min_offset),
            dispatched=get(Slot.DISPATCHED),
            dispatched_durable=get(Slot.DISPATCHED_DURABLE),
            # If an offline tool runs in a new boot without recovery, the generation is the old one.
            generation_is_ours=is_resumed and self.boot_id == log_boot,
            boot_is_ours=self.boot_id == index_boot != (0, 0),
            units=get(Slot.RESUME_UNITS),
            firsts=get(Slot.RESUME_FIRSTS),
            index_entries=get(Slot.RESUME_INDEX_ENTRIES),
            check=get(Slot.RESUME_CHECK),
            removing_firsts=get(Slot.REMOVING_FIRSTS),
            removing_entries=get(Slot.REMOVING_ENTRIES),
            has_extensions=self._store.disk.stat(self._store.extensions_dir) is not None,
        )

    def adopt_generation(self) -> bool:
        """Continue under a new generation after the log was recovered while this process ran.

        Returns False if dispatched records are no longer in the log; then ``resume`` has to cut
        them.
        """
        if self.end < max(self.dispatched, self.position):
            return False
        self._positions.publish(Slot.REPUT_GENERATION, self._positions.get(Slot.GENERATION))
        return True

    # -- step ---------------------------------------------------------------------------------

    def step(self, bytes_max: int = STEP_SIZE) -> int:
        """Dispatch about bytes_max bytes of log; return the number of bytes, 0 if there is nothing.

        If bytes_max is at least STEP_SIZE and the records are spread over so many queues that each
        gets only a few units, the step is enlarged up to WIDER_MAX times or WIDE_SIZE_MAX. Raises
        CorruptRecord or QueueGap once; from then on dispatch is ``stopped``. Raises DiskFull,
        ReadOnlyDisk or OSError if a file cannot be created or extended: call it again later;
        nothing is skipped.
        """
        if self.stopped is not None:
            return 0
        self._end_pass_if_due()
        while True:
            if self._batch is None:
                self._batch = self._next_batch(bytes_max)
            batch = self._batch
            if batch is None:
                return 0
            try:
                self._write(batch)
            except QueueGap as gap:
                self._batch = None
                if not self._may_rebuild:
                    self.stopped = gap
                    raise
                self._rebuild_queues()
                continue
            except IndexIncomplete:
                self._batch = None
                self._rebuild_index()
                continue
            self._batch = None
            done = batch.end - self.position
            self._advance(batch)
            return done

    def _write(self, batch: _Batch) -> None:
        """Write the rest of a batch. The clock is read a few times per step, never per record."""
        runs, rows = batch.plan.runs, batch.plan.rows
        append, began = self._queues.append, self._monotonic()
        while batch.runs_done < len(runs):
            append(runs[batch.runs_done])
            batch.runs_done += 1
        queues_done = self._monotonic()
        batch.queues_s += queues_done - began
        if not rows:
            return
        rows_count = len(rows) // ROW.size
        while batch.rows_done < rows_count:
            batch.rows_done = self._index.put(rows, batch.rows_done)
        batch.index_s += self._monotonic() - queues_done

    def _advance(self, batch: _Batch) -> None:
        is_new = batch.end > self.dispatched
        self.took = Took(batch.queues_s, batch.index_s, batch.oldest_ms if is_new else None)
        self.bytes_count += batch.end - self.position
        self.position = batch.end
        self.records_count += batch.plan.records
        self.units_count += batch.plan.units
        self.dispatched_mark.settle(self.position, batch.plan.unit_timestamp_ms)
        if self.position > self.dispatched:
            self._publish_dispatched(self.position)
        self._end_pass_if_due()

    def _publish_dispatched(self, offset: int) -> None:
        self.dispatched = offset
        self._positions.publish(Slot.DISPATCHED, offset)

    def _next_batch(self, bytes_max: int) -> _Batch | None:
        """Read and plan the next records; None if there are none below the end."""
        at, whole_end = self.position, self._end()
        end = whole_end
        if at < self._pass_end:
            end = min(end, self._pass_end)  # a pass must end exactly at this offset
        if at < end and at < self._log.min_offset:
            # retention has removed the beginning of the log
            at = self.position = self._log.min_offset
        if at >= end:
            return None
        is_large = bytes_max >= STEP_SIZE
        if is_large:
            bytes_max = max(bytes_max, min(bytes_max * self._wider, WIDE_SIZE_MAX))
        try:
            found = self._source.read(at, PhysicalOffset(end), bytes_max)
            if found is None and end < whole_end:
                found = self._filler(at, whole_end, bytes_max)
        except CorruptRecord as error:
            self.stopped = self._source.located(error)
            raise self.stopped from error
        if found is None:
            return None
        if is_large and 2 * (found.end - at) > bytes_max:
            planned = found.plan
            needed = self._wider * UNITS_PER_RUN * len(planned.runs) // max(1, planned.units)
            self._wider = max(1, min(WIDER_MAX, needed))
        return _Batch(found.end, found.plan, found.oldest_ms)

    def _filler(self, at: PhysicalOffset, end: int, bytes_max: int) -> Read | None:
        """Return the filler at ``at`` if a pass ends within it; a filler is passed as a whole.

        Otherwise:

        1. A slave has copied the first bytes of a filler, and confirms up to there.
        2. Reput starts a pass up to there.
        3. The end of the filler is after the end of the pass, so the pass would never end.
        """
        found = self._source.read(at, PhysicalOffset(end), bytes_max)
        return None if found is None or found.plan.records else found

    # -- passes -------------------------------------------------------------------------------

    def _end_pass_if_due(self) -> None:
        """Finish a pass when everything that existed before the restart has been passed."""
        if self._queues.compare and self.position >= max(self._compare_until, self._pass_end):
            self._queues.finish_rebuild()
        if not self._in_pass or self.position < self._pass_end:
            return
        expected, self._expected = self._expected, None
        if expected is not None and not are_all(self._index.entries, expected):
            self._rebuild_index()  # a full file is missing
            return
        self._in_pass = False
        self.dispatched_mark.settle(self.position)
        boot_high, boot_low = self.boot_id
        self._positions.publish(Slot.REPUT_BOOT_ID_HIGH, boot_high)
        self._positions.publish(Slot.REPUT_BOOT_ID_LOW, boot_low)
        self._positions.publish(Slot.INDEX_BEHIND, 0)

    def _rebuild_queues(self) -> None:
        """Compare all queues with the log, once, after a gap was found despite matching totals."""
        self._may_rebuild = False
        log_min = self._log.min_offset
        keep = max(self.position, self._pass_end, self._compare_until)
        self.dispatched_mark.withdraw(log_min)
        self._queues.rebuild(self._queues.survey(), log_min=log_min, keep=keep)
        self._index.skip_below(self.position)
        self._pass_end = self._compare_until = keep
        self._in_pass = True
        self.position = log_min

    def _rebuild_index(self) -> None:
        self._positions.publish(Slot.INDEX_BEHIND, 1)
        self._pass_end = max(self.position, self._pass_end)
        self._in_pass = True
        self._expected = None
        log_min = self._log.min_offset
        self.position = PhysicalOffset(max(log_min, self._index.start_over(log_min)))

    # -- cleaning -----------------------------------------------------------------------------

    @property
    def may_clean(self) -> bool:
        """Whether ``clean`` has something to do and is allowed now."""
        return not self._in_pass and not self._queues.compare and self._cleaning.is_due

    def clean(self) -> int:
        """Remove a few leading files of queues and index with expired records; return their number.
        Raises OSError or StoreError if a file cannot be removed: call it again."""
        return self._cleaning.step() if self.may_clean else 0

    def release(self) -> None:
        """Close log files that retention has removed."""
        self._cleaning.release()

    # -- mending ------------------------------------------------------------------------------

    @property
    def may_mend(self) -> bool:
        """Whether ``mending`` may continue; not while all queues are compared with the log."""
        return not self._in_pass and not self._queues.compare

    # -- watching -----------------------------------------------------------------------------

    def watch_queues(self) -> None:
        """Check that some of the queue files and all index files exist. Raises DamagedFile if one
        was removed, replaced or resized."""
        if self._in_pass or self._queues.compare or self._batch is not None or self.stopped:
            return
        lost = self._queues.lost_file(WATCHED_AT_ONCE)
        if lost is not None:
            raise lost_queue_file(lost)
        lost = self._index.lost_file()
        if lost is not None:
            raise DamagedFile(
                f"{lost} was removed, replaced or given another size while this node was running. "
                "No message depends on it; look-ups by key do not find all.",
                "The process ends; its next start rebuilds the index from the log.",
                path=lost,
            )

    # -- sync ---------------------------------------------------------------------------------

    def begin_sync(self) -> SyncJob | None:
        """Collect what was touched since the last sync; None if there is nothing to do."""
        return self.dispatched_mark.begin(publishable=not self._in_pass)

    def finish_sync(self, job: SyncJob) -> None:
        """Publish what job made durable, unless ``resume`` was called in between."""
        removed = self.dispatched_mark.finish(job)
        if removed is not None:
            self._cleaning.totals_published(removed)

    def sync(self) -> None:
        """Make everything dispatched so far durable and publish it. Raises FlushFailed."""
        job = self.begin_sync()
        if job is None:
            return
        try:
            job.run()
        except FlushFailed as failed:
            self.dispatched_mark.distrust_cache(failed.paths)
            raise
        self.finish_sync(job)

    def close(self) -> None:
        """Unmap everything, without a sync."""
        self.dispatched_mark.close()
        self._queues.close()
        self._index.close()
