"""The samples that scrapes share: times of the log, bounds of topics and queues, lag of groups.

A sample begins when a scrape arrives and the last sample is old enough; without scrapes there are
no samples. One sample runs at a time, in slices, and uses at most a fifth of the loop's time: after
a sample whose slices took 0.5 s the next one begins 2 s later at the earliest. A scrape waits for
the sample that it started, but not longer than ``WAIT_S``: then it shows the previous one. Metrics
show when the sample began and how long it took.

Two sets of numbers are consistent, each read at one instant: the positions of the log, read when
the sample begins; and the bounds of a queue with one group's offset. Messages that reach the log
after the beginning do not count as outstanding (``oldest``), so the stage times add up however long
the sample takes.
A failed sample does not fail the scrape: the values of the last good one are shown, with its time.
Step before: ``metrics`` calls ``refresh`` at a scrape. Step after: ``lag_series`` puts the sample
into tables, which ``metrics`` exports.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import Callable
from typing import Final

from services.broker.groups.lag_collector import LagCollector, Memory
from services.broker.groups.lag_inputs import LagInputs
from services.broker.groups.lag_series import LagSeries, SampleTables
from services.broker.groups.series_budget import Lagging, SeriesBudget
from services.broker.groups.telemetry_rows import TelemetryRows
from services.broker.groups.topic_stats import TopicStats
from services.broker.log.log_times import LogTimes
from shared.runtime.pauses import Pauses, never
from shared.runtime.rate_limited_logger import RateLimitedLogger
from shared.runtime.time_slicer import TimeSlicer
from tidemark.clock import Clock

AGAIN_S: Final = 1.0
"""Minimum time between the beginnings of two samples."""
COLLECT_SLICES: Final = 8
"""Slices between two collections of young garbage, which take some hundredths of a millisecond. A
sample frees as many objects as it makes, so none would begin by itself until there are hundreds of
thousands of young ones: with 100,000 queues it then took 60 to 90 ms."""
REST: Final = 4.0
"""Duty-cycle limit: rest time as a multiple of work time."""
WAIT_S: Final = 0.5
"""Maximum time that a scrape waits for a sample."""


class LagSampler:
    """Takes the samples of one broker. Only the event loop uses it."""

    def __init__(self, clock: Clock, queue_series_max: int) -> None:
        """queue_series_max: bound of the series per queue over all families; 0: none."""
        self._clock = clock
        self._queue_series_max = queue_series_max
        self._times: Callable[[], LogTimes | None] | None = None
        self._inputs: LagInputs | None = None
        self._role = 0
        """Changes whenever the source of samples changes."""
        self._memory: Memory = {}
        self._lagging = Lagging()
        self._budget: SeriesBudget | None = None
        self._running: asyncio.Task[None] | None = None
        self._next_at_s = float("-inf")
        self._limited_log = RateLimitedLogger(clock.monotonic)
        self._is_awaited: Callable[[], bool] = never
        """Whether a request is waiting, to which a sample yields the loop."""
        self.found: SampleTables | None = None
        """The last finished sample; None: there is none from the present source."""

    def connect(self, times: Callable[[], LogTimes | None], inputs: LagInputs | None) -> None:
        """Sample from here on. inputs: None if another node is the master, because this node does
        not know the present state of groups and queues."""
        self.disconnect()
        self._times, self._inputs = times, inputs

    def disconnect(self) -> None:
        """Stop sampling and drop the last sample."""
        self._times = self._inputs = self.found = self._budget = None
        self._role += 1
        self._memory, self._lagging = {}, Lagging()
        self._next_at_s = float("-inf")

    def pause_while(self, is_awaited: Callable[[], bool]) -> None:
        """Pause a sample between two slices while a request is in progress."""
        self._is_awaited = is_awaited

    def is_awaited(self) -> bool:
        """Return whether a request is in progress or has just arrived."""
        return self._is_awaited()

    async def refresh(self) -> None:
        """Take a sample if the last one is old enough, and wait for it for WAIT_S at most; scrapes
        at the same time share it."""
        if self._times is None:
            return
        if self._running is None or self._running.done():
            if self._clock.monotonic() < self._next_at_s:
                return
            self._running = asyncio.create_task(self._sample_and_log(), name="lag-sample")
        await asyncio.wait({self._running}, timeout=WAIT_S)

    async def sample_into(self, rows: TelemetryRows) -> SampleTables | None:
        """Take a sample as soon as the pace allows it, and all its rows into ``rows``.

        Returns None if it failed, or if this node is no longer the master."""
        while True:
            if self._running is not None and not self._running.done():
                await asyncio.wait({self._running})
            elif (left_s := self._next_at_s - self._clock.monotonic()) > 0:
                await asyncio.sleep(min(left_s, AGAIN_S))
            else:
                break
        if self._inputs is None:
            return None
        before = self.found
        self._running = asyncio.create_task(self._sample_and_log(rows), name="lag-sample")
        await asyncio.wait({self._running})
        return None if self.found is before else self.found

    async def _sample_and_log(self, rows: TelemetryRows | None = None) -> None:
        role = self._role
        try:
            await self._sample(rows)
        except Exception as error:  # noqa: BLE001 - logged, and shown by the age of the last sample
            if role != self._role:
                return  # the node changed its role and closed the files meanwhile
            self._memory = {}  # the list of moved groups is lost with this sample: read all anew
            self._next_at_s = self._clock.monotonic() + AGAIN_S
            self._limited_log.defect(
                error, "topics and groups could not be sampled for their metrics"
            )

    async def _sample(self, rows: TelemetryRows | None) -> None:
        assert self._times is not None, "refresh has seen to that"
        role, inputs, clock = self._role, self._inputs, self._clock
        began_ms, began_s = clock.wall_ms(), clock.monotonic()
        series = LagSeries(self._times())
        budget, busy_s = None, 0.0
        if inputs is not None:
            slicer = TimeSlicer(clock, Pauses(self.is_awaited), _beginning(inputs.topic_stats))
            budget = await self._sample_groups(inputs, series, slicer, role, rows)
            busy_s = slicer.busy_s
        ended_s = clock.monotonic()
        if role != self._role:
            return  # the node changed its role meanwhile: the sample is void
        self._budget = budget
        self.found = series.found(began_ms, ended_s - began_s)
        self._next_at_s = max(began_s + AGAIN_S, ended_s + REST * busy_s)

    async def _sample_groups(
        self,
        inputs: LagInputs,
        series: LagSeries,
        slicer: TimeSlicer,
        role: int,
        rows: TelemetryRows | None,
    ) -> SeriesBudget | None:
        topic_stats = inputs.topic_stats
        moved = await topic_stats.follow(slicer)
        committed = inputs.committed.take_moved()
        collector = LagCollector(inputs, self._memory, slicer, committed=committed, moved=moved)
        budget = (
            SeriesBudget(self._queue_series_max, self._budget) if self._queue_series_max else None
        )
        now_s = self._clock.monotonic()
        for config in inputs.configs.all():
            if slicer.over:
                await slicer.pass_on()
            count = inputs.members.member_count(config.name)
            seen = await collector.group(config, count)
            series.group(config, count, seen)
            if rows is not None:
                await rows.group(config, count, seen, series.times, slicer)
            for each in seen if budget is not None else ():
                assert budget is not None
                found = each.pair
                rank = self._lagging.rank(
                    each.labels,
                    has_lag=bool(found.messages),
                    subscribed=found.subscribed,
                    now_s=now_s,
                )
                budget.offer(each.labels, len(each.queues), rank)
        if role == self._role:
            self._memory = collector.memory
            await slicer.through(self._lagging.forget_gone(now_s))
        await series.topics(topic_stats, slicer, budget)
        if budget is not None:
            await slicer.through(budget.fill())
        await series.queues(topic_stats, slicer, budget)
        if rows is not None:
            await rows.queues(topic_stats, slicer)
        return budget


def _beginning(topic_stats: TopicStats) -> Callable[[], None]:
    """Return what begins a slice."""
    slices = itertools.count(1)

    def begin() -> None:
        if next(slices) % COLLECT_SLICES == 0:
            gc.collect(0)
        topic_stats.begin()

    return begin
