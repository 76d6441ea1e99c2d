"""All pairs: number by status over time, and the present state of each.

There are two passes over ``pair_lag``: the whole time with three columns, and the last minutes with
all. Step before: ``analytics.tables``. Step after: ``gather`` chooses the pairs to show.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analytics.kernel import columns
from analytics.moments import from_us, to_us
from analytics.report.bins import bins_of, places, summed
from analytics.report.facts import Bins, Pair, Values
from analytics.schema import PAIR_LAG, Stage
from analytics.statuses import URGENT, Level, Status, row_of, severity
from analytics.tables import TableRoot

LOOK_BACK_TICKS: Final = 8
"""A pair is listed if it has a row within this number of ticks."""
SILENT_TICKS: Final = 3
"""A pair is unknown after this number of ticks without a row."""
ABOVE: Final = (Stage.APPEND, Stage.REPLICATION, Stage.DISPATCH)
"""Stages before messages are readable: a lag of 0 does not exclude them."""
_SAME: Final = (
    *("pair_id", "cluster", "broker", "group", "topic", "hidden_lag", "drain_method", "progress"),
    *("members", "queues", "lagging", "stuck", "unknown", "lost", "skew", "skew_kind"),
)
"""Fields of a pair that have the name of their column."""
_STAGE_COLUMNS: Final = ("tick", "pair_id", "blamed", "confidence", "detail")


class Overview(NamedTuple):
    """Summary of all pairs."""

    bins: Bins
    period_s: float | None
    newest: datetime | None
    known_share: float | None
    by_status: Mapping[str, Values]
    troubled: Mapping[int, int]
    """Number of rows with an urgent status, by pair."""
    late: frozenset[int]
    """Pairs that needed attention when they were last known, whatever their status is now."""
    pairs: list[Pair]
    """Last known state of all pairs, unordered."""


def overview(tables: TableRoot, start: datetime, end: datetime) -> Overview:
    """Read all pairs. Raises ValueError for an empty time."""
    by_tick: list[pa.Table] = []

    def noting() -> Iterator[pa.Table]:
        names = ["tick", "pair_id", "status", "age_max_seconds", "objective_seconds"]
        for piece in tables.scan("pair_lag", since=start, before=end, columns=names):
            by_tick.append(piece.group_by(["tick", "status"]).aggregate([([], "count_all")]))
            is_over = pc.greater(piece["age_max_seconds"], piece["objective_seconds"])
            yield piece.select(names[:3]).append_column("is_over", is_over)

    how = [("tick", "count"), ("tick", "min"), ("tick", "max")]
    seen = summed(noting(), ["pair_id", "status", "is_over"], how)
    if not by_tick:
        return Overview(bins_of(start, end, None), None, None, None, {}, {}, frozenset(), [])
    counted = (
        pa.concat_tables(by_tick)
        .group_by(["tick", "status"])
        .aggregate([("count_all", "sum")])
        .rename_columns(["tick", "status", "rows"])
    )
    ticks = np.unique(columns.micros(counted, "tick"))
    period_s = float(np.median(np.diff(ticks))) / 1e6 if len(ticks) > 1 else None
    bins = bins_of(start, end, period_s)
    newest = from_us(int(ticks[-1]))
    share = None
    if period_s is not None:
        share = min(1.0, len(ticks) / max(1.0, (end - start).total_seconds() / period_s))
    return Overview(
        bins,
        period_s,
        newest,
        share,
        _by_status(_with_unseen(counted, seen, ticks), ticks, bins),
        _troubled(seen),
        _late(seen),
        pairs_at(tables, newest, period_s or 15.0),
    )


def _with_unseen(counted: pa.Table, seen: pa.Table, ticks: Any) -> pa.Table:
    """Add pairs that exist before and after a tick but have no row of it; they are unknown then."""
    lives = seen.group_by("pair_id").aggregate([("tick_min", "min"), ("tick_max", "max")])
    born = np.searchsorted(np.sort(columns.micros(lives, "tick_min_min")), ticks, side="right")
    gone = np.searchsorted(np.sort(columns.micros(lives, "tick_max_max")), ticks, side="left")
    rows = np.zeros(len(ticks), dtype=np.int64)
    np.add.at(
        rows, np.searchsorted(ticks, columns.micros(counted, "tick")), np.asarray(counted["rows"])
    )
    unseen = born - gone - rows
    at = np.flatnonzero(unseen > 0)
    more = pa.table(
        {
            "tick": pa.array(ticks[at], counted.schema.field("tick").type),
            "status": pa.array([str(Status.UNKNOWN)] * at.size, pa.string()),
            "rows": pa.array(unseen[at], pa.int64()),
        }
    )
    known = counted.select(more.column_names)
    return pa.concat_tables([known, more.cast(known.schema)])


def _by_status(counted: pa.Table, ticks: Any, bins: Bins) -> dict[str, Values]:
    """Pairs by status and bin: the mean over the ticks of the bin."""
    first = to_us(bins.start)
    at, per_bin = np.unique((ticks - first) // round(bins.width_s * 1e6), return_counts=True)
    ticks_in = dict(zip(at.tolist(), per_bin.tolist(), strict=True))
    counted = counted.append_column("bin", places(counted, "tick", bins))
    sums = counted.group_by(["status", "bin"]).aggregate([("rows", "sum")])
    found: dict[str, list[float | None]] = {}
    for status, place, rows in zip(
        *(sums[name].to_pylist() for name in ("status", "bin", "rows_sum")), strict=True
    ):
        known = found.setdefault(
            status, [0.0 if each in ticks_in else None for each in range(bins.count)]
        )
        known[place] = rows / ticks_in[place]
    return {status: found[status] for status in sorted(found, key=severity)}


def _troubled(seen: pa.Table) -> dict[int, int]:
    found: dict[int, int] = {}
    for pair, status, rows in zip(
        *(seen[name].to_pylist() for name in ("pair_id", "status", "tick_count")), strict=True
    ):
        if row_of(status).level in URGENT:
            found[pair] = found.get(pair, 0) + rows
    return found


def _late(seen: pa.Table) -> frozenset[int]:
    """Pairs that needed attention at their last known row: by the status, or for an unknown status
    by an age above the objective."""
    last: dict[int, tuple[datetime, bool]] = {}
    for row in seen.to_pylist():
        is_known = row_of(row["status"]).is_known
        if not is_known and row["is_over"] is None:
            continue
        is_late = row_of(row["status"]).level in URGENT if is_known else row["is_over"]
        at, pair = row["tick_max"], row["pair_id"]
        if pair not in last or last[pair][0] < at:
            last[pair] = (at, is_late)
    return frozenset(pair for pair, (_, is_late) in last.items() if is_late)


def pairs_at(tables: TableRoot, newest: datetime, period_s: float) -> list[Pair]:
    """Return the last known state of all pairs, unordered. newest: the newest tick of any pair."""
    since = newest - timedelta(seconds=period_s * LOOK_BACK_TICKS)
    until = newest + timedelta(microseconds=1)
    rows = latest(
        tables.read("pair_lag", since=since, before=until, columns=PAIR_LAG.names), "pair_id"
    )
    stages = latest(
        tables.read("stages", since=since, before=until, columns=_STAGE_COLUMNS), "pair_id"
    )
    blame = {row["pair_id"]: row for row in stages.to_pylist()}
    silent = newest - timedelta(seconds=period_s * SILENT_TICKS)
    return [_pair(row, blame.get(row["pair_id"], {}), silent) for row in rows.to_pylist()]


def latest(rows: pa.Table, key: str) -> pa.Table:
    """The newest row of each key, by tick."""
    last = columns.last_of(columns.ints(rows, key), columns.micros(rows, "tick"))
    return rows.take(pa.array(last))


def is_hidden(row: Mapping[str, Any], blame: Mapping[str, Any]) -> bool:
    """Whether a pair has read all readable messages while more are stored and not readable yet."""
    return (
        row["status"] == Status.OK
        and bool(row["hidden_lag"])
        and blame.get("blamed") in [str(stage) for stage in ABOVE]
    )


def _pair(row: Mapping[str, Any], blame: Mapping[str, Any], silent: datetime) -> Pair:
    status, since, cause = row["status"], row["status_since"], row["cause"] or ""
    if row["tick"] < silent:
        status, since = str(Status.UNKNOWN), row["tick"]
        cause = "nothing was heard of it since"
    of = row_of(status).level
    if is_hidden(row, blame):
        of = Level.TICKET
        cause = (
            f"all that can be read is read, but about {row['hidden_lag']:,} stored messages "
            "cannot be read yet"
        )
    return Pair(
        **{name: row[name] for name in _SAME},
        status=status,
        level=of,
        since=since,
        seen=row["tick"],
        cause=cause,
        age_s=row["age_max_seconds"] if of != Level.UNKNOWN else None,
        objective_s=row["objective_seconds"],
        lag=row["lag_sum"] if of != Level.UNKNOWN else None,
        drain_p10_s=row["drain_p10_seconds"],
        drain_p50_s=row["drain_p50_seconds"],
        drain_p90_s=row["drain_p90_seconds"],
        produce_per_s=row["produce_per_second"],
        consume_per_s=row["consume_per_second"],
        blamed=blame.get("blamed"),
        blamed_share=blame.get("confidence"),
        blamed_detail=blame.get("detail"),
    )
