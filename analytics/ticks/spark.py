"""`tidemark_ticks`: the closed ticks of the positions as a stream, a row for each bucket.

A row is a task, not data: evaluate the ticks in (after, until] of this bucket. The offset is the
last tick that was handed out. Spark's checkpoint therefore has the progress of evaluation, and a
repeated batch has the same ticks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

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
from shared.runtime.clock import SystemClock

NAME: Final = "tidemark_ticks"
SCHEMA: Final = "bucket int, after_us bigint, until_us bigint"
_ARROW: Final = pa.schema(
    [("bucket", pa.int32()), ("after_us", pa.int64()), ("until_us", pa.int64())]
)
MAX_TICKS: Final = 240  # in one batch: an hour at 15 s


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
        self._last: int | None = None

    def initialOffset(self) -> dict[str, int]:
        """Return the first tick of a stream without a checkpoint; 0 if the tables are empty.

        Spark asks again when it repeats the first batch, which some tables may have by then. So it
        is the tick that all tables have.
        """
        root = TableRoot(self._tables)
        marks = [root.watermark(table) for table in COMPUTED]
        return {"tick": min(0 if mark is None else to_us(mark) for mark in marks)}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Read limit, in ticks."""
        return ReadMaxRows(self._max_ticks)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """The last tick of the next batch; the start if no further tick is closed."""
        after = self._after(start["tick"])
        closed = self._closed() if self._last is None else self._last
        if closed is None or after is None or closed <= after:
            return start
        ticks = self._max_ticks
        if isinstance(limit, ReadAllAvailable):
            ticks = (closed - after) // self._period_us
        elif isinstance(limit, ReadMaxRows):
            ticks = limit.max_rows
        return {"tick": min(closed, after + ticks * self._period_us)}

    def prepareForTriggerAvailableNow(self) -> None:
        """Stop at the ticks that are closed now."""
        self._last = self._closed()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """One partition for each bucket."""
        after = self._after(start["tick"])
        if after is None or end["tick"] <= after:
            return []
        buckets = TableRoot(self._tables).buckets
        return [InputPartition((bucket, after, end["tick"])) for bucket in range(buckets)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the single row of the partition."""
        yield pa.RecordBatch.from_arrays([[each] for each in partition.value], schema=_ARROW)

    def _after(self, start_us: int) -> int | None:
        """The tick before the first of a batch; None without positions."""
        if start_us:
            return start_us
        files = TableRoot(self._tables).files("positions")
        if not files:
            return None
        return tick_of(files[0].first_us, self._period_us) - self._period_us

    def _closed(self) -> int | None:
        known = collectors(TableRoot(self._tables))
        read_to, clock = waited_for(known, self._period_us), None
        if self._by_clock and known.written_us is not None:
            now_us, grace_us = SystemClock().wall_ms() * 1000, GRACE_PERIODS * self._period_us
            # While all nodes are silent, ticks wait for no collector; one has still read this far.
            collected_us = min(read_to.values(), default=max(known.read_to.values(), default=None))
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
