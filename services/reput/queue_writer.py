"""Writes consume queues: 20-byte units, each at the position given by its queue offset.

It is the only writer of ``consumequeue/`` (docs/formats.md, section 4). It writes one run of units
at a time with ``pwrite``, into ranges whose blocks were reserved in advance. On a full disk a run
is therefore written completely or not at all (docs/decisions/0002 has the measurements). It does
not read the log; ``resume`` decides what is cut, trusted or compared. Invariants:

- A unit is stored at its queue offset or not at all: beyond the queue's end it raises ``QueueGap``.
- Storing a unit again changes nothing, so any range of the log may be dispatched twice.
- Every touched file and every directory with a new name is remembered until ``take_touched``, even
  after the file is closed.
- Cut units are overwritten with zeros and synced; files that other processes have mapped are kept.

Read path, step 1: the step before is ``formats.plan``, which planned the units; afterwards
DISPATCHED is published.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from services.reput.queue_survey import Found, Leading, leading_units, survey_queue, zero_after
from shared.files.disk import File
from shared.files.queue_math import place
from shared.files.store_dir import StoreDir
from tidemark.errors import DamagedFile, QueueGap
from tidemark.formats import native
from tidemark.formats.filenames import offset_name
from tidemark.formats.plan import QueueRun
from tidemark.formats.queue_unit import UNIT, Unit, pre_blank_run
from tidemark.offsets import UNIT_SIZE, PhysicalOffset, Queue, QueueOffset

RESERVE_STEP: Final = 16 * 1024
"""Step in which blocks are reserved: few calls, and little space for a queue with few messages."""

CHECKED_MAX: Final = 20_000_000 if native.COMPILED else 2_000_000
"""Maximum units checked individually at a start, which takes less than half a second."""

IsReal = Callable[[Queue, QueueOffset, PhysicalOffset], bool]
"""Returns whether the record at the offset is the message of that queue and queue offset."""

IsOfAnother = Callable[[Queue, QueueOffset, Unit], bool]
"""Returns whether the unit at that queue offset points to a valid record of another message."""

IsWhole = Callable[[Unit], bool]
"""Returns whether a unit equals exactly the one that dispatch would write for its record."""


class Totals(NamedTuple):
    """Sums over all queues."""

    units: int
    """Sum of the max queue offsets."""
    firsts: int
    """Sum of the first queue offsets of the first files."""


class Expired(NamedTuple):
    """Leading files of one queue that contain only units of expired records."""

    now: int
    """Number of files that can be removed now."""
    later: bool
    """Whether the next file can be removed only after more of the queue is durable."""


class _Reserved(NamedTuple):
    """Range [low, high) of the file at start whose blocks are known to be reserved."""

    start: int
    low: int
    high: int


NOTHING_RESERVED: Final = _Reserved(0, 0, 0)


class _Queue:
    """State of one queue."""

    __slots__ = (
        "directory",
        "file",
        "first",
        "goes_on",
        "has_units",
        "key",
        "made",
        "named",
        "next",
        "path",
        "reserved",
        "seen",
        "skip_until",
        "start",
    )

    def __init__(self, key: Queue, directory: Path) -> None:
        self.key = key
        self.directory = directory
        self.has_units = False
        self.first = 0
        """Queue offset at which the first file starts."""
        self.next = 0
        """Queue offset of the next unit."""
        self.skip_until = 0
        """Units of records that end at or below this offset are already stored."""
        self.seen = False
        """Whether a record of this queue was found since the rebuild began."""
        self.goes_on = False
        """Whether a run that begins at ``next`` can be appended without further checks."""
        self.named = False
        """Whether the names of its files and directories are included in a sync."""
        self.start = -1
        """Start of the file written last; −1 before the first write."""
        self.path = directory
        """Path of that file."""
        self.file: File | None = None
        """That file, while it is open."""
        self.made = -1
        """Start of the file created last by this process, which has no other content."""
        self.reserved = NOTHING_RESERVED


class QueueWriter:
    """All consume queues of one store. For one thread at a time."""

    def __init__(self, store: StoreDir) -> None:
        self._store = store
        self._disk = store.disk
        self._file_size = store.config.consume_queue_file_size
        self._open_max = max(1, store.config.queue_files_mapped_max)
        self._queues: dict[Queue, _Queue] = {}
        self._open: OrderedDict[_Queue, None] = OrderedDict()
        """Queues with an open file, least recently written first."""
        self._touched: set[Path] = set()
        self._new_names: set[Path] = set()
        self._rebuilding = False
        self._to_watch: list[Queue] = []
        self._units = 0
        self._firsts = 0
        self.compare = False
        """Whether units may already be stored, so that they are compared before writing."""
        self.repaired_count = 0
        """Number of units that replaced a different one since the start of the process."""

    @property
    def totals(self) -> Totals:
        """Sums over all queues, as of the last append."""
        return Totals(self._units, self._firsts)

    # -- resuming -----------------------------------------------------------------------------

    def survey(self) -> list[Found]:
        """Survey the files of every queue. Removes empty files, which a power cut can leave."""
        self.close()
        return [
            survey_queue(self._disk, key, self._store.consume_queue_dir(*key), self._file_size)
            for key in self._store.queues()
        ]

    @staticmethod
    def count(found: list[Found], end: int) -> Totals:
        """Return the sums over units of records that end at or below end, if files are intact."""
        units = firsts = 0
        for one in found:
            with one.files() as files:
                next_offset = files.count(end)
            if next_offset > one.first:
                units += next_offset
                firsts += one.first
        return Totals(units, firsts)

    @staticmethod
    def are_sound(found: list[Found], end: int, is_of_another: IsOfAnother) -> bool:
        """Return whether the units of records that end at or below end match the count.

        A count reads a few units and trusts the others. This method checks each queue's last unit
        with its record, and up to CHECKED_MAX units individually; those of a larger store beyond
        are trusted.
        """
        checked = 0
        for one in found:
            with one.files() as files:
                next_offset = files.count(end)
                last = files.unit(next_offset - 1) if next_offset > one.first else None
            number = QueueOffset(next_offset - 1)
            if last is not None and is_of_another(one.key, number, last):
                return False
            checked += next_offset - one.first
            if checked <= CHECKED_MAX and leading_units(one, end).next != next_offset:
                return False
        return True

    def continue_from(self, found: list[Found], *, start: int, keep: int, thorough: bool) -> None:
        """Trust the units of records that end at or below start; cut those that end above keep.
        thorough: see ``zero_after``."""
        self._forget()
        for one in found:
            with one.files() as files:
                next_offset, kept = files.count(start), files.count(keep)
            self._know(one, next_offset)
            zero_after(one, kept, thorough=thorough)

    def adopt(self, found: list[Found], *, keep: int, is_real: IsReal, is_whole: IsWhole) -> None:
        """Trust each queue up to its last valid unit whose record ends at or below keep."""
        self._forget()
        for one in found:
            leading = leading_units(one, keep)
            # A queue that RocketMQ truncated keeps the bytes of the cut units: 1. the log was
            # truncated; 2. other records were appended; 3. the old units may point to the start of
            # another queue's record.
            while (last := self._last(one, leading)) is not None and not is_real(
                one.key, QueueOffset(leading.next - 1), PhysicalOffset(last.physical_offset)
            ):
                leading = leading_units(one, leading.end - 1)
            # 1. A unit crosses a page boundary, with half of its tags code in the second page; 2.
            # only the first page reached the disk; 3. zeros follow, so only the last unit can be
            # torn like this.
            if last is not None and not is_whole(last):
                leading = leading_units(one, leading.end - 1)
            self._know(one, leading.next).skip_until = leading.end
            zero_after(one, leading.next, thorough=True)
            # These files were never synced by reput; what is trusted must be durable before it is
            # published.
            self._touched.update(one.directory / offset_name(start) for start in one.starts)
            self._touch_names(one.directory)

    @staticmethod
    def _last(found: Found, leading: Leading) -> Unit | None:
        """Return the last of the leading units; None if none of them points to a record."""
        if not leading.end:
            return None
        with found.files() as files:
            return files.unit(leading.next - 1)

    def rebuild(self, found: list[Found], *, log_min: int, keep: int) -> None:
        """Let the first record found of each queue determine where the queue continues.

        Until then, the units of records that end at or below log_min remain, because they keep the
        numbering of a queue whose messages have all expired. Units from the first invalid one on,
        and those of records that end above keep, are cleared at once, because they prove nothing.
        """
        self._forget()
        for one in found:
            self._know(one, leading_units(one, log_min).next)
            zero_after(one, leading_units(one, keep).next, thorough=True)
        self._rebuilding = self.compare = True

    def begin_comparing(self) -> None:
        """Compare units with the log before writing, because they may be stored already."""
        self.compare = True

    def finish_rebuild(self) -> None:
        """Clear the units without a record from every queue, and end the comparison. Can be
        repeated."""
        if self._rebuilding:
            for queue in self._queues.values():
                found = survey_queue(self._disk, queue.key, queue.directory, self._file_size)
                zero_after(found, queue.next, thorough=True)
        self._rebuilding = self.compare = False

    def _forget(self) -> None:
        self.close()
        self._queues.clear()
        self._units = self._firsts = 0
        self._rebuilding = False

    def _know(self, found: Found, next_offset: int) -> _Queue:
        queue = self._queues[found.key] = _Queue(found.key, found.directory)
        # Files without units do not determine the numbering: after a power cut the name of a second
        # file may exist without that of the first one.
        if next_offset > found.first:
            queue.has_units = True
            queue.first, queue.next = found.first, next_offset
            self._units += queue.next
            self._firsts += queue.first
        return queue

    # -- appending ----------------------------------------------------------------------------

    def append(self, run: QueueRun) -> None:
        """Store the units of run that are not there yet, each at its queue offset.

        Raises QueueGap before anything is stored. Raises DiskFull, ReadOnlyDisk or OSError if a
        file cannot be created or extended: call again with the same run; stored units are skipped.
        """
        key = run[:2]
        queue = self._queues.get(key)
        if queue is None:
            directory = self._store.consume_queue_dir(*key)
            queue = self._queues[key] = _Queue(key, directory)
        first, units = run.first, run.units
        if (
            queue.goes_on
            and first == queue.next
            and (not self.compare or queue.made == queue.start)
        ):
            # Fast path for nearly every run: it continues the last one, in reserved blocks.
            position = first * UNIT_SIZE - queue.start
            size = len(units)
            reserved = queue.reserved
            if reserved.start == queue.start and reserved.low <= position <= reserved.high - size:
                file = self._file(queue, queue.start)
                self._touched.add(queue.path)
                file.pwrite(units, position)
                self._count(queue, size // UNIT_SIZE)
                return
        self._append_slowly(queue, run)

    def _append_slowly(self, queue: _Queue, run: QueueRun) -> None:
        first, units = run.first, run.units
        if not queue.has_units:
            self._begin(queue, first)
        elif self._rebuilding and not queue.seen:
            self._begin_again(queue, first)
        elif first < queue.first:
            # The log still has a message that belongs before the first existing file: after a power
            # cut, a later file name may have survived an earlier one.
            raise _gap(run, first, queue.first)
        if queue.skip_until:
            first, units = _without_known(queue.skip_until, first, units)
        queue.seen = True
        if not units:
            return
        if first != queue.next:
            if first > queue.next:
                raise _gap(run, first, queue.next)
            units = units[(queue.next - first) * UNIT_SIZE :]
        if units:
            self._store_units(queue, units)
        queue.goes_on = not queue.skip_until

    def _begin(self, queue: _Queue, first: int) -> None:
        """Create the first file of a queue: the one with first, pre-blank below it (4.4)."""
        start, position = place(first, self._file_size)
        self._fill(queue, start, 0, position)
        self._firsts += start // UNIT_SIZE - queue.first
        self._units += first - queue.next
        queue.first, queue.next, queue.has_units = start // UNIT_SIZE, first, True

    def _begin_again(self, queue: _Queue, first: int) -> None:
        """Let a queue that is rebuilt continue at first, its oldest message in the log."""
        start, position = place(first, self._file_size)
        if queue.next >= first >= queue.first:
            self._units += first - queue.next
            queue.next = first
            return
        # The units below have expired or never existed, so start as in a new queue.
        old = survey_queue(self._disk, queue.key, queue.directory, self._file_size)
        for other in (*old.starts, *old.behind_gap):
            if other < start:
                self._close_file(queue)
                self._disk.unlink(queue.directory / offset_name(other))
                self._new_names.add(queue.directory)
        has = queue.next * UNIT_SIZE - start
        if has > 0 and queue.first * UNIT_SIZE <= start:
            self._fill(queue, start, has, position)
            self._units += first - queue.next
            self._firsts += start // UNIT_SIZE - queue.first
            queue.first, queue.next = start // UNIT_SIZE, first
        else:
            self._begin(queue, first)

    def _fill(self, queue: _Queue, start: int, position: int, end: int) -> None:
        """Create the file at start if needed; store pre-blank units into [position, end)."""
        self._file(queue, start)
        if position < end:
            self._put(queue, start, position, pre_blank_run((end - position) // UNIT_SIZE))

    def _store_units(self, queue: _Queue, units: bytes) -> None:
        at = 0
        while at < len(units):
            start, position = place(queue.next, self._file_size)
            size = min(len(units) - at, self._file_size - position)
            self._put(queue, start, position, units[at : at + size] if size < len(units) else units)
            at += size
            self._count(queue, size // UNIT_SIZE)

    def _count(self, queue: _Queue, units: int) -> None:
        queue.next += units
        self._units += units

    def _put(self, queue: _Queue, start: int, position: int, units: bytes) -> None:
        """Write units at position of the file at start, unless they are already there."""
        file = self._file(queue, start)
        end = position + len(units)
        # Always touched: existing units may only be in the page cache.
        self._touched.add(queue.path)
        if self.compare and start != queue.made:
            present = file.pread(len(units), position)
            if present == units:
                return
            if present != bytes(len(present)):
                self.repaired_count += _differing(present, units)
        reserved = queue.reserved
        if start != reserved.start or position < reserved.low or end > reserved.high:
            self._reserve(queue, file, start, position, end)
        file.pwrite(units, position)

    # -- mending ------------------------------------------------------------------------------

    def all_keys(self) -> list[Queue]:
        """Return the keys of all queues."""
        return list(self._queues)

    def bounds_of(self, key: Queue) -> tuple[int, int]:
        """Return the first and next queue offset of the queue's files; equal if they are empty."""
        queue = self._queues.get(key)
        return (0, 0) if queue is None or not queue.has_units else (queue.first, queue.next)

    def unit_at(self, key: Queue, number: int) -> Unit | None:
        """Return the stored unit with that queue offset; None if there is no file. Raises
        DamagedFile if its file was cut."""
        start, position = place(number, self._file_size)
        return self._unit_at(self._queues[key], start, position)

    def mend(self, key: Queue, number: int, unit: bytes) -> bool:
        """Replace the existing unit with that queue offset; return whether it was different. Raises
        DamagedFile if its file was removed, and DiskFull, ReadOnlyDisk or OSError: call again."""
        start, position = place(number, self._file_size)
        path = self._queues[key].directory / offset_name(start)
        try:
            file = self._disk.open(path, writable=True)
        except FileNotFoundError:
            raise lost_queue_file(path) from None
        try:
            if file.pread(UNIT_SIZE, position) == unit:
                return False
            file.reserve(position, UNIT_SIZE)
            file.pwrite(unit, position)
        finally:
            file.close()
        self._touched.add(path)
        self.repaired_count += 1
        return True

    # -- expiring -----------------------------------------------------------------------------

    @property
    def units_per_file(self) -> int:
        """Increase of a queue's first offset with each removed file."""
        return self._file_size // UNIT_SIZE

    def with_several_files(self) -> list[Queue]:
        """Return queues that have a file other than the one for the next unit."""
        behind = self.units_per_file
        return [key for key, queue in self._queues.items() if queue.next > queue.first + behind]

    def expired_files(self, key: Queue, *, log_min: int, durable: int, files_max: int) -> Expired:
        """Return how many of a queue's leading files contain only units of records below log_min.

        The last file never counts. A file does not count either if its successor has no durable
        unit, that is, none of a record that ends at or below durable: the next start counts units
        up to there, and would find the queue empty.
        """
        queue = self._queues.get(key)
        if queue is None or not queue.has_units:  # the queue is being rebuilt and has no units yet
            return Expired(0, later=False)
        start, last = queue.first * UNIT_SIZE, place(queue.next - 1, self._file_size)[0]
        count = 0
        while start < last and count < files_max:
            unit = self._unit_at(queue, start, self._file_size - UNIT_SIZE)
            if unit is None or unit.size == 0 or unit.physical_offset >= log_min:
                break
            following = self._unit_at(queue, start + self._file_size, 0)
            if following is None or following.size == 0 or following.end > durable:
                return Expired(count, later=True)
            count += 1
            start += self._file_size
        return Expired(count, later=False)

    def _unit_at(self, queue: _Queue, start: int, position: int) -> Unit | None:
        path = queue.directory / offset_name(start)
        try:
            file = self._disk.open(path, writable=False)
        except FileNotFoundError:
            return None
        try:
            content = file.pread(UNIT_SIZE, position)
        finally:
            file.close()
        if len(content) < UNIT_SIZE:
            raise lost_queue_file(path)
        return Unit._make(UNIT.unpack(content))

    def remove_first_file(self, key: Queue) -> int:
        """Remove a queue's first file durably; return the increase of its first queue offset."""
        queue = self._queues[key]
        path = queue.directory / offset_name(queue.first * UNIT_SIZE)
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(path)
        # Sync before the next file is removed: names can be lost in any order, and a gap between a
        # queue's files makes a start rebuild everything after it.
        self._disk.sync_directory(queue.directory)
        self._new_names.add(queue.directory)  # the totals change, so a sync has to publish them
        self._touched.discard(path)
        queue.first += self.units_per_file
        self._firsts += self.units_per_file
        return self.units_per_file

    # -- watching -----------------------------------------------------------------------------

    def lost_file(self, files_max: int) -> Path | None:
        """Return a file that is missing or has a different size; None if none was found. Checks
        about files_max files, and continues with the others at the next call."""
        if not self._to_watch:
            self._to_watch = list(self._queues)
        checked = 0
        while self._to_watch and checked < files_max:
            queue = self._queues.get(self._to_watch.pop())
            if queue is None or not queue.has_units or queue.next == queue.first:
                continue
            if queue.file is not None and not queue.file.is_named():
                return queue.path
            last = place(queue.next - 1, self._file_size)[0]
            for start in range(queue.first * UNIT_SIZE, last + 1, self._file_size):
                path = queue.directory / offset_name(start)
                facts = self._disk.stat(path)
                if facts is None or facts.size != self._file_size:
                    return path
                checked += 1
        return None

    # -- files --------------------------------------------------------------------------------

    def _file(self, queue: _Queue, start: int) -> File:
        """Return the queue's file at start, open for writing; create it if it is missing."""
        if queue.start == start:
            if queue.file is not None:
                self._open.move_to_end(queue)
                return queue.file
        else:
            self._close_file(queue)
            queue.start, queue.path = start, queue.directory / offset_name(start)
        if not queue.named:
            # The files may have been created by a process that was killed before it synced the
            # names.
            self._touch_names(queue.directory)
            queue.named = True
        try:
            file = self._disk.open(queue.path, writable=True)
        except FileNotFoundError:
            # Not durable here: the next sync covers all names, and otherwise each of thousands of
            # queues would wait for the disk.
            self._disk.make_directory(queue.directory, durable=False)
            file = self._disk.create(queue.path, self._file_size, reserve=False)
            self._new_names.add(queue.directory)
            queue.made = start
        queue.file = file
        self._open[queue] = None
        if len(self._open) > self._open_max:
            self._close_file(next(iter(self._open)))
        return file

    def _close_file(self, queue: _Queue) -> None:
        if queue.file is not None:
            queue.file.close()
            queue.file = None
            del self._open[queue]

    def _reserve(self, queue: _Queue, file: File, start: int, position: int, end: int) -> None:
        """Reserve the blocks of [position, end), in whole steps. Raises DiskFull.

        The blocks may already be reserved, in a file of RocketMQ or from before a restart. This is
        not recorded, and reserving them again costs little.
        """
        low = position - position % RESERVE_STEP
        high = min(self._file_size, end + -end % RESERVE_STEP)
        known = queue.reserved
        if known.start == start and known.low <= low <= known.high:
            file.reserve(known.high, high - known.high)
            low = known.low
        else:
            file.reserve(low, high - low)
        queue.reserved = _Reserved(start, low, high)

    def _touch_names(self, directory: Path) -> None:
        """Remember to sync the directories of the queue, its topic and all topics."""
        self._new_names.update((directory, directory.parent, directory.parent.parent))

    def take_touched(self) -> tuple[set[Path], set[Path]]:
        """Return files written to and directories with changed names, since the last call."""
        touched, new_names = self._touched, self._new_names
        self._touched, self._new_names = set(), set()
        return touched, new_names

    def close(self) -> None:
        """Close all files. The list of touched files is kept."""
        while self._open:
            self._close_file(next(iter(self._open)))


