"""The result of one sample of all groups, as tables of series: rows of labels, columns of values.

The tables are written during the sample, a few rows at a time, so that a scrape only has to write
text. An unknown value is None and gets no sample. Step before: ``lag_sampler``. Step after: the
registry.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple

from services.broker.groups.lag_collector import PairSeen, QueueSeen
from services.broker.groups.lag_inputs import OBJECTIVE_MS
from services.broker.groups.oldest import shown
from services.broker.groups.series_budget import Rank, SeriesBudget
from services.broker.groups.topic_stats import TopicStats
from services.broker.log.log_times import LogTimes
from shared.runtime.time_slicer import TimeSlicer
from shared.state.values import GroupConfig

ROWS_AT_ONCE: Final = 16
"""Rows written between two checks of the clock."""

Labels = list[tuple[str, ...]]
Column = list[float | None]


class Columns(NamedTuple):
    """One table of series."""

    labels: Labels
    columns: list[Column]
    """One column per family, each as long as ``labels``."""
    weights: list[float]
    """Priority of a row if series must be left out; empty if the table is not bounded."""
    activity: list[float]
    """A number per row that changes when the row's topic or group is used."""

    @classmethod
    def of(cls, families: int) -> Columns:
        """Return an empty table of that many families."""
        return cls([], [[] for _ in range(families)], [], [])

    def add_two(self, labels: tuple[str, ...], one: float | None, other: float | None) -> None:
        """Add one row to a table of two families."""
        self.labels.append(labels)
        self.columns[0].append(one)
        self.columns[1].append(other)

    def add_three(
        self, labels: tuple[str, ...], one: float | None, two: float | None, three: float | None
    ) -> None:
        """Add one row to a table of three families."""
        self.labels.append(labels)
        self.columns[0].append(one)
        self.columns[1].append(two)
        self.columns[2].append(three)


class SampleTables(NamedTuple):
    """The tables of one sample."""

    began_ms: int
    """Wall clock time."""
    took_s: float
    times: LogTimes | None
    lag: Columns
    """(group, topic, kind): lag in messages and in seconds."""
    pairs: Columns
    """(group, topic): the largest lag of a queue, in flight, age of the commit, queues that lag,
    are stuck, ahead, unknown; whether subscribed; store times of the oldest message not handed out,
    of the oldest not committed, and of the oldest that awaits delivery [s]."""
    groups: Columns
    """(group): members, objective [s], whether it may consume, whether it broadcasts."""
    topics: Columns
    """(topic): sums of max and of min offsets."""
    queues: Columns
    """(topic, queue): max and min offset."""
    group_queues: Columns
    """(group, topic, queue): committed offset, store time of the oldest unread message [s], number
    of the member that holds the queue."""
    queues_left_out: int
    """Rows that ``queues`` would have but that exceed the bound."""
    group_queues_left_out: int


