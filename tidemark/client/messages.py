"""What a program gives and gets: messages to send, messages read, results. Values only.

A message read comes from one of two forms: raw commit log records (what ``pull`` asks for, decoded
with the codec of docs/formats.md, section 2) or the map of the API (what queries answer).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tidemark.client.batching import MESSAGE_OVERHEAD
from tidemark.formats import hashing, ids, properties, record
from tidemark.formats.record import Record


@dataclass(frozen=True, slots=True)
class NewMessage:
    """One message to send.

    queue: number of the queue; None lets the broker choose one for the request, or ``sharding_key``
    does: equal keys share a queue. At most one of delay_level, delay_ms, deliver_at_ms.
    """

    body: bytes
    tags: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    queue: int | None = None
    sharding_key: str | None = None
    flag: int = 0
    delay_level: int | None = None
    delay_ms: int | None = None
    deliver_at_ms: int | None = None

    def __post_init__(self) -> None:
        """Refuse what would be sent as something else than was meant."""
        if not isinstance(self.body, bytes | bytearray | memoryview):
            raise TypeError(f"body must be bytes, not {type(self.body).__name__}; encode it first")
        if isinstance(self.keys, str):
            raise TypeError('keys must be a list of strings: keys=["order-1"]')

    @property
    def weight(self) -> int:
        """Roughly the bytes that it adds to a request; what batches are bounded by."""
        size = len(self.body) + MESSAGE_OVERHEAD
        if self.keys:
            size += sum(map(len, self.keys))
        if self.properties:
            size += sum(len(name) + len(value) for name, value in self.properties.items())
        return size

    def to_wire(self) -> dict[str, object]:
        """The map of the API; what was not given is left out."""
        wire: dict[str, object] = {"body": self.body}
        if self.tags is not None:
            wire["tags"] = self.tags
        if self.keys:
            wire["keys"] = list(self.keys)
        if self.properties:
            wire["properties"] = dict(self.properties)
        if self.queue is not None:
            wire["queue"] = self.queue
        if self.sharding_key is not None:
            wire["sharding_key"] = self.sharding_key
        if self.flag:
            wire["flag"] = self.flag
        if self.delay_level is not None:
            wire["delay_level"] = self.delay_level
        if self.delay_ms is not None:
            wire["delay_ms"] = self.delay_ms
        if self.deliver_at_ms is not None:
            wire["deliver_at_ms"] = self.deliver_at_ms
        return wire


class SendResult(NamedTuple):
    """Where one message was stored, and what that is worth.

    level: ``memory``, ``disk`` or ``replicated``, as reached; copies: on how many nodes.
    """

    message_id: str
    queue: int
    queue_offset: int
    physical_offset: int
    store_timestamp_ms: int
    level: str
    copies: int


@dataclass(frozen=True, slots=True)
class Message:
    """One stored message. Every field is as the broker stored it; the body is a copy of its own."""

    topic: str
    queue: int
    queue_offset: int
    body: bytes
    message_id: str
    unique_id: str | None
    physical_offset: int
    size: int
    tags: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]
    born_timestamp_ms: int
    store_timestamp_ms: int
    born_host: str
    store_host: str
    reconsume_times: int
    flag: int
    sys_flag: int
    body_crc: int
    tags_code: int | None
    prepared_transaction_offset: int

    @classmethod
    def from_record(cls, stored: Record) -> Message:
        """Take a decoded record. tags_code is None where it is a delivery time (section 3)."""
        found = stored.property_map
        tags = found.get(properties.TAGS)
        keys = found.get(properties.KEYS)
        delayed = stored.topic == hashing.SCHEDULE_TOPIC and properties.DELAY in found
        return cls(
            topic=stored.topic,
            queue=stored.queue_id,
            queue_offset=stored.queue_offset,
            body=bytes(stored.body),
            message_id=stored.message_id,
            unique_id=found.get(properties.UNIQ_KEY),
            physical_offset=stored.physical_offset,
            size=stored.size,
            tags=tags,
            keys=tuple(key for key in keys.split(" ") if key) if keys else (),
            properties=found,
            born_timestamp_ms=stored.born_timestamp_ms,
            store_timestamp_ms=stored.store_timestamp_ms,
            born_host=stored.born_host.text,
            store_host=stored.store_host.text,
            reconsume_times=stored.reconsume_times,
            flag=stored.flag,
            sys_flag=stored.sys_flag,
            body_crc=stored.body_crc,
            tags_code=None if delayed else hashing.tags_code(tags),
            prepared_transaction_offset=stored.prepared_transaction_offset,
        )

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Message:
        """Take the map of the API (msgpack: the body is bytes)."""
        fields = {name: wire[name] for name in _SAME_ON_THE_WIRE}
        return cls(keys=tuple(wire["keys"]), properties=dict(wire["properties"]), **fields)


_SAME_ON_THE_WIRE: Final = tuple(
    name for name in Message.__dataclass_fields__ if name not in ("keys", "properties")
)


class PullResult(NamedTuple):
    """What a pull gave. ``messages`` is empty, never missing, when there was nothing.

    next_offset: where to pull next. status: RocketMQ's word for why (docs/formats.md, section 11).
    """

    status: str
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[Message]


class RawPull(NamedTuple):
    """A pull as the broker answered it: whole records, one after another, not decoded."""

    status: str
    next_offset: int
    min_offset: int
    max_offset: int
    records: memoryview


class QueueRange(NamedTuple):
    """One queue of a topic: offsets [min_offset, max_offset) can be read."""

    queue: int
    min_offset: int
    max_offset: int


class Topic(NamedTuple):
    """A topic and its queues."""

    name: str
    queues: int
    ranges: tuple[QueueRange, ...]
    settings: dict[str, Any]
    """All that the broker says of it, as answered."""

    @property
    def write_queues(self) -> int:
        """Queues that take new messages: the first so many."""
        return int(self.settings.get("write_queues", self.queues))

    @property
    def system(self) -> bool:
        """Kept by the broker for itself."""
        return self.settings.get("system") is True


def decode_records(raw: memoryview) -> list[Message]:
    """Decode the records of a raw pull, in order; each body is checked against its CRC.

    Raises UndecodableRecord if what came is not what the broker stored.
    """
    return [Message.from_record(stored) for stored in iterate_records(raw)]


def iterate_records(raw: memoryview) -> Iterator[Record]:
    """Walk the records of a raw pull; bodies borrow from ``raw``.

    Raises UndecodableRecord at the first that is not whole or whose body does not fit its CRC.
    """
    start = 0
    while start < len(raw):
        stored = record.decode(raw, start)
        if stored.body and zlib.crc32(stored.body) & 0x7FFFFFFF != stored.body_crc:
            raise record.UndecodableRecord(
                f"the body of the record at byte {start} of the answer does not fit its CRC"
            )
        yield stored
        start += stored.size


def is_offset_id(text: str) -> bool:
    """Whether a message id is one that names a physical offset (section 2.8), by its form only.

    A unique id has the same length and alphabet; the broker is asked first by offset, then by key.
    """
    try:
        ids.parse_offset_id(text)
    except ValueError:
        return False
    return True
