"""Gauges of consumer groups: lag, members, movement. Taken when asked, at most once a second.

A scrape first awaits ``refresh``, which looks at all groups with other requests' turns in between;
``collect`` then only writes down what was found. Nothing is done while nobody scrapes. What is
counted as it happens is in ``counters``. Names and definitions are those of docs/metrics.md.
Before: the store is open and ``connect`` was called. After: ``GET /metrics``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.broker.groups.pair_looks import Found, Pass, found_of
from services.broker.groups.pairs import Movement, Pair
from services.broker.groups.sources import OBJECTIVE_MS, Sources

__all__ = ["GroupGauges", "Sources"]

PREFIX: Final = "tidemark_group_"
SAME_FOR_S: Final = 1.0
"""What was found is served for so long."""


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

    def connect(self, sources: Sources | None) -> None:
        """From now on there are groups to look at; None: no more."""
        self._sources = sources
        if sources is None:
            self._found, self._found_at_s = Found([], {}, {}), float("-inf")

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
