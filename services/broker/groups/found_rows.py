"""What one look found, as tables of series: rows of labels, columns of values.

Written while the look goes on, a few rows at a time, so that a scrape has nothing left to do but to
write text. What is not known is None and gets no sample. Before: ``look``. After: the registry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from services.broker.groups.group_pass import PairSeen, QueueSeen
from services.broker.groups.oldest import shown
from services.broker.groups.queue_looks import Bounds
from services.broker.groups.queue_room import Rank, Room
from services.broker.groups.sources import Queue
from services.broker.log_times import LogTimes
from services.broker.queue_extents import QueueExtents
from services.broker.turns import Turns

Labels = list[tuple[str, ...]]
Column = list[float | None]


class Columns(NamedTuple):
    """One table of series."""

    labels: Labels
    columns: tuple[Column, ...]
    """As long as ``labels``, each; one per family."""
    weights: list[float]
    """How much a row would be missed; 0: by nobody. Empty where nobody asks."""
    activity: list[float]
    """Changes when what the row is about is used."""

    @classmethod
    def of(cls, families: int) -> Columns:
        """An empty table of so many families."""
        return cls([], tuple([] for _ in range(families)), [], [])

    def add(self, labels: tuple[str, ...], values: Sequence[float | None]) -> None:
        """One row; a table is added to with one kind of row only."""
        self.labels.append(labels)
        for column, value in zip(self.columns, values, strict=True):
            column.append(value)

    def weigh(self, weight: float, activity: float) -> None:
        """Of the row added last."""
        self.weights.append(weight)
        self.activity.append(activity)


class Found(NamedTuple):
    """What one look found."""

    began_ms: int
    """Wall clock."""
    took_s: float
    times: LogTimes | None
    lag: Columns
    """(group, topic, kind): lag in messages and in seconds."""
    pairs: Columns
    """(group, topic): the largest lag of a queue, in flight, age of the commit, queues that lag,
    are stuck, ahead, unknown; whether subscribed; store times of the oldest message not handed out
    and of the oldest not committed [s]."""
    groups: Columns
    """(group): members, objective [s]."""
    topics: Columns
    """(topic): sums of max and of min offsets."""
    queues: Columns
    """(topic, queue): max and min offset."""
    group_queues: Columns
    """(group, topic, queue): committed offset, store time of the oldest unread message [s]."""
    queues_left_out: int
    """Rows that ``queues`` would have and has no room for."""
    group_queues_left_out: int


class Rows:
    """The tables of a look that goes on."""

    def __init__(self, times: LogTimes | None) -> None:
        self._times = times
        self._lag = Columns.of(2)
        self._pairs = Columns.of(10)
        self._groups = Columns.of(2)
        self._topics = Columns.of(2)
        self._queues = Columns.of(2)
        self._group_queues = Columns.of(2)
        self._seen: dict[tuple[str, str], Sequence[QueueSeen]] = {}
        self._left_out = (0, 0)

    def found(self, began_ms: int, took_s: float) -> Found:
        """All of it."""
        return Found(
            began_ms,
            took_s,
            self._times,
            self._lag,
            self._pairs,
            self._groups,
            self._topics,
            self._queues,
            self._group_queues,
            *self._left_out,
        )

    def group(
        self, group: str, members: int, objective_s: float, pairs: Sequence[PairSeen]
    ) -> None:
        """One group with its pairs."""
        activity = 0
        for found, queues in pairs:
            # Pairs that members read give way last, then those with lag.
            weight = 2.0 * found.subscribed + bool(found.messages)
            activity += found.activity
            self._lag.add((group, found.topic, found.kind), (found.messages, found.seconds))
            self._lag.weigh(weight, found.activity)
            undelivered_s = uncommitted_s = None
            if self._times is not None and found.oldest is not None:
                times = shown(self._times, found.oldest)
                undelivered_s = times.undelivered_ms / 1000
                uncommitted_s = times.uncommitted_ms / 1000
            self._pairs.add(
                (group, found.topic),
                (
                    found.queue_max,
                    found.in_flight,
                    found.commit_age_s,
                    found.lagging,
                    found.stuck,
                    found.ahead,
                    found.unknown,
                    int(found.subscribed),
                    undelivered_s,
                    uncommitted_s,
                ),
            )
            self._pairs.weigh(weight, found.activity)
            self._seen[group, found.topic] = queues
        self._groups.add((group,), (members, objective_s))
        self._groups.weigh(float(members > 0), activity)

    async def topics(self, extents: QueueExtents, turns: Turns, room: Room | None) -> None:
        """All topics whose queues are known; to room, those that no group reads are offered."""
        read = {topic for _, topic in self._seen}
        for name, sums in extents.sums():
            if turns.over:
                await turns.pass_on()
            if sums.is_whole:
                self._topics.add((name,), (sums.max_offsets, sums.min_offsets))
                self._topics.weigh(0, sums.max_offsets)
            if room is not None and name not in read:
                room.offer(("", name), len(sums.numbers), Rank.NO_GROUP)

    async def queues(
        self,
        extents: QueueExtents,
        bounds: Mapping[Queue, Bounds],
        turns: Turns,
        room: Room | None,
        *,
        group_queues: int,
    ) -> None:
        """The queues that have room. bounds: as met by the pass over the groups. group_queues: how
        many rows ``group_queues`` would have with room for all.
        """
        if room is None:
            return
        for (group, topic), count in room.pairs.items():
            for queue, committed, oldest_ms in self._seen.get((group, topic), ())[:count]:
                if turns.over:
                    await turns.pass_on()
                if committed is not None or oldest_ms is not None:
                    oldest_s = None if oldest_ms is None else oldest_ms / 1000
                    self._group_queues.add((group, topic, str(queue)), (committed, oldest_s))
        for topic, count in room.topics.items():
            for queue in list(extents.numbers(topic) or ())[:count]:
                if turns.over:
                    await turns.pass_on()
                # The bounds of now would do for the maximum, and not for the minimum: it may have
                # passed the offset of a group that was looked at before.
                met = bounds.get((topic, queue)) or extents.bounds(topic, queue)
                if met is not None:
                    self._queues.add((topic, str(queue)), (met.max_offset, met.min_offset))
        all_queues = sum(len(sums.numbers) for _, sums in extents.sums())
        shown_by_group = sum(count for (group, _), count in room.pairs.items() if group)
        self._left_out = (
            max(0, all_queues - sum(room.topics.values())),
            max(0, group_queues - shown_by_group),
        )
