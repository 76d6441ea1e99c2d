"""Finds damaged ranges of a commit log: where they start and where sound records resume. Read-only.

After a bad byte, the start of the next record is unknown. Therefore every position with a record
magic is tried; it counts if the record there is valid and its stored offset is that position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from shared.files.log_walk import MAGICS
from shared.files.valid_end import Verdict
from tidemark.cli.offline import LogEnd, OfflineStore, Window
from tidemark.formats import record
from tidemark.formats.record import Checks, Kind

CHUNK_SIZE: Final = 1 << 20
_MAGIC_AT: Final = 4
_PHYSICAL_OFFSET_AT: Final = 28


class DamagedRange(NamedTuple):
    """Bytes of the log in which no record can be read, with records before and after."""

    start: int
    end: int
    reason: str


def walk(
    offline: OfflineStore, progress: Callable[[int], None] | None = None
) -> Iterator[Window | DamagedRange | LogEnd]:
    """Yield all valid records and damaged ranges in physical order, and finally the log's end.

    The end is CLEAN, TORN_TAIL, or CORRUPTION if a damaged range reaches it.
    """
    start: int | None = None
    while True:
        for found in offline.windows(start, progress):
            if not isinstance(found, LogEnd):
                yield found
                continue
            following = next_record(offline, found.end) if found.last_byte is not None else None
            # A tail above the durable offset may also hold whole records: the next start cuts it.
            if following is None or found.decision.verdict is not Verdict.CORRUPTION:
                yield found
                return
            yield DamagedRange(found.end, following, found.reason)
            start = following


def next_record(offline: OfflineStore, bad_at: int) -> int | None:
    """Physical offset of the first sound record after bad_at; None if there is none."""
    files = offline.files
    for file_start in files.starts:
        if file_start + files.file_size <= bad_at:
            continue
        view = files.view(file_start)
        low = max(0, bad_at + 1 - file_start)
        for at in _candidates(view, low):
            physical_offset = file_start + at
            stored = view[at + _PHYSICAL_OFFSET_AT : at + _PHYSICAL_OFFSET_AT + 8]
            # Checked first because it is cheap: bodies may contain many magics.
            if int.from_bytes(stored, "big") != physical_offset:
                continue
            outcome = record.validate(view, at, at=physical_offset, checks=Checks())
            if outcome.kind is Kind.VALID:
                return physical_offset
    return None


def _candidates(view: memoryview, low: int) -> Iterator[int]:
    """Yield positions from low on at which a record with a magic may start, ascending."""
    base = low + _MAGIC_AT
    while base < len(view):
        chunk = bytes(view[base : base + CHUNK_SIZE + 3])
        found = sorted(at for magic in MAGICS for at in _positions(chunk, magic) if at < CHUNK_SIZE)
        for at in found:
            yield base + at - _MAGIC_AT
        base += CHUNK_SIZE


def _positions(chunk: bytes, magic: bytes) -> Iterator[int]:
    at = chunk.find(magic)
    while at >= 0:
        yield at
        at = chunk.find(magic, at + 1)
