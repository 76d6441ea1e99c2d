"""Dispatch: from the log's records to queue units and index entries, up to the published end.

Carries out what ``resume`` decides and ``dispatch`` plans, publishes how far it came, and makes it
durable. Synchronous and without a loop or a clock of its own, so that a simulation can drive it
over a simulated disk; ``follower`` is its shell. Invariants:

- DISPATCHED moves after the units and entries of everything below it are stored, and never back
  within one boot and generation, except that damaged queues are made again from the log.
- DISPATCHED_DURABLE and the totals move after every file touched and every directory with new names
  were synced; only it is believed after a power cut.
- A step that was interrupted by a full disk goes on where it stopped; nothing is skipped.
- A bad record below the end stops dispatch for good: ``stopped`` says where.

In a record's walk this is (10): before it the flusher published FLUSHED, after it the broker
answers the pulls it holds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from services.reput.dispatch import Plan, QueueKey, plan
from services.reput.index_writer import IndexIncomplete, IndexWriter
from services.reput.queue_survey import Found
from services.reput.queue_writer import QueueWriter, Totals
from services.reput.resume import (
    REBUILDING,
    Counted,
    Decision,
    IndexMode,
    Marks,
    QueueMode,
    bounds,
    decide,
)
from shared.files.commit_log import CommitLogReader
from shared.files.disk import Disk
from shared.files.positions import Positions
from shared.files.store_dir import StoreDir
from shared.runtime.clock import SystemClock
from tidemark.clock import Clock
from tidemark.errors import CorruptRecord, FlushFailed, QueueGap, ReadOnlyDisk, StoreError
from tidemark.formats.checkpoint import Slot, resume_check
from tidemark.formats.filenames import offset_name
from tidemark.formats.queue_unit import Unit
from tidemark.formats.record import BLANK_SIZE, peek_store_timestamp
from tidemark.formats.scan import Stop, Walk, walk
from tidemark.offsets import PhysicalOffset, QueueOffset

STEP_SIZE: Final = 1 << 20
"""Bytes of log per step, by default: some ten milliseconds of work."""
RECORDS_MAX: Final = 16_384
"""Records per step; bounds the plan's memory when records are tiny."""
NO_BORDER: Final = 1 << 62


Each = Callable[[Callable[[Path], None], Iterable[Path]], Iterable[None]]


@dataclass(slots=True)
class _Batch:
    """A step that is planned and may be partly written."""

    end: PhysicalOffset
    plan: Plan
    runs_done: int = 0
    rows_done: int = 0


class _Settled(NamedTuple):
    """What queues and index hold of everything below position, and of nothing above.

    Kept apart from the writers' own sums: these are ahead while a step is interrupted by a full
    disk, and a mark published with them would not be believed at the next start.
    """

    position: int
    totals: Totals
    index_entries: int


@dataclass(frozen=True, slots=True)
class SyncJob:
    """One sync: what it covers, as of ``begin_sync``. ``run`` may be called in any thread."""

    disk: Disk
    files: frozenset[Path]
    directories: frozenset[Path]
    resume_number: int
    settled: _Settled
    unit_timestamp_ms: int
    index_timestamp_ms: int
    is_publishable: bool

    def run(self, each: Each = map) -> None:
        """Make it durable: files, then the directories that name them. Raises FlushFailed.

        each: as ``map``, or that of an executor: files synced at the same time share the commits
        of the file system's journal.
        """
        for _ in each(self._sync_file, sorted(self.files)):
            pass
        for _ in each(self._sync_directory, sorted(self.directories)):
            pass

    def _sync_file(self, path: Path) -> None:
        try:
            # fdatasync needs no right to write: nothing here depends on the disk's mood.
            file = self.disk.open(path, writable=False)
        except FileNotFoundError:
            return  # removed since: an index file that is made again
        try:
            file.sync()
        except OSError as error:
            raise _flush_failed(path, error) from error
        finally:
            file.close()

    def _sync_directory(self, path: Path) -> None:
        try:
            self.disk.sync_directory(path)
        except FileNotFoundError:
            return  # removed since, with all that was in it
        except NotADirectoryError:
            return  # a stranger's file is in the way: dispatch waits for it, and says so
        except OSError as error:
            raise _flush_failed(path, error) from error


