"""Payloads: a typed value per frame type (docs/replication.md, frames). Pure.

``frame`` encodes a value, ``parse`` decodes a frame or raises BadFrame. A payload is a map of
msgpack from field names to values. A receiver ignores names that it does not know, so a later
version may add fields with defaults. APPEND and ACK are binary: they carry every byte of the log.
HELLO, PROMISE_OK and STATUS_OK also report log ends, but only those in ACK are acknowledgements.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta, Struct

from services.ha.lease.value import Holder, Incarnation, Member, NodeName
from services.ha.wire import version_2
from services.ha.wire.frames import BadFrame, Frame, FrameType
from services.ha.wire.payload_fields import Reader
from services.ha.wire.versions import SPOKEN, WITH_MSGPACK
from tidemark.formats.epochs import EpochStart

I64_MAX: Final = (1 << 63) - 1
MEMBERS_MAX: Final = 255
TABLE_ENTRIES_MAX: Final = 1000
REASON_SIZE_MAX: Final = 65_536

Offset = Annotated[int, Meta(ge=0, le=I64_MAX)]
"""An offset, an epoch or a time: an i64 that is not negative."""
Table = Annotated[tuple[EpochStart, ...], Meta(max_length=TABLE_ENTRIES_MAX)]
"""Entries of an epoch table; epochs and starts ascend."""
Text = Annotated[str, Meta(max_length=255)]
Reason = Annotated[str, Meta(max_length=REASON_SIZE_MAX)]
U16 = Annotated[int, Meta(ge=0, lt=1 << 16)]
U32 = Annotated[int, Meta(ge=0, lt=1 << 32)]

_APPEND: Final = struct.Struct(">qqqqQI")
_ACK: Final = struct.Struct(">qqQ?")


class Hello(Struct, frozen=True):
    """Slave to master: identity and log of the slave; begins the divergence check of a link."""

    group: Text
    node: NodeName
    incarnation: Incarnation
    version: U16
    """Version of the protocol, as agreed in the handshake."""
    file_size: Offset
    """Size of a commit log file, bytes."""
    promised: Offset
    first_offset: Offset
    end: Offset
    durable: Offset
    confirm: Offset
    table: Table


class HelloOk(Struct, frozen=True, omit_defaults=True):
    """Master to slave: the end of the common history, according to the tables."""

    point: Offset
    crc: U32
    """CRC-32 of the ``crc_size`` bytes before point, in the master's log."""
    crc_size: U32
    """At most 64 KiB, less if one of the logs begins later; 0: there is nothing to compare."""
    first_offset: Offset
    end: Offset
    confirm: Offset
    table: Table
    """The master's table from the common entry on; the whole one for an empty slave."""
    foreign: tuple[Offset, Offset] = (0, 0)
    """[from, until) of the master's log that RocketMQ wrote. A record CRC there may be a copy of
    another record's and is not checked."""


class ResyncReason(IntEnum):
    """Why a slave must copy everything."""

    NO_COMMON_EPOCH = 1
    BELOW_FIRST_OFFSET = 2


class ResyncRequired(Struct, frozen=True):
    """Master to slave: there is no point from which to continue."""

    reason: ResyncReason
    first_offset: Offset
    """First offset of the master's log, where the copy begins."""
    end: Offset


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
    """Whether the slave's process is about to end, so that waiting for it is useless."""


class PromisePurpose(IntEnum):
    """Purpose of the epoch in PROMISE."""

    NEW_TERM = 1
    """The sender has won the lease with it."""
    CREATE_LEASE = 2
    """The sender is master, its lease object is gone, and it wants to create it with this epoch."""


class Promise(Struct, frozen=True):
    """To every node: respect nothing below this frame's epoch."""

    purpose: PromisePurpose
    candidate: Holder


class PromiseOk(Struct, frozen=True):
    """The epoch is promised on disk."""

    previous: Offset
    """The epoch that was promised before."""
    last_data_epoch: Offset
    end: Offset
    durable: Offset
    confirm: Offset


class Status(Struct, frozen=True, omit_defaults=True):
    """Request of a node's status. Answered at any epoch; promises nothing."""

    asked_ms: Offset = 0
    """Time of the request by the sender's boot clock; 0: unknown."""


class Facts(Struct, frozen=True, omit_defaults=True):
    """What a node reports about its ability to lead, besides its log."""

    reason: Reason = ""
    """Why it is not in a better state, or should not lead."""
    trouble: Reason = ""
    """Trouble because of which another member should lead; empty: none."""
    stalls_are_over: bool = False
    """Whether the trouble is only stalls, and all services move again."""
    stalled_ms: Offset = 0
    """Recent stalls of its services, in sum."""
    services_move: bool = msgspec.field(default=True, name="broker")
    """Whether broker and reput run and move, and ha's disk writes."""
    open: bool = True
    """Whether a master accepts sends; other states ignore it."""
    refused_at: Offset | None = None
    """Offset at which a slave refused the bytes of its master."""
    hindrance: Reason = ""
    """Why a master does not accept sends yet."""
    in_sync_at: tuple[Offset, Offset] = (0, 0)
    """(epoch, version) of the lease that contained ``StatusOk.in_sync``."""
    lag_ms: Annotated[dict[NodeName, Offset | None], Meta(max_length=MEMBERS_MAX)] = {}
    """Lag of each slave, of a master."""
    members: Offset | None = None
    """Version of the group's nodes that it uses; None: an earlier release, which has none."""


