"""Compares a queue unit that a reader could not follow with the log, and replaces it if needed.

A unit is derived from the log. Only a read detects a flipped bit in an old unit, and rebuilding all
queues for it would take as long as reading the whole log. This module reads the log from the
nearest valid unit before it. Invariants:

- A unit is replaced only according to a valid record, and only where the queue has a unit: ends and
  totals of queues do not change.
- Damage in the log ends the comparison: units after it remain unchanged, and a read there reports
  the damage.
- A step reads a bounded part of the log, so that dispatch can continue in between.

The step before is the broker, which found the unit and published its location
(``Slot.UNIT_CHECK_COUNT``). The next sync makes the new unit durable. ``dispatcher`` runs it,
``dispatch_loop`` publishes the outcome.
"""

from __future__ import annotations

from typing import Final

from services.reput.log_source import LogSource
from services.reput.queue_writer import QueueWriter
from shared.files.commit_log import CommitLogReader
from shared.files.queue_math import is_filler
from tidemark.errors import CorruptRecord
from tidemark.formats.checkpoint import queue_number
from tidemark.formats.queue_unit import Unit
from tidemark.offsets import UNIT_SIZE, PhysicalOffset, Queue, QueueOffset

NEIGHBOURS_MAX: Final = 1024
"""Units compared in each direction until a valid one is found; damage may affect whole pages."""


class UnitMending:
    """Processes one request after another. For the dispatcher's thread."""

    def __init__(self, queues: QueueWriter, source: LogSource, log: CommitLogReader) -> None:
        self._queues = queues
        self._source = source
        self._log = log
        self._left: list[Queue] = []
        """Queues with the requested queue number."""
        self._number = 0
        self._key: Queue | None = None
        self._wanted = range(0)
        """Queue offsets of the units of that queue that are to be compared."""
        self._at = PhysicalOffset(0)
        self.replaced: list[tuple[str, int, int]] = []
        """(topic, queue, queue offset) of the units that differed from the log."""

    def begin(self, queue: int, number: int) -> None:
        """Start to compare the unit ``number`` of the queues whose ``queue_number`` is queue."""
        self._left = [key for key in self._queues.all_keys() if queue_number(*key) == queue]
        self._number = number
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
        if self._wanted and self._at < end:
            try:
                found = self._source.read(self._at, PhysicalOffset(end), bytes_max)
            except CorruptRecord:
                found = None  # the log itself is damaged; a read there reports it
            if found is not None:
                for run in found.plan.runs:
                    if run[:2] == self._key:
                        self._compare(self._key, run.first, run.units)
                self._at = found.end
                return True
            if self._at < self._log.min_offset:
                return True  # the file was removed meanwhile: the next step starts after it
        self._key = None
        return bool(self._left)

    def _take_next(self, end: int) -> None:
        """Find the valid units around the requested one, and where to start reading."""
        key = self._left.pop()
        first, behind = self._queues.bounds_of(key)
        if not first <= self._number < behind:
            return
        self._at = self._log.min_offset
        low = max(first, self._number - NEIGHBOURS_MAX)
        high = min(behind, self._number + NEIGHBOURS_MAX)
        for number in range(self._number - 1, low - 1, -1):
            if (unit := self._sound_unit(key, number, end)) is not None:
                self._at, low = PhysicalOffset(unit.end), number + 1
                break
        for number in range(self._number + 1, high):
            if self._sound_unit(key, number, end) is not None:
                high = number
                break
        self._key, self._wanted = key, range(low, high)

    def _sound_unit(self, key: Queue, number: int, end: int) -> Unit | None:
        """Return the unit if it matches the log; None otherwise, or if its record has expired."""
        unit = self._queues.unit_at(key, number)
        if unit is None or unit.size <= 0 or is_filler(*unit[:2]):
            return None
        at = PhysicalOffset(unit.physical_offset)
        if not self._log.min_offset <= at < unit.end <= end:
            return None
        try:
            is_sound = self._source.is_of(key, QueueOffset(number), at)
            return unit if is_sound and self._source.is_whole(unit) else None
        except CorruptRecord:
            return None

    def _compare(self, key: Queue, first: int, units: bytes) -> None:
        last = first + len(units) // UNIT_SIZE - 1
        # current bounds: the queues may have been resumed since
        low, high = self._queues.bounds_of(key)
        wanted = range(max(low, self._wanted.start), min(high, self._wanted.stop))
        for number in range(max(first, wanted.start), min(last + 1, wanted.stop)):
            at = (number - first) * UNIT_SIZE
            if self._queues.mend(key, number, units[at : at + UNIT_SIZE]):
                self.replaced.append((*key, number))
        if last >= self._wanted.start:
            # A queue's records are in the log in queue order, so all units below are done.
            self._wanted = range(last + 1, self._wanted.stop)
