"""Commit log record V1/V2 and the BLANK filler (docs/formats.md, section 2). Pure.

One record is one message. It never crosses a file's border and at least 8 bytes stay free behind
it. What is checked here needs the record's own bytes and its position only: lengths against each
other, the body's CRC, and the record CRC property where there is one. ``scan`` has the same rules
for many records in a row.

In a record's walk: (3) ``append`` numbered the message; this is (4); (5) ``commit_log`` puts the
bytes.
"""

from __future__ import annotations

import functools
import operator
import struct
import zlib
from collections.abc import Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from tidemark.formats import hosts, ids, properties
from tidemark.formats.hosts import Host
from tidemark.offsets import PhysicalOffset, QueueOffset

Buffer = bytes | bytearray | memoryview

MAGIC_V1: Final = -626843481
MAGIC_V2: Final = -626843477
MAGIC_BLANK: Final = -875286124
BLANK_SIZE: Final = 8
CRC_PROPERTY_SIZE: Final = properties.CRC_SLOT_SIZE
RECORD_SIZE_MIN: Final = 91
"""V1, IPv4 hosts, nothing variable."""
TOPIC_SIZE_V1_MAX: Final = 127
"""V1 stores a topic's length in a signed byte."""
TOPIC_SIZE_MAX: Final = 255

TRANSACTION_MASK: Final = 0xC
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC
BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20

_HEAD: Final = struct.Struct(">ii")
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_PHYSICAL_OFFSET_AT: Final = 28
_SYS_FLAG_AT: Final = 36
_SHAPES: Final = ((8, 8), (20, 8), (8, 20), (20, 20))
# Everything before the body, indexed by the two V6 bits: (sys_flag >> 4) & 3.
_PREFIXES: Final = tuple(struct.Struct(f">iiiiiqqiq{born}sq{store}siqi") for born, store in _SHAPES)
_NO_HOSTS_SIZE: Final = 56 + 16  # the prefix without its two hosts
_SLOT_DATA_AT: Final = len(properties.CRC_SLOT_NAME)


class RecordError(ValueError):
    """A message that cannot be encoded. Nothing was written."""


class PropertiesTooLarge(RecordError):
    """More than 32,767 bytes of properties, the record CRC included."""


class TopicTooLong(RecordError):
    """More than 255 bytes of topic."""


class FieldOutOfRange(RecordError):
    """A number that its field cannot hold, or a host that is none."""


class BufferTooSmall(RecordError):
    """The records do not fit where they should go."""


class UndecodableRecord(ValueError):
    """The bytes are not one whole record."""


class Message(NamedTuple):
    """What a record is made of, apart from what only the append knows."""

    topic: str
    queue_id: int
    body: bytes | memoryview
    born_host: Host
    store_host: Host
    properties: bytes = b""
    """Encoded pairs. A ``__CRC32#`` among them is left out when the record is made."""
    flag: int = 0
    sys_flag: int = 0
    """The V6 bits are set and cleared to fit the hosts."""
    born_timestamp_ms: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


@functools.lru_cache(maxsize=4096)
def _topic_field(topic: str) -> tuple[bytes, int]:
    """(length and bytes, magic): the length of the topic decides the version."""
    raw = topic.encode(errors="replace")
    if len(raw) > TOPIC_SIZE_MAX:
        raise TopicTooLong(f"a topic of {len(raw)} bytes; at most {TOPIC_SIZE_MAX} are possible")
    if len(raw) > TOPIC_SIZE_V1_MAX:
        return len(raw).to_bytes(2, "big") + raw, MAGIC_V2
    return len(raw).to_bytes(1, "big") + raw, MAGIC_V1


@functools.lru_cache(maxsize=4096)
def _host_field(host: Host) -> bytes:
    return hosts.encode(host)


def _properties_size(raw: bytes, record_crc: bool) -> int:
    size = len(raw)
    if record_crc:
        size += CRC_PROPERTY_SIZE + (1 if raw and raw[-1] != properties.PAIR_END else 0)
    if size > properties.PROPERTIES_SIZE_MAX:
        raise PropertiesTooLarge(
            f"{size} bytes of properties; at most {properties.PROPERTIES_SIZE_MAX} are possible"
        )
    return size