def lost_queue_file(path: Path) -> DamagedFile:
    """Return the error for a queue file that was removed or changed while reput had the store."""
    return DamagedFile(
        f"{path} was removed, replaced or given another size while this node was running. "
        "No message depends on it.",
        "The process ends; its next start rebuilds the queue from the log.",
        path=path,
    )


def _without_known(skip_until: int, first: QueueOffset, units: bytes) -> tuple[QueueOffset, bytes]:
    """Drop the leading units of records that an adopted queue already covers (4.3 step 1). Records
    of a run rise in physical offset, so a binary search finds the number to drop."""
    low, high = 0, len(units) // UNIT_SIZE
    while low < high:
        middle = (low + high) // 2
        offset, size, _ = UNIT.unpack_from(units, middle * UNIT_SIZE)
        if offset + size > skip_until:
            high = middle
        else:
            low = middle + 1
    return QueueOffset(first + low), units[low * UNIT_SIZE :]


def _differing(present: bytes, units: bytes) -> int:
    """Return how many units of present are neither empty nor equal to those of units."""
    empty = bytes(UNIT_SIZE)
    return sum(
        present[at : at + UNIT_SIZE] not in (empty, units[at : at + UNIT_SIZE])
        for at in range(0, len(units), UNIT_SIZE)
    )


def _gap(run: QueueRun, first: int, border: int) -> QueueGap:
    side = "ends" if first > border else "begins"
    return QueueGap(
        f"topic {run.topic}, queue {run.queue}: the record at physical offset {run.at} or after "
        f"it has queue offset {first}, but the queue {side} at {border}. The log is safe, nothing "
        "was written to the queue; dispatch is blocked here.",
        "Run `tidemark store rebuild`; if that fails too, run `tidemark store verify`.",
        topic=run.topic,
        queue=run.queue,
        queue_offset=first,
        border=border,
        at=run.at,
    )
