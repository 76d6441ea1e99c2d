"""Telemetry record codec (docs/formats.md, "Telemetry records"). Pure: a body in, a value out.

A *snapshot* has the positions of all queues and groups of a node at one instant, as tables of whole
numbers. A *keyframe* has all rows; a *delta* has what differs from the snapshot before it. A row
has a local id, which is its place in its table since the keyframe. A snapshot is split into
*parts*, one record each, so that no record is large. Names of tables and columns are in the record:
a reader takes those that it knows. A value that is unknown has a reason instead of a number.

Step before: ``services.broker.groups.telemetry`` takes snapshots. Step after:
``telemetry_reader`` puts parts together, and ``analytics.sources.telemetry`` reads them.
"""

from __future__ import annotations

import enum
import struct
import sys
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from operator import sub
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack

TELEMETRY_TOPIC: Final = "rmq_sys_tidemark_telemetry"
TELEMETRY_QUEUE: Final = 0
MAGIC: Final = b"TMTL"
VERSION: Final = 1
PAYLOAD_SIZE_MAX: Final = 1 << 20
"""Bytes of a part before compression; writers make smaller ones, readers take no larger ones."""
AT_MS: Final = "_at_ms"
"""End of the names of columns with times. They are stored as the time before the snapshot."""

_HEAD: Final = struct.Struct(">4sBI")  # magic, version, CRC-32 of the compressed payload
_LEVEL: Final = 5
"""Of zlib. Level 1 takes a third of the time and 6 % more bytes; level 6 twice, and 1 % less."""
_WIDTH: Final = 8
_LITTLE: Final = sys.byteorder == "little"

Numbers: TypeAlias = "array[int]"
"""Signed numbers of 64 bits, type q."""


class Absent(enum.Enum):
    """Why a value has no number. Readers take other reasons for unknown, too."""

    NONE = 1
    """There is nothing that it could describe, like a message of an empty queue."""
    AS_DISPATCHED = 2
    """A time: it is that of the first record that is not dispatched, ``t_dispatched_at_ms``."""
    NEVER_COMMITTED = 3
    UNKNOWN_TOPIC = 4
    """The topic, or the queue, no longer exists."""
    AHEAD = 5
    """The commit lies beyond all that is dispatched."""
    UNREADABLE = 6
    """The message, or a position of the log, could not be read."""
    NOT_TRACKED = 7
    """The broker does not keep the number at present."""


class BadTelemetry(ValueError):
    """The bytes are not a telemetry record, or it does not fit to the ones before it."""


class Column(NamedTuple):
    """Values of one column."""

    values: Numbers
    """0 where the value is absent."""
    absent: bytes
    """Per row 0, or the number of ``Absent``; empty if all values are known."""


class Kind(enum.IntEnum):
    """What a section does with its rows."""

    NEW = 0
    CHANGED = 1
    GONE = 2


class Section(NamedTuple):
    """Some rows of one table."""

    table: str
    kind: Kind
    ids: Numbers
    """Local ids, ascending. New rows follow the last one."""
    names: Sequence[str] = ()
    """Names of new rows, in a table whose rows have names."""
    keys: Mapping[str, Numbers] = {}
    """Of new rows in other tables: local ids of the rows that they belong to, and queue numbers."""
    columns: Mapping[str, Column] = {}
    """Of changed rows: the difference to the value before, with 0 for an absent one. Of times: the
    time."""


class Head(NamedTuple):
    """What each part says about its snapshot."""

    started_ms: int
    """With ``epoch``: the term of one broker process. Its snapshots are a chain."""
    epoch: int
    number: int
    """Of the snapshot in its chain, from 0."""
    is_keyframe: bool
    part: int
    parts: int
    back: int
    """Records from the first one of the last keyframe to this one; 0 at that record."""
    rows: int
    """Rows of all tables in the snapshot, unchanged ones included."""
    tick_ms: int
    """The multiple of the period for which it was taken."""
    at_ms: int
    """When it began, by the clock of the node."""
    node: str
    """Name in the replication group; empty if the node is alone."""
    facts: Mapping[str, int]
    """Positions and times of the node as a whole; an unknown one is missing."""


class Part(NamedTuple):
    """One record."""

    head: Head
    sections: Sequence[Section]


# -- encoding -------------------------------------------------------------------------------------


def encode(part: Part) -> bytes:
    """Return the body of a record. Raises ValueError if its payload exceeds PAYLOAD_SIZE_MAX."""
    packed = [pack_section(section, part.head.at_ms) for section in part.sections]
    return encode_packed(part.head, packed)


def encode_packed(head: Head, packed: Sequence[bytes]) -> bytes:
    """Return the body of a record with packed sections; nearly all of it runs without the
    interpreter lock. Raises ValueError if its payload exceeds PAYLOAD_SIZE_MAX."""
    packer = msgpack.Packer()
    start = [packer.pack_array_header(2), packer.pack(list(head))]
    payload = b"".join([*start, packer.pack_array_header(len(packed)), *packed])
    if len(payload) > PAYLOAD_SIZE_MAX:
        raise ValueError(f"a part of {len(payload)} bytes, {PAYLOAD_SIZE_MAX} are allowed")
    return _body(payload)


def _body(payload: bytes) -> bytes:
    compressed = zlib.compress(payload, _LEVEL)
    return _HEAD.pack(MAGIC, VERSION, zlib.crc32(compressed)) + compressed


