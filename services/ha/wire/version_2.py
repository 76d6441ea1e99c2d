"""Payloads in version 2 of the protocol, the binary form of the last release. Pure.

For links to nodes of that release while a group is upgraded or downgraded node by node. The next
release deletes this module. ``encode`` takes the fields from a payload. ``decode`` returns them as
plain values, which ``payloads`` checks as it checks those of msgpack. Integers are big-endian.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import msgspec

from services.ha.wire.frames import FrameType
from services.ha.wire.payload_fields import INCARNATION_SIZE, U8, Reader, put_hex, put_text

PROCESS_SIZE: Final = 8
JSON_SIZE_MAX: Final = 64 * 1024
TABLE_ENTRIES_MAX: Final = 1000
_ENTRY: Final = struct.Struct(">qq")
_U32: Final = struct.Struct(">I")

_LAYOUTS: Final = {
    kind: [field.split(":") for field in layout.split()]
    for kind, layout in {
        FrameType.HELLO: "group:text node:text incarnation:hex version:H file_size:q promised:q "
        "first_offset:q end:q durable:q confirm:q table:table",
        FrameType.HELLO_OK: "point:q crc:I crc_size:I first_offset:q end:q confirm:q foreign:pair "
        "table:table",
        FrameType.RESYNC_REQUIRED: "reason:B first_offset:q end:q",
        FrameType.PROMISE: "purpose:B candidate:holder",
        FrameType.PROMISE_OK: "previous:q last_data_epoch:q end:q durable:q confirm:q",
        FrameType.STATUS: "asked_ms:q",
        FrameType.STATUS_OK: "node:text incarnation:hex state:text initialised:flag "
        "holds_records:flag promised:q data_epoch:q first_offset:q end:q durable:q confirm:q "
        "seen_epoch:q in_sync_version:q in_sync:members asked_ms:q wall_ms:q facts:json",
        FrameType.FENCED: "promised:q",
        FrameType.CAMPAIGN_NOW: "end:q",
    }.items()
}
"""Names and forms of the fields, in their order. A form of one letter is that of ``struct``."""


def encode(kind: FrameType, payload: object) -> bytes:
    """Return a payload's bytes. Raises ValueError for a text that is too long."""
    return b"".join(_put(form, getattr(payload, name)) for name, form in _LAYOUTS[kind])


def decode(kind: FrameType, data: bytes | memoryview) -> dict[str, Any]:
    """Return the fields by name. Raises BadFrame, and what ``msgspec.json`` raises."""
    reader = Reader(data, kind.name)
    fields = {name: _take(form, reader) for name, form in _LAYOUTS[kind]}
    reader.done()
    return fields


def _put(form: str, value: Any) -> bytes:
    match form:
        case "text":
            return put_text(value)
        case "hex":
            return put_hex(value, INCARNATION_SIZE)
        case "flag":
            return U8.pack(value)
        case "pair":
            return _ENTRY.pack(*value)
        case "table":
            return _U32.pack(len(value)) + b"".join(_ENTRY.pack(*entry) for entry in value)
        case "members":
            return U8.pack(len(value)) + b"".join(map(_put_member, value))
        case "holder":
            return _put_member(value) + put_hex(value.process, PROCESS_SIZE)
        case "json":
            return msgspec.json.encode(value)
        case _:
            return struct.pack(f">{form}", value)


def _put_member(member: Any) -> bytes:
    return put_text(member.node) + put_hex(member.incarnation, INCARNATION_SIZE)


def _take(form: str, reader: Reader) -> Any:
    match form:
        case "text":
            return reader.text()
        case "hex":
            return reader.hex(INCARNATION_SIZE)
        case "flag":
            return reader.flag()
        case "pair":
            return _ENTRY.unpack(reader.take(_ENTRY.size))
        case "table":
            return _table(reader)
        case "members":
            return [_take_member(reader) for _ in range(reader.number(U8))]
        case "holder":
            return *_take_member(reader), reader.hex(PROCESS_SIZE)
        case "json":
            return _json(reader)
        case _:
            return reader.number(struct.Struct(f">{form}"))


def _take_member(reader: Reader) -> tuple[str, str]:
    return reader.text(), reader.hex(INCARNATION_SIZE)


def _table(reader: Reader) -> list[tuple[int, int]]:
    count = reader.number(_U32)
    if count > TABLE_ENTRIES_MAX:  # before that many entries are built
        reader.refuse(f"a table of {count} entries; the most is {TABLE_ENTRIES_MAX}")
    return list(_ENTRY.iter_unpack(reader.take(count * _ENTRY.size)))


def _json(reader: Reader) -> Any:
    raw = reader.rest()
    if len(raw) > JSON_SIZE_MAX:
        reader.refuse(f"{len(raw)} bytes of JSON; the most is {JSON_SIZE_MAX}")
    return msgspec.json.decode(raw)
