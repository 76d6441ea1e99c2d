"""Writes consume queues: units of 20 bytes, in batch queues of 46 bytes.

It is the only writer of ``consumequeue/`` and ``batchconsumequeue/`` (docs/formats.md, section 4).
It writes one run of units at a time with ``pwrite``, into ranges whose blocks were reserved in
advance. On a full disk a run is therefore written completely or not at all (docs/decisions/0002 has
the measurements). It does not read the log; ``resume`` decides what is cut, trusted or compared.

Units are numbered by position. In an ordinary queue the number is the queue offset. A unit of a
batch queue stores its queue offset, and such a queue has no pre-blank units: its first unit is at
the start of a file. The record decides which kind its unit is. A topic may have a queue of each
kind with the same id, for example after it was deleted and created again; they are independent.
Invariants:

- A unit is stored where its queue offset belongs or not at all: otherwise it raises ``QueueGap``.
- Storing a unit again changes nothing, so any range of the log may be dispatched twice.
- Every touched file and every directory with a new name is remembered until ``take_touched``, even
  after the file is closed.
- Cut units are overwritten with zeros and synced; files that other processes have mapped are kept.

Read path, step 1: the step before is ``formats.plan``, which planned the units; afterwards
DISPATCHED is published.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from services.reput.queue_survey import (
    Found,
    Leading,
    QueueKey,
    StoredUnit,
    leading_units,
    survey_queue,
    zero_after,
)
from shared.files.disk import File
from shared.files.queue_files import QueueFiles
from shared.files.queue_math import Place, place
from shared.files.store_dir import QueueDirectory, StoreDir
from tidemark.errors import DamagedFile, QueueGap
from tidemark.formats import native
from tidemark.formats.filenames import offset_name
from tidemark.formats.plan import QueueRun
from tidemark.formats.queue_unit import UNIT, batch_range, pre_blank_run
from tidemark.offsets import BATCH_UNIT_SIZE, UNIT_SIZE

RESERVE_STEP: Final = 16 * 1024
"""Step in which blocks are reserved: few calls, and little space for a queue with few messages."""

CHECKED_MAX: Final = 20_000_000 if native.COMPILED else 2_000_000
"""Maximum units checked individually at a start, which takes less than half a second."""

IsReal = Callable[[StoredUnit], bool]
"""Returns whether the record that a unit points to is the message of its queue and queue offset."""

IsOfAnother = Callable[[StoredUnit], bool]
"""Returns whether a unit points to a valid record of another message."""

IsWhole = Callable[[StoredUnit], bool]
"""Returns whether a unit equals exactly the one that dispatch would write for its record."""


class Totals(NamedTuple):
    """Sums over all queues."""

    units: int
    """Sum of the numbers after the last units; in ordinary queues, of the max queue offsets."""
    firsts: int
    """Sum of the numbers at which the first files start."""


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
        "first_offset",
        "goes_on",
        "has_units",
        "key",
        "made",
        "named",
        "next",
        "next_offset",
        "path",
        "reserved",
        "seen",
        "skip_until",
        "start",
        "unit_size",
    )

    def __init__(self, key: QueueKey, directory: QueueDirectory, first: int = 0) -> None:
        """first: number at which the first file of a batch queue starts."""
        self.key = key
        self.unit_size = key.unit_size
        self.directory = directory
        self.has_units = False
        self.first = self.next = first
        """Numbers at which the first file starts, and of the next unit."""
        self.first_offset = self.next_offset = 0
        """Queue offsets of the first unit's message and of the next message; in an ordinary queue
        the same as ``first`` and ``next``."""
        self.skip_until = 0
        """Units of records that end at or below this offset are already stored."""
        self.seen = False
        """Whether a record of this queue was found since the rebuild began."""
        self.goes_on = False
        """Whether a run that begins at ``next_offset`` can be appended without further checks."""
        self.named = False
        """Whether the names of its files and directories are included in a sync."""
        self.start = -1
        """Start of the file written last; −1 before the first write."""
        self.path = directory.path
        """Path of that file."""
        self.file: File | None = None
        """That file, while it is open."""
        self.made = -1
        """Start of the file created last by this process, which has no other content."""
        self.reserved = NOTHING_RESERVED

    def place(self, number: int) -> Place:
        """Return the location of the unit with this number."""
        return place(number, self.directory.file_size, self.unit_size)


class QueueWriter:
    """All consume queues of one store. For one thread at a time."""

    def __init__(self, store: StoreDir) -> None:
        self._store = store
        self._disk = store.disk
        self._open_max = max(1, store.config.queue_files_mapped_max)
        self._queues: dict[tuple[str, int, int], _Queue] = {}
        self._open: OrderedDict[_Queue, None] = OrderedDict()
        """Queues with an open file, least recently written first."""
        self._touched: set[Path] = set()
        self._new_names: set[Path] = set()
        self._rebuilding = False
        self._to_watch: list[QueueKey] = []
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
            survey_queue(self._disk, QueueKey(topic, queue, directory.unit_size), directory)
            for topic, queue in self._store.queues()
            for directory in self._store.queue_directories(topic, queue)
        ]

    @staticmethod
    def count(found: list[Found], end: int) -> Totals:
        """Return the sums over units of records that end at or below end, if files are intact."""
        units = firsts = 0
        for one in found:
            with one.files() as files:
                count = files.count(end)
            if count > one.first:
                units += count
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
                count = files.count(end)
                last = files.unit(count - 1) if count > one.first else None
            if last is not None and is_of_another(last):
                return False
            checked += count - one.first
            if checked <= CHECKED_MAX and leading_units(one, end).next != count:
                return False
        return True

    def continue_from(self, found: list[Found], *, start: int, keep: int, thorough: bool) -> None:
        """Trust the units of records that end at or below start; cut those that end above keep.
        thorough: see ``zero_after``."""
        self._forget()
        for one in found:
            with one.files() as files:
                count, kept = files.count(start), files.count(keep)
            self._know(one, count)
            zero_after(one, kept, thorough=thorough)

    def adopt(self, found: list[Found], *, keep: int, is_real: IsReal, is_whole: IsWhole) -> None:
        """Trust each queue up to its last valid unit whose record ends at or below keep."""
        self._forget()
        for one in found:
            leading = leading_units(one, keep)
            # A queue that RocketMQ truncated keeps the bytes of the cut units: 1. the log was
            # truncated; 2. other records were appended; 3. the old units may point to the start of
            # another queue's record.
            while (last := self._last(one, leading)) is not None and not is_real(last):
                leading = leading_units(one, leading.end - 1)
            # 1. A unit crosses a page boundary, with half of its tags code, or of what follows it,
            # in the second page; 2. only the first page reached the disk; 3. zeros follow, so only
            # the last unit can be torn like this.
            if last is not None and not is_whole(last):
                leading = leading_units(one, leading.end - 1)
            self._know(one, leading.next).skip_until = leading.end
            zero_after(one, leading.next, thorough=True)
            # These files were never synced by reput; what is trusted must be durable before it is
            # published.
            self._touched.update(one.paths)
            self._touch_names(one.directory)

    @staticmethod
    def _last(found: Found, leading: Leading) -> StoredUnit | None:
        """Return the last of the leading units; None if none of them points to a record."""
        if not leading.end:
            return None
        with found.files() as files:
            return files.unit(leading.next - 1)

    def rebuild(self, found: list[Found], *, log_min: int, keep: int) -> None:
        """Let the first record found of each queue determine where the queue continues.

        Until then, the units of records that end at or below log_min remain, because they keep the
        numbering of a queue whose messages have all expired. A batch queue begins anew if they do
        not end where the first record found continues. Units from the first invalid one on, and
        those of records that end above keep, are cleared at once, because they prove nothing.
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
                found = survey_queue(self._disk, queue.key, queue.directory)
                zero_after(found, queue.next, thorough=True)
        self._rebuilding = self.compare = False

    def _forget(self) -> None:
        self.close()
        self._queues.clear()
        self._units = self._firsts = 0
        self._rebuilding = False

    def _know(self, found: Found, count: int) -> _Queue:
        """Trust the units below the number count."""
        # Files without units do not determine the numbering of an ordinary queue: after a power cut
        # the name of a second file may exist without that of the first one.
        first = found.first if found.key.is_batch else 0
        queue = self._queues[found.key] = _Queue(found.key, found.directory, first)
        if count > found.first:
            first_offset, next_offset = found.first, count
            if found.key.is_batch:
                with found.files() as files:
                    oldest, newest = files.unit(found.first), files.unit(count - 1)
                if oldest is None or newest is None:
                    raise lost_queue_file(found.paths[0])
                first_offset, next_offset = oldest.offsets[0], newest.offsets[1]
            self._number(queue, first=found.first, next=count)
            queue.first_offset, queue.next_offset = first_offset, next_offset
        return queue

    def _number(self, queue: _Queue, *, first: int, next: int) -> None:
        """Set the numbers of a queue that has units from now on, and adjust the totals."""
        if queue.has_units:
            self._units -= queue.next
            self._firsts -= queue.first
        self._units += next
        self._firsts += first
        queue.first, queue.next, queue.has_units = first, next, True

    # -- appending ----------------------------------------------------------------------------

    def append(self, run: QueueRun) -> None:
        """Store the units of run that are not there yet, each where its queue offset belongs.

        Raises QueueGap before anything is stored. Raises DiskFull, ReadOnlyDisk or OSError if a
        file cannot be created or extended: call again with the same run; stored units are skipped.
        """
        topic, number, first, units, _, unit_size = run
        key = (topic, number, unit_size)
        queue = self._queues.get(key)
        if queue is None:
            directory = self._store.queue_directory(*key)
            queue = self._queues[key] = _Queue(QueueKey(*key), directory)
        if (
            queue.goes_on
            and first == queue.next_offset
            and (not self.compare or queue.made == queue.start)
        ):
            # Fast path for nearly every run: it continues the last one, in reserved blocks.
            position = queue.next * unit_size - queue.start
            size = len(units)
            reserved = queue.reserved
            if reserved.start == queue.start and reserved.low <= position <= reserved.high - size:
                file = self._file(queue, queue.start)
                self._touched.add(queue.path)
                file.pwrite(units, position)
                self._count(queue, units)
                return
        self._append_slowly(queue, run)

    def _append_slowly(self, queue: _Queue, run: QueueRun) -> None:
        first = run.first
        if not queue.has_units:
            self._begin(queue, first)
        elif self._rebuilding and not queue.seen:
            self._begin_again(queue, first)
        elif first < queue.first_offset:
            # The log still has a message that belongs before the first existing file: after a power
            # cut, a later file name may have survived an earlier one.
            raise _gap(run, first, queue.first_offset)
        skipped = _covered(run, queue.skip_until) if queue.skip_until else 0
        queue.seen = True
        if skipped == run.unit_count:
            return
        skipped = bisect_left(range(run.unit_count), queue.next_offset, skipped, key=run.offset_of)
        if (offset := run.offset_of(skipped)) > queue.next_offset:
            raise _gap(run, offset, queue.next_offset)
        if skipped < run.unit_count:
            self._store_units(queue, run.units[skipped * run.unit_size :])
        queue.goes_on = not queue.skip_until

    def _begin(self, queue: _Queue, first: int) -> None:
        """Create the first file of a queue whose first message has queue offset first.

        In an ordinary queue it is the file with first, pre-blank below it (4.4). A batch queue
        begins in the first file that was found, if the file has that message at its start, and
        otherwise anew in file 0.
        """
        if not queue.key.is_batch:
            start, position = queue.place(first)
            self._fill(queue, start, 0, position)
            self._number_ordinary(queue, start, first)
            return
        begin = queue.first
        if begin:
            stored = self._unit_at(queue, begin)
            if stored is None or not stored.offsets[0] == first < stored.offsets[1]:
                self._remove_files(queue, below=None)
                begin = 0
        self._file(queue, queue.place(begin).file_start)
        self._number(queue, first=begin, next=begin)
        queue.first_offset = queue.next_offset = first

    def _number_ordinary(self, queue: _Queue, start: int, next: int) -> None:
        """Let an ordinary queue have files from start on, and units below next."""
        self._number(queue, first=start // UNIT_SIZE, next=next)
        queue.first_offset, queue.next_offset = queue.first, next

    def _begin_again(self, queue: _Queue, first: int) -> None:
        """Let a queue that is rebuilt continue at first, its oldest message in the log."""
        if queue.key.is_batch:
            if queue.next_offset != first:
                self._begin(queue, first)
            return
        start, position = queue.place(first)
        if queue.next >= first >= queue.first:
            self._number_ordinary(queue, queue.first * UNIT_SIZE, first)
            return
        # The units below have expired or never existed, so start as in a new queue.
        self._remove_files(queue, below=start)
        has = queue.next * UNIT_SIZE - start
        if has > 0 and queue.first * UNIT_SIZE <= start:
            self._fill(queue, start, has, position)
            self._number_ordinary(queue, start, first)
        else:
            self._begin(queue, first)

    def _remove_files(self, queue: _Queue, *, below: int | None) -> None:
        """Remove the queue's files that start before a position; None: all of them."""
        old = survey_queue(self._disk, queue.key, queue.directory)
        for start in (*old.starts, *old.behind_gap):
            if below is None or start < below:
                self._close_file(queue)
                self._disk.unlink(queue.directory.path / offset_name(start))
                self._new_names.add(queue.directory.path)

    def _fill(self, queue: _Queue, start: int, position: int, end: int) -> None:
        """Create the file at start if needed; store pre-blank units into [position, end)."""
        self._file(queue, start)
        if position < end:
            self._put(queue, start, position, pre_blank_run((end - position) // UNIT_SIZE))

    def _store_units(self, queue: _Queue, units: bytes) -> None:
        at, file_size = 0, queue.directory.file_size
        while at < len(units):
            start, position = queue.place(queue.next)
            size = min(len(units) - at, file_size - position)
            stored = units[at : at + size] if size < len(units) else units
            self._put(queue, start, position, stored)
            at += size
            self._count(queue, stored)

    def _count(self, queue: _Queue, units: bytes) -> None:
        """Add units that were stored to the queue's end and to the totals."""
        unit_size = queue.unit_size
        count = len(units) // unit_size
        queue.next += count
        self._units += count
        if unit_size == UNIT_SIZE:
            queue.next_offset += count
        else:
            queue.next_offset = batch_range(units, len(units) - unit_size)[1]

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
                self.repaired_count += _differing(present, units, queue.unit_size)
        reserved = queue.reserved
        if start != reserved.start or position < reserved.low or end > reserved.high:
            self._reserve(queue, file, start, position, end)
        file.pwrite(units, position)

    # -- mending ------------------------------------------------------------------------------

    def all_keys(self) -> list[QueueKey]:
        """Return the keys of all queues."""
        return [queue.key for queue in self._queues.values()]

    def bounds_of(self, key: QueueKey) -> range:
        """Return the numbers from the start of the queue's files to its last unit."""
        queue = self._queues.get(key)
        return range(queue.first, queue.next) if queue is not None and queue.has_units else range(0)

    def number_of(self, key: QueueKey, queue_offset: int) -> int:
        """Return the number of the unit that a reader takes for that of the message; it may be
        outside ``bounds_of``."""
        if not key.is_batch:
            return queue_offset
        with contextlib.closing(QueueFiles(self._disk, self._queues[key].directory)) as files:
            return files.number_of(queue_offset, self.bounds_of(key).stop)

    def unit_at(self, key: QueueKey, number: int) -> StoredUnit | None:
        """Return the stored unit with that number; None if there is no file. Raises DamagedFile if
        its file was cut."""
        return self._unit_at(self._queues[key], number)

    def mend(self, unit: StoredUnit) -> bool:
        """Replace an existing unit; return whether it was different. Raises DamagedFile if its file
        was removed, and DiskFull, ReadOnlyDisk or OSError: call again."""
        queue = self._queues[unit.key]
        start, position = queue.place(unit.number)
        path = queue.directory.path / offset_name(start)
        try:
            file = self._disk.open(path, writable=True)
        except FileNotFoundError:
            raise lost_queue_file(path) from None
        try:
            if file.pread(len(unit.content), position) == unit.content:
                return False
            file.reserve(position, len(unit.content))
            file.pwrite(unit.content, position)
        finally:
            file.close()
        self._touched.add(path)
        self.repaired_count += 1
        return True

    # -- expiring -----------------------------------------------------------------------------

    @property
    def units_per_file(self) -> int:
        """Increase of the number at which a queue's files start with each removed file."""
        return self._store.config.consume_queue_file_size // UNIT_SIZE

    def with_several_files(self) -> list[QueueKey]:
        """Return queues that have a file other than the one for the next unit."""
        behind = self.units_per_file
        return [one.key for one in self._queues.values() if one.next > one.first + behind]

    def expired_files(
        self, key: QueueKey, *, log_min: int, durable: int, files_max: int
    ) -> Expired:
        """Return how many of a queue's leading files contain only units of records below log_min.

        The last file never counts. A file does not count either if its successor has no durable
        unit, that is, none of a record that ends at or below durable: the next start counts units
        up to there, and would find the queue empty.
        """
        queue = self._queues.get(key)
        if queue is None or not queue.has_units:  # the queue is being rebuilt and has no units yet
            return Expired(0, later=False)
        count, following = 0, queue.first + self.units_per_file
        while following < queue.next and count < files_max:
            last = self._unit_at(queue, following - 1)
            if last is None or last.unit.size == 0 or last.unit.physical_offset >= log_min:
                break
            kept = self._unit_at(queue, following)
            if kept is None or kept.unit.size == 0 or kept.unit.end > durable:
                return Expired(count, later=True)
            count += 1
            following += self.units_per_file
        return Expired(count, later=False)

    def _unit_at(self, queue: _Queue, number: int) -> StoredUnit | None:
        start, position = queue.place(number)
        path = queue.directory.path / offset_name(start)
        try:
            file = self._disk.open(path, writable=False)
        except FileNotFoundError:
            return None
        try:
            content = file.pread(queue.unit_size, position)
        finally:
            file.close()
        if len(content) < queue.unit_size:
            raise lost_queue_file(path)
        return StoredUnit(queue.key, number, content)

    def remove_first_file(self, key: QueueKey) -> int:
        """Remove a queue's first file durably; return the increase of its first number."""
        queue = self._queues[key]
        first = queue.first + self.units_per_file
        kept = self._unit_at(queue, first)
        path = queue.directory.path / offset_name(queue.place(queue.first).file_start)
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(path)
        # Sync before the next file is removed: names can be lost in any order, and a gap between a
        # queue's files makes a start rebuild everything after it.
        self._disk.sync_directory(queue.directory.path)
        # the totals change, so a sync has to publish them
        self._new_names.add(queue.directory.path)
        self._touched.discard(path)
        self._number(queue, first=first, next=queue.next)
        if kept is not None:
            queue.first_offset = kept.offsets[0]
        return self.units_per_file

    # -- watching -----------------------------------------------------------------------------

    def lost_file(self, files_max: int) -> Path | None:
        """Return a file that is missing or has a different size; None if none was found. Checks
        about files_max files, and continues with the others at the next call."""
        if not self._to_watch:
            self._to_watch = self.all_keys()
        checked = 0
        while self._to_watch and checked < files_max:
            queue = self._queues.get(self._to_watch.pop())
            if queue is None or not queue.has_units or queue.next == queue.first:
                continue
            if queue.file is not None and not queue.file.is_named():
                return queue.path
            directory, file_size = queue.directory.path, queue.directory.file_size
            last = queue.place(queue.next - 1).file_start
            for start in range(queue.place(queue.first).file_start, last + 1, file_size):
                path = directory / offset_name(start)
                facts = self._disk.stat(path)
                if facts is None or facts.size != file_size:
                    return path
                checked += 1
        return None

    # -- files --------------------------------------------------------------------------------

    def _file(self, queue: _Queue, start: int) -> File:
        """Return the queue's file at start, open for writing; create it if it is missing."""
        directory, _, file_size = queue.directory
        if queue.start == start:
            if queue.file is not None:
                self._open.move_to_end(queue)
                return queue.file
        else:
            self._close_file(queue)
            queue.start, queue.path = start, directory / offset_name(start)
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
            self._disk.make_directory(directory, durable=False)
            file = self._disk.create(queue.path, file_size, reserve=False)
            self._new_names.add(directory)
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
        high = min(queue.directory.file_size, end + -end % RESERVE_STEP)
        known = queue.reserved
        if known.start == start and known.low <= low <= known.high:
            file.reserve(known.high, high - known.high)
            low = known.low
        else:
            file.reserve(low, high - low)
        queue.reserved = _Reserved(start, low, high)

    def _touch_names(self, directory: QueueDirectory) -> None:
        """Remember to sync the directories of the queue, its topic and all topics; for a batch
        queue also the store's, because batchconsumequeue/ is created with the first batch."""
        path, unit_size, _ = directory
        parents = path.parents[: 3 if unit_size == BATCH_UNIT_SIZE else 2]
        self._new_names.update((path, *parents))

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


def _covered(run: QueueRun, skip_until: int) -> int:
    """Return the number of leading units of records that an adopted queue already covers (4.3 step
    1). Records of a run rise in physical offset, so a binary search finds it."""

    def is_new(index: int) -> bool:
        offset, size, _ = UNIT.unpack_from(run.units, index * run.unit_size)
        return bool(offset + size > skip_until)

    return bisect_left(range(run.unit_count), True, key=is_new)


def _differing(present: bytes, units: bytes, unit_size: int) -> int:
    """Return how many units of present are neither empty nor equal to those of units."""
    empty = bytes(unit_size)
    return sum(
        present[at : at + unit_size] not in (empty, units[at : at + unit_size])
        for at in range(0, len(units), unit_size)
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
