"""Inner batches: one record that holds several messages (docs/formats.md, section 2.12). Pure.

A topic with batch queues stores the messages of a request for one queue as one record. Its body is
their wire entries (``batch``); the properties INNER_BASE and INNER_NUM are the queue offset of the
first message and the number of messages, and UNIQ_KEY is the unique id of the batch. KEYS has the
keys of all messages, so that the index finds each of them; TAGS is set if all messages have the
same tag.

Write path, step 4: ``runs`` encodes the record. Read path, step 1: ``plan`` makes one unit of it.
``unpack`` restores the messages for readers.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

from tidemark.formats import batch, properties
from tidemark.formats.batch import BadBatch, WireMessage
from tidemark.formats.record import Record
from tidemark.offsets import QueueOffset

INNER_BATCH: Final = 0x80
"""SYSFLAG bit: one record, several messages, with a unit in batchconsumequeue/ (2.3)."""
NEED_UNWRAP: Final = 0x40
"""SYSFLAG bit: a client must split the body (2.3)."""
SYS_FLAGS: Final = INNER_BATCH | NEED_UNWRAP
COUNT_MAX: Final = 32_767
"""Maximum messages of one batch: its unit stores their number as i16."""

BASE_AT: Final = len(b"INNER_BASE\x01")
"""First byte of the digits in the encoded properties, which begin with INNER_BASE."""
BASE_DIGITS: Final = 19
"""The base has as many digits as the largest offset, so that a record's size is known before its
messages are numbered. RocketMQ accepts leading zeros."""


def encode_properties(
    unique_id: str, message_count: int, *, tags: bytes | None, keys: bytes | None
) -> bytes:
    """Encode the properties of a batch whose base is still zero; see ``with_base``."""
    pairs = [
        b"INNER_BASE\x01%0*d" % (BASE_DIGITS, 0),
        b"INNER_NUM\x01%d" % message_count,
        b"UNIQ_KEY\x01" + unique_id.encode(),
    ]
    if tags:
        pairs.append(b"TAGS\x01" + tags)
    if keys:
        pairs.append(b"KEYS\x01" + keys)
    return b"\x02".join([*pairs, b""])


def with_base(raw: bytes, base: int) -> bytes:
    """Return the properties of ``encode_properties`` with the first message's queue offset."""
    return b"%b%0*d%b" % (raw[:BASE_AT], BASE_DIGITS, base, raw[BASE_AT + BASE_DIGITS :])


def message_count(sys_flag: int, raw: bytes, queue_offset: int) -> int:
    """Return the number of messages of an inner batch; 0 if the record is one message.

    raw: the record's properties. RocketMQ gives no unit to a flagged record without the two
    properties; the same holds here for one whose base is not its queue offset.
    """
    if not sys_flag & INNER_BATCH:
        return 0
    count, base = (_number(raw, name) for name in (b"INNER_NUM", b"INNER_BASE"))
    return count if base == queue_offset and 1 <= count <= COUNT_MAX else 0


def _number(raw: bytes, name: bytes) -> int:
    digits = properties.find(raw, name)
    # int() also accepts spaces and underscores, and a long text would take long.
    if digits is None or len(digits) > BASE_DIGITS or not digits.isdigit():
        return -1
    return int(digits)


def unpack(stored: Record) -> Iterator[Record]:
    """Yield each message of a record as a record of its own; a record of one message as it is.

    The messages of a batch share its physical offset and times. Their queue offsets, flags, sizes,
    bodies, body CRCs and properties are their own. Raises BadBatch if the body does not hold as
    many entries as INNER_NUM says.
    """
    count = message_count(stored.sys_flag, stored.properties, stored.queue_offset)
    if not count:
        yield stored
        return
    number = 0
    for number, entry in enumerate(batch.iterate(stored.body), 1):
        if number > count:
            break
        yield message(stored, number - 1, entry)
    if number != count:
        raise BadBatch(number, 0, f"the batch has {count} messages, its body has other entries")


def message(stored: Record, index: int, entry: WireMessage) -> Record:
    """Return the message of a batch with that index, whose entry it is, as a record of its own.

    Its size is the one that such a record would have. Readers bound their memory by it, and with
    the size of the whole batch each of its messages would count as all of them.
    """
    taken = len(entry.body) + len(entry.properties)
    return stored._replace(
        size=stored.size - len(stored.body) - len(stored.properties) + taken,
        queue_offset=QueueOffset(stored.queue_offset + index),
        flag=entry.flag,
        sys_flag=stored.sys_flag & ~SYS_FLAGS,
        body_crc=zlib.crc32(entry.body) & 0x7FFFFFFF,
        body=memoryview(entry.body),
        properties=bytes(entry.properties),
    )
