"""forecast: predicts traffic, capacity of groups and full volumes, and finds anomalies.

There is one task per bucket for its pairs, one for the volumes and one for anomalies. All results
are as of the newest whole minute that is rolled up. This minute and the history before it are the
input range, so a repeated run writes the same rows. Step before: `rollup`. Step after: `report`,
`export`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
from pyspark.sql import SparkSession

from analytics import runs
from analytics.jobs.foreseen_disks import foresee_disks
from analytics.jobs.foreseen_pairs import foresee_pairs
from analytics.jobs.options import MOMENT, spark_options, started, tables_option
from analytics.jobs.unusual import find_unusual
from analytics.moments import hour_of, steps
from analytics.tables import TableRoot, spans_of
from analytics.tables.parts import Writer, commit_all, run_parts

LOOK_BACK: Final = timedelta(days=1)
"""How far back a run searches for anomalies if it is the first, or follows a long pause."""


class Plan(NamedTuple):
    """Work of one run."""

    issued_at: datetime
    since: datetime  # anomalies are searched from here to issued_at
    tasks: Sequence[tuple[str, int]]
    hours: Mapping[str, Sequence[datetime]]  # by table, whole hours that are replaced


def plan(issued_at: datetime, last: datetime | None, buckets: int) -> Plan:
    """Return the tasks of one run. last: time of the previous run, if any."""
    earliest = hour_of(issued_at - LOOK_BACK)
    since = earliest if last is None else max(hour_of(min(last, issued_at)), earliest)
    day = issued_at.replace(hour=0, minute=0, second=0, microsecond=0)
    return Plan(
        issued_at,
        since,
        [*(("pairs", bucket) for bucket in range(buckets)), ("disks", 0), ("unusual", 0)],
        {
            "forecasts": [hour_of(issued_at)],
            "capacity": [day],
            "anomalies": steps(since, issued_at),
        },
    )


def foresee(
    issued_at: datetime, since: datetime, root: TableRoot, task: tuple[str, int], writer: Writer
) -> None:
    """Do one task, on an executor."""
    match task:
        case ("pairs", bucket):
            foresee_pairs(root, bucket, issued_at, writer)
        case ("disks", _):
            foresee_disks(root, issued_at, writer)
        case _:
            find_unusual(root, since, issued_at, writer)


def run(spark: SparkSession, tables: str | Path, issued_at: datetime | None = None) -> Plan | None:
    """Forecast as of the newest minute rolled up, or of a time; None without roll-ups. Only the
    history before that time is used."""
    root = TableRoot(tables)
    newest = root.watermark("rollup")
    if newest is None:
        return None
    # A minute's begin is also a tick, so the forecast uses the last tick that was evaluated.
    evaluated = root.watermark("lag") or newest
    issued_at = (issued_at or min(newest, evaluated)).replace(second=0, microsecond=0)
    todo = plan(issued_at, root.watermark("anomalies"), root.buckets)
    with runs.run(root, "forecast") as noted:
        written = run_parts(
            spark, root, "forecast", todo.tasks, partial(foresee, todo.issued_at, todo.since)
        )
        commit_all(
            root,
            "forecast",
            written,
            clears={table: spans_of(hours) for table, hours in todo.hours.items()},
            watermarks=dict.fromkeys(todo.hours, issued_at),
        )
        noted.wrote(dict.fromkeys(todo.hours, 0) | written.counts())
        noted.watermark("rollup", todo.issued_at)
    return todo


@click.command("forecast")
@tables_option
@click.option("--as-of", "issued_at", type=MOMENT, help="Default: the newest roll-up.")
@spark_options
def command(**given: Any) -> None:
    """Forecast traffic, ages and volumes; find anomalies."""
    spark = started("tidemark forecast", given, TableRoot(given["tables"]).buckets)
    done = run(spark, given["tables"], given["issued_at"])
    if done is None:
        click.echo("Nothing to forecast from: no ticks are rolled up yet.")
        return
    click.echo(f"Forecasts of {done.issued_at:%Y-%m-%dT%H:%M}, where there is history enough.")