class Dispatcher:
    """Dispatches one store. ``resume`` first, then ``step`` and ``sync`` as often as wanted.

    For one thread at a time, except ``SyncJob.run``.
    """

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
        """boot_id: (high, low) of this boot; default: the one in which the log was recovered.
        clock, utc_offset_s: see ``IndexWriter``.
        """
        self._store = store
        self._positions = positions
        self._log = log
        self._boot_id = boot_id
        slot = Slot.WRITTEN if store.config.visible_after == "written" else Slot.FLUSHED
        self._end: Callable[[], int] = lambda: positions.get(slot)
        self._delay_levels_ms = store.config.delay_levels_ms
        self._no_units_for = frozenset(
            entry.name
            for entry in store.disk.list_directory(store.root / "batchconsumequeue")
            if entry.is_directory
        )
        self._queues = QueueWriter(store)
        self._index = IndexWriter(store, clock or SystemClock(), utc_offset_s)
        self.position = PhysicalOffset(0)
        """Everything below is in queues and index, as far as this pass has come."""
        self.dispatched = 0
        """Published: end of what queues cover."""
        self.durable = 0
        """Published: end of what is on disk."""
        self.stopped: StoreError | None = None
        """Why dispatch stands still for good."""
        self.decision: Decision | None = None
        self.bytes_count = self.records_count = self.units_count = 0
        """Since the start of the process."""
        self._batch: _Batch | None = None
        self._pass_end = 0
        self._in_pass = False
        self._may_rebuild = True
        self._expected_entries: int | None = None
        self._resume_number = 0
        self._unit_timestamp_ms = 0
        self._synced: tuple[int, int] | None = None
        self._settled = _Settled(0, Totals(0, 0), 0)

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
        """Dispatch to end whatever is published: nobody knows the log's end but the caller."""
        self._end = lambda: end

    @property
    def is_catching_up(self) -> bool:
        """What a restart left to do is not done yet."""
        return self._in_pass

    def oldest_waiting_ms(self) -> int | None:
        """Store time of the first record not yet dispatched; None if there is none. Any thread."""
        at, end = self.position, self._end()
        if at >= end:
            return None
        with contextlib.suppress(CorruptRecord):
            return peek_store_timestamp(self._log.window(at, PhysicalOffset(end)), 0)
        return None

    @property
    def index_entries_count(self) -> int:
        """Index entries put since the start of the process."""
        return self._index.put_count

    @property
    def repaired_count(self) -> int:
        """Units that were replaced by what the log says, since the start of the process."""
        return self._queues.repaired_count

    # -- resume -------------------------------------------------------------------------------

    def resume(self) -> Decision:
        """Bring queues and index into a state to go on from; publish what consumers may see.

        Raises DiskFull, ReadOnlyDisk or OSError if something cannot be cut: call it again.
        """
        positions = self._positions
        generation = positions.get(Slot.GENERATION)
        marks = self._marks(generation)
        limits = bounds(marks)
        self._batch, self.stopped = None, None
        self._resume_number += 1
        found = self._queues.survey()
        units, firsts = self._queues.count(found, limits.durable)
        entries = self._entries_at(limits.durable, marks)
        is_whole = not any(one.has_wrong_size for one in found) and (
            limits.never_ran or self._queues.are_sound(found, limits.durable)
        )
        decision = decide(marks, limits, Counted(units, firsts, entries, is_whole))
        keep = max(limits.keep, decision.start)
        try:
            index_start = self._carry_out(decision, found, keep, marks)
        except ReadOnlyDisk:
            if positions.is_private:
                # Nobody can write here: what cannot be cut lies above DISPATCHED, unseen.
                self._publish_resumed(decision, generation)
            raise
        start, log_min = decision.start, marks.log_min
        self._expected_entries = (
            marks.index_entries
            if decision.index_mode is IndexMode.REOPEN and limits.durable == start
            else None
        )
        self._in_pass = self._may_rebuild = True
        self.position = PhysicalOffset(max(log_min, min(start, index_start)))
        self._unit_timestamp_ms = positions.head().logics_timestamp_ms
        self._publish_resumed(decision, generation)
        self.durable = positions.get(Slot.DISPATCHED_DURABLE)
        self.decision = decision
        self._end_pass_if_due()
        return decision

    def _entries_at(self, durable: int, marks: Marks) -> int:
        """Index entries of records below durable, where counting them tells anything.

        After a power cut it does not, and files that were not synced are not to be read at all.
        """
        if not marks.boot_is_ours:
            return 0
        try:
            return self._index.survey(durable)
        except ReadOnlyDisk:
            if self._positions.is_private:
                return marks.index_entries
            raise

    def _carry_out(self, decision: Decision, found: list[Found], keep: int, marks: Marks) -> int:
        """Cut queues and index; return where the index wants the log from."""
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
                self._queues.adopt(found, keep=keep, is_real=self._is_real, is_whole=self._is_whole)
            case QueueMode.REBUILD:
                self._withdraw_durable(log_min)
                self._queues.rebuild(found, log_min=log_min, keep=keep)
        self._queues.compare = True
        return self._index.resume(
            decision.index_mode,
            start=start,
            keep=keep,
            log_min=log_min,
            store_time_of=self._store_time_of,
        )

    def _publish_resumed(self, decision: Decision, generation: int) -> None:
        # DISPATCHED before the generation under which it counts:
        # 1. the generation is stored; 2. killed; 3. the next start believes the old DISPATCHED.
        self._publish_dispatched(decision.dispatched)
        self._positions.publish(Slot.REPUT_GENERATION, generation)

    def _marks(self, generation: int) -> Marks:
        get = self._positions.get
        log_boot = (get(Slot.BOOT_ID_HIGH), get(Slot.BOOT_ID_LOW))
        index_boot = (get(Slot.REPUT_BOOT_ID_HIGH), get(Slot.REPUT_BOOT_ID_LOW))
        is_resumed = generation == get(Slot.REPUT_GENERATION) != 0
        return Marks(
            log_min=self._log.min_offset,
            log_end=max(self.end, self._log.min_offset),
            dispatched=get(Slot.DISPATCHED),
            dispatched_durable=get(Slot.DISPATCHED_DURABLE),
            # Without a recovery in a new boot (an offline tool) the generation is the old one.
            generation_is_ours=is_resumed and self.boot_id == log_boot,
            boot_is_ours=self.boot_id == index_boot != (0, 0),
            units=get(Slot.RESUME_UNITS),
            firsts=get(Slot.RESUME_FIRSTS),
            index_entries=get(Slot.RESUME_INDEX_ENTRIES),
            check=get(Slot.RESUME_CHECK),
        )

    def adopt_generation(self) -> bool:
        """The log was recovered while this process ran: go on under the new generation.

        False: what was dispatched is not in the log any more; ``resume`` has to cut it.
        """
        if self.end < max(self.dispatched, self.position):
            return False
        self._positions.publish(Slot.REPUT_GENERATION, self._positions.get(Slot.GENERATION))
        return True

    def _is_real(self, key: QueueKey, number: QueueOffset, offset: PhysicalOffset) -> bool:
        if offset < self._log.min_offset:
            return True  # expired: nothing can be said against it
        try:
            record = self._log.record(offset, PhysicalOffset(self.end))
        except CorruptRecord:
            return False
        return (
            record is not None
            and key == (record.topic, record.queue_id)
            and (record.queue_offset == number)
        )

    def _is_whole(self, unit: Unit) -> bool:
        at = PhysicalOffset(unit.physical_offset)
        if at < self._log.min_offset:
            return True  # expired: nothing can be said against it
        walked = self._walk_view(self._window(at, PhysicalOffset(self.end)), at, 1)
        return [(entry.size, entry.tags_code) for entry in walked.entries] == [unit[1:]]

    def _store_time_of(self, offset: int) -> int | None:
        if offset < self._log.min_offset:
            return None
        record = self._log.record(PhysicalOffset(offset), PhysicalOffset(self.end))
        return None if record is None else record.store_timestamp_ms

    # -- step ---------------------------------------------------------------------------------

    def step(self, bytes_max: int = STEP_SIZE) -> int:
        """Dispatch up to about bytes_max bytes of log; return how many, 0 if there is nothing.

        Raises CorruptRecord or QueueGap once, and stands still from then on (``stopped``). Raises
        DiskFull, ReadOnlyDisk or OSError if a file cannot be made or grown: call it again when
        that may have changed; nothing is skipped.
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
        runs, rows = batch.plan.runs, batch.plan.rows
        append = self._queues.append
        while batch.runs_done < len(runs):
            append(runs[batch.runs_done])
            batch.runs_done += 1
        while batch.rows_done < len(rows):
            batch.rows_done = self._index.put(rows, batch.rows_done)

    def _advance(self, batch: _Batch) -> None:
        self.bytes_count += batch.end - self.position
        self.position = batch.end
        self.records_count += batch.plan.records
        self.units_count += batch.plan.units
        if batch.plan.unit_timestamp_ms:
            self._unit_timestamp_ms = batch.plan.unit_timestamp_ms
        self._settle()
        if self.position > self.dispatched:
            self._publish_dispatched(self.position)
        self._end_pass_if_due()

    def _settle(self) -> None:
        self._settled = _Settled(self.position, self._queues.totals, self._index.entries)

    def _publish_dispatched(self, offset: int) -> None:
        self.dispatched = offset
        self._positions.publish(Slot.DISPATCHED, offset)

    def _next_batch(self, bytes_max: int) -> _Batch | None:
        """Read and plan the next records; None if there are none below the end."""
        at, end = self.position, self._end()
        if at < self._pass_end:
            end = min(end, self._pass_end)  # a pass ends exactly there
        if at < end and at < self._log.min_offset:
            at = self.position = self._log.min_offset  # the log was shortened from below
        if at >= end:
            return None
        walked, view_size = self._walk(at, PhysicalOffset(end), bytes_max)
        if not view_size:
            return None  # deleted between the two looks: the next one finds the new start
        if walked.entries:
            batch_end = PhysicalOffset(at + walked.end)
        else:
            next_file = self._log.next_file(at)
            rest = next_file - at
            is_blank = walked.stop is Stop.BLANK or (view_size == rest and rest < BLANK_SIZE)
            if not is_blank:
                raise self._corrupt(at, walked.reason)
            if next_file > end:
                return None
            batch_end = next_file
        try:
            planned = plan(
                walked.entries, index=self._index.enabled, no_units_for=self._no_units_for
            )
        except CorruptRecord as error:
            raise self._corrupt(PhysicalOffset(error.at), error.reason) from error
        return _Batch(batch_end, planned)

    def _walk(self, at: PhysicalOffset, end: PhysicalOffset, bytes_max: int) -> tuple[Walk, int]:
        """The records at at, at least one if one is there, and how many bytes were looked at."""
        view = self._window(at, end)
        size = len(view)
        room = self._same_checks_for(at)
        walked = self._walk_view(view[: min(bytes_max, room)], at, RECORDS_MAX)
        if walked.entries or walked.stop is Stop.BLANK:
            return walked, size
        # One record may be larger than a step; and a CPU with weak ordering may show FLUSHED
        # before the bytes below it, which a second look settles.
        return self._walk_view(self._window(at, end), at, 1), size

    def _window(self, at: PhysicalOffset, end: PhysicalOffset) -> memoryview:
        try:
            return self._log.window(at, end)
        except CorruptRecord:
            self._log.refresh()
        try:
            return self._log.window(at, end)
        except CorruptRecord as missing:
            self.stopped = missing
            raise

    def _same_checks_for(self, at: PhysicalOffset) -> int:
        """How many bytes from at on are judged by the same checks."""
        get = self._positions.get
        borders = (get(Slot.FOREIGN_FROM), get(Slot.FOREIGN_UNTIL))
        return min((border - at for border in borders if border > at), default=NO_BORDER)

    def _walk_view(self, view: memoryview, at: PhysicalOffset, records_max: int) -> Walk:
        return walk(
            view,
            at=at,
            checks=self._log.checks_at(at),
            records_max=records_max,
            delay_levels_ms=self._delay_levels_ms,
        )

    def _corrupt(self, at: PhysicalOffset, reason: str) -> CorruptRecord:
        file_size = self._store.config.commit_log_file_size
        path = self._store.commit_log_dir / offset_name(at - at % file_size)
        self.stopped = CorruptRecord(at, reason or "the record is not whole", path)
        return self.stopped

    # -- passes -------------------------------------------------------------------------------

    def _end_pass_if_due(self) -> None:
        """Once everything that may have been there before is passed: end what a pass began."""
        if self._queues.compare and self.position >= max(self._compare_until, self._pass_end):
            self._queues.finish_rebuild()
            self._queues.compare = False
        if not self._in_pass or self.position < self._pass_end:
            return
        expected, self._expected_entries = self._expected_entries, None
        if expected is not None and self._index.entries != expected:
            self._rebuild_index()  # a full file is missing
            return
        self._in_pass = False
        self._settle()
        boot_high, boot_low = self.boot_id
        self._positions.publish(Slot.REPUT_BOOT_ID_HIGH, boot_high)
        self._positions.publish(Slot.REPUT_BOOT_ID_LOW, boot_low)

    def _rebuild_queues(self) -> None:
        """A queue has a gap although the totals were right: once, compare all with the log."""
        self._may_rebuild = False
        log_min = self._log.min_offset
        keep = max(self.position, self._pass_end, self._compare_until)
        self._withdraw_durable(log_min)
        self._queues.rebuild(self._queues.survey(), log_min=log_min, keep=keep)
        self._index.skip_below(self.position)
        self._pass_end = self._compare_until = keep
        self._in_pass = True
        self.position = log_min

    def _withdraw_durable(self, log_min: int) -> None:
        """What was said to be on disk is not. Known on disk before anything is made again:

        1. units are missing, and made again; 2. killed: the next start counts them all, in the
        page cache, and goes on at the old mark; 3. power cut: they are missing once more.
        """
        self._positions.publish(Slot.RESUME_UNITS, REBUILDING)
        self._positions.publish(Slot.DISPATCHED_DURABLE, log_min)
        self._positions.sync()
        self.durable = log_min

    def _rebuild_index(self) -> None:
        self._pass_end = max(self.position, self._pass_end)
        self._in_pass = True
        self._expected_entries = None
        log_min = self._log.min_offset
        self.position = PhysicalOffset(max(log_min, self._index.start_over(log_min)))

    # -- sync ---------------------------------------------------------------------------------

    def begin_sync(self) -> SyncJob | None:
        """Take what was touched since the last sync; None if there is nothing to do."""
        files, directories = self._queues.take_touched()
        more_files, more_directories = self._index.take_touched()
        publishable = not self._in_pass
        state = (self._resume_number, self._settled.position)
        files |= more_files
        directories |= more_directories
        if not files and not directories and (not publishable or self._synced == state):
            return None
        return SyncJob(
            self._store.disk,
            frozenset(files),
            frozenset(directories),
            self._resume_number,
            self._settled,
            self._unit_timestamp_ms,
            self._index.filled_timestamp_ms,
            publishable,
        )

    def finish_sync(self, job: SyncJob) -> None:
        """Publish what job made durable, unless ``resume`` came in between."""
        if not job.is_publishable or job.resume_number != self._resume_number:
            return
        publish = self._positions.publish
        self._positions.put_head(logics_timestamp_ms=job.unit_timestamp_ms)
        if job.index_timestamp_ms:
            self._positions.put_head(index_timestamp_ms=job.index_timestamp_ms)
        position, (units, firsts), entries = job.settled
        publish(Slot.RESUME_UNITS, units)
        publish(Slot.RESUME_FIRSTS, firsts)
        publish(Slot.RESUME_INDEX_ENTRIES, entries)
        publish(Slot.RESUME_CHECK, resume_check(position, units, entries))
        publish(Slot.DISPATCHED_DURABLE, position)
        self.durable = position
        self._synced = (job.resume_number, position)

    def sync(self) -> None:
        """Make everything dispatched so far durable and publish it. Raises FlushFailed."""
        job = self.begin_sync()
        if job is None:
            return
        try:
            job.run()
        except FlushFailed:
            self.distrust_cache()
            raise
        self.finish_sync(job)

    def distrust_cache(self) -> None:
        """A sync failed: the page cache may hold what the disk never got.

        The kernel calls such pages clean, so a later sync would succeed without them. The next
        start therefore has to believe the last durable mark and nothing else, as after a power cut.
        """
        self._positions.publish(Slot.REPUT_GENERATION, 0)
        self._positions.publish(Slot.REPUT_BOOT_ID_HIGH, 0)
        self._positions.publish(Slot.REPUT_BOOT_ID_LOW, 0)

    def close(self) -> None:
        """Unmap everything; does not sync."""
        self._queues.close()
        self._index.close()


def _flush_failed(path: Path, error: Exception) -> FlushFailed:
    return FlushFailed(
        f"fdatasync of {path} failed: {error}. Records are not in doubt; what was dispatched "
        "since the last sync is.",
        "Look at the kernel's log for the disk's errors. The next start dispatches it once more.",
        path=path,
    )
