"""Hot functions of the index file: storing rows and looking up offsets (docs/formats.md, 5). Pure.

They work on the whole file as a memoryview, with the numbers of slots and entries that the caller
knows; ``index_file`` manages the rest of the file. ``speedups.index`` is the native implementation
with the same contract; ``native`` chooses. Invariants:

- ``put_rows`` stores entries, slots, the first and last values in the header, and its counts, in
  this order. Each slot and header word is one aligned store. ``IndexFile.heal`` undoes what a kill
  between two stores leaves.
- At most PUT_MANY_MAX rows are stored per update of the counts.
- For any content of the file, a lookup ends and reads nothing outside the file.
"""

from __future__ import annotations

import struct
import sys
from typing import Final

HEADER_SIZE: Final = 40
SLOT_SIZE: Final = 4
ENTRY_SIZE: Final = 20
SECONDS_MAX: Final = 0x7FFFFFFF
HASH_MAX: Final = 0x7FFFFFFF
PUT_MANY_MAX: Final = 4096
"""Rows stored per update of the counts; bounds what ``heal`` must check."""

ROW: Final = struct.Struct("=qqq")
"""One key of one record to be indexed: physical offset, store timestamp ms, key hash (0…2^31−1).
Rows are in the order of the log."""
ENTRY: Final = struct.Struct(">iqii")
"""Key hash, physical offset, seconds since the header's begin, previous entry of the chain."""

# Numbers of the header's five 8-byte words.
BEGIN_TIMESTAMP: Final = 0
END_TIMESTAMP: Final = 1
BEGIN_OFFSET: Final = 2
END_OFFSET: Final = 3
COUNTS: Final = 4

_BIG_32: Final = struct.Struct(">I")
_NATIVE_32: Final = struct.Struct("=I")
_BIG_64: Final = struct.Struct(">Q")
_NATIVE_64: Final = struct.Struct("=Q")
_IS_LITTLE: Final = sys.byteorder == "little"
_TIME_MIN: Final = -(1 << 63)
_TIME_MAX: Final = (1 << 63) - 1


class IndexFileTooShort(ValueError):
    """The view has fewer bytes than the geometry needs: wrong file or wrong geometry."""


class NoRow(ValueError):
    """Invalid rows: wrong size, a number out of range, a key hash outside 0…2^31−1."""


def put_rows(
    view: memoryview, slots: int, entries: int, rows: bytes | memoryview, first: int
) -> int:
    """Append rows (``ROW`` each, adjacent) from number first on; return how many were stored.

    view: the whole file, writable, 8-byte aligned. Fewer than all means that the file is full. The
    caller knows which keys the file already has. Raises IndexFileTooShort and NoRow with nothing
    stored.
    """
    _check_file(view, slots, entries)
    if view.readonly:
        raise BufferError("the index file is mapped for reading")
    row_count = _check_rows(rows, first)
    todo = list(ROW.iter_unpack(memoryview(rows)[first * ROW.size :]))
    if any(not 0 <= key_hash <= HASH_MAX for _, _, key_hash in todo):
        raise NoRow(f"a key hash is not in 0…{HASH_MAX}")
    done = 0
    while done < row_count - first:
        step = _put_step(view, slots, entries, todo[done : done + PUT_MANY_MAX])
        if not step:
            break
        done += step
    return done


def _put_step(
    view: memoryview, slot_count: int, entry_count: int, rows: list[tuple[int, ...]]
) -> int:
    """Store up to PUT_MANY_MAX rows with one update of the counts; return how many fit."""
    head = view[:HEADER_SIZE].cast("Q")
    slots = view[HEADER_SIZE : HEADER_SIZE + SLOT_SIZE * slot_count].cast("I")
    slots_used, first_number = counts_of(head[COUNTS])
    rows = rows[: max(0, entry_count - first_number)]
    if not rows:
        return 0
    begin_ms = as_signed_64(swap_64(head[BEGIN_TIMESTAMP]))
    newest: dict[int, int] = {}
    packed = bytearray(ENTRY_SIZE * len(rows))
    pack_into = ENTRY.pack_into
    at = 0
    number = first_number
    for offset, timestamp_ms, key_hash in rows:
        slot = key_hash % slot_count
        previous = newest.get(slot, 0)
        if not previous:
            previous = swap_32(slots[slot])
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
    start = HEADER_SIZE + SLOT_SIZE * slot_count + ENTRY_SIZE * first_number
    view[start : start + len(packed)] = packed
    for slot, value in newest.items():
        slots[slot] = swap_32(value)
    if first_number == 1:
        head[BEGIN_OFFSET] = swap_64(rows[0][0])
        head[BEGIN_TIMESTAMP] = swap_64(rows[0][1])
    head[END_OFFSET] = swap_64(rows[-1][0])
    head[END_TIMESTAMP] = swap_64(rows[-1][1])
    head[COUNTS] = counts_word(slots_used, number)
    return len(rows)