class LagSeries:
    """Writes the tables during a sample."""

    def __init__(self, times: LogTimes | None) -> None:
        self.times = times
        self._lag = Columns.of(2)
        # Both tables have a row per pair, in the same order, and share weights and activity.
        pairs = Columns.of(11)
        self._pairs = pairs._replace(weights=self._lag.weights, activity=self._lag.activity)
        self._groups = Columns.of(4)
        self._topics = Columns.of(2)
        self._queues = Columns.of(2)
        self._group_queues = Columns.of(3)
        self._seen: dict[tuple[str, str], Sequence[QueueSeen]] = {}
        self._topics_read: set[str] = set()
        self._group_queue_count = 0
        self._queue_count = 0
        self._left_out = (0, 0)

    def found(self, began_ms: int, took_s: float) -> SampleTables:
        """Return all tables."""
        return SampleTables(
            began_ms,
            took_s,
            self.times,
            self._lag,
            self._pairs,
            self._groups,
            self._topics,
            self._queues,
            self._group_queues,
            *self._left_out,
        )

    def group(self, config: GroupConfig, members: int, pairs: Sequence[PairSeen]) -> None:
        """Add one group with its pairs."""
        activity, times = 0, self.times
        lag, columns = self._lag, self._pairs.columns
        for labels, kind_labels, found, queues in pairs:
            lag.add_two(kind_labels, found.messages, found.seconds)
            # Pairs that members read are left out last, before them pairs with lag.
            lag.weights.append(2.0 * found.subscribed + bool(found.messages))
            lag.activity.append(found.activity)
            activity += found.activity
            undelivered_s = uncommitted_s = awaiting_s = None
            if times is not None and found.oldest is not None:
                undelivered_s, uncommitted_s, awaiting_s = (
                    time_ms / 1000 for time_ms in shown(times, found.oldest)
                )
            self._pairs.labels.append(labels)
            columns[0].append(found.queue_max)
            columns[1].append(found.in_flight)
            columns[2].append(found.commit_age_s)
            columns[3].append(found.lagging)
            columns[4].append(found.stuck)
            columns[5].append(found.ahead)
            columns[6].append(found.unknown)
            columns[7].append(int(found.subscribed))
            columns[8].append(undelivered_s)
            columns[9].append(uncommitted_s)
            columns[10].append(awaiting_s)
            self._seen[labels] = queues
            if queues:  # a topic that only broadcasting groups read counts as read by no group
                self._topics_read.add(found.topic)
            self._group_queue_count += len(queues)
        self._groups.labels.append((config.name,))
        of_group = self._groups.columns
        of_group[0].append(members)
        of_group[1].append((config.lag_objective_ms or OBJECTIVE_MS) / 1000)
        of_group[2].append(int(config.consume_enabled))
        of_group[3].append(int(config.broadcast))
        # The same order as for pairs: a group with lag and no members is what an alert needs.
        lags = any(found.messages for _, _, found, _ in pairs)
        self._groups.weights.append(2.0 * (members > 0) + lags)
        self._groups.activity.append(activity)

    async def topics(
        self, topic_stats: TopicStats, slicer: TimeSlicer, budget: SeriesBudget | None
    ) -> None:
        """Add all topics whose queues are known; offer those that no group reads to budget."""
        read, topics = self._topics_read, self._topics
        for number, sums in enumerate(topic_stats.sums()):
            if number % ROWS_AT_ONCE == 0 and slicer.over:
                await slicer.pass_on()
            self._queue_count += len(sums.numbers)
            if sums.is_whole:
                topics.add_two(sums.labels, sums.max_offsets, sums.min_offsets)
                topics.weights.append(0)
                topics.activity.append(sums.max_offsets)
            if budget is not None and sums.config.name not in read:
                budget.offer(sums.no_group, len(sums.numbers), Rank.NO_GROUP)

    async def queues(
        self,
        topic_stats: TopicStats,
        slicer: TimeSlicer,
        budget: SeriesBudget | None,
    ) -> None:
        """Add the queues that budget admits; called after the pass over the groups."""
        if budget is None:
            return
        rows = 0
        for name, count in budget.pairs.items():
            for row in itertools.islice(self._seen.get(name, ()), count):
                rows += 1
                if rows % ROWS_AT_ONCE == 0 and slicer.over:
                    await slicer.pass_on()
                labels, _, committed, oldest_ms, _, number = row
                if committed is not None or oldest_ms is not None or number is not None:
                    oldest_s = None if oldest_ms is None else oldest_ms / 1000
                    self._group_queues.add_three(labels, committed, oldest_s, number)
        for topic, count in budget.topics.items():
            sums = topic_stats.topic(topic)
            for queue in () if sums is None else itertools.islice(sums.numbers, count):
                rows += 1
                if rows % ROWS_AT_ONCE == 0 and slicer.over:
                    await slicer.pass_on()
                bounds = topic_stats.bounds(topic, queue)
                if bounds is None or sums is None:
                    break  # deleted meanwhile
                # The maximum is the present one. The minimum is that of the beginning: the present
                # one may have passed the offset of a group that was sampled earlier.
                first = topic_stats.min_offsets_before.get((topic, queue), bounds.min_offset)
                self._queues.add_two(sums.labels_of(queue), bounds.max_offset, first)
        shown_by_group = sum(count for (group, _), count in budget.pairs.items() if group)
        self._left_out = (
            max(0, self._queue_count - sum(budget.topics.values())),
            max(0, self._group_queue_count - shown_by_group),
        )
