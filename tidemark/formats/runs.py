"""Runs: messages of one request for one queue, encoded into adjacent records. Pure.

What an append is made of (docs/formats.md, sections 2.1 to 2.12). A run carries its messages as the
wire entries of ``batch``, so that nothing is made per message between the request and the log; what
they have in common stands beside them. The compiled twin is ``speedups.encode``; ``twins`` chooses.

In a record's walk: (3) ``append`` numbered the runs; this is (4); (5) ``commit_log_appender`` puts
the bytes.
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Sequence
from typing import NamedTuple

from tidemark.formats import batch
from tidemark.formats.hosts import Host
from tidemark.formats.record import BufferTooSmall, Message, encode, encoded_size


class Run(NamedTuple):
    """Messages for one queue, not yet numbered; they get adjacent queue offsets."""

    topic: str
    queue_id: int
    entries: bytes
    """Wire entries (``batch``): flag, body and encoded properties of each message. A ``__CRC32#``
    among the properties is left out when the record is made."""
    message_count: int
    """Number of entries."""
    born_host: Host
    store_host: Host
    born_timestamp_ms: int = 0
    sys_flag: int = 0
    """The V6 bits are set and cleared to fit the hosts."""
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


def runs_size(runs: Sequence[Run], *, record_crc: bool) -> int:
    """Bytes that the runs' records take.

    Raises BadBatch, TopicTooLong, PropertiesTooLarge; ValueError if a message count is not that of
    the entries.
    """
    return sum(
        encoded_size(message, record_crc=record_crc) for run in runs for message in _messages(run)
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
    """Write the runs' records from buffer[0] on, adjacent, in order; return their sizes.

    firsts: queue offset of each run's first message. physical_offset: of the first record; one
    store time for all. The sizes [bytes] are native unsigned 32-bit numbers, one behind the other:
    ``memoryview(sizes).cast("I")``. All or none: raises what ``runs_size`` raises, BufferTooSmall
    and FieldOutOfRange, and ValueError if there is not one first for each run.
    """
    records: list[bytes] = []
    at = physical_offset
    for run, first in zip(runs, firsts, strict=True):
        for queue_offset, message in enumerate(_messages(run), first):
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
    """How many bodies of the wire entries are of which size: what a histogram counts.

    bounds: ascending sizes [bytes]. Number i of the result counts the bodies of at most bounds[i]
    bytes that are larger than bounds[i - 1]; one more number counts those above all bounds, and the
    last is the sum of all sizes. Raises BadBatch.
    """
    counts = [0] * (len(bounds) + 1)
    total = 0
    for entry in batch.iterate(entries):
        counts[bisect.bisect_left(bounds, len(entry.body))] += 1
        total += len(entry.body)
    return [*counts, total]


def _messages(run: Run) -> list[Message]:
    made = [
        Message(
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
        for entry in batch.iterate(run.entries)
    ]
    if len(made) != run.message_count:
        raise ValueError(f"a run of {run.message_count} messages holds {len(made)} entries")
    return made
