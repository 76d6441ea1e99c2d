"""Topics as the API shows them, with the offset ranges of their queues, and read permissions.

The module combines the existing topics (``topics``) with the range of each queue in the store and
with the range that a topic's own retention hides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from services.broker.read.listing import page_of
from services.broker.read.visibility import Visibility, retention_of
from services.broker.schema.topics import NewTopic
from services.broker.schema.values import ListQuery
from services.broker.state.topics import NO_CHANGES, NOWHERE, RESERVE_TIME, Topics, is_reserved
from shared.cluster.routes import TopicRoute
from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import ConsumeQueueReader, ConsumeQueues
from shared.files.queue_math import Boundary
from shared.runtime.pauses import Pauses
from shared.runtime.time_slicer import TimeSlicer
from shared.state.records import STATE_TOPIC, TopicConfig
from tidemark.clock import Clock
from tidemark.formats.nack import DEAD_PREFIX, RETRY_PREFIX
from tidemark.formats.record import Record
from tidemark.offsets import PhysicalOffset, QueueOffset


def is_routed(name: str) -> bool:
    """Return whether clients may be routed to the topic: it is no topic of the broker itself."""
    return not is_reserved(name) or name.startswith((RETRY_PREFIX, DEAD_PREFIX))


class TopicViews:
    """Serves the API's calls for topics and their queues."""

    def __init__(
        self,
        topics: Topics,
        queues: ConsumeQueues,
        log: CommitLogReader,
        dispatched: Callable[[], PhysicalOffset],
        *,
        clock: Clock,
        auto_create: bool,
        queues_default: int,
    ) -> None:
        """clock: determines the age of messages. auto_create: sends create topics, so a topic
        without a send so far is treated as empty rather than unknown.
        """
        self._topics = topics
        self._queues = queues
        self._log = log
        self._dispatched = dispatched
        self._auto_create = auto_create
        self._queues_default = queues_default
        self._visibility = Visibility(clock)
        self._clock = clock
        self._report_change: Callable[[str | None], None] = lambda topic: None

    async def page(self, asked: ListQuery) -> dict[str, Any]:
        """Return one page of topics with their numbers of queues, sorted by name."""

        def exists(name: str) -> bool:
            return name != STATE_TOPIC and self._topics.find(name) is not None

        page = await page_of(list(self._topics.names()), exists, asked, self._clock)
        topics = [topic for name in page.names if (topic := self._topics.find(name)) is not None]
        return {
            "topics": [
                {
                    "topic": topic.name,
                    "queues": self._topics.queue_count(topic),
                    "perm": topic.perm,
                    "system": is_reserved(topic.name),
                    "queue_type": topic.queue_type,
                }
                for topic in topics
            ],
            "next": page.next,
        }

    async def one(self, name: str) -> dict[str, Any]:
        """Return one topic with the range of every readable queue. Raises UnknownTopic.

        A topic may have more queues than are listed: ``queue_count`` is the number of queues from 0
        on. The method runs in slices, so that other requests are served in between.
        """
        topic = self._topics.get(name)
        slicer, ranges = TimeSlicer(self._clock, Pauses()), []
        for queue in self._topics.queue_numbers(topic):
            if slicer.over:
                await slicer.pass_on()
            ranges.append(self._range(topic, queue))
        return self._described(topic, ranges)

    def _described(self, topic: TopicConfig, ranges: list[dict[str, int]]) -> dict[str, Any]:
        return {
            "topic": topic.name,
            "queues": ranges,
            "queue_count": self._topics.queue_count(topic),
            "perm": topic.perm,
            "write_queues": topic.queues,
            "system": is_reserved(topic.name),
            "retention_ms": retention_of(topic),
            "queue_type": topic.queue_type,
        }

    async def put(self, name: str, wanted: NewTopic) -> None:
        """Create or change a topic as a request wants it. Raises BadName, NotPermitted.

        retention_ms: time for which messages are shown; 0 removes the setting. Messages that it has
        hidden before stay hidden.
        """
        queues, known = wanted.queues, self._topics.find(name)
        if queues is None:
            queues = self._queues_default if known is None else max(known.queues, 1)
        attributes, begins_at = NO_CHANGES, NOWHERE
        if (retention_ms := wanted.retention_ms) is not None:
            attributes = {RESERVE_TIME: str(retention_ms) if retention_ms else None}
            if known is not None and retention_of(known) not in (None, retention_ms):
                begins_at = await self._hidden_until_now(known)
        await self._topics.create(
            name,
            queues,
            perm=wanted.perm,
            is_batch=None if wanted.queue_type is None else wanted.queue_type == "batch",
            attributes=attributes,
            begins_at=begins_at,
        )
        if retention_ms is not None:
            await self._judge_anew(self._topics.get(name))

    async def _judge_anew(self, topic: TopicConfig) -> None:
        """Recompute the visible range after a change of the topic's own retention."""
        self._visibility.forget(topic.name)
        if retention_of(topic) is None:
            return
        slicer = TimeSlicer(self._clock, Pauses())
        for queue in self._topics.queue_numbers(topic):
            if slicer.over:
                await slicer.pass_on()
            first = self._topics.min_offset(topic.name, queue)
            self._visibility.begin(topic.name, queue, int(first))

    async def _hidden_until_now(self, topic: TopicConfig) -> dict[int, int]:
        """Return the first visible offset of each queue that has hidden messages."""
        found = {}
        slicer = TimeSlicer(self._clock, Pauses())
        for queue in self._topics.queue_numbers(topic):
            if slicer.over:
                await slicer.pass_on()
            if first := self.floor(topic.name, queue):
                found[queue] = int(first)
        return found

    async def delete(self, name: str) -> None:
        """Delete a topic. Raises UnknownTopic, BadName."""
        await self._topics.delete(name)
        self._visibility.forget(name)

    def check_known(self, name: str) -> None:
        """Raise UnknownTopic if the topic does not exist."""
        self._topics.get(name)

    def check_readable(self, name: str, queue: int, *, may_be_missing: bool = False) -> None:
        """Raise UnknownTopic, UnknownQueue or NotPermitted unless the queue may be read.

        may_be_missing: accept a missing topic if sends create topics: a consumer may start before
        the first send.
        """
        if (
            may_be_missing
            and self._auto_create
            and not is_reserved(name)
            and self._topics.find(name) is None
        ):
            return
        self._topics.for_reading(name, queue)

    def route(self, name: str) -> TopicRoute | None:
        """Return the topic as clients are routed to it; None if they never are."""
        topic = self._topics.find(name)
        if topic is None or not is_routed(name):
            return None
        is_writable = topic.is_writable and not self._topics.is_drained
        return TopicRoute(topic.queues, topic.is_readable, is_writable)

    def routed(self) -> Iterator[str]:
        """Iterate over the names of all topics that clients are routed to, in no order.

        There may be duplicates and deleted topics. The iterator must be consumed before an await.
        """
        return filter(is_routed, self._topics.names())

    @property
    def count(self) -> int:
        """Number of topics that clients are routed to."""
        return self._topics.count

    def report_changes_to(self, listener: Callable[[str | None], None]) -> None:
        """Set the callback that is invoked with the name of each topic whose route changes, or with
        None if all may have changed."""
        self._report_change = listener

    def changed(self, name: str | None) -> None:
        """Report that a topic was created, changed or deleted; None: that all may have changed."""
        if name is None or is_routed(name):
            self._report_change(name)

    def report_hidden_to(self, listener: Callable[[str, int, int, int], None]) -> None:
        """Set the callback that is invoked synchronously when a topic's own retention hides
        messages, with topic, queue, and the queue offsets [first, end) of the messages."""
        self._visibility.report_hidden_to(listener)

    def has_retention(self, name: str) -> bool:
        """Return whether the topic has its own retention."""
        topic = self._topics.find(name)
        return topic is not None and retention_of(topic) is not None

    def any_has_retention(self) -> bool:
        """Return whether any topic has its own retention."""
        return any(retention_of(topic) is not None for topic in self._topics.list(system=True))

    def floor(self, name: str, queue: int) -> QueueOffset:
        """Return the first visible queue offset.

        Messages of a deleted topic of the same name, and messages older than the topic's own
        retention, are below it."""
        floor = self._topics.min_offset(name, queue)
        topic = self._topics.find(name)
        retention_ms = None if topic is None else retention_of(topic)
        if retention_ms is None:
            return floor
        if self._visibility.is_due(name, queue):
            with self._queues.glance(name, queue) as reader:
                self._visibility.update(
                    reader,
                    retention_ms,
                    log_min=self._log.min_offset,
                    dispatched=self._dispatched(),
                )
        return QueueOffset(max(floor, self._visibility.first(name, queue)))

    def shown_from(self, name: str, queue: int) -> int | None:
        """Return ``floor``, or None if the topic does not exist."""
        return None if self._topics.find(name) is None else int(self.floor(name, queue))

    def is_shown(self, message: Record) -> bool:
        """Return whether the message's topic exists and the message is at or above its floor."""
        first = self.shown_from(message.topic, message.queue_id)
        return first is not None and message.queue_offset >= first

    def offset_by_time(
        self, name: str, queue: int, timestamp_ms: int, boundary: Boundary
    ) -> dict[str, int]:
        """Return the queue offset for a store time, limited to the visible range."""
        reader = self._queues.get(name, queue)
        first, end = self._bounds_of(reader)
        found = reader.offset_by_time(timestamp_ms, boundary, dispatched=self._dispatched())
        return {"offset": min(max(found, first), end), "min_offset": first, "max_offset": end}

    def _range(self, topic: TopicConfig, queue: int) -> dict[str, int]:
        with self._queues.glance(topic.name, queue) as reader:
            first, end = self._bounds_of(reader)
        return {"queue": queue, "min_offset": first, "max_offset": end}

    def _bounds_of(self, reader: ConsumeQueueReader) -> tuple[int, int]:
        floor = self.floor(reader.topic, reader.queue)
        # The min offset must be read first: see shared.files.pull.get_message.
        first = max(reader.min_offset(self._log.min_offset), floor)
        return first, max(reader.max_offset(self._dispatched()), first)
