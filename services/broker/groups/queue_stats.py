"""Reads single queues for the lag of groups: bounds, age and bytes of the unread messages.

It is the I/O shell of ``lag`` and holds no rules. Reading an idle queue does not evict an open file
of a queue that is in use (``ConsumeQueues.glance``).
Step before: ``views`` and ``metrics`` ask. Step after: ``lag`` computes the numbers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from services.broker.groups.lag import (
    Lag,
    QueuePositions,
    Reason,
    batch_record_bytes,
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
    """The range of a queue; queue offsets."""

    min_offset: int
    max_offset: int
    next_offset: int
    """Queue offset of the next message to be stored; it counts messages not dispatched yet."""


NO_MESSAGE: Final = 1 << 62
"""Physical offset of the first message of an empty queue: beyond the end of any log."""


class Extent(NamedTuple):
    """The bounds of a queue, and until when the minimum cannot change."""

    bounds: Bounds
    first_at: int
    """Physical offset of the message at the min offset; NO_MESSAGE if there is none, −1 if it is
    unknown. While the log begins at or before it, the min offset stays."""


class Budget:
    """The number of units that may still be added up for one answer."""

    def __init__(self, units: int) -> None:
        self.units = units

    def take(self, units: int) -> bool:
        """Take that many units and return True; if they are not left, take none and return
        False."""
        if units > self.units:
            return False
        self.units -= units
        return True


class QueueStats:
    """Reads bounds, store times and sizes of one queue at a time."""

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
        """next_of: returns the next queue offset of a queue. floor: returns the first visible queue
        offset. dispatched: returns the end of the visible log.
        """
        self._topics = topics
        self._queues = queues
        self._log = log
        self._next_of = next_of
        self._floor = floor
        self._dispatched = dispatched

    def is_known(self, topic: str) -> bool:
        """Return whether the topic exists."""
        return self._topics.find(topic) is not None

    def queues_of(self, topic: str) -> Sequence[int]:
        """Return the readable queues of the topic, ascending; none if it does not exist."""
        found = self._topics.find(topic)
        return () if found is None else self._topics.queue_numbers(found)

    def bounds(self, topic: str, queue: int) -> Bounds:
        """Return minimum, maximum and next number, read in this order so that they never decrease
        from one to the next."""
        floor = self._floor(topic, queue)
        with self._queues.glance(topic, queue) as reader:
            return self._bounds(reader, floor)

    def _bounds(self, reader: ConsumeQueueReader, floor: int) -> Bounds:
        first = max(reader.min_offset(self._log.min_offset), floor)
        end = max(reader.max_offset(self._dispatched()), first)
        return Bounds(first, end, max(self._next_of((reader.topic, reader.queue)), end))

    def extent(self, topic: str, queue: int) -> Extent:
        """Return ``bounds`` and the physical offset of the first message."""
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
        """Return a queue's lag; its bytes are None without a reason yet.

        committed: read before bounds, or at the same time. now_ms: wall clock.
        """
        found = unread(QueuePositions(committed, *bounds))
        head_ms = None
        if found.first is not None and found.messages:
            head_ms = self.store_time(topic, queue, found.first)
        return lag_of(found, head_ms, now_ms)

    async def unread_bytes(
        self, topic: str, queue: int, first: int, end: int, budget: Budget
    ) -> tuple[int | None, Reason | None]:
        """Return the bytes of the records with the queue offsets [first, end), read in slices.

        These messages do not change, but can be deleted: then, and where a queue file is missing,
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
                if reader.unit_size == UNIT_SIZE:
                    size, after = record_bytes(units), at + len(units) // UNIT_SIZE
                else:
                    size, after = batch_record_bytes(units, end)
                if after <= at:
                    return None, Reason.UNREADABLE
                found, at = found + size, after
        return found, None

    def store_time(self, topic: str, queue: int, queue_offset: int) -> int | None:
        """Return the store time [wall clock ms] of a message; None if it cannot be read any
        more."""
        with self._queues.glance(topic, queue) as reader:
            unit = reader.unit(QueueOffset(queue_offset))
        if unit is None or unit.size <= 0:
            return None
        at = PhysicalOffset(unit.physical_offset)
        return self._log.store_timestamp(at, unit.size, self._dispatched())
