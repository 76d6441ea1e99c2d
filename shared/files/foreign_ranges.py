"""Ranges of the log that RocketMQ wrote, according to state records in the log.

This is needed if the checkpoint, which contains them too, was lost: records of RocketMQ may contain
another record's CRC property, and would be reported as corrupt.
Step before: ``recovery`` has met such a record. Step after: it reads the log once more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from shared.files.log_walk import RECORDS_AT_ONCE, LogFiles, Range
from shared.state import records
from shared.state.records import (
    STATE_TOPIC,
    ForeignRange,
    ForeignRecord,
    SnapshotPart,
    StateRecordUnreadable,
)
from tidemark.formats import native, record
from tidemark.formats.record import Checks
from tidemark.formats.scan import Stop
from tidemark.offsets import PhysicalOffset

CHECKS: Final = Checks(record_crc=False)
"""The body's CRC verifies a state record; other records only have to lead to the next."""


def recorded_ranges(files: LogFiles, start: int) -> list[Range]:
    """Return the ranges in state records at or after start, without duplicates, ascending.
    start: start of a record, or what should be one. Reads to the end of the chain of records."""
    found_ranges: set[ForeignRange] = set()
    for body in _state_bodies(files, start):
        try:
            found = records.decode(body)
        except StateRecordUnreadable:
            continue  # written by a later version, or by a client of RocketMQ to this topic
        match found:
            case ForeignRecord(_, foreign):
                found_ranges.add(foreign)
            case SnapshotPart():
                found_ranges.update(found.foreign)
            case _:
                pass
    return [(each.start, each.end) for each in sorted(found_ranges)]


def _state_bodies(files: LogFiles, start: int) -> Iterator[bytes]:
    """Yield the bodies of the state topic's records from start on."""
    known = set(files.starts)
    at = start
    while files.start_of(at) in known:
        file_start = files.start_of(at)
        view = files.view(file_start)
        walked = native.walk(
            view[at - file_start :],
            at=PhysicalOffset(at),
            checks=CHECKS,
            records_max=RECORDS_AT_ONCE,
            delay_levels_ms=(),
        )
        for entry in walked.entries:
            if entry.topic == STATE_TOPIC:
                yield bytes(record.decode(view, entry.physical_offset - file_start).body)
        at += walked.end
        if walked.stop is Stop.BLANK:
            at = file_start + files.file_size
        elif walked.stop is not Stop.LIMIT and at < file_start + files.file_size:
            return
