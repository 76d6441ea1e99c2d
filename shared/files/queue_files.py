"""One consume queue's files, read as one array of units (docs/formats.md, section 4).

Units are numbered as in ``queue_math``: the number of a unit is its queue offset, except in a batch
queue.

Files are mapped lazily, a few at a time; for a single use small files are read instead. The files
are derived data and may be missing, short or mixed with unrelated files. That results in fewer
units, never in an exception. The writer refuses such files and rebuilds them.

Used by ``consume_queue`` (read path, step 2), by ``recovery`` and by reput's ``queue_survey``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from shared.files.disk import Disk, File, MappedRegion
from shared.files.queue_math import (
    EVERYTHING,
    count_visible,
    first_kept,
    is_filler,
    place,
    recovered_units,
)
from shared.files.store_dir import QueueDirectory
from tidemark.formats.filenames import offset_name, parse_offset_name
from tidemark.formats.queue_unit import UNIT, Unit, batch_range
from tidemark.formats.record import RECORD_SIZE_MIN
from tidemark.offsets import UNIT_SIZE, QueueOffset

MAPPED_PER_QUEUE: Final = 2
"""Files of one queue mapped at a time: the one being read and the last one."""
COPIED_MAX: Final = 64 * 1024
"""For a single use, units of up to this size are read, not mapped: a mapping costs two more calls
and a page fault for each page."""
SEARCH_COUNT: Final = 3200
"""Units compared at once where only zeros are expected."""
OFFSET_MAX: Final = 1 << 53
"""A physical offset that no log reaches; random bytes are nearly always larger."""


def _points_to_a_record(unit: Unit, size_max: int) -> bool:
    """Whether the unit's values are possible for a unit of a record."""
    return (
        not is_filler(unit.physical_offset, unit.size)
        and 0 <= unit.physical_offset < OFFSET_MAX
        and RECORD_SIZE_MIN <= unit.size <= size_max
    )


def _is_witness(unit: Unit, before: Unit | None, size_max: int) -> bool:
    """Whether a unit proves that its record was on disk, and is not just a damaged file's contents.
    before: the unit in front of it, None if unknown. A queue's records are in the same order in the
    log."""
    if not _points_to_a_record(unit, size_max):
        return False
    if before is None or before.size == 0 or is_filler(before.physical_offset, before.size):
        return True
    return _points_to_a_record(before, size_max) and before.end <= unit.physical_offset


def _farthest_in(
    view: memoryview, low: int, high: int, before: Unit | None, size_max: int, unit_size: int
) -> int:
    """Return the largest record end of the units in view[low:high], −1 if there is none."""
    farthest = -1
    for start in range(low, high, SEARCH_COUNT * unit_size):
        chunk = bytes(view[start : min(start + SEARCH_COUNT * unit_size, high)])
        if chunk == bytes(len(chunk)):
            before = None
            continue
        for at in range(0, len(chunk), unit_size):
            unit = Unit._make(UNIT.unpack_from(chunk, at))
            if unit.end > farthest and _is_witness(unit, before, size_max):
                farthest = unit.end
            before = unit
    return farthest


class _Copy:
    """A copy of a file's first bytes, used like a mapping."""

    __slots__ = ("view",)

    def __init__(self, content: bytes) -> None:
        self.view = memoryview(content)

    def close(self) -> None:
        """Do nothing: borrowed bytes stay valid."""


class _Mapped:
    """One mapped or copied file, and the end of the bytes that can be read (``data_end``)."""

    __slots__ = ("grows_to", "readable", "region", "size")

    def __init__(self, region: MappedRegion, readable: int, size: int, *, grows_to: int) -> None:
        self.region = region
        self.readable = readable
        self.size = size
        """Length of the file."""
        self.grows_to = grows_to
        """Largest possible value of readable; a copy does not grow."""


