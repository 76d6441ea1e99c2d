"""Validates the bytes at one place of the log as a record (docs/formats.md, 2.14). Pure.

It checks the lengths against each other, the position, the body's CRC, and the record CRC property
if there is one. Any bytes give a named outcome. ``scan`` has the same rules for many records in a
row; ``record`` has encoding and decoding, and exports these names too.
"""

from __future__ import annotations

import operator
import zlib
from enum import Enum, auto
from typing import Final, NamedTuple

from tidemark.formats import properties
from tidemark.formats.record_layout import (
    BLANK_SIZE,
    BODY_CRC_AT,
    CRC_PROPERTY_SIZE,
    HEAD,
    INT,
    LONG,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET_AT,
    PREFIXES,
    RECORD_SIZE_MIN,
    SYS_FLAG_AT,
    Buffer,
)

_SLOT_DATA_AT: Final = len(properties.CRC_SLOT_NAME)


class Kind(Enum):
    """What was found at a place of the log."""

    VALID = auto()
    BLANK = auto()
    """The end of this file's records: continue in the next file; bytes after it are undefined."""
    BAD = auto()
    """Not a record, or a damaged one."""
    INCONSISTENT = auto()
    """The head of a record whose lengths contradict its size."""
    INCOMPLETE = auto()
    """A valid start of a record that continues past the view: wait for more, or a torn write."""


class Outcome(NamedTuple):
    """Result of ``validate``."""

    kind: Kind
    size: int
    """Size of the record or filler; 0 if unknown."""
    reason: str = ""
    """Why it is not VALID, as text."""


class Checks(NamedTuple):
    """What ``validate`` and ``walk`` verify besides the lengths."""

    body_crc: bool = True
    record_crc: bool = True
    """Verify the record CRC property if there is one."""
    position: bool = True
    """Verify that the stored physical offset is the record's position."""
    require_record_crc: bool = False
    """A record without a record CRC property is BAD. For records that Tidemark wrote with it."""


SHAPE_ONLY: Final = Checks(body_crc=False, record_crc=False, position=False)


def validate(view: Buffer, start: int, *, at: int | None, checks: Checks) -> Outcome:
    """Validate the bytes at view[start]; never raises, for any bytes.

    view: from some record's start to the end of what may be read. at: physical offset of
    view[start]; None if unknown, the position is then not compared.
    """
    room = len(view) - start
    if start < 0 or room < BLANK_SIZE:
        return Outcome(Kind.INCOMPLETE, 0, "the view ends inside the first 8 bytes")
    size, magic = HEAD.unpack_from(view, start)
    if magic == MAGIC_BLANK:
        return Outcome(Kind.BLANK, size if size >= BLANK_SIZE else 0)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        if size == 0 and magic == 0:
            return Outcome(Kind.BAD, 0, "zeros")
        return Outcome(
            Kind.BAD, 0, f"magic {magic & 0xFFFFFFFF:#010x} is not the magic of a record"
        )
    if size < RECORD_SIZE_MIN:
        return Outcome(Kind.BAD, 0, f"size {size} is below the minimum of a record")
    outcome, properties_size = _judge_shape(
        view, start, size, magic, at if checks.position else None
    )
    if outcome.kind is not Kind.VALID:
        return outcome
    if checks.body_crc and (reason := _body_fault(view, start)):
        return Outcome(Kind.BAD, size, reason)
    if checks.record_crc or checks.require_record_crc:
        reason = record_crc_fault(
            view, start, size, properties_size, required=checks.require_record_crc
        )
        if reason:
            return Outcome(Kind.BAD, size, reason)
    return outcome


