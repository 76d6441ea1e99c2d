"""Looks at how old the stages of the log are: reads the records that the positions point to.

The positions are read from the last stage to the first. Each only grows, so none is found beyond
one that was read after it. Rules are ``log_times``'. Before: a look at the groups begins.
After: the gauges of the log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from services.broker.log.log_times import LogTimes, log_times
from shared.files.commit_log import CommitLogReader
from shared.files.log_writer import Mark
from shared.files.positions import Positions
from tidemark.errors import CorruptRecord
from tidemark.formats.checkpoint import Slot
from tidemark.formats.record import peek_store_timestamp
from tidemark.offsets import PhysicalOffset


class LogLook:
    """Looks at the log of one node, in whatever role."""

    def __init__(
        self,
        reader: CommitLogReader,
        *,
        newest: Callable[[], Mark],
        confirmed: Callable[[], PhysicalOffset],
        dispatched: Callable[[], PhysicalOffset],
    ) -> None:
        """newest: end of the log and store time of the record before it, in one; 0: not known.
        confirmed, dispatched: ends of what is.
        """
        self._reader = reader
        self._newest = newest
        self._confirmed = confirmed
        self._dispatched = dispatched

    def times(self) -> LogTimes | None:
        """The times as of now; None while there is no record, or one cannot be read."""
        dispatched = self._dispatched()
        confirmed = self._confirmed()
        newest = self._newest()
        if newest.store_timestamp_ms <= 0:
            return None
        unconfirmed_ms = undispatched_ms = None
        if confirmed < newest.end:
            unconfirmed_ms = self._first_ms(confirmed, newest.end)
            if unconfirmed_ms is None:
                return None
        if dispatched < confirmed:
            undispatched_ms = self._first_ms(dispatched, confirmed)
            if undispatched_ms is None:
                return None
        return log_times(newest.store_timestamp_ms, unconfirmed_ms, undispatched_ms)

    def _first_ms(self, at: PhysicalOffset, end: int) -> int | None:
        """Store time of the first record at or behind at; None if it cannot be read below end."""
        reader, below = self._reader, PhysicalOffset(end)
        at = max(at, reader.min_offset)
        with contextlib.suppress(CorruptRecord):
            time_ms = peek_store_timestamp(reader.window(at, below), 0)
            if time_ms is None and (next_file := reader.next_file(at)) < end:
                # The rest of the file was too short for the record: it begins the next one.
                time_ms = peek_store_timestamp(reader.window(next_file, below), 0)
            return time_ms
        return None


def newest_on_disk(positions: Positions) -> Mark:
    """End of what is on disk and store time of its last record, of a log that another process
    writes: a slave's, which ha does."""
    end = positions.get(Slot.FLUSHED)
    return Mark(end, positions.head().physic_timestamp_ms)
