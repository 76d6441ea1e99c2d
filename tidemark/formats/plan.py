"""Converts a range of the log to its dispatch: units per queue, rows for the index. Pure.

The rules are those of docs/formats.md, sections 4 and 5. A record without
transaction bits or with COMMIT gets a unit; these and PREPARED ones are indexed; ROLLBACK gets
neither. The unit of an inner batch has 46 bytes and belongs to a batch queue. The native
implementation is ``speedups.walk``; ``native`` chooses.

Read path, step 1: reput reads up to the confirm offset, ``scan`` decodes the records, and
``queue_writer`` and ``index_writer`` write what is planned here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidemark.errors import CorruptRecord
from tidemark.formats import queue_unit
from tidemark.formats.hashing import index_hash
from tidemark.formats.index_chains import ROW
from tidemark.formats.inner_batch import INNER_BATCH
from tidemark.formats.queue_unit import Unit
from tidemark.formats.record_check import Checks
from tidemark.formats.record_layout import (
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from tidemark.formats.scan import Entry, Stop, walk
from tidemark.offsets import BATCH_UNIT_SIZE, UNIT_SIZE, PhysicalOffset, Queue, QueueOffset


class QueueRun(NamedTuple):
    """Units of one queue with consecutive queue offsets, ready to be stored."""

    topic: str
    queue: int
    first: QueueOffset
    units: bytes
    """``unit_size`` bytes each, in order."""
    at: PhysicalOffset
    """Physical offset of the first unit's record, for messages."""
    unit_size: int = UNIT_SIZE
    """BATCH_UNIT_SIZE for inner batches, whose units belong to a batch queue."""

    @property
    def unit_count(self) -> int:
        """Number of units."""
        return len(self.units) // self.unit_size

    def offset_of(self, index: int) -> int:
        """Return the queue offset of the first message of the unit with that index; if index is
        ``unit_count``, the one after the last message."""
        if self.unit_size == UNIT_SIZE:
            return self.first + index
        if index == self.unit_count:
            return queue_unit.batch_range(self.units, (index - 1) * self.unit_size)[1]
        return queue_unit.batch_range(self.units, index * self.unit_size)[0]


class Plan(NamedTuple):
    """The units and index rows of some records."""

    runs: list[QueueRun]
    """In the order of their first records; those of one queue are in the order of the log."""
    rows: bytes
    """One ``index_chains.ROW`` of 24 bytes per key, in the log's order."""
    records: int
    units: int
    unit_timestamp_ms: int
    """Store time of the last record with a unit; 0 if there is none."""


class PlannedRange(NamedTuple):
    """A plan, and where and why its records end, as in ``scan.Walk``."""

    plan: Plan
    end: int
    """Offset in the view after the last valid record; before the filler if stop is BLANK."""
    stop: Stop
    reason: str
    """The reason for BAD and for an incomplete record."""


def plan_range(
    view: bytes | bytearray | memoryview,
    *,
    at: PhysicalOffset,
    checks: Checks,
    records_max: int,
    delay_levels_ms: Sequence[int],
    index: bool,
    batch_topics: frozenset[str] = frozenset(),
) -> PlannedRange:
    """Plan the records from view[0] on: ``scan.walk`` and ``plan`` in one step.

    view, at, checks, records_max, delay_levels_ms: as in ``scan.walk``. index: False omits the
    rows. batch_topics: topics in which a record that is no inner batch gets a unit of a batch
    queue, too. RocketMQ makes no unit for it, so its
    consumers never get it.
    Raises CorruptRecord for a record whose topic or queue cannot name a directory.
    """
    walked = walk(
        view, at=at, checks=checks, records_max=records_max, delay_levels_ms=delay_levels_ms
    )
    planned = plan(walked.entries, index=index, batch_topics=batch_topics)
    return PlannedRange(planned, walked.end, walked.stop, walked.reason)


def plan(
    entries: Sequence[Entry], *, index: bool, batch_topics: frozenset[str] = frozenset()
) -> Plan:
    """Group the units of entries by queue and list the index rows, both in the log's order.

    Raises CorruptRecord for a record whose topic or queue cannot name a directory.
    """
    open_runs: dict[Queue, list[Entry]] = {}
    runs: list[list[Entry]] = []
    rows = bytearray()
    units = 0
    unit_timestamp_ms = 0
    for entry in entries:
        sys_flag = entry.sys_flag
        if sys_flag & (TRANSACTION_MASK | INNER_BATCH):
            bits = sys_flag & TRANSACTION_MASK
            if bits == TRANSACTION_ROLLBACK:
                continue
            is_whole = entry.batch_size > 0 or not sys_flag & INNER_BATCH
            has_unit = bits != TRANSACTION_PREPARED and is_whole
        else:
            has_unit = True
        if index:
            rows += _rows_of(entry)
        if not has_unit:
            continue
        if entry.topic in batch_topics and not entry.batch_size:
            entry = entry._replace(batch_size=1)
        units += 1
        unit_timestamp_ms = entry.store_timestamp_ms
        queue_key = (entry.topic, entry.queue_id)
        run = open_runs.get(queue_key)
        if (
            run is not None
            and run[-1].next_queue_offset == entry.queue_offset
            and (run[-1].batch_size > 0) == (entry.batch_size > 0)
        ):
            run.append(entry)
            continue
        if run is None:
            check_names(entry.topic, entry.queue_id, entry.queue_offset, entry.physical_offset)
        open_runs[queue_key] = run = [entry]
        runs.append(run)
    return Plan([_packed(run) for run in runs], bytes(rows), len(entries), units, unit_timestamp_ms)


def keys_of(entry: Entry) -> list[str]:
    """The keys of a record in the index: its unique id, then every part of KEYS (5.4)."""
    keys = [] if not entry.unique_id else [entry.unique_id]
    if entry.keys:
        keys += [key for key in entry.keys.split(" ") if key]
    return keys


def _rows_of(entry: Entry) -> bytes:
    topic, offset, timestamp_ms = entry.topic, entry.physical_offset, entry.store_timestamp_ms
    return b"".join(
        [ROW.pack(offset, timestamp_ms, index_hash(topic, key)) for key in keys_of(entry)]
    )


def _packed(entries: Sequence[Entry]) -> QueueRun:
    first = entries[0]
    return QueueRun(
        first.topic,
        first.queue_id,
        QueueOffset(first.queue_offset),
        b"".join(map(unit_of, entries)),
        first.physical_offset,
        BATCH_UNIT_SIZE if first.batch_size else UNIT_SIZE,
    )


def unit_of(entry: Entry) -> bytes:
    """Encode the unit of a record: 46 bytes for an inner batch, otherwise 20."""
    unit = Unit(entry.physical_offset, entry.size, entry.tags_code)
    if not entry.batch_size:
        return queue_unit.encode(unit)
    return queue_unit.encode_batch(
        unit, entry.store_timestamp_ms, entry.queue_offset, entry.batch_size
    )


def check_names(topic: str, queue: int, queue_offset: int, at: PhysicalOffset) -> None:
    """Reject a record whose queue would be outside consumequeue/. Raises CorruptRecord.

    The record's checksums are correct, so its writer broke the rule for names. A path built from
    such a name could lead anywhere.
    """
    if topic in ("", ".", "..") or "/" in topic or "\0" in topic or queue < 0:
        raise CorruptRecord(at, f"topic {topic!r}, queue {queue} cannot name a directory")
    if queue_offset < 0:
        raise CorruptRecord(at, f"queue offset {queue_offset} is negative")
