"""Where RocketMQ wrote, as state records in the log tell it (design: state).

Needed where the checkpoint, which knows it too, was lost: records of RocketMQ's may carry another
record's CRC property along, and would be called corrupt.
Before: ``recovery`` has met such a record. After: it walks the log once more.
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
"""The body's CRC proves a state record; what else lies on the way only has to lead there."""


def ranges_told(files: LogFiles, start: int) -> list[Range]:
    """The ranges that state records at or behind start tell, each once, ascending.

    start: a record's start, or what should be one. Reads to the end of the chain of records.
    """
    told: set[ForeignRange] = set()
    for body in _state_bodies(files, start):
        try:
            found = records.decode(body)
        except StateRecordUnreadable:
            continue  # of a later version, or RocketMQ let a client send to this topic
        match found:
            case ForeignRecord(_, foreign):
                told.add(foreign)
            case SnapshotPart():
                told.update(found.foreign)
            case _:
                pass
    return [(each.start, each.end) for each in sorted(told)]


def _state_bodies(files: LogFiles, start: int) -> Iterator[bytes]:
    """The bodies of the state topic's records from start on."""
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
