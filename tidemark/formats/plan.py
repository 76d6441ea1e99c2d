"""Converts a range of the log to its dispatch: units per queue, rows for the index. Pure.

The rules are those of docs/formats.md, sections 4 and 5. A record without
transaction bits or with COMMIT gets a unit; these and PREPARED ones are indexed; ROLLBACK gets
neither. An inner batch has no unit in an ordinary queue, because it counts as several messages. The
native implementation is ``speedups.walk``; ``native`` chooses.

Read path, step 1: reput reads up to the confirm offset, ``scan`` decodes the records, and
``queue_writer`` and ``index_writer`` write what is planned here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tidemark.errors import CorruptRecord
from tidemark.formats.hashing import index_hash
from tidemark.formats.index_chains import ROW
from tidemark.formats.queue_unit import UNIT
from tidemark.formats.record_check import Checks
from tidemark.formats.record_layout import (
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from tidemark.formats.scan import Entry, Stop, walk
from tidemark.offsets import UNIT_SIZE, PhysicalOffset, Queue, QueueOffset

INNER_BATCH: Final = 0x80
"""SYSFLAG bit: one record, several messages, indexed in batchconsumequeue/ (2.3, 2.12)."""


class QueueRun(NamedTuple):
    """Units of one queue with consecutive queue offsets, ready to be stored."""

    topic: str
    queue: int
    first: QueueOffset
    units: bytes
    """20 bytes each, in order."""
    at: PhysicalOffset
    """Physical offset of the first unit's record, for messages."""

    @property
    def unit_count(self) -> int:
        """Number of units."""
        return len(self.units) // UNIT_SIZE


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
    no_units_for: frozenset[str] = frozenset(),
) -> PlannedRange:
    """Plan the records from view[0] on: ``scan.walk`` and ``plan`` in one step.

    view, at, checks, records_max, delay_levels_ms: as in ``scan.walk``. index: False omits the
    rows. no_units_for: topics whose units are stored elsewhere.
    Raises CorruptRecord for a record whose topic or queue cannot name a directory.
    """
    walked = walk(
        view, at=at, checks=checks, records_max=records_max, delay_levels_ms=delay_levels_ms
    )
    planned = plan(walked.entries, index=index, no_units_for=no_units_for)
    return PlannedRange(planned, walked.end, walked.stop, walked.reason)


def plan(
    entries: Sequence[Entry], *, index: bool, no_units_for: frozenset[str] = frozenset()
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
            has_unit = bits != TRANSACTION_PREPARED and not sys_flag & INNER_BATCH
        else:
            has_unit = True
        if index:
            rows += _rows_of(entry)
        if not has_unit or entry.topic in no_units_for:
            continue
        units += 1
        unit_timestamp_ms = entry.store_timestamp_ms
        queue_key = (entry.topic, entry.queue_id)
        run = open_runs.get(queue_key)
        if run is not None and run[-1].queue_offset + 1 == entry.queue_offset:
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
    pack = UNIT.pack
    first = entries[0]
    return QueueRun(
        first.topic,
        first.queue_id,
        QueueOffset(first.queue_offset),
        b"".join([pack(entry.physical_offset, entry.size, entry.tags_code) for entry in entries]),
        first.physical_offset,
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
