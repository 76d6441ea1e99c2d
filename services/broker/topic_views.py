"""Topics as the API shows them: with the ranges of their queues, and who may read what.

Joins what ``topics`` says (which there are) with what the store holds (how far each queue goes).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from services.broker.fields import known_fields, table, whole_number
from services.broker.limits import QUEUES_MAX
from services.broker.topics import Topics, is_reserved
from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import ConsumeQueueReader, ConsumeQueues
from shared.files.queue_math import Boundary
from shared.state.records import STATE_TOPIC, TopicConfig
from tidemark.formats.record import Record
from tidemark.offsets import PhysicalOffset, QueueOffset

PERM_MAX: Final = 7
QUEUES_AT_ONCE: Final = 64
"""Queues looked at between two turns of the loop: some milliseconds."""


class TopicViews:
    """Answers questions about topics and their queues."""

    def __init__(
        self,
        topics: Topics,
        queues: ConsumeQueues,
        log: CommitLogReader,
        dispatched: Callable[[], PhysicalOffset],
        *,
        auto_create: bool,
        queues_default: int,
    ) -> None:
        """auto_create: a topic that nobody has sent to yet is empty rather than unknown."""
        self._topics = topics
        self._queues = queues
        self._log = log
        self._dispatched = dispatched
        self._auto_create = auto_create
        self._queues_default = queues_default

    def all(self) -> list[dict[str, Any]]:
        """Every topic with its number of queues, by name."""
        return [
            {
                "topic": topic.name,
                "queues": self._topics.queue_count(topic),
                "perm": topic.perm,
                "system": is_reserved(topic.name),
            }
            for topic in self._topics.list(system=True)
            if topic.name != STATE_TOPIC
        ]

    async def one(self, name: str) -> dict[str, Any]:
        """One topic with the range of every queue. Raises UnknownTopic.

        A topic may have more queues than are listed: ``queue_count`` says how many count from 0 on.
        They are looked at with other requests in between.
        """
        topic = self._topics.get(name)
        numbers, ranges = self._topics.queue_numbers(topic), []
        for first in range(0, len(numbers), QUEUES_AT_ONCE):
            if first:
                await asyncio.sleep(0)
            some = numbers[first : first + QUEUES_AT_ONCE]
            ranges += [self._range(topic, queue) for queue in some]
        return self._described(topic, ranges)

    def _described(self, topic: TopicConfig, ranges: list[dict[str, int]]) -> dict[str, Any]:
        return {
            "topic": topic.name,
            "queues": ranges,
            "queue_count": self._topics.queue_count(topic),
            "perm": topic.perm,
            "write_queues": topic.queues,
            "system": is_reserved(topic.name),
        }

    async def put(self, name: str, value: object) -> None:
        """Make or change a topic as a request's body says. Raises BadRequest, BadName."""
        fields = known_fields(table(value, "the request body"), {"queues", "perm"}, "")
        queues, perm = fields.get("queues"), fields.get("perm")
        if queues is None:
            known = self._topics.find(name)
            queues = self._queues_default if known is None else max(known.queues, 1)
        await self._topics.create(
            name,
            whole_number(queues, "queues", 1, QUEUES_MAX),
            perm=None if perm is None else whole_number(perm, "perm", 0, PERM_MAX),
        )

    async def delete(self, name: str) -> None:
        """Delete a topic. Raises UnknownTopic, BadName."""
        await self._topics.delete(name)

    def check_known(self, name: str) -> None:
        """Raise UnknownTopic for a topic that is not there."""
        self._topics.get(name)

    def check_readable(self, name: str, queue: int, *, may_be_missing: bool = False) -> None:
        """Raise UnknownTopic, UnknownQueue or NotPermitted unless the queue may be read.

        may_be_missing: where sends make topics, a consumer may be there before the first of them.
        """
        if (
            may_be_missing
            and self._auto_create
            and not is_reserved(name)
            and self._topics.find(name) is None
        ):
            return
        self._topics.for_reading(name, queue)

    def floor(self, name: str, queue: int) -> QueueOffset:
        """Queue offset below which nothing is shown: what an earlier topic of the name held."""
        return self._topics.min_offset(name, queue)

    def is_shown(self, message: Record) -> bool:
        """Whether a message belongs to a topic that exists, and not to an earlier one of it."""
        return self._topics.find(
            message.topic
        ) is not None and message.queue_offset >= self._topics.min_offset(
            message.topic, message.queue_id
        )

    def offset_by_time(
        self, name: str, queue: int, timestamp_ms: int, boundary: Boundary
    ) -> dict[str, int]:
        """The queue offset for a time, within what is shown."""
        reader = self._queues.get(name, queue)
        first, end = self._bounds_of(reader)
        found = reader.offset_by_time(timestamp_ms, boundary, dispatched=self._dispatched())
        return {"offset": min(max(found, first), end), "min_offset": first, "max_offset": end}

    def _range(self, topic: TopicConfig, queue: int) -> dict[str, int]:
        with self._queues.glance(topic.name, queue) as reader:
            first, end = self._bounds_of(reader)
        return {"queue": queue, "min_offset": first, "max_offset": end}

    def _bounds_of(self, reader: ConsumeQueueReader) -> tuple[int, int]:
        floor = self._topics.min_offset(reader.topic, reader.queue)
        # The minimum first: see shared.files.pull.get_message.
        first = max(reader.min_offset(self._log.min_offset), floor)
        return first, max(reader.max_offset(self._dispatched()), first)
