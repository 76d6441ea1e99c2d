"""backfill: fills hours of the past from a server that still has their samples.

It fills whole hours without rows, and named hours even if they have rows. It reports how the new
rows differ from those that they replace, then switches each table once. Executors ask the server,
shape and write: samples never pass through the JVM. Next job: `evaluate --since … --before …`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import pyarrow as pa
from pyspark.sql import SparkSession

from analytics import runs
from analytics.errors import HourOpen, HourUnread
from analytics.jobs.differences import Difference, compare, comparisons
from analytics.jobs.landing import LANDED, Landing
from analytics.jobs.options import (
    MOMENT,
    landing_of,
    landing_options,
    range_options,
    spark_options,
    started,
    tables_option,
    whole_hours,
)
from analytics.moments import HOUR, HOUR_US, from_us, hour_of, steps, to_us
from analytics.schema import CODED_SAMPLES
from analytics.sources.prometheus.options import parse
from analytics.sources.prometheus.plan import Part
from analytics.sources.prometheus.reader import Reader
from analytics.tables import DataFile, TableRoot, spans_of
from analytics.tables.parts import Writer, Written, commit_all, run_parts, write_frame
from analytics.ticks.closed import waited_for
from shared.runtime.clock import SystemClock

PROMETHEUS: Final = "tidemark_prometheus"
CHUNK_HOURS: Final = 24
"""Hours in one batch: the rows of a batch become visible together."""
_SETTLE: Final = timedelta(minutes=2)
_MS: Final = timedelta(milliseconds=1)  # timestamps of samples are whole milliseconds


@dataclass(frozen=True, slots=True)
class BackfillOptions:
    """Settings of a backfill."""

    tables: str | Path
    since: datetime
    before: datetime
    source: str = PROMETHEUS
    """Or another Spark format that reads samples as a batch, with options start and end."""
    source_options: Mapping[str, str] = field(default_factory=dict)
    hours: frozenset[datetime] = frozenset()
    """Hours to fill although the tables have rows of them."""
    period_s: float = 15.0
    counters: tuple[str, ...] | None = ()
    buckets: int | None = None


class Filled(NamedTuple):
    """Result of a run."""

    hours: list[datetime]
    left: list[datetime]  # hours that already had rows
    samples: int
    rows: dict[str, int]  # by table
    differences: list[Difference]  # of hours that were replaced
    unscraped_s: float  # time without samples in the source


def wanted(
    since: datetime, before: datetime, there: Collection[datetime], named: Collection[datetime]
) -> list[datetime]:
    """Return the hours to fill: missing or named, in order. Pure."""
    return [hour for hour in steps(since, before) if hour not in there or hour in named]


def runs_of(hours: list[datetime]) -> Iterator[list[datetime]]:
    """Group consecutive hours into runs of at most CHUNK_HOURS. Pure."""
    piece: list[datetime] = []
    for hour in hours:
        if piece and (hour != piece[-1] + HOUR or len(piece) == CHUNK_HOURS):
            yield piece
            piece = []
        piece.append(hour)
    if piece:
        yield piece


def run(spark: SparkSession, options: BackfillOptions) -> Filled:
    """Fill the hours. Raises HourOpen if one of them is not over; HourUnread if the source lacks
    data of an hour that the tables have."""
    root = TableRoot.create(options.tables, buckets=options.buckets)
    since, before = whole_hours(options.since, options.before)
    there = root.hours("positions", since=since, before=before)
    hours = wanted(since, before, there, options.hours)
    _check_closed(root, hours, options.period_s)
    filled = Filled(
        hours, [h for h in sorted(there) if since <= h < before and h not in hours], 0, {}, [], 0.0
    )
    for chunk in runs_of(hours):
        with runs.run(root, "backfill") as noted:
            samples, written, differences = _fill(spark, root, options, chunk)
            noted.wrote(written.counts())
            for table, count in written.counts().items():
                filled.rows[table] = filled.rows.get(table, 0) + count
            noted.watermark(options.source.removeprefix("tidemark_"), chunk[-1] + HOUR)
            filled = filled._replace(
                samples=filled.samples + samples,
                differences=filled.differences + differences,
                unscraped_s=filled.unscraped_s
                + sum(fact.get("unscraped_us", 0) for fact in written.facts) / 1e6,
            )
    return filled


def _fill(
    spark: SparkSession, root: TableRoot, options: BackfillOptions, hours: list[datetime]
) -> tuple[int, Written, list[Difference]]:
    start, end = hours[0] - _MS, hours[-1] + HOUR - _MS  # sources read start < time <= end
    landing = Landing(root, options.period_s, options.counters, all_series=True)
    asked = {
        "context": "true",
        "interval": f"{options.period_s}s",
        **options.source_options,
        "start": start.isoformat(),
        "end": end.isoformat(),
    }
    if options.source == PROMETHEUS:
        reader = Reader(parse(asked))
        parts = reader.plan(to_us(start), to_us(end))
        written = run_parts(spark, root, "backfill", parts, partial(_fetch, reader, landing))
    else:
        samples = spark.read.format(options.source).options(**asked).load()
        written = write_frame(samples, root, "backfill", landing)
    old = [
        file
        for table in LANDED
        for file in root.files(table, since=hours[0], before=hours[-1] + HOUR)
    ]
    there = root.hours("positions", since=hours[0], before=hours[-1] + HOUR)
    replaced = there.intersection(hours)
    check_read(replaced, written)
    differences = _differences(spark, root, old, replaced, written)
    commit_all(root, "backfill", written, clears=dict.fromkeys(LANDED, spans_of(hours)))
    return sum(fact.get("samples", 0) for fact in written.facts), written, differences


def check_read(old: Collection[datetime], written: Written) -> None:
    """Refuse to replace rows by an incomplete answer. Pure. Raises HourUnread.

    A server that is down, or that keeps less than the tables, would otherwise delete rows that
    exist nowhere else. old: hours of which the tables have rows.
    """
    new = {hour for file in written.files.get("positions", ()) for hour in file.hours}
    unread = [each for fact in written.facts for each in fact.get("unread", ())]
    for hour in sorted(old):
        hour_us = to_us(hour)
        inside = [why for low, high, why in unread if low < hour_us + HOUR_US and high >= hour_us]
        if inside or hour_us not in new:
            raise HourUnread(
                f"{hour:%Y-%m-%dT%H}",
                why=f"left out a part of it ({inside[0]})" if inside else "has none of it",
            )


def _fetch(reader: Reader, landing: Landing, _: TableRoot, part: Part, writer: Writer) -> None:
    """Fetch, shape and write one part, on an executor."""
    batches = list(reader.read(part, CODED_SAMPLES))
    if batches:
        landing.land(pa.Table.from_batches(batches), writer)


def _differences(
    spark: SparkSession,
    root: TableRoot,
    old: Collection[DataFile],
    hours: Collection[datetime],
    written: Written,
) -> list[Difference]:
    """Compare the rows that will be replaced with the new ones, by table and hour. Only hours that
    had rows are compared."""
    new = [file for files in written.files.values() for file in files]
    tasks = comparisons(old, new, {to_us(hour) for hour in hours})
    counted = run_parts(spark, root, "differences", tasks, compare)
    sums: dict[tuple[str, str], dict[str, int]] = {}
    for fact in counted.facts:
        known = sums.setdefault((fact.pop("table"), fact.pop("hour")), dict.fromkeys(fact, 0))
        for name, count in fact.items():
            known[name] += count
    return [Difference(table, hour, **counts) for (table, hour), counts in sorted(sums.items())]


def _check_closed(root: TableRoot, hours: list[datetime], period_s: float) -> None:
    """Refuse an hour that is not over, or that a running collection is writing."""
    now = datetime.fromtimestamp(SystemClock().wall_ms() / 1000, UTC)
    closed = hour_of(now - _SETTLE)
    writing = _written_now(root, now, period_s)
    for hour in hours:
        if hour >= closed or (writing is not None and hour >= writing):
            until = closed if writing is None else min(closed, writing)
            raise HourOpen(f"{hour:%Y-%m-%dT%H}", closed_until=f"{until:%Y-%m-%dT%H:%M:%S}")


def _written_now(root: TableRoot, now: datetime, period_s: float) -> datetime | None:
    """Return the first hour that a running collection is writing; None if none runs. Of several
    collectors, the latest one writes the earliest hour."""
    known = runs.collectors(root)
    if not known.seen or not runs.is_running(root, "collect", now):
        return None
    read_to = waited_for(known, round(period_s * 1e6)).values()
    return hour_of(from_us(min([max(known.seen.values()), *read_to])))


@click.command("backfill")
@tables_option
@range_options(required=True)
@click.option("--hour", "hours", type=MOMENT, multiple=True, help="Replace this hour; repeatable.")
@click.option(
    "--source",
    default="prometheus",
    show_default=True,
    help="Where the samples are: prometheus, or a format that Spark reads samples from.",
)
@landing_options
@spark_options
def command(**given: Any) -> None:
    """Fill hours without rows and replace named hours; report what changed."""
    source = given["source"]
    options = BackfillOptions(
        tables=given["tables"],
        since=given["since"],
        before=given["before"],
        source=PROMETHEUS if source == "prometheus" else source,
        hours=frozenset(given["hours"]),
        **landing_of(given),
    )
    whole_hours(options.since, options.before)
    root = TableRoot.create(options.tables, buckets=options.buckets)
    done = run(started("tidemark backfill", given, root.buckets), options)
    for difference in done.differences:
        click.echo(str(difference))
    rows = ", ".join(f"{table} {count}" for table, count in sorted(done.rows.items()))
    click.echo(
        f"{len(done.hours)} hours filled from {done.samples} samples ({rows or 'no rows'}); "
        f"{len(done.left)} left as they were."
    )
    if done.unscraped_s:
        click.echo(
            f"The source scraped nothing in {done.unscraped_s / 60:.1f} minutes of them: what it "
            "scrapes with was down, or keeps less. The table gaps has the times (unscraped)."
        )
