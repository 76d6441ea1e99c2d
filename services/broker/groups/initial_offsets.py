"""Where a group begins in a queue in which it has no offset.

The group's ``start`` applies when it reads a topic for the first time, and the resulting offset is
committed at once: a group that starts at the last message and is absent when a message comes will
get that message. A queue that is added to a known topic is read from its first message, because its
messages were sent to the topic that the group reads. Retries are never skipped.
Step before: ``coordinator``, a member joins or a topic has got queues. Step after: ``offsets``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from services.broker.groups.offsets import Offsets
from shared.files.queue_math import Boundary
from shared.state.records import GroupConfig, Start
from tidemark.formats.nack import RETRY_PREFIX
from tidemark.offsets import Queue


class Bounds(Protocol):
    """The range of a queue (implemented by ``pull.Puller``)."""

    def bounds(self, topic: str, queue: int) -> tuple[int, int]:
        """First and next queue offset of what can be pulled."""
        ...


class Times(Protocol):
    """Finds offsets by store time (implemented by ``topic_views.TopicViews``)."""

    def offset_by_time(
        self, name: str, queue: int, timestamp_ms: int, boundary: Boundary
    ) -> Mapping[str, int]:
        """Return ``offset``, within the queue's ``min_offset`` and ``max_offset``."""
        ...


class InitialOffsets:
    """Finds and commits the first offsets of groups."""

    def __init__(self, offsets: Offsets, bounds: Bounds, times: Times) -> None:
        self._offsets = offsets
        self._bounds = bounds
        self._times = times

    def at(self, start: Start, queue: Queue) -> int:
        """Return the present queue offset of a start."""
        topic, number = queue
        first, end = self._bounds.bounds(topic, number)
        if start == "first":
            return first
        if start == "last":
            return end
        found = self._times.offset_by_time(topic, number, start, Boundary.LOWER)
        return found["offset"]

    def commit(self, group: GroupConfig, topics: Mapping[str, Sequence[int]]) -> bool:
        """Commit the start of the group in each queue without an offset; return whether there was
        any.

        Raises Overloaded with nothing committed.
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
        """Return when the commits are on disk. Raises the error that prevents it.

        A member must not get its response before: 1. a group that starts at the last message learns
        that it has begun; 2. the node is killed; 3. messages come; 4. the group joins again, begins
        at the last message, and never gets them.
        """
        await self._offsets.durable()
