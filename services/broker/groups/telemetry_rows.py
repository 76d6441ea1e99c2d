"""Takes a sample of all topics and groups as the tables of a telemetry snapshot, in slices.

A sample for scrapes bounds its series; a snapshot has all queues. It reads them in the same pass,
so the offsets of a queue fit together (``lag_sampler``). Step before: ``lag_sampler`` calls it
during a sample. Step after: ``services.broker.telemetry`` appends the sections.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from services.broker.groups.counters import GroupCounters
from services.broker.groups.lag_collector import PairSeen
from services.broker.groups.lag_inputs import OBJECTIVE_MS
from services.broker.groups.oldest import shown
from services.broker.groups.pairs import Pair
from services.broker.groups.telemetry_tables import (
    GROUP,
    PAIR,
    POSITION,
    QUEUE,
    TOPIC,
    Row,
    TrackedTable,
    absent,
)
from services.broker.groups.topic_stats import TopicStats, TopicSums
from services.broker.log.log_times import LogTimes
from services.broker.traffic_metrics import TrafficMetrics
from shared.runtime.time_slicer import TimeSlicer
from shared.state.values import GroupConfig
from tidemark.formats.telemetry import Absent, pack_section

ROWS_AT_ONCE: Final = 16
"""Rows put between two checks of the clock."""
_NEVER_COMMITTED: Final = absent(Absent.NEVER_COMMITTED)
_AS_DISPATCHED: Final = absent(Absent.AS_DISPATCHED)
_UNREADABLE: Final = absent(Absent.UNREADABLE)
_NOT_TRACKED: Final = absent(Absent.NOT_TRACKED)
_NONE: Final = absent(Absent.NONE)


class _Written(NamedTuple):
    """State of a topic when all its queues were put."""

    sums: TopicSums
    known: int
    max_offsets: int
    min_offsets: int


class TelemetryRows:
    """The tables of a journal since its last keyframe; each snapshot updates them."""

    def __init__(self, counters: GroupCounters, traffic: TrafficMetrics) -> None:
        self._counters = counters
        self._traffic = traffic
        self._topics = TrackedTable(TOPIC)
        self._groups = TrackedTable(GROUP)
        self._queues = TrackedTable(QUEUE)
        self._pairs = TrackedTable(PAIR)
        self._positions = TrackedTable(POSITION)
        self._swept = (self._topics, self._groups, self._pairs, self._positions)
        """Tables of which each snapshot puts every row."""
        self._written: dict[str, _Written] = {}
        """By topic."""

    def __len__(self) -> int:
        """Return the number of rows of all tables."""
        return len(self._queues) + sum(map(len, self._swept))

    async def group(
        self,
        config: GroupConfig,
        members: int,
        pairs: Sequence[PairSeen],
        times: LogTimes | None,
        slicer: TimeSlicer,
    ) -> None:
        """Take one group with its pairs and their queues. times: those of the sample."""
        objective_ms = config.lag_objective_ms or OBJECTIVE_MS
        row = members, objective_ms, int(config.consume_enabled), int(config.broadcast)
        group_id = self._groups.put(config.name, row, name=config.name)
        for labels, _, found, queues in pairs:
            if slicer.over:
                await slicer.pass_on()
            keys = group_id, self._topic(found.topic)
            pair_id = self._pairs.put(labels, self._pair(found, times), keys)
            for number, seen in enumerate(queues):
                if number % ROWS_AT_ONCE == 0 and slicer.over:
                    await slicer.pass_on()
                _, queue, committed, oldest_ms, why, member = seen
                position = (
                    _NEVER_COMMITTED if committed is None else committed,
                    absent(why) if oldest_ms is None else oldest_ms,
                    _NOT_TRACKED if member is None else member,
                )
                self._positions.put(seen.labels, position, (pair_id, queue))

    def _topic(self, name: str) -> int:
        """Return the local id of a topic, also of one that no longer exists."""
        known = self._topics.find(name)
        if known is not None:
            return known
        return self._topics.put(name, _or_none(self._traffic.of_topic(name)), name=name)

    def _pair(self, found: Pair, times: LogTimes | None) -> Row:
        stages: Row = (_UNREADABLE,) * 3
        if times is not None and found.oldest is not None:
            dispatched_ms = times.dispatched_ms
            stages = tuple(
                _AS_DISPATCHED if time_ms == dispatched_ms else time_ms
                for time_ms in shown(times, found.oldest)
            )
        return (
            int(found.subscribed),
            found.unknown,
            _NOT_TRACKED if found.in_flight is None else found.in_flight,
            *stages,
            *_or_none(self._counters.of_pair(found.group, found.topic)),
        )

    async def queues(self, topic_stats: TopicStats, slicer: TimeSlicer) -> None:
        """Take the bounds of all queues; called after all groups, in the same sample."""
        topics = topic_stats.sums()
        for sums in topics:
            if slicer.over:
                await slicer.pass_on()
            name = sums.config.name
            topic_id, before = self._topic(name), self._written.get(name)
            # Offsets of a queue only grow, so equal sums are equal offsets.
            if sums.is_whole and before == _state_of(sums):
                continue
            if before is not None and before.sums is not sums:
                self._remove_queues(before.sums, but=sums)
            if await self._topic_queues(sums, topic_id, topic_stats, slicer):
                self._written[name] = _state_of(sums)
            else:
                self._written[name] = _state_of(sums)._replace(known=-1)
        if len(self._written) > len(topics):
            for name in self._written.keys() - {sums.config.name for sums in topics}:
                self._remove_queues(self._written.pop(name).sums)

    async def _topic_queues(
        self, sums: TopicSums, topic_id: int, topic_stats: TopicStats, slicer: TimeSlicer
    ) -> bool:
        """Take all queues of a topic; return whether they may be skipped until they move."""
        name, is_settled = sums.config.name, True
        for queue in sums.numbers:
            if slicer.over:
                await slicer.pass_on()
            bounds = topic_stats.bounds(name, queue)
            if bounds is None:
                return False  # deleted meanwhile
            # The present minimum may have passed the offset of a group that was taken earlier.
            first = topic_stats.min_offsets_before.get((name, queue))
            if first is None:
                first = bounds.min_offset
            else:
                is_settled = False
            row = first, bounds.max_offset
            self._queues.put(sums.labels_of(queue), row, (topic_id, queue))
        return is_settled

    def _remove_queues(self, sums: TopicSums, but: TopicSums | None = None) -> None:
        for queue in sums.numbers:
            if but is None or queue not in but.numbers:
                self._queues.remove(sums.labels_of(queue))

    async def packed(self, at_ms: int, slicer: TimeSlicer) -> list[bytes]:
        """Return the packed sections of the snapshot. at_ms: when the sample began."""
        packed: list[bytes] = []
        for table in self._swept:
            await slicer.through(table.sweep())
        for table in (*self._swept, self._queues):
            for section in table.sections():
                packed.append(pack_section(section, at_ms))
                if slicer.over:
                    await slicer.pass_on()
        return packed

    def written(self) -> None:
        """Begin the next snapshot, because this one is in the log."""
        for table in (*self._swept, self._queues):
            table.written()

    async def release(self, slicer: TimeSlicer) -> None:
        """Free the memory in slices."""
        for table in (*self._swept, self._queues):
            await slicer.through(table.release())


def _state_of(sums: TopicSums) -> _Written:
    return _Written(sums, sums.known, sums.max_offsets, sums.min_offsets)


def _or_none(counts: Sequence[int | None]) -> Row:
    return tuple(_NONE if count is None else count for count in counts)
