"""What a consume queue's files hold when reput starts, and cutting what they should not hold.

Looks, counts and overwrites with zeros; believes nothing and decides nothing: that is ``resume``'s.
A queue's usable files are the gapless run from its first one; what lies behind a missing file is
cut like everything else behind the end (docs/formats.md, sections 4.6, 4.7).

Used by ``queue_writer`` before the first unit is written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from shared.files.disk import Disk
from shared.files.queue_files import QueueFiles
from shared.files.queue_math import is_filler
from tidemark.formats.filenames import offset_name, parse_offset_name
from tidemark.formats.plan import QueueKey
from tidemark.formats.queue_unit import UNIT
from tidemark.offsets import UNIT_SIZE

CHUNK_SIZE: Final = 64 * 1024
_ZEROS: Final = bytes(CHUNK_SIZE)


class Found(NamedTuple):
    """One queue's files."""

    disk: Disk
    key: QueueKey
    directory: Path
    file_size: int
    starts: tuple[int, ...]
    """Start (bytes) of the files of the gapless run."""
    behind_gap: tuple[int, ...]
    """Start of files behind a missing one."""
    has_wrong_size: bool
    """A file of another length was there, and is removed: it is derived, and made again."""

    @property
    def first(self) -> int:
        """Queue offset at which the first file starts; 0 without files."""
        return self.starts[0] // UNIT_SIZE if self.starts else 0

    @contextlib.contextmanager
    def files(self) -> Iterator[QueueFiles]:
        """The files of the run, mapped for reading."""
        files = QueueFiles(self.disk, self.directory, self.file_size)
        files.starts = list(self.starts)
        try:
            yield files
        finally:
            files.close()


class Leading(NamedTuple):
    """The units at the beginning of a queue that are whole and in order."""

    next: int
    """Queue offset behind them."""
    end: int
    """Physical end of the last one's record; 0 without."""


def look_at(disk: Disk, key: QueueKey, directory: Path, file_size: int) -> Found:
    """Take stock of one queue. Removes files of another length than file_size.

    A power cut leaves files of length 0 whose name was synced and whose length was not: expected.
    Any other length is damage, and what the file held is missed by the totals.
    """
    starts: list[int] = []
    has_wrong_size = removed = False
    for entry in disk.list_directory(directory):
        start = parse_offset_name(entry.name)
        if entry.is_directory or start is None or start % file_size:
            continue
        facts = disk.stat(directory / entry.name)
        if facts is None or facts.size == file_size:
            starts.append(start)
            continue
        has_wrong_size |= facts.size > 0
        disk.unlink(directory / entry.name)
        removed = True
    if removed:
        disk.sync_directory(directory)
    run = 0
    while run < len(starts) and starts[run] == starts[0] + run * file_size:
        run += 1
    return Found(
        disk, key, directory, file_size, tuple(starts[:run]), tuple(starts[run:]), has_wrong_size
    )


def leading_units(found: Found, end_max: int) -> Leading:
    """Count the units from the first on that are valid, of rising records, none ending above
    end_max. Looks at every one: after a power cut there may be a hole anywhere.
    """
    count = end = 0
    with found.files() as files:
        for start in found.starts:
            view = files.region(start)
            in_file, end = _leading_in(view, end, end_max) if view is not None else (0, end)
            count += in_file
            if in_file < found.file_size // UNIT_SIZE:
                break
    return Leading(found.first + count, end)


def _leading_in(view: memoryview, end: int, end_max: int) -> tuple[int, int]:
    """(units, record end of the last) of one file; end: record end of the unit before it."""
    count = 0
    for offset, size, _ in UNIT.iter_unpack(view):
        if size <= 0 or offset < end:
            break
        if not is_filler(offset, size):
            if offset + size > end_max:
                break
            end = offset + size
        elif end:
            break  # fillers stand only before a queue's first message
        count += 1
    return count, end


def zero_behind(found: Found, next_offset: int, *, thorough: bool) -> int:
    """Overwrite all units from queue offset next_offset on with zeros, and sync; return the bytes
    that were not zero before, in whole chunks.

    thorough: look through all of the files; else the first empty stretch ends the search, which is
    right as long as the page cache holds what was stored, one unit after the other.
    """
    cleared = 0
    for start in (*found.starts, *found.behind_gap):
        position = max(0, next_offset * UNIT_SIZE - start)
        if position >= found.file_size:
            continue
        in_file, is_end = _zero_in(found, start, position, thorough=thorough)
        cleared += in_file
        if is_end:
            break
    return cleared


def _zero_in(found: Found, start: int, position: int, *, thorough: bool) -> tuple[int, bool]:
    """(bytes cleared, an empty stretch was met and is enough) of one file from position on."""
    path = found.directory / offset_name(start)
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
        # Opened for writing only now: on a read-only disk there must be nothing to do.
        writer = found.disk.open(path, writable=True)
        try:
            for at, size in dirty:
                writer.pwrite(_ZEROS[:size], at)
            writer.sync()
        finally:
            writer.close()
    return sum(size for _, size in dirty), is_end
