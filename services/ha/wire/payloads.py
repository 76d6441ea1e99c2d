"""Payloads: a typed value per frame type (docs/replication.md, frames). Pure.

``frame`` encodes a value, ``parse`` decodes a frame or raises BadFrame; both follow the version
that was agreed on for the link. Log ends in HELLO, PROMISE_OK and STATUS_OK never count as
acknowledgements; only those of ACK do. ``payload_fields`` encodes the fields.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, NamedTuple

from services.ha.lease.value import Holder, Member
from services.ha.wire.frames import BadFrame, Frame, FrameType
from services.ha.wire.payload_fields import (
    INCARNATION_SIZE,
    U8,
    U16,
    U32,
    U64,
    Reader,
    put_hex,
    put_numbers,
    put_table,
    put_text,
)
from services.ha.wire.versions import SPOKEN, WITH_CLOCKS, WITH_LEAVING
from tidemark.formats.epochs import EpochStart

FACTS_SIZE_MAX: Final = 64 * 1024
MEMBERS_MAX: Final = 255
PROCESS_SIZE: Final = 8

_APPEND: Final = struct.Struct(">qqqqQI")


class Hello(NamedTuple):
    """Slave to master: identity and log of the slave; begins the divergence check of a link."""

    group: str
    node: str
    incarnation: str
    version: int
    """Version of the protocol, as agreed in the handshake."""
    file_size: int
    """Size of a commit log file, bytes."""
    promised: int
    first_offset: int
    end: int
    durable: int
    confirm: int
    table: tuple[EpochStart, ...]


class HelloOk(NamedTuple):
    """Master to slave: the end of the common history, according to the tables."""

    point: int
    crc: int
    """CRC-32 of the ``crc_size`` bytes before point, in the master's log."""
    crc_size: int
    """At most 64 KiB, less if one of the logs begins later; 0: there is nothing to compare."""
    first_offset: int
    end: int
    confirm: int
    table: tuple[EpochStart, ...]
    """The master's table from the common entry on; the whole one for an empty slave."""
    foreign: tuple[int, int] = (0, 0)
    """[from, until) of the master's log that RocketMQ wrote. A record CRC there may be a copy of
    another record's and is not checked."""


class ResyncReason(IntEnum):
    """Why a slave must copy everything."""

    NO_COMMON_EPOCH = 1
    BELOW_FIRST_OFFSET = 2


class ResyncRequired(NamedTuple):
    """Master to slave: there is no point from which to continue."""

    reason: ResyncReason
    first_offset: int
    """First offset of the master's log, where the copy begins."""
    end: int


class Append(NamedTuple):
    """Master to slave: bytes of one epoch; without bytes, a heartbeat."""

    data_epoch: int
    epoch_start: int
    offset: int
    """Offset of the first byte; in a heartbeat, of the next byte to send."""
    confirm: int
    nonce: int
    """Number of the frame on this link; an ACK names the last one received."""
    size: int
    data: bytes | memoryview = b""
    """Empty when encoding a frame whose bytes are streamed from the mapping after it."""


class Ack(NamedTuple):
    """Slave to master: the end of the log, and how much of it is on disk."""

    appended: int
    durable: int
    nonce: int
    """Nonce of the last APPEND; 0: none on this link."""
    leaving: bool = False
    """Whether the slave's process is about to end, so that waiting for it is useless. Not part of
    version 1."""


class PromisePurpose(IntEnum):
    """Purpose of the epoch in PROMISE."""

    NEW_TERM = 1
    """The sender has won the lease with it."""
    CREATE_LEASE = 2
    """The sender is master, its lease object is gone, and it wants to create it with this epoch."""


class Promise(NamedTuple):
    """To every node: respect nothing below this frame's epoch."""

    purpose: PromisePurpose
    candidate: Holder


class PromiseOk(NamedTuple):
    """The epoch is promised on disk."""

    previous: int
    """The epoch that was promised before."""
    last_data_epoch: int
    end: int
    durable: int
    confirm: int


