"""Writes the index files: one entry per key of a record, in the order of the log.

The only writer of ``index/`` (docs/formats.md, section 5). Blocks are reserved before a range is
stored to: the header and the slots of a file before its first entry, entries in steps of 4 MiB.
Invariants:

- The entries of all files together rise in physical offset; a record's keys may be split over two.
- A key is put once: where a record may have been indexed before, its rows are compared first.
- A file is filled before the next one is made, and named later than all before it.

Read path, step 1: before it ``formats.plan`` listed the keys, after it DISPATCHED is
published. Rows are never looked at one by one here, but for one found missing: ``index_chains``
takes them as they come.
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
"""Blocks of entries are reserved in such steps: about 200,000 entries."""
LOOKED_AT_MAX: Final = 2_000_000 if native.COMPILED else 100_000
"""Entries looked at one by one at a start: at most some tenths of a second."""
DAMAGED: Final = -1
READ_MAPPED_MAX: Final = 2
"""Older files mapped while rows are compared: a record's keys lie in at most two neighbours."""

StoreTimeOf = Callable[[int], int | None]
"""Physical offset of a record → its store time in ms; None if it has expired."""


class IndexIncomplete(Exception):
    """A key that must be in the index is not: the files are not those of this log."""


class _Open:
    """A mapped index file."""

    __slots__ = ("file", "name", "path", "region", "reserved_until")

    def __init__(self, path: Path, region: MappedRegion, file: IndexFile) -> None:
        self.path = path
        self.name = path.name
        self.region = region
        self.file = file
        self.reserved_until = 0
        """Bytes of the file from its beginning whose blocks are known to be reserved."""

    def close(self) -> None:
        self.file.close()
        self.region.close()


class _Known(NamedTuple):
    """What is remembered of a file that is not written any more."""

    name: str
    header: Header
    is_full: bool

    @property
    def entries(self) -> int:
        """Entries in it."""
        return self.header.next_entry - 1