class StatusOk(Struct, frozen=True, omit_defaults=True):
    """Status of a node."""

    node: NodeName
    incarnation: Incarnation
    state: Text
    """One of the replica's states."""
    initialised: bool
    """Whether the volume has belonged to this group."""
    holds_records: bool
    promised: Offset
    data_epoch: Offset
    """Epoch of the newest entry of its table; 0: the table is empty."""
    first_offset: Offset
    end: Offset
    durable: Offset
    confirm: Offset
    seen_epoch: Offset
    """The largest (epoch, in_sync_version) seen in the lease."""
    in_sync_version: Offset
    in_sync: Annotated[tuple[Member, ...], Meta(max_length=MEMBERS_MAX)]
    """The in-sync set that it knows."""
    facts: Facts
    asked_ms: Offset = 0
    """Time in the answered request; 0: none."""
    wall_ms: Offset = 0
    """The wall clock of the node, for ``peer_clock``; 0: unknown."""


class Fenced(Struct, frozen=True):
    """The receiver's epoch is over: the sender has promised a higher one, and closes."""

    promised: Offset


class CampaignNow(Struct, frozen=True):
    """Master to the target of a switch: the lease is released for it and can be taken at once."""

    end: Offset
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

_STRUCTS: Final[dict[FrameType, Any]] = {
    FrameType.HELLO: Hello,
    FrameType.HELLO_OK: HelloOk,
    FrameType.RESYNC_REQUIRED: ResyncRequired,
    FrameType.PROMISE: Promise,
    FrameType.PROMISE_OK: PromiseOk,
    FrameType.STATUS: Status,
    FrameType.STATUS_OK: StatusOk,
    FrameType.FENCED: Fenced,
    FrameType.CAMPAIGN_NOW: CampaignNow,
}
_TYPE_OF: Final = {struct: kind for kind, struct in _STRUCTS.items()}
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODERS: Final = {kind: msgspec.msgpack.Decoder(each) for kind, each in _STRUCTS.items()}


def frame(epoch: int, payload: Payload, version: int = SPOKEN.highest) -> Frame:
    """Return the frame with a payload. version: agreed on with the receiver.

    The receiver refuses a payload whose fields are out of bounds.
    """
    if isinstance(payload, Append):
        return Frame(FrameType.APPEND, epoch, _APPEND.pack(*payload[:6]) + payload.data)
    if isinstance(payload, Ack):
        return Frame(FrameType.ACK, epoch, _ACK.pack(*payload))
    kind = _TYPE_OF[type(payload)]
    if version < WITH_MSGPACK:
        return Frame(kind, epoch, version_2.encode(kind, payload))
    return Frame(kind, epoch, _ENCODER.encode(payload))


def parse(frame: Frame, version: int = SPOKEN.highest) -> Payload:
    """Return the payload of a frame; the bytes of APPEND borrow from it.

    version: agreed on with the sender. Raises BadFrame if the payload is cut, too long or invalid,
    and for frames of the handshake. Memory is bounded by the size of the frame: no length inside
    it is believed before that many bytes are there.
    """
    kind, data = frame.type, frame.payload
    if kind is FrameType.APPEND:
        return _take_append(Reader(data, kind.name))
    if kind is FrameType.ACK:
        return _take_ack(Reader(data, kind.name))
    if kind not in _STRUCTS:
        raise BadFrame(f"a {kind.name} frame after the handshake")
    try:
        payload: Payload = (
            msgspec.convert(version_2.decode(kind, data), _STRUCTS[kind])
            if version < WITH_MSGPACK
            else _DECODERS[kind].decode(data)
        )
    # UnicodeDecodeError: a text. RecursionError: a field that is ignored and nested too deeply.
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadFrame(f"{kind.name}: {error}") from error
    if isinstance(payload, Hello | HelloOk) and (contradiction := _contradiction(payload)):
        raise BadFrame(f"{kind.name}: {contradiction}")
    return payload


def _contradiction(payload: Hello | HelloOk) -> str | None:
    """Return why the fields of a payload cannot all be true; None: they can."""
    first, end = payload.first_offset, payload.end
    if isinstance(payload, Hello):
        if not first <= end or not payload.durable <= end:
            return f"a log from {first} to {end}, durable to {payload.durable}"
    else:
        if payload.foreign[0] > payload.foreign[1]:
            return f"a foreign range from {payload.foreign[0]} to {payload.foreign[1]}"
        point, crc_size = payload.point, payload.crc_size
        if not first <= point <= end or crc_size > point - first:
            return f"point {point} with {crc_size} bytes before it in a log {first} to {end}"
    epoch = start = -1
    for entry in payload.table:
        if not epoch < entry.epoch <= I64_MAX or not start < entry.start <= I64_MAX:
            return f"table entry {entry.epoch}-{entry.start} does not ascend after {epoch}-{start}"
        epoch, start = entry
    return None


def _take_append(reader: Reader) -> Append:
    data_epoch, start, offset, confirm, nonce, size = _APPEND.unpack(reader.take(_APPEND.size))
    if min(data_epoch, start, offset, confirm) < 0 or start > offset:
        reader.refuse(f"impossible: {data_epoch=} {start=} {offset=} {confirm=} {size=}")
    append = Append(data_epoch, start, offset, confirm, nonce, size, reader.take(size))
    reader.done()
    return append


def _take_ack(reader: Reader) -> Ack:
    # ``MasterLink`` checks that appended ≥ durable: a violation is a lie, not damage.
    ack = Ack(*_ACK.unpack(reader.take(_ACK.size)))
    if ack.appended < 0 or ack.durable < 0:
        reader.refuse(f"impossible: {ack}")
    reader.done()
    return ack