class Status(NamedTuple):
    """Request of a node's status. Answered at any epoch; promises nothing."""

    asked_ms: int = 0
    """Time of the request by the sender's boot clock; 0: unknown, or not part of this version."""


class StatusOk(NamedTuple):
    """Status of a node."""

    node: str
    incarnation: str
    state: str
    """One of the replica's states."""
    initialised: bool
    """Whether the volume has belonged to this group."""
    holds_records: bool
    promised: int
    data_epoch: int
    """Epoch of the newest entry of its table; 0: the table is empty."""
    first_offset: int
    end: int
    durable: int
    confirm: int
    seen_epoch: int
    """The largest (epoch, in_sync_version) seen in the lease."""
    in_sync_version: int
    in_sync: tuple[Member, ...]
    """The in-sync set that it knows."""
    facts: dict[str, Any]
    """A JSON object for people, at most 64 KiB."""
    asked_ms: int = 0
    """Time in the answered request; 0: none, or not part of this version."""
    wall_ms: int = 0
    """The wall clock of the node, for ``peer_clock``; 0: unknown."""


class Fenced(NamedTuple):
    """The receiver's epoch is over: the sender has promised a higher one, and closes."""

    promised: int


class CampaignNow(NamedTuple):
    """Master to the target of a switch: the lease is released for it and can be taken at once."""

    end: int
    """End of the master's log; the target has all of it on disk."""


Payload = (
    Hello
    | HelloOk
    | ResyncRequired
    | Append
    | Ack
    | Promise
    | PromiseOk
    | Status
    | StatusOk
    | Fenced
    | CampaignNow
)


def frame(epoch: int, payload: Payload, version: int = SPOKEN.highest) -> Frame:
    """Return the frame with a payload. Raises ValueError for a value that no frame can hold.

    version: agreed on with the receiver.
    """
    kind = _TYPE_OF[type(payload)]
    return Frame(kind, epoch, _ENCODERS[kind](payload, version))


def parse(frame: Frame, version: int = SPOKEN.highest) -> Payload:
    """Return the payload of a frame; the bytes of APPEND borrow from it.

    version: agreed on with the sender. Raises BadFrame if the payload is cut, too long or invalid,
    and for frames of the handshake.
    """
    decode = _DECODERS.get(frame.type)
    if decode is None:
        raise BadFrame(f"a {frame.type.name} frame behind the handshake")
    reader = Reader(frame.payload, frame.type.name)
    payload = decode(reader, version)
    reader.done()
    return payload


def _put_hello(hello: Hello) -> bytes:
    return b"".join(
        (
            put_text(hello.group),
            put_text(hello.node),
            put_hex(hello.incarnation, INCARNATION_SIZE),
            U16.pack(hello.version),
            put_numbers(hello.file_size, hello.promised, hello.first_offset),
            put_numbers(hello.end, hello.durable, hello.confirm),
            put_table(hello.table),
        )
    )


def _take_hello(reader: Reader) -> Hello:
    group, node = reader.text(), reader.text()
    incarnation = reader.hex(INCARNATION_SIZE)
    version = reader.number(U16)
    file_size, promised, first, end, durable, confirm = reader.offsets(6)
    if not first <= end or not durable <= end:
        reader.refuse(f"a log from {first} to {end}, durable to {durable}")
    table = reader.table()
    return Hello(
        group, node, incarnation, version, file_size, promised, first, end, durable, confirm, table
    )


def _put_hello_ok(ok: HelloOk) -> bytes:
    return b"".join(
        (
            put_numbers(ok.point),
            U32.pack(ok.crc),
            U32.pack(ok.crc_size),
            put_numbers(ok.first_offset, ok.end, ok.confirm, *ok.foreign),
            put_table(ok.table),
        )
    )


