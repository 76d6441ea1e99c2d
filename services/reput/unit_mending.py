"""Compares a queue unit that a reader could not follow with the log, and replaces it if need be.

A unit is derived: the log says what it has to be. Only a read finds a flipped bit in an old unit,
and to make all queues again for it would take as long as reading the whole log. Here the log is
read from the nearest sound unit before it. Invariants:

- A unit is replaced by what a sound record says, never by anything else, and only where the queue
  has a unit: ends and totals of queues do not move.
- Damage in the log ends the comparison: units behind it stay as they are, and a read there names
  the damage.
- A step reads a bounded part of the log, so that dispatch goes on in between.

Step before: the broker met the unit and published where (``Slot.UNIT_CHECK_COUNT``). Step after:
the next sync makes the unit durable. ``dispatcher`` runs it, ``follower`` publishes the outcome.
"""

from __future__ import annotations

from typing import Final

from services.reput.log_source import LogSource
from services.reput.queue_writer import QueueWriter
from shared.files.commit_log import CommitLogReader
from shared.files.queue_math import is_filler
from tidemark.errors import CorruptRecord
from tidemark.formats.checkpoint import queue_number
from tidemark.formats.plan import QueueKey
from tidemark.formats.queue_unit import Unit
from tidemark.offsets import UNIT_SIZE, PhysicalOffset, QueueOffset

NEIGHBOURS_MAX: Final = 1024
"""Units compared in either direction until a sound one is met: damage takes whole pages, too."""


class UnitMending:
    """One request after another. For the dispatcher's thread."""

    def __init__(self, queues: QueueWriter, source: LogSource, log: CommitLogReader) -> None:
        self._queues = queues
        self._source = source
        self._log = log
        self._left: list[QueueKey] = []
        """Queues with the number that was asked for."""
        self._number = 0
        self._key: QueueKey | None = None
        self._wanted = range(0)
        """Queue offsets of the units of that queue to be compared."""
        self._at = PhysicalOffset(0)
        self.replaced: list[tuple[str, int, int]] = []
        """(topic, queue, queue offset) of the units that were another than the log's."""

    def begin(self, queue: int, number: int) -> None:
        """Compare the unit ``number`` of the queue with that ``queue_number``."""
        self._left = [key for key in self._queues.all_keys() if queue_number(*key) == queue]
        self._number = number
        self._key = None
        self.replaced = []

    def step(self, end: int, bytes_max: int) -> bool:
        """Go on with about bytes_max bytes of log below end; whether more is left to do.

        Raises DiskFull, ReadOnlyDisk or OSError if a unit cannot be stored: call it again.
        """
        if self._key is None:
            if not self._left:
                return False
            self._take_next(end)
            return True
        self._at = max(self._at, self._log.min_offset)  # the oldest files may go meanwhile
        if self._wanted and self._at < end:
            try:
                found = self._source.read(self._at, PhysicalOffset(end), bytes_max)
            except CorruptRecord:
                found = None  # the log itself is damaged: a read there names it
            if found is not None:
                for run in found.plan.runs:
                    if run[:2] == self._key:
                        self._compare(self._key, run.first, run.units)
                self._at = found.end
                return True
            if self._at < self._log.min_offset:
                return True  # that file is gone now: the next step begins behind it
        self._key = None
        return bool(self._left)

    def _take_next(self, end: int) -> None:
        """Find the sound units around the one in question, and where to read from."""
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

    def _sound_unit(self, key: QueueKey, number: int, end: int) -> Unit | None:
        """The unit if it is what the log says; None also for one whose record has expired."""
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

    def _compare(self, key: QueueKey, first: int, units: bytes) -> None:
        last = first + len(units) // UNIT_SIZE - 1
        low, high = self._queues.bounds_of(key)  # of now: the queues may have been resumed since
        wanted = range(max(low, self._wanted.start), min(high, self._wanted.stop))
        for number in range(max(first, wanted.start), min(last + 1, wanted.stop)):
            at = (number - first) * UNIT_SIZE
            if self._queues.mend(key, number, units[at : at + UNIT_SIZE]):
                self.replaced.append((*key, number))
        if last >= self._wanted.start:
            # A queue's records lie in the log in the queue's order: what is below is passed.
            self._wanted = range(last + 1, self._wanted.stop)
