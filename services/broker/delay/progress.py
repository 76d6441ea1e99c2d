"""Progress of the delivery of delayed messages, kept in memory and in ``delay`` records. Pure.

A level is delivered in queue order, so one queue offset is its progress. Timer messages are
delivered in another order than they are stored, so their progress is a mark, a pair (due time,
queue offset). The mark can be recorded only while all delivered messages are at or below it and all
waiting ones above. This does not hold for a while after a message was due before it was read, or
after a clock step backwards. Then no record is written, and a start only has to search more of the
log for origins (``origins``).

Step before: ``origins`` at a start, then ``delivery``. Step after: ``state_log`` appends the
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
    """Deliveries in the log after the last ``delay`` record."""

    levels: Mapping[int, int]
    """Level → queue offset after the last delivered or carried message."""
    timer: Mapping[int, int | None]
    """Queue offset of a delivered or carried message of the timer's queue → its due time; None: it
    was carried, or its copy has no due time."""


NOTHING_FOUND = Found({}, {})


class Progress:
    """The progress. It has one writer, and may be read while no write is in progress."""

    def __init__(self, state: DelayState, found: Found = NOTHING_FOUND) -> None:
        """state: from the last records. found: deliveries after them."""
        self.levels = dict(state.levels)
        """Level → queue offset of the next message to deliver."""
        for level, queue_offset in found.levels.items():
            self.passed_level(level, queue_offset)
        self.timer = state.timer
        """The mark of the last record."""
        self.cancelled: dict[Delayed, int] = dict(state.cancelled)
        self.carried_to = 0
        """Physical offset after the last carried copy."""
        self._done = set(found.timer)
        dues = [(due_ms, at) for at, due_ms in found.timer.items() if due_ms is not None]
        self._delivered: Time = max([state.timer[:2], *dues])
        self._recorded_levels = _reached(state.levels)

    # -- asking ----------------------------------------------------------------------------------

    def is_done(self, due_ms: int, queue_offset: int) -> bool:
        """Return whether a message of the timer's queue is done and must not be delivered."""
        return (
            queue_offset in self._done
            or self.timer.passed(due_ms, queue_offset)
            or (TIMER_LEVEL, queue_offset) in self.cancelled
        )

    def is_cancelled(self, level: int, queue_offset: int) -> bool:
        """Return whether the message was cancelled."""
        return (level, queue_offset) in self.cancelled

    @property
    def done(self) -> Iterable[int]:
        """Queue offsets of the timer's messages done since the last recorded mark; a copy."""
        return tuple(self._done)

    @property
    def has_moved(self) -> bool:
        """Whether there is progress since the last record."""
        return bool(self._done) or _reached(self.levels) != self._recorded_levels

    # -- moving ----------------------------------------------------------------------------------

    def passed_level(self, level: int, queue_offset: int) -> None:
        """Note that all messages of that level below queue_offset are done."""
        self.levels[level] = max(queue_offset, self.levels.get(level, 0))

    def passed_timer(self, due_ms: int, queue_offset: int) -> None:
        """Note that a due message of the timer's queue was delivered."""
        self._done.add(queue_offset)
        self._delivered = max(self._delivered, (due_ms, queue_offset))

    def cancel(self, cancelled: Mapping[Delayed, int]) -> None:
        """Note cancellations whose record is appended."""
        self.cancelled.update(cancelled)

    # -- records ---------------------------------------------------------------------------------

    def record(self, flushed: int, first: Time | None, read_to: int) -> DelayRecord | None:
        """Return a record of the progress; None while the mark cannot be recorded.
        first: the next due message in the timer's queue below read_to; None: none. read_to: end of
        the part of that queue that was read."""
        timer: TimerMark | None = None
        if self._done:
            is_border = first is None or first > self._delivered
            # A mark that does not cover all done messages would lose them. Without its sorted file,
            # or with one that lost its last changes, less of the queue may be read than that.
            is_covered = read_to >= self.timer.read_to and read_to > max(self._done)
            if not is_border or not is_covered:
                return None
            timer = TimerMark(*self._delivered, read_to)
        return DelayRecord(flushed, _reached(self.levels), timer or self.timer)

    def recorded(self, record: DelayRecord) -> None:
        """Note that the record is appended."""
        assert record.timer is not None
        self.timer = record.timer
        self._recorded_levels = dict(record.levels)
        self._done.clear()
        now = DelayState(self.levels, self.timer)
        for each in [each for each, due in self.cancelled.items() if now.passed(each, due)]:
            del self.cancelled[each]


def _reached(levels: Mapping[int, int]) -> dict[int, int]:
    """Return the levels with delivered messages."""
    return {level: queue_offset for level, queue_offset in levels.items() if queue_offset}
