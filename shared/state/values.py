"""Elements of the state: topics, groups, offsets and delay progress as values. Pure.

Each is immutable by convention: a change creates another value. ``shared.state.records`` encodes
them in state records; ``shared.state.state`` accumulates them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

PERM_READ: Final = 4
PERM_WRITE: Final = 2

Start: TypeAlias = Literal["first", "last"] | int
"""Start position of a group on a queue for which it has no offset: the first or the last message,
or the first message stored at or after a wall clock time [ms]."""
Delayed: TypeAlias = tuple[int, int]
"""(level, queue offset) of a delayed message; level 0 is the timer's queue."""

TIMER_LEVEL: Final = 0
QUEUE_TYPE: Final = "queue.type"
"""RocketMQ's attribute for the type of a topic's queues; without it they are simple."""
BATCH_QUEUES: Final = "BatchCQ"
"""Its value for queues whose records are inner batches."""
RETRY_POLICY_DEFAULT: Final = '{"type":"CUSTOMIZED"}'


class TopicConfig(NamedTuple):
    """A topic, existing or deleted. The fields after ``perm`` are kept for RocketMQ."""

    name: str
    queues: int
    """Number of queues that producers send to: 0…queues − 1."""
    read_queues: int
    """Number of queues that can be read; exceeds ``queues`` after ``queues`` was lowered."""
    perm: int = PERM_READ | PERM_WRITE
    order: bool = False
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    attributes: Mapping[str, str] = {}
    min_offsets: Mapping[int, int] = {}
    """Queue -> first queue offset after the topic's last deletion; 0 for a missing queue."""
    deleted: bool = False

    @property
    def is_readable(self) -> bool:
        """Whether consumers may pull from it."""
        return bool(self.perm & PERM_READ)

    @property
    def is_writable(self) -> bool:
        """Whether producers may send to it."""
        return bool(self.perm & PERM_WRITE)

    @property
    def is_batch(self) -> bool:
        """Whether its queues are batch queues: every record is an inner batch."""
        return self.attributes.get(QUEUE_TYPE) == BATCH_QUEUES

    @property
    def queue_type(self) -> str:
        """The type of its queues as the API names it."""
        return "batch" if self.is_batch else "simple"

    @property
    def queue_count(self) -> int:
        """Number of queues that can be addressed at all."""
        return max(self.queues, self.read_queues)


class GroupConfig(NamedTuple):
    """A consumer group. The fields after ``consume_enabled`` are kept for RocketMQ."""

    name: str
    order: bool = False
    """A queue's next batch is delivered only after the batch before is committed."""
    broadcast: bool = False
    """Every member gets every message; members keep their positions themselves."""
    start: Start = "first"
    retry_max: int = 16
    """Number of nacks of one message until it becomes a dead letter."""
    retry_queues: int = 1
    lag_objective_ms: int | None = None
    """Maximum age of an unread message; None if it is not configured."""
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
    """JSON text, because the set of kinds grows with RocketMQ's versions."""
    forbidden: Mapping[str, int] = {}
    """Topic -> bit mask."""
    deleted: bool = False
    """The group is deleted with its offsets; a new group of this name has none."""


class NextOffset(NamedTuple):
    """The queue offset that the next message of a queue gets."""

    topic: str
    queue: int
    queue_offset: int


class TimerMark(NamedTuple):
    """Progress of the timer: of its queue's messages before ``read_to``, those with (due time,
    queue offset) up to the mark are delivered. The default value means that none is delivered."""

    due_ms: int = 0
    queue_offset: int = 0
    read_to: int = 0

    def passed(self, due_ms: int, queue_offset: int) -> bool:
        """Whether the message with that due time and queue offset is delivered."""
        return queue_offset < self.read_to and (due_ms, queue_offset) <= (
            self.due_ms,
            self.queue_offset,
        )


class DelayState(NamedTuple):
    """Progress of delayed delivery, and the cancelled messages."""

    levels: Mapping[int, int] = {}
    """Level -> queue offset of the next message to deliver."""
    timer: TimerMark = TimerMark()
    cancelled: Mapping[Delayed, int] = {}
    """Cancelled messages that progress has not passed yet -> due time [wall clock ms]."""

    def passed(self, delayed: Delayed, due_ms: int) -> bool:
        """Whether progress has passed that message, delivered or cancelled."""
        level, queue_offset = delayed
        if level == TIMER_LEVEL:
            return self.timer.passed(due_ms, queue_offset)
        return queue_offset < self.levels.get(level, 0)


class ForeignRange(NamedTuple):
    """A part of the log that RocketMQ wrote: physical offsets [start, end)."""

    start: int
    end: int
