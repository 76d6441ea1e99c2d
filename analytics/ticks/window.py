"""Input and output of the evaluation of one bucket: its window of rows, and its state files.

The state is one small file for each bucket and batch, named by its tick. A batch reads the state of
the tick before it and writes that of its last tick. A repeated batch reads the same and writes the
same bytes. Runs on executors; needs no Spark.
"""

from __future__ import annotations

import shutil
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analytics.kernel.rules import Rules
from analytics.kernel.window import Window
from analytics.moments import HOUR, hour_of, to_us
from analytics.schema import GAPS, OFFSET_EVENTS, SERIES, fit
from analytics.tables import TableRoot
from analytics.tables.files import write_whole

_KEPT: Final = 8  # newest states, kept for repeated batches
_OWN: Final = "evaluate"  # prefix of the names of evaluation's batches


def read_window(
    root: TableRoot, bucket: int, rules: Rules, after: datetime, until: datetime
) -> Window:
    """Everything that evaluate needs for the ticks in (after, until] of a bucket's pairs."""
    step = timedelta(microseconds=1)
    since = after - timedelta(seconds=rules.history_s) + step
    before = until + step
    of_bucket = [bucket]
    positions = root.read("positions", since=since, before=before, buckets=of_bucket)
    return Window(
        positions=positions,
        series=known_series(root, since, before, of_bucket),
        pairs=root.read("pairs", since=since, before=before, buckets=of_bucket),
        logs=root.read("logs", since=since, before=before),
        events=_collected_events(root, bucket, since, before),
        gaps=_gaps(root, since, before),
        replicas=root.read("replicas", since=since, before=before),
    )


def known_series(
    root: TableRoot, since: datetime, before: datetime, buckets: list[int] | None = None
) -> pa.Table:
    """One row for each series with rows in the hours from since to before.

    A series is written once per hour, at its first row. Whole hours are therefore read, and
    last_seen is exact to the hour.
    """
    rows = root.read("series", since=hour_of(since), before=hour_of(before) + HOUR, buckets=buckets)
    return merged_series(rows)


def merged_series(rows: pa.Table) -> pa.Table:
    """One row for each series, with the earliest first and the latest last row."""
    fixed = [name for name in SERIES.names if name not in ("first_seen", "last_seen")]
    grouped = rows.group_by(fixed, use_threads=False).aggregate(
        [("first_seen", "min"), ("last_seen", "max")]
    )
    return fit(grouped.rename_columns([*fixed, "first_seen", "last_seen"]), SERIES).sort_by(
        "series_id"
    )


def _collected_events(root: TableRoot, bucket: int, since: datetime, before: datetime) -> pa.Table:
    """Collected events, without those that evaluation found, which it finds again. With them, a
    repeated batch would differ from its first run."""
    files = root.files("offset_events", since=since, before=before, buckets=[bucket])
    found = [each for each in files if not each.batch.startswith(_OWN)]
    pieces = [root.rows_of(each, since=since, before=before) for each in found]
    rows = pa.concat_tables([OFFSET_EVENTS.empty_table(), *pieces])
    remainder = [int(pair) % root.buckets == bucket for pair in rows.column("pair_id").to_pylist()]
    return rows.filter(pa.array(remainder, pa.bool_()))


def _gaps(root: TableRoot, since: datetime, before: datetime) -> pa.Table:
    """Gaps that end in the window and begin in it or within an hour before it."""
    rows = root.read("gaps", since=since - HOUR, before=before, columns=GAPS.names)
    ends = rows.column("to_ts")
    reaches = pc.or_kleene(pc.is_null(ends), pc.greater_equal(ends, pa.scalar(since, ends.type)))
    return rows.filter(reaches)


def read_state(root: TableRoot, tick: datetime, bucket: int) -> pa.Table | None:
    """State of the bucket at the tick; None without a file."""
    try:
        return pq.read_table(_state_path(root, tick, bucket), partitioning=None)
    except FileNotFoundError:
        return None


def write_state(root: TableRoot, tick: datetime, bucket: int, state: pa.Table) -> None:
    """Write the state to a file; replaces one of the same tick."""
    write_whole(
        _state_path(root, tick, bucket),
        lambda out: pq.write_table(state, out, compression="zstd", use_dictionary=False),
    )


def forget_states(root: TableRoot, keep_since: datetime) -> None:
    """Remove old states: all but the newest, and the last of each hour since keep_since. `evaluate`
    over a range of hours begins with the last state of an hour."""
    ticks = sorted(int(path.name) for path in _states(root).glob("[0-9]*"))
    hour = HOUR // timedelta(microseconds=1)
    last_of_hour = {tick // hour: tick for tick in ticks}
    kept = set(ticks[-_KEPT:]) | {
        tick for tick in last_of_hour.values() if tick >= to_us(keep_since)
    }
    for tick in ticks:
        if tick not in kept:
            shutil.rmtree(_states(root) / str(tick), ignore_errors=True)


def _states(root: TableRoot) -> Path:
    return root.path / "_state" / "evaluate"


def _state_path(root: TableRoot, tick: datetime, bucket: int) -> Path:
    return _states(root) / str(to_us(tick)) / f"{bucket:03d}.parquet"