def look_up(
    view: memoryview,
    slots: int,
    entries: int,
    key_hash: int,
    begin_ms: int,
    end_ms: int,
    hits_max: int,
    first: int,
    entries_max: int,
) -> tuple[list[int], int, int]:
    """Physical offsets of the key hash's entries with begin_ms ≤ time ≤ end_ms, newest first.

    first: number of the chain's entry to start with; 0: its newest. Reads at most entries_max
    entries. Returns the offsets, the number to continue with (0 at the end of the chain), and the
    number of entries read. An entry of another chain is followed as if it belonged to this one, so
    the caller must pass a number that it got from this function.

    Exactly by section 5.6: an entry's time is the header's begin plus whole seconds, so an exact
    begin_ms may miss a record stored in that second. Other keys with the same hash are returned
    too, so the caller compares the records' real keys. Raises IndexFileTooShort; ValueError for a
    key hash outside 0…2^31−1.
    """
    _check_file(view, slots, entries)
    if not 0 <= key_hash <= HASH_MAX:
        raise ValueError(f"key hash {key_hash} is not in 0…{HASH_MAX}")
    begin_ms = max(_TIME_MIN, min(begin_ms, _TIME_MAX))
    end_ms = max(_TIME_MIN, min(end_ms, _TIME_MAX))
    entries_at = HEADER_SIZE + SLOT_SIZE * slots
    # The slot is read before the count. In the other order:
    # 1. we read count 10; 2. the writer puts entries 10 and 11, the slot becomes 11;
    # 3. we read slot 11, above our count: the slot counts as empty, and the key is not found.
    (number,) = _BIG_32.unpack_from(view, HEADER_SIZE + SLOT_SIZE * (key_hash % slots))
    head = view[:HEADER_SIZE].cast("Q")
    _, next_entry = counts_of(head[COUNTS])
    hits: list[int] = []
    if next_entry <= 1:
        return hits, 0, 0
    file_begin_ms = as_signed_64(swap_64(head[BEGIN_TIMESTAMP]))
    newest = min(next_entry, entries - 1)
    if first:
        number = first if 0 < first <= newest else 0
    else:
        number = _newest_visible(view, entries_at, entries, number, newest)
    seen = 0
    while number and len(hits) < hits_max and seen < entries_max:
        seen += 1
        stored_hash, offset, seconds, previous = ENTRY.unpack_from(
            view, entries_at + ENTRY_SIZE * number
        )
        if seconds < 0:
            return hits, 0, seen
        time_ms = file_begin_ms + seconds * 1000
        if stored_hash == key_hash and begin_ms <= time_ms <= end_ms:
            hits.append(offset)
        # This is stricter than the reference: entries point to older ones only. Anything else is
        # damage, and following it could loop forever.
        if not 0 < previous < number or time_ms < begin_ms:
            return hits, 0, seen
        number = previous
    return hits, number, seen


def held_rows(
    view: memoryview, slots: int, entries: int, rows: bytes | memoryview, first: int, end: int
) -> int:
    """Number of the first row of [first, end) without an entry in the file; end if all have one.

    It compares rows and entries, both in the order of the log, and does not follow chains, which
    can be as long as the file. ``chains_are_sound`` checks the chains. Raises IndexFileTooShort,
    NoRow.
    """
    _check_file(view, slots, entries)
    if not 0 <= first <= end <= _check_rows(rows, first):
        raise NoRow(f"rows {first} to {end} of {len(rows) // ROW.size}")
    entries_at = HEADER_SIZE + SLOT_SIZE * slots
    count = _visible_count(view, entries)

    def entry(number: int) -> tuple[int, int]:
        """Return (key hash, physical offset)."""
        stored_hash, offset, _, _ = ENTRY.unpack_from(view, entries_at + ENTRY_SIZE * number)
        return stored_hash, offset

    group = 0  # first entry of the row's record
    group_end = 0
    candidate = 0
    before: int | None = None
    for number in range(first, end):
        offset, _, key_hash = ROW.unpack_from(rows, number * ROW.size)
        if offset != before:
            if before is None or offset < before:
                group = first_at(view, slots, entries, offset)
            else:
                group = group_end
                while group <= count and entry(group)[1] < offset:
                    group += 1
            group_end = group
            while group_end <= count and entry(group_end)[1] == offset:
                group_end += 1
            candidate = group
            before = offset
        # A record's keys were put in this order, so the next entry is nearly always the right one.
        for at in (*range(candidate, group_end), *range(group, candidate)):
            if entry(at)[0] == key_hash:
                candidate = at + 1
                break
        else:
            return number
    return end


