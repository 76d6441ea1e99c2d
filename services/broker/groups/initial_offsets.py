"""Where a group begins in a queue that it has no offset of.

The group's ``start`` counts when it meets a topic for the first time, and what comes of it is
committed at once: a group that starts at the last message and is away when one comes gets that
message. A queue that a known topic gets later is read from its first message: its messages were
sent to the topic that the group reads. Retries are never passed over.
Before: ``coordinator``, a member joins or a topic has got queues. After: ``offsets``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from services.broker.groups.offsets import Offsets
from services.broker.log.queue_offsets import Queue
from shared.files.queue_math import Boundary
from shared.state.records import GroupConfig, Start
from tidemark.formats.nack import RETRY_PREFIX


class Bounds(Protocol):
    """How far a queue goes (``pull.Puller``)."""

    def bounds(self, topic: str, queue: int) -> tuple[int, int]:
        """First and next queue offset of what can be pulled."""
        ...


class Times(Protocol):
    """Which message was stored when (``topic_views.TopicViews``)."""

    def offset_by_time(
        self, name: str, queue: int, timestamp_ms: int, boundary: Boundary
    ) -> Mapping[str, int]:
        """``offset``, within the queue's ``min_offset`` and ``max_offset``."""
        ...


class Starts:
    """Finds and commits where groups begin."""

    def __init__(self, offsets: Offsets, bounds: Bounds, times: Times) -> None:
        self._offsets = offsets
        self._bounds = bounds
        self._times = times

    def at(self, start: Start, queue: Queue) -> int:
        """The queue offset that a start means now."""
        topic, number = queue
        first, end = self._bounds.bounds(topic, number)
        if start == "first":
            return first
        if start == "last":
            return end
        found = self._times.offset_by_time(topic, number, start, Boundary.LOWER)
        return found["offset"]

    def commit(self, group: GroupConfig, topics: Mapping[str, Sequence[int]]) -> bool:
        """Commit where the group begins in each queue that it has no offset of; whether in any.

        Raises Overloaded: nothing was committed then.
        """
        known = self._offsets.of_group(group.name)
        found: dict[Queue, int] = {}
        for topic, numbers in topics.items():
            new = [(topic, number) for number in numbers if (topic, number) not in known]
            if not new:
                continue
            met = len(new) < len(numbers) or topic.startswith(RETRY_PREFIX)
            for queue in new:
                found[queue] = self.at("first" if met else group.start, queue)
        self._offsets.accept(group.name, found)
        return bool(found)

    async def durable(self) -> None:
        """Return when what was committed is on disk. Raises why it cannot be.

        A member must not be told before: 1. a group that starts at the last message is told that
        it has begun; 2. the node is killed; 3. messages come; 4. the group joins again, begins at
        the last message, and never gets them.
        """
        await self._offsets.durable()
