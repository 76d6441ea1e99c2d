"""Locates the records of a buffer, for readers that build columns (docs/formats.md, 2). Pure.

``scan`` creates an object per record. Readers of whole files that need few fields of each record
avoid that: one pass over the sizes returns one row of numbers per record, and a second pass the
values of one property. The caller then gathers the fixed fields with array operations. The rules of
a valid record are those of ``record_check.validate``. The native implementation is
``speedups.outline``; ``native`` chooses.

Step before: bytes of one commit log file, or adjacent records from a pull. Step after: columns of a
table.
"""

from __future__ import annotations

import struct
from array import array
from typing import Final, NamedTuple

from tidemark.formats import properties
from tidemark.formats.record import topic_text
from tidemark.formats.record_check import Checks, Kind, validate
from tidemark.formats.record_layout import (
    INT,
    MAGIC_V1,
    NO_HOSTS_SIZE,
    SHAPES,
    SYS_FLAG_AT,
    Buffer,
)
from tidemark.formats.scan import Stop

ROW: Final = struct.Struct("=qiiiiiiii")
"""First byte of the record in the view, its size, start and size of the body, number of the topic,
start and size of the properties, whether the CRCs match (1, 0; -1: not verified), SYSFLAG. Starts
are relative to the record's first byte. In native byte order."""

NOT_VERIFIED: Final = -1


class Outlines(NamedTuple):
    """The records of a view."""

    rows: bytes
    """One ``ROW`` per record of the requested topics."""
    topics: list[str]
    """Topic names by their number."""
    seen: int
    """Number of records read, including those of other topics."""
    end: int
    """Offset in the view after the last record; before the filler if stop is BLANK."""
    stop: Stop
    """LIMIT: ``until`` or ``records_max`` was reached."""
    reason: str
    """The reason for BAD and for an incomplete record."""


def outline_records(
    view: Buffer,
    *,
    at: int | None,
    until: int,
    records_max: int,
    verify: Checks | None = None,
    topics: frozenset[str] | None = None,
) -> Outlines:
    """Locate the records from view[0] on. Never raises for any bytes.

    at: physical offset of view[0], which must match that of the records; None: positions are not
    checked, as for the answer of a pull. until: only records that start before this offset of the
    view are taken, wherever they end. verify: CRCs to compare; a record that fails is included, and
    its row shows it. topics: only their rows are created; None: all.
    """
    shape = Checks(body_crc=False, record_crc=False, position=at is not None)
    numbers: dict[bytes, int] = {}
    names: list[str] = []
    rows = bytearray()
    end = seen = 0
    while end < until and seen < records_max and end < len(view):
        place = None if at is None else at + end
        outcome = validate(view, end, at=place, checks=shape)
        if outcome.kind is not Kind.VALID:
            break
        size, magic = struct.unpack_from(">ii", view, end)
        (sys_flag,) = INT.unpack_from(view, end + SYS_FLAG_AT)
        body_at = NO_HOSTS_SIZE + sum(SHAPES[sys_flag >> 4 & 3])
        (body_size,) = INT.unpack_from(view, end + body_at - 4)
        topic_at = body_at + body_size + (1 if magic == MAGIC_V1 else 2)
        topic_size = int.from_bytes(view[end + body_at + body_size : end + topic_at], "big")
        topic = bytes(view[end + topic_at : end + topic_at + topic_size])
        number = numbers.get(topic)
        if number is None:
            text = topic_text(topic)
            number = -1
            if topics is None or text in topics:
                number = len(names)
                names.append(text)
            numbers[topic] = number
        if number >= 0:
            sound = NOT_VERIFIED
            if verify is not None:
                judged = validate(view, end, at=None, checks=verify._replace(position=False))
                sound = int(judged.kind is Kind.VALID)
            properties_at = topic_at + topic_size + 2
            rows += ROW.pack(
                end,
                size,
                body_at,
                body_size,
                number,
                properties_at,
                size - properties_at,
                sound,
                sys_flag,
            )
        end += size
        seen += 1
    return Outlines(
        bytes(rows), names, seen, end, *stopped(view, end, at, until, records_max - seen)
    )


def stopped(view: Buffer, end: int, at: int | None, until: int, left: int) -> tuple[Stop, str]:
    """Return why the record at view[end] was not taken. left: how many more were requested."""
    if end >= until or left <= 0:
        return Stop.LIMIT, ""
    if end >= len(view):
        return Stop.VIEW_END, ""
    checks = Checks(body_crc=False, record_crc=False, position=at is not None)
    outcome = validate(view, end, at=None if at is None else at + end, checks=checks)
    match outcome.kind:
        case Kind.BLANK:
            return Stop.BLANK, ""
        case Kind.INCOMPLETE:
            return Stop.VIEW_END, outcome.reason
        case Kind.BAD | Kind.INCONSISTENT:
            return Stop.BAD, outcome.reason
        case Kind.VALID:
            return Stop.VIEW_END, "changed while it was read"


class Values(NamedTuple):
    """One property of many records, in the layout of Arrow strings."""

    offsets: bytes
    """One i32 per record plus one: where its value starts in ``data``. Native byte order."""
    data: bytes
    """UTF-8; invalid bytes are replaced like in ``properties.text``."""
    present: bytes
    """One byte per record: 1 if it has the property, else 0."""


def property_values(view: Buffer, rows: bytes, *, wanted: bytes) -> Values:
    """Return the property named ``wanted`` of each record that ``outline_records`` found in view.

    Raises ValueError if a row is not inside the view.
    """
    offsets, data, present = array("i", [0]), bytearray(), bytearray()
    view_size = len(view)
    for start, size, _, _, _, properties_at, properties_size, _, _ in ROW.iter_unpack(rows):
        first = start + properties_at
        if start < 0 or properties_at < 0 or properties_size < 0 or size < 0:
            raise ValueError("a row has a negative number")
        if first + properties_size > view_size:
            raise ValueError(f"a row ends at {first + properties_size}, the view at {view_size}")
        value = properties.find(bytes(view[first : first + properties_size]), wanted)
        present.append(value is not None)
        if value is not None:
            data += properties.text(value).encode()
        offsets.append(len(data))
    return Values(offsets.tobytes(), bytes(data), bytes(present))
