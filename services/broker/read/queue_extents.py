"""How far every queue goes, and every topic: kept up from what is appended, not looked up in files.

A queue's files have to be opened to see how far it goes, which for ten thousand queues takes a
second. But this process numbers all messages: once the end of the last of them is dispatched, a
queue's max offset is its next queue offset, and its min offset only moves when the log file goes
that holds its first message. So a queue is looked up in its files when it is first met, when its
first message expires, and while a message of it is on its way to dispatch; the others cost nothing.
What is told is exact at the instant at which it is asked.

For the node that appends: on another nobody numbers. Before: ``queue_offsets`` heard of appends.
After: ``groups.look`` asks for bounds, the gauges for topics.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable
from typing import Final, Protocol

from services.broker.groups.queue_looks import NO_MESSAGE, Bounds, Extent
from services.broker.log.queue_offsets import Queue
from services.broker.retention.visibility import retention_of
from shared.runtime.turns import Turns
from shared.state.records import STATE_TOPIC, TopicConfig
from tidemark.offsets import PhysicalOffset, QueueOffset

QUEUES_MAX: Final = 100_000
"""Queues that are remembered, about 400 bytes each; those of further topics are looked up in their
files, and the topics have no sums."""
TOPICS_AT_ONCE: Final = 16
"""Topics looked at between two looks at the clock; their queues are looked at one by one."""
NOTHING: Final = Extent(Bounds(0, 0, 0), NO_MESSAGE)


class Topics(Protocol):
    """Which topics there are (``topics.Topics``)."""

    def names(self) -> Iterable[str]:
        """Every topic there may be; some twice."""
        ...

    def find(self, name: str) -> TopicConfig | None:
        """The topic as it is served."""
        ...

    def queue_numbers(self, topic: TopicConfig) -> Collection[int]:
        """The queues that can be read."""
        ...


class Offsets(Protocol):
    """What messages were numbered (``queue_offsets.QueueOffsets``)."""

    @property
    def ends(self) -> dict[Queue, PhysicalOffset]:
        """Queues that got messages, with the end of the log behind the last."""
        ...

    def next_of(self, queue: Queue) -> QueueOffset:
        """The number that the queue's next message gets."""
        ...


class Looks(Protocol):
    """Looks at a queue's files (``groups.queue_looks.QueueLooks``)."""

    def extent(self, topic: str, queue: int) -> Extent:
        """How far the queue goes, and where its first message lies."""
        ...


class TopicSums:
    """One topic, its queues added up. For the event loop."""

    __slots__ = (
        "config", "has_retention", "known", "labels", "max_offsets", "min_offsets", "no_group",
        "numbers", "queue_labels",
    )  # fmt: skip

    def __init__(self, config: TopicConfig, numbers: Collection[int]) -> None:
        self.config = config
        # Label values, kept from look to look: what lives on needs no work from the garbage
        # collector.
        self.labels = (config.name,)
        self.no_group = ("", config.name)
        self.queue_labels: dict[int, tuple[str, str]] = {}
        self.numbers: Collection[int] = numbers
        """The queues that can be read, ascending."""
        self.has_retention = retention_of(config) is not None
        """What is shown of it moves with time."""
        self.known = 0
        """Queues that are in the sums."""
        self.max_offsets = 0
        self.min_offsets = 0

    def labels_of(self, queue: int) -> tuple[str, str]:
        """Label values of one of its queues."""
        labels = self.queue_labels.get(queue)
        if labels is None:
            labels = self.queue_labels[queue] = (self.config.name, sys.intern(str(queue)))
        return labels

    @property
    def is_whole(self) -> bool:
        """Whether all queues are in the sums."""
        return self.known == len(self.numbers)