class IndexWriter:
    """All index files of one store. For one thread at a time."""

    def __init__(
        self, store: StoreDir, clock: Clock, utc_offset_s: Callable[[int], int] = lambda _: 0
    ) -> None:
        """utc_offset_s: wall clock in ms → local time minus UTC in seconds, for file names."""
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
        """Which file each name led to when ``lost_file`` looked last."""
        self.entries = 0
        """Entries in all files."""
        self.put_count = 0
        """Entries put since the start of the process."""
        self.filled_timestamp_ms = 0
        """End time of the newest file that is full; 0 if there is none."""

    # -- resuming -----------------------------------------------------------------------------

    def lost_file(self) -> Path | None:
        """A file that was removed, replaced or given another size since the call before; None if
        none was. Looks at all of them: a file holds millions of entries."""
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
        """Open the files, undo what a kill inside a put left, and count the entries of records
        that begin below durable; DAMAGED if they are not what a count takes them for.

        Removes files of another size: they miss in the count.
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
        """Bring the files into the state in which mode goes on; return the physical offset from
        which records must be given to ``put`` again.

        start: everything below is in the index, if the files are whole. keep: entries of records
        at or above go. CONTINUE needs ``survey`` before it.
        """
        if not self.enabled:
            self._from = keep
            return keep
        try:
            return self._resume(mode, start, keep, log_min, store_time_of)
        except CorruptRecord:
            # An entry or a header points to where no record begins. The index is derived: were it
            # the log, the walk that makes the index again would say so.
            return self.start_over(log_min)

    def _resume(
        self, mode: IndexMode, start: int, keep: int, log_min: int, store_time_of: StoreTimeOf
    ) -> int:
        # Names made by a process that was killed may not be on disk.
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
                # Nobody ever synced them for us.
                self._touched.update(self._directory / one.name for one in self._known())
            case IndexMode.REBUILD:
                return self.start_over(log_min)
        if not self._are_sound_from(self._from):
            return self.start_over(log_min)
        self._compare_until = self._end_offset()
        self._count()
        return self._from

    def skip_below(self, offset: int) -> None:
        """The log is walked again for the queues' sake: the index has everything below offset."""
        self._from = max(self._from, offset)

    def start_over(self, log_min: int) -> int:
        """Remove all files; return where the index begins anew."""
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
        """Names of the usable files, oldest first. Files of another size are removed."""
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
        """Whether the entries form the chains that puts make. LOOKED_AT_MAX of them are looked at,
        the newest ones; what an index holds beyond is believed."""
        left = LOOKED_AT_MAX
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
        """The same for all entries of records at or above offset: their rows are compared with
        entries, and that these can be reached is what a comparison does not see."""
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
        """Remove the entries of records at or above keep, and files that are empty then."""
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
        """Remove the files that could take entries after durable was published, and all behind
        them; return the physical offset of the last record in those kept, 0 without."""
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
        """Physical offset of the last record that has an entry; −1 if none has."""
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
        """Put some of rows (``index_chains.ROW`` each, in the order of the log), from number first
        on; return the number of the next one to put.

        Raises IndexIncomplete; raises DiskFull, ReadOnlyDisk or OSError if a file cannot be made
        or grown: call again with the same number.
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
        """Pass over the rows of [first, end) that the index has, or put one that it has not."""
        offset = _offset_of(rows, first)
        done = first
        for file in self._that_may_hold(offset):
            done = file.held_rows(rows, done, end)
        if done > first:
            return done
        # Only of the last record indexed some keys may be missing: a kill came between them.
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
        """Files that may have entries of the record at offset, oldest first: the keys of one may
        begin in one file and go on in the next.

        They count as touched even if nothing is put: an entry may be in the page cache only.
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
        """The file that takes the next entry; made if the last one is full."""
        last = self._last
        if last is not None:
            if not last.file.is_full:
                if not last.file.entry_count:
                    # Made, and killed before its first entry: its beginning is set once more.
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
        """Of each leading file, never the last, that holds nothing but entries of records below
        log_min: how many those are."""
        entries = []
        for known in self._older:
            if known.header.end_offset >= log_min:
                break
            entries.append(known.entries)
        return entries

    def remove_first_file(self) -> int:
        """Remove the oldest file, durably; how many entries it held."""
        known = self._older[0]
        opened = self._reading.pop(known.name, None)
        if opened is not None:
            opened.close()
        with contextlib.suppress(FileNotFoundError):
            self._remove(known.name)
        self._disk.sync_directory(self._directory)
        self._new_names.add(self._directory)  # the totals change: a sync has to publish them
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
        """Reserve header and slots: any put may store to any slot."""
        self._reserve(opened, self._geometry.entry_offset(1))

    def _reserve(self, opened: _Open, end: int) -> None:
        """Reserve blocks up to end, in whole steps. Raises DiskFull with nothing stored."""
        if end <= opened.reserved_until:
            return
        start = opened.reserved_until
        entries_at = self._geometry.entry_offset(1)
        if end > entries_at:
            if start < entries_at:
                self._reserve_head(opened)
                # Of a file with entries, those before the next one have their blocks already.
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
        """Files stored to, and the directory if its names changed, since the last call."""
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
        """Unmap everything. What was touched is still remembered."""
        self._close_all()


def _offset_of(rows: bytes, number: int) -> int:
    """Physical offset of the record of a row."""
    offset: int = ROW.unpack_from(rows, number * ROW.size)[0]
    return offset


def _first_row_at(rows: bytes, first: int, offset: int) -> int:
    """Number of the first row, from first on, of a record at or above offset; all rows' count if
    there is none."""
    low, high = first, len(rows) // ROW.size
    while low < high:
        middle = (low + high) // 2
        if _offset_of(rows, middle) < offset:
            low = middle + 1
        else:
            high = middle
    return low
