"""Recovery: find the log's valid end, cut what lies after it, publish (docs/formats.md, 8).

It is run by the holder of byte 0 before anything is appended. ``log_walk`` reads, ``valid_end``
decides, ``log_cut`` writes the log; this module collects the evidence and publishes the result. It
is synchronous and may take a long time: call it in a thread. Invariants:

- Corruption below a durable mark raises ``CorruptRecord``, a missing file ``LogFilesMissing``,
  renamed files ``LogFilesMisnamed``; in these cases not a byte was written.
- A position is trusted only if its check matches; an old or a lost page costs time.
- Bytes to be cut are first copied to ``cut/`` durably, then zeroed and synced. Then later files are
  removed and the directory is synced. After a kill in between, the next start repeats this.
- [durable mark, end) is rewritten in place and synced before ``flushed`` is published: after an I/O
  error the page cache may hold bytes that the disk does not have, and consider them clean.
- ``generation`` is published last: a process that waits for it sees all other values.

Step before: the services start. Step after: reput cuts queues and index to the end and catches up.
"""

from __future__ import annotations

import contextlib
from contextlib import closing
from functools import cached_property, partial
from typing import Final, NamedTuple

from shared.files import log_walk, unit_witness
from shared.files.foreign_ranges import recorded_ranges
from shared.files.log_cut import CutTail, cut_tail, remove_unusable, rewrite
from shared.files.log_start import read_log_start, write_log_start
from shared.files.log_walk import Break, LogFiles, Progress, Range, WalkResult
from shared.files.positions import Positions
from shared.files.queue_files import COPIED_MAX, QueueFiles
from shared.files.queue_math import is_filler
from shared.files.store_dir import StoreDir
from shared.files.unit_witness import LastUnit
from shared.files.valid_end import (
    AfterEnd,
    Decision,
    Evidence,
    Marks,
    Origin,
    Verdict,
    Witness,
    decide,
    start_of_walk,
)
from shared.state.json_cache import JsonCache
from tidemark.errors import (
    CorruptRecord,
    DamagedFile,
    DiskFull,
    LogFilesMisnamed,
    LogFilesMissing,
    ReadOnlyDisk,
    StoreError,
)
from tidemark.formats.checkpoint import REGION_MAGIC, Slot, min_timestamp, resume_check
from tidemark.offsets import UNIT_SIZE, PhysicalOffset, QueueOffset

JUDGE_ALL: Final = 2**63 - 1
QUEUES_AT_ONCE: Final = 1000
"""Queues examined between two checks whether the process is to end."""
NONE: Final = bytes(4)
"""The first bytes of a place where no record and no filler begins."""


class Recovered(NamedTuple):
    """Result of a recovery."""

    end: PhysicalOffset
    """Offset of the next byte to append."""
    min_offset: PhysicalOffset
    is_min_recorded: bool
    """Whether a record confirms that the log starts there; else only the first file's name does."""
    next_queue_offsets: dict[tuple[str, int], QueueOffset]
    """From the log's records and the queues; snapshots may have larger ones."""
    generation: int
    cut: CutTail | None
    walked_bytes: int
    dispatched_trusted: bool
    """Queues cover the log up to DISPATCHED_DURABLE; else dispatch starts again at min_offset."""
    last_store_timestamp_ms: int
    """Store time of the newest record that was read; 0 if none was."""
    read_only: StoreError | None
    """Why nothing could be written: the log ends at ``end``, but appending is not possible."""


def recover(
    store: StoreDir,
    positions: Positions,
    *,
    boot_id: tuple[int, int],
    progress: Progress = lambda done, total: None,
    confirm: int = 0,
    recovered_by: int = 0,
    begin_at: int | None = None,
) -> Recovered:
    """Make the log ready for appending, and return its end.

    boot_id: (high, low) of this boot. confirm: offset that ha knows to be confirmed even if the
    page is lost. recovered_by: the ``start_id`` of this process. begin_at: start of the log by an
    operator's decision, whatever is missing. progress: called with (bytes done, total bytes) at
    least every 64 MiB, and with zeros while queues are examined; an exception from it ends the
    recovery. Raises CorruptRecord, LogFilesMissing, LogFilesMisnamed with nothing
    cut or written, StrayFile, WrongFileSize.
    """
    with closing(
        LogFiles(store.disk, store.commit_log_dir, store.config.commit_log_file_size)
    ) as files:
        recovery = _Recovery(store, positions, files, boot_id, confirm, begin_at)
        recovered = recovery.run(progress, recovered_by)
    store.forget_clean()
    return recovered


