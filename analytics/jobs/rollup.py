"""rollup: sums ticks up by minute, quarter of an hour and day, and balances each series.

One task per bucket and day reads the ticks of its own pairs and writes their roll-ups, so no row
moves between tasks. Only whole time buckets are written: a minute after its last tick was
evaluated, a day after its last minute. The next run writes the open hour again, and all hours from
the first tick on that was evaluated again meanwhile. Step before: `evaluate`. Step after:
`forecast`, `report`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from analytics import runs
from analytics.jobs.options import (
    range_options,
    spark_options,
    started,
    tables_option,
    whole_hours,
)
from analytics.kernel.rollup import DAY, MINUTE, QUARTER, merge, rollup
from analytics.moments import HOUR, from_us, hour_of, steps, to_us
from analytics.schema import ROLLUP
from analytics.tables import TableRoot, spans_of
from analytics.tables.parts import Writer, commit_all, run_parts

BACK: Final = timedelta(minutes=15)
"""A task also reads this time before its range, for the first step of each series."""
PERIOD_S: Final = 15.0
"""Assumed time between ticks if there are too few to measure it."""
CLOCKS_APART: Final = timedelta(minutes=10)
"""A run of `evaluate` may be noted this much before the time at which it became visible here."""
_ONE_DAY: Final = timedelta(days=1)
_ONE_MINUTE: Final = timedelta(minutes=1)


class Task(NamedTuple):
    """One bucket's part of a day: roll up [since, before), and also the whole day if it has
    ended."""

    bucket: int
    since: datetime
    before: datetime
    day_over: bool


class Plan(NamedTuple):
    """The tasks of one run; [since, before) is its input range."""

    since: datetime
    before: datetime
    tasks: Sequence[Task]
    hours: Sequence[datetime]  # of the table ROLLUP, replaced by this run


def plan(since: datetime, before: datetime, buckets: int) -> Plan:
    """Cut a range into tasks, by day and bucket. since: a whole hour; before: a whole minute.

    The row of a day lies in the first hour of the day. When the day is over, that hour is written
    again; its finer rows are copied if the range does not include them.
    """
    tasks, hours = [], {hour for hour in steps(hour_of(since), before, HOUR)}
    for day in steps(_day_of(since), before, _ONE_DAY):
        over = day + _ONE_DAY <= before
        if over:
            hours.add(day)
        begin, end = max(day, since), min(day + _ONE_DAY, before)
        tasks += [Task(bucket, begin, end, over) for bucket in range(buckets)]
    return Plan(since, before, tasks, sorted(hours))


def roll_up(period_s: float, root: TableRoot, task: Task, writer: Writer) -> None:
    """Read, roll up and write, an hour at a time to bound memory; on an executor."""
    quarters = []
    for hour in steps(hour_of(task.since), task.before):
        end = min(hour + HOUR, task.before)
        tables = [
            _of_bucket(root, name, task.bucket, hour - BACK, end)
            for name in ("lag", "rates", "pair_lag", "offset_events")
        ]
        minutes = rollup(*tables, grain_s=MINUTE, period_s=period_s, since=hour, before=end)
        whole = _before(merge(minutes, grain_s=QUARTER), end, QUARTER)
        quarters.append(whole)
        writer.write("rollup", pa.concat_tables([minutes, whole]))
    if task.day_over:
        _roll_day(root, task, pa.concat_tables(quarters), writer)


def _roll_day(root: TableRoot, task: Task, quarters: pa.Table, writer: Writer) -> None:
    """Write the day's rows from its quarters: new ones and those of earlier runs."""
    day = _day_of(task.since)
    earlier = _of_bucket(root, "rollup", task.bucket, day, task.since)
    earlier = earlier.filter(pc.less(earlier.column("grain_seconds"), DAY))
    first_hour = pc.less(earlier.column("bucket_start"), pa.scalar(day + HOUR))
    writer.write("rollup", earlier.filter(first_hour))
    of_day = pc.equal(earlier.column("grain_seconds"), QUARTER)
    whole = pa.concat_tables([earlier.filter(of_day), quarters])
    writer.write("rollup", merge(whole, grain_s=DAY))


