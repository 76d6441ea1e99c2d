"""The kinds of state records, as values. Pure.

``shared.state.records`` encodes them; ``shared.state.tables`` accumulates them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from shared.state.values import (
    Delayed,
    ForeignRange,
    GroupConfig,
    NextOffset,
    TimerMark,
    TopicConfig,
)
from tidemark.offsets import Queue


class TopicRecord(NamedTuple):
    """The complete new configuration of a topic; replaces any earlier one."""

    flushed: int
    topic: TopicConfig


class GroupRecord(NamedTuple):
    """The complete new configuration of a group; a deleted group loses its offsets."""

    flushed: int
    group: GroupConfig


class OffsetsRecord(NamedTuple):
    """Consumer offsets that moved, in either direction: group -> (topic, queue) -> next offset."""

    flushed: int
    moves: Mapping[str, Mapping[Queue, int]]


class DelayRecord(NamedTuple):
    """Delay progress: levels that moved, the timer's mark if it moved, and cancellations."""

    flushed: int
    levels: Mapping[int, int] = {}
    timer: TimerMark | None = None
    cancelled: Mapping[Delayed, int] = {}


class EpochRecord(NamedTuple):
    """A start of a node that accepts writes; generations of groups begin with its start count."""

    flushed: int
    epoch: int
    start_count: int


class ForeignRecord(NamedTuple):
    """A part of the log that RocketMQ wrote."""

    flushed: int
    range: ForeignRange


class DrainRecord(NamedTuple):
    """From here on the node takes no messages from producers, or takes them again."""

    flushed: int
    since_ms: int | None
    """Wall clock time of the command [ms]; None: producers may send."""


class SnapshotPart(NamedTuple):
    """A part of the whole state as of the append of part 0; valid only with all other parts."""

    flushed: int
    id: int
    part: int
    """Counts from 0."""
    parts: int
    topics: Sequence[TopicConfig]
    next_offsets: Sequence[NextOffset]
    groups: Sequence[GroupConfig] = ()
    offsets: Sequence[tuple[str, Mapping[Queue, int]]] = ()
    """(group, some of its offsets)."""
    levels: Sequence[tuple[int, int]] = ()
    timer: TimerMark = TimerMark()
    """The same in every part, as is ``start_count``."""
    cancelled: Sequence[tuple[Delayed, int]] = ()
    foreign: Sequence[ForeignRange] = ()
    start_count: int = 0
    deleted_below: Sequence[tuple[str, int]] = ()
    """(topic, physical offset); earlier versions do not write it, and ignore it."""
    drained_since_ms: int | None = None
    """Written only while the node is drained; the same in every part."""


class OtherRecord(NamedTuple):
    """A record of a kind or version that this code does not know."""

    flushed: int
    kind: str
    version: int


Change: TypeAlias = (
    TopicRecord
    | GroupRecord
    | OffsetsRecord
    | DelayRecord
    | EpochRecord
    | ForeignRecord
    | DrainRecord
)
StateRecord: TypeAlias = Change | SnapshotPart | OtherRecord
