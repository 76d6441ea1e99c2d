"""Survey of a consume queue's files when reput starts, and removal of invalid units.

It reads, counts and overwrites with zeros; ``resume`` makes all decisions. The usable files of a
queue are the gapless sequence from its first one. Files after a missing one are cleared like
everything else after the end (docs/formats.md, sections 4.6, 4.7).

``queue_writer`` uses it before the first unit is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from shared.files.disk import Disk
from shared.files.queue_files import COPIED_MAX, QueueFiles
from shared.files.queue_math import EVERYTHING, count_visible, place
from shared.files.store_dir import QueueDirectory
from tidemark.formats import native, queue_unit
from tidemark.formats.filenames import offset_name, parse_offset_name
from tidemark.formats.queue_unit import Unit
from tidemark.offsets import BATCH_UNIT_SIZE

CHUNK_SIZE: Final = 64 * 1024
_ZEROS: Final = bytes(CHUNK_SIZE)


class QueueKey(NamedTuple):
    """Identifies the files of one queue: a topic may have a queue of each kind with one id."""

    topic: str
    queue: int
    unit_size: int
    """BATCH_UNIT_SIZE for a batch queue, otherwise UNIT_SIZE."""

    @property
    def is_batch(self) -> bool:
        """Whether it is a batch queue, whose units store their queue offsets."""
        return self.unit_size == BATCH_UNIT_SIZE


class StoredUnit(NamedTuple):
    """A unit as it is in a queue's file, valid or not."""

    key: QueueKey
    number: int
    content: bytes

    @property
    def unit(self) -> Unit:
        """The location of its record."""
        return queue_unit.decode(self.content)

    @property
    def offsets(self) -> tuple[int, int]:
        """Queue offsets [first, after last) of the record's messages."""
        if self.key.is_batch:
            return queue_unit.batch_range(self.content)
        return self.number, self.number + 1


class Units(NamedTuple):
    """Facts about a queue's units from one short read; not available for a long queue."""

    length: int
    """Number after the last unit ever written, as ``QueueFiles.count`` returns it."""
    last: bytes
    """The last unit, whose record is the highest of all; empty if there is none."""
    last_end: int
    """Physical end of its record; 0 if there is none."""
    leading: Leading
    """Result of ``leading_units``, whatever the ends of their records."""
    is_empty_behind: bool
    """Whether there are only zeros after ``length``."""


class Found(NamedTuple):
    """The files of one queue."""

    disk: Disk
    key: QueueKey
    directory: QueueDirectory
    starts: tuple[int, ...]
    """Start of the files of the gapless sequence [bytes]."""
    behind_gap: tuple[int, ...]
    """Start of the files after a missing one."""
    has_wrong_size: bool
    """Whether a file of a different size existed; it was removed, because it can be rebuilt."""
    units: Units | None
    """None if not read. Like all other fields, it is a snapshot of the survey."""

    @property
    def first(self) -> int:
        """Number at which the first file starts; 0 without files."""
        return self.starts[0] // self.key.unit_size if self.starts else 0

    @property
    def paths(self) -> list[Path]:
        """Paths of the files of the sequence."""
        return [self.directory.path / offset_name(start) for start in self.starts]

    def files(self) -> FoundFiles:
        """Return the files of the sequence, for a ``with`` block."""
        return FoundFiles(self)


class FoundFiles:
    """The files of a queue, opened only if the known facts do not suffice."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self._files: QueueFiles | None = None

    def __enter__(self) -> FoundFiles:
        return self

    def __exit__(self, *_: object) -> None:
        if self._files is not None:
            self._files.close()
            self._files = None

    def count(self, end: int) -> int:
        """Return the number after the last unit whose record ends at or below end."""
        units = self._found.units
        return (
            units.length if units is not None and units.last_end <= end else self._open.count(end)
        )

    def unit(self, number: int) -> StoredUnit | None:
        """Return the unit with that number; None if the files do not reach so far."""
        found = self._found
        units = found.units
        if units is not None and units.last and number == units.length - 1:
            return StoredUnit(found.key, number, units.last)
        start, position = place(number, found.directory.file_size, found.key.unit_size)
        view = self._open.region(start) if number >= found.first else None
        if view is None:
            return None
        content = bytes(view[position : position + found.key.unit_size])
        return StoredUnit(found.key, number, content) if content else None

    def region(self, start: int) -> memoryview | None:
        """Return the same as ``QueueFiles.region``."""
        return self._open.region(start)

    @property
    def _open(self) -> QueueFiles:
        if self._files is None:
            found = self._found
            self._files = QueueFiles(
                found.disk, found.directory, starts=found.starts, copied_max=COPIED_MAX
            )
        return self._files


class Leading(NamedTuple):
    """The units at the beginning of a queue that are valid and in order."""

    next: int
    """Number after the units."""
    end: int
    """Physical end of the last unit's record; 0 if there is none."""


