"""Composition of the parts that serve consumers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from services.broker.groups.active_groups import ActiveGroups
from services.broker.groups.commits import Commits
from services.broker.groups.configs import GroupConfigs
from services.broker.groups.coordinator import Coordinator
from services.broker.groups.counters import GroupCounters
from services.broker.groups.deliveries import Deliveries
from services.broker.groups.fetch import Fetches
from services.broker.groups.initial_offsets import InitialOffsets, Times
from services.broker.groups.joining import BOUNDS, Bounds, Joining
from services.broker.groups.offsets import Offsets
from services.broker.read.pull import Puller
from services.broker.state.topics import Topics
from tidemark.clock import Clock


class ConsumerGroups(NamedTuple):
    """The parts that serve consumers."""

    coordinator: Coordinator
    commits: Commits

    @classmethod
    def make(
        cls,
        configs: GroupConfigs,
        offsets: Offsets,
        topics: Topics,
        times: Times,
        puller: Puller,
        counters: GroupCounters,
        clock: Clock,
        *,
        start_count: Callable[[], int],
        bounds: Bounds = BOUNDS,
        broker_group: str = "",
    ) -> ConsumerGroups:
        """Create the parts.

        start_count: how often this node started as a writer; in a group of nodes, its epoch.
        broker_group: name of the group of nodes."""
        initial_offsets = InitialOffsets(offsets, puller, times)
        deliveries = Deliveries()
        live = ActiveGroups(
            configs,
            offsets,
            topics,
            initial_offsets,
            clock,
            start_count=start_count,
            queues_max=bounds.queues_per_group,
            broker_group=broker_group,
        )
        coordinator = Coordinator(
            live,
            Joining(live, configs, topics, initial_offsets, puller, bounds),
            Fetches(puller, clock, counters, deliveries),
            configs,
            offsets,
            deliveries,
        )
        commits = Commits(
            configs, offsets, coordinator, topics, puller, initial_offsets, counters, clock
        )
        return cls(coordinator, commits)
