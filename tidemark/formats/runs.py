"""Runs: messages of one request for one queue, encoded into adjacent records. Pure.

An append consists of runs (docs/formats.md, sections 2.1 to 2.12). A run has its messages as wire
entries of ``batch``, so that no object is created per message between the request and the log; the
common fields are stored once. In a topic with batch queues, a run becomes one record, an inner
batch. The native implementation is ``speedups.encode``; ``native`` chooses.

Write path, step 4: ``queue_offsets`` has assigned the queue offsets; afterwards
``commit_log_appender`` writes the bytes.
"""

from __future__ import annotations

import bisect
import itertools
import struct
from collections.abc import Sequence
from typing import NamedTuple

from tidemark.formats import batch, inner_batch
from tidemark.formats.batch import WireMessage
from tidemark.formats.hosts import Host
from tidemark.formats.record import BufferTooSmall, Message, encode, encoded_size
from tidemark.formats.record_layout import Buffer


class Run(NamedTuple):
    """Messages for one queue, not yet numbered; they get adjacent queue offsets."""

    topic: str
    queue_id: int
    entries: bytes
    """Wire entries (``batch``): flag, body and encoded properties of each message. A ``__CRC32#``
    among the properties is dropped when the record is encoded."""
    message_count: int
    """Number of entries."""
    born_host: Host
    store_host: Host
    born_timestamp_ms: int = 0
    sys_flag: int = 0
    """The V6 bits are set according to the hosts."""
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    batch_properties: bytes = b""
    """Properties of the inner batch that the run becomes (``inner_batch.encode_properties``); empty
    if each message becomes a record."""

    @property
    def record_count(self) -> int:
        """Number of records that the run becomes."""
        return 1 if self.batch_properties else self.message_count


def runs_size(runs: Sequence[Run], *, record_crc: bool) -> int:
    """Size of the runs' records in bytes.

    Raises BadBatch, TopicTooLong, PropertiesTooLarge; ValueError if a message count differs from
    the number of entries. The entries of an inner batch are not read: ``batch_parts`` has done it.
    """
    return sum(
        encoded_size(message, record_crc=record_crc) for run in runs for message in _records(run, 0)
    )


def encode_runs(
    buffer: bytearray | memoryview,
    runs: Sequence[Run],
    *,
    firsts: Sequence[int],
    physical_offset: int,
    store_timestamp_ms: int,
    record_crc: bool,
) -> bytes:
    """Encode the runs' records from buffer[0] on, adjacent, in order; return their sizes.

    firsts: queue offset of each run's first message. physical_offset: that of the first record. All
    get the same store time. The sizes [bytes] are adjacent native unsigned 32-bit numbers:
    ``memoryview(sizes).cast("I")``. All or none are written: raises what ``runs_size`` raises,
    BufferTooSmall and FieldOutOfRange, and ValueError if there is not one first per run.
    """
    records: list[bytes] = []
    at = physical_offset
    for run, first in zip(runs, firsts, strict=True):
        for queue_offset, message in enumerate(_records(run, first), first):
            made = encode(
                message,
                queue_offset=queue_offset,
                physical_offset=at,
                store_timestamp_ms=store_timestamp_ms,
                record_crc=record_crc,
            )
            records.append(made)
            at += len(made)
    whole = b"".join(records)
    if len(whole) > len(buffer):
        raise BufferTooSmall(f"{len(whole)} bytes do not fit into {len(buffer)}")
    buffer[: len(whole)] = whole
    return struct.pack(f"={len(records)}I", *map(len, records))


def body_size_counts(entries: bytes, bounds: Sequence[int]) -> list[int]:
    """Count the bodies of the wire entries by size, for a histogram.

    bounds: ascending sizes [bytes]. Number i of the result counts the bodies of at most bounds[i]
    bytes that are larger than bounds[i - 1]. One more number counts those above all bounds, and the
    last is the sum of all sizes. Raises BadBatch.
    """
    counts = [0] * (len(bounds) + 1)
    total = 0
    for entry in batch.iterate(entries):
        counts[bisect.bisect_left(bounds, len(entry.body))] += 1
        total += len(entry.body)
    return [*counts, total]


def entry_starts(entries: Buffer) -> bytes:
    """Return the position of each wire entry, as unsigned 32-bit numbers in native byte order.

    A reader takes single messages of a batch without making objects of the others. Raises BadBatch.
    """
    ends = itertools.accumulate(
        (
            batch.ENTRY_OVERHEAD + len(entry.body) + len(entry.properties)
            for entry in batch.iterate(entries)
        ),
        initial=0,
    )
    starts = list(ends)[:-1]
    return struct.pack(f"={len(starts)}I", *starts)


def _records(run: Run, first: int) -> list[Message]:
    """Return the contents of the run's records. first: queue offset of its first message."""
    if run.batch_properties:
        raw = inner_batch.with_base(run.batch_properties, first)
        whole = _record(run, WireMessage(run.entries, raw))
        return [whole._replace(sys_flag=run.sys_flag | inner_batch.SYS_FLAGS)]
    made = [_record(run, entry) for entry in batch.iterate(run.entries)]
    if len(made) != run.message_count:
        raise ValueError(f"a run of {run.message_count} messages holds {len(made)} entries")
    return made


def _record(run: Run, entry: WireMessage) -> Message:
    return Message(
        run.topic,
        run.queue_id,
        entry.body,
        run.born_host,
        run.store_host,
        bytes(entry.properties),
        entry.flag,
        run.sys_flag,
        run.born_timestamp_ms,
        run.reconsume_times,
        run.prepared_transaction_offset,
    )