def encoded_size(message: Message, *, record_crc: bool) -> int:
    """Bytes that the message's record takes. Raises TopicTooLong, PropertiesTooLarge."""
    return (
        _NO_HOSTS_SIZE
        + (hosts.V6_SIZE if message.born_host.is_v6 else hosts.V4_SIZE)
        + (hosts.V6_SIZE if message.store_host.is_v6 else hosts.V4_SIZE)
        + len(message.body)
        + len(_topic_field(message.topic)[0])
        + 2
        + _properties_size(properties.strip_crc(message.properties), record_crc)
    )


def encode(
    message: Message,
    *,
    queue_offset: int,
    physical_offset: int,
    store_timestamp_ms: int,
    record_crc: bool,
) -> bytes:
    """The message's record, ready to stand at physical_offset. Raises RecordError."""
    (
        topic,
        queue_id,
        body,
        born_host,
        store_host,
        raw,
        flag,
        sys_flag,
        born_timestamp_ms,
        reconsume_times,
        prepared_transaction_offset,
    ) = message
    topic_field, magic = _topic_field(topic)
    raw = properties.strip_crc(raw)
    raw_size = _properties_size(raw, record_crc)
    born_is_v6, store_is_v6 = len(born_host[0]) == 16, len(store_host[0]) == 16
    sys_flag = sys_flag & ~0x30 | born_is_v6 << 4 | store_is_v6 << 5
    prefix = _PREFIXES[born_is_v6 + 2 * store_is_v6]
    body_size = len(body)
    size = prefix.size + body_size + len(topic_field) + 2 + raw_size
    try:
        head = prefix.pack(
            size,
            magic,
            zlib.crc32(body) & 0x7FFFFFFF,
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            sys_flag,
            born_timestamp_ms,
            _host_field(born_host),
            store_timestamp_ms,
            _host_field(store_host),
            reconsume_times,
            prepared_transaction_offset,
            body_size,
        )
    except (struct.error, ValueError) as error:
        raise FieldOutOfRange(f"a field of the record cannot hold its value: {error}") from None
    if not record_crc:
        return b"".join((head, body, topic_field, raw_size.to_bytes(2, "big"), raw))
    inset = properties.crc_slot_inset(raw)
    covered = b"".join((head, body, topic_field, raw_size.to_bytes(2, "big"), raw, inset))
    return covered + properties.crc_slot(zlib.crc32(covered) & 0x7FFFFFFF)


def encode_into(
    buffer: bytearray | memoryview,
    start: int,
    message: Message,
    *,
    queue_offset: int,
    physical_offset: int,
    store_timestamp_ms: int,
    record_crc: bool,
) -> int:
    """Write the message's record at buffer[start]; return its size.

    Raises RecordError, then nothing is written: BufferTooSmall, TopicTooLong, PropertiesTooLarge,
    FieldOutOfRange.
    """
    record = encode(
        message,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        store_timestamp_ms=store_timestamp_ms,
        record_crc=record_crc,
    )
    _put(buffer, start, record)
    return len(record)


def encode_batch(
    buffer: bytearray | memoryview,
    messages: Sequence[Message],
    *,
    queue_offsets: Sequence[int],
    physical_offset: int,
    store_timestamp_ms: int,
    record_crc: bool,
) -> list[int]:
    """Write the messages' records from buffer[0] on, adjacent, in order; return their sizes.

    physical_offset: of the first; one store time for all. All or none: raises RecordError as
    encode_into does, and ValueError if there is not one queue offset for each message.
    """
    records: list[bytes] = []
    at = physical_offset
    for message, queue_offset in zip(messages, queue_offsets, strict=True):
        record = encode(
            message,
            queue_offset=queue_offset,
            physical_offset=at,
            store_timestamp_ms=store_timestamp_ms,
            record_crc=record_crc,
        )
        records.append(record)
        at += len(record)
    _put(buffer, 0, b"".join(records))
    return [len(record) for record in records]


def _put(buffer: bytearray | memoryview, start: int, data: bytes) -> None:
    if not 0 <= start <= len(buffer) - len(data):
        raise BufferTooSmall(f"{len(data)} bytes do not fit at {start} of {len(buffer)}")
    buffer[start : start + len(data)] = data


def encode_blank(room: int) -> bytes:
    """The 8 bytes at the end of a file's records; room: from there to the end of the file."""
    return _HEAD.pack(room, MAGIC_BLANK)


class Kind(Enum):
    """What stands at a place of the log."""

    VALID = auto()
    BLANK = auto()
    """The end of this file's records: go on in the next file, trust nothing behind."""
    BAD = auto()
    """No record, or a damaged one."""
    INCONSISTENT = auto()
    """A record's head whose lengths contradict its size."""
    INCOMPLETE = auto()
    """So far a record, but it goes on past the view: wait for more, or a torn write."""


