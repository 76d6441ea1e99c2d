"""Min and max offset of every queue and the sums per topic, updated from appends, not from files.

Reading a queue's bounds from its files means opening them, which takes a second for ten thousand
queues. But this process assigns all queue offsets: once a queue's last message is dispatched, its
max offset is its next queue offset. Its min offset changes only when the log file with its first
message is deleted. So a queue's files are read only when the queue is first used, when its first
message expires, and while a message of it is not dispatched yet; other queues cost nothing. The
returned bounds are exact at the time of the call.

Only the node that appends uses this module, because other nodes assign no offsets.
``queue_offsets`` records the appends before this step. After it ``lag_collector`` reads the bounds
of queues, and the gauges read the sums of topics.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable
from typing import Final, Protocol

from services.broker.groups.queue_stats import NO_MESSAGE, Bounds, Extent, QueueStats
from services.broker.read.visibility import retention_of
from shared.runtime.time_slicer import TimeSlicer
from shared.state.records import STATE_TOPIC, TopicConfig
from tidemark.offsets import PhysicalOffset, Queue, QueueOffset

QUEUES_MAX: Final = 100_000
"""Queues that are cached, about 400 bytes each. Bounds of further queues are read from their files,
and their topics have no sums."""
TOPICS_AT_ONCE: Final = 16
"""Topics processed between two checks of the clock; for queues the clock is checked each time."""
NOTHING: Final = Extent(Bounds(0, 0, 0), NO_MESSAGE)


class Topics(Protocol):
    """The existing topics (implemented by ``topics.Topics``)."""

    def names(self) -> Iterable[str]:
        """Return every topic that may exist; may contain duplicates."""
        ...

    def find(self, name: str) -> TopicConfig | None:
        """Return the served topic, or None if it does not exist."""
        ...

    def queue_numbers(self, topic: TopicConfig) -> Collection[int]:
        """Return the queues that can be read."""
        ...


class Offsets(Protocol):
    """The assigned queue offsets (implemented by ``queue_offsets.QueueOffsets``)."""

    @property
    def ends(self) -> dict[Queue, PhysicalOffset]:
        """Queues that got messages, each with the end of the log after its newest message."""
        ...

    def next_of(self, queue: Queue) -> QueueOffset:
        """Return the queue offset that the queue's next message gets."""
        ...


class TopicSums:
    """One topic with the sums over its queues. For the event loop."""

    __slots__ = (
        "config", "has_retention", "known", "labels", "max_offsets", "min_offsets", "no_group",
        "numbers", "queue_labels",
    )  # fmt: skip

    def __init__(self, config: TopicConfig, numbers: Collection[int]) -> None:
        self.config = config
        # Label values are kept between samples: long-lived objects cost the garbage collector
        # nothing.
        self.labels = (config.name,)
        self.no_group = ("", config.name)
        self.queue_labels: dict[int, tuple[str, str]] = {}
        self.numbers: Collection[int] = numbers
        """The queues that can be read, ascending."""
        self.has_retention = retention_of(config) is not None
        """Whether the topic has its own retention, so that its min offsets change with time."""
        self.known = 0
        """Number of queues in the sums."""
        self.max_offsets = 0
        self.min_offsets = 0

    def labels_of(self, queue: int) -> tuple[str, str]:
        """Return the label values of one queue."""
        labels = self.queue_labels.get(queue)
        if labels is None:
            labels = self.queue_labels[queue] = (self.config.name, sys.intern(str(queue)))
        return labels

    @property
    def is_whole(self) -> bool:
        """Whether all queues are in the sums."""
        return self.known == len(self.numbers)