def _take_hello_ok(reader: Reader) -> HelloOk:
    point, crc, crc_size = reader.offset(), reader.number(U32), reader.number(U32)
    first, end, confirm, foreign_from, foreign_until = reader.offsets(5)
    if foreign_from > foreign_until:
        reader.refuse(f"a foreign range from {foreign_from} to {foreign_until}")
    if not first <= point <= end or crc_size > point - first:
        reader.refuse(f"point {point} with {crc_size} bytes before it in a log {first} to {end}")
    foreign = foreign_from, foreign_until
    return HelloOk(point, crc, crc_size, first, end, confirm, reader.table(), foreign)


def _put_resync(required: ResyncRequired) -> bytes:
    return U8.pack(required.reason) + put_numbers(required.first_offset, required.end)


def _take_resync(reader: Reader) -> ResyncRequired:
    reason = reader.one_of(ResyncReason)
    return ResyncRequired(reason, reader.offset(), reader.offset())


def _put_append(append: Append) -> bytes:
    return _APPEND.pack(*append[:6]) + append.data


def _take_append(reader: Reader) -> Append:
    data_epoch, start, offset, confirm, nonce, size = _APPEND.unpack(reader.take(_APPEND.size))
    if min(data_epoch, start, offset, confirm) < 0 or start > offset:
        reader.refuse(f"epoch {data_epoch} from {start}, {size} bytes at {offset}")
    return Append(data_epoch, start, offset, confirm, nonce, size, reader.take(size))


def _put_ack(ack: Ack, version: int) -> bytes:
    leaving = U8.pack(ack.leaving) if version >= WITH_LEAVING else b""
    return put_numbers(ack.appended, ack.durable) + U64.pack(ack.nonce) + leaving


def _take_ack(reader: Reader, version: int) -> Ack:
    # ``MasterLink`` checks that appended ≥ durable: a violation is a lie, not damage.
    appended, durable, nonce = reader.offset(), reader.offset(), reader.number(U64)
    return Ack(appended, durable, nonce, version >= WITH_LEAVING and reader.number(U8) != 0)


def _put_promise(promise: Promise) -> bytes:
    candidate = promise.candidate
    return b"".join(
        (
            U8.pack(promise.purpose),
            put_text(candidate.node),
            put_hex(candidate.incarnation, INCARNATION_SIZE),
            put_hex(candidate.process, PROCESS_SIZE),
        )
    )


def _take_promise(reader: Reader) -> Promise:
    purpose = reader.one_of(PromisePurpose)
    node = reader.text()
    candidate = Holder(node, reader.hex(INCARNATION_SIZE), reader.hex(PROCESS_SIZE))
    return Promise(purpose, candidate)


def _take_promise_ok(reader: Reader) -> PromiseOk:
    return PromiseOk(*reader.offsets(5))


def _put_status(status: Status, version: int) -> bytes:
    return put_numbers(status.asked_ms) if version >= WITH_CLOCKS else b""


def _take_status(reader: Reader, version: int) -> Status:
    return Status(reader.offset()) if version >= WITH_CLOCKS else Status()


def _put_status_ok(status: StatusOk, version: int) -> bytes:
    facts = json.dumps(status.facts, separators=(",", ":"), allow_nan=False).encode()
    if len(facts) > FACTS_SIZE_MAX or len(status.in_sync) > MEMBERS_MAX:
        raise ValueError(f"{len(facts)} bytes of facts and {len(status.in_sync)} members")
    members = [
        put_text(member.node) + put_hex(member.incarnation, INCARNATION_SIZE)
        for member in status.in_sync
    ]
    return b"".join(
        (
            put_text(status.node),
            put_hex(status.incarnation, INCARNATION_SIZE),
            put_text(status.state),
            U8.pack(status.initialised),
            U8.pack(status.holds_records),
            put_numbers(status.promised, status.data_epoch, status.first_offset),
            put_numbers(status.end, status.durable, status.confirm),
            put_numbers(status.seen_epoch, status.in_sync_version),
            U8.pack(len(members)),
            *members,
            put_numbers(status.asked_ms, status.wall_ms) if version >= WITH_CLOCKS else b"",
            facts,
        )
    )