class Outcome(NamedTuple):
    """Result of ``validate``."""

    kind: Kind
    size: int
    """The record's size, or the filler's; 0 if it is not known."""
    reason: str = ""
    """For people: why it is not VALID."""


class Checks(NamedTuple):
    """What ``validate`` and ``walk`` verify beyond the record's shape."""

    body_crc: bool = True
    record_crc: bool = True
    """Verify the record CRC property where there is one."""
    position: bool = True
    """The stored physical offset is the record's place."""
    require_record_crc: bool = False
    """A record without a record CRC property is BAD. For what we wrote with it on."""


SHAPE_ONLY: Final = Checks(body_crc=False, record_crc=False, position=False)


def validate(view: Buffer, start: int, *, at: int | None, checks: Checks) -> Outcome:
    """Judge the bytes at view[start]; never raises, whatever they are.

    view: from some record's start to the end of what may be read. at: physical offset of
    view[start]; None if it is not known, the position is then not compared.
    """
    room = len(view) - start
    if start < 0 or room < BLANK_SIZE:
        return Outcome(Kind.INCOMPLETE, 0, "the view ends inside the first 8 bytes")
    size, magic = _HEAD.unpack_from(view, start)
    if magic == MAGIC_BLANK:
        return Outcome(Kind.BLANK, size if size >= BLANK_SIZE else 0)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        if size == 0 and magic == 0:
            return Outcome(Kind.BAD, 0, "zeros")
        return Outcome(Kind.BAD, 0, f"magic {magic & 0xFFFFFFFF:#010x} is none of a record")
    if size < RECORD_SIZE_MIN:
        return Outcome(Kind.BAD, 0, f"size {size} is less than any record's")
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
    """Check the lengths against the size, as far as the view shows them, and the position.

    Returns the size of the properties with it, 0 unless VALID.
    """
    room = len(view) - start
    cut = Outcome(Kind.INCOMPLETE, size, f"of {size} bytes only {room} are there"), 0
    if room < _SYS_FLAG_AT + 4:
        return cut
    if at is not None:
        (stored,) = _LONG.unpack_from(view, start + _PHYSICAL_OFFSET_AT)
        if stored != at:
            return Outcome(Kind.BAD, size, f"stored physical offset {stored}, not {at}"), 0
    (sys_flag,) = _INT.unpack_from(view, start + _SYS_FLAG_AT)
    body_at = _PREFIXES[sys_flag >> 4 & 3].size
    if room < body_at:
        return cut
    (body_size,) = _INT.unpack_from(view, start + body_at - 4)
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
        return Outcome(Kind.INCONSISTENT, size, f"the fields make {total} bytes, not {size}"), 0
    return (Outcome(Kind.VALID, size), properties_size) if room >= size else cut


def _body_fault(view: Buffer, start: int) -> str:
    (sys_flag,) = _INT.unpack_from(view, start + _SYS_FLAG_AT)
    body_at = start + _PREFIXES[sys_flag >> 4 & 3].size
    (body_size,) = _INT.unpack_from(view, body_at - 4)
    if body_size == 0:
        return ""  # as the reference: an empty body's CRC is not looked at
    (stored,) = _INT.unpack_from(view, start + 8)
    with memoryview(view) as whole, whole[body_at : body_at + body_size] as body:
        crc = zlib.crc32(body) & 0x7FFFFFFF
    return "" if crc == stored else f"body crc {crc:#010x}, stored {stored & 0xFFFFFFFF:#010x}"


def record_crc_fault(
    view: Buffer, start: int, size: int, properties_size: int, *, required: bool
) -> str:
    """Why the record CRC of the well-shaped record at view[start] is wrong; "" if it is not.

    The property is a record's last 20 bytes. One that is damaged itself must not pass for a record
    without: what differs in a bit or two from the place where it starts, or in one or two bytes
    from its name, is a damaged one.
    """
    end = start + size
    # Asked for first: else a body that ends in the property's name, followed by a short topic
    # and no properties, would be read as a damaged record.
    if properties_size < CRC_PROPERTY_SIZE:
        return "record crc: there is none" if required else ""
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
        # Else it is the end of a longer value, which may hold 0x01 and the name: no CRC at all.
        if (before ^ properties.PAIR_END).bit_count() <= 1:
            return f"record crc {crc}, stored {digits[::-1]!r}"
    elif digits.isdigit() and slot[-1] == properties.PAIR_END:
        differing: int = sum(map(operator.ne, slot, name))
        if differing <= 2:
            return "record crc: the property's name is damaged"
    return "record crc: there is none" if required else ""


