"""How far delayed messages are delivered: kept in memory, told by ``delay`` records. Pure.

Levels are delivered in the order of their queues: one queue offset says it all. The timer's
messages leave in another order than they came in, so their mark is a pair (due time, queue offset),
and it can be told only while everything delivered lies at or below it and everything that waits
above. A message that was due before it was read, or a clock that stepped back, breaks that for a
while. No record is written then, and a start looks for origins from the last record on
(``origins``): the longer the while, the longer that takes, and nothing else comes of it.

Before: ``origins`` at a start, ``delivery`` while it goes on. After: ``state_log`` appends the
record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from shared.state.records import DelayRecord
from shared.state.values import Delayed, DelayState, TimerMark
from tidemark.formats.delay import TIMER_LEVEL

Time = tuple[int, int]
"""(due time [wall clock ms], queue offset): the timer's order."""


class Found(NamedTuple):
    """What the log says behind the last ``delay`` record."""

    levels: Mapping[int, int]
    """Level -> queue offset behind the last one that was delivered or carried."""
    timer: Mapping[int, int | None]
    """Queue offset of what was delivered or carried from the timer's queue -> when it was due;
    None: it was carried, or does not say."""


NOTHING_FOUND = Found({}, {})


class Progress:
    """What is delivered. One writer; whoever reads does so while nobody writes."""

    def __init__(self, state: DelayState, found: Found = NOTHING_FOUND) -> None:
        """state: as the last records told it. found: what was delivered since."""
        self.levels = dict(state.levels)
        """Level -> queue offset of the next message to deliver."""
        for level, queue_offset in found.levels.items():
            self.passed_level(level, queue_offset)
        self.timer = state.timer
        """The mark as it was told last."""
        self.cancelled: dict[Delayed, int] = dict(state.cancelled)
        self.carried_to = 0
        """Physical offset behind the last copy that waits on in place of another message."""
        self._done = set(found.timer)
        dues = [(due_ms, at) for at, due_ms in found.timer.items() if due_ms is not None]
        self._delivered: Time = max([state.timer[:2], *dues])
        self._told_levels = _reached(state.levels)

    # -- asking ----------------------------------------------------------------------------------

    def is_done(self, due_ms: int, queue_offset: int) -> bool:
        """Whether a message of the timer's queue is not to be delivered any more."""
        return (
            queue_offset in self._done
            or self.timer.passed(due_ms, queue_offset)
            or (TIMER_LEVEL, queue_offset) in self.cancelled
        )

    def is_cancelled(self, level: int, queue_offset: int) -> bool:
        """Whether somebody has cancelled it."""
        return (level, queue_offset) in self.cancelled

    @property
    def done(self) -> Iterable[int]:
        """Queue offsets of the timer's messages done since the mark was told; a copy."""
        return tuple(self._done)

    @property
    def has_moved(self) -> bool:
        """Whether a record would tell more than the last one."""
        return bool(self._done) or _reached(self.levels) != self._told_levels

    # -- moving ----------------------------------------------------------------------------------

    def passed_level(self, level: int, queue_offset: int) -> None:
        """Everything below queue_offset of that level's queue is done."""
        self.levels[level] = max(queue_offset, self.levels.get(level, 0))

    def passed_timer(self, due_ms: int, queue_offset: int) -> None:
        """That message of the timer's queue is done because it was due."""
        self._done.add(queue_offset)
        self._delivered = max(self._delivered, (due_ms, queue_offset))

    def cancel(self, cancelled: Mapping[Delayed, int]) -> None:
        """Those are not to be delivered; their record is appended."""
        self.cancelled.update(cancelled)

    # -- telling ---------------------------------------------------------------------------------

    def record(self, flushed: int, first: Time | None, read_to: int) -> DelayRecord | None:
        """The record that tells all of this; None while it cannot be told.

        first: of what waits in the timer's queue below read_to, what is due first; None: nothing.
        read_to: how far that queue has been read.
        """
        timer: TimerMark | None = None
        if self._done:
            is_border = first is None or first > self._delivered
            # A mark that does not cover what is done would forget it. Without its sorted file, or
            # with one that lost its last changes, the queue is read less far than that.
            is_covered = read_to >= self.timer.read_to and read_to > max(self._done)
            if not is_border or not is_covered:
                return None
            timer = TimerMark(*self._delivered, read_to)
        return DelayRecord(flushed, _reached(self.levels), timer or self.timer)

    def told(self, record: DelayRecord) -> None:
        """The record is appended."""
        assert record.timer is not None
        self.timer = record.timer
        self._told_levels = dict(record.levels)
        self._done.clear()
        now = DelayState(self.levels, self.timer)
        for each in [each for each, due in self.cancelled.items() if now.passed(each, due)]:
            del self.cancelled[each]


def _reached(levels: Mapping[int, int]) -> dict[int, int]:
    """The levels of which something is delivered."""
    return {level: queue_offset for level, queue_offset in levels.items() if queue_offset}
