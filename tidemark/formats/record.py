"""Commit log record V1/V2 and the BLANK filler: encode and decode (docs/formats.md, 2). Pure.

One record is one message. It never crosses a file's border, and at least 8 bytes stay free after
it. ``record_layout`` defines the fields, ``record_check`` validates bytes; names of both that other
modules need are exported here too. ``runs`` encodes many records for an append; ``scan`` reads
many.
"""

from __future__ import annotations

import functools
import struct
import zlib
from typing import NamedTuple

from tidemark.formats import hosts, ids, properties
from tidemark.formats.hosts import Host
from tidemark.formats.record_check import SHAPE_ONLY, Checks, Kind, Outcome, validate
from tidemark.formats.record_layout import (
    BLANK_SIZE,
    BORN_HOST_V6,
    CRC_PROPERTY_SIZE,
    HEAD,
    INT,
    LONG,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    NO_HOSTS_SIZE,
    PREFIXES,
    RECORD_SIZE_MIN,
    STORE_HOST_V6,
    SYS_FLAG_AT,
    TOPIC_SIZE_MAX,
    TOPIC_SIZE_V1_MAX,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    Buffer,
)
from tidemark.offsets import PhysicalOffset, QueueOffset

__all__ = [
    "BLANK_SIZE",
    "BORN_HOST_V6",
    "CRC_PROPERTY_SIZE",
    "MAGIC_BLANK",
    "MAGIC_V1",
    "MAGIC_V2",
    "RECORD_SIZE_MIN",
    "SHAPE_ONLY",
    "STORE_HOST_V6",
    "TOPIC_SIZE_MAX",
    "TOPIC_SIZE_V1_MAX",
    "TRANSACTION_COMMIT",
    "TRANSACTION_MASK",
    "TRANSACTION_PREPARED",
    "TRANSACTION_ROLLBACK",
    "Buffer",
    "BufferTooSmall",
    "Checks",
    "FieldOutOfRange",
    "Kind",
    "Message",
    "Outcome",
    "PropertiesTooLarge",
    "Record",
    "RecordError",
    "TopicTooLong",
    "UndecodableRecord",
    "decode",
    "encode",
    "encode_blank",
    "encoded_size",
    "peek_size",
    "peek_store_timestamp",
    "topic_text",
    "validate",
]


class RecordError(ValueError):
    """A message that cannot be encoded. Nothing was written."""


class PropertiesTooLarge(RecordError):
    """More than 32,767 bytes of properties, including the record CRC."""


class TopicTooLong(RecordError):
    """More than 255 bytes of topic."""


class FieldOutOfRange(RecordError):
    """A number that does not fit its field, or an invalid host."""


class BufferTooSmall(RecordError):
    """The records do not fit into the buffer."""


class UndecodableRecord(ValueError):
    """The bytes are not one complete record."""


class Message(NamedTuple):
    """The contents of a record, without the fields that the append assigns."""

    topic: str
    queue_id: int
    body: bytes | memoryview
    born_host: Host
    store_host: Host
    properties: bytes = b""
    """Encoded pairs. A ``__CRC32#`` among them is dropped when the record is encoded."""
    flag: int = 0
    sys_flag: int = 0
    """The V6 bits are set according to the hosts."""
    born_timestamp_ms: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


@functools.lru_cache(maxsize=4096)
def _topic_field(topic: str) -> tuple[bytes, int]:
    """Return (length and bytes, magic): the length of the topic determines the version."""
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
    """Size of the message's record in bytes. Raises TopicTooLong, PropertiesTooLarge."""
    return (
        NO_HOSTS_SIZE
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
    """Encode the message's record for physical_offset. Raises RecordError."""
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
    prefix = PREFIXES[born_is_v6 + 2 * store_is_v6]
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


def encode_blank(room: int) -> bytes:
    """Encode the 8 bytes after a file's last record. room: from there to the end of the file."""
    return HEAD.pack(room, MAGIC_BLANK)


class Record(NamedTuple):
    """A decoded record. ``body`` borrows from the view that was decoded."""

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
    """As stored, including a record CRC property."""

    @property
    def message_id(self) -> str:
        """The offset message id (2.8)."""
        return ids.offset_id(self.store_host, self.physical_offset)

    @property
    def property_map(self) -> dict[str, str]:
        """All properties (2.6), including ``__CRC32#``."""
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
    """Decode a stored topic, cached so that equal topics share one object."""
    return properties.text(raw)


def decode(view: Buffer, start: int = 0) -> Record:
    """Decode the record at view[start] without verifying CRCs: see ``validate``.

    Raises UndecodableRecord if the bytes are not one complete record.
    """
    outcome = validate(view, start, at=None, checks=SHAPE_ONLY)
    if outcome.kind is not Kind.VALID:
        raise UndecodableRecord(outcome.reason or "it is a filler, not a record")
    (sys_flag,) = INT.unpack_from(view, start + SYS_FLAG_AT)
    prefix = PREFIXES[sys_flag >> 4 & 3]
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
    # One copy of everything after the body; the body itself is borrowed.
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
    """TOTALSIZE as stored at view[start], unverified; 0 if the view is too short."""
    if not 0 <= start <= len(view) - 4:
        return 0
    size: int = INT.unpack_from(view, start)[0]
    return size


def peek_store_timestamp(view: Buffer, start: int) -> int | None:
    """STORETIMESTAMP of the record at view[start], unverified.

    None if there is no message magic or the view is too short.
    """
    if not 0 <= start <= len(view) - SYS_FLAG_AT - 4:
        return None
    if INT.unpack_from(view, start + 4)[0] not in (MAGIC_V1, MAGIC_V2):
        return None
    (sys_flag,) = INT.unpack_from(view, start + SYS_FLAG_AT)
    at = start + (68 if sys_flag & BORN_HOST_V6 else 56)
    if at + 8 > len(view):
        return None
    store_timestamp: int = LONG.unpack_from(view, at)[0]
    return store_timestamp
