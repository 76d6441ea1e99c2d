"""Locates the records of a buffer, for readers that build columns (docs/formats.md, 2). Pure.

``scan`` creates an object per record. Readers of whole files that need few fields of each record
avoid that: one pass over the sizes returns one row of numbers per record, with its fixed fields, a
second one makes a row per message of inner batches, and a third returns the values of one property.
The rules of a valid record are those of
``record_check.validate``, those of a batch ``inner_batch.unpack``. The native implementation is
``speedups.outline``; ``native`` chooses.

Step before: bytes of one commit log file, or adjacent records from a pull. Step after: columns of a
table.
"""

from __future__ import annotations

import itertools
import struct
from array import array
from typing import Final, NamedTuple

from tidemark.formats import batch, properties
from tidemark.formats.batch import ENTRY_OVERHEAD, BadBatch
from tidemark.formats.inner_batch import INNER_BATCH, SYS_FLAGS, message_count
from tidemark.formats.record import topic_text
from tidemark.formats.record_check import Checks, Kind, validate
from tidemark.formats.record_layout import (
    INT,
    MAGIC_V1,
    PREFIXES,
    SYS_FLAG_AT,
    Buffer,
)
from tidemark.formats.scan import Stop

ROW: Final = struct.Struct("=q12i4q")
"""The fields of ``Row``, in native byte order."""

NOT_VERIFIED: Final = -1
_ENTRY_BODY_AT: Final = 20
"""Size of the fields before the body of a batch's entry."""


class Row(NamedTuple):
    """Where a message is in the view. Other starts are relative to its record's first byte."""

    start: int
    """First byte of the record in the view."""
    size: int
    """Size of the record, which may hold more messages."""
    body_at: int
    body_size: int
    topic: int
    """Number of the topic."""
    properties_at: int
    properties_size: int
    sound: int
    """Whether the CRCs match: 1 or 0; NOT_VERIFIED."""
    sys_flag: int
    number: int
    """Index of the message in its inner batch. Its queue offset is that of the record plus this."""
    torn: int
    """1 if the record ends in an impossible zero, else 0: a crash or a truncated copy kept its size
    and lost its end. No CRC detects it, because the CRC is also at the end."""
    queue: int
    reconsume_times: int
    queue_offset: int
    """Of the record."""
    physical_offset: int
    born_ms: int
    store_ms: int


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
        (sys_flag,) = INT.unpack_from(view, end + SYS_FLAG_AT)
        prefix = PREFIXES[sys_flag >> 4 & 3]
        (
            size,
            magic,
            _body_crc,
            queue,
            _flag,
            queue_offset,
            physical_offset,
            _sys_flag,
            born_ms,
            _born_host,
            store_ms,
            _store_host,
            reconsume_times,
            _transaction_offset,
            body_size,
        ) = prefix.unpack_from(view, end)
        body_at = prefix.size
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
            row = Row(
                end,
                size,
                body_at,
                body_size,
                number,
                properties_at,
                size - properties_at,
                sound,
                sys_flag,
                0,
                int(_is_torn(view, end + size, size - properties_at)),
                queue,
                reconsume_times,
                queue_offset,
                physical_offset,
                born_ms,
                store_ms,
            )
            rows += ROW.pack(*row)
        end += size
        seen += 1
    return Outlines(
        bytes(rows), names, seen, end, *stopped(view, end, at, until, records_max - seen)
    )


def _is_torn(view: Buffer, end: int, properties_size: int) -> bool:
    """Whether the record that ends at view[end] ends in an impossible zero."""
    # Properties end in 0x02 or in text. Without properties, the topic is followed by two zeros.
    return view[end - (1 if properties_size else 3)] == 0


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


class Unpacked(NamedTuple):
    """The messages of records."""

    rows: bytes
    """One ``ROW`` per message, in the order of the records."""
    damaged: list[int]
    """Indices of the records whose batch does not hold as many messages as it says; they have no
    row in ``rows``."""


def unpack_rows(view: Buffer, rows: bytes) -> Unpacked:
    """Replace the row of each inner batch by those of its messages, as ``inner_batch.unpack`` does.

    rows: those of ``outline_records``. Raises ValueError if a row is not inside the view.
    """
    unpacked, damaged = bytearray(), []
    for index, row in enumerate(map(Row._make, ROW.iter_unpack(rows))):
        if not row.sys_flag & INNER_BATCH:
            unpacked += ROW.pack(*row)
            continue
        raw, body = _slices(view, row)
        count = message_count(row.sys_flag, raw, row.queue_offset)
        if not count:
            unpacked += ROW.pack(*row)
            continue
        try:
            messages = _messages(row, body, count)
        except BadBatch:
            messages = []
        if len(messages) == count:
            unpacked += b"".join(ROW.pack(*message) for message in messages)
        else:
            damaged.append(index)
    return Unpacked(bytes(unpacked), damaged)


def _slices(view: Buffer, row: Row) -> tuple[bytes, bytes]:
    """Return properties and body of a record."""
    if min(row.start, *row[1:7]) < 0:
        raise ValueError("a row has a negative number")
    ends = row.body_at + row.body_size, row.properties_at + row.properties_size
    if row.start + max(ends) > len(view):
        raise ValueError(f"a row ends after the view, which has {len(view)} bytes")
    return (
        bytes(view[row.start + row.properties_at : row.start + ends[1]]),
        bytes(view[row.start + row.body_at : row.start + ends[0]]),
    )


def _messages(row: Row, body: bytes, count: int) -> list[Row]:
    """Return the rows of a batch's messages, and of one more than count. Raises BadBatch."""
    found: list[Row] = []
    end = row.body_at
    for number, entry in enumerate(itertools.islice(batch.iterate(body), count + 1)):
        at = end
        end += ENTRY_OVERHEAD + len(entry.body) + len(entry.properties)
        message = row._replace(
            body_at=at + _ENTRY_BODY_AT,
            body_size=len(entry.body),
            properties_at=end - len(entry.properties),
            properties_size=len(entry.properties),
            sys_flag=row.sys_flag & ~SYS_FLAGS,
            number=number,
        )
        found.append(message)
    return found


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
    for row in map(Row._make, ROW.iter_unpack(rows)):
        first = row.start + row.properties_at
        if min(row.start, row.size, row.properties_at, row.properties_size) < 0:
            raise ValueError("a row has a negative number")
        end = first + row.properties_size
        if end > view_size:
            raise ValueError(f"a row ends at {end}, the view at {view_size}")
        value = properties.find(bytes(view[first:end]), wanted)
        present.append(value is not None)
        if value is not None:
            data += properties.text(value).encode()
        offsets.append(len(data))
    return Values(offsets.tobytes(), bytes(data), bytes(present))