def _judge_shape(
    view: Buffer, start: int, size: int, magic: int, at: int | None
) -> tuple[Outcome, int]:
    """Check the position, and the lengths against the size as far as they are in the view.

    Also returns the size of the properties, 0 unless VALID.
    """
    room = len(view) - start
    cut = Outcome(Kind.INCOMPLETE, size, f"only {room} of its {size} bytes exist"), 0
    if room < SYS_FLAG_AT + 4:
        return cut
    if at is not None:
        (stored,) = LONG.unpack_from(view, start + PHYSICAL_OFFSET_AT)
        if stored != at:
            return Outcome(Kind.BAD, size, f"stored physical offset {stored}, not {at}"), 0
    (sys_flag,) = INT.unpack_from(view, start + SYS_FLAG_AT)
    body_at = PREFIXES[sys_flag >> 4 & 3].size
    if room < body_at:
        return cut
    (body_size,) = INT.unpack_from(view, start + body_at - 4)
    topic_length_size = 1 if magic == MAGIC_V1 else 2
    topic_at = body_at + body_size + topic_length_size
    if body_size < 0 or topic_at + 2 > size:
        return Outcome(Kind.INCONSISTENT, size, f"body size {body_size} in {size} bytes"), 0
    if room < topic_at:
        return cut
    topic_size = int.from_bytes(
        view[start + topic_at - topic_length_size : start + topic_at], "big", signed=True
    )
    properties_at = topic_at + topic_size + 2
    if topic_size < 0 or properties_at > size:
        return Outcome(Kind.INCONSISTENT, size, f"topic size {topic_size} in {size} bytes"), 0
    if room < properties_at:
        return cut
    properties_size = int.from_bytes(
        view[start + properties_at - 2 : start + properties_at], "big", signed=True
    )
    if properties_size < 0 or properties_at + properties_size != size:
        total = properties_at + properties_size
        return Outcome(
            Kind.INCONSISTENT, size, f"the fields have {total} bytes in total, not {size}"
        ), 0
    return (Outcome(Kind.VALID, size), properties_size) if room >= size else cut


def _body_fault(view: Buffer, start: int) -> str:
    (sys_flag,) = INT.unpack_from(view, start + SYS_FLAG_AT)
    body_at = start + PREFIXES[sys_flag >> 4 & 3].size
    (body_size,) = INT.unpack_from(view, body_at - 4)
    if body_size == 0:
        return ""  # like the reference: the CRC of an empty body is not checked
    (stored,) = INT.unpack_from(view, start + BODY_CRC_AT)
    with memoryview(view) as whole, whole[body_at : body_at + body_size] as body:
        crc = zlib.crc32(body) & 0x7FFFFFFF
    return "" if crc == stored else f"body crc {crc:#010x}, stored {stored & 0xFFFFFFFF:#010x}"


def record_crc_fault(
    view: Buffer, start: int, size: int, properties_size: int, *, required: bool
) -> str:
    """Return why the record CRC of the well-formed record at view[start] is wrong; "" if it is not.

    The property is a record's last 20 bytes. A damaged property must not pass as a missing one: if
    the pair end before it has one wrong bit, or its name has one or two wrong bytes, it is
    considered damaged.
    """
    end = start + size
    # Checked first: otherwise a body that ends with the property's name, followed by a short topic
    # and no properties, would count as a damaged record.
    if properties_size < CRC_PROPERTY_SIZE:
        return "record crc: the property is missing" if required else ""
    slot = bytes(view[end - CRC_PROPERTY_SIZE : end])
    name, digits = properties.CRC_SLOT_NAME, slot[_SLOT_DATA_AT:-1]
    if slot.startswith(name):
        with memoryview(view) as whole, whole[start : end - CRC_PROPERTY_SIZE] as covered:
            crc = zlib.crc32(covered) & 0x7FFFFFFF
        if slot == properties.crc_slot(crc):
            return ""
        before = properties.PAIR_END
        if properties_size > CRC_PROPERTY_SIZE:
            before = view[end - CRC_PROPERTY_SIZE - 1]
        # Otherwise it is the end of a longer value that contains 0x01 and the name: not a CRC.
        if (before ^ properties.PAIR_END).bit_count() <= 1:
            return f"record crc {crc}, stored {digits[::-1]!r}"
    elif digits.isdigit() and slot[-1] == properties.PAIR_END:
        differing: int = sum(map(operator.ne, slot, name))
        if differing <= 2:
            return "record crc: the property's name is damaged"
    return "record crc: the property is missing" if required else ""
