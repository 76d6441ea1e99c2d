"""What becomes of the records of one walk: units by queue, keys for the index. Pure.

Rules of docs/formats.md, sections 4 and 5 (store layout 5.4, 10.3): a record without transaction
bits or with COMMIT gets a unit; those and PREPARED ones are indexed; ROLLBACK gets neither. An
inner batch has no unit in an ordinary queue: its numbers count several messages.

In a record's walk this is (10): ``formats.scan`` found the records, ``queue_writer`` and
``index_writer`` write what is planned here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from tidemark.errors import CorruptRecord
from tidemark.formats.hashing import index_hash
from tidemark.formats.queue_unit import UNIT
from tidemark.formats.record import (
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from tidemark.formats.scan import Entry
from tidemark.offsets import UNIT_SIZE, PhysicalOffset, QueueOffset

INNER_BATCH: Final = 0x80
"""SYSFLAG bit: one record, several messages, indexed in batchconsumequeue/ (2.3, 2.12)."""

QueueKey = tuple[str, int]
"""(topic, queue)."""

IndexRow = tuple[int, int, int]
"""(key hash, physical offset, store timestamp ms), as ``IndexFile.put_many`` takes them."""


class QueueRun(NamedTuple):
    """Units of one queue with consecutive queue offsets, ready to be stored."""

    topic: str
    queue: int
    first: QueueOffset
    units: bytes
    """20 bytes each, in order."""
    at: PhysicalOffset
    """The first unit's record, for messages."""

    @property
    def unit_count(self) -> int:
        """Number of units."""
        return len(self.units) // UNIT_SIZE


class Plan(NamedTuple):
    """What one walk means for queues and index."""

    runs: list[QueueRun]
    """Per queue in the order of the log; queues in the order they first appear."""
    rows: list[IndexRow]
    records: int
    units: int
    unit_timestamp_ms: int
    """Store time of the last record with a unit; 0 if there is none."""


def keys_of(entry: Entry) -> list[str]:
    """What a record is found by: its unique id, then every part of KEYS (5.4)."""
    keys = [] if not entry.unique_id else [entry.unique_id]
    if entry.keys:
        keys += [key for key in entry.keys.split(" ") if key]
    return keys


def plan(
    entries: Sequence[Entry], *, index: bool, no_units_for: frozenset[str] = frozenset()
) -> Plan:
    """Group the units of entries by queue and list the index rows, both in the log's order.

    index: False leaves the rows out. no_units_for: topics that keep their units elsewhere.
    Raises CorruptRecord for a record whose topic or queue cannot name a directory.
    """
    open_runs: dict[QueueKey, list[Entry]] = {}
    runs: list[tuple[QueueKey, list[Entry]]] = []
    rows: list[IndexRow] = []
    add_row = rows.append
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
        topic = entry.topic
        if index:
            offset, timestamp_ms = entry.physical_offset, entry.store_timestamp_ms
            if entry.unique_id:
                add_row((index_hash(topic, entry.unique_id), offset, timestamp_ms))
            if entry.keys:
                for key in entry.keys.split(" "):
                    if key:
                        add_row((index_hash(topic, key), offset, timestamp_ms))
        if not has_unit or topic in no_units_for:
            continue
        units += 1
        unit_timestamp_ms = entry.store_timestamp_ms
        queue_key = (topic, entry.queue_id)
        run = open_runs.get(queue_key)
        if run is not None and run[-1].queue_offset + 1 == entry.queue_offset:
            run.append(entry)
            continue
        if run is None:
            _check_names(entry)
        open_runs[queue_key] = run = [entry]
        runs.append((queue_key, run))
    return Plan(
        [_packed(queue_key, run) for queue_key, run in runs],
        rows,
        len(entries),
        units,
        unit_timestamp_ms,
    )


def _packed(queue_key: QueueKey, entries: Iterable[Entry]) -> QueueRun:
    pack = UNIT.pack
    entries = list(entries)
    topic, queue = queue_key
    return QueueRun(
        topic,
        queue,
        QueueOffset(entries[0].queue_offset),
        b"".join([pack(entry.physical_offset, entry.size, entry.tags_code) for entry in entries]),
        entries[0].physical_offset,
    )


def _check_names(entry: Entry) -> None:
    """Refuse a record whose queue would lie outside consumequeue/.

    Its checksums are right, so whoever wrote it did not keep the rule for names; a path made of it
    could lead anywhere.
    """
    topic, queue = entry.topic, entry.queue_id
    if topic in ("", ".", "..") or "/" in topic or "\0" in topic or queue < 0:
        raise CorruptRecord(
            entry.physical_offset, f"topic {topic!r}, queue {queue} cannot name a directory"
        )
    if entry.queue_offset < 0:
        raise CorruptRecord(entry.physical_offset, f"queue offset {entry.queue_offset} is negative")
