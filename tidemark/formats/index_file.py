"""Index file: hash table from key hash to physical offsets (docs/formats.md, section 5). Pure.

Layout: header (40 bytes), S slots (i32), N entries (20 bytes). A slot holds the number of its
newest entry, an entry that of the previous one: every chain leads from new to old. Entry 0 is never
used. One process writes a file (step before: ``formats.scan`` extracts a record's keys). Others
read it concurrently through their own mappings (step after: a query reads the records at the
offsets found).

Invariants that hold between any two stores of the writer, and so after SIGKILL at any instruction:

- The header's entry count is stored last: entries at or above it do not exist yet, and ``heal`` can
  undo them.
- A slot, and the pair (slots in use, entry count), change by one aligned store each: a reader in
  another process sees the old or the new value. struct.pack_into would show zeros in between.
- A chain only leads to smaller numbers, so a lookup ends in a damaged file as well.

The file does not contain the numbers of slots and entries: both sides must be configured alike.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from tidemark.formats.index_chains import (
    BEGIN_OFFSET,
    BEGIN_TIMESTAMP,
    COUNTS,
    END_OFFSET,
    END_TIMESTAMP,
    ENTRY,
    ENTRY_SIZE,
    HEADER_SIZE,
    PUT_MANY_MAX,
    ROW,
    SLOT_SIZE,
    IndexFileTooShort,
    NoRow,
    as_signed_64,
    counts_of,
    counts_word,
    first_at,
    swap_32,
    swap_64,
)
from tidemark.formats.native import chains_are_sound, held_rows, look_up, put_rows

__all__ = [
    "ENTRY_SIZE",
    "HEADER_SIZE",
    "PUT_MANY_MAX",
    "ROW",
    "SLOT_SIZE",
    "Entry",
    "Geometry",
    "Header",
    "IndexFile",
    "IndexFileTooShort",
    "NoRow",
]

_HEADER: Final = struct.Struct(">qqqqii")
_NATIVE_HEADER: Final = struct.Struct("=5Q")
_EMPTY_ENTRY: Final = bytes(ENTRY_SIZE)


class Geometry(NamedTuple):
    """Number of slots and entries, on which both sides must agree."""

    slots: int
    """S: number of hash slots."""
    entries: int
    """N: capacity in entries; a file holds at most N − 1."""

    @property
    def size(self) -> int:
        """Size of a file in bytes."""
        return HEADER_SIZE + SLOT_SIZE * self.slots + ENTRY_SIZE * self.entries

    def slot_offset(self, slot: int) -> int:
        """Byte offset of a slot in the file."""
        return HEADER_SIZE + SLOT_SIZE * slot

    def entry_offset(self, number: int) -> int:
        """Byte offset of an entry in the file."""
        return HEADER_SIZE + SLOT_SIZE * self.slots + ENTRY_SIZE * number


class Header(NamedTuple):
    """The first 40 bytes. All 0 in a new file without a predecessor."""

    begin_timestamp_ms: int = 0
    """Store time of the first entry; before it exists, the end of the predecessor."""
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
    """Whole seconds since the header's begin at the time when the entry was put."""
    previous: int
    """Number of the chain's next older entry; 0 = none."""