def _take_status_ok(reader: Reader, version: int) -> StatusOk:
    node, incarnation, state = reader.text(), reader.hex(INCARNATION_SIZE), reader.text()
    initialised, holds_records = reader.flag(), reader.flag()
    promised, data_epoch, first, end, durable, confirm, seen_epoch, seen_set = reader.offsets(8)
    count = reader.number(U8)
    members = tuple(Member(reader.text(), reader.hex(INCARNATION_SIZE)) for _ in range(count))
    asked_ms, wall_ms = reader.offsets(2) if version >= WITH_CLOCKS else (0, 0)
    return StatusOk(
        node=node,
        incarnation=incarnation,
        state=state,
        initialised=initialised,
        holds_records=holds_records,
        promised=promised,
        data_epoch=data_epoch,
        first_offset=first,
        end=end,
        durable=durable,
        confirm=confirm,
        seen_epoch=seen_epoch,
        in_sync_version=seen_set,
        in_sync=members,
        facts=_facts(reader),
        asked_ms=asked_ms,
        wall_ms=wall_ms,
    )


def _facts(reader: Reader) -> dict[str, Any]:
    raw = reader.rest()
    if len(raw) > FACTS_SIZE_MAX:
        reader.refuse(f"{len(raw)} bytes of facts; the most is {FACTS_SIZE_MAX}")
    try:
        facts = json.loads(str(raw, "utf-8"))
    except (ValueError, RecursionError):
        reader.refuse("facts that are not JSON")
    if not isinstance(facts, dict):
        reader.refuse("facts that are not a JSON object")
    return facts


_TYPE_OF: Final[dict[type, FrameType]] = {
    Hello: FrameType.HELLO,
    HelloOk: FrameType.HELLO_OK,
    ResyncRequired: FrameType.RESYNC_REQUIRED,
    Append: FrameType.APPEND,
    Ack: FrameType.ACK,
    Promise: FrameType.PROMISE,
    PromiseOk: FrameType.PROMISE_OK,
    Status: FrameType.STATUS,
    StatusOk: FrameType.STATUS_OK,
    Fenced: FrameType.FENCED,
    CampaignNow: FrameType.CAMPAIGN_NOW,
}
# Called with the version of the link, which only the types changed since version 1 use.
_ENCODERS: Final[dict[FrameType, Callable[[Any, int], bytes]]] = {
    FrameType.HELLO: lambda hello, _: _put_hello(hello),
    FrameType.HELLO_OK: lambda ok, _: _put_hello_ok(ok),
    FrameType.RESYNC_REQUIRED: lambda required, _: _put_resync(required),
    FrameType.APPEND: lambda append, _: _put_append(append),
    FrameType.ACK: _put_ack,
    FrameType.PROMISE: lambda promise, _: _put_promise(promise),
    FrameType.PROMISE_OK: lambda ok, _: put_numbers(*ok),
    FrameType.STATUS: _put_status,
    FrameType.STATUS_OK: _put_status_ok,
    FrameType.FENCED: lambda fenced, _: put_numbers(fenced.promised),
    FrameType.CAMPAIGN_NOW: lambda now, _: put_numbers(now.end),
}
_DECODERS: Final[dict[FrameType, Callable[[Reader, int], Payload]]] = {
    FrameType.HELLO: lambda reader, _: _take_hello(reader),
    FrameType.HELLO_OK: lambda reader, _: _take_hello_ok(reader),
    FrameType.RESYNC_REQUIRED: lambda reader, _: _take_resync(reader),
    FrameType.APPEND: lambda reader, _: _take_append(reader),
    FrameType.ACK: _take_ack,
    FrameType.PROMISE: lambda reader, _: _take_promise(reader),
    FrameType.PROMISE_OK: lambda reader, _: _take_promise_ok(reader),
    FrameType.STATUS: _take_status,
    FrameType.STATUS_OK: _take_status_ok,
    FrameType.FENCED: lambda reader, _: Fenced(reader.offset()),
    FrameType.CAMPAIGN_NOW: lambda reader, _: CampaignNow(reader.offset()),
}
