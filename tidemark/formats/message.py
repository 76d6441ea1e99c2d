"""A stored message as a program reads it, and raw records to messages. Pure.

``Message`` is what pulls and queries of the client give. A raw pull brings records as they are
stored (docs/formats.md, section 2); here they become messages, each body compared with its CRC. The
compiled twin of ``decode_messages`` is ``speedups.decode``; ``twins`` chooses.

In a record's walk: the last step (10), behind the broker's answer.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from tidemark.formats import hashing, properties, record
from tidemark.formats.hosts import Host
from tidemark.formats.record import Record
from tidemark.formats.record_layout import Buffer

_SHOWN_MAX: Final = 40
"""Bytes of a body that ``repr`` shows."""


class Source(NamedTuple):
    """Where a message was read: what is committed for it, and sent back."""

    topic: str
    queue: int
    queue_offset: int


class Message(NamedTuple):
    """One stored message. Every field is as the broker stored it; the body is a copy of its own."""

    topic: str
    queue: int
    """Number of the queue in the topic, from 0."""
    queue_offset: int
    """Number of the message in its queue, from 0 without gaps."""
    body: bytes
    message_id: str
    """Where it was stored: hex of store host and physical offset; ``message_by_id`` takes it."""
    unique_id: str | None
    """What its sender, or the broker for it, called it: the property UNIQ_KEY."""
    physical_offset: int
    """Where its record begins in the commit log."""
    size: int
    """Bytes of its record."""
    tags: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]
    """All of them: tags, keys and unique id as well, and the record's own CRC."""
    born_timestamp_ms: int
    """When its sender made it, by the clock of whoever stored it for an HTTP client."""
    store_timestamp_ms: int
    born_host: str
    """``address:port`` of the sender."""
    store_host: str
    """``address:port`` of the broker."""
    reconsume_times: int
    """How often it came back from a consumer that failed."""
    flag: int
    """Its sender's own number."""
    sys_flag: int
    """Bits of the store (section 2.3)."""
    body_crc: int
    """CRC-32 of the body, 31 bits of it."""
    tags_code: int | None
    """What its queue unit holds for a filter (section 3); None where that is a time of delivery."""
    prepared_transaction_offset: int

    def __repr__(self) -> str:
        """What tells it from others: place, tags, keys, and how its body begins."""
        body = f"{self.body[:_SHOWN_MAX]!r}"
        if len(self.body) > _SHOWN_MAX:
            body += f"… {len(self.body)} bytes"
        return (
            f"Message({self.topic!r}, queue={self.queue}, queue_offset={self.queue_offset}, "
            f"body={body}, tags={self.tags!r}, keys={self.keys!r}, "
            f"message_id={self.message_id!r})"
        )

    @property
    def source(self) -> Source:
        """Where it was read."""
        return Source(self.topic, self.queue, self.queue_offset)

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
            born_host=host_text(stored.born_host),
            store_host=host_text(stored.store_host),
            reconsume_times=stored.reconsume_times,
            flag=stored.flag,
            sys_flag=stored.sys_flag,
            body_crc=stored.body_crc,
            tags_code=None if delayed else hashing.tags_code(tags),
            prepared_transaction_offset=stored.prepared_transaction_offset,
        )

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Message:
        """Take the map of the API (msgpack: the body is bytes). Raises KeyError, TypeError."""
        fields = {name: wire[name] for name in _SAME_ON_THE_WIRE}
        return cls(keys=tuple(wire["keys"]), properties=dict(wire["properties"]), **fields)


_SAME_ON_THE_WIRE: Final = tuple(
    name for name in Message._fields if name not in ("keys", "properties")
)


@functools.lru_cache(maxsize=4096)
def host_text(host: Host) -> str:
    """``Host.text``; one object for equal hosts, of which there are few."""
    return host.text


def iterate_records(raw: Buffer) -> Iterator[Record]:
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


def decode_messages(raw: Buffer) -> list[Message]:
    """Decode records that lie one behind the other; each body is checked against its CRC.

    Raises UndecodableRecord if what came is not what the broker stored.
    """
    return [Message.from_record(stored) for stored in iterate_records(raw)]
