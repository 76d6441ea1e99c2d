"""What frames say: a typed value per frame type (docs/replication.md, frames). Pure.

``frame(epoch, payload)`` makes a frame, ``parse(frame)`` takes one apart or raises BadFrame. Text
is u8 length and UTF-8, an incarnation 16 bytes, an offset or epoch i64 ≥ 0, a table u32 n and n ×
(epoch, start), both rising, the newest 1000. Ends that HELLO, PROMISE_OK and STATUS_OK report never
count as acknowledgements; only ACK's do.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

from services.ha.frames import BadFrame, Frame, FrameType
from services.ha.lease.value import Holder, Member
from tidemark.formats.epochs import EpochStart
from tidemark.offsets import Epoch, PhysicalOffset

TABLE_ENTRIES_MAX: Final = 1000
TEXT_SIZE_MAX: Final = 255
FACTS_SIZE_MAX: Final = 64 * 1024
MEMBERS_MAX: Final = 255
INCARNATION_SIZE: Final = 16
PROCESS_SIZE: Final = 8

_Kind = TypeVar("_Kind", bound=IntEnum)
_U8: Final = struct.Struct(">B")
_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_I64: Final = struct.Struct(">q")
_ENTRY: Final = struct.Struct(">qq")
_APPEND: Final = struct.Struct(">qqqqQI")


class Hello(NamedTuple):
    """Slave to master: who I am and what I have; begins a link's divergence check."""

    group: str
    node: str
    incarnation: str
    version: int
    """Of the protocol, as negotiated in the handshake."""
    file_size: int
    """Of a commit log file, bytes."""
    promised: int
    first_offset: int
    end: int
    durable: int
    confirm: int
    table: tuple[EpochStart, ...]


class HelloOk(NamedTuple):
    """Master to slave: up to where our logs are the same, as far as the tables tell."""

    point: int
    crc: int
    """CRC-32 of the ``crc_size`` bytes before point, in the master's log."""
    crc_size: int
    """At most 64 KiB, less if one of the logs begins later; 0: there is nothing to compare."""
    first_offset: int
    end: int
    confirm: int
    table: tuple[EpochStart, ...]
    """The master's, from the common entry on; the whole one if there is none (an empty slave)."""
    foreign: tuple[int, int] = (0, 0)
    """[from, until) of the master's log in which RocketMQ wrote: record CRCs there may be copies of
    other records', and judge nothing."""


class ResyncReason(IntEnum):
    """Why a slave must copy everything."""

    NO_COMMON_EPOCH = 1
    BELOW_FIRST_OFFSET = 2


class ResyncRequired(NamedTuple):
    """Master to slave: there is no point from which to go on."""

    reason: ResyncReason
    first_offset: int
    """Of the master: where the copy begins."""
    end: int


class Append(NamedTuple):
    """Master to slave: bytes of one epoch, or none: a heartbeat."""

    data_epoch: int
    epoch_start: int
    offset: int
    """Of the first byte; of a heartbeat, of the byte that would be sent next."""
    confirm: int
    nonce: int
    """Counts the frames of a link, so that an ACK says which it has seen."""
    size: int
    data: bytes | memoryview = b""
    """Empty when encoding what is streamed from the mapping: the bytes follow."""


class Ack(NamedTuple):
    """Slave to master: what is in my log, and what of it is on disk."""

    appended: int
    durable: int
    nonce: int
    """Of the last APPEND seen; 0: none on this link."""


class PromisePurpose(IntEnum):
    """What the sender of PROMISE wants the epoch for."""

    NEW_TERM = 1
    """It has won the lease with it."""
    CREATE_LEASE = 2
    """It is master, its lease object is gone, and it would create it with this epoch."""


class Promise(NamedTuple):
    """To every node: respect nothing below this frame's epoch."""

    purpose: PromisePurpose
    candidate: Holder


class PromiseOk(NamedTuple):
    """The epoch is promised, on disk."""

    previous: int
    """What was promised before."""
    last_data_epoch: int
    end: int
    durable: int
    confirm: int


class Status(NamedTuple):
    """What are you? Answered at any epoch, and promises nothing."""


class StatusOk(NamedTuple):
    """What a node says of itself."""

    node: str
    incarnation: str
    state: str
    """Of the replica's states."""
    initialised: bool
    """The volume has belonged to this group."""
    holds_records: bool
    promised: int
    data_epoch: int
    """Of the newest entry of its table; 0: it has none."""
    first_offset: int
    end: int
    durable: int
    confirm: int
    seen_epoch: int
    """The largest (epoch, in_sync_version) seen in the lease."""
    in_sync_version: int
    in_sync: tuple[Member, ...]
    """As it knows them."""
    facts: dict[str, Any]
    """For people: a JSON object, at most 64 KiB."""


