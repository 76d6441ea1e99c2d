"""Gauges of a sample: lag of groups, topics and queues, and the age of the stages of the log.

A scrape first awaits ``refresh``; the registry then reads the tables of the last sample. Counters
are in ``counters``. Names and definitions are those of docs/metrics.md.
Step before: ``lag_sampler``. Step after: ``GET /metrics``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from services.broker.groups.lag_inputs import LagInputs
from services.broker.groups.lag_sampler import LagSampler
from services.broker.groups.lag_series import Columns, SampleTables
from services.broker.groups.telemetry_rows import TelemetryRows
from services.broker.log.log_times import LogTimes
from shared.metrics.catalogue import groups as of_groups
from shared.metrics.catalogue import log as of_log
from shared.metrics.catalogue import requests as of_requests
from shared.metrics.family import Family
from shared.metrics.registry import Registry
from shared.metrics.tables import Table
from shared.runtime.pauses import Pauses
from tidemark.clock import Clock

OF_LAG: Final = (of_groups.GROUP_LAG_MESSAGES, of_groups.GROUP_LAG_SECONDS)
OF_PAIRS: Final = (
    of_groups.GROUP_LAG_QUEUE_MAX_MESSAGES,
    of_groups.GROUP_INFLIGHT_MESSAGES,
    of_groups.GROUP_COMMIT_AGE_SECONDS,
    of_groups.GROUP_LAGGING_QUEUES,
    of_groups.GROUP_STUCK_QUEUES,
    of_groups.GROUP_AHEAD_QUEUES,
    of_groups.GROUP_UNKNOWN_QUEUES,
    of_groups.GROUP_SUBSCRIBED,
    of_groups.GROUP_OLDEST_UNDELIVERED_TIMESTAMP_SECONDS,
    of_groups.GROUP_OLDEST_UNCOMMITTED_TIMESTAMP_SECONDS,
    of_groups.GROUP_AWAITING_DELIVERY_TIMESTAMP_SECONDS,
)
OF_GROUPS: Final = (
    of_groups.GROUP_MEMBERS,
    of_groups.GROUP_LAG_OBJECTIVE_SECONDS,
    of_groups.GROUP_CONSUME_ENABLED,
    of_groups.GROUP_BROADCASTING,
)
OF_TOPICS: Final = (
    of_requests.TOPIC_MAX_OFFSET_MESSAGES,
    of_requests.TOPIC_MIN_OFFSET_MESSAGES,
)
OF_QUEUES: Final = (
    of_requests.QUEUE_MAX_OFFSET_MESSAGES,
    of_requests.QUEUE_MIN_OFFSET_MESSAGES,
)
OF_GROUP_QUEUES: Final = (
    of_groups.GROUP_QUEUE_OFFSET_MESSAGES,
    of_groups.GROUP_QUEUE_OLDEST_TIMESTAMP_SECONDS,
    of_groups.GROUP_QUEUE_MEMBER_NUMBER,
)
OF_THE_LOG: Final = (
    of_log.LOG_NEWEST_MESSAGE_TIMESTAMP_SECONDS,
    of_log.LOG_CONFIRM_MESSAGE_TIMESTAMP_SECONDS,
    of_log.LOG_DISPATCHED_MESSAGE_TIMESTAMP_SECONDS,
)
OF_THE_SAMPLE: Final = (
    of_requests.BROKER_LOOK_TIMESTAMP_SECONDS,
    of_requests.BROKER_LOOK_DURATION_SECONDS,
)


class LagGauges:
    """All gauges that a sample fills."""

    def __init__(self, registry: Registry, clock: Clock, queue_series_max: int) -> None:
        """queue_series_max: see ``LagSampler``."""
        self.sampler: Final = LagSampler(clock, queue_series_max)
        self._registry = registry
        self._seen: SampleTables | None = None
        self._left_out: dict[Family, int] = {}
        """The most label sets that one sample had to leave out."""
        for families, table in (
            (OF_LAG, lambda found: found.lag),
            (OF_PAIRS, lambda found: found.pairs),
            (OF_GROUPS, lambda found: found.groups),
            (OF_TOPICS, lambda found: found.topics),
            (OF_QUEUES, lambda found: found.queues),
            (OF_GROUP_QUEUES, lambda found: found.group_queues),
        ):
            self._read(families, table)
        registry.read_pass((*OF_THE_LOG, *OF_THE_SAMPLE), self._sample_metrics)

    def connect(self, times: Callable[[], LogTimes | None], inputs: LagInputs | None) -> None:
        """See ``LagSampler.connect``."""
        self._seen = None
        self._left_out.clear()
        self.sampler.connect(times, inputs)

    async def refresh(self) -> None:
        """See ``LagSampler.refresh``; label sets that were left out for the first time are
        counted."""
        await self.sampler.refresh()
        await self._note(self.sampler.found)

    async def sample_into(self, rows: TelemetryRows) -> SampleTables | None:
        """See ``LagSampler.sample_into``; label sets are counted as by ``refresh``."""
        found = await self.sampler.sample_into(rows)
        await self._note(found)
        return found

    async def _note(self, found: SampleTables | None) -> None:
        if found is None or found is self._seen:
            return
        before, self._seen = self._seen, found
        if before is not None:
            await self._let_go(before)
        self._count(OF_QUEUES, found.queues_left_out)
        self._count(OF_GROUP_QUEUES, found.group_queues_left_out)

    async def _let_go(self, before: SampleTables) -> None:
        """Free the old tables column by column: at once, tens of thousands of rows take
        milliseconds.

        A scrape that is still being written keeps references to the columns that it needs.
        """
        pauses = Pauses(self.sampler.is_awaited)
        tables = (
            before.lag,
            before.pairs,
            before.groups,
            before.topics,
            before.queues,
            before.group_queues,
        )
        for table in tables:
            while table.columns:
                table.columns.pop()
                await pauses.rest()

    def _count(self, families: tuple[Family, ...], left_out: int) -> None:
        for family in families:
            more = left_out - self._left_out.get(family, 0)
            if more > 0:
                self._left_out[family] = left_out
                self._registry.note_dropped(family, more)

    def _read(self, families: tuple[Family, ...], table: Callable[[SampleTables], Columns]) -> None:
        def read() -> Table:
            found = self.sampler.found
            columns = Columns.of(len(families)) if found is None else table(found)
            weighed = len(columns.weights) == len(columns.labels)
            return Table(
                columns.labels,
                columns.columns,
                columns.weights if weighed else None,
                columns.activity if weighed else None,
            )

        self._registry.read_table(families, read)

    def _sample_metrics(self) -> Mapping[Family, float | None]:
        found = self.sampler.found
        if found is None:
            return {}
        about = dict(zip(OF_THE_SAMPLE, (found.began_ms / 1000, found.took_s), strict=True))
        if found.times is None:
            return about
        times_s = [time_ms / 1000 for time_ms in found.times]
        return {**about, **dict(zip(OF_THE_LOG, times_s, strict=True))}