def first_at(view: memoryview, slots: int, entries: int, physical_offset: int) -> int:
    """Number of the first entry whose record starts at or above physical_offset; the entry count
    plus 1 if there is none."""
    entries_at = HEADER_SIZE + SLOT_SIZE * slots
    low, high = 1, _visible_count(view, entries) + 1
    while low < high:
        middle = (low + high) // 2
        if ENTRY.unpack_from(view, entries_at + ENTRY_SIZE * middle)[1] < physical_offset:
            low = middle + 1
        else:
            high = middle
    return low


def chains_are_sound(view: memoryview, slots: int, entries: int, first: int) -> bool:
    """Whether the chains contain every entry from number first (at least 1) on, and each slot
    points to its newest entry. Offsets must ascend; hashes and seconds must not be negative.

    An overwritten slot or entry hides keys, which no count would show. Raises IndexFileTooShort.
    """
    _check_file(view, slots, entries)
    entries_at = HEADER_SIZE + SLOT_SIZE * slots
    first = max(first, 1)
    count = _visible_count(view, entries)
    newest: dict[int, int] = {}
    before: int | None = None
    for number in range(first, count + 1):
        key_hash, offset, seconds, previous = ENTRY.unpack_from(
            view, entries_at + ENTRY_SIZE * number
        )
        if key_hash < 0 or seconds < 0 or offset < (0 if before is None else before):
            return False
        slot = key_hash % slots
        expected = newest.get(slot)
        if (not 0 <= previous < first) if expected is None else previous != expected:
            return False
        newest[slot] = number
        before = offset
    slot_table = view[HEADER_SIZE:entries_at].cast("I")
    return all(
        _newest_visible(view, entries_at, entries, swap_32(slot_table[slot]), count) == number
        for slot, number in newest.items()
    )


# -- helpers, also for ``index_file`` ----------------------------------------------------------


def _check_file(view: memoryview, slots: int, entries: int) -> None:
    if (
        slots < 1
        or entries < 0
        or len(view) < HEADER_SIZE + SLOT_SIZE * slots + ENTRY_SIZE * entries
    ):
        raise IndexFileTooShort(f"{len(view)} bytes for {slots} slots and {entries} entries")


def _check_rows(rows: bytes | memoryview, first: int) -> int:
    """Return the number of rows. Raises NoRow."""
    count, rest = divmod(len(rows), ROW.size)
    if rest or not 0 <= first <= count:
        raise NoRow(f"row {first} of {len(rows)} bytes of rows")
    return count


def _visible_count(view: memoryview, entries: int) -> int:
    (word,) = _NATIVE_64.unpack_from(view, 8 * COUNTS)
    return max(min(counts_of(word)[1], entries), 1) - 1


def _newest_visible(
    view: memoryview, entries_at: int, entries: int, number: int, newest: int
) -> int:
    """Follow a chain from number down to the first entry ≤ newest; 0 if there is none.

    Entries above newest occur because ``put_rows`` stores slots before the count that makes their
    entries visible.
    """
    if number >= entries:
        return 0
    while number > newest:
        _, _, _, previous = ENTRY.unpack_from(view, entries_at + ENTRY_SIZE * number)
        number = previous if 0 < previous < number else 0
    return number


def _seconds(timestamp_ms: int, begin_ms: int) -> int:
    """An entry's time field: 0 while begin is not known, never negative (section 5.3)."""
    if begin_ms <= 0 or timestamp_ms <= begin_ms:
        return 0
    return min((timestamp_ms - begin_ms) // 1000, SECONDS_MAX)


def counts_word(slots_used: int, next_entry: int) -> int:
    """The header's last word: both counts in one store, so that they change together."""
    return swap_64((slots_used & 0xFFFFFFFF) << 32 | next_entry)


def counts_of(word: int) -> tuple[int, int]:
    """(slots in use, next entry) of the header's last word; a next entry of 0 or less is 1."""
    value = swap_64(word)
    slots_used, next_entry = value >> 32, value & 0xFFFFFFFF
    if next_entry & 0x80000000 or not next_entry:
        next_entry = 1
    return slots_used, next_entry


def as_signed_64(value: int) -> int:
    """Interpret the bits as i64."""
    return value - (1 << 64) if value & (1 << 63) else value


def swap_32(value: int) -> int:
    """Convert between a native load and its big-endian value (its own inverse)."""
    if not _IS_LITTLE:
        return value
    swapped: int = _BIG_32.unpack(_NATIVE_32.pack(value))[0]
    return swapped


def swap_64(value: int) -> int:
    """The same for 8 bytes; the bits of a negative value are kept."""
    value &= 0xFFFFFFFFFFFFFFFF
    if not _IS_LITTLE:
        return value
    swapped: int = _BIG_64.unpack(_NATIVE_64.pack(value))[0]
    return swapped