def pack_section(section: Section, at_ms: int) -> bytes:
    """Return a section as it is in a payload. at_ms: that of the snapshot."""
    is_new = section.kind is Kind.NEW
    columns = {}
    for name, column in section.columns.items():
        values = _before(at_ms, column) if name.endswith(AT_MS) else column.values
        columns[name] = [*_planes(values), column.absent]
    stored = [
        section.table,
        int(section.kind),
        len(section.ids),
        section.ids[0] if is_new else _planes(_differences(section.ids)),
        list(section.names),
        {name: _planes(_differences(key)) for name, key in section.keys.items()},
        columns,
    ]
    packed: bytes = msgpack.packb(stored)
    return packed


def _before(at_ms: int, column: Column) -> Numbers:
    """Return how long before the snapshot the times of a column are, or the times again."""
    absent = column.absent or bytes(len(column.values))
    before = [
        0 if reason else at_ms - value for value, reason in zip(column.values, absent, strict=True)
    ]
    return array("q", before)


def _differences(values: Numbers) -> Iterable[int]:
    """Return the first value, then the difference of each to the one before it."""
    return map(sub, values, (0, *values[:-1]))


def _planes(values: Iterable[int]) -> tuple[int, bytes]:
    """Return the number of bytes per value, and the values' bytes: all lowest ones, then the next.

    Small numbers of either sign become small unsigned ones (0, −1, 1, −2 … are 0, 1, 2, 3 …), so
    their high bytes are zeros, which are left out or compressed to almost nothing."""
    folded = array("Q", [value + value if value >= 0 else -value - value - 1 for value in values])
    width = (max(folded, default=0).bit_length() + 7) // 8
    raw = _in_little_endian(folded).tobytes()
    return width, b"".join([raw[place::_WIDTH] for place in range(width)])


def _in_little_endian(values: Numbers) -> Numbers:
    """Swap the bytes of each value on a machine with the other order."""
    if not _LITTLE:
        values.byteswap()
    return values


# -- decoding -------------------------------------------------------------------------------------


def decode(body: bytes | memoryview) -> Part:
    """Return the part in a record's body. Raises BadTelemetry if the bytes cannot be trusted."""
    if len(body) < _HEAD.size:
        raise BadTelemetry(f"{len(body)} bytes are too few for a telemetry record")
    magic, version, crc = _HEAD.unpack_from(body)
    if magic != MAGIC or version != VERSION:
        raise BadTelemetry(f"it begins with {magic!r}, version {version}")
    compressed = memoryview(body)[_HEAD.size :]
    if zlib.crc32(compressed) != crc:
        raise BadTelemetry(f"its CRC-32 is not {crc:#010x}")
    try:
        stored_head, sections = msgpack.unpackb(_payload(compressed))
        head = _head(stored_head)
        return Part(head, [_section(section, head.at_ms) for section in sections])
    except BadTelemetry:
        raise
    except (zlib.error, ValueError, TypeError, IndexError, OverflowError, AttributeError) as error:
        raise BadTelemetry(f"its payload is no telemetry: {error}") from error


def _payload(compressed: memoryview) -> bytes:
    unpacking = zlib.decompressobj()
    payload = unpacking.decompress(compressed, PAYLOAD_SIZE_MAX)
    if not unpacking.eof or unpacking.unused_data:
        raise BadTelemetry(f"its payload is cut, or exceeds {PAYLOAD_SIZE_MAX} bytes")
    return payload


def _head(stored: Any) -> Head:
    head = Head(*stored[: len(Head._fields)])  # later versions may add members
    if not all(type(number) is int and number >= 0 for number in (*head[:3], *head[4:10])):
        raise BadTelemetry(f"its head is {head!r}"[:200])
    if not head.part < head.parts or type(head.is_keyframe) is not bool or head.back < head.part:
        raise BadTelemetry(f"part {head.part} of {head.parts}, {head.back} after its keyframe")
    if not isinstance(head.node, str) or not isinstance(head.facts, dict):
        raise BadTelemetry("its head has no node or no facts")
    return head


def _section(stored: Any, at_ms: int) -> Section:
    table, kind, count, ids, names, keys, columns = stored[:7]
    is_new = Kind(kind) is Kind.NEW
    if not isinstance(table, str) or type(count) is not int or not 0 < count <= PAYLOAD_SIZE_MAX:
        raise BadTelemetry(f"a section of {count!r} rows of {table!r}"[:200])
    if names and len(names) != count:
        raise BadTelemetry(f"{len(names)} names for {count} rows")
    return Section(
        table,
        Kind(kind),
        array("q", range(ids, ids + count)) if is_new else _sums(ids, count),
        names,
        {name: _sums(key, count) for name, key in keys.items()},
        {
            name: _column(column, count, at_ms if name.endswith(AT_MS) else None)
            for name, column in columns.items()
        },
    )


def _column(stored: Any, count: int, at_ms: int | None) -> Column:
    """Return a column. at_ms: of the snapshot, if the values are times before it."""
    width, planes, absent = stored
    if not isinstance(absent, bytes) or len(absent) not in (0, count):
        raise BadTelemetry(f"{len(absent)} reasons for {count} rows")
    found = Column(_numbers((width, planes), count), absent)
    return found if at_ms is None else found._replace(values=_before(at_ms, found))


def _sums(stored: Any, count: int) -> Numbers:
    """Undo ``_differences`` and ``_planes``."""
    return array("q", accumulate(_numbers(stored, count)))


def _numbers(stored: Any, count: int) -> Numbers:
    """Undo ``_planes``."""
    width, planes = stored
    if not 0 <= width <= _WIDTH or len(planes) != width * count:
        raise BadTelemetry(f"{len(planes)} bytes for {count} values of {width} bytes")
    raw = bytearray(_WIDTH * count)
    for place in range(width):
        raw[place::_WIDTH] = planes[place * count : (place + 1) * count]
    folded = _in_little_endian(array("Q", bytes(raw)))
    return array("q", [-(value >> 1) - 1 if value & 1 else value >> 1 for value in folded])
