"""The queues in which delayed messages wait, and the readable end of the log."""

from __future__ import annotations

from collections.abc import Sequence

from services.broker.delay.waiting import Ends
from services.broker.log.log_context import LogContext
from services.broker.log.queue_offsets import QueueOffsets
from tidemark.formats.delay import TIMER_LEVEL
from tidemark.formats.hashing import SCHEDULE_TOPIC
from tidemark.offsets import Queue, QueueOffset


class DelayQueues:
    """The levels in use and the ends of log and queues."""

    def __init__(self, log_context: LogContext, queue_offsets: QueueOffsets) -> None:
        self._log_context = log_context
        self._queue_offsets = queue_offsets
        self._level_count = len(log_context.store.directory.config.delay_levels_ms)

    def levels(self) -> Sequence[int]:
        """Return TIMER_LEVEL and all levels that are configured or have had messages. A message of
        a level that is no longer configured is still due."""
        offsets = self._queue_offsets.items()
        used = {queue + 1 for (topic, queue), _ in offsets if topic == SCHEDULE_TOPIC}
        return [TIMER_LEVEL, *sorted({*used, *range(1, self._level_count + 1)})]

    def next_of(self, queue: Queue) -> QueueOffset:
        """Return the queue offset of a queue's next message."""
        return self._queue_offsets.next_of(queue)

    def ends(self) -> Ends:
        """Return the dispatched offset and the offset up to which no record can be lost."""
        return Ends(self._log_context.dispatched(), self._log_context.durable_end())
