"""`tidemark_ticks`: the closed ticks of the positions as a stream, a row for each bucket.

A row is a task, not data: evaluate the ticks in (after, until] of this bucket. Ticks up to `judged`
were handed out before, and are again because samples of them came late. The offset has the last
tick that was handed out and the versions of the collected tables at that time. Spark's checkpoint
therefore has the progress of evaluation, and a repeated batch has the same tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from analytics.moments import to_us
from analytics.runs import collectors
from analytics.schema import COMPUTED
from analytics.tables import TableRoot
from analytics.ticks.closed import GRACE_PERIODS, ByClock, last_closed, tick_of, waited_for
from analytics.ticks.late import Late, late, versions
from shared.runtime.clock import SystemClock

NAME: Final = "tidemark_ticks"
MAX_TICKS: Final = 240  # in one batch: an hour at 15 s


class Task(NamedTuple):
    """Ticks in (after, until] of one bucket. Times in microseconds since 1970."""

    bucket: int
    after_us: int
    until_us: int
    judged_us: int
    """Ticks up to this were evaluated before; `after_us` if none of these were."""
    at_us: int
    """When the task was made."""
    left_us: int | None = None
    """The first tick that has late samples and is not evaluated again; None: there is none."""

    @property
    def is_revision(self) -> bool:
        """Whether it has ticks that were evaluated before."""
        return self.after_us < self.judged_us


SCHEMA: Final = ", ".join(f"{name} bigint" for name in Task._fields)
_ARROW: Final = pa.schema([(name, pa.int64()) for name in Task._fields])


Offset = dict[str, Any]
"""``tick``: the last tick that was handed out [microseconds since 1970], 0: none. ``versions``: the
number of commits of each collected table at that time, and ``at_us``: that time. The first offset
of a stream has only a tick, like those of earlier releases: what came before is not late."""


class TicksReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Hands out ticks as they close. Runs on the driver; `read` runs on executors.

    Options: tables (directory), period_us, closing (clock or data), max_ticks (in one batch). It
    begins with the tables, or at the end of the last evaluation.
    """

    def __init__(self, options: dict[str, str]) -> None:
        self._tables = options["tables"]
        self._period_us = int(options["period_us"])
        self._by_clock = options.get("closing", "clock") == "clock"
        self._max_ticks = int(options.get("max_ticks", MAX_TICKS))
        self._until: Offset | None = None
        """End of a run over the available data."""
        self._searched: tuple[Offset, dict[str, int]] | None = None
        """A start, and versions up to which no samples are late for it."""

    def initialOffset(self) -> Offset:
        """Return the first tick of a stream without a checkpoint; 0 if the tables are empty.

        Spark asks again when it repeats the first batch, which some tables may have by then. So it
        is the tick that all tables have.
        """
        root = TableRoot(self._tables)
        marks = [root.watermark(table) for table in COMPUTED]
        return Offset(tick=min(0 if mark is None else to_us(mark) for mark in marks))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Read limit, in ticks."""
        return ReadMaxRows(self._max_ticks)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """End of the next batch; the start if no further tick is closed and no samples of closed
        ticks came."""
        now = self._available() if self._until is None else self._until
        after = self._after(start["tick"])
        if after is None or now["tick"] <= after:
            same = now | {"tick": start["tick"]}
            return same if self._has_late(start, same) else start
        ticks = self._max_ticks
        if isinstance(limit, ReadAllAvailable):
            ticks = (now["tick"] - after) // self._period_us
        elif isinstance(limit, ReadMaxRows):
            ticks = limit.max_rows
        return now | {"tick": min(now["tick"], after + ticks * self._period_us)}

    def prepareForTriggerAvailableNow(self) -> None:
        """Stop at the ticks that are closed now, and the samples that are there."""
        self._until = self._available()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """One partition for each bucket that has ticks to evaluate."""
        judged, until = self._after(start["tick"]), end["tick"]
        if judged is None:
            return []
        found = self._late(start, end)
        tasks = [
            Task(
                bucket,
                found.first[bucket] - self._period_us if bucket in found.first else judged,
                until,
                judged,
                end.get("at_us", 0),
                found.left,
            )
            for bucket in range(TableRoot(self._tables).buckets)
        ]
        return [InputPartition(task) for task in tasks if task.after_us < until]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the single row of the partition."""
        yield pa.RecordBatch.from_pylist([partition.value._asdict()], schema=_ARROW)

    def _after(self, start_us: int) -> int | None:
        """The tick before the first of a batch; None without positions."""
        if start_us:
            return start_us
        files = TableRoot(self._tables).files("positions")
        if not files:
            return None
        return tick_of(files[0].first_us, self._period_us) - self._period_us

    def _late(self, start: Offset, end: Offset) -> Late:
        """The evaluated ticks of which samples came between two offsets."""
        before: dict[str, int] = end.get("versions", {})
        since: dict[str, int] = start.get("versions", before)
        return late(TableRoot(self._tables), start["tick"], since, before, self._period_us)

    def _has_late(self, start: Offset, end: Offset) -> bool:
        """Whether samples of evaluated ticks came. While ticks wait, it is asked again and again
        with the same start: each commit is read once."""
        if "versions" not in start:
            return False
        is_same = self._searched is not None and self._searched[0] == start
        since = self._searched[1] if self._searched and is_same else start["versions"]
        found = bool(self._late(start | {"versions": since}, end).first)
        if not found:
            self._searched = start, end["versions"]
        return found

    def _available(self) -> Offset:
        """The offset with everything that is there now; tick 0 if none is closed.

        Versions are those after `runs` said which ticks are closed. So a row that is not in them is
        late for these ticks, and evaluation reads all that is in them.
        """
        tick = self._closed() or 0
        found = versions(TableRoot(self._tables))
        return Offset(tick=tick, versions=found, at_us=SystemClock().wall_ms() * 1000)

    def _closed(self) -> int | None:
        known = collectors(TableRoot(self._tables))
        read_to, clock = waited_for(known, self._period_us), None
        if self._by_clock and known.written_us is not None:
            now_us, grace_us = SystemClock().wall_ms() * 1000, GRACE_PERIODS * self._period_us
            of_nodes = [mark for name, mark in read_to.items() if name in known.read_to]
            # While all nodes are silent, ticks wait for none of these; one has still read this far.
            collected_us = min(of_nodes, default=max(known.read_to.values(), default=None))
            clock = ByClock(now_us, grace_us, known.written_us, collected_us)
        return last_closed(known.seen, self._period_us, clock, read_to)


class Ticks(DataSource):
    """The format `tidemark_ticks`."""

    @classmethod
    def name(cls) -> str:
        """Name for `spark.readStream.format`."""
        return NAME

    def schema(self) -> StructType | str:
        """Schema of the rows."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Stream reader with these options."""
        return TicksReader(cast("dict[str, Any]", dict(self.options)))


SOURCES: Final = (Ticks,)
