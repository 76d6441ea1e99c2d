"""Detects records that were not written completely: sectors that a crash left as zeros. Pure.

A record's body CRC does not cover its other fields, and a record CRC property that never reached
the disk cannot be checked. Example: 1. a record spans two pages, with its properties in the second;
2. the machine loses power before any sync, with only the first page on the disk; 3. size, magic,
position and body are correct, but the properties are zeros, and the record CRC seems absent.

A new log file is zeros, so unwritten bytes are a run of zeros from one sector border to the next,
or to the record's end. In the fields examined here, no whole piece of a record between two borders
is ever zeros (docs/formats.md, section 2.1). ``log_walk`` uses this where nothing proves that a
record was on disk.
"""

from __future__ import annotations

from typing import Final

from tidemark.formats import properties
from tidemark.formats.record_layout import (
    CRC_PROPERTY_SIZE,
    HEAD,
    INT,
    MAGIC_V1,
    PREFIXES,
    SYS_FLAG_AT,
)

SECTOR_SIZE: Final = 512
"""Unit that a disk writes completely or not at all."""
_OFTEN_ZERO_SIZE: Final = 16
"""Size of the last fields before the body: reconsume times, prepared offset, body length."""
_HEAD_PIECE_MIN: Final = 20
"""A shorter piece of the head may validly be zeros; 20 bytes always include the store time."""


def unwritten_at(view: memoryview, start: int, at: int) -> int | None:
    """Return the physical offset of a record's first unwritten piece; None if it is complete.

    view[start]: first byte of a valid record (every length in it is correct), at physical offset
    at. A record whose record CRC was verified is known to be complete and is not examined.
    """
    size, magic = HEAD.unpack_from(view, start)
    slot_at = start + size - CRC_PROPERTY_SIZE
    if bytes(view[slot_at : slot_at + len(properties.CRC_SLOT_NAME)]) == properties.CRC_SLOT_NAME:
        return None
    (sys_flag,) = INT.unpack_from(view, start + SYS_FLAG_AT)
    body_at: int = PREFIXES[sys_flag >> 4 & 3].size
    (body_size,) = INT.unpack_from(view, start + body_at - INT.size)
    topic_at = body_at + body_size + 1
    topic_size = view[start + topic_at - 1]
    if magic != MAGIC_V1:
        topic_size = topic_size << 8 | view[start + topic_at]
        topic_at += 1
    # A record without properties ends in their length, which is two valid bytes of zeros.
    tail_end = size if topic_at + topic_size + 2 < size else topic_at + topic_size
    for low, high, least in (
        (0, body_at - _OFTEN_ZERO_SIZE, _HEAD_PIECE_MIN),
        (topic_at, tail_end, 1),
    ):
        piece = low
        while piece < high:
            border = min(high, piece + SECTOR_SIZE - (at + piece) % SECTOR_SIZE)
            if border - piece >= least and not any(view[start + piece : start + border]):
                return at + piece
            piece = border
    return None
