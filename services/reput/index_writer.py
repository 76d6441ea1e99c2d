"""Writes the index files: one entry per key of a record, in log order.

It is the only writer of ``index/`` (docs/formats.md, section 5). Blocks are reserved before a range
is written: the header and the slots of a file before its first entry, entries in steps of 4 MiB.
Invariants:

- The entries of all files together are ordered by physical offset. The keys of a record may be
  split over two files.
- A key is put once: if a record may have been indexed before, its rows are compared first.
- A file is filled before the next one is created, and has a later name than all before it.

Read path, step 1: the step before is ``formats.plan``, which listed the keys; afterwards DISPATCHED
is published. Rows are processed in bulk by ``index_chains``; a single row is processed only if it
was found missing.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from services.reput.resume import IndexMode
from shared.files.disk import MappedRegion
from shared.files.store_dir import StoreDir
from tidemark.clock import Clock
from tidemark.errors import CorruptRecord
from tidemark.formats import native
from tidemark.formats.filenames import index_name, parse_index_name
from tidemark.formats.index_file import ENTRY_SIZE, ROW, Header, IndexFile

RESERVE_STEP: Final = 4 << 20
"""Step in which blocks of entries are reserved: about 200,000 entries."""
CHECKED_MAX: Final = 2_000_000 if native.COMPILED else 100_000
"""Maximum entries checked individually at a start, which takes at most some tenths of a second."""
DAMAGED: Final = -1
READ_MAPPED_MAX: Final = 2
"""Older files mapped during a comparison; a record has keys in at most two adjacent files."""

StoreTimeOf = Callable[[int], int | None]
"""Maps the physical offset of a record to its store time in ms; None if the record has expired."""


class IndexIncomplete(Exception):
    """A required key is missing in the index: the files do not belong to this log."""


class _Open:
    """A mapped index file."""

    __slots__ = ("file", "name", "path", "region", "reserved_until")

    def __init__(self, path: Path, region: MappedRegion, file: IndexFile) -> None:
        self.path = path
        self.name = path.name
        self.region = region
        self.file = file
        self.reserved_until = 0
        """End of the part of the file whose blocks are known to be reserved [bytes]."""

    def close(self) -> None:
        self.file.close()
        self.region.close()


class _Known(NamedTuple):
    """Attributes of a file that is no longer written."""

    name: str
    header: Header
    is_full: bool

    @property
    def entries(self) -> int:
        """Number of entries in it."""
        return self.header.next_entry - 1


class IndexWriter:
    """All index files of one store. For one thread at a time."""

    def __init__(
        self, store: StoreDir, clock: Clock, utc_offset_s: Callable[[int], int] = lambda _: 0
    ) -> None:
        """utc_offset_s: maps wall clock [ms] to local time minus UTC [s], for file names."""
        self._disk = store.disk
        self._directory = store.index_dir
        self._geometry = store.config.index_geometry
        self.enabled = store.config.index_enabled
        self._clock = clock
        self._utc_offset_s = utc_offset_s
        self._older: list[_Known] = []
        """Files before the last one, oldest first."""
        self._last: _Open | None = None
        self._reading: OrderedDict[str, _Open] = OrderedDict()
        self._from = 0
        self._compare_until = -1
        self._touched: set[Path] = set()
        self._new_names: set[Path] = set()
        self._inodes: dict[str, int] = {}
        """Inode of each file at the last call of ``lost_file``."""
        self.entries = 0
        """Number of entries in all files."""
        self.put_count = 0
        """Number of entries put since the start of the process."""
        self.filled_timestamp_ms = 0
        """End time of the newest full file; 0 if there is none."""

    # -- resuming -----------------------------------------------------------------------------

    def lost_file(self) -> Path | None:
        """Return a file that was removed, replaced or resized since the last call; None if none
        was. Checks all files, which are few because each holds millions of entries."""
        inodes: dict[str, int] = {}
        for known in self._known():
            path = self._directory / known.name
            facts = self._disk.stat(path)
            if facts is None or facts.size != self._geometry.size:
                return path
            if self._inodes.get(known.name, facts.inode) != facts.inode:
                return path
            inodes[known.name] = facts.inode
        self._inodes = inodes
        return None

    def survey(self, durable: int) -> int:
        """Open the files, repair an interrupted put, and count the entries of records that begin
        below durable; return DAMAGED if the entries are not consistent.

        Removes files of a different size; their entries are then missing in the count.
        """
        if not self.enabled:
            return 0
        self._open_all(heal=True)
        if not self._are_sound():
            return DAMAGED
        count = 0
        for known in self._known():
            if known.header.end_offset < durable or not known.entries:
                count += known.entries
            else:
                count += self._entries_below(known.name, durable)
        return count

    def resume(
        self, mode: IndexMode, *, start: int, keep: int, log_min: int, store_time_of: StoreTimeOf
    ) -> int:
        """Prepare the files for mode; return the physical offset from which records must be given
        to ``put`` again.

        start: everything below is in the index, if the files are complete. keep: entries of records
        at or above are removed. CONTINUE requires an earlier call of ``survey``.
        """
        if not self.enabled:
            self._from = keep
            return keep
        try:
            return self._resume(mode, start, keep, log_min, store_time_of)
        except CorruptRecord:
            # An entry or a header points to an offset where no record begins. Rebuild the derived
            # index. If the log were damaged instead, the walk during the rebuild would report it.
            return self.start_over(log_min)

    def _resume(
        self, mode: IndexMode, start: int, keep: int, log_min: int, store_time_of: StoreTimeOf
    ) -> int:
        # Names created by a process that was killed may not be durable.
        self._new_names.add(self._directory)
        match mode:
            case IndexMode.CONTINUE:
                self._cut(keep, store_time_of)
                self._from = start
            case IndexMode.REOPEN:
                self._open_all(heal=False)
                kept = self._remove_untrusted(start)
                store_time_of(kept)  # the log is read from there on
                self._from = max(log_min, kept)
            case IndexMode.COMPARE:
                self._open_all(heal=True)
                if self._has_problem():
                    return self.start_over(log_min)
                self._cut(keep, store_time_of)
                self._from = log_min
                # No earlier sync of reput covered these files.
                self._touched.update(self._directory / one.name for one in self._known())
            case IndexMode.REBUILD:
                return self.start_over(log_min)
        if not self._are_sound_from(self._from):
            return self.start_over(log_min)
        self._compare_until = self._end_offset()
        self._count()
        return self._from

    def skip_below(self, offset: int) -> None:
        """Skip records below offset, which are indexed; the log is reread only for the queues."""
        self._from = max(self._from, offset)

    def start_over(self, log_min: int) -> int:
        """Remove all files; return the offset from which the index is rebuilt."""
        self._close_all()
        self._inodes.clear()
        for name in reversed(self._names()):
            self._remove(name)
        self._older, self._last = [], None
        self._from, self._compare_until = log_min, -1
        self._count()
        return log_min

    def _open_all(self, *, heal: bool) -> None:
        self._close_all()
        self._inodes.clear()
        self._older = []
        names = self._names()
        for name in names:
            opened = self._map(name, writable=False)
            self._older.append(_Known(name, opened.file.header, opened.file.is_full))
            opened.close()
        if names:
            self._last = self._reopen_last()
            if heal:
                before = self._older[-1].header if self._older else None
                self._reserve_head(self._last)
                self._last.file.heal(before)

    def _reopen_last(self) -> _Open:
        """Map the newest of the known files for writing."""
        return self._map(self._older.pop().name, writable=True)

    def _names(self) -> list[str]:
        """Return the names of the usable files, oldest first. Removes files of a different size."""
        names = []
        for entry in self._disk.list_directory(self._directory):
            if entry.is_directory or parse_index_name(entry.name) is None:
                continue
            facts = self._disk.stat(self._directory / entry.name)
            if facts is None or facts.size == self._geometry.size:
                names.append(entry.name)
            else:
                self._remove(entry.name)
        return names

    def _known(self) -> list[_Known]:
        last = self._last
        if last is None:
            return self._older
        return [*self._older, _Known(last.name, last.file.header, last.file.is_full)]

    def _entries_below(self, name: str, offset: int) -> int:
        opened = self._map(name, writable=False)
        try:
            return opened.file.first_at(offset) - 1
        finally:
            opened.close()

    def _are_sound(self) -> bool:
        """Return whether the entries form valid hash chains. The newest CHECKED_MAX entries are
        checked; older ones are trusted."""
        left = CHECKED_MAX
        for known in reversed(self._known()):
            if left <= 0:
                return True
            opened = self._map(known.name, writable=False, scattered=False)
            try:
                if not opened.file.is_sound(max(1, known.entries + 1 - left)):
                    return False
            finally:
                opened.close()
            left -= known.entries
        return True

    def _are_sound_from(self, offset: int) -> bool:
        """Return whether the entries of records at or above offset form valid hash chains. A
        comparison of rows with entries does not detect entries that a lookup cannot reach."""
        for known in self._known():
            if not known.entries or known.header.end_offset < offset:
                continue
            opened = self._map(known.name, writable=False, scattered=False)
            try:
                if not opened.file.is_sound(opened.file.first_at(offset)):
                    return False
            finally:
                opened.close()
        return True

    def _has_problem(self) -> bool:
        for name in self._names():
            opened = self._map(name, writable=False)
            try:
                if opened.file.entry_count and opened.file.problem() is not None:
                    return True
            finally:
                opened.close()
        return False

    def _cut(self, keep: int, store_time_of: StoreTimeOf) -> None:
        """Remove the entries of records at or above keep, and files that become empty."""
        while self._last is not None:
            file = self._last.file
            before = self._older[-1].header if self._older else None
            if file.entry_count and file.header.end_offset >= keep:
                self._reserve_head(self._last)
                self._touch(self._last)
                file.cut(keep, store_time_of, before)
            if file.entry_count or not self._older:
                return
            empty = self._last
            self._last = None
            empty.close()
            self._remove(empty.name)
            self._last = self._reopen_last()

    def _remove_untrusted(self, durable: int) -> int:
        """Remove the files that could receive entries after durable was published, and all newer
        ones; return the physical offset of the last record in the remaining files, −1 if there are
        none.
        """
        known = self._known()
        self._close_all()
        kept = 0
        while kept < len(known) and known[kept].is_full and known[kept].header.end_offset < durable:
            kept += 1
        for one in reversed(known[kept:]):
            self._remove(one.name)
        self._older = known[:kept]
        if self._older:
            self._last = self._reopen_last()
        return self._end_offset()

    def _end_offset(self) -> int:
        """Return the physical offset of the last indexed record; −1 if there is none."""
        for known in reversed(self._known()):
            if known.entries:
                return known.header.end_offset
        return -1

    def _count(self) -> None:
        known = self._known()
        self.entries = sum(one.entries for one in known)
        full = [one.header.end_timestamp_ms for one in known if one.is_full]
        self.filled_timestamp_ms = full[-1] if full else 0

    # -- putting ------------------------------------------------------------------------------

    def put(self, rows: bytes, first: int) -> int:
        """Put some of rows (``index_chains.ROW`` each, in log order), starting at number first;
        return the number of the next row to put.

        Raises IndexIncomplete; raises DiskFull, ReadOnlyDisk or OSError if a file cannot be created
        or extended: call again with the same number.
        """
        offset = _offset_of(rows, first)
        if offset < self._from:
            return _first_row_at(rows, first, self._from)
        if offset <= self._compare_until:
            return self._put_compared(
                rows, first, _first_row_at(rows, first, self._compare_until + 1)
            )
        last = self._writable()
        file = last.file
        number = file.header.next_entry
        room = min(len(rows) // ROW.size - first, self._geometry.entries - number)
        self._reserve(last, self._geometry.entry_offset(number + room))
        self._touch(last)
        done = file.put_rows(rows, first)
        self.entries += done
        self.put_count += done
        if file.is_full:
            self.filled_timestamp_ms = file.header.end_timestamp_ms
        return first + done

    def _put_compared(self, rows: bytes, first: int, end: int) -> int:
        """Skip the rows of [first, end) that are indexed, or put a row that is missing."""
        offset = _offset_of(rows, first)
        done = first
        for file in self._that_may_hold(offset):
            done = file.held_rows(rows, done, end)
        if done > first:
            return done
        # Keys may be missing only for the last indexed record, if a kill interrupted its put.
        if offset < self._end_offset():
            raise IndexIncomplete
        last = self._writable()
        self._reserve(last, self._geometry.entry_offset(last.file.header.next_entry + 1))
        self._touch(last)
        last.file.put_rows(rows[first * ROW.size : (first + 1) * ROW.size])
        self.entries += 1
        self.put_count += 1
        return first + 1

    def _that_may_hold(self, offset: int) -> Iterator[IndexFile]:
        """Yield files that may have entries of the record at offset, oldest first.

        The keys of a record may be split over two files. The files count as touched even if nothing
        is put, because an entry may only be in the page cache.
        """
        for known in self._older:
            if not known.header.begin_offset <= offset <= known.header.end_offset:
                continue
            opened = self._reading.get(known.name)
            if opened is None:
                opened = self._reading[known.name] = self._map(known.name, writable=False)
                while len(self._reading) > READ_MAPPED_MAX:
                    self._reading.popitem(last=False)[1].close()
            self._touch(opened)
            yield opened.file
        last = self._last
        if last is not None and last.file.entry_count:
            self._touch(last)
            yield last.file

    def _writable(self) -> _Open:
        """Return the file for the next entry; create one if the last is full."""
        last = self._last
        if last is not None:
            if not last.file.is_full:
                if not last.file.entry_count:
                    # The file was created before a kill, without an entry: initialize it again.
                    self._reserve_head(last)
                    last.file.start_after(self._older[-1].header if self._older else None)
                return last
            self._older.append(_Known(last.name, last.file.header, True))
            self._last = None
            last.close()
        before = self._older[-1] if self._older else None
        wall_ms = self._clock.wall_ms()
        name = index_name(
            wall_ms, self._utc_offset_s(wall_ms), after=before.name if before else None
        )
        path = self._directory / name
        try:
            self._disk.create(path, self._geometry.size, reserve=False).close()
        except FileNotFoundError:
            self._disk.make_directory(self._directory)
            self._disk.create(path, self._geometry.size, reserve=False).close()
        self._new_names.add(self._directory)
        opened = self._map(name, writable=True)
        self._last = opened
        self._reserve_head(opened)
        opened.file.start_after(before.header if before else None)
        self._touch(opened)
        return opened

    # -- expiring -----------------------------------------------------------------------------

    def expired_entries(self, log_min: int) -> list[int]:
        """Return the entry counts of the leading files whose records are all below log_min. The
        last file is never included."""
        entries = []
        for known in self._older:
            if known.header.end_offset >= log_min:
                break
            entries.append(known.entries)
        return entries

    def remove_first_file(self) -> int:
        """Remove the oldest file durably; return its number of entries."""
        known = self._older[0]
        opened = self._reading.pop(known.name, None)
        if opened is not None:
            opened.close()
        with contextlib.suppress(FileNotFoundError):
            self._remove(known.name)
        self._disk.sync_directory(self._directory)
        self._new_names.add(self._directory)  # the totals change, so a sync has to publish them
        del self._older[0]
        self.entries -= known.entries
        return known.entries

    # -- files --------------------------------------------------------------------------------

    def _map(self, name: str, *, writable: bool, scattered: bool = True) -> _Open:
        path = self._directory / name
        file = self._disk.open(path, writable=writable)
        try:
            region = file.map(writable=writable, scattered=scattered)
        finally:
            file.close()
        return _Open(path, region, IndexFile(region.view, self._geometry))

    def _reserve_head(self, opened: _Open) -> None:
        """Reserve header and slots, because a put may write to any slot."""
        self._reserve(opened, self._geometry.entry_offset(1))

    def _reserve(self, opened: _Open, end: int) -> None:
        """Reserve blocks up to end, in whole steps. Raises DiskFull before anything is written."""
        if end <= opened.reserved_until:
            return
        start = opened.reserved_until
        entries_at = self._geometry.entry_offset(1)
        if end > entries_at:
            if start < entries_at:
                self._reserve_head(opened)
                # In a file with entries, the blocks before the next entry are already reserved.
                number = opened.file.header.next_entry
                start = max(entries_at, self._geometry.entry_offset(number) - ENTRY_SIZE)
            end = start + -(-(end - start) // RESERVE_STEP) * RESERVE_STEP
        end = min(end, self._geometry.size)
        file = self._disk.open(opened.path, writable=True)
        try:
            file.reserve(start, end - start)
        finally:
            file.close()
        opened.reserved_until = end

    def _touch(self, opened: _Open) -> None:
        self._touched.add(opened.path)

    def _remove(self, name: str) -> None:
        self._disk.unlink(self._directory / name)
        self._new_names.add(self._directory)
        self._touched.discard(self._directory / name)

    def take_touched(self) -> tuple[set[Path], set[Path]]:
        """Return files written to, and the directory if its names changed, since the last call."""
        touched, new_names = self._touched, self._new_names
        self._touched, self._new_names = set(), set()
        return touched, new_names

    def _close_all(self) -> None:
        if self._last is not None:
            last, self._last = self._last, None
            last.close()
        while self._reading:
            self._reading.popitem()[1].close()

    def close(self) -> None:
        """Unmap everything. The list of touched files is kept."""
        self._close_all()


def _offset_of(rows: bytes, number: int) -> int:
    """Return the physical offset of a row's record."""
    offset: int = ROW.unpack_from(rows, number * ROW.size)[0]
    return offset


def _first_row_at(rows: bytes, first: int, offset: int) -> int:
    """Return the number of the first row, from first on, whose record is at or above offset; the
    number of rows if there is none.
    """
    low, high = first, len(rows) // ROW.size
    while low < high:
        middle = (low + high) // 2
        if _offset_of(rows, middle) < offset:
            low = middle + 1
        else:
            high = middle
    return low
