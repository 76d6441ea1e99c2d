"""Compares a queue unit that a reader could not follow with the log, and replaces it if needed.

A unit is derived from the log. Only a read detects a flipped bit in an old unit, and rebuilding all
queues for it would take as long as reading the whole log. This module reads the log from the
nearest valid unit before it. Invariants:

- A unit is replaced only according to a valid record, and only where the queue has a unit: ends and
  totals of queues do not change.
- Damage in the log ends the comparison: units after it remain unchanged, and a read there reports
  the damage.
- Units of a batch queue are replaced only if the log has exactly as many between two valid units
  as the queue has: their numbers follow from nothing else.
- A step reads a bounded part of the log, so that dispatch can continue in between.

The step before is the broker, which found the unit and published its location
(``Slot.UNIT_CHECK_COUNT``). The next sync makes the new unit durable. ``dispatcher`` runs it,
``dispatch_loop`` publishes the outcome.
"""

from __future__ import annotations

import itertools
from typing import Final

from services.reput.log_source import LogSource
from services.reput.queue_survey import QueueKey, StoredUnit
from services.reput.queue_writer import QueueWriter
from shared.files.commit_log import CommitLogReader
from shared.files.queue_math import is_filler
from tidemark.errors import CorruptRecord
from tidemark.formats.checkpoint import queue_number
from tidemark.formats.plan import QueueRun
from tidemark.offsets import PhysicalOffset

NEIGHBOURS_MAX: Final = 1024
"""Units compared in each direction until a valid one is found; damage may affect whole pages."""