def survey_queue(disk: Disk, key: QueueKey, directory: QueueDirectory) -> Found:
    """Survey one queue. Removes files of a different size than the directory's.

    A power cut can leave files of size 0 whose name was synced but not their size; this is normal.
    Any other size is damage, and the units of the file are then missing in the totals.
    """
    starts: list[int] = []
    has_wrong_size = removed = False
    path, _, file_size = directory
    for entry in disk.list_directory(path):
        start = parse_offset_name(entry.name)
        if entry.is_directory or start is None or start % file_size:
            continue
        facts = disk.stat(path / entry.name)
        if facts is None or facts.size == file_size:
            starts.append(start)
            continue
        has_wrong_size |= facts.size > 0
        disk.unlink(path / entry.name)
        removed = True
    if removed:
        disk.sync_directory(path)
    run = 0
    while run < len(starts) and starts[run] == starts[0] + run * file_size:
        run += 1
    usable, behind_gap = tuple(starts[:run]), tuple(starts[run:])
    found = Found(disk, key, directory, usable, behind_gap, has_wrong_size, None)
    return found._replace(units=_units(found)) if len(starts) == 1 == run else found


def _units(found: Found) -> Units | None:
    """Return the facts about a queue with a single file, if one short read provides them.

    With thousands of queues, each of which is counted several times, this avoids opening most of
    them again.
    """
    unit_size = found.key.unit_size
    file = found.disk.open(found.paths[0], writable=False)
    try:
        end = min(file.data_end(), found.directory.file_size)
        if end > COPIED_MAX:
            return None
        content = file.pread(end, 0)
    finally:
        file.close()
    length = len(content) // unit_size
    count = count_visible(memoryview(content), length, EVERYTHING, unit_size=unit_size)
    leading, leading_end = _leading_in(found.key, content, end=0, end_max=EVERYTHING, offset=-1)[:2]
    if leading < count:
        return None  # there is a gap, or units are out of order: no short summary is possible
    behind = content[count * unit_size :]
    return Units(
        found.first + count,
        content[(count - 1) * unit_size : count * unit_size] if count else b"",
        leading_end,
        Leading(found.first + leading, leading_end),
        behind == bytes(len(behind)),
    )


def leading_units(found: Found, end_max: int) -> Leading:
    """Count the units from the first on that are valid, rise in offset, and end at or below
    end_max. Checks every unit, because after a power cut there may be a gap anywhere."""
    if found.units is not None and found.units.leading.end <= end_max:
        return found.units.leading
    count = end = 0
    offset = -1
    with found.files() as files:
        for start in found.starts:
            view = files.region(start)
            if view is None:
                break
            in_file, end, offset = _leading_in(
                found.key, view, end=end, end_max=end_max, offset=offset
            )
            count += in_file
            if in_file < found.directory.file_size // found.key.unit_size:
                break
    return Leading(found.first + count, end)


def _leading_in(
    key: QueueKey, view: bytes | memoryview, *, end: int, end_max: int, offset: int
) -> tuple[int, int, int]:
    """Count the leading units of one file, as ``native.leading_units`` does.

    In a batch queue each batch must also continue the queue offsets of the one before. offset:
    queue offset that the first batch must have; −1: any. Returns (units, end of the last one's
    record, queue offset after it).
    """
    unit_size = key.unit_size
    count, last_end = native.leading_units(view, end=end, end_max=end_max, unit_size=unit_size)
    if not key.is_batch:
        return count, last_end, offset
    for number in range(count):
        first, after = queue_unit.batch_range(view, number * unit_size)
        if first < 0 or after <= first or offset not in (-1, first):
            # Counting the units before it again gives the end of the last one's record.
            before = view[: number * unit_size]
            count, last_end = native.leading_units(
                before, end=end, end_max=end_max, unit_size=unit_size
            )
            break
        offset = after
    return count, last_end, offset


def zero_after(found: Found, number: int, *, thorough: bool) -> int:
    """Overwrite all units from that number on with zeros, and sync; return the bytes that were not
    zero before, in whole chunks.

    thorough: search all of the files. Otherwise the first empty chunk ends the search, which is
    correct as long as the page cache still holds everything that was written in sequence.
    """
    units = found.units
    if units is not None and units.is_empty_behind and number >= units.length:
        return 0
    cleared = 0
    for start in (*found.starts, *found.behind_gap):
        position = max(0, number * found.key.unit_size - start)
        if position >= found.directory.file_size:
            continue
        in_file, is_end = _zero_in(found, start, position, thorough=thorough)
        cleared += in_file
        if is_end:
            break
    return cleared


def _zero_in(found: Found, start: int, position: int, *, thorough: bool) -> tuple[int, bool]:
    """Clear one file from position on; return the bytes cleared, and whether an empty chunk ended
    the search.
    """
    path = found.directory.path / offset_name(start)
    reader = found.disk.open(path, writable=False)
    dirty: list[tuple[int, int]] = []
    is_end = False
    try:
        end = reader.data_end()
        for at in range(position, end, CHUNK_SIZE):
            chunk = reader.pread(min(CHUNK_SIZE, end - at), at)
            if chunk != _ZEROS[: len(chunk)]:
                dirty.append((at, len(chunk)))
            elif not thorough:
                is_end = True
                break
    finally:
        reader.close()
    if dirty:
        # Open for writing only if needed: on a read-only disk there must be nothing to clear.
        writer = found.disk.open(path, writable=True)
        try:
            for at, size in dirty:
                writer.pwrite(_ZEROS[:size], at)
            writer.sync()
        finally:
            writer.close()
    return sum(size for _, size in dirty), is_end
