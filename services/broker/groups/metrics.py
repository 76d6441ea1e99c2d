"""Gauges of consumer groups: lag, members, movement. Taken when asked, at most once a second.

A scrape first awaits ``refresh``, which looks at all groups with other requests' turns in between
and writes rows as it goes; the registry then only reads these. Nothing is done while nobody
scrapes. What is counted as it happens is in ``counters``. Names and definitions are those of
docs/metrics.md. Before: the store is open and ``connect`` was called. After: ``GET /metrics``.
"""

from __future__ import annotations

import asyncio
from typing import Final

from services.broker.groups.pair_looks import Pass
from services.broker.groups.pairs import Movement, Pair
from services.broker.groups.sources import OBJECTIVE_MS, Sources
from shared.metrics.catalogue import groups as of_groups
from shared.metrics.registry import Registry
from shared.metrics.tables import Table
from shared.metrics.text import Number

__all__ = ["GroupGauges", "GroupRows", "Sources"]

SAME_FOR_S: Final = 1.0
"""What was found is served for so long."""

OF_KINDS: Final = (of_groups.GROUP_LAG_MESSAGES, of_groups.GROUP_LAG_SECONDS)
OF_PAIRS: Final = (
    of_groups.GROUP_LAG_QUEUE_MAX_MESSAGES,
    of_groups.GROUP_INFLIGHT_MESSAGES,
    of_groups.GROUP_COMMIT_AGE_SECONDS,
    of_groups.GROUP_LAGGING_QUEUES,
    of_groups.GROUP_STUCK_QUEUES,
    of_groups.GROUP_AHEAD_QUEUES,
    of_groups.GROUP_UNKNOWN_QUEUES,
    of_groups.GROUP_SUBSCRIBED,
)
OF_GROUPS: Final = (of_groups.GROUP_MEMBERS, of_groups.GROUP_LAG_OBJECTIVE_SECONDS)


class Rows:
    """A table while it is being written."""

    def __init__(self, columns: int) -> None:
        self.labels: list[tuple[str, ...]] = []
        self.columns: list[list[Number | None]] = [[] for _ in range(columns)]
        self.weights: list[float] = []
        self.activity: list[float] = []

    def add(
        self, labels: tuple[str, ...], values: tuple[Number | None, ...], weight: float, used: float
    ) -> None:
        """One row; see ``tables.Table``."""
        self.labels.append(labels)
        for column, value in zip(self.columns, values, strict=True):
            column.append(value)
        self.weights.append(weight)
        self.activity.append(used)

    def table(self) -> Table:
        """As it is; nothing may be added after this."""
        return Table(self.labels, self.columns, self.weights, self.activity)


class GroupRows:
    """What one look found, written down pair by pair."""

    def __init__(self) -> None:
        self.kinds, self.pairs = Rows(len(OF_KINDS)), Rows(len(OF_PAIRS))
        self.groups = Rows(len(OF_GROUPS))

    def add_pair(self, pair: Pair) -> None:
        """One group and one topic."""
        labels = (pair.group, pair.topic)
        # Pairs that members read give way last, then those with lag.
        weight = 2.0 * pair.subscribed + bool(pair.messages)
        used = pair.activity
        self.kinds.add((*labels, pair.kind), (pair.messages, pair.seconds), weight, used)
        values = (
            pair.queue_max,
            pair.in_flight,
            pair.commit_age_s,
            pair.lagging,
            pair.stuck,
            pair.ahead,
            pair.unknown,
            int(pair.subscribed),
        )
        self.pairs.add(labels, values, weight, used)

    def add_group(self, group: str, *, members: int, objective_s: float) -> None:
        """One group."""
        self.groups.add((group,), (members, objective_s), float(members > 0), 0.0)


class GroupGauges:
    """All gauges of all groups."""

    def __init__(self, registry: Registry) -> None:
        self._sources: Sources | None = None
        self._rows = GroupRows()
        self._found_at_s = float("-inf")
        self._refreshing: asyncio.Task[None] | None = None
        self._movements: dict[tuple[str, str, int], Movement] = {}
        """Of queues that had lag at the last look."""
        registry.read_table(OF_KINDS, lambda: self._rows.kinds.table())
        registry.read_table(OF_PAIRS, lambda: self._rows.pairs.table())
        registry.read_table(OF_GROUPS, lambda: self._rows.groups.table())

    def connect(self, sources: Sources | None) -> None:
        """From now on there are groups to look at; None: no more."""
        self._sources = sources
        if sources is None:
            self._rows, self._found_at_s = GroupRows(), float("-inf")

    async def refresh(self) -> None:
        """Look at all groups, if the last look is old; scrapes at the same time share one."""
        sources = self._sources
        if sources is None or sources.clock.monotonic() - self._found_at_s < SAME_FOR_S:
            return
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._look(sources), name="group-gauges")
        await asyncio.shield(self._refreshing)

    async def _look(self, sources: Sources) -> None:
        pass_ = Pass(sources, self._movements)
        rows = GroupRows()
        for config in sources.configs.list():
            for pair in await pass_.pairs_of(config):
                rows.add_pair(pair)
            rows.add_group(
                config.name,
                members=sources.members.member_count(config.name),
                objective_s=(config.lag_objective_ms or OBJECTIVE_MS) / 1000,
            )
        self._movements = pass_.movements
        self._rows = rows
        self._found_at_s = sources.clock.monotonic()
