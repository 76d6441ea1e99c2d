"""Reads the telemetry journal of one set of nodes: offsets, and the samples of a range of records.

A range yields the snapshots whose last record is in it, so adjacent ranges yield each one once. A
delta needs its keyframe: the reader begins there, or continues with what the same process has read
before. What cannot be read is a gap. Step before: ``spark`` plans ranges. Step after:
``samples``.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

import pyarrow as pa

from analytics.schema import Gap
from analytics.sources import gaps
from analytics.sources.gaps import Missing
from analytics.sources.telemetry.options import BrokerSet, Options
from analytics.sources.telemetry.samples import SOURCE, batches
from analytics.sources.topic.offsets import QueuePart
from analytics.sources.topic.pull import TopicClient, TopicUnreadable
from analytics.sources.topic.reader import TopicReader
from tidemark.formats.telemetry import TELEMETRY_QUEUE, BadTelemetry, Part, decode
from tidemark.formats.telemetry_reader import Snapshot, SnapshotReader

log = logging.getLogger(__name__)

CONCURRENCY: Final = 16
READERS_MAX: Final = 8
"""Readers that a process keeps for the ranges that follow."""

_readers: OrderedDict[tuple[BrokerSet, int], SnapshotReader] = OrderedDict()
"""Readers by the queue offset at which they stand."""


class Range(NamedTuple):
    """Work of one task: the records [low, high) of a set."""

    of: BrokerSet
    low: int
    high: int


class _Record(NamedTuple):
    """A record, or the reason why there is none."""

    queue_offset: int
    next_offset: int
    part: Part | None
    gap: Gap | None = None
    detail: str = ""


def bounds(options: Options) -> dict[BrokerSet, tuple[int, int]]:
    """Return min and max offset of each set whose master answers; a set without one is logged."""
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        found = pool.map(lambda each: (each, _bounds(options, each)), options.sets)
        return {of: known for of, known in found if known is not None}


def _bounds(options: Options, of: BrokerSet) -> tuple[int, int] | None:
    try:
        with TopicClient(options.topic_of(of)) as client:
            return client.ranges(frozenset((TELEMETRY_QUEUE,)))[TELEMETRY_QUEUE]
    except TopicUnreadable as error:
        # Its records are read later; the other sets do not wait for it.
        log.warning(
            "a telemetry journal cannot be read",
            extra={"event": "journal-unreadable", "broker_set": of.name, "detail": error.detail},
        )
        return None


def advance(
    options: Options, start: Mapping[str, int], found: Mapping[BrokerSet, tuple[int, int]]
) -> dict[str, int]:
    """Return the offsets to read up to. Pure. A set that start lacks begins as a new stream does;
    one that is not in found stays where it is."""
    end = dict(start)
    for of, (low, high) in found.items():
        before = start.get(of.name)
        if before is None:
            end[of.name] = low if options.first == "first" else high
        else:
            end[of.name] = max(before, min(high, before + options.records_max))
    return end


def plan(options: Options, start: Mapping[str, int], end: Mapping[str, int]) -> Iterator[Range]:
    """Yield ranges of about ``split_rows`` rows each. The same offsets give the same ranges."""
    for of in options.sets:
        high = end.get(of.name, 0)
        low = start.get(of.name, high)
        if low < high:
            step = _records_at_once(options, of, low)
            for first in range(low, high, step):
                yield Range(of, first, min(first + step, high))


def _records_at_once(options: Options, of: BrokerSet, low: int) -> int:
    (first, *_) = _records(options, of, low, low + 1)
    if first.part is None:
        return options.records_max
    head = first.part.head
    return head.parts * max(1, options.split_rows // max(1, head.rows))


def read(options: Options, given: Range) -> Iterator[pa.RecordBatch]:
    """Yield the samples of a range, then its gaps. Raises TopicUnreadable."""
    reader = _readers.pop((given.of, given.low), None)
    begin = given.low
    if reader is None:
        reader, begin = SnapshotReader(), _keyframe_of(options, given)
    missing: list[Missing] = []
    at_us: int | None = None
    for record in _records(options, given.of, begin, given.high):
        head = None if record.part is None else record.part.head
        snapshot, reason = _fed(reader, record)
        if record.next_offset <= given.low:
            continue  # only read because of what follows
        since_us = at_us
        if head is not None:
            at_us = head.at_ms * 1000
        if snapshot is not None:
            yield from batches(snapshot, given.of)
        elif reason is not None:
            to_us = at_us or time.time_ns() // 1000  # no record says when it was
            missing.append(Missing(given.of.name, since_us or to_us, to_us, *reason))
    _keep(given, reader)
    if missing:
        yield gaps.batch(missing, SOURCE)


def _fed(reader: SnapshotReader, record: _Record) -> tuple[Snapshot | None, tuple[Gap, str] | None]:
    """Return the snapshot that a record completes, or why it completes none although it should."""
    if record.part is None:
        return None, (record.gap or Gap.DAMAGED, record.detail)
    try:
        snapshot = reader.feed(record.part)
    except BadTelemetry as error:
        return None, (Gap.DAMAGED, f"queue offset {record.queue_offset}: {error}")
    head = record.part.head
    if snapshot is None and head.part + 1 == head.parts:
        return None, (Gap.TORN, f"snapshot {head.number} lacks a part, or one before it")
    return snapshot, None


def _keyframe_of(options: Options, given: Range) -> int:
    """Return the queue offset of the keyframe that the range's first record needs."""
    (first, *_) = _records(options, given.of, given.low, given.low + 1)
    return given.low if first.part is None else max(0, given.low - first.part.head.back)


def _keep(given: Range, reader: SnapshotReader) -> None:
    _readers[given.of, given.high] = reader
    while len(_readers) > READERS_MAX:
        _readers.popitem(last=False)


def _records(options: Options, of: BrokerSet, low: int, high: int) -> Iterator[_Record]:
    """Yield every record of a range, or what is there instead. Raises TopicUnreadable."""
    reader = TopicReader(options.topic_of(of))
    for batch in reader.read(QueuePart(TELEMETRY_QUEUE, low, high)):
        columns = (batch.column(name).to_pylist() for name in batch.schema.names)
        for row in zip(*columns, strict=True):
            yield _record(dict(zip(batch.schema.names, row, strict=True)))


def _record(row: dict[str, object]) -> _Record:
    at, after, body, gap = (row[n] for n in ("queue_offset", "next_offset", "body", "gap"))
    assert isinstance(at, int)
    assert isinstance(after, int)
    if gap is not None:
        return _Record(at, after, None, Gap(str(gap)), str(row["gap_detail"]))
    assert isinstance(body, bytes)
    try:
        return _Record(at, after, decode(body))
    except BadTelemetry as error:
        return _Record(at, after, None, Gap.DAMAGED, f"queue offset {at}: {error}")
