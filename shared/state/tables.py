"""Accumulated changes: topics, groups, offsets, delay progress. Pure.

The same class serves two purposes: as the state, and as the changes since the first part of a
snapshot whose last part has not been read yet (``shared.state.state``).
"""

from __future__ import annotations

import copy
from typing import Final

from shared.state.records import (
    Change,
    DelayRecord,
    DrainRecord,
    EpochRecord,
    ForeignRecord,
    GroupRecord,
    OffsetsRecord,
    TopicRecord,
)
from shared.state.values import (
    Delayed,
    DelayState,
    ForeignRange,
    GroupConfig,
    TimerMark,
    TopicConfig,
)
from tidemark.offsets import Queue

FOREIGN_MAX: Final = 4096
"""Maximum number of ranges; the newest are kept. RocketMQ adds one each time it opens the store."""


class Tables:
    """Changes accumulated in log order. Has one writer."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicConfig] = {}
        """Existing topics by name."""
        self.deleted: dict[str, TopicConfig] = {}
        """Deleted topics by name: a new topic of the same name continues their offsets."""
        self.deleted_below: dict[str, int] = {}
        """Topic -> durable mark of its newest deletion, a physical offset. Delayed messages below
        it were sent to the deleted topic. Missing: no deletion, or one written by an earlier
        version."""
        self.groups: dict[str, GroupConfig] = {}
        """Existing consumer groups by name."""
        self.offsets: dict[str, dict[Queue, int]] = {}
        """Group -> (topic, queue) -> next queue offset to consume; only groups that have any."""
        self.start_count = 0
        """Number of starts of nodes that took writes."""
        self.foreign: list[ForeignRange] = []
        """Ranges of the log that RocketMQ wrote, in order."""
        self.delay_recorded_at: int | None = None
        """Physical offset of the newest record of delay progress, if known: copies delivered since
        lie after it. None: there is no such record, so they may lie anywhere in the log."""
        self.drain: DrainRecord | None = None
        """The newest command to drain the node or to end that; None: there was none."""
        self.dropped: set[str] = set()
        """Groups that were deleted by these changes and lost their earlier offsets."""
        self._levels: dict[int, int] = {}
        self._timer: TimerMark | None = None
        self._cancelled: dict[Delayed, int] = {}

    @property
    def delay(self) -> DelayState:
        """A copy of delay progress and cancellations."""
        return DelayState(dict(self._levels), self._timer or TimerMark(), dict(self._cancelled))

    @property
    def drained_since_ms(self) -> int | None:
        """Since when producers may not send [wall clock ms]; None: they may."""
        return None if self.drain is None else self.drain.since_ms

    def change(self, record: Change, at: int | None = None) -> None:
        """Apply one change. at: physical offset of its record, if known."""
        match record:
            case TopicRecord(flushed, topic):
                self.put_topic(topic)
                if topic.deleted:
                    self.put_deleted_below(topic.name, flushed)
            case GroupRecord(_, group):
                self._put_group(group)
            case OffsetsRecord(_, moves):
                for name, pairs in moves.items():
                    self.offsets.setdefault(name, {}).update(pairs)
            case DelayRecord():
                self._put_delay(record, at)
            case EpochRecord(_, _, start_count):
                self.start_count = max(self.start_count, start_count)
            case ForeignRecord(_, foreign):
                self.put_foreign(foreign)
            case DrainRecord():
                self.drain = record

    def add(self, later: Tables) -> None:
        """Apply all changes of tables that were changed after these."""
        for topic in (*later.topics.values(), *later.deleted.values()):
            self.put_topic(topic)
        for name, offset in later.deleted_below.items():
            self.put_deleted_below(name, offset)
        for name in later.dropped:
            self.groups.pop(name, None)
            self.offsets.pop(name, None)
        self.groups.update(later.groups)
        for name, pairs in later.offsets.items():
            self.offsets.setdefault(name, {}).update(pairs)
        if later.delay_recorded_at is not None or later._levels or later._timer or later._cancelled:
            record = DelayRecord(0, later._levels, later._timer, later._cancelled)
            self._put_delay(record, later.delay_recorded_at)
        self.start_count = max(self.start_count, later.start_count)
        self.drain = later.drain or self.drain
        for foreign in later.foreign:
            self.put_foreign(foreign)

    def contents(self) -> dict[str, object]:
        """Return every attribute, copied as deeply as it is ever changed in place."""
        copied = {name: copy.copy(value) for name, value in vars(self).items()}
        copied["offsets"] = {name: dict(pairs) for name, pairs in self.offsets.items()}
        return copied

    def put_topic(self, topic: TopicConfig) -> None:
        """Set a topic, existing or deleted."""
        mine, other = (self.deleted, self.topics) if topic.deleted else (self.topics, self.deleted)
        mine[topic.name] = topic
        other.pop(topic.name, None)

    def put_deleted_below(self, name: str, offset: int) -> None:
        """Note that delayed messages below offset were sent to a deleted topic of this name."""
        if offset > self.deleted_below.get(name, 0):
            self.deleted_below[name] = offset

    def put_foreign(self, foreign: ForeignRange) -> None:
        """Add a range that RocketMQ wrote; a known one is ignored."""
        if foreign not in self.foreign:
            self.foreign.append(foreign)
            del self.foreign[:-FOREIGN_MAX]

    def _put_group(self, group: GroupConfig) -> None:
        if group.deleted:
            self.groups.pop(group.name, None)
            self.offsets.pop(group.name, None)
            self.dropped.add(group.name)
        else:
            self.groups[group.name] = group

    def _put_delay(self, record: DelayRecord, at: int | None) -> None:
        self._levels.update(record.levels)
        if record.timer is not None:
            self._timer = record.timer
        now = DelayState(self._levels, self._timer or TimerMark())
        if record.levels or record.timer is not None:
            # Progress only: a cancellation alone does not describe what has been delivered.
            self.delay_recorded_at = at if at is not None else self.delay_recorded_at
            passed = [each for each, due_ms in self._cancelled.items() if now.passed(each, due_ms)]
            for each in passed:
                del self._cancelled[each]
        for each, due_ms in record.cancelled.items():
            # A cancellation that came too late is dropped, whichever of the two records is first.
            if not now.passed(each, due_ms):
                self._cancelled[each] = due_ms
