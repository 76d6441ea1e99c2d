"""Writes the samples of one partition to the collected tables, for collect and backfill.

Runs on executors. A partition has all samples of its pairs and times, so shaping moves no row
between tasks. Only names of files leave the task.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from analytics.kernel.shape import shape
from analytics.moments import HOUR, from_us, hour_of, steps, to_us
from analytics.schema import SAMPLES, Gap, fit
from analytics.sources.gaps import split
from analytics.tables import TableRoot
from analytics.tables.parts import Writer

LANDED = ("series", "positions", "logs", "pairs", "replicas", "counters", "gaps")
"""The tables that collecting writes."""


@dataclass(frozen=True, slots=True)
class Landing:
    """Shapes samples and writes them to the collected tables. Picklable."""

    root: TableRoot
    period_s: float
    counters: tuple[str, ...] | None = None
    """Names of the counters to store; null: all, which makes them the largest table."""
    all_series: bool = False
    """Write a row of every series, even if the hour already has it: for hours to be replaced."""

    def __call__(self, batches: Iterator[pa.RecordBatch], writer: Writer) -> None:
        """Write the samples of one partition."""
        pieces = [fit(pa.Table.from_batches([batch]), SAMPLES) for batch in batches]
        samples = pa.concat_tables(pieces) if pieces else SAMPLES.empty_table()
        self.land(samples, writer)

    def land(self, samples: pa.Table, writer: Writer) -> None:
        """Write all samples of some pairs and times."""
        # The samples include rows of gaps: the source was read up to their end, too.
        read_to = pc.max(samples.column("ts").cast(pa.int64())).as_py()
        if read_to is not None:
            writer.most("read_to_us", read_to)
        samples, gaps = split(samples)
        writer.write("gaps", gaps)
        for row in gaps.filter(pc.equal(gaps.column("reason"), str(Gap.UNSCRAPED))).to_pylist():
            writer.add("unscraped_us", to_us(row["to_ts"]) - to_us(row["from_ts"]))
        # Nothing more can be read of a time that was never scraped.
        known = pc.is_in(gaps.column("reason"), value_set=pa.array([Gap.DOWN, Gap.UNSCRAPED]))
        unread = gaps.filter(pc.invert(known))
        writer.facts.setdefault("unread", []).extend(
            [to_us(row["from_ts"]), to_us(row["to_ts"]), f"{row['reason']}: {row['detail']}"]
            for row in unread.to_pylist()
        )
        writer.add("samples", samples.num_rows)
        newest = pc.max(samples.column("ts").cast(pa.int64())).as_py()
        if newest is not None:
            writer.most("newest_us", newest)
        shaped = shape(samples, self.period_s, counters=self.counters)
        if not self.all_series and not writer.skips("series"):
            shaped["series"] = unknown_in_hour(self.root, shaped["series"])
        for table in LANDED:
            if table in shaped:
                writer.write(table, shaped[table])
        writer.facts["nodes"] = newest_ticks(shaped["positions"])


def unknown_in_hour(root: TableRoot, series: pa.Table) -> pa.Table:
    """Return the series that have no row yet in the hour of their last_seen. One row per series and
    hour is enough to resolve names; one per tick would be as large as the table of positions."""
    if not series.num_rows:
        return series
    last = series.column("last_seen").cast(pa.int64())
    low, high = pc.min(last).as_py(), pc.max(last).as_py()
    is_known = pa.array([False] * series.num_rows)
    for hour in steps(hour_of(from_us(low)), from_us(high + 1)):
        known = root.read("series", since=hour, before=hour + HOUR, columns=["series_id"])
        inside = pc.and_(pc.greater_equal(last, to_us(hour)), pc.less(last, to_us(hour + HOUR)))
        ids = known.column(0).combine_chunks()
        found = pc.and_(inside, pc.is_in(series.column("series_id"), value_set=ids))
        is_known = pc.or_(is_known, found)
    return series.filter(pc.invert(is_known))


def newest_ticks(positions: pa.Table) -> dict[str, int]:
    """Return the newest tick [microseconds] of each node that sent positions."""
    grouped = positions.group_by("replica").aggregate([("tick", "max")])
    ticks = grouped.column("tick_max").cast(pa.int64()).to_pylist()
    return dict(zip(grouped.column("replica").to_pylist(), ticks, strict=True))
