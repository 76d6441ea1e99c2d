"""One sample of all groups: each pair of a group and a topic, summed up over its queues.

The pass runs in slices, between which other tasks run. A group without members *stands still* until
it commits or its topics move: its queues are not read again, only the ages grow. The store time of
a queue's oldest unread message is read once and kept for later passes. The rules are in ``lag``,
``pairs`` and ``oldest``. Step before: ``lag_sampler`` took the times of the log. Step
after: ``lag_series`` puts the results into tables.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from services.broker.groups.lag import Lag, QueuePositions, Reason, lag_of, nothing_known, unread
from services.broker.groups.lag_inputs import OBJECTIVE_MS, LagInputs
from services.broker.groups.oldest import Oldest
from services.broker.groups.pairs import Movement, Pair, QueueSample, older, pair
from shared.runtime.time_slicer import TimeSlicer
from shared.state.values import GroupConfig
from tidemark.formats.nack import RETRY_PREFIX
from tidemark.formats.telemetry import Absent
from tidemark.offsets import Queue

READ_ALL: Final = Lag(0, None, 0.0, in_flight=0)
IS_READ: Final = QueueSample(READ_ALL)


class QueueSeen(NamedTuple):
    """One queue of a group."""

    labels: tuple[str, str, str]
    """Group, topic, queue. Unchanged objects are kept from pass to pass: long-lived objects cost
    the garbage collector nothing."""
    queue: int
    committed: int | None
    oldest_ms: int | None
    """Store time of the oldest unread message; None: there is none, or it is unknown."""
    oldest_absent: Absent
    """Why ``oldest_ms`` is None, if it is."""
    member_number: int | None
    """Number of the member that holds the queue; 0: no member does, None: unknown."""


class PairSeen(NamedTuple):
    """One pair of a group and a topic, and its queues."""

    labels: tuple[str, str]
    """Group and topic."""
    kind_labels: tuple[str, str, str]
    """Group, topic and kind."""
    pair: Pair
    queues: Sequence[QueueSeen]


class _Unattended(NamedTuple):
    """A group without members, as the last full pass found it."""

    config: GroupConfig
    topics: tuple[str, ...]
    """Topics whose change requires a new pass over the group."""
    seen: Sequence[PairSeen]
    lags: bool
    """Whether the group has lag, so that ages grow."""


class _KnownQueue:
    """State of one queue of a group that is kept between passes; changed in place."""

    __slots__ = ("head", "member_number", "movement", "ready", "row")

    def __init__(self, row: QueueSeen) -> None:
        self.row = row
        self.movement: Movement | None = None
        """None while there is no lag."""
        self.head: tuple[int, int] | None = None
        """Queue offset and store time of the oldest unread message of the last pass."""
        self.ready: tuple[int, int] | None = None
        """The same of the oldest message that was not handed out, if that is another one."""
        self.member_number: int | None = None
        """Value of the present pass."""

    def row_with(
        self, committed: int | None, oldest_ms: int | None = None, absent: Absent = Absent.NONE
    ) -> QueueSeen:
        """Return the row to show: the object of the last pass if the values are the same.

        absent: why oldest_ms is None, if it is."""
        row = self.row
        now = QueueSeen(row.labels, row.queue, committed, oldest_ms, absent, self.member_number)
        if row != now:
            row = self.row = now
        return row

    def moved(self, committed: int, now_s: float) -> Movement:
        """Update and return how the commit of a queue with lag moves."""
        before = self.movement
        movement = Movement(committed, now_s) if before is None else before.seen(committed, now_s)
        self.movement = movement
        return movement


class _Known:
    """State of one group that is kept between passes; changed in place."""

    __slots__ = ("pairs", "queues", "still")

    def __init__(self) -> None:
        self.queues: dict[Queue, _KnownQueue] = {}
        self.pairs: dict[str, PairSeen] = {}
        """Pairs by topic."""
        self.still: _Unattended | None = None


Memory = dict[str, _Known]
"""State kept between passes, by group."""


class LagCollector:
    """One pass over all groups."""

    def __init__(
        self,
        inputs: LagInputs,
        before: Memory,
        slicer: TimeSlicer,
        *,
        committed: Collection[str],
        moved: Collection[str],
    ) -> None:
        """before: state of the last pass. slicer: each of its slices calls ``topic_stats.begin``.
        committed: groups whose offsets have moved since. moved: topics that have moved since.
        """
        self._inputs = inputs
        self._topic_stats = inputs.topic_stats
        self._members = inputs.members
        self._before = before
        self.memory: Memory = {}
        self._known = _Known()
        self._number_of: Callable[[Queue], int | None] | None = None
        """What ``MemberInputs.holder_numbers`` returned for the present group."""
        self._is_busy: Callable[[Queue], bool] = lambda _: False
        """What ``MemberInputs.busy_holders`` returned for the present group."""
        self._slicer = slicer
        self._committed = committed
        self._moved = frozenset(moved)

    async def group(self, config: GroupConfig, member_count: int) -> Sequence[PairSeen]:
        """Return the pairs of one group: topics that members read, and topics with offsets."""
        if config.broadcast:
            return self._broadcasting(config.name)
        name = config.name
        known = self._before.get(name) or _Known()
        self.memory[name] = known
        still = known.still
        if (
            still is not None
            and not member_count
            and name not in self._committed
            and still.config is config
            and self._moved.isdisjoint(still.topics)
        ):
            return await self._grown_older(known, still)
        self._known, known.still = known, None
        self._number_of = self._members.holder_numbers(name) if member_count else None
        # Also without members: a group in a crash loop has none for most of the time.
        self._is_busy = self._members.busy_holders(name, self._inputs.clock.monotonic())
        seen = await self._sample_group(config, has_members=member_count > 0)
        if not member_count:
            topics = (RETRY_PREFIX + name, *(each.pair.topic for each in seen))
            lags = any(each.pair.messages for each in seen)
            known.still = _Unattended(config, topics, seen, lags)
        return seen

    def _broadcasting(self, name: str) -> Sequence[PairSeen]:
        """Return the topics that members read, without queues: a broadcasting group has no lag."""
        self._known = self.memory[name] = self._before.get(name) or _Known()
        self._known.still = None
        topics = sorted(self._members.topics_read(name))
        pairs = [
            pair(name, topic, "main", (), objective_s=0.0, subscribed=True) for topic in topics
        ]
        found = [self._pair_seen(each, ()) for each in pairs]
        self._forget_gone(found)
        return found

    async def _grown_older(self, known: _Known, still: _Unattended) -> Sequence[PairSeen]:
        """Return the pairs of a group that stands still, with their present ages."""
        if not still.lags:
            return still.seen
        objective_s = (still.config.lag_objective_ms or OBJECTIVE_MS) / 1000
        now_ms, now_s = self._inputs.clock.wall_ms(), self._inputs.clock.monotonic()
        found: list[PairSeen] = []
        for each in still.seen:
            if not each.pair.messages:
                found.append(each)
                continue
            ages: list[float] = []
            age_s = 0.0
            for row in each.queues:
                if self._slicer.over:
                    await self._slicer.pass_on()
                if row.oldest_ms is not None and row.oldest_ms <= now_ms:
                    ages.append((now_ms - row.oldest_ms) / 1000)
                of_queue = known.queues.get((each.pair.topic, row.queue))
                if of_queue is not None and of_queue.movement is not None:
                    age_s = max(age_s, now_s - of_queue.movement.moved_at_s)
            found.append(each._replace(pair=older(each.pair, ages, age_s, objective_s)))
        return found

    async def _sample_group(self, config: GroupConfig, *, has_members: bool) -> list[PairSeen]:
        name, topic_stats = config.name, self._topic_stats
        subscribed = frozenset(self._members.topics_read(name))
        retry = RETRY_PREFIX + name
        topics: dict[str, list[int]] = {topic: [] for topic in subscribed}
        if topic_stats.numbers(retry) is not None:
            topics[retry] = []
        numbers: dict[str, Collection[int]] = {}
        for topic, queue in list(self._inputs.committed.of_group(name)):
            if self._slicer.over:
                await self._slicer.pass_on()
            strays = topics.setdefault(topic, [])
            known = numbers.get(topic)
            if known is None:
                known = numbers[topic] = topic_stats.numbers(topic) or ()
            if queue not in known:
                strays.append(queue)  # an offset whose topic or queue no longer exists
        found: list[PairSeen] = []
        queue_count = 0
        for topic, strays in topics.items():
            is_retry = topic == retry
            queues = [*(topic_stats.numbers(topic) or ()), *sorted(strays)]
            samples: list[QueueSample] = []
            seen: list[QueueSeen] = []
            activity, queue_count = 0, queue_count + len(queues)
            for queue in queues:
                if self._slicer.over:
                    await self._slicer.pass_on()
                sample, row = self._sample(name, topic, queue, has_members=has_members)
                samples.append(sample)
                seen.append(row)
                activity += 2 * (row.committed or 0) + (sample.lag.messages or 0)
            summed = pair(
                name,
                topic,
                "retry" if is_retry else "main",
                samples,
                objective_s=(config.lag_objective_ms or OBJECTIVE_MS) / 1000,
                subscribed=topic in subscribed or (is_retry and has_members),
            )
            found.append(self._pair_seen(summed._replace(activity=activity), seen))
        remembered = self._known
        if len(remembered.queues) > queue_count or len(remembered.pairs) > len(found):
            self._forget_gone(found)
        return found

    def _pair_seen(self, summed: Pair, seen: Sequence[QueueSeen]) -> PairSeen:
        """Return the object of the last pass if its values are the same, else a new one."""
        pairs, topic = self._known.pairs, summed.topic
        before = pairs.get(topic)
        if before is None:
            names = (summed.group, topic)
            now = PairSeen(names, (*names, summed.kind), summed, seen)
        elif before.pair == summed and before.queues == seen:
            return before
        else:
            now = before._replace(pair=summed, queues=seen)
        pairs[topic] = now
        return now

    def _forget_gone(self, found: Sequence[PairSeen]) -> None:
        """Drop the state of topics and queues that no longer exist."""
        known = self._known
        kept = {(each.pair.topic, row.queue) for each in found for row in each.queues}
        for queue in known.queues.keys() - kept:
            del known.queues[queue]
        for topic in known.pairs.keys() - {each.pair.topic for each in found}:
            del known.pairs[topic]

    def _sample(
        self, group: str, topic: str, queue: int, *, has_members: bool
    ) -> tuple[QueueSample, QueueSeen]:
        """Sample one queue in one step of the loop, so that all moving values are of one
        instant."""
        committed = self._inputs.committed.get(group, topic, queue)
        bounds = self._topic_stats.bounds(topic, queue)
        known = self._known_queue(group, topic, queue)
        known.member_number = None if self._number_of is None else self._number_of((topic, queue))
        if bounds is None:
            return QueueSample(nothing_known(Reason.UNKNOWN_TOPIC)), known.row_with(
                committed, None, Absent.UNKNOWN_TOPIC
            )
        if committed == bounds.max_offset:
            known.movement = None
            return IS_READ, known.row_with(committed)
        found = unread(QueuePositions(committed, *bounds))
        if committed is None or found.first is None or found.messages is None:
            unknown = lag_of(found, None, self._inputs.clock.wall_ms())
            absent = Absent.NEVER_COMMITTED if committed is None else Absent.AHEAD
            return QueueSample(unknown), known.row_with(committed, None, absent)
        handed_to = next_offset = found.first
        if has_members and (place := self._members.place_of(group, (topic, queue))) is not None:
            handed_to, next_offset = place
        if not found.messages:
            known.movement = None
            return QueueSample(READ_ALL._replace(lost=found.lost)), known.row_with(committed)
        known.head = self._stored(known.head, topic, queue, found.first)
        head_ms = None if known.head is None else known.head[1]
        undelivered = min(max(next_offset, found.first), bounds.max_offset)
        ready_ms = None
        if undelivered == found.first:
            ready_ms = head_ms
        elif undelivered < bounds.max_offset:
            known.ready = self._stored(known.ready, topic, queue, undelivered)
            ready_ms = None if known.ready is None else known.ready[1]
        is_known = head_ms is not None and (
            ready_ms is not None or undelivered == bounds.max_offset
        )
        awaiting_ms = ready_ms
        if ready_ms is not None and self._is_busy((topic, queue)):
            awaiting_ms = None
        lag = lag_of(found, head_ms, self._inputs.clock.wall_ms())
        now_s = self._inputs.clock.monotonic()
        movement = known.moved(committed, now_s)
        sample = QueueSample(
            lag.with_in_flight(handed_to - committed),
            now_s - movement.moved_at_s,
            has_members and movement.is_stuck(now_s),
            Oldest(ready_ms, head_ms, awaiting_ms) if is_known else None,
        )
        return sample, known.row_with(committed, head_ms, Absent.UNREADABLE)

    def _known_queue(self, group: str, topic: str, queue: int) -> _KnownQueue:
        key = (topic, queue)
        known = self._known.queues.get(key)
        if known is None:
            labels = (group, topic, sys.intern(str(queue)))
            known = self._known.queues[key] = _KnownQueue(
                QueueSeen(labels, queue, None, None, Absent.NONE, None)
            )
        return known

    def _stored(
        self, before: tuple[int, int] | None, topic: str, queue: int, queue_offset: int
    ) -> tuple[int, int] | None:
        """Return queue offset and store time of a message; the time is read once, as it is
        fixed."""
        if before is not None and before[0] == queue_offset:
            return before
        time_ms = self._inputs.queue_stats.store_time(topic, queue, queue_offset)
        return None if time_ms is None else (queue_offset, time_ms)