class UnitMending:
    """Processes one request after another. For the dispatcher's thread."""

    def __init__(self, queues: QueueWriter, source: LogSource, log: CommitLogReader) -> None:
        self._queues = queues
        self._source = source
        self._log = log
        self._left: list[QueueKey] = []
        """Queues with the requested queue number."""
        self._queue_offset = 0
        self._key: QueueKey | None = None
        self._wanted = range(0)
        """Numbers of the units of that queue that are to be compared."""
        self._borders: tuple[StoredUnit | None, StoredUnit | None] = (None, None)
        """The valid units before and after the wanted ones."""
        self._batches = b""
        """Units of a batch queue that the log has for the wanted numbers, as far as it was read."""
        self._at = PhysicalOffset(0)
        self._end = 0
        self.replaced: list[tuple[str, int, int]] = []
        """(topic, queue, queue offset) of the units that differed from the log."""

    def begin(self, queue: int, queue_offset: int) -> None:
        """Start to compare the unit at queue_offset of the queues whose ``queue_number`` is
        queue."""
        self._left = [key for key in self._queues.all_keys() if queue_number(*key[:2]) == queue]
        self._queue_offset = queue_offset
        self._key = None
        self.replaced = []

    def step(self, end: int, bytes_max: int) -> bool:
        """Continue with about bytes_max bytes of log below end; return whether there is more to do.

        Raises DamagedFile if the queue's file was removed, and DiskFull, ReadOnlyDisk or OSError if
        a unit cannot be stored: call it again.
        """
        if self._key is None:
            if not self._left:
                return False
            self._take_next(end)
            return True
        # retention may remove the oldest files meanwhile
        self._at = max(self._at, self._log.min_offset)
        if self._wanted and self._at < self._end:
            try:
                found = self._source.read(self._at, PhysicalOffset(self._end), bytes_max)
            except CorruptRecord:
                found = None  # the log itself is damaged; a read there reports it
            if found is not None:
                key = self._key
                runs = [
                    run for run in found.plan.runs if (run.topic, run.queue, run.unit_size) == key
                ]
                if key.is_batch:
                    self._compare_batches(key, b"".join(run.units for run in runs))
                else:
                    for run in runs:
                        self._compare(key, run)
                self._at = found.end
                return True
            if self._at < self._log.min_offset:
                return True  # the file was removed meanwhile: the next step starts after it
        self._key = None
        return bool(self._left)

    def _take_next(self, end: int) -> None:
        """Find the valid units around the requested one, and where to start reading."""
        key = self._left.pop()
        bounds = self._queues.bounds_of(key)
        requested = self._queues.number_of(key, self._queue_offset)
        if key.is_batch:
            requested = min(requested, bounds.stop - 1)  # the last unit may have lost messages
        if requested not in bounds:
            return
        self._at, self._end = self._log.min_offset, end
        low = max(bounds.start, requested - NEIGHBOURS_MAX)
        high = min(bounds.stop, requested + NEIGHBOURS_MAX)
        before = after = None
        for number in range(requested - 1, low - 1, -1):
            if (before := self._sound_unit(key, number, end)) is not None:
                self._at, low = PhysicalOffset(before.unit.end), number + 1
                break
            if key.is_batch and (before := self._expired_unit(key, number)) is not None:
                low = number + 1
                break
        for number in range(requested + 1, high):
            if (after := self._sound_unit(key, number, end)) is not None:
                high = number
                break
        is_all_below = before is not None or low == bounds.start
        is_all_above = after is not None or high == bounds.stop
        if key.is_batch and before is None and not (is_all_below and is_all_above):
            return  # the number of no unit in the log is known
        self._key, self._wanted = key, range(low, high)
        self._borders, self._batches = (before, after), b""

    def _expired_unit(self, key: QueueKey, number: int) -> StoredUnit | None:
        """Return the unit if its record has expired."""
        stored = self._queues.unit_at(key, number)
        if stored is None:
            return None
        is_expired = 0 <= stored.unit.physical_offset < stored.unit.end <= self._log.min_offset
        return stored if is_expired else None

    def _sound_unit(self, key: QueueKey, number: int, end: int) -> StoredUnit | None:
        """Return the unit if it matches the log; None otherwise, or if its record has expired."""
        stored = self._queues.unit_at(key, number)
        if stored is None:
            return None
        unit = stored.unit
        if unit.size <= 0 or is_filler(*unit[:2]):
            return None
        if not self._log.min_offset <= unit.physical_offset < unit.end <= end:
            return None
        try:
            is_sound = self._source.is_of(stored) and self._source.is_whole(stored)
            return stored if is_sound else None
        except CorruptRecord:
            return None

    def _compare(self, key: QueueKey, run: QueueRun) -> None:
        last = run.first + run.unit_count - 1
        # current bounds: the queues may have been resumed since
        bounds = self._queues.bounds_of(key)
        wanted = range(max(bounds.start, self._wanted.start), min(bounds.stop, self._wanted.stop))
        for number in range(max(run.first, wanted.start), min(last + 1, wanted.stop)):
            at = (number - run.first) * key.unit_size
            self._mend(StoredUnit(key, number, run.units[at : at + key.unit_size]))
        if last >= self._wanted.start:
            # A queue's records are in the log in queue order, so all units below are done.
            self._wanted = range(last + 1, self._wanted.stop)

    def _compare_batches(self, key: QueueKey, more: bytes) -> None:
        """Add units of the log. Once all are there, replace the wanted units, if those of the log
        continue from one border to the other."""
        size, wanted, batches = key.unit_size, self._wanted, self._batches + more
        if len(batches) < len(wanted) * size:
            self._batches = batches
            return
        units = [
            StoredUnit(key, number, batches[at : at + size])
            for at, number in zip(itertools.count(0, size), wanted)
        ]
        before, after = self._borders
        chain = [*([before] if before else []), *units, *([after] if after else [])]
        bounds = self._queues.bounds_of(key)  # the queues may have been resumed since
        if (
            wanted.start in bounds
            and wanted[-1] in bounds
            and all(
                one.offsets[1] == following.offsets[0]
                for one, following in itertools.pairwise(chain)
            )
        ):
            for unit in units:
                self._mend(unit)
        self._wanted = range(0)

    def _mend(self, unit: StoredUnit) -> None:
        if self._queues.mend(unit):
            self.replaced.append((unit.key.topic, unit.key.queue, unit.offsets[0]))
