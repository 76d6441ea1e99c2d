"""Writes the samples of one partition to the collected tables, for collect and backfill.

Runs on executors. A partition has all samples of its pairs and times, so shaping moves no row
between tasks. Only names of files leave the task.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from analytics.kernel.shape import shape
from analytics.schema import SAMPLES, Gap, fit
from analytics.sources.gaps import split
from analytics.tables import TableRoot
from analytics.tables.layout import HOUR, from_us, hour_of, to_us
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
    """Write a row of every series, also of those that the hour has: for hours to be replaced."""

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
            writer.facts["read_to_us"] = max(read_to, writer.facts.get("read_to_us", read_to))
        samples, gaps = split(samples)
        writer.write("gaps", gaps)
        for row in gaps.filter(pc.equal(gaps.column("reason"), str(Gap.UNSCRAPED))).to_pylist():
            lasted_us = to_us(row["to_ts"]) - to_us(row["from_ts"])
            writer.facts["unscraped_us"] = writer.facts.get("unscraped_us", 0) + lasted_us
        # Nothing more can be read of a time that was never scraped.
        known = pc.is_in(gaps.column("reason"), value_set=pa.array([Gap.DOWN, Gap.UNSCRAPED]))
        unread = gaps.filter(pc.invert(known))
        if unread.num_rows:
            writer.facts["unread"] = writer.facts.get("unread", []) + [
                [to_us(row["from_ts"]), to_us(row["to_ts"]), f"{row['reason']}: {row['detail']}"]
                for row in unread.to_pylist()
            ]
        writer.facts["samples"] = writer.facts.get("samples", 0) + samples.num_rows
        newest = pc.max(samples.column("ts").cast(pa.int64())).as_py()
        if newest is not None:
            writer.facts["newest_us"] = max(newest, writer.facts.get("newest_us", newest))
        shaped = shape(samples, self.period_s, counters=self.counters)
        if not self.all_series and not writer.skips("series"):
            shaped["series"] = unknown_in_hour(self.root, shaped["series"])
        for table in LANDED:
            if table in shaped:
                writer.write(table, shaped[table])
        for node, tick_us in newest_ticks(shaped["positions"]):
            writer.saw("positions", node, tick_us)


def unknown_in_hour(root: TableRoot, series: pa.Table) -> pa.Table:
    """Return the series that have no row yet in the hour of their last_seen. One row per series and
    hour is enough to resolve names; one per tick would be as large as the table of positions."""
    if not series.num_rows:
        return series
    last = series.column("last_seen").cast(pa.int64())
    low, high = pc.min(last).as_py(), pc.max(last).as_py()
    hour, mask = hour_of(from_us(low)), None
    while hour <= from_us(high):
        known = root.read("series", since=hour, before=hour + HOUR, columns=["series_id"])
        inside = pc.and_(pc.greater_equal(last, to_us(hour)), pc.less(last, to_us(hour + HOUR)))
        found = pc.and_(
            inside, pc.is_in(series.column("series_id"), value_set=known.column(0).combine_chunks())
        )
        mask = found if mask is None else pc.or_(mask, found)
        hour += HOUR
    return series.filter(pc.invert(mask))


def newest_ticks(positions: pa.Table) -> Collection[tuple[str, int]]:
    """The newest tick [microseconds] of each node that sent positions."""
    grouped = positions.group_by("replica").aggregate([("tick", "max")])
    ticks = grouped.column("tick_max").cast(pa.int64()).to_pylist()
    return list(zip(grouped.column("replica").to_pylist(), ticks, strict=True))
