"""Index rows for tests, and section 5.3 of docs/formats.md written out once more, row by row."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from mmap import mmap

from tidemark.formats.index_file import ROW, Geometry

Row = tuple[int, int, int]
"""(key hash, physical offset, store timestamp ms)."""

_HEADER = struct.Struct(">qqqqii")
_ENTRY = struct.Struct(">iqii")
_SLOT = struct.Struct(">i")


def packed(rows: Iterable[Row]) -> bytes:
    """The rows as ``put_rows`` takes them."""
    return b"".join(ROW.pack(offset, at_ms, key_hash) for key_hash, offset, at_ms in rows)


def put_plainly(data: bytearray | memoryview | mmap, geometry: Geometry, row: Row) -> bool:
    """Put one row as the specification describes it; False: the file is full and unchanged."""
    key_hash, offset, at_ms = row
    begin_ms, _, begin_offset, _, slots_used, number = _HEADER.unpack_from(data)
    number = max(number, 1)
    if number >= geometry.entries:
        return False
    slot_at = geometry.slot_offset(key_hash % geometry.slots)
    (previous,) = _SLOT.unpack_from(data, slot_at)
    if not 0 < previous < number:
        previous = 0
        slots_used = slots_used + 1 if slots_used < 2**31 - 1 else -(2**31)
    gap_s = (at_ms - begin_ms) // 1000 if 0 < begin_ms < at_ms else 0
    entry = _ENTRY.pack(key_hash, offset, min(gap_s, 2**31 - 1), previous)
    entry_at = geometry.entry_offset(number)
    data[entry_at : entry_at + len(entry)] = entry
    data[slot_at : slot_at + 4] = _SLOT.pack(number)
    if number == 1:
        begin_ms, begin_offset = at_ms, offset
    data[:40] = _HEADER.pack(begin_ms, at_ms, begin_offset, offset, slots_used, number + 1)
    return True
