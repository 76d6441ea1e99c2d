"""What the state is made of: topics, groups, offsets, delay progress as values. Pure.

Each is immutable by convention: a change is another value. What a state record carries of them is
``shared.state.records``; what they add up to is ``shared.state.state``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

PERM_READ: Final = 4
PERM_WRITE: Final = 2

Queue: TypeAlias = tuple[str, int]
"""(topic, queue)."""
Start: TypeAlias = Literal["first", "last"] | int
"""Where a group begins on a queue it has no offset of: at its first or its last message, or at the
first one stored at or after a wall clock time [ms]."""
Delayed: TypeAlias = tuple[int, int]
"""(level, queue offset) of a delayed message; level 0: the timer's queue."""

TIMER_LEVEL: Final = 0
RETRY_POLICY_DEFAULT: Final = '{"type":"CUSTOMIZED"}'


class TopicConfig(NamedTuple):
    """A topic, existing or deleted. The fields behind ``perm`` are RocketMQ's, kept for it."""

    name: str
    queues: int
    """Queues that sends are spread over: 0…queues − 1."""
    read_queues: int
    """Queues that can be read; more than ``queues`` after the number was lowered."""
    perm: int = PERM_READ | PERM_WRITE
    order: bool = False
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    attributes: Mapping[str, str] = {}
    min_offsets: Mapping[int, int] = {}
    """Queue -> first queue offset that is not from before a deletion; a missing queue has 0."""
    deleted: bool = False

    @property
    def is_readable(self) -> bool:
        """Consumers may pull from it."""
        return bool(self.perm & PERM_READ)

    @property
    def is_writable(self) -> bool:
        """Producers may send to it."""
        return bool(self.perm & PERM_WRITE)

    @property
    def queue_count(self) -> int:
        """Queues that can be addressed at all."""
        return max(self.queues, self.read_queues)


class GroupConfig(NamedTuple):
    """A consumer group. The fields behind ``consume_enabled`` are RocketMQ's, kept for it."""

    name: str
    order: bool = False
    """A queue's next batch is handed out only after the one before is committed."""
    broadcast: bool = False
    """Every member gets every message; the members keep their positions themselves."""
    start: Start = "first"
    retry_max: int = 16
    """Send-backs of one message until it is a dead letter."""
    retry_queues: int = 1
    lag_objective_ms: int | None = None
    """How old an unread message may be; None: nobody has said."""
    consume_enabled: bool = True
    consume_from_min_enabled: bool = True
    broadcast_enabled: bool = True
    broker_id: int = 0
    which_broker_when_slow: int = 1
    notify_members_changed: bool = True
    sys_flag: int = 0
    consume_timeout_min: int = 15
    attributes: Mapping[str, str] = {}
    retry_policy: str = RETRY_POLICY_DEFAULT
    """JSON text: its kinds grow with RocketMQ's versions."""
    forbidden: Mapping[str, int] = {}
    """Topic -> bit mask."""
    deleted: bool = False
    """The group is gone, with its offsets; a new one of this name starts as new."""


class NextOffset(NamedTuple):
    """The queue offset that a queue's next message gets."""

    topic: str
    queue: int
    queue_offset: int


class TimerMark(NamedTuple):
    """How far the timer has delivered: of its queue's messages before ``read_to``, those with
    (due time, queue offset) up to the mark. The one of before the first delivery marks nothing."""

    due_ms: int = 0
    queue_offset: int = 0
    read_to: int = 0

    def passed(self, due_ms: int, queue_offset: int) -> bool:
        """Whether the message at that queue offset, due then, is delivered."""
        return queue_offset < self.read_to and (due_ms, queue_offset) <= (
            self.due_ms,
            self.queue_offset,
        )


class DelayState(NamedTuple):
    """How far delayed messages are delivered, and which never will be."""

    levels: Mapping[int, int] = {}
    """Level -> queue offset of the next message to deliver."""
    timer: TimerMark = TimerMark()
    cancelled: Mapping[Delayed, int] = {}
    """Cancelled and not passed yet -> due time [wall clock ms]."""

    def passed(self, delayed: Delayed, due_ms: int) -> bool:
        """Whether progress has gone past that message, delivered or cancelled."""
        level, queue_offset = delayed
        if level == TIMER_LEVEL:
            return self.timer.passed(due_ms, queue_offset)
        return queue_offset < self.levels.get(level, 0)


class ForeignRange(NamedTuple):
    """A part of the log that RocketMQ wrote: physical offsets [start, end)."""

    start: int
    end: int
