"""A stored message as a program reads it, and its decoding from raw records. Pure.

Pulls and queries of the client return ``Message``. A raw pull returns records as stored
(docs/formats.md, section 2); this module decodes them and compares each body with its CRC. A record
that is an inner batch gives one ``Message`` for each of its messages.
``speedups.decode`` is the native implementation of ``decode_messages``; ``native`` chooses.

Read path, step 3: the step before is the broker's answer.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from tidemark.formats import hashing, inner_batch, properties, record
from tidemark.formats.batch import BadBatch
from tidemark.formats.hosts import Host
from tidemark.formats.record import Record
from tidemark.formats.record_layout import Buffer

_SHOWN_MAX: Final = 40
"""Number of body bytes in ``repr``."""


class Source(NamedTuple):
    """The position at which a message was read; it is used to commit and to nack."""

    topic: str
    queue: int | str
    queue_offset: int


class Message(NamedTuple):
    """One stored message. Every field is as the broker stored it; the body is an own copy."""

    topic: str
    queue: int | str
    """Number of the queue in the topic, from 0. A client of a cluster reads it with the name of its
    broker group, as ``g0/3``."""
    queue_offset: int
    """Offset of the message in its queue, from 0 without gaps."""
    body: bytes
    message_id: str
    """Offset message id: hex of store host and physical offset, for ``message_by_id``. All messages
    of an inner batch have the id of their record."""
    unique_id: str | None
    """Unique id from the sender or the broker: the property UNIQ_KEY."""
    physical_offset: int
    """Physical offset of its record in the commit log."""
    size: int
    """Size of its record in bytes; of a message in a batch, the size of a record of its own."""
    tags: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]
    """All properties, including tags, keys, unique id, and the record CRC."""
    born_timestamp_ms: int
    """When the sender created it; for an HTTP client, by the clock of the broker."""
    store_timestamp_ms: int
    born_host: str
    """``address:port`` of the sender."""
    store_host: str
    """``address:port`` of the broker."""
    reconsume_times: int
    """How often it was nacked."""
    flag: int
    """A number set by the sender."""
    sys_flag: int
    """Bits of the store (section 2.3)."""
    body_crc: int
    """The low 31 bits of the body's CRC-32."""
    tags_code: int | None
    """Tags code in its queue unit (section 3); None if that is a delivery time."""
    prepared_transaction_offset: int

    def __repr__(self) -> str:
        """Show topic, position, tags, keys, id and the start of the body."""
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
        """The position at which the message was read."""
        return Source(self.topic, self.queue, self.queue_offset)

    @classmethod
    def from_record(cls, stored: Record) -> Message:
        """Convert a decoded record. tags_code is None if it is a delivery time (section 3)."""
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
        """Convert the map of the API (msgpack: the body is bytes). Raises KeyError, TypeError."""
        fields = {name: wire[name] for name in _SAME_ON_THE_WIRE}
        return cls(keys=tuple(wire["keys"]), properties=dict(wire["properties"]), **fields)


_SAME_ON_THE_WIRE: Final = tuple(
    name for name in Message._fields if name not in ("keys", "properties")
)


@functools.lru_cache(maxsize=4096)
def host_text(host: Host) -> str:
    """``Host.text``, cached because there are few different hosts."""
    return host.text


def iterate_records(raw: Buffer) -> Iterator[Record]:
    """Yield the messages of a raw pull, those of an inner batch apart; bodies borrow from ``raw``.

    Raises UndecodableRecord at the first record that is incomplete, whose body does not match its
    CRC, or whose body does not hold as many messages as its properties say.
    """
    start = 0
    while start < len(raw):
        stored = record.decode(raw, start)
        if stored.body and zlib.crc32(stored.body) & 0x7FFFFFFF != stored.body_crc:
            raise record.UndecodableRecord(
                f"the body of the record at byte {start} of the answer does not match its CRC"
            )
        try:
            messages = list(inner_batch.unpack(stored))
        except BadBatch as error:
            raise record.UndecodableRecord(
                f"the record at byte {start} of the answer is an inner batch with a wrong body: "
                f"{error}"
            ) from None
        yield from messages
        start += stored.size


def decode_messages(raw: Buffer, broker_group: str | None = None) -> list[Message]:
    """Decode adjacent records; each body is checked against its CRC.

    broker_group: queues get its name, as ``g0/3``; None: they are numbers. Raises UndecodableRecord
    if the bytes are not what the broker stored.
    """
    messages = [Message.from_record(stored) for stored in iterate_records(raw)]
    if broker_group is None:
        return messages
    return [each._replace(queue=f"{broker_group}/{each.queue}") for each in messages]
