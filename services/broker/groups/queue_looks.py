"""Looks at single queues for the lag of groups: bounds, the age and the bytes of what is unread.

The shell below ``lag``: it finds numbers and judges none. A queue that nobody reads is looked at
without pushing out one that is being read (``ConsumeQueues.glance``).
Before: ``views`` and ``metrics`` ask. After: ``lag`` makes numbers of what was found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from services.broker.groups.lag import (
    Lag,
    Reason,
    Snapshot,
    lag_of,
    record_bytes,
    unread,
)
from services.broker.state.topics import Topics
from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import ConsumeQueueReader, ConsumeQueues
from tidemark.offsets import UNIT_SIZE, PhysicalOffset, QueueOffset

UNITS_AT_ONCE: Final = 1 << 15
"""Units added up between two turns of the loop: about a millisecond."""


class Bounds(NamedTuple):
    """How far a queue goes; queue offsets."""

    min_offset: int
    max_offset: int
    next_offset: int
    """The number that the next message gets, dispatched or not."""


NO_MESSAGE: Final = 1 << 62
"""Where the first message of a queue lies that has none: behind every log."""


class Extent(NamedTuple):
    """How far a queue goes, and until when that can only grow."""

    bounds: Bounds
    first_at: int
    """Physical offset of the message at the min offset; NO_MESSAGE if there is none, −1 if it
    cannot be told. While the log begins at or before it, the min offset stays."""


class Budget:
    """How many units may still be added up for one answer."""

    def __init__(self, units: int) -> None:
        self.units = units

    def take(self, units: int) -> bool:
        """Take so many, or none and False."""
        if units > self.units:
            return False
        self.units -= units
        return True


class QueueLooks:
    """What the store says about one queue at a time."""

    def __init__(
        self,
        topics: Topics,
        queues: ConsumeQueues,
        log: CommitLogReader,
        *,
        next_of: Callable[[tuple[str, int]], QueueOffset],
        floor: Callable[[str, int], QueueOffset],
        dispatched: Callable[[], PhysicalOffset],
    ) -> None:
        """next_of: of the table of next queue offsets. floor: queue offset below which nothing is
        shown. dispatched: end of what may be seen.
        """
        self._topics = topics
        self._queues = queues
        self._log = log
        self._next_of = next_of
        self._floor = floor
        self._dispatched = dispatched

    def is_known(self, topic: str) -> bool:
        """Whether the topic is there."""
        return self._topics.find(topic) is not None

    def queues_of(self, topic: str) -> Sequence[int]:
        """The queues of the topic that can be read, ascending; none if it is not there."""
        found = self._topics.find(topic)
        return () if found is None else self._topics.queue_numbers(found)

    def bounds(self, topic: str, queue: int) -> Bounds:
        """Minimum, then maximum, then the next number: so that none is below the one before."""
        floor = self._floor(topic, queue)
        with self._queues.glance(topic, queue) as reader:
            return self._bounds(reader, floor)

    def _bounds(self, reader: ConsumeQueueReader, floor: int) -> Bounds:
        first = max(reader.min_offset(self._log.min_offset), floor)
        end = max(reader.max_offset(self._dispatched()), first)
        return Bounds(first, end, max(self._next_of((reader.topic, reader.queue)), end))

    def extent(self, topic: str, queue: int) -> Extent:
        """``bounds``, and where the first message lies."""
        floor = self._floor(topic, queue)
        with self._queues.glance(topic, queue) as reader:
            bounds = self._bounds(reader, floor)
            if bounds.min_offset >= bounds.max_offset:
                return Extent(bounds, NO_MESSAGE)
            unit = reader.unit(QueueOffset(bounds.min_offset))
        return Extent(bounds, -1 if unit is None or unit.size <= 0 else unit.physical_offset)

    def lag(
        self, topic: str, queue: int, committed: int | None, bounds: Bounds, now_ms: int
    ) -> Lag:
        """A queue's lag but for its bytes, which have no reason yet.

        committed: read before bounds, or at the same time. now_ms: wall clock.
        """
        found = unread(Snapshot(committed, *bounds))
        head_ms = None
        if found.first is not None and found.messages:
            head_ms = self.store_time(topic, queue, found.first)
        return lag_of(found, head_ms, now_ms)

    async def unread_bytes(
        self, topic: str, queue: int, first: int, end: int, budget: Budget
    ) -> tuple[int | None, Reason | None]:
        """Bytes of the records at the queue offsets [first, end), with others' turns in between.

        What lies there does not change, it can only go: then, and where a queue file is missing,
        the answer is None with a reason.
        """
        if not budget.take(end - first):
            return None, Reason.TOO_MANY_UNREAD
        found, at = 0, first
        while at < end:
            if at > first:
                await asyncio.sleep(0)
            with self._queues.glance(topic, queue) as reader:
                count = min(UNITS_AT_ONCE, end - at)
                units = reader.view(QueueOffset(at), count, self._dispatched())
                if not units:
                    return None, Reason.UNREADABLE
                found += record_bytes(units)
                at += len(units) // UNIT_SIZE
        return found, None

    def store_time(self, topic: str, queue: int, queue_offset: int) -> int | None:
        """Store time [wall clock ms] of a message; None if it cannot be read any more."""
        with self._queues.glance(topic, queue) as reader:
            unit = reader.unit(QueueOffset(queue_offset))
        if unit is None or unit.size <= 0:
            return None
        at = PhysicalOffset(unit.physical_offset)
        return self._log.store_timestamp(at, unit.size, self._dispatched())
