"""Gauges of consumer groups: lag, members, movement. Taken when asked, at most once a second.

A scrape first awaits ``refresh``, which looks at all groups with other requests' turns in between;
``collect`` then only writes down what was found. Nothing is done while nobody scrapes. What is
counted as it happens is in ``counters``. Names and definitions are those of docs/metrics.md.
Before: the store is open and ``connect`` was called. After: ``GET /metrics``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.broker.groups.lag import Reason, nothing_known
from services.broker.groups.pairs import OTHER, Movement, Pair, QueueSample, fold, pair
from services.broker.groups.queue_looks import Bounds, QueueLooks
from services.broker.groups.views import (
    OBJECTIVE_MS,
    RETRY_PREFIX,
    Committed,
    Members,
    Queue,
    queues_read,
)
from shared.state.values import GroupConfig
from tidemark.clock import Clock

PREFIX: Final = "tidemark_group_"
SAME_FOR_S: Final = 1.0
"""What was found is served for so long."""
LOOKS_AT_ONCE: Final = 64
"""Groups and queues looked at between two turns of the loop."""


class GroupList(Protocol):
    """Configurations (``configs.GroupConfigs``)."""

    def list(self) -> Sequence[GroupConfig]:
        """Every group there is."""
        ...


class Sources(NamedTuple):
    """What the gauges are made of."""

    configs: GroupList
    committed: Committed
    members: Members
    looks: QueueLooks
    clock: Clock


class GroupGauges(Collector):
    """All gauges of all groups."""

    def __init__(self, registry: CollectorRegistry, series_max: int) -> None:
        """series_max: pairs of a group and a topic with series of their own."""
        self._series_max = series_max
        self._sources: Sources | None = None
        self._found: Found = Found([], {}, {})
        self._found_at_s = float("-inf")
        self._refreshing: asyncio.Task[None] | None = None
        self._movements: dict[tuple[str, str, int], Movement] = {}
        """Of queues that had lag at the last look."""
        registry.register(self)

    def connect(self, sources: Sources) -> None:
        """From now on there are groups to look at."""
        self._sources = sources

    async def refresh(self) -> None:
        """Look at all groups, if the last look is old; scrapes at the same time share one."""
        sources = self._sources
        if sources is None or sources.clock.monotonic() - self._found_at_s < SAME_FOR_S:
            return
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._look(sources), name="group-gauges")
        await asyncio.shield(self._refreshing)

    def describe(self) -> Iterable[Metric]:
        """What ``collect`` yields, without samples."""
        return _families().values()

    def collect(self) -> Iterable[Metric]:
        """What was found at the last look."""
        found = self._found
        families = _families()
        for each in found.pairs:
            labels = [each.group, each.topic]
            if each.messages is not None:
                families["lag_messages"].add_metric([*labels, each.kind], each.messages)
            if each.seconds is not None:
                families["lag_seconds"].add_metric([*labels, each.kind], each.seconds)
            for name, value in (
                ("lag_queue_max_messages", each.queue_max),
                ("inflight_messages", each.in_flight),
                ("commit_age_seconds", each.commit_age_s),
                ("lagging_queues", each.lagging),
                ("stuck_queues", each.stuck),
                ("ahead_queues", each.ahead),
                ("unknown_queues", each.unknown),
                ("subscribed", int(each.subscribed)),
            ):
                families[name].add_metric(labels, value)
        for group, count in found.members.items():
            families["members"].add_metric([group], count)
        for group, objective_s in found.objectives_s.items():
            families["lag_objective_seconds"].add_metric([group], objective_s)
        return families.values()

    # -- looking --------------------------------------------------------------------------------

    async def _look(self, sources: Sources) -> None:
        pass_ = Pass(sources, self._movements)
        pairs: list[Pair] = []
        members: dict[str, int] = {}
        objectives_s: dict[str, float] = {}
        for config in sources.configs.list():
            pairs += await pass_.pairs_of(config)
            members[config.name] = sources.members.member_count(config.name)
            objectives_s[config.name] = (config.lag_objective_ms or OBJECTIVE_MS) / 1000
        self._movements = pass_.movements
        # In a thread: of very many groups the sorting alone would hold up the loop.
        self._found = await asyncio.to_thread(
            found_of, pairs, members, objectives_s, self._series_max
        )
        self._found_at_s = sources.clock.monotonic()


class Found(NamedTuple):
    """What one look found."""

    pairs: Sequence[Pair]
    members: Mapping[str, int]
    objectives_s: Mapping[str, float]


def found_of(
    pairs: Sequence[Pair],
    members: Mapping[str, int],
    objectives_s: Mapping[str, float],
    series_max: int,
) -> Found:
    """Bound what is shown: pairs as ``fold`` does, groups with members first, then by name."""
    names = sorted(members, key=lambda name: (not members[name], name))
    kept = names[:series_max]
    rest = sum(members[name] for name in names[series_max:])
    return Found(
        fold(pairs, series_max),
        {**{name: members[name] for name in kept}, **({OTHER: rest} if rest else {})},
        {name: objectives_s[name] for name in kept},
    )


class Pass:
    """One look at all groups. Bounds of a queue that many groups read are taken once."""

    def __init__(
        self, sources: Sources, movements: Mapping[tuple[str, str, int], Movement]
    ) -> None:
        """movements: of the look before."""
        self._sources = sources
        self._before = movements
        self.movements: dict[tuple[str, str, int], Movement] = {}
        self._bounds: dict[Queue, Bounds | None] = {}
        """None: the topic is not there."""
        self._queue_counts: dict[str, int] = {}
        self._looks = 0

    async def pairs_of(self, config: GroupConfig) -> list[Pair]:
        """The pairs of one group: the topics that members read, and those it has offsets in."""
        await self._turn()
        if config.broadcast:
            return []
        sources = self._sources
        if not sources.members.member_count(config.name) and self._has_read_all(config.name):
            return [*map(partial(_idle, config.name), self._topics_of(config.name))]
        members = sources.members.members(config.name)
        subscribed = {each.topic for member in members for each in member.subscriptions}
        retry = RETRY_PREFIX + config.name
        queues = queues_read(config, subscribed, sources.committed, sources.looks)
        pairs: list[Pair] = []
        in_flight = sources.members.in_flight(config.name)
        for topic, numbers in queues.items():
            samples: list[QueueSample] = []
            for queue in numbers:
                await self._turn()
                sample = self._sample(config, topic, queue, has_members=bool(members))
                held = in_flight.get((topic, queue))
                samples.append(sample._replace(lag=sample.lag._replace(in_flight=held)))
            is_retry = topic == retry
            pairs.append(
                pair(
                    config.name,
                    topic,
                    "retry" if is_retry else "main",
                    samples,
                    objective_s=(config.lag_objective_ms or OBJECTIVE_MS) / 1000,
                    subscribed=topic in subscribed or (is_retry and bool(members)),
                )
            )
        return pairs

    def _has_read_all(self, group: str) -> bool:
        """Whether all that the group ever committed is the end of its queue, of all queues.

        That is so of nearly all groups without members, and by far the cheapest to find out.
        """
        offsets = self._sources.committed.of_group(group)
        for (topic, queue), committed in offsets.items():
            bounds = self._bounds_of(topic, queue, committed)
            if bounds is None or committed != bounds.max_offset:
                return False
        return sum(map(self._queue_count, self._topics_of(group))) == len(offsets)

    def _topics_of(self, group: str) -> set[str]:
        return {topic for topic, _ in self._sources.committed.of_group(group)}

    def _queue_count(self, topic: str) -> int:
        count = self._queue_counts.get(topic)
        if count is None:
            count = self._queue_counts[topic] = len(self._sources.looks.queues_of(topic))
        return count

    async def _turn(self) -> None:
        """Let others have theirs, every now and then."""
        self._looks += 1
        if self._looks % LOOKS_AT_ONCE == 0:
            await asyncio.sleep(0)

    def _sample(
        self, config: GroupConfig, topic: str, queue: int, *, has_members: bool
    ) -> QueueSample:
        sources = self._sources
        committed = sources.committed.get(config.name, topic, queue)
        bounds = self._bounds_of(topic, queue, committed)
        if bounds is None:
            return QueueSample(nothing_known(Reason.UNKNOWN_TOPIC))
        lag = sources.looks.lag(topic, queue, committed, bounds, sources.clock.wall_ms())
        if not lag.messages or committed is None:
            return QueueSample(lag)
        now_s, key = sources.clock.monotonic(), (config.name, topic, queue)
        before = self._before.get(key)
        movement = Movement(committed, now_s) if before is None else before.seen(committed, now_s)
        self.movements[key] = movement
        stuck = has_members and movement.is_stuck(now_s)
        return QueueSample(lag, now_s - movement.moved_at_s, stuck)

    def _bounds_of(self, topic: str, queue: int, committed: int | None) -> Bounds | None:
        """A queue's bounds; of an earlier group's look if they are not older than the commit."""
        key, looks = (topic, queue), self._sources.looks
        known = self._bounds.get(key)
        if known is None and key in self._bounds:
            return None
        if known is None or (committed is not None and committed > known.max_offset):
            found = looks.bounds(topic, queue) if looks.is_known(topic) else None
            known = self._bounds[key] = found
        return known


def _idle(group: str, topic: str) -> Pair:
    """A pair whose queues are all read, of a group without members."""
    kind = "retry" if topic == RETRY_PREFIX + group else "main"
    return Pair(group, topic, kind, 0, 0.0, 0, 0, 0.0, 0, 0, 0, 0, subscribed=False)


def _families() -> dict[str, GaugeMetricFamily]:
    """Every gauge without samples, by its name behind ``tidemark_group_``."""
    families = [
        GaugeMetricFamily(
            "tidemark_group_lag_messages",
            "Max offset minus the later of commit and min offset, summed over queues; absent while "
            "unknown.",
            labels=["group", "topic", "kind"],
        ),
        GaugeMetricFamily(
            "tidemark_group_lag_seconds",
            "Now minus the store time of the oldest unread message, largest over queues; 0 without "
            "one, absent while unknown.",
            labels=["group", "topic", "kind"],
        ),
        GaugeMetricFamily(
            "tidemark_group_lag_queue_max_messages",
            "Largest lag of a single queue.",
            labels=["group", "topic"],
        ),
        GaugeMetricFamily(
            "tidemark_group_inflight_messages",
            "Handed to members and not committed.",
            labels=["group", "topic"],
        ),
        GaugeMetricFamily(
            "tidemark_group_commit_age_seconds",
            "Longest time since the commit was seen to move, of queues with lag; 0 if none has.",
            labels=["group", "topic"],
        ),
        GaugeMetricFamily(
            "tidemark_group_lagging_queues",
            "Queues whose oldest unread message is older than the group's objective.",
            labels=["group", "topic"],
        ),
        GaugeMetricFamily(
            "tidemark_group_stuck_queues",
            "Queues with lag whose commit has not moved for four times its longest recent gap, at "
            "least a minute, while the group has members.",
            labels=["group", "topic"],
        ),
        GaugeMetricFamily(
            "tidemark_group_ahead_queues",
            "Queues whose commit is beyond the max offset.",
            labels=["group", "topic"],
        ),
        GaugeMetricFamily(
            "tidemark_group_unknown_queues",
            "Queues whose lag is not known, counted in no sum.",
            labels=["group", "topic"],
        ),
        GaugeMetricFamily(
            "tidemark_group_subscribed",
            "1 while a member subscribes to the topic.",
            labels=["group", "topic"],
        ),
        GaugeMetricFamily("tidemark_group_members", "Members of the group.", labels=["group"]),
        GaugeMetricFamily(
            "tidemark_group_lag_objective_seconds",
            "How old an unread message may be, as configured.",
            labels=["group"],
        ),
    ]
    return {family.name.removeprefix(PREFIX): family for family in families}
