"""The queues of the delay levels: due messages at their heads, and all waiting ones.

The delay of a level is constant, so its queue is in the order of due times. After a clock step
backwards, messages are still delivered in queue order. The tags code of a unit is the due time.
The caller keeps the progress of each level.

Blocks; called in the delay thread. Step before: dispatch wrote the units. Step after: ``slices``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from services.broker.delay.slices import Entry
from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import ConsumeQueueReader, ConsumeQueues
from shared.files.queue_math import is_filler
from tidemark.formats import delay
from tidemark.formats.queue_unit import Unit
from tidemark.offsets import PhysicalOffset, QueueOffset

UNITS_AT_ONCE: Final = 512


class Head(NamedTuple):
    """The state of a level's queue from its next message on."""

    due: Sequence[Entry]
    """Due messages in order; at most as many as asked for."""
    end: int
    """Queue offset up to which there are units."""
    next_due_ms: int | None
    """Due time of the first message after ``due``; None: there is none."""
    oldest: PhysicalOffset | None
    """Physical offset of the first waiting record; None: none waits."""


class LevelQueues:
    """The queues of all levels. One thread uses it."""

    def __init__(
        self, log_reader: CommitLogReader, queues: ConsumeQueues, delay_levels_ms: Sequence[int]
    ) -> None:
        """delay_levels_ms: [0] is the delay of level 1."""
        self._log = log_reader
        self._queues = queues
        self._delays_ms = list(delay_levels_ms) or [0]

    def clamped(self, level: int, queue_offset: int, dispatched: PhysicalOffset) -> int:
        """Clamp a queue offset to the range of the level's queue."""
        queue = self._queue(level)
        first = int(queue.min_offset(self._log.min_offset))
        return min(max(queue_offset, first), int(queue.max_offset(dispatched)))

    def head(
        self,
        level: int,
        queue_offset: int,
        *,
        dispatched: PhysicalOffset,
        now_ms: int,
        is_cancelled: Callable[[int, int], bool],
        count_max: int,
    ) -> Head:
        """Return what is due in a level from queue_offset on."""
        due: list[Entry] = []
        oldest: PhysicalOffset | None = None
        reached_ms = 0
        for number, unit in self._units(level, queue_offset, dispatched):
            if oldest is None and not is_filler(unit.physical_offset, unit.size):
                oldest = PhysicalOffset(unit.physical_offset)
            due_ms = delay.level_due_ms(unit.tags_code, now_ms, self._delay_ms(level))
            if due_ms > now_ms or len(due) == count_max:
                return Head(due, self._end(level, dispatched), due_ms, oldest)
            # A message after one with a later due time is delivered after it, in queue order.
            reached_ms = max(reached_ms, due_ms)
            due.append(_entry(level, number, unit, reached_ms, is_cancelled(level, number)))
        return Head(due, self._end(level, dispatched), None, oldest)

    def waiting(
        self, level: int, queue_offset: int, dispatched: PhysicalOffset, now_ms: int
    ) -> Iterator[Entry]:
        """Return all waiting messages of a level from queue_offset on, in the queue's order."""
        for number, unit in self._units(level, queue_offset, dispatched):
            if not is_filler(unit.physical_offset, unit.size):
                due_ms = delay.level_due_ms(unit.tags_code, now_ms, self._delay_ms(level))
                yield _entry(level, number, unit, due_ms, passed_over=False)

    def first_due_from(
        self, level: int, queue_offset: int, due_ms: int, dispatched: PhysicalOffset
    ) -> int:
        """Return the first queue offset from queue_offset on whose message is due at due_ms or
        later."""
        queue = self._queue(level)
        low, high = queue_offset, int(queue.max_offset(dispatched))
        while low < high:
            middle = (low + high) // 2
            unit = queue.unit(QueueOffset(middle))
            if unit is None or unit.tags_code < due_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def _units(
        self, level: int, start: int, dispatched: PhysicalOffset
    ) -> Iterator[tuple[int, Unit]]:
        queue = self._queue(level)
        at = max(start, int(queue.min_offset(self._log.min_offset)))
        end = int(queue.max_offset(dispatched))
        while at < end:
            # The queue is opened again each time, because a reader is valid only until the next is
            # made.
            queue = self._queue(level)
            units = queue.units(at, min(UNITS_AT_ONCE, end - at), dispatched)
            yield from enumerate(units, at)
            at = at + len(units) if units else int(queue.roll_next(at))

    def _end(self, level: int, dispatched: PhysicalOffset) -> int:
        return int(self._queue(level).max_offset(dispatched))

    def _queue(self, level: int) -> ConsumeQueueReader:
        return self._queues.get(*delay.place_of(level))

    def _delay_ms(self, level: int) -> int:
        """Return the delay of a level. Above the highest level, which may have been removed from
        the settings, it is that of the highest."""
        return self._delays_ms[min(level, len(self._delays_ms)) - 1]


def _entry(level: int, number: int, unit: Unit, due_ms: int, passed_over: bool) -> Entry:
    if passed_over or is_filler(unit.physical_offset, unit.size):
        return Entry(due_ms, level, number, unit.physical_offset, 0, None, passed_over=True)
    return Entry(due_ms, level, number, unit.physical_offset, unit.size, None)