class Fenced(NamedTuple):
    """Your epoch is over: I have promised a higher one, and close."""

    promised: int


class CampaignNow(NamedTuple):
    """Master to the target of a switch: the lease is released for you, take it at once."""

    end: int
    """Of the master's log; the target has all of it on disk."""


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


def frame(epoch: int, payload: Payload) -> Frame:
    """The frame that says it. Raises ValueError for what no frame can say."""
    kind = _TYPE_OF[type(payload)]
    return Frame(kind, epoch, _ENCODERS[kind](payload))


def parse(frame: Frame) -> Payload:
    """What a frame says; APPEND's bytes borrow from its payload.

    Raises BadFrame if the payload is cut, too long, or says what cannot be, and for the
    handshake's frames.
    """
    decode = _DECODERS.get(frame.type)
    if decode is None:
        raise BadFrame(f"a {frame.type.name} frame behind the handshake")
    reader = Reader(frame.payload, frame.type.name)
    payload = decode(reader)
    reader.done()
    return payload


class Reader:
    """Takes a payload apart, checking every length before it is used."""

    def __init__(self, data: bytes | memoryview, what: str) -> None:
        self._view = memoryview(data)
        self._what = what
        self._at = 0

    def refuse(self, reason: str) -> NoReturn:
        """Raise BadFrame with what is wrong and where."""
        raise BadFrame(f"{self._what}, byte {self._at} of the payload: {reason}")

    def take(self, size: int) -> memoryview:
        """The next size bytes."""
        if size > len(self._view) - self._at:
            self.refuse(f"ends {size - len(self._view) + self._at} bytes early")
        self._at += size
        return self._view[self._at - size : self._at]

    def number(self, form: struct.Struct) -> int:
        """One unsigned integer."""
        return int(form.unpack(self.take(form.size))[0])

    def offset(self) -> int:
        """An offset or an epoch: i64, not negative."""
        value = self.number(_I64)
        if value < 0:
            self.refuse(f"{value} is neither an offset nor an epoch")
        return value

    def offsets(self, count: int) -> list[int]:
        """So many of them."""
        return [self.offset() for _ in range(count)]

    def flag(self) -> bool:
        """One byte, 0 or 1."""
        value = self.number(_U8)
        if value > 1:
            self.refuse(f"{value} is no truth value")
        return value == 1

    def one_of(self, kind: type[_Kind]) -> _Kind:
        """One byte that names a member of an enumeration."""
        value = self.number(_U8)
        try:
            return kind(value)
        except ValueError:
            self.refuse(f"{value} is no {kind.__name__}")

    def text(self) -> str:
        """At most 255 bytes of UTF-8."""
        raw = self.take(self.number(_U8))
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError:
            self.refuse("text that is not UTF-8")

    def hex(self, size: int) -> str:
        """size bytes as hexadecimal digits."""
        return self.take(size).hex()

    def table(self) -> tuple[EpochStart, ...]:
        """An epoch table: epochs and starts rise."""
        count = self.number(_U32)
        if count > TABLE_ENTRIES_MAX:
            self.refuse(f"a table of {count} entries; the most is {TABLE_ENTRIES_MAX}")
        raw = self.take(count * _ENTRY.size)
        entries = [EpochStart(Epoch(e), PhysicalOffset(s)) for e, s in _ENTRY.iter_unpack(raw)]
        epoch = start = -1
        for entry in entries:
            if entry.epoch <= epoch or entry.start <= start:
                self.refuse(f"table entry {entry.epoch}-{entry.start} behind {epoch}-{start}")
            epoch, start = entry
        return tuple(entries)

    def rest(self) -> memoryview:
        """All that is left."""
        return self.take(len(self._view) - self._at)

    def done(self) -> None:
        """There must be nothing left."""
        if self._at != len(self._view):
            self.refuse(f"{len(self._view) - self._at} bytes too many")


def put_text(text: str) -> bytes:
    """Length and UTF-8. Raises ValueError for more than 255 bytes."""
    raw = text.encode()
    if len(raw) > TEXT_SIZE_MAX:
        raise ValueError(f"a text of {len(raw)} bytes; the most is {TEXT_SIZE_MAX}")
    return _U8.pack(len(raw)) + raw


def put_hex(digits: str, size: int) -> bytes:
    """Hexadecimal digits as size bytes. Raises ValueError for anything else."""
    raw = bytes.fromhex(digits)
    if len(raw) != size:
        raise ValueError(f"{digits!r} is not {2 * size} hexadecimal digits")
    return raw


def _put_numbers(*values: int) -> bytes:
    return struct.pack(f">{len(values)}q", *values)


def _put_table(entries: Sequence[EpochStart]) -> bytes:
    newest = entries[-TABLE_ENTRIES_MAX:]
    flat = [number for entry in newest for number in entry]
    return _U32.pack(len(newest)) + _put_numbers(*flat)