class Record(NamedTuple):
    """A decoded record. ``body`` borrows from the view it was read from."""

    size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: QueueOffset
    physical_offset: PhysicalOffset
    sys_flag: int
    born_timestamp_ms: int
    born_host: Host
    store_timestamp_ms: int
    store_host: Host
    reconsume_times: int
    prepared_transaction_offset: int
    body: memoryview
    topic: str
    properties: bytes
    """As stored, a record CRC property included."""

    @property
    def message_id(self) -> str:
        """The offset id (2.8)."""
        return ids.offset_id(self.store_host, self.physical_offset)

    @property
    def property_map(self) -> dict[str, str]:
        """All properties as readers see them (2.6), ``__CRC32#`` included."""
        return properties.parse(self.properties)

    @property
    def tags(self) -> str | None:
        """The TAGS property; None if it is missing or empty."""
        value = properties.find(self.properties, b"TAGS")
        return None if value is None else properties.text(value)

    @property
    def keys(self) -> list[str]:
        """The KEYS property, split at single spaces (U+0020) only, without empty ones."""
        value = properties.find(self.properties, b"KEYS")
        return [] if value is None else [key for key in properties.text(value).split(" ") if key]

    @property
    def unique_id(self) -> str | None:
        """The UNIQ_KEY property; None if it is missing or empty."""
        value = properties.find(self.properties, b"UNIQ_KEY")
        return None if value is None else properties.text(value)

    @property
    def transaction(self) -> int:
        """The two transaction bits: 0, or one of the three TRANSACTION values."""
        return self.sys_flag & TRANSACTION_MASK


@functools.lru_cache(maxsize=4096)
def _host_of(raw: bytes) -> Host:
    return hosts.decode(raw, v6=len(raw) == hosts.V6_SIZE)


@functools.lru_cache(maxsize=4096)
def topic_text(raw: bytes) -> str:
    """A stored topic's text; one object for equal topics."""
    return properties.text(raw)


def decode(view: Buffer, start: int = 0) -> Record:
    """Decode the record at view[start]. No CRC is verified: see ``validate``.

    Raises UndecodableRecord if the bytes are not one whole record.
    """
    outcome = validate(view, start, at=None, checks=SHAPE_ONLY)
    if outcome.kind is not Kind.VALID:
        raise UndecodableRecord(outcome.reason or "a filler, no record")
    (sys_flag,) = _INT.unpack_from(view, start + _SYS_FLAG_AT)
    prefix = _PREFIXES[sys_flag >> 4 & 3]
    (
        size,
        magic,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        _,
        born_timestamp_ms,
        born_host,
        store_timestamp_ms,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        body_size,
    ) = prefix.unpack_from(view, start)
    body_at = start + prefix.size
    length_at = body_at + body_size
    # One copy of what stands behind the body; the body itself is borrowed.
    tail = bytes(view[length_at : start + size])
    topic_at = 1 if magic == MAGIC_V1 else 2
    topic_end = topic_at + int.from_bytes(tail[:topic_at], "big")
    return Record(
        size,
        magic,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp_ms,
        _host_of(born_host),
        store_timestamp_ms,
        _host_of(store_host),
        reconsume_times,
        prepared_transaction_offset,
        memoryview(view)[body_at:length_at],
        topic_text(tail[topic_at:topic_end]),
        tail[topic_end + 2 :],
    )


def peek_size(view: Buffer, start: int) -> int:
    """TOTALSIZE as stored at view[start], unverified; 0 if the view ends before it does."""
    if not 0 <= start <= len(view) - 4:
        return 0
    size: int = _INT.unpack_from(view, start)[0]
    return size


def peek_store_timestamp(view: Buffer, start: int) -> int | None:
    """STORETIMESTAMP of the record at view[start], unverified.

    None if there is no message magic or the view ends before the field does.
    """
    if not 0 <= start <= len(view) - _SYS_FLAG_AT - 4:
        return None
    if _INT.unpack_from(view, start + 4)[0] not in (MAGIC_V1, MAGIC_V2):
        return None
    (sys_flag,) = _INT.unpack_from(view, start + _SYS_FLAG_AT)
    at = start + (68 if sys_flag & BORN_HOST_V6 else 56)
    if at + 8 > len(view):
        return None
    store_timestamp: int = _LONG.unpack_from(view, at)[0]
    return store_timestamp
