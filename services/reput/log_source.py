"""Reads the log for dispatch: validated records in order, and checks of units against records.

It reads between an offset and a published end, within one file at a time. It writes nothing and has
no state. On a CPU with weak memory ordering, the published end may be visible before the bytes
below it. A suspicious record is therefore read a second time before it is reported as damaged.

Read path, step 1: the step before published the end (FLUSHED, in a group CONFIRM); ``formats.plan``
interprets the records, and ``dispatcher`` writes the results.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final, NamedTuple

from services.reput.queue_survey import StoredUnit
from shared.files.commit_log import CommitLogReader
from shared.files.positions import Positions
from shared.files.queue_math import is_filler
from shared.files.store_dir import StoreDir
from tidemark.errors import CorruptRecord
from tidemark.formats.checkpoint import Slot
from tidemark.formats.filenames import offset_name
from tidemark.formats.inner_batch import message_count
from tidemark.formats.native import plan_range, walk
from tidemark.formats.plan import Plan, PlannedRange, unit_of
from tidemark.formats.record import BLANK_SIZE, Record, peek_store_timestamp
from tidemark.formats.scan import Stop
from tidemark.offsets import BATCH_UNIT_SIZE, PhysicalOffset

RECORDS_MAX: Final = 1 << 18
"""Records read at a time; limits the memory of a plan if records are tiny."""
NO_BORDER: Final = 1 << 62


class Read(NamedTuple):
    """The plan for the records that were read, or an empty one if a filler was passed."""

    plan: Plan
    end: PhysicalOffset
    oldest_ms: int | None
    """Store time of the first record."""


class LogSource:
    """Reads the log of one store for dispatch."""

    def __init__(
        self,
        store: StoreDir,
        positions: Positions,
        log: CommitLogReader,
        end: Callable[[], int],
        *,
        batch_topics: frozenset[str],
    ) -> None:
        """end: returns the current end of dispatch. batch_topics: as in ``plan_range``."""
        self._store = store
        self._positions = positions
        self._log = log
        self._end = end
        self._delay_levels_ms = store.config.delay_levels_ms
        self._index_enabled = store.config.index_enabled
        self._batch_topics = batch_topics

    def read(self, at: PhysicalOffset, end: PhysicalOffset, bytes_max: int) -> Read | None:
        """Read records from at on, below end: about bytes_max bytes, at least one record. Returns
        None if there is nothing to read now. Raises CorruptRecord."""
        planned, view = self._planned(at, end, bytes_max)
        size = len(view)
        if not size:
            # the file was removed meanwhile; the next call starts at the new min offset
            return None
        if planned.plan.records:
            oldest_ms = peek_store_timestamp(view, 0)
            return Read(planned.plan, PhysicalOffset(at + planned.end), oldest_ms)
        next_file = self._log.next_file(at)
        rest = next_file - at
        if planned.stop is not Stop.BLANK and not size == rest < BLANK_SIZE:
            raise CorruptRecord(at, planned.reason or "the record is not whole")
        return Read(planned.plan, next_file, None) if next_file <= end else None

    def _planned(
        self, at: PhysicalOffset, end: PhysicalOffset, bytes_max: int
    ) -> tuple[PlannedRange, memoryview]:
        """Return a plan of the records at at, and the bytes that are available there."""
        view = self._window(at, end)
        room = self._same_checks_for(at)
        planned = self._plan_view(view[: min(bytes_max, room)], at, RECORDS_MAX)
        if planned.plan.records or planned.stop is Stop.BLANK:
            return planned, view
        # Second read; it also covers a record that is larger than a step.
        return self._plan_view(self._window(at, end), at, 1), view

    def _window(self, at: PhysicalOffset, end: PhysicalOffset) -> memoryview:
        try:
            return self._log.window(at, end)
        except CorruptRecord:
            self._log.refresh()
        return self._log.window(at, end)

    def _same_checks_for(self, at: PhysicalOffset) -> int:
        """Return how many bytes from at on have the same validation checks."""
        get = self._positions.get
        borders = (get(Slot.FOREIGN_FROM), get(Slot.FOREIGN_UNTIL))
        return min((border - at for border in borders if border > at), default=NO_BORDER)

    def _plan_view(self, view: memoryview, at: PhysicalOffset, records_max: int) -> PlannedRange:
        """Plan records. A topic has batch queues from its first inner batch on, if not before.

        Otherwise: 1. a slave gets the log of RocketMQ, without batchconsumequeue/; 2. a single
        message between two batches gets a unit of an ordinary queue; 3. the second batch does not
        continue the batch queue, and dispatch stops.
        """
        while True:
            planned = plan_range(
                view,
                at=at,
                checks=self._log.checks_at(at),
                records_max=records_max,
                delay_levels_ms=self._delay_levels_ms,
                index=self._index_enabled,
                batch_topics=self._batch_topics,
            )
            runs = planned.plan.runs
            found = {run.topic for run in runs if run.unit_size == BATCH_UNIT_SIZE}
            if found <= self._batch_topics:
                return planned
            self._batch_topics |= found

    def located(self, error: CorruptRecord) -> CorruptRecord:
        """Return the same error with the path of the file."""
        start = error.at - error.at % self._store.config.commit_log_file_size
        path = self._store.commit_log_dir / offset_name(start)
        return CorruptRecord(error.at, error.reason, path)

    # -- consistency of units and entries ----------------------------------------------------------

    def is_of(self, stored: StoredUnit) -> bool:
        """Return whether the record of a unit is the message of its queue and queue offset."""
        at = PhysicalOffset(stored.unit.physical_offset)
        if at < self._log.min_offset:
            return True  # expired, so the unit cannot be checked
        record = self._valid_record(at)
        return record is not None and self._is_message(record, stored)

    def is_of_another(self, stored: StoredUnit) -> bool:
        """Return whether a unit points to a valid record that is not its queue's message. A damaged
        record proves nothing about the unit."""
        unit = stored.unit
        at = PhysicalOffset(unit.physical_offset)
        if is_filler(*unit[:2]) or at < self._log.min_offset:
            return False
        record = self._valid_record(at)
        return record is not None and not self._is_message(record, stored)

    def _is_message(self, record: Record, stored: StoredUnit) -> bool:
        count = message_count(record.sys_flag, record.properties, record.queue_offset)
        if not count and record.topic in self._batch_topics:
            count = 1
        first = record.queue_offset
        return (
            (record.topic, record.queue_id) == stored.key[:2]
            and (count > 0) == stored.key.is_batch
            and (first, first + (count or 1)) == stored.offsets
        )

    def _valid_record(self, offset: PhysicalOffset) -> Record | None:
        try:
            return self._log.record(offset, PhysicalOffset(self._end()))
        except CorruptRecord:
            return None

    def is_whole(self, stored: StoredUnit) -> bool:
        """Return whether a unit equals the one that dispatch would write for its record."""
        at = PhysicalOffset(stored.unit.physical_offset)
        if at < self._log.min_offset:
            return True  # expired, so the unit cannot be checked
        walked = walk(
            self._window(at, PhysicalOffset(self._end())),
            at=at,
            checks=self._log.checks_at(at),
            records_max=1,
            delay_levels_ms=self._delay_levels_ms,
        )
        entries = walked.entries
        if stored.key.is_batch:
            entries = [entry._replace(batch_size=entry.batch_size or 1) for entry in entries]
        return [unit_of(entry) for entry in entries] == [stored.content]

    def store_time_of(self, offset: int) -> int | None:
        """Return the store time in ms of the record at offset; None if it has expired."""
        if offset < self._log.min_offset:
            return None
        record = self._log.record(PhysicalOffset(offset), PhysicalOffset(self._end()))
        return None if record is None else record.store_timestamp_ms

    def oldest_waiting_ms(self, position: PhysicalOffset) -> int | None:
        """Return the store time of the record at position; None if there is none below the end."""
        end = PhysicalOffset(self._end())
        if position < end:
            with contextlib.suppress(CorruptRecord):
                return peek_store_timestamp(self._log.window(position, end), 0)
        return None