class QueueFiles:
    """One queue's files; files whose name is not a start offset are ignored."""

    def __init__(
        self,
        disk: Disk,
        directory: QueueDirectory,
        *,
        starts: Sequence[int] | None = None,
        copied_max: int = -1,
    ) -> None:
        """starts: starts of the files to read; None: all that exist. copied_max: for a single use,
        files with units of up to this size are read once instead of mapped; −1: never.
        """
        self._disk = disk
        self._directory, self.unit_size, self.file_size = directory
        self._copied_max = copied_max
        self.starts: list[int] = [] if starts is None else list(starts)
        """Start (bytes) of every known file, ascending."""
        self._mapped: OrderedDict[int, _Mapped] = OrderedDict()
        if starts is None:
            self.refresh()

    def refresh(self) -> None:
        """List the files again, and unmap those that were removed."""
        found = [
            start
            for entry in self._disk.list_directory(self._directory)
            if not entry.is_directory
            and (start := parse_offset_name(entry.name)) is not None
            and start % self.file_size == 0
        ]
        self.starts = sorted(found)
        for start in self._mapped.keys() - set(found):
            self._mapped.pop(start).region.close()

    def find_next(self) -> bool:
        """Check for one more file after the last; return whether there is one."""
        if not self.starts:
            self.refresh()
            return bool(self.starts)
        behind = self.starts[-1] + self.file_size
        if self._disk.stat(self._directory / offset_name(behind)) is None:
            return False
        self.starts.append(behind)
        return True

    def region(self, start: int, need: int = 0) -> memoryview | None:
        """Return the file's whole units up to the last stored one; None if the file is gone.

        need: check again how far the file is written if fewer bytes than this were known. Bytes
        after that read as zeros and are not returned, because the file is sparse. The view is
        borrowed until the file is unmapped.
        """
        mapped = self._mapped.get(start)
        if mapped is None or mapped.readable < min(need, mapped.grows_to):
            try:
                file = self._disk.open(self._directory / offset_name(start), writable=False)
            except FileNotFoundError:
                return None
            try:
                readable = min(file.data_end(), self.file_size)
                readable -= readable % self.unit_size
                if mapped is None:
                    mapped = self._mapped[start] = self._take(file, readable)
            finally:
                file.close()
            mapped.readable = max(mapped.readable, min(readable, mapped.grows_to))
            while len(self._mapped) > MAPPED_PER_QUEUE:
                self._mapped.popitem(last=False)[1].region.close()
        else:
            self._mapped.move_to_end(start)
        return mapped.region.view[: mapped.readable]

    def _take(self, file: File, readable: int) -> _Mapped:
        """Map the file, or copy its units."""
        if readable > self._copied_max:
            region = file.map(writable=False, scattered=True)
            return _Mapped(region, readable, file.size, grows_to=self.file_size)
        content = file.pread(readable, 0)
        whole = len(content) - len(content) % self.unit_size
        return _Mapped(_Copy(content), whole, file.size, grows_to=whole)

    def count(self, end: int, known: int = 0) -> int:
        """Return the number of the unit after the last whose record ends at or below end.
        known: all units below it are known to count. The result is 0 without files, and the first
        file's start if nothing in it counts, so that the numbering continues."""
        units_per_file = self.file_size // self.unit_size
        if not self.starts:
            self.refresh()
        while self.starts:
            index = max(0, bisect_right(self.starts, known * self.unit_size) - 1)
            low = max(0, known - self.starts[index] // self.unit_size)
            begun = self._last_begun(index, end)
            if begun is None:  # deleted meanwhile
                self.refresh()
                continue
            index, start = begun, self.starts[begun]
            view = self.region(start, need=(low + 1) * self.unit_size)
            if view is None:  # deleted meanwhile
                self.refresh()
                continue
            if start > known * self.unit_size or low > len(view) // self.unit_size:
                low = 0
            count = self._visible(view, end, low)
            while count * self.unit_size == len(view) < self.file_size:  # it may have grown
                more = self.region(start, need=len(view) + self.unit_size)
                if more is None or len(more) == len(view):
                    break
                view = more
                count = self._visible(view, end, count)
            is_last = index == len(self.starts) - 1
            if count == units_per_file and is_last and self.find_next():
                known = (start + self.file_size) // self.unit_size
                continue
            return start // self.unit_size + count
        return 0

    def _visible(self, view: memoryview, end: int, low: int = 0) -> int:
        """Return how many units of view count; those before low are known to."""
        return count_visible(view, len(view) // self.unit_size, end, low, self.unit_size)

    def _last_begun(self, low: int, end: int) -> int | None:
        """Return the index of the last file whose first unit counts; low if no later file has one.

        None if an examined file was deleted: it would be taken for a file that has no unit yet, and
        the queue for a shorter one.
        """
        high = len(self.starts) - 1
        while low < high:
            middle = (low + high + 1) // 2
            view = self.region(self.starts[middle], need=self.unit_size)
            if view is None:
                return None
            if len(view) >= self.unit_size and self._visible(view[: self.unit_size], end) == 1:
                low = middle
            else:
                high = middle - 1
        return low

    def first_at(self, min_physical: int, known: int = 0) -> int | None:
        """Return the number of the first unit whose record begins at or above min_physical.
        known: no unit below it matches. None if there is no match, or if the file that should hold
        it is gone: try again after ``refresh``."""
        low, high = 0, len(self.starts) - 1
        while low < high:  # find the first file whose last unit matches; a missing file does not
            middle = (low + high) // 2
            last = self.unit((self.starts[middle] + self.file_size) // self.unit_size - 1)
            if last is None or is_filler(*last[:2]) or last.physical_offset < min_physical:
                low = middle + 1
            else:
                high = middle
        if not self.starts:
            return None
        start = self.starts[low]
        view = self.region(start, need=self.file_size)
        if view is None:
            return None
        first = start // self.unit_size
        count = recovered_units(view, len(view) // self.unit_size, self.unit_size)
        low = min(max(0, known - first), count)
        found = first_kept(view, count, min_physical, low, self.unit_size)
        return first + found if found < count else None

    def unit(self, number: int) -> Unit | None:
        """Return the unit with that number, visible or not; None if its file is missing."""
        if number < 0:
            return None
        start, position = place(number, self.file_size, self.unit_size)
        view = self.region(start, need=position + self.unit_size)
        if view is None:
            return None
        if position + self.unit_size > len(view):
            is_in_file = position + self.unit_size <= self._mapped[start].size
            return Unit(0, 0, 0) if is_in_file else None
        return Unit._make(UNIT.unpack_from(view, position))

    # -- queue offsets ------------------------------------------------------------------------

    def range_of(self, number: int) -> tuple[QueueOffset, QueueOffset] | None:
        """Return the queue offsets [first, after last) of the unit's messages.

        None if a batch queue has no such unit; in an ordinary queue the number is the offset.
        """
        if self.unit_size == UNIT_SIZE:
            return QueueOffset(number), QueueOffset(number + 1)
        if number < 0:
            return None
        start, position = place(number, self.file_size, self.unit_size)
        view = self.region(start, need=position + self.unit_size)
        if view is None or position + self.unit_size > len(view):
            return None
        first, after = batch_range(view, position)
        return QueueOffset(first), QueueOffset(after)

    def offset_of(self, number: int) -> QueueOffset | None:
        """Return the queue offset of the unit's first message; None as for ``range_of``."""
        found = self.range_of(number)
        return None if found is None else found[0]

    def sound_offset(self, number: int) -> QueueOffset | None:
        """Return the same as ``offset_of``; None also if the next unit does not continue there.

        A damaged unit of a batch queue would otherwise give a queue that never existed.
        """
        own, following = self.range_of(number), self.unit(number + 1)
        if own is None or self.unit_size == UNIT_SIZE or following is None or not following.size:
            return None if own is None else own[0]
        return own[0] if self.offset_of(number + 1) == own[1] > own[0] else None

    def next_offset(self, number: int) -> QueueOffset:
        """Return the queue offset after the messages of the unit before number; 0 if no unit shows
        it."""
        before = self.range_of(number - 1)
        if before is not None:
            return before[1]
        return self.offset_of(number) or QueueOffset(0)

    def number_of(self, queue_offset: int, end: int) -> int:
        """Return the number of the unit that has the message, among the units below end.

        The result is end if the message is after them, and the first unit's number if it is before.
        """
        if self.unit_size == UNIT_SIZE:
            return min(queue_offset, end)
        low = self.starts[0] // self.unit_size if self.starts else end
        high = end
        while low < high:
            middle = (low + high) // 2
            found = self.range_of(middle)
            # A missing unit expired with its file.
            if found is None or found[1] <= queue_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def farthest_record_end(self, record_size_max: int) -> int:
        """Return the largest record end of the last unit and of all units after the first gap.

        After a power cut, units may exist while earlier ones, which were synced later, do not. Each
        existing unit was created for a record that was on disk. −1 if no unit points to a record;
        units with impossible values, as in a damaged file, prove nothing.
        """
        length = self.count(EVERYTHING)
        last = self.unit(length - 1)
        before = self.unit(length - 2)
        proves = last is not None and _is_witness(last, before, record_size_max)
        farthest = last.end if last is not None and proves else -1
        for start in reversed(self.starts):
            if start + self.file_size <= length * self.unit_size:
                break
            view = self.region(start, need=self.file_size)
            if view is None:
                continue
            low = max(0, length * self.unit_size - start)
            before = self.unit((start + low) // self.unit_size - 1) if low else None
            found = _farthest_in(view, low, len(view), before, record_size_max, self.unit_size)
            farthest = max(farthest, found)
        return farthest

    def close(self) -> None:
        """Unmap everything."""
        while self._mapped:
            self._mapped.popitem()[1].region.close()
