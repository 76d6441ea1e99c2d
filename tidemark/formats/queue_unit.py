"""Consume queue unit: 20 or 46 bytes that point to one record (docs/formats.md, section 4). Pure.

A consume queue is an array of units of 20 bytes; the index of a unit is the message's queue offset
and is not stored in the unit. A batch queue is an array of units of 46 bytes; each points to an
inner batch and stores the queue offset of the batch's first message. The first 20 bytes of both are
the same. An all-zero unit is space that is not written yet. ``speedups.units`` is the native
implementation of ``leading_units``; ``native`` chooses.
Step before: ``formats.scan`` finds the record. Step after: a pull reads the unit, then the record.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from tidemark.offsets import BATCH_UNIT_SIZE, UNIT_SIZE

UNIT: Final = struct.Struct(">qiq")
"""Physical offset of the record, its size in bytes, tags code (section 4.1)."""

BATCH_UNIT: Final = struct.Struct(">qiqqqhii")
"""The same, then store time, queue offset of the first message, number of messages, compacted
offset, zero (4.12)."""

NOT_COMPACTED: Final = -1
"""The compacted offset of every unit: Tidemark does not compact."""

_BASE: Final = struct.Struct(">qh")
_BASE_AT: Final = 28

PRE_BLANK_SIZE: Final = 0x7FFFFFFF
"""The size that marks a unit before a queue's first message (section 4.4)."""

PRE_BLANK: Final = UNIT.pack(0, PRE_BLANK_SIZE, 0)
"""Fills the space before the first unit of a queue that does not start at a file's start."""

EXTENSION_ADDRESS_MAX: Final = -(1 << 31) - 1
"""A tags code up to this value is an address in RocketMQ's consumequeue_ext (section 4)."""

assert UNIT.size == UNIT_SIZE
assert BATCH_UNIT.size == BATCH_UNIT_SIZE


class Unit(NamedTuple):
    """Location of one message of a queue in the commit log."""

    physical_offset: int
    """First byte of the record."""
    size: int
    """Size of the whole record in bytes, not of its body."""
    tags_code: int
    """Hash of the tags, or the due time under the delay topic (section 3)."""

    @property
    def end(self) -> int:
        """Physical offset after the record; meaningless for a pre-blank unit."""
        return self.physical_offset + self.size


def encode(unit: Unit) -> bytes:
    """Encode to 20 bytes. Raises struct.error for numbers out of range (a bug)."""
    return UNIT.pack(*unit)


def decode(view: memoryview | bytes | bytearray, start: int = 0) -> Unit:
    """Decode the unit at view[start:start + 20]. Any 20 bytes decode; see ``is_valid``.

    Raises ValueError if the view is too short.
    """
    if start < 0 or start + UNIT_SIZE > len(view):
        raise ValueError(f"a unit needs {UNIT_SIZE} bytes at {start}, the view has {len(view)}")
    return Unit._make(UNIT.unpack_from(view, start))


def is_valid(unit: Unit) -> bool:
    """Whether it was written: offset ≥ 0 and size > 0 (section 4.6). True for pre-blank units."""
    return unit.physical_offset >= 0 and unit.size > 0


def encode_batch(unit: Unit, store_timestamp_ms: int, base: int, message_count: int) -> bytes:
    """Encode a unit of a batch queue: 46 bytes. Raises struct.error for numbers out of range."""
    return BATCH_UNIT.pack(*unit, store_timestamp_ms, base, message_count, NOT_COMPACTED, 0)


def batch_range(view: memoryview | bytes | bytearray, start: int = 0) -> tuple[int, int]:
    """Return the queue offsets [first, after last) of the batch whose unit is at view[start]."""
    base, message_count = _BASE.unpack_from(view, start + _BASE_AT)
    return base, base + message_count


def leading_units(
    view: bytes | bytearray | memoryview, *, end: int, end_max: int, unit_size: int = UNIT_SIZE
) -> tuple[int, int]:
    """Count the units at the start of view that are complete and in order.

    view: units of one file; a last part shorter than a unit is ignored. unit_size: UNIT_SIZE, or
    BATCH_UNIT_SIZE for a batch queue. end: physical end of the
    record of the unit before, ≥ 0; 0 if there is none. end_max: records must end at or below,
    0 … 2**63 − 1. A unit counts if it was written and its record starts at or after the end of the
    previous one; fillers count only before all others (section 4.4).
    Returns (units, end of the last one's record; ``end`` if no unit points to a record).
    """
    count = 0
    for at in range(0, len(view) // unit_size * unit_size, unit_size):
        offset, size, _ = UNIT.unpack_from(view, at)
        if size <= 0 or offset < end:
            break
        if offset or size != PRE_BLANK_SIZE:
            if offset + size > end_max:
                break
            end = offset + size
        elif end:
            break
        count += 1
    return count, end


def is_pre_blank(unit: Unit) -> bool:
    """Whether it is a filler before a queue's first message, which points to no record."""
    return unit.physical_offset == 0 and unit.size == PRE_BLANK_SIZE and unit.tags_code == 0


def pre_blank_run(count: int) -> bytes:
    """Encode count adjacent pre-blank units."""
    return PRE_BLANK * count
