"""Index file: hash table from key hash to physical offsets (docs/formats.md, section 5). Pure.

Header (40 bytes), S slots (i32), N entries (20 bytes). A slot holds the number of its newest entry,
an entry that of the one before it: every chain runs from new to old. Entry 0 is never used.
One process writes a file (step before: ``formats.scan`` names a record's keys), others read it
through their own mappings meanwhile (step after: a query reads the records at the offsets found).

Invariants that hold between any two stores of the writer, so after SIGKILL at any instruction:

- The header's entry count is stored last: what lies at or above it is not there yet, and ``heal``
  can undo it.
- A slot, and the pair (slots in use, entry count), change by one aligned store each: a reader in
  another process sees the old value or the new one. struct.pack_into would show zeros in between.
- A chain only ever runs to smaller numbers, so a walk ends in a damaged file as well.

Numbers of slots and entries are not recorded in the file: both sides must configure the same.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

HEADER_SIZE: Final = 40
SLOT_SIZE: Final = 4
ENTRY_SIZE: Final = 20
SECONDS_MAX: Final = 0x7FFFFFFF
PUT_MANY_MAX: Final = 4096
"""Rows stored under one header store; bounds what ``heal`` must look through."""

_HEADER: Final = struct.Struct(">qqqqii")
_ENTRY: Final = struct.Struct(">iqii")
_NATIVE_HEADER: Final = struct.Struct("=5Q")
_BIG_32: Final = struct.Struct(">I")
_NATIVE_32: Final = struct.Struct("=I")
_BIG_64: Final = struct.Struct(">Q")
_NATIVE_64: Final = struct.Struct("=Q")
_EMPTY_ENTRY: Final = bytes(ENTRY_SIZE)
ROW: Final = struct.Struct("=qqq")
"""What is to be put, packed: physical offset, store timestamp [ms], key hash; native order."""
_IS_LITTLE: Final = sys.byteorder == "little"

# Numbers of the header's five 8-byte words.
_BEGIN_TIMESTAMP: Final = 0
_END_TIMESTAMP: Final = 1
_BEGIN_OFFSET: Final = 2
_END_OFFSET: Final = 3
_COUNTS: Final = 4


class IndexFileTooShort(ValueError):
    """The view has fewer bytes than the geometry needs: not this file, or not this geometry."""


class Geometry(NamedTuple):
    """What both sides must agree on."""

    slots: int
    """S: number of hash slots."""
    entries: int
    """N: room for entries; a file holds at most N − 1."""

    @property
    def size(self) -> int:
        """Bytes of a file."""
        return HEADER_SIZE + SLOT_SIZE * self.slots + ENTRY_SIZE * self.entries

    def slot_offset(self, slot: int) -> int:
        """Byte offset of a slot in the file."""
        return HEADER_SIZE + SLOT_SIZE * slot

    def entry_offset(self, number: int) -> int:
        """Byte offset of an entry in the file."""
        return HEADER_SIZE + SLOT_SIZE * self.slots + ENTRY_SIZE * number


class Header(NamedTuple):
    """The first 40 bytes. All 0 in a new file that has no predecessor."""

    begin_timestamp_ms: int = 0
    """Store time of the first entry; before it, the predecessor's end."""
    end_timestamp_ms: int = 0
    begin_offset: int = 0
    """Physical offset of the first entry's record."""
    end_offset: int = 0
    """Physical offset of the last entry's record (its first byte)."""
    slots_used: int = 0
    next_entry: int = 1
    """Number of the next entry: entries written + 1."""


class Entry(NamedTuple):
    """One key of one record."""

    key_hash: int
    physical_offset: int
    seconds: int
    """Whole seconds from the header's begin, as it stood when the entry was put."""
    previous: int
    """Number of the chain's next older entry; 0 = none."""


