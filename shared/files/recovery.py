"""Recovery: find the log's valid end, cut what lies behind it, publish (docs/formats.md, 8).

Run by the holder of byte 0 before anybody appends. ``log_walk`` reads, ``valid_end`` decides, this
carries out. Synchronous and possibly long: call it in a thread. Invariants:

- Corruption below a durable mark ends here with ``CorruptRecord``, and a log that lacks a file with
  ``LogFilesMissing``, one whose files were renamed with ``LogFilesMisnamed``; not a byte was
  written then.
- A position is believed only if its check fits; an old or a lost page costs time.
- What is cut is kept in ``cut/`` first, durable, then zeroed and synced, later files are removed
  and the directory synced; a kill in between is found again by the next start.
- [durable mark, end) is rewritten in place and synced before ``flushed`` is published: after an I/O
  error the page cache may hold bytes that the disk does not, and calls them clean.
- ``generation`` is published last: whoever waits for it sees everything else.

Step before: the services start. Step after: reput cuts queues and index to the end and catches up.
"""

from __future__ import annotations

import contextlib
from functools import cached_property, partial
from pathlib import Path
from typing import Final, NamedTuple

from shared.files import log_walk, unit_witness
from shared.files.foreign_ranges import ranges_told
from shared.files.log_start import read_log_start, write_log_start
from shared.files.log_walk import Break, LogFiles, Progress, Range, WalkResult
from shared.files.positions import Positions
from shared.files.queue_files import COPIED_MAX, QueueFiles
from shared.files.store_dir import StoreDir
from shared.files.valid_end import (
    Behind,
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
"""Queues looked at between two looks at whether the process is to end."""
NONE: Final = bytes(4)
"""What stands where no record and no filler begins."""


class CutTail(NamedTuple):
    """What was cut off the log."""

    start: PhysicalOffset
    end: PhysicalOffset
    """Behind the last byte that was not zero."""
    path: Path
    """Where the bytes are kept."""
    reason: str


class Recovered(NamedTuple):
    """What a start may rely on."""

    end: PhysicalOffset
    """The next byte to append at."""
    min_offset: PhysicalOffset
    next_queue_offsets: dict[tuple[str, int], QueueOffset]
    """As the log's records and the queues tell; snapshots may know more."""
    generation: int
    cut: CutTail | None
    walked_bytes: int
    walked_records: int
    dispatched_trusted: bool
    """Queues cover the log up to DISPATCHED_DURABLE; else dispatch begins anew at min_offset."""
    last_store_timestamp_ms: int
    """Of the newest record that was looked at; 0 if none was."""
    clock_behind_ms: int
    """How far the clock stands behind that record."""
    read_only: StoreError | None
    """Why nothing could be written: the log ends at ``end``, but nothing may be appended there."""


def recover(
    store: StoreDir,
    positions: Positions,
    *,
    boot_id: tuple[int, int],
    now: int,
    progress: Progress = lambda done, total: None,
    confirm: int = 0,
    recovered_by: int = 0,
    begin_at: int | None = None,
) -> Recovered:
    """Bring the log into a state that can be appended to; say where it ends.

    boot_id: (high, low) of this boot. now: wall clock in ms. confirm: what ha knows to be confirmed
    even if the page is lost. recovered_by: the ``start_id`` of this process. begin_at: where an
    operator says that the log begins now, whatever it lacks. progress: called with (bytes done,
    bytes in all) at least every 64 MiB, and with zeros while queues are looked at; what it raises
    ends the recovery. Raises CorruptRecord, LogFilesMissing, LogFilesMisnamed with nothing cut or
    written, StrayFile, WrongFileSize.
    """
    files = LogFiles(store.disk, store.commit_log_dir, store.config.commit_log_file_size)
    try:
        recovery = _Recovery(store, positions, files, boot_id, now, confirm, begin_at)
        recovered = recovery.run(progress, recovered_by)
    finally:
        files.close()
    store.forget_clean()
    return recovered


class _Recovery:
    """One recovery; a class only so that its steps share what they found."""

    def __init__(
        self,
        store: StoreDir,
        positions: Positions,
        files: LogFiles,
        boot_id: tuple[int, int],
        now: int,
        confirm: int,
        begin_at: int | None,
    ) -> None:
        self.confirm = confirm
        self.begin_at = begin_at
        self.store = store
        self.positions = positions
        self.files = files
        self.boot_id = boot_id
        self.now = now
        self.region_is_ours = positions.get(Slot.MAGIC_AND_FORMAT) == REGION_MAGIC
        if self.region_is_ours or not store.is_foreign:
            self.origin = Origin.OURS
        else:
            self.origin = Origin.FOREIGN_CLEAN if store.was_clean else Origin.FOREIGN_UNCLEAN
        self.flushed = self._mark(Slot.FLUSHED)
        # Read behind the names of the files: in a group the broker may raise it at any time, and
        # removes no name at or above what is read here.
        self.page_min = self._page_min()
        self.told: list[Range] = []
        """Where state records say that RocketMQ wrote; asked for only where it matters."""
        self.log_min = self._drop_leftovers()
        self._lengths: dict[int, dict[tuple[str, int], QueueOffset]] = {}

    def _mark(self, slot: Slot) -> int:
        """What an earlier process published; 0 if it did not, or if that cannot be believed."""
        return self.positions.proven(slot) if self.region_is_ours else 0

    @property
    def _in_group(self) -> bool:
        """Whether the store is a node's of a group: ha may recover it while the broker serves."""
        return self.store.config.visible_after == "confirmed"

    @cached_property
    def rocketmq_wrote(self) -> bool:
        """RocketMQ had our store since we wrote it last, and rewrote its JSON files: it does so
        every few seconds, and when it stops."""
        if self.origin is not Origin.OURS:
            return True
        if self.store.is_opened:
            return False
        try:
            return JsonCache(self.store.disk, self.store.config_dir).is_foreign
        except DamagedFile:
            return False  # no evidence; the start says later what is damaged

    def run(self, progress: Progress, recovered_by: int) -> Recovered:
        self._refuse_misnamed()
        self._refuse_missing_start()
        queues_end = self._look_at_queues(progress)
        dispatched_durable = self._dispatched_durable()
        start = self._start(queues_end, dispatched_durable)
        self._refuse_gap(start)
        walked = self._walk(start, progress)
        end = PhysicalOffset(walked.end)
        self._refuse_empty(walked)
        marks = self._marks(queues_end, walked)
        last_byte = self._last_byte_behind(walked)
        if (
            last_byte is not None
            and end >= marks.farthest()[1]
            and self.origin is Origin.OURS
            # In a group they tell of the disk of the master that wrote them: a slave has copied
            # such a record before it has synced what lies below.
            and not self._in_group
        ):
            marks = marks._replace(
                state_flushed=log_walk.state_flushed_behind(self.files, end, enough=end)
            )
        decision = decide(end, marks, self._behind(walked, last_byte), self._unmarked(end))
        if decision.verdict is Verdict.CORRUPTION:
            found = decision.sentence(walked.reason or "the log's files end here")
            raise CorruptRecord(end, found, self.files.path(self.files.start_of(end)))
        next_queue_offsets = self._next_queue_offsets(start, walked)
        cut, read_only = self._write(decision, walked, last_byte, max(marks.durable, start))
        return Recovered(
            end,
            PhysicalOffset(self.log_min),
            next_queue_offsets,
            self._publish(end, recovered_by),
            cut,
            end - start,
            walked.records,
            dispatched_durable is not None,
            walked.last_store_timestamp_ms,
            max(0, walked.last_store_timestamp_ms - self.now),
            read_only,
        )

    def _walk(self, start: PhysicalOffset, progress: Progress) -> WalkResult:
        """Walk the log; once more if it ends at a record that the log itself calls RocketMQ's.

        The checkpoint knows where RocketMQ wrote. Where it was lost, or an old copy restored, state
        records behind the place do.
        """
        while True:
            walked = log_walk.walk(
                self.files,
                start,
                unjudged=self._foreign(),
                unproven_from=self._unproven_from(),
                progress=progress,
            )
            if self.told or walked.found is not Break.RECORD_CRC:
                return walked
            self.told = ranges_told(self.files, walked.end)
            if not any(low <= walked.end < high for low, high in self.told):
                return walked

    # -- what is known before the walk --------------------------------------------------------

    def _drop_leftovers(self) -> int:
        """Start of the log. Two kinds of files in front of it are no part of it.

        Files before a gap that ends at or below the recorded minimum: they were being deleted,
        oldest first, when the power went. In a group, also files below the page's minimum if the
        file at the minimum is there: the broker of a slave serves while ha recovers, and it
        publishes the minimum before it removes the name. 1. The broker publishes the minimum. 2. ha
        finds the name still there and lowers the minimum to it. 3. The broker removes the name.
        Then the first file is missing, for every reader and for the next start.
        """
        starts = self.files.starts
        if self.begin_at is not None:
            starts[:] = [start for start in starts if start >= self.begin_at]
        # Only the page's: log-start may be of the store before a resync, which may begin lower.
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
        """Where the log begins by the page; None if the page cannot be believed."""
        is_believed = self.region_is_ours and self.positions.is_checked(Slot.MIN)
        return self.positions.get(Slot.MIN) if is_believed else None

    def _recorded_start(self) -> int | None:
        """Where the log began when its oldest file was removed last; None if nothing says so."""
        in_file = read_log_start(self.store.disk, self.store.log_start_path)
        return max((at for at in (in_file, self.page_min) if at is not None), default=None)

    def _refuse_misnamed(self) -> None:
        """Raise LogFilesMisnamed: taken for damage, all that is sound in them would be cut."""
        named = self.files.misnamed()
        if named:
            raise LogFilesMisnamed(min(named), named, self.files.path(min(named)))

    def _refuse_missing_start(self) -> None:
        """Raise LogFilesMissing if the log begins behind the place where it should.

        Retention makes the new start durable before it removes a file; RocketMQ's does not.
        """
        recorded, starts = self._recorded_start(), self.files.starts
        if recorded is None or self.begin_at is not None or (self.log_min <= recorded and starts):
            return
        if not starts and recorded == 0:
            return  # a new store; if not, the marks say so
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
        """Raise LogFilesMissing if a file is missing below the start of the walk: that the walk
        would not see, and all of it was on disk."""
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
        """Start of the first file behind a missing one that begins with a record."""
        for start in self.files.starts:
            if start > missing and self.files.first_record(start) is not None:
                return start
        return None

    def _refuse_empty(self, walked: WalkResult) -> None:
        """Raise LogFilesMissing if the log holds nothing although its beginning was removed:
        retention keeps the last file that holds records, and those made ahead hold none."""
        if (
            self.origin is not Origin.OURS
            or not 0 < self.log_min == walked.end
            or self.begin_at is not None
            # A replica that was emptied begins so. It has other witnesses: ha/confirm, the epochs.
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

    def _look_at_queues(self, progress: Progress) -> int:
        """The farthest record end that any queue unit points to; −1 if there is none.

        Counts each queue at DISPATCHED_DURABLE on the way: of thousands of queues, each is opened
        once.
        """
        durable = self._mark(Slot.DISPATCHED_DURABLE)
        farthest = -1
        size_max = self.files.file_size  # a record never crosses files
        lengths = self._lengths[durable] = {}
        for number, (topic, queue) in enumerate(self.store.queues()):
            if number % QUEUES_AT_ONCE == 0:
                progress(0, 0)  # how much log there is to walk depends on what is found here
            units = self._queue_files(topic, queue)
            try:
                farthest = max(farthest, units.farthest_record_end(size_max))
                lengths[topic, queue] = units.count(durable)
            finally:
                units.close()
        return farthest

    def _dispatched_durable(self) -> int | None:
        """Where queues and index are complete; None if that is not known for sure.

        A queue directory that was deleted must not make its numbering start at 0 again: the sum
        of all queues' lengths at that offset was recorded with it.
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
        if sum(self._queue_lengths(durable).values()) != units:
            return None
        return durable

    def _queue_lengths(self, end: int) -> dict[tuple[str, int], QueueOffset]:
        """For each queue: how many units point to records that end at or below end."""
        if end in self._lengths:
            return self._lengths[end]
        lengths = self._lengths[end] = {}
        for topic, queue in self.store.queues():
            units = self._queue_files(topic, queue)
            try:
                lengths[topic, queue] = units.count(end)
            finally:
                units.close()
        return lengths

    def _queue_files(self, topic: str, queue: int) -> QueueFiles:
        return QueueFiles(
            self.store.disk,
            self.store.consume_queue_dir(topic, queue),
            self.store.config.consume_queue_file_size,
            copied_max=COPIED_MAX,
        )

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
        """Where RocketMQ wrote: record CRC properties there may be copies it carried along."""
        if self.origin is not Origin.OURS:
            return [(0, JUDGE_ALL)]
        if not self.region_is_ours:
            return self.told
        known = (self._mark(Slot.FOREIGN_FROM), self._mark(Slot.FOREIGN_UNTIL))
        found = [*self.told, *([known] if known[1] else [])]
        # Records behind flushed alone are no evidence: an old page has a small flushed, too.
        is_more = self._has_bytes_at(self.flushed)
        return [*found, (self.flushed, JUDGE_ALL)] if is_more and self.rocketmq_wrote else found

    def _has_bytes_at(self, offset: int) -> bool:
        start = self.files.start_of(offset)
        return start in self.files.starts and self.files.view(start)[offset - start :][:4] != NONE

    def _unproven_from(self) -> int:
        """From where on a record may have reached the disk in part and look like one."""
        if self.origin is not Origin.OURS or self.store.was_clean:
            return JUDGE_ALL
        # Both marks are 0 when the page was lost: then nothing proves any record.
        return max(self.flushed, self._written_same_boot())

    # -- what the break means -------------------------------------------------------------------

    def _marks(self, queues_end: int, walked: WalkResult) -> Marks:
        return Marks(
            flushed=self.flushed,
            written_same_boot=self._written_same_boot(),
            queue_end=self._queue_end(queues_end, walked),
            # A node alone has no use for it; whatever stands there is not ha's.
            confirm=max(self.confirm, self._mark(Slot.CONFIRM)) if self._in_group else 0,
        )

    def _written_same_boot(self) -> int:
        """The published written offset if the page cache it speaks of is still there, else 0."""
        mark = self._mark
        same_boot = self.boot_id == (mark(Slot.BOOT_ID_HIGH), mark(Slot.BOOT_ID_LOW))
        return mark(Slot.WRITTEN) if same_boot else 0

    def _queue_end(self, queues_end: int, walked: WalkResult) -> int:
        """The farthest record end that believable units point to; 0 if units prove nothing."""
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
            return False  # RocketMQ makes them of records that are not on disk yet
        if self.origin is Origin.OURS:
            # Units of before the last recovery that reput has not cut yet may point to what that
            # recovery cut: those of a RocketMQ broker, or made under visible_after="written".
            resumed = self._mark(Slot.REPUT_GENERATION) == self._mark(Slot.GENERATION)
            return resumed and self.store.config.visible_after != "written"
        if self.origin is Origin.FOREIGN_UNCLEAN:
            return False
        # RocketMQ leaves units behind a cut as they are, and after its next clean stop they still
        # point behind the log's end. Its checkpoint says when it dispatched last: a log that goes
        # so far lacks nothing.
        dispatched_ms = self.positions.head().logics_timestamp_ms
        return not 0 < dispatched_ms <= walked.last_store_timestamp_ms

    def _last_byte_behind(self, walked: WalkResult) -> int | None:
        """The last byte at or behind the walk's end that is not zero.

        Not looked for after a clean stop of ours: then nothing is behind ``flushed``, and a file
        created ahead is a gigabyte to read.
        """
        was_closed = self.store.was_clean and self.origin is Origin.OURS
        nothing_new = walked.end == self.flushed == self._mark(Slot.WRITTEN)
        # Anything but zeros: a cut that the disk refused at the last attempt is due still.
        if was_closed and nothing_new and walked.found in (Break.NO_FILE, Break.ZEROS):
            return None
        return log_walk.last_nonzero(self.files, walked.end)

    def _behind(self, walked: WalkResult, last_byte: int | None) -> Behind:
        """What lies at and behind the walk's end."""
        if last_byte is None:
            return Behind.NOTHING
        if walked.found is Break.MISSING_FILE:
            later = [start for start in self.files.starts if start > walked.end]
            if any(self.files.first_record(start) for start in later):
                return Behind.LATER_RECORDS
        return Behind.BYTES

    def _unmarked(self, end: int) -> Witness:
        """What proves something of the bytes behind the end if no mark does."""
        if self.origin is not Origin.OURS:
            return Witness.ROCKETMQ
        # What stands behind an end that the page proves is no message, whoever put it there.
        ended_here = end == self.flushed == self._mark(Slot.WRITTEN)
        was_clean = self.store.was_clean and not ended_here and not self.rocketmq_wrote
        return Witness.CLEAN_STOP if was_clean else Witness.NONE

    # -- what is kept, cut and published --------------------------------------------------------

    def _next_queue_offsets(
        self, start: PhysicalOffset, walked: WalkResult
    ) -> dict[tuple[str, int], QueueOffset]:
        """From the queues what the walk did not pass, from the walk what queues may not have."""
        offsets = dict(self._queue_lengths(start))
        if start == 0 and self.files.starts and self.origin is Origin.OURS:
            # The walk passed every record there ever was, and the name of a file says less:
            # 1. a queue's second file is made (visible_after="written"); 2. the power goes and
            # takes the records, and the first file's name; 3. the queue seems to begin later.
            # Fillers before a queue's first message do speak of its numbers.
            whole = self.store.config.consume_queue_file_size // UNIT_SIZE
            offsets = {key: QueueOffset(n if n % whole else 0) for key, n in offsets.items()}
        for key, offset in walked.next_queue_offsets.items():
            offsets[key] = max(offset, offsets.get(key, QueueOffset(0)))
        return offsets

    def _write(
        self, decision: Decision, walked: WalkResult, last_byte: int | None, durable: int
    ) -> tuple[CutTail | None, StoreError | None]:
        """Cut, clean up, rewrite. On a full or read-only disk: what could not be, and no cut."""
        end = walked.end
        try:
            cut = None
            if decision.verdict is Verdict.TORN_TAIL and last_byte is not None:
                cut = self._cut(end, last_byte + 1, decision.sentence(walked.reason))
            self._remove_unusable(end, torn=cut is not None)
            self._rewrite(min(durable, end), end)
            self.store.disk.sync_directory(self.store.commit_log_dir)
        except (DiskFull, ReadOnlyDisk) as error:
            return None, error
        return cut, None

    def _cut(self, start: int, end: int, reason: str) -> CutTail:
        path = self.store.keep_cut(
            start,
            log_walk.chunks(self.files, start, end),
            epoch=self.positions.get(Slot.LOG_EPOCH),
            reason="torn-tail",
        )
        file_start = self.files.start_of(start)
        if file_start in self.files.starts:
            file = self.files.open(file_start, writable=True)
            try:
                stop = min(end, file_start + self.files.file_size)
                for at in range(start, stop, log_walk.CHUNK_SIZE):
                    size = min(log_walk.CHUNK_SIZE, stop - at)
                    file.pwrite(bytes(size), at - file_start)
                file.sync()
            finally:
                file.close()
        return CutTail(PhysicalOffset(start), PhysicalOffset(end), path, reason)

    def _remove_unusable(self, end: int, *, torn: bool) -> None:
        """Remove files of length 0, and behind end those that hold cut bytes or follow a gap."""
        files = self.files
        last = files.start_of(end)
        behind = [start for start in files.starts if start > last]
        follows_gap = last not in files.starts and bool(behind)
        for previous, start in zip([last, *behind], behind, strict=False):
            follows_gap = follows_gap or start - previous > files.file_size
            if torn or follows_gap:
                self.store.disk.unlink(files.path(start))
                files.starts.remove(start)
        while files.empty:
            self.store.disk.unlink(files.path(files.empty.pop()))

    def _rewrite(self, start: int, end: int) -> None:
        """Write [start, end) once more over itself and sync it."""
        known = set(self.files.starts)
        at = start
        while at < end:
            file_start = self.files.start_of(at)
            stop = min(end, file_start + self.files.file_size)
            if file_start in known:
                file = self.files.open(file_start, writable=True)
                try:
                    while at < stop:
                        chunk = file.pread(min(log_walk.CHUNK_SIZE, stop - at), at - file_start)
                        file.pwrite(chunk, at - file_start)
                        at += len(chunk)
                    file.sync()
                finally:
                    file.close()
            at = stop

    def _publish_foreign(self, end: PhysicalOffset) -> None:
        """Remember where record CRC properties are not judged: readers cannot tell, and neither
        can the next recovery, if this start is killed before dispatch has passed it."""
        ranges = [(low, min(high, end)) for low, high in self._foreign() if low < end]
        # From the first to the last, with what lies between them.
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
        # A minimum that is right already is left alone: in a group the broker may have raised it
        # since it was read.
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
        """Say in log-start where the log begins. In a group a higher one stays: the broker, which
        raised the minimum meanwhile, may be writing that file at this moment."""
        disk, path = self.store.disk, self.store.log_start_path
        known = read_log_start(disk, path) if self._in_group else None
        if known is None or known < self.log_min:
            write_log_start(disk, path, self.log_min)