def _put_hello(hello: Hello) -> bytes:
    return b"".join(
        (
            put_text(hello.group),
            put_text(hello.node),
            put_hex(hello.incarnation, INCARNATION_SIZE),
            _U16.pack(hello.version),
            _put_numbers(hello.file_size, hello.promised, hello.first_offset),
            _put_numbers(hello.end, hello.durable, hello.confirm),
            _put_table(hello.table),
        )
    )


def _take_hello(reader: Reader) -> Hello:
    group, node = reader.text(), reader.text()
    incarnation = reader.hex(INCARNATION_SIZE)
    version = reader.number(_U16)
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
            _put_numbers(ok.point),
            _U32.pack(ok.crc),
            _U32.pack(ok.crc_size),
            _put_numbers(ok.first_offset, ok.end, ok.confirm, *ok.foreign),
            _put_table(ok.table),
        )
    )


def _take_hello_ok(reader: Reader) -> HelloOk:
    point, crc, crc_size = reader.offset(), reader.number(_U32), reader.number(_U32)
    first, end, confirm, foreign_from, foreign_until = reader.offsets(5)
    if foreign_from > foreign_until:
        reader.refuse(f"a foreign range from {foreign_from} to {foreign_until}")
    if not first <= point <= end or crc_size > point - first:
        reader.refuse(f"point {point} with {crc_size} bytes before it in a log {first} to {end}")
    foreign = foreign_from, foreign_until
    return HelloOk(point, crc, crc_size, first, end, confirm, reader.table(), foreign)


def _put_resync(required: ResyncRequired) -> bytes:
    return _U8.pack(required.reason) + _put_numbers(required.first_offset, required.end)


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


def _put_ack(ack: Ack) -> bytes:
    return _put_numbers(ack.appended, ack.durable) + _U64.pack(ack.nonce)


def _take_ack(reader: Reader) -> Ack:
    # appended ≥ durable is for ``MasterLink`` to judge: breaking it is a lie, not damage.
    return Ack(reader.offset(), reader.offset(), reader.number(_U64))


def _put_promise(promise: Promise) -> bytes:
    candidate = promise.candidate
    return b"".join(
        (
            _U8.pack(promise.purpose),
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


def _put_status_ok(status: StatusOk) -> bytes:
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
            _U8.pack(status.initialised),
            _U8.pack(status.holds_records),
            _put_numbers(status.promised, status.data_epoch, status.first_offset),
            _put_numbers(status.end, status.durable, status.confirm),
            _put_numbers(status.seen_epoch, status.in_sync_version),
            _U8.pack(len(members)),
            *members,
            facts,
        )
    )


def _take_status_ok(reader: Reader) -> StatusOk:
    node, incarnation, state = reader.text(), reader.hex(INCARNATION_SIZE), reader.text()
    initialised, holds_records = reader.flag(), reader.flag()
    promised, data_epoch, first, end, durable, confirm, seen_epoch, version = reader.offsets(8)
    count = reader.number(_U8)
    members = tuple(Member(reader.text(), reader.hex(INCARNATION_SIZE)) for _ in range(count))
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
        in_sync_version=version,
        in_sync=members,
        facts=_facts(reader),
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
_ENCODERS: Final[dict[FrameType, Callable[[Any], bytes]]] = {
    FrameType.HELLO: _put_hello,
    FrameType.HELLO_OK: _put_hello_ok,
    FrameType.RESYNC_REQUIRED: _put_resync,
    FrameType.APPEND: _put_append,
    FrameType.ACK: _put_ack,
    FrameType.PROMISE: _put_promise,
    FrameType.PROMISE_OK: lambda ok: _put_numbers(*ok),
    FrameType.STATUS: lambda _: b"",
    FrameType.STATUS_OK: _put_status_ok,
    FrameType.FENCED: lambda fenced: _put_numbers(fenced.promised),
    FrameType.CAMPAIGN_NOW: lambda now: _put_numbers(now.end),
}
_DECODERS: Final[dict[FrameType, Callable[[Reader], Payload]]] = {
    FrameType.HELLO: _take_hello,
    FrameType.HELLO_OK: _take_hello_ok,
    FrameType.RESYNC_REQUIRED: _take_resync,
    FrameType.APPEND: _take_append,
    FrameType.ACK: _take_ack,
    FrameType.PROMISE: _take_promise,
    FrameType.PROMISE_OK: _take_promise_ok,
    FrameType.STATUS: lambda _: Status(),
    FrameType.STATUS_OK: _take_status_ok,
    FrameType.FENCED: lambda reader: Fenced(reader.offset()),
    FrameType.CAMPAIGN_NOW: lambda reader: CampaignNow(reader.offset()),
}