class IndexFile:
    """One index file in memory. It borrows the view until ``close``.

    A read-only view is enough for everything but put_rows, start_after, heal and cut. Only the
    process that writes the file may call these.
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
        """Release the parts borrowed from the view, so that the file can be unmapped."""
        self._head.release()
        self._slots.release()

    @property
    def geometry(self) -> Geometry:
        """The geometry given to the constructor."""
        return self._geometry

    @property
    def header(self) -> Header:
        """The current header; a next_entry of 0 or less reads as 1 (section 5.1)."""
        header = Header._make(_HEADER.unpack(_NATIVE_HEADER.pack(*self._head.tolist())))
        return header if header.next_entry > 0 else header._replace(next_entry=1)

    @property
    def times_ms(self) -> tuple[int, int]:
        """The header's begin and end timestamp."""
        head = self._head
        return (
            as_signed_64(swap_64(head[BEGIN_TIMESTAMP])),
            as_signed_64(swap_64(head[END_TIMESTAMP])),
        )

    @property
    def entry_count(self) -> int:
        """Number of entries, at most N − 1 for any header."""
        return self._next_entry() - 1

    @property
    def is_full(self) -> bool:
        """Whether there is no space for another entry."""
        return self._next_entry() >= self._geometry.entries

    def entry(self, number: int) -> Entry:
        """Entry number, 1…N−1. Raises IndexError outside."""
        if not 1 <= number < self._geometry.entries:
            raise IndexError(f"entry {number} is not in 1…{self._geometry.entries - 1}")
        return Entry._make(ENTRY.unpack_from(self._view, self._entry_at(number)))

    # -- reading ---------------------------------------------------------------------------------

    def lookup(self, key_hash: int, *, begin_ms: int, end_ms: int, hits_max: int) -> list[int]:
        """Physical offsets of the key hash's entries with begin_ms ≤ time ≤ end_ms, newest first.

        See ``index_chains.look_up``.
        """
        slots, entries = self._geometry
        hits, _, _ = look_up(
            self._view, slots, entries, key_hash, begin_ms, end_ms, hits_max, 0, entries
        )
        return hits

    def look_up_some(
        self,
        key_hash: int,
        *,
        begin_ms: int,
        end_ms: int,
        hits_max: int,
        first: int,
        entries_max: int,
    ) -> tuple[list[int], int, int]:
        """Like ``lookup`` for a part of the chain; see ``index_chains.look_up``.

        first: returned by an earlier call, or 0. If the file was rebuilt since and this is no
        longer an entry of the key's slot, the search starts with the newest entry.
        """
        slots, entries = self._geometry
        if first and (
            not first <= self.entry_count
            or (self.entry(first).key_hash - key_hash) % self._geometry.slots
        ):
            first = 0
        return look_up(
            self._view,
            slots,
            entries,
            key_hash,
            begin_ms,
            end_ms,
            hits_max,
            first,
            entries_max,
        )

    @property
    def begin_offset(self) -> int:
        """Physical offset of the first indexed record, from the header."""
        return as_signed_64(swap_64(self._head[BEGIN_OFFSET]))

    def held_rows(self, rows: bytes | memoryview, first: int, end: int) -> int:
        """Number of the first row of [first, end) without an entry in the file; end if all have
        one. Raises NoRow."""
        slots, entries = self._geometry
        return held_rows(self._view, slots, entries, rows, first, end)

    def first_at(self, physical_offset: int) -> int:
        """Number of the first entry whose record starts at or above physical_offset; the entry
        count plus 1 if there is none."""
        slots, entries = self._geometry
        return first_at(self._view, slots, entries, physical_offset)

    def is_sound(self, first: int = 1) -> bool:
        """Whether every chain contains all entries of its slot from number first on, and the slot
        points to the newest."""
        slots, entries = self._geometry
        return chains_are_sound(self._view, slots, entries, first)

    def problem(self) -> str | None:
        """Describe an impossible header; None if it is plausible. Checks only the end entries."""
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
                    f"entries run from physical offset {first} to {last}, the header has "
                    f"{header.begin_offset} to {header.end_offset}"
                )
        return None

    # -- writing ---------------------------------------------------------------------------------

    def start_after(self, predecessor: Header | None) -> None:
        """Initialize the header of an empty file from the file before it (section 5.5).

        Begin and end become the predecessor's end, so the first entry's seconds count from there.
        None: the first of all files starts with zeros.
        """
        header = Header()
        if predecessor is not None:
            timestamp_ms = max(0, predecessor.end_timestamp_ms)
            offset = max(0, predecessor.end_offset)
            header = Header(timestamp_ms, timestamp_ms, offset, offset)
        self._store_header(header)

    def put_rows(self, rows: bytes | memoryview, first: int = 0) -> int:
        """Append rows (``ROW`` each, in the order of the log) from number first on (section 5.3).

        Returns how many were stored; fewer than all means that the file is full. The caller knows
        whether a record was indexed before. Raises NoRow.
        """
        slots, entries = self._geometry
        return put_rows(self._view, slots, entries, rows, first)

    def heal(self, predecessor: Header | None = None) -> int:
        """Undo what a kill during a put, a heal or a cut left behind; return the entries undone.

        Afterwards the bytes beyond the count are zero and the chains are as before. predecessor:
        header of the file before this one, used if this file has no entries. The header's end time
        may be that of an undone entry until the next put or ``cut``.
        """
        header = self.header
        count = self.entry_count
        end = min(count + 1 + PUT_MANY_MAX, self._geometry.entries)
        undone = self._undo(count + 1, end)
        if count == 0:
            self.start_after(predecessor)
        else:
            self._head[END_OFFSET] = swap_64(self.entry(count).physical_offset)
            self._head[COUNTS] = counts_word(header.slots_used, count + 1)
        return undone

    def cut(
        self,
        physical_offset: int,
        end_timestamp_ms_of: Callable[[int], int | None],
        predecessor: Header | None = None,
    ) -> int:
        """Remove the entries of records at or beyond physical_offset; return how many.

        The header becomes that of a file that never had them. end_timestamp_ms_of: maps the
        physical offset of the new last record to its store time; None keeps the end time.
        predecessor: as in ``heal``. Call ``heal`` first.
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
            # The count is stored first, in steps that heal can finish after a kill.
            slots_used = self.header.slots_used - self._chains_begun(keep + 1, count + 1)
            self._head[COUNTS] = counts_word(slots_used, keep + 1)
            self._undo(keep + 1, count + 1)
            removed += count - keep
            count = keep
        if count == 0:
            self.start_after(predecessor)
        else:
            last = self.entry(count).physical_offset
            self._head[END_OFFSET] = swap_64(last)
            timestamp_ms = end_timestamp_ms_of(last)
            if timestamp_ms is not None:
                self._head[END_TIMESTAMP] = swap_64(timestamp_ms)
        return removed

    # -- helpers ---------------------------------------------------------------------------------

    def _entry_at(self, number: int) -> int:
        return self._entries_at + ENTRY_SIZE * number

    def _next_entry(self) -> int:
        return min(counts_of(self._head[COUNTS])[1], self._geometry.entries)

    def _store_header(self, header: Header) -> None:
        words = _NATIVE_HEADER.unpack(_HEADER.pack(*header))
        for word in (BEGIN_TIMESTAMP, END_TIMESTAMP, BEGIN_OFFSET, END_OFFSET, COUNTS):
            self._head[word] = words[word]

    def _undo(self, start: int, end: int) -> int:
        """Take entries [start, end) out of their chains, newest first, and zero them.

        Returns how many there were.
        """
        undone = 0
        for number in range(end - 1, start - 1, -1):
            at = self._entry_at(number)
            stored = bytes(self._view[at : at + ENTRY_SIZE])
            key_hash, _, _, previous = ENTRY.unpack(stored)
            slot = key_hash % self._geometry.slots
            if swap_32(self._slots[slot]) == number:
                self._slots[slot] = swap_32(previous if 0 < previous < number else 0)
            elif stored == _EMPTY_ENTRY:
                # Checked after the slot, because an entry with hash 0 at offset 0 is all zeros too.
                # It is not written, because storing zeros into a hole would allocate blocks.
                continue
            self._view[at : at + ENTRY_SIZE] = _EMPTY_ENTRY
            undone += 1
        return undone

    def _chains_begun(self, start: int, end: int) -> int:
        """Number of entries in [start, end) that were the first of their slot."""
        entries = self._view[self._entry_at(start) : self._entry_at(end)]
        return sum(previous == 0 for _, _, _, previous in ENTRY.iter_unpack(entries))
