"""Measures how old the stages of the log are: reads the records that the positions point to.

The positions are read from the last stage to the first. Each only grows, so a position never
exceeds one that was read after it. The rules are in ``log_times``. A sample of the groups' lag
starts this step; the gauges of the log come after it.
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


class LogSampler:
    """Samples the store times of one node's log, in any role."""

    def __init__(
        self,
        reader: CommitLogReader,
        *,
        newest: Callable[[], Mark],
        confirmed: Callable[[], PhysicalOffset],
        dispatched: Callable[[], PhysicalOffset],
    ) -> None:
        """newest: end of the log and store time of its last record, taken together; 0: not known.
        confirmed, dispatched: the confirmed and the dispatched offset.
        """
        self._reader = reader
        self._newest = newest
        self._confirmed = confirmed
        self._dispatched = dispatched

    def times(self) -> LogTimes | None:
        """Return the current store times; None if there is no record or one cannot be read."""
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
        """Return the store time of the first record from at on; None if it cannot be read."""
        reader, below = self._reader, PhysicalOffset(end)
        at = max(at, reader.min_offset)
        with contextlib.suppress(CorruptRecord):
            time_ms = peek_store_timestamp(reader.window(at, below), 0)
            if time_ms is None and (next_file := reader.next_file(at)) < end:
                # The rest of the file was too short for the record: it is in the next file.
                time_ms = peek_store_timestamp(reader.window(next_file, below), 0)
            return time_ms
        return None


def newest_on_disk(positions: Positions) -> Mark:
    """Return the flushed offset and the store time of the last flushed record.

    Used on a slave, where the ha process writes the log."""
    end = positions.get(Slot.FLUSHED)
    return Mark(end, positions.head().physic_timestamp_ms)
