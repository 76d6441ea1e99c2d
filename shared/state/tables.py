"""What changes add up to: topics, groups, offsets, delay progress. Pure.

The same tables serve twice: as the state, and as what has changed since the first part of a
snapshot whose last part is still to come (``shared.state.state``).
"""

from __future__ import annotations

import copy
from typing import Final

from shared.state.records import (
    Change,
    DelayRecord,
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
    Queue,
    TimerMark,
    TopicConfig,
)

FOREIGN_MAX: Final = 4096
"""Ranges remembered, the newest: each costs an opening of the store by RocketMQ."""


class Tables:
    """Changes, added up in the order of the log. Has one writer."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicConfig] = {}
        """Existing topics by name."""
        self.deleted: dict[str, TopicConfig] = {}
        """Topics that were deleted: a new one of the same name goes on with their offsets."""
        self.deleted_below: dict[str, int] = {}
        """Topic -> physical offset below which a message that waits for it waits for one that was
        deleted: the durable mark of the newest deletion. Missing: none, or told by an earlier
        version."""
        self.groups: dict[str, GroupConfig] = {}
        """Existing consumer groups by name."""
        self.offsets: dict[str, dict[Queue, int]] = {}
        """Group -> (topic, queue) -> next queue offset to consume; of groups that have any."""
        self.start_count = 0
        """Starts of nodes that took writes."""
        self.foreign: list[ForeignRange] = []
        """What RocketMQ wrote, in order."""
        self.delay_told_at: int | None = None
        """Physical offset of the record that told the delay progress last, where known: copies
        delivered since are behind it. None: none told, the whole log is behind it."""
        self.dropped: set[str] = set()
        """Groups that lost the offsets they had before these changes."""
        self._levels: dict[int, int] = {}
        self._timer: TimerMark | None = None
        self._cancelled: dict[Delayed, int] = {}

    @property
    def delay(self) -> DelayState:
        """Delay progress and cancellations; a copy."""
        return DelayState(dict(self._levels), self._timer or TimerMark(), dict(self._cancelled))

    def change(self, record: Change, at: int | None = None) -> None:
        """Take one change. at: physical offset of its record, if known."""
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

    def add(self, later: Tables) -> None:
        """Take all that later tables say: they were changed after these."""
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
        if later.delay_told_at is not None or later._levels or later._timer or later._cancelled:
            told = DelayRecord(0, later._levels, later._timer, later._cancelled)
            self._put_delay(told, later.delay_told_at)
        self.start_count = max(self.start_count, later.start_count)
        for foreign in later.foreign:
            self.put_foreign(foreign)

    def contents(self) -> dict[str, object]:
        """Every attribute, copied as deep as it is ever changed in place."""
        copied = {name: copy.copy(value) for name, value in vars(self).items()}
        copied["offsets"] = {name: dict(pairs) for name, pairs in self.offsets.items()}
        return copied

    def put_topic(self, topic: TopicConfig) -> None:
        """A topic is now so; a deleted one too."""
        mine, other = (self.deleted, self.topics) if topic.deleted else (self.topics, self.deleted)
        mine[topic.name] = topic
        other.pop(topic.name, None)

    def put_deleted_below(self, name: str, offset: int) -> None:
        """What waits for the topic and lies below waits for one that was deleted."""
        if offset > self.deleted_below.get(name, 0):
            self.deleted_below[name] = offset

    def put_foreign(self, foreign: ForeignRange) -> None:
        """RocketMQ wrote this as well; told twice, it counts once."""
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
            # Only progress: a cancellation alone tells nothing of what has been delivered.
            self.delay_told_at = at if at is not None else self.delay_told_at
            passed = [each for each, due_ms in self._cancelled.items() if now.passed(each, due_ms)]
            for each in passed:
                del self._cancelled[each]
        for each, due_ms in record.cancelled.items():
            # One that came too late is forgotten at once, in whatever order the two are told.
            if not now.passed(each, due_ms):
                self._cancelled[each] = due_ms