class TopicStats:
    """Bounds of all queues of a node that appends. For the event loop."""

    def __init__(
        self,
        topics: Topics,
        offsets: Offsets,
        queue_stats: QueueStats,
        *,
        log_start: Callable[[], PhysicalOffset],
        dispatched: Callable[[], PhysicalOffset],
        queues_max: int = QUEUES_MAX,
    ) -> None:
        """log_start: returns the log's min offset. dispatched: returns the dispatched offset."""
        self._topics = topics
        self._offsets = offsets
        self._queue_stats = queue_stats
        self._log_start = log_start
        self._dispatched = dispatched
        self._queues_max = queues_max
        self._known: dict[Queue, Extent] = {}
        self._sums: dict[str, TopicSums] = {}
        self._start = PhysicalOffset(-1)
        self._compared_from = PhysicalOffset(-1)
        """Start of the log when all queues were last compared with it."""
        self._moved: set[str] = set()
        """Topics with a changed queue since the last return of ``follow``."""
        self.min_offsets_before: dict[Queue, int] = {}
        """Previous min offset of each queue whose min offset changed since the last return of
        ``follow``. An offset that was read in between is at least the previous one, and may be
        below the current one."""
        self._end = PhysicalOffset(-1)

    # -- reading: in a slice that began with ``begin`` -------------------------------------------

    def begin(self) -> None:
        """Begin a slice: read the current start and dispatched offset of the log."""
        end = self._dispatched()
        if end < self._end:
            # Reput was restarted, or the log was truncated: the cached bounds may be wrong.
            self._known.clear()
            self._sums.clear()
        self._end = end
        self._start = self._log_start()

    def numbers(self, topic: str) -> Collection[int] | None:
        """Return the topic's readable queues, ascending; None if the topic does not exist."""
        sums = self._entered(topic)
        return None if sums is None else sums.numbers

    def bounds(self, topic: str, queue: int) -> Bounds | None:
        """Return a queue's current bounds; None if the topic does not exist."""
        key = (topic, queue)
        known = self._known.get(key)
        if known is not None and known.first_at >= self._start:
            sums = self._sums[topic]
            if not sums.has_retention:
                bounds = known.bounds
                next_offset = self._offsets.next_of(key)
                end = self._offsets.ends.get(key)
                if end is None or end <= self._end:
                    if next_offset == bounds.max_offset:
                        return bounds
                    if end is not None and bounds.min_offset < bounds.max_offset:
                        grown = Bounds(bounds.min_offset, next_offset, next_offset)
                        self._put(key, sums, Extent(grown, known.first_at))
                        return grown
        return self._read(key)

    def sums(self) -> list[TopicSums]:
        """Return all topics except the state topic, in the order in which they were first used."""
        return list(self._sums.values())

    def topic(self, name: str) -> TopicSums | None:
        """Return one topic; None if it does not exist."""
        return self._entered(name)

    # -- updating --------------------------------------------------------------------------------

    async def follow(self, slicer: TimeSlicer) -> set[str]:
        """Process all changes since the last call; return the topics that changed.

        slicer: slices, each of which calls ``begin``.
        """
        await self._follow_topics(slicer)
        await self._follow_start(slicer)
        ends = self._offsets.ends
        for key in list(ends):
            if slicer.over:
                await slicer.pass_on()
            topic, queue = key
            if topic == STATE_TOPIC or self._entered(topic) is None:
                del ends[key]
                continue
            self._moved.add(topic)
            bounds = self.bounds(topic, queue)
            if bounds is None or (
                ends[key] <= self._end and bounds.max_offset == bounds.next_offset
            ):
                del ends[key]
        moved, self._moved = self._moved, set()
        self.min_offsets_before.clear()
        return moved

    async def _follow_topics(self, slicer: TimeSlicer) -> None:
        """Process topics that were created, deleted or changed, and those with own retention."""
        seen = {STATE_TOPIC}
        for number, name in enumerate([*self._sums, *self._topics.names()]):
            if number % TOPICS_AT_ONCE == 0 and slicer.over:
                await slicer.pass_on()
            if name in seen:
                continue
            seen.add(name)
            before = self._sums.get(name)
            sums = self._entered(name)
            if sums is None or (sums is before and self._is_settled(sums)):
                continue
            for queue in sums.numbers:
                if slicer.over:
                    await slicer.pass_on()
                if self._entered(name) is not sums:
                    break  # the topic changed meanwhile: the next call processes it
                self.bounds(name, queue)

    async def _follow_start(self, slicer: TimeSlicer) -> None:
        """Update the queues whose first message was deleted with the log's oldest files."""
        start = self._start
        if start == self._compared_from:
            return
        for key, known in list(self._known.items()):
            if slicer.over:
                await slicer.pass_on()
            if known.first_at < start:
                self.bounds(*key)
        self._compared_from = start

    def _is_settled(self, sums: TopicSums) -> bool:
        """Return whether only appends and the deletion of log files change the topic's bounds."""
        is_known = sums.is_whole or len(self._known) >= self._queues_max
        return is_known and not sums.has_retention

    def _entered(self, topic: str) -> TopicSums | None:
        """Return the sums of the topic; drop its cached bounds if its configuration changed."""
        config, sums = self._topics.find(topic), self._sums.get(topic)
        if sums is not None:
            if config is sums.config or config == sums.config:
                return sums
            self._moved.add(topic)
            for queue in sums.numbers:
                known = self._known.pop((topic, queue), None)
                if known is not None:
                    self.min_offsets_before[topic, queue] = known.bounds.min_offset
            del self._sums[topic]
        if config is None:
            return None
        self._moved.add(topic)
        numbers: Collection[int] = self._topics.queue_numbers(config)
        if numbers and max(numbers) == len(numbers) - 1:
            numbers = range(len(numbers))  # fast membership tests, and no memory
        sums = self._sums[topic] = TopicSums(config, numbers)
        return sums

    def _read(self, key: Queue) -> Bounds | None:
        """Read a queue's bounds from its files; a queue that never had a message has no files."""
        topic, queue = key
        sums = self._entered(topic)
        if sums is None:
            return None
        if self._offsets.next_of(key) == 0 and not sums.has_retention:
            found = NOTHING
        else:
            found = self._queue_stats.extent(topic, queue)
        self._put(key, sums, found)
        return found.bounds

    def _put(self, key: Queue, sums: TopicSums, found: Extent) -> None:
        if key[1] not in sums.numbers:
            return  # a group has a committed offset for a queue that the topic does not have
        before = self._known.get(key)
        if before is None:
            if len(self._known) >= self._queues_max:
                return
            sums.known += 1
        else:
            if before.bounds != found.bounds:
                self._moved.add(key[0])
                if before.bounds.min_offset < found.bounds.min_offset:
                    self.min_offsets_before.setdefault(key, before.bounds.min_offset)
            sums.max_offsets -= before.bounds.max_offset
            sums.min_offsets -= before.bounds.min_offset
        self._known[key] = found
        sums.max_offsets += found.bounds.max_offset
        sums.min_offsets += found.bounds.min_offset