class IndexFile:
    """One index file in memory. Borrows the view; ``close`` gives it back.

    A read-only view does for everything but put, start_after, heal and cut, of which only the one
    process that writes the file may call any.
    """

    __slots__ = ("_entries_at", "_geometry", "_head", "_slots", "_view")

    def __init__(self, view: memoryview, geometry: Geometry) -> None:
        """view: the whole file, format "B", 8-byte aligned. Raises IndexFileTooShort."""
        if len(view) < geometry.size:
            raise IndexFileTooShort(
                f"{len(view)} bytes, but {geometry.slots} slots and {geometry.entries} entries "
                f"need {geometry.size}"
            )
        self._geometry = geometry
        self._view = view
        self._head = view[:HEADER_SIZE].cast("Q")
        self._slots = view[HEADER_SIZE : geometry.slot_offset(geometry.slots)].cast("I")
        self._entries_at = geometry.entry_offset(0)

    def close(self) -> None:
        """Release what was borrowed from the view; the file can then be unmapped."""
        self._head.release()
        self._slots.release()

    @property
    def geometry(self) -> Geometry:
        """As given."""
        return self._geometry

    @property
    def header(self) -> Header:
        """The header now; a next_entry of 0 or less reads as 1 (section 5.1)."""
        header = Header._make(_HEADER.unpack(_NATIVE_HEADER.pack(*self._head.tolist())))
        return header if header.next_entry > 0 else header._replace(next_entry=1)

    @property
    def entry_count(self) -> int:
        """Entries in the file, at most N − 1 whatever the header says."""
        return self._next_entry() - 1

    @property
    def is_full(self) -> bool:
        """No room for another entry."""
        return self._next_entry() >= self._geometry.entries

    def entry(self, number: int) -> Entry:
        """Entry number, 1…N−1. Raises IndexError outside."""
        if not 1 <= number < self._geometry.entries:
            raise IndexError(f"entry {number} is not in 1…{self._geometry.entries - 1}")
        return Entry._make(_ENTRY.unpack_from(self._view, self._entry_at(number)))

    # -- reading ---------------------------------------------------------------------------------

    def lookup(self, key_hash: int, *, begin_ms: int, end_ms: int, hits_max: int) -> list[int]:
        """Physical offsets of the key hash's entries with begin_ms ≤ time ≤ end_ms, newest first.

        By section 5.6 to the letter: an entry's time is the header's begin plus whole seconds, so
        an exact begin_ms may miss a record stored in that second; and other keys with the same hash
        are returned too: the caller compares the records' real keys.
        """
        # The slot before the count. The other way round:
        # 1. we read count 10; 2. the writer puts entries 10 and 11, the slot becomes 11;
        # 3. we read slot 11, beyond the count we hold: "empty", and the key is not found.
        number = _swap_32(self._slots[key_hash % self._geometry.slots])
        header = self.header
        newest = min(header.next_entry, self._geometry.entries - 1)
        if header.next_entry <= 1:
            return []
        number = self._newest_visible(number, newest)
        hits: list[int] = []
        while number and len(hits) < hits_max:
            stored_hash, offset, seconds, previous = _ENTRY.unpack_from(
                self._view, self._entry_at(number)
            )
            if seconds < 0:
                break
            time_ms = header.begin_timestamp_ms + seconds * 1000
            if stored_hash == key_hash and begin_ms <= time_ms <= end_ms:
                hits.append(offset)
            # Not only "invalid or itself": entries point to older ones, whatever else is damage,
            # and following it could go round for ever.
            if not 0 < previous < number or time_ms < begin_ms:
                break
            number = previous
        return hits

    def contains(self, key_hash: int, physical_offset: int) -> bool:
        """The file has an entry of this hash for the record at physical_offset."""
        number = _swap_32(self._slots[key_hash % self._geometry.slots])
        number = self._newest_visible(number, self._next_entry() - 1)
        while number:
            stored_hash, offset, _, previous = _ENTRY.unpack_from(
                self._view, self._entry_at(number)
            )
            if stored_hash == key_hash and offset == physical_offset:
                return True
            # Records are indexed in the log's order: behind a smaller offset are only smaller ones.
            if offset < physical_offset or not 0 < previous < number:
                return False
            number = previous
        return False

    def problem(self) -> str | None:
        """What in the header cannot be true; None if nothing. Looks at no entry but the ends."""
        header = Header._make(_HEADER.unpack(_NATIVE_HEADER.pack(*self._head.tolist())))
        if not 0 <= header.next_entry <= self._geometry.entries:
            return f"next entry {header.next_entry} is not in 0…{self._geometry.entries}"
        count = max(0, header.next_entry - 1)
        if not 0 <= header.slots_used <= min(count, self._geometry.slots):
            return f"{header.slots_used} slots in use by {count} entries"
        if min(header[:4]) < 0 or header.end_offset < header.begin_offset:
            return f"offsets {header.begin_offset}…{header.end_offset}"
        if count:
            first, last = self.entry(1).physical_offset, self.entry(count).physical_offset
            if (first, last) != (header.begin_offset, header.end_offset):
                return (
                    f"entries run from physical offset {first} to {last}, the header says "
                    f"{header.begin_offset} to {header.end_offset}"
                )
        return None

    # -- writing ---------------------------------------------------------------------------------

    def start_after(self, predecessor: Header | None) -> None:
        """Preset the header of a file without entries from the file before it (section 5.5).

        Begin and end become the predecessor's end, so the first entry's seconds count from there.
        None: the first of all files starts from zeros.
        """
        header = Header()
        if predecessor is not None:
            timestamp_ms = max(0, predecessor.end_timestamp_ms)
            offset = max(0, predecessor.end_offset)
            header = Header(timestamp_ms, timestamp_ms, offset, offset)
        self._store_header(header)

    def put(self, key_hash: int, physical_offset: int, store_timestamp_ms: int) -> bool:
        """Append one entry (section 5.3). False: the file is full and unchanged.

        key_hash: 0…2^31−1. Entries come in the order of the log. Whether the record was indexed
        before is for the caller to know.
        """
        header = self.header
        number = header.next_entry
        if number >= self._geometry.entries:
            return False
        slot = key_hash % self._geometry.slots
        previous = _swap_32(self._slots[slot])
        if not 0 < previous < number:
            previous = 0
        at = self._entry_at(number)
        self._view[at : at + ENTRY_SIZE] = _ENTRY.pack(
            key_hash,
            physical_offset,
            _seconds(store_timestamp_ms, header.begin_timestamp_ms),
            previous,
        )
        self._slots[slot] = _swap_32(number)
        self._publish(
            header,
            first=(physical_offset, store_timestamp_ms),
            last=(physical_offset, store_timestamp_ms),
            slots_used=header.slots_used + (previous == 0),
            next_entry=number + 1,
        )
        return True

    def put_many(self, rows: Sequence[tuple[int, int, int]]) -> int:
        """Append (key hash, physical offset, store time ms) rows; return how many went in.

        The bytes are those of one ``put`` after another; fewer than all: the file is full.
        """
        done = 0
        while done < len(rows):
            step = self._put_step(rows[done : done + PUT_MANY_MAX])
            if not step:
                break
            done += step
        return done

    def heal(self, predecessor: Header | None = None) -> int:
        """Undo what a kill inside a put, a heal or a cut left behind; return the entries undone.

        Bytes beyond the count are gone afterwards and the chains are as before. predecessor: header
        of the file before this one; needed if this file turns out to have no entries. The header's
        end time may be that of an undone entry until the next put or ``cut``.
        """
        header = self.header
        count = self.entry_count
        end = min(count + 1 + PUT_MANY_MAX, self._geometry.entries)
        undone = self._undo(count + 1, end)
        if count == 0:
            self.start_after(predecessor)
        else:
            self._head[_END_OFFSET] = _swap_64(self.entry(count).physical_offset)
            self._head[_COUNTS] = _counts(header.slots_used, count + 1)
        return undone

    def cut(
        self,
        physical_offset: int,
        end_timestamp_ms_of: Callable[[int], int | None],
        predecessor: Header | None = None,
    ) -> int:
        """Remove the entries of records at or beyond physical_offset; return how many.

        The header becomes that of a file that never had them. end_timestamp_ms_of: physical offset
        of the record that is now the last to its store time; None keeps the end time as it is.
        predecessor: as in ``heal``. Call ``heal`` before.
        """
        removed = 0
        count = self.entry_count
        while count:
            keep = count
            floor = max(0, count - PUT_MANY_MAX)
            while keep > floor and self.entry(keep).physical_offset >= physical_offset:
                keep -= 1
            if keep == count:
                break
            # The count first, in steps that heal can finish: a kill leaves entries beyond it.
            slots_used = self.header.slots_used - self._chains_begun(keep + 1, count + 1)
            self._head[_COUNTS] = _counts(slots_used, keep + 1)
            self._undo(keep + 1, count + 1)
            removed += count - keep
            count = keep
        if count == 0:
            self.start_after(predecessor)
        else:
            last = self.entry(count).physical_offset
            self._head[_END_OFFSET] = _swap_64(last)
            timestamp_ms = end_timestamp_ms_of(last)
            if timestamp_ms is not None:
                self._head[_END_TIMESTAMP] = _swap_64(timestamp_ms)
        return removed

    # -- inside ----------------------------------------------------------------------------------

    def _entry_at(self, number: int) -> int:
        return self._entries_at + ENTRY_SIZE * number

    def _next_entry(self) -> int:
        number = _as_signed(_swap_64(self._head[_COUNTS]) & 0xFFFFFFFF)
        return min(max(number, 1), self._geometry.entries)

    def _newest_visible(self, number: int, newest: int) -> int:
        """Follow a chain from number down to the first entry ≤ newest; 0 if there is none.

        The writer of many rows stores slots before the count that makes them visible.
        """
        if number >= self._geometry.entries:
            return 0
        while number > newest:
            (previous,) = struct.unpack_from(">i", self._view, self._entry_at(number) + 16)
            number = previous if 0 < previous < number else 0
        return number

    def _put_step(self, rows: Sequence[tuple[int, int, int]]) -> int:
        """Put up to PUT_MANY_MAX rows under one store of the count; return how many fit."""
        header = self.header
        first_number = header.next_entry
        rows = rows[: max(0, self._geometry.entries - first_number)]
        if not rows:
            return 0
        slots, slot_count = self._slots, self._geometry.slots
        begin_ms = header.begin_timestamp_ms
        slots_used = header.slots_used
        newest: dict[int, int] = {}
        packed = bytearray(ENTRY_SIZE * len(rows))
        pack_into = _ENTRY.pack_into
        at = 0
        number = first_number
        for key_hash, offset, timestamp_ms in rows:
            slot = key_hash % slot_count
            previous = newest.get(slot, 0)
            if not previous:
                previous = _swap_32(slots[slot])
                if not 0 < previous < first_number:
                    previous = 0
                    slots_used += 1
            seconds = _seconds(timestamp_ms, begin_ms)
            pack_into(packed, at, key_hash, offset, seconds, previous)
            newest[slot] = number
            if number == 1:
                begin_ms = timestamp_ms
            number += 1
            at += ENTRY_SIZE
        start = self._entry_at(first_number)
        self._view[start : start + len(packed)] = packed
        for slot, value in newest.items():
            slots[slot] = _swap_32(value)
        self._publish(
            header,
            first=rows[0][1:],
            last=rows[-1][1:],
            slots_used=slots_used,
            next_entry=number,
        )
        return len(rows)

    def _publish(
        self,
        header: Header,
        *,
        first: tuple[int, int],
        last: tuple[int, int],
        slots_used: int,
        next_entry: int,
    ) -> None:
        """Store the header fields after a put, the counts last. first, last: (offset, time)."""
        head = self._head
        if header.next_entry <= 1:
            head[_BEGIN_OFFSET] = _swap_64(first[0])
            head[_BEGIN_TIMESTAMP] = _swap_64(first[1])
        head[_END_OFFSET] = _swap_64(last[0])
        head[_END_TIMESTAMP] = _swap_64(last[1])
        head[_COUNTS] = _counts(slots_used, next_entry)

    def _store_header(self, header: Header) -> None:
        words = _NATIVE_HEADER.unpack(_HEADER.pack(*header))
        for word in (_BEGIN_TIMESTAMP, _END_TIMESTAMP, _BEGIN_OFFSET, _END_OFFSET, _COUNTS):
            self._head[word] = words[word]

    def _undo(self, start: int, end: int) -> int:
        """Take entries [start, end) out of their chains, newest first, and zero them.

        Returns how many there were.
        """
        undone = 0
        for number in range(end - 1, start - 1, -1):
            at = self._entry_at(number)
            stored = bytes(self._view[at : at + ENTRY_SIZE])
            key_hash, _, _, previous = _ENTRY.unpack(stored)
            slot = key_hash % self._geometry.slots
            if _swap_32(self._slots[slot]) == number:
                self._slots[slot] = _swap_32(previous if 0 < previous < number else 0)
            elif stored == _EMPTY_ENTRY:
                # Asked after the slot: an entry of hash 0 for the record at 0 is all zeros too.
                # Not written to: zeros stored into a hole would take blocks.
                continue
            self._view[at : at + ENTRY_SIZE] = _EMPTY_ENTRY
            undone += 1
        return undone

    def _chains_begun(self, start: int, end: int) -> int:
        """How many of the entries [start, end) were the first of their slot."""
        return sum(self.entry(number).previous == 0 for number in range(start, end))


def _seconds(timestamp_ms: int, begin_ms: int) -> int:
    """An entry's time field: 0 while begin is not known, never negative (section 5.3)."""
    if begin_ms <= 0 or timestamp_ms <= begin_ms:
        return 0
    return min((timestamp_ms - begin_ms) // 1000, SECONDS_MAX)


def _counts(slots_used: int, next_entry: int) -> int:
    """The header's last word: both counts as one store, so that neither is counted twice."""
    return _swap_64((slots_used & 0xFFFFFFFF) << 32 | next_entry)


def _as_signed(value: int) -> int:
    return value - (1 << 32) if value & 0x80000000 else value


def _swap_32(value: int) -> int:
    """Big-endian value of a native load, and back (its own inverse)."""
    if not _IS_LITTLE:
        return value
    swapped: int = _BIG_32.unpack(_NATIVE_32.pack(value))[0]
    return swapped


def _swap_64(value: int) -> int:
    """The same for 8 bytes; a negative value, which only damage brings, keeps its bits."""
    value &= 0xFFFFFFFFFFFFFFFF
    if not _IS_LITTLE:
        return value
    swapped: int = _BIG_64.unpack(_NATIVE_64.pack(value))[0]
    return swapped
