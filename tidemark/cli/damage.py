"""Finds damaged ranges of a commit log: where they start and where sound records resume. Read-only.

After a bad byte, the start of the next record is unknown. Therefore every position with a record
magic is tried; it counts if the record there is valid and its stored offset is that position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from shared.files.log_walk import sound_records
from shared.files.valid_end import Verdict
from tidemark.cli.offline import LogEnd, OfflineStore, Window


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
            following = None
            if found.last_byte is not None:
                following = next(sound_records(offline.files, found.end + 1), None)
            # A tail above the durable offset may also hold whole records: the next start cuts it.
            if following is None or found.decision.verdict is not Verdict.CORRUPTION:
                yield found
                return
            yield DamagedRange(found.end, following, found.reason)
            start = following
