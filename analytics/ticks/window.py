"""Input and output of the evaluation of one bucket: its window of rows, and its state files.

The state is one small file for each bucket and batch, named by its tick. A batch reads the state of
the tick before it and writes that of its last tick. A repeated batch reads the same and writes the
same bytes. Runs on executors; needs no Spark.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analytics.kernel.rules import Rules
from analytics.kernel.window import Window
from analytics.moments import HOUR, HOUR_US, from_us, hour_of, to_us
from analytics.schema import GAPS, OFFSET_EVENTS, SERIES, fit
from analytics.tables import TableRoot
from analytics.tables.recent import read_recent

_KEPT: Final = 8  # newest states, kept for repeated batches
_STATES: Final = "_state/evaluate"
KEEP_STATES: Final = timedelta(days=3)
"""How long the last state of each hour is kept."""


def read_window(
    root: TableRoot, bucket: int, rules: Rules, after: datetime, until: datetime
) -> Window:
    """Everything that evaluate needs for the ticks in (after, until] of a bucket's pairs."""
    step = timedelta(microseconds=1)
    since = after - timedelta(seconds=rules.history_s) + step
    before = until + step
    of_bucket = [bucket]
    return Window(
        positions=read_recent(root, "positions", since, before, of_bucket),
        series=known_series(root, since, before, of_bucket),
        pairs=read_recent(root, "pairs", since, before, of_bucket),
        logs=read_recent(root, "logs", since, before),
        events=OFFSET_EVENTS.empty_table(),  # no source reports them; evaluation finds them
        gaps=_gaps(root, since, before),
        replicas=read_recent(root, "replicas", since, before),
    )


def known_series(
    root: TableRoot, since: datetime, before: datetime, buckets: list[int] | None = None
) -> pa.Table:
    """One row for each series with rows in the hours from since to before.

    A series is written once per hour, at its first row. Whole hours are therefore read, and
    last_seen is exact to the hour.
    """
    begin, end = hour_of(since), hour_of(before) + HOUR
    return merged_series(read_recent(root, "series", begin, end, buckets))


def merged_series(rows: pa.Table) -> pa.Table:
    """One row for each series, with the earliest first and the latest last row."""
    fixed = [name for name in SERIES.names if name not in ("first_seen", "last_seen")]
    grouped = rows.group_by(fixed, use_threads=False).aggregate(
        [("first_seen", "min"), ("last_seen", "max")]
    )
    return fit(grouped.rename_columns([*fixed, "first_seen", "last_seen"]), SERIES).sort_by(
        "series_id"
    )


def _gaps(root: TableRoot, since: datetime, before: datetime) -> pa.Table:
    """Gaps that end in the window and begin in it or within an hour before it."""
    rows = root.read("gaps", since=since - HOUR, before=before, columns=GAPS.names)
    ends = rows.column("to_ts")
    reaches = pc.or_kleene(pc.is_null(ends), pc.greater_equal(ends, pa.scalar(since, ends.type)))
    return rows.filter(reaches)


def read_state(root: TableRoot, tick: datetime, bucket: int) -> pa.Table | None:
    """State of the bucket at the tick; None without a file."""
    content = root.location.read(_state_name(tick, bucket))
    return None if content is None else pq.read_table(pa.BufferReader(content))


def state_ticks(root: TableRoot, bucket: int) -> list[datetime]:
    """Return the ticks of the bucket's state files, in order."""
    names = (name.split("/")[-2:] for name in root.location.names(_STATES))
    return sorted(
        from_us(int(tick))
        for tick, file in names
        if tick.isdigit() and file == f"{bucket:03d}.parquet"
    )


def write_state(root: TableRoot, tick: datetime, bucket: int, state: pa.Table) -> None:
    """Write the state to a file; replaces one of the same tick."""
    root.location.put(
        _state_name(tick, bucket),
        lambda out: pq.write_table(state, out, compression="zstd", use_dictionary=False),
    )


def forget_states(root: TableRoot, newest: datetime) -> None:
    """Remove old states: all but the newest, and the last of each hour for KEEP_STATES. `evaluate`
    over a range of hours begins with the last state of an hour."""
    keep_since = newest - KEEP_STATES
    of_tick: dict[int, list[str]] = {}
    for name in root.location.names(_STATES):
        directory = name.split("/")[-2]
        if directory.isdigit():
            of_tick.setdefault(int(directory), []).append(name)
    ticks = sorted(of_tick)
    last_of_hour = {tick // HOUR_US: tick for tick in ticks}
    kept = set(ticks[-_KEPT:]) | {
        tick for tick in last_of_hour.values() if tick >= to_us(keep_since)
    }
    for tick in ticks:
        if tick not in kept:
            for name in of_tick[tick]:
                root.location.remove(name)


def _state_name(tick: datetime, bucket: int) -> str:
    return f"{_STATES}/{to_us(tick)}/{bucket:03d}.parquet"