def run(
    spark: SparkSession,
    tables: str | Path,
    since: datetime | None = None,
    before: datetime | None = None,
    period_s: float | None = None,
) -> Plan | None:
    """Roll up what is new or was evaluated again, or a range of whole hours; None if there is
    nothing to do. The same range of the same tables gives the same rows and replaces the previous
    ones.
    period_s: time between ticks; None: measured from the newest ticks."""
    root, began = TableRoot(tables), datetime.now(UTC)
    period = period_s or period_of(root)
    wanted = _range(root, since, before, period)
    if wanted is None:
        return None
    todo = plan(*wanted, root.buckets)
    with runs.run(root, "rollup") as noted:
        written = run_parts(spark, root, "rollup", todo.tasks, partial(roll_up, period))
        commit_all(
            root,
            "rollup",
            written,
            clears={"rollup": spans_of(todo.hours)},
            watermarks={"rollup": todo.before},
        )
        noted.wrote(written.counts())
        noted.watermark("lag", todo.before)
        if since is None and before is None:
            noted.read_to(began)
    return todo


def period_of(root: TableRoot) -> float:
    """Seconds between ticks, from the newest ticks of evaluation; 15 if there are too few."""
    newest = root.watermark("lag")
    if newest is None:
        return PERIOD_S
    since = newest - timedelta(minutes=20)
    ticks = root.read("pair_lag", since=since, columns=["tick"]).column("tick")
    distinct = np.unique(ticks.cast(pa.int64()).to_numpy())
    if distinct.size < 2:
        return PERIOD_S
    return math.gcd(*np.diff(distinct).tolist()) / 1e6


def _range(
    root: TableRoot, since: datetime | None, before: datetime | None, period_s: float
) -> tuple[datetime, datetime] | None:
    newest, span = root.watermark("lag"), root.span("pair_lag")
    if newest is None or span is None:
        return None
    # A tick at the end of a minute belongs to the next one; ticks up to `newest` are evaluated.
    until = to_us(newest + timedelta(seconds=period_s))
    evaluated = from_us(until - until % to_us(from_us(0) + _ONE_MINUTE))
    if since is not None or before is not None:
        begin, end = whole_hours(since, before)
    else:
        done = root.watermark("rollup")
        begin, end = hour_of(span[0] if done is None else _changed_from(root, done)), evaluated
    end = min(end, evaluated)
    return (begin, end) if begin < end else None


def _changed_from(root: TableRoot, done: datetime) -> datetime:
    """Return the time from which results changed since the last run, which rolled up to `done`."""
    read = runs.read_to(root, "rollup")
    revised = runs.revised_from(root, None if read is None else read - CLOCKS_APART)
    if revised is None:
        return done
    # Hours that are not in `lag` any more keep the roll-up that they have.
    span = root.span("lag")
    return min(done, revised if span is None else max(revised, span[0]))


def _of_bucket(
    root: TableRoot, table: str, bucket: int, since: datetime, before: datetime
) -> pa.Table:
    """Rows of one bucket."""
    return root.read(table, since=since, before=before, buckets=[bucket])


def _before(rows: pa.Table, end: datetime, grain_s: int) -> pa.Table:
    """Keep only the rows of time buckets that end by `end`."""
    last = pa.scalar(end - timedelta(seconds=grain_s), ROLLUP.field("bucket_start").type)
    return rows.filter(pc.less_equal(rows.column("bucket_start"), last))


def _day_of(moment: datetime) -> datetime:
    return from_us(to_us(moment) // to_us(from_us(0) + _ONE_DAY) * to_us(from_us(0) + _ONE_DAY))


@click.command("rollup")
@tables_option
@range_options(required=False)
@click.option("--period", "period_s", type=float, help="Seconds between ticks; default: measured.")
@spark_options
def command(**given: Any) -> None:
    """Roll up ticks by minute, quarter and day: what is new, or whole hours of a range."""
    spark = started("tidemark rollup", given, TableRoot(given["tables"]).buckets)
    done = run(spark, given["tables"], given["since"], given["before"], given["period_s"])
    if done is None:
        click.echo("Nothing to roll up: no whole minute is evaluated.")
        return
    click.echo(f"Rolled up {done.since:%Y-%m-%dT%H:%M} to {done.before:%Y-%m-%dT%H:%M}.")