class QueueEnd(NamedTuple):
    """The end of one queue below some physical offset."""

    units: int
    """Number after the last unit; the totals of reput count these."""
    next_offset: QueueOffset
    """Queue offset after the last message; larger than ``units`` in a batch queue."""


class _Recovery:
    """One recovery; a class only to share results between its steps."""

    def __init__(
        self,
        store: StoreDir,
        positions: Positions,
        files: LogFiles,
        boot_id: tuple[int, int],
        confirm: int,
        begin_at: int | None,
    ) -> None:
        self.confirm = confirm
        self.begin_at = begin_at
        self.store = store
        self.positions = positions
        self.files = files
        self.boot_id = boot_id
        self.region_is_ours = positions.get(Slot.MAGIC_AND_FORMAT) == REGION_MAGIC
        if self.region_is_ours or not store.is_foreign:
            self.origin = Origin.OURS
        else:
            self.origin = Origin.FOREIGN_CLEAN if store.was_clean else Origin.FOREIGN_UNCLEAN
        self.flushed = self._mark(Slot.FLUSHED)
        # Read after the files were listed: in a group the broker may raise the minimum at any time,
        # and removes no file at or above the value read here.
        self.page_min = self._page_min()
        self.recorded_ranges: list[Range] = []
        """Ranges that RocketMQ wrote according to state records; read only if needed."""
        self.log_min = self._drop_leftovers()
        self._ends: dict[int, dict[tuple[str, int], QueueEnd]] = {}
        self._last_units: list[LastUnit] = []
        """(queue, queue offset, unit) of each queue's last unit below DISPATCHED_DURABLE."""

    def _mark(self, slot: Slot) -> int:
        """Return the value of an earlier process; 0 if there is none that can be trusted."""
        return self.positions.proven(slot) if self.region_is_ours else 0

    @property
    def _in_group(self) -> bool:
        """Whether the store belongs to a node of a group, whose ha may recover it."""
        return self.store.config.visible_after == "confirmed"

    @cached_property
    def rocketmq_wrote(self) -> bool:
        """Whether RocketMQ opened our store since our last write, and rewrote its JSON files. It
        does that every few seconds, and when it stops."""
        if self.origin is not Origin.OURS:
            return True
        if self.store.is_opened:
            return False
        try:
            return JsonCache(self.store.disk, self.store.config_dir).is_foreign
        except DamagedFile:
            return False  # no evidence; a later step of the start reports the damage

    def run(self, progress: Progress, recovered_by: int) -> Recovered:
        self._refuse_misnamed()
        self._refuse_missing_start()
        # Read before this start records it.
        is_min_recorded = self.log_min == 0 or self._is_min_recorded()
        queues_end = self._survey_queues(progress)
        dispatched_durable = self._dispatched_durable()
        start = self._start(queues_end, dispatched_durable)
        self._refuse_gap(start)
        walked = self._walk(start, progress)
        end = PhysicalOffset(walked.end)
        self._refuse_empty(walked)
        marks = self._marks(queues_end, walked)
        last_byte = self._last_byte_after_end(walked)
        if (
            last_byte is not None
            and end >= marks.farthest()[1]
            and self.origin is Origin.OURS
            # In a group, state records describe the disk of the master that wrote them: a slave has
            # copied such a record before it has synced the bytes below.
            and not self._in_group
        ):
            marks = marks._replace(
                state_flushed=log_walk.state_flushed_after(self.files, end, enough=end)
            )
        decision = decide(end, marks, self._after_end(walked, last_byte), self._unmarked(end))
        if decision.verdict is Verdict.CORRUPTION:
            found = decision.sentence(walked.reason or "the log's files end here")
            if not self.files.starts:
                path = self.files.path(end)
                raise LogFilesMissing(end, found, path, found=None, is_first=True)
            raise CorruptRecord(end, found, self.files.path(self.files.start_of(end)))
        next_queue_offsets = self._next_queue_offsets(start, walked)
        cut, read_only = self._write(decision, walked, last_byte, max(marks.durable, start))
        return Recovered(
            end,
            PhysicalOffset(self.log_min),
            is_min_recorded,
            next_queue_offsets,
            self._publish(end, recovered_by),
            cut,
            end - start,
            dispatched_durable is not None,
            walked.last_store_timestamp_ms,
            read_only,
        )

    def _walk(self, start: PhysicalOffset, progress: Progress) -> WalkResult:
        """Walk the log; once more if it ends at a record in a range that RocketMQ wrote.

        The checkpoint contains these ranges. If it was lost, or an old copy was restored, state
        records after the record contain them.
        """
        while True:
            walked = log_walk.walk(
                self.files,
                start,
                unjudged=self._foreign(),
                unproven_from=self._unproven_from(),
                progress=progress,
            )
            if self.recorded_ranges or walked.found is not Break.RECORD_CRC:
                return walked
            self.recorded_ranges = recorded_ranges(self.files, walked.end)
            if not any(low <= walked.end < high for low, high in self.recorded_ranges):
                return walked

    # -- evidence before the walk -------------------------------------------------------------

    def _drop_leftovers(self) -> int:
        """Return the start of the log. Two kinds of files before it do not belong to the log.

        One kind are files before a gap that ends at or below the recorded minimum: they were being
        deleted, oldest first, at a power cut. In a group, the other kind are files below the page's
        minimum if the file at the minimum exists. The broker of a slave serves while ha recovers,
        and publishes the minimum before it removes a file. Otherwise: 1. The broker publishes the
        minimum. 2. ha still finds the file and lowers the minimum to it. 3. The broker removes the
        file. Then the first file is missing, for every reader and for the next start.
        """
        starts = self.files.starts
        if self.begin_at is not None:
            starts[:] = [start for start in starts if start >= self.begin_at]
        # Only the page's minimum: log-start may be from before a resync, which may begin lower.
        if self._in_group and self.page_min in starts:
            del starts[: starts.index(self.page_min)]
        published = self._recorded_start() or 0
        for index in range(len(starts) - 1, 0, -1):
            has_gap = starts[index] - starts[index - 1] > self.files.file_size
            if has_gap and starts[index] <= published:
                del starts[:index]
                break
        return starts[0] if starts else 0

    def _page_min(self) -> int | None:
        """Return the start of the log according to the page; None if the page is not trusted."""
        is_believed = self.region_is_ours and self.positions.is_checked(Slot.MIN)
        return self.positions.get(Slot.MIN) if is_believed else None

    def _recorded_start(self) -> int | None:
        """Return the start of the log at the last removal of its oldest file; None if unknown."""
        in_file = read_log_start(self.store.disk, self.store.log_start_path)
        return max((at for at in (in_file, self.page_min) if at is not None), default=None)

    def _is_min_recorded(self) -> bool:
        """Whether a record of the log's start remains, or the start is an operator's or RocketMQ's
        choice, which leave none."""
        is_chosen = self.begin_at is not None or self.rocketmq_wrote
        return is_chosen or self._recorded_start() is not None

    def _refuse_misnamed(self) -> None:
        """Raise LogFilesMisnamed: if it were treated as damage, valid records would be cut."""
        named = self.files.misnamed()
        if named:
            raise LogFilesMisnamed(min(named), named, self.files.path(min(named)))

    def _refuse_missing_start(self) -> None:
        """Raise LogFilesMissing if the log begins after its recorded start. Our retention makes
        the new start durable before it removes a file; RocketMQ's does not."""
        recorded, starts = self._recorded_start(), self.files.starts
        if recorded is None or self.begin_at is not None or (self.log_min <= recorded and starts):
            return
        if not starts and recorded == 0:
            return  # this is a new store; otherwise the marks contradict later
        if self.rocketmq_wrote:
            return
        found = starts[0] if starts else None
        begins = "there is no file" if found is None else f"the first file begins at {found}"
        raise LogFilesMissing(
            recorded,
            f"the log was not shortened beyond {recorded}, and {begins}",
            self.files.path(recorded),
            found=found,
            is_first=True,
        )

    def _refuse_gap(self, walk_start: int) -> None:
        """Raise LogFilesMissing if a file is missing below the start of the walk: the walk would
        not notice, and all those bytes were on disk."""
        starts, size = self.files.starts, self.files.file_size
        for expected in range(self.log_min, walk_start, size):
            if expected not in starts:
                raise LogFilesMissing(
                    expected,
                    f"the file is missing or empty, and the log was on disk up to {walk_start}",
                    self.files.path(expected),
                    found=self._goes_on(expected),
                    is_first=False,
                )

    def _goes_on(self, missing: int) -> int | None:
        """Return the start of the first file after a missing one that begins with a record."""
        for start in self.files.starts:
            if start > missing and self.files.first_record(start) is not None:
                return start
        return None

    def _refuse_empty(self, walked: WalkResult) -> None:
        """Raise LogFilesMissing if the log is empty although its beginning was removed: retention
        keeps the last file with records, and files created ahead contain none."""
        if (
            self.origin is not Origin.OURS
            or not 0 < self.log_min == walked.end
            or self.begin_at is not None
            # A replica that was emptied starts like this. ha/confirm and the epochs verify it.
            or self._in_group
            or self._mark(Slot.FLUSHED) == self._mark(Slot.MIN) == self.log_min
        ):
            return
        raise LogFilesMissing(
            self.log_min,
            f"the log begins at {self.log_min}, so it was used, and it holds no record",
            self.files.path(self.log_min),
            found=self.log_min,
            is_first=True,
        )

    def _survey_queues(self, progress: Progress) -> int:
        """Return the farthest record end that any queue unit points to; −1 if there is none.

        It also counts each queue at DISPATCHED_DURABLE, so that each of thousands of queues is
        opened only once.
        """
        durable = self._mark(Slot.DISPATCHED_DURABLE)
        farthest = -1
        size_max = self.files.file_size  # a record never crosses files
        ends, last_units = self._ends.setdefault(durable, {}), self._last_units
        for number, (topic, queue) in enumerate(self.store.queues()):
            if number % QUEUES_AT_ONCE == 0:
                progress(0, 0)  # the size of the walk depends on the result of this step
            with closing(self._queue_files(topic, queue)) as units:
                farthest = max(farthest, units.farthest_record_end(size_max))
                count = units.count(durable)
                ends[topic, queue] = QueueEnd(count, units.next_offset(count))
                last, numbers = units.unit(count - 1), units.range_of(count - 1)
            if last is not None and numbers is not None and not is_filler(*last[:2]):
                last_units.append(LastUnit((topic, queue), numbers, last))
        return farthest

    def _dispatched_durable(self) -> int | None:
        """Return the offset up to which queues and index are complete; None if it is not certain.

        A deleted queue directory must not make the queue's numbering start at 0 again: the sum of
        all queues' units at that offset was recorded with the offset. Exchanged files of two
        queues have the same sum, but their last units point to messages of the other queue.
        """
        if not self.region_is_ours:
            return None
        durable, units, entries, check = (
            self._mark(slot)
            for slot in (
                Slot.DISPATCHED_DURABLE,
                Slot.RESUME_UNITS,
                Slot.RESUME_INDEX_ENTRIES,
                Slot.RESUME_CHECK,
            )
        )
        if durable == 0 or check != resume_check(durable, units, entries):
            return None
        if sum(end.units for end in self._queue_ends(durable).values()) != units:
            return None
        if unit_witness.names_another(self.files, self._last_units):
            return None
        return durable

    def _queue_ends(self, end: int) -> dict[tuple[str, int], QueueEnd]:
        """Return each queue's end, of the units whose records end at or below end."""
        if end in self._ends:
            return self._ends[end]
        ends = self._ends[end] = {}
        for topic, queue in self.store.queues():
            with closing(self._queue_files(topic, queue)) as units:
                count = units.count(end)
                ends[topic, queue] = QueueEnd(count, units.next_offset(count))
        return ends

    def _queue_files(self, topic: str, queue: int) -> QueueFiles:
        directory = self.store.queue_directory(topic, queue)
        return QueueFiles(self.store.disk, directory, copied_max=COPIED_MAX)

    def _start(self, queues_end: int, dispatched_durable: int | None) -> PhysicalOffset:
        if not self.files.starts:
            return PhysicalOffset(0)
        evidence = Evidence(
            origin=self.origin,
            log_min=self.log_min,
            flushed=self.flushed,
            dispatched_durable=dispatched_durable,
            queues_end=queues_end,
            min_timestamp_ms=min_timestamp(self.positions.head()),
        )
        return start_of_walk(evidence, self.files.starts, self.files.first_record)

    def _foreign(self) -> list[log_walk.Range]:
        """Return the ranges that RocketMQ wrote, where record CRC properties may be copies."""
        if self.origin is not Origin.OURS:
            return [(0, JUDGE_ALL)]
        if not self.region_is_ours:
            return self.recorded_ranges
        known = (self._mark(Slot.FOREIGN_FROM), self._mark(Slot.FOREIGN_UNTIL))
        found = [*self.recorded_ranges, *([known] if known[1] else [])]
        # Records after flushed alone prove nothing: an old page has a small flushed offset, too.
        is_more = self._has_bytes_at(self.flushed)
        return [*found, (self.flushed, JUDGE_ALL)] if is_more and self.rocketmq_wrote else found

    def _has_bytes_at(self, offset: int) -> bool:
        start = self.files.start_of(offset)
        return start in self.files.starts and self.files.view(start)[offset - start :][:4] != NONE

    def _unproven_from(self) -> int:
        """Return the offset from which on a record may be incomplete on disk and yet seem valid."""
        if self.origin is not Origin.OURS or self.store.was_clean:
            return JUDGE_ALL
        # Both marks are 0 if the page was lost: then nothing proves any record.
        return max(self.flushed, self._written_same_boot())

    # -- meaning of the break -------------------------------------------------------------------

    def _marks(self, queues_end: int, walked: WalkResult) -> Marks:
        return Marks(
            flushed=self.flushed,
            written_same_boot=self._written_same_boot(),
            queue_end=self._queue_end(queues_end, walked),
            # A standalone node does not use the slot; a value in it is not from ha.
            confirm=max(self.confirm, self._mark(Slot.CONFIRM)) if self._in_group else 0,
        )

    def _written_same_boot(self) -> int:
        """Return the published written offset if the page cache is still of that boot, else 0."""
        mark = self._mark
        same_boot = self.boot_id == (mark(Slot.BOOT_ID_HIGH), mark(Slot.BOOT_ID_LOW))
        return mark(Slot.WRITTEN) if same_boot else 0

    def _queue_end(self, queues_end: int, walked: WalkResult) -> int:
        """Return the farthest record end of trusted units; 0 if units prove nothing."""
        if queues_end <= walked.end or not self._units_are_marks(walked):
            return 0
        if self.origin is not Origin.OURS:
            return queues_end
        queues = [
            ((topic, queue), partial(self._queue_files, topic, queue))
            for topic, queue in self.store.queues()
        ]
        return unit_witness.proven_end(self.files, walked.end, queues, walked.next_queue_offsets)

    def _units_are_marks(self, walked: WalkResult) -> bool:
        """Whether a queue unit proves that its record was on disk."""
        if self.origin is Origin.OURS and not self.store.was_clean and self.rocketmq_wrote:
            return False  # RocketMQ creates units for records that are not on disk yet
        if self.origin is Origin.OURS:
            # Units from before the last recovery that reput has not cut yet may point to bytes that
            # the recovery cut: units of a RocketMQ broker, or of visible_after="written".
            resumed = self._mark(Slot.REPUT_GENERATION) == self._mark(Slot.GENERATION)
            return resumed and self.store.config.visible_after != "written"
        if self.origin is Origin.FOREIGN_UNCLEAN:
            return False
        # RocketMQ leaves units after a cut unchanged, and after its next clean stop they still
        # point beyond the log's end. Its checkpoint has the time of the last dispatch: a log that
        # reaches this time is complete.
        dispatched_ms = self.positions.head().logics_timestamp_ms
        return not 0 < dispatched_ms <= walked.last_store_timestamp_ms

    def _last_byte_after_end(self, walked: WalkResult) -> int | None:
        """Return the last non-zero byte at or after the walk's end.

        It is not searched after a clean stop of ours: then nothing is after ``flushed``, and a
        file created ahead is a gigabyte to read.
        """
        was_closed = self.store.was_clean and self.origin is Origin.OURS
        nothing_new = walked.end == self.flushed == self._mark(Slot.WRITTEN)
        # Only if zeros follow: a cut that the disk refused at the last attempt is still pending.
        if was_closed and nothing_new and walked.found in (Break.NO_FILE, Break.ZEROS):
            return None
        return log_walk.last_nonzero(self.files, walked.end)

    def _after_end(self, walked: WalkResult, last_byte: int | None) -> AfterEnd:
        """Classify the bytes at and after the walk's end."""
        if last_byte is None:
            return AfterEnd.NOTHING
        if walked.found is Break.MISSING_FILE:
            later = [start for start in self.files.starts if start > walked.end]
            if any(self.files.first_record(start) for start in later):
                return AfterEnd.LATER_RECORDS
        return AfterEnd.BYTES

    def _unmarked(self, end: int) -> Witness:
        """Return the evidence about bytes after the end if no mark lies after it."""
        if self.origin is not Origin.OURS:
            return Witness.ROCKETMQ
        # If the page proves the end, bytes after it are not a message, whatever wrote them.
        ended_here = end == self.flushed == self._mark(Slot.WRITTEN)
        was_clean = self.store.was_clean and not ended_here and not self.rocketmq_wrote
        return Witness.CLEAN_STOP if was_clean else Witness.NONE

    # -- keep, cut and publish ------------------------------------------------------------------

    def _next_queue_offsets(
        self, start: PhysicalOffset, walked: WalkResult
    ) -> dict[tuple[str, int], QueueOffset]:
        """Combine the queues' offsets below the walk with the walk's own; the larger one counts."""
        offsets = {key: end.next_offset for key, end in self._queue_ends(start).items()}
        if start == 0 and self.files.starts and self.origin is Origin.OURS:
            # The walk read every record since the beginning, and file names are less reliable:
            # 1. a queue's second file is created (visible_after="written"); 2. a power cut loses
            # the records and the first file's name; 3. the queue seems to begin later. Only
            # pre-blank units before a queue's first message prove its numbers.
            whole = self.store.config.consume_queue_file_size // UNIT_SIZE
            offsets = {key: QueueOffset(n if n % whole else 0) for key, n in offsets.items()}
        for key, offset in walked.next_queue_offsets.items():
            offsets[key] = max(offset, offsets.get(key, QueueOffset(0)))
        return offsets

    def _write(
        self, decision: Decision, walked: WalkResult, last_byte: int | None, durable: int
    ) -> tuple[CutTail | None, StoreError | None]:
        """Cut the torn tail, remove unusable files, and rewrite and sync what may not be on disk.

        Returns the cut, or None and the error if the disk is full or read-only.
        """
        end = walked.end
        try:
            cut = None
            if decision.verdict is Verdict.TORN_TAIL and last_byte is not None:
                reason = decision.sentence(walked.reason)
                epoch = self.positions.get(Slot.LOG_EPOCH)
                cut = cut_tail(
                    self.store, self.files, end, last_byte + 1, epoch=epoch, reason=reason
                )
            remove_unusable(self.files, end)
            rewrite(self.files, min(durable, end), end)
            self.store.disk.sync_directory(self.store.commit_log_dir)
        except (DiskFull, ReadOnlyDisk) as error:
            return None, error
        return cut, None

    def _publish_foreign(self, end: PhysicalOffset) -> None:
        """Publish where record CRC properties are not checked. Readers cannot tell, nor can the
        next recovery if this start is killed before dispatch has passed the range."""
        ranges = [(low, min(high, end)) for low, high in self._foreign() if low < end]
        # One range from the first to the last, including the gaps.
        low = min((low for low, _ in ranges), default=0)
        self.positions.publish(Slot.FOREIGN_FROM, low)
        self.positions.publish(Slot.FOREIGN_UNTIL, max((high for _, high in ranges), default=0))

    def _publish(self, end: PhysicalOffset, recovered_by: int) -> int:
        generation = max(self._mark(Slot.GENERATION), self._mark(Slot.REPUT_GENERATION)) + 1
        publish = self.positions.publish
        self.positions.seal()
        publish(Slot.WRITTEN, end)
        publish(Slot.FLUSHED, end)
        publish(Slot.BOOT_ID_HIGH, self.boot_id[0])
        publish(Slot.BOOT_ID_LOW, self.boot_id[1])
        # A correct minimum is not written again: in a group the broker may have raised it since it
        # was read.
        if self.log_min != self.page_min:
            publish(Slot.MIN, self.log_min)
        self._publish_foreign(end)
        publish(Slot.MAGIC_AND_FORMAT, REGION_MAGIC)
        publish(Slot.RECOVERED_BY, recovered_by)
        publish(Slot.GENERATION, generation)
        self.positions.sync()
        if not self.positions.is_private and self.store.read_only is None:
            self._write_log_start()
            with contextlib.suppress(DiskFull, ReadOnlyDisk):
                self.store.finish_adoption()
        return generation

    def _write_log_start(self) -> None:
        """Store the start of the log in log-start. In a group a higher one stays: the broker, which
        raised the minimum meanwhile, may be writing that file at the same time."""
        disk, path = self.store.disk, self.store.log_start_path
        known = read_log_start(disk, path) if self._in_group else None
        if known is None or known < self.log_min:
            write_log_start(disk, path, self.log_min)
