"""The kinds of state records, as values. Pure.

What each is in bytes is ``shared.state.records``; what they add up to is ``shared.state.tables``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from shared.state.values import (
    Delayed,
    ForeignRange,
    GroupConfig,
    NextOffset,
    Queue,
    TimerMark,
    TopicConfig,
)


class TopicRecord(NamedTuple):
    """A topic is now as it says, whatever it was before."""

    flushed: int
    topic: TopicConfig


class GroupRecord(NamedTuple):
    """A group is now as it says; a deleted one loses its offsets with it."""

    flushed: int
    group: GroupConfig


class OffsetsRecord(NamedTuple):
    """Consumer offsets that moved, forth or back: group -> (topic, queue) -> next to consume."""

    flushed: int
    moves: Mapping[str, Mapping[Queue, int]]


class DelayRecord(NamedTuple):
    """Delay progress: the levels that moved, the timer's mark if it did, and cancellations."""

    flushed: int
    levels: Mapping[int, int] = {}
    timer: TimerMark | None = None
    cancelled: Mapping[Delayed, int] = {}


class EpochRecord(NamedTuple):
    """A start of a node that takes writes: what its generations of groups begin with."""

    flushed: int
    epoch: int
    start_count: int


class ForeignRecord(NamedTuple):
    """RocketMQ wrote this part of the log."""

    flushed: int
    range: ForeignRange


class SnapshotPart(NamedTuple):
    """A part of the whole state as it was when part 0 was appended; counts only with the others."""

    flushed: int
    id: int
    part: int
    """From 0."""
    parts: int
    topics: Sequence[TopicConfig]
    next_offsets: Sequence[NextOffset]
    groups: Sequence[GroupConfig] = ()
    offsets: Sequence[tuple[str, Mapping[Queue, int]]] = ()
    """(group, some of its offsets)."""
    levels: Sequence[tuple[int, int]] = ()
    timer: TimerMark = TimerMark()
    """The same in every part, like ``start_count``."""
    cancelled: Sequence[tuple[Delayed, int]] = ()
    foreign: Sequence[ForeignRange] = ()
    start_count: int = 0
    deleted_below: Sequence[tuple[str, int]] = ()
    """(topic, physical offset); an earlier version does not tell it, and skips it."""


class OtherRecord(NamedTuple):
    """A kind or version that this code does not know."""

    flushed: int
    kind: str
    version: int


Change: TypeAlias = (
    TopicRecord | GroupRecord | OffsetsRecord | DelayRecord | EpochRecord | ForeignRecord
)
StateRecord: TypeAlias = Change | SnapshotPart | OtherRecord