class QueueExtents:
    """All queues of a node that appends. For the event loop."""

    def __init__(
        self,
        topics: Topics,
        offsets: Offsets,
        looks: Looks,
        *,
        log_start: Callable[[], PhysicalOffset],
        dispatched: Callable[[], PhysicalOffset],
        queues_max: int = QUEUES_MAX,
    ) -> None:
        """log_start: first byte of the log. dispatched: end of what may be seen."""
        self._topics = topics
        self._offsets = offsets
        self._looks = looks
        self._log_start = log_start
        self._dispatched = dispatched
        self._queues_max = queues_max
        self._known: dict[Queue, Extent] = {}
        self._sums: dict[str, TopicSums] = {}
        self._start = PhysicalOffset(-1)
        self._looked_from = PhysicalOffset(-1)
        """Start of the log when all queues were last compared with it."""
        self._moved: set[str] = set()
        """Topics of which something was found to be otherwise since ``follow`` last told."""
        self.min_offsets_before: dict[Queue, int] = {}
        """Queues whose min offset has moved since ``follow`` last told, and where it was: an offset
        that was read meanwhile lies behind that, and may lie before where it is now."""
        self._end = PhysicalOffset(-1)

    # -- asking: in a slice that began with ``begin`` --------------------------------------------

    def begin(self) -> None:
        """A slice begins: see how far the log goes now."""
        end = self._dispatched()
        if end < self._end:
            # Reput begins anew, or the log was cut: what was seen proves nothing now.
            self._known.clear()
            self._sums.clear()
        self._end = end
        self._start = self._log_start()

    def numbers(self, topic: str) -> Collection[int] | None:
        """The queues of the topic that can be read, ascending; None if it is not there."""
        sums = self._entered(topic)
        return None if sums is None else sums.numbers

    def bounds(self, topic: str, queue: int) -> Bounds | None:
        """A queue's bounds as of now; None if the topic is not there."""
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
        return self._look(key)

    def sums(self) -> list[TopicSums]:
        """All topics but the broker's own state, by the time they were met."""
        return list(self._sums.values())

    def topic(self, name: str) -> TopicSums | None:
        """One topic; None if it is not there."""
        return self._entered(name)

    # -- keeping up ------------------------------------------------------------------------------

    async def follow(self, turns: Turns) -> set[str]:
        """Take in what has moved since the last time; the topics that have.

        turns: slices, each of which calls ``begin``.
        """
        await self._follow_topics(turns)
        await self._follow_start(turns)
        ends = self._offsets.ends
        for key in list(ends):
            if turns.over:
                await turns.pass_on()
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

    async def _follow_topics(self, turns: Turns) -> None:
        """Topics that have come, gone or changed, and those that time moves."""
        seen = {STATE_TOPIC}
        for number, name in enumerate([*self._sums, *self._topics.names()]):
            if number % TOPICS_AT_ONCE == 0 and turns.over:
                await turns.pass_on()
            if name in seen:
                continue
            seen.add(name)
            before = self._sums.get(name)
            sums = self._entered(name)
            if sums is None or (sums is before and self._is_settled(sums)):
                continue
            for queue in sums.numbers:
                if turns.over:
                    await turns.pass_on()
                if self._entered(name) is not sums:
                    break  # it was changed meanwhile: the next look takes it in
                self.bounds(name, queue)

    async def _follow_start(self, turns: Turns) -> None:
        """Queues whose first message went with the log's oldest file."""
        start = self._start
        if start == self._looked_from:
            return
        for key, known in list(self._known.items()):
            if turns.over:
                await turns.pass_on()
            if known.first_at < start:
                self.bounds(*key)
        self._looked_from = start

    def _is_settled(self, sums: TopicSums) -> bool:
        """Whether nothing but appends, and the end of a log file, moves the topic."""
        is_known = sums.is_whole or len(self._known) >= self._queues_max
        return is_known and not sums.has_retention

    def _entered(self, topic: str) -> TopicSums | None:
        """The topic as it is now; what was known of it as it was is forgotten."""
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
            numbers = range(len(numbers))  # in no time and no memory
        sums = self._sums[topic] = TopicSums(config, numbers)
        return sums

    def _look(self, key: Queue) -> Bounds | None:
        """Look at a queue's files; one that never had a message has none."""
        topic, queue = key
        sums = self._entered(topic)
        if sums is None:
            return None
        if self._offsets.next_of(key) == 0 and not sums.has_retention:
            found = NOTHING
        else:
            found = self._looks.extent(topic, queue)
        self._put(key, sums, found)
        return found.bounds

    def _put(self, key: Queue, sums: TopicSums, found: Extent) -> None:
        if key[1] not in sums.numbers:
            return  # a group has committed in a queue that the topic does not have
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
