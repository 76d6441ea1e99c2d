"""Ticks rolled up into time buckets, and finer buckets into coarser ones
(docs/analytics-methods.md, "Roll-ups"). Pure.

There is one row per series and bucket, and one per pair (series_id null). Step before: the tables
of evaluation. Step after: capacity, forecasts, anomalies and the report.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analytics.kernel import columns
from analytics.kernel.balance import Books, books
from analytics.kernel.columns import SECOND, Bools, Floats, Groups, Ints
from analytics.kernel.status_time import status_columns, status_seconds, stored_seconds
from analytics.moments import to_us
from analytics.schema import ROLLUP, fit

MINUTE, QUARTER, DAY = 60, 900, 86_400
LAGS: Final = ("lag_first", "lag_last", "lag_min", "lag_max", "lag_mean")
AGES: Final = ("age_min_seconds", "age_max_seconds", "age_mean_seconds")
FLOWS: Final = ("produced", "consumed", "skipped", "imbalance")


def rollup(
    lag: pa.Table,
    rates: pa.Table,
    pair_lag: pa.Table,
    events: pa.Table,
    *,
    grain_s: int,
    period_s: float,
    since: datetime,
    before: datetime,
) -> pa.Table:
    """Roll up ticks into buckets of grain_s [seconds], since <= tick < before.

    lag, rates, pair_lag, events: rows of LAG, RATES, PAIR_LAG and OFFSET_EVENTS. lag should begin
    some ticks before `since`, so that the first step of each series can be balanced. period_s: time
    between ticks. since and before should be multiples of the grain. Returns rows of ROLLUP, by
    bucket, pair and series; the pair's row is the first.
    """
    ranged = (to_us(since), to_us(before))
    book = books(lag, rates, events)
    series = _of_ticks(
        lag, book, ("series_id", "pair_id"), ("lag", "age_seconds"), ranged, grain_s, period_s
    )
    pairs = _of_ticks(
        pair_lag, None, ("pair_id",), ("lag_sum", "age_max_seconds"), ranged, grain_s, period_s
    )
    whole = pa.concat_tables([_with_flows(pairs, series), series])
    in_order = columns.grouped(columns.micros(whole, "bucket_start"), *_owners(whole)).order
    return whole.take(pa.array(in_order))


def merge(rows: pa.Table, *, grain_s: int) -> pa.Table:
    """Merge rows of one finer grain into rows of ROLLUP of a coarser one. Raises ValueError if the
    rows have two grains."""
    if rows.num_rows == 0:
        return ROLLUP.empty_table()
    if pc.count_distinct(rows.column("grain_seconds")).as_py() != 1:
        raise ValueError("rows of two grains cannot be merged: both count the same ticks")
    rows = rows.sort_by("bucket_start")
    bucket = columns.micros(rows, "bucket_start") // (grain_s * SECOND)
    groups = columns.grouped(bucket, *_owners(rows))
    order = groups.order
    ticks = columns.floats(rows, "ticks")[order]
    head = rows.take(pa.array(order[groups.starts]))
    seconds = np.add.reduceat(stored_seconds(rows)[order], groups.starts)

    def of(name: str) -> Floats:
        return columns.floats(rows, name)[order]

    made = {
        "bucket_start": columns.times(bucket[order][groups.starts] * grain_s * SECOND),
        "grain_seconds": pa.array(np.full(groups.starts.size, grain_s, dtype=np.int32)),
        "series_id": head.column("series_id"),
        "pair_id": head.column("pair_id"),
        "ticks": columns.nullable(np.add.reduceat(ticks, groups.starts), pa.int32()),
        **_measures(groups, ticks, [of(name) for name in LAGS], [of(name) for name in AGES]),
        **{name: columns.nullable(_sum(of(name), groups), pa.int64()) for name in FLOWS},
        "rate_seconds": columns.nullable(_sum(of("rate_seconds"), groups)),
        "members": columns.nullable(np.fmax.reduceat(of("members"), groups.starts), pa.int64()),
        "queues": columns.nullable(np.fmax.reduceat(of("queues"), groups.starts), pa.int32()),
        **status_columns(seconds),
    }
    return fit(pa.table(made), ROLLUP)


def _of_ticks(
    table: pa.Table,
    book: Books | None,
    keys: tuple[str, ...],
    measures: tuple[str, str],
    ranged: tuple[int, int],
    grain_s: int,
    period_s: float,
) -> pa.Table:
    """Rows of ROLLUP of the ticks in range, per bucket and key."""
    flows = _flows(table.num_rows, book)
    tick = columns.micros(table, "tick")
    inside = np.flatnonzero((tick >= ranged[0]) & (tick < ranged[1]))
    if inside.size == 0:
        return ROLLUP.empty_table()
    table = table.take(pa.array(inside))
    tick = tick[inside]
    bucket = tick // (grain_s * SECOND)
    by_time = np.argsort(tick, kind="stable")
    groups = columns.grouped(
        *(key[by_time] for key in (bucket, *(columns.ints(table, name) for name in keys)))
    )
    order = by_time[groups.order]
    starts = groups.starts
    head = table.take(pa.array(order[starts]))
    lag, age = (columns.floats(table, name)[order] for name in measures)
    made = {
        "bucket_start": columns.times(bucket[order][starts] * grain_s * SECOND),
        "grain_seconds": pa.array(np.full(starts.size, grain_s, dtype=np.int32)),
        "pair_id": head.column("pair_id"),
        "ticks": pa.array(groups.sizes.astype(np.int32)),
        **_measures(groups, np.ones(lag.size), [lag] * len(LAGS), [age] * len(AGES)),
        **status_columns(status_seconds(table, order, groups, period_s)),
    }
    if "series_id" in keys:
        made["series_id"] = head.column("series_id")
        for name, values in flows.items():
            kind = pa.float64() if name == "rate_seconds" else pa.int64()
            made[name] = columns.nullable(_sum(values[inside][order], groups), kind)
    else:
        for name, kind in (("members", pa.int64()), ("queues", pa.int32())):
            most = np.fmax.reduceat(columns.floats(table, name)[order], starts)
            made[name] = columns.nullable(most, kind)
    return fit(pa.table(made), ROLLUP)


def _measures(
    groups: Groups, weights: Floats, lags: list[Floats], ages: list[Floats]
) -> dict[str, pa.Array]:
    """The columns LAGS and AGES of each group, from the values that each is made of."""
    first, last, least, most, mean = lags
    starts, whole = groups.starts, pa.int64()
    columns_of_lag = (
        _edge(first, groups, last=False),
        _edge(last, groups, last=True),
        columns.nullable(np.fmin.reduceat(least, starts), whole),
        columns.nullable(np.fmax.reduceat(most, starts), whole),
        columns.nullable(_mean(mean, weights, groups)),
    )
    columns_of_age = (
        columns.nullable(np.fmin.reduceat(ages[0], starts)),
        columns.nullable(np.fmax.reduceat(ages[1], starts)),
        columns.nullable(_mean(ages[2], weights, groups)),
    )
    return dict(zip((*LAGS, *AGES), (*columns_of_lag, *columns_of_age), strict=True))


def _flows(size: int, book: Books | None) -> dict[str, Floats]:
    """Return the values of `balance` in the order of the table's rows."""
    if book is None:
        return {}
    laid = {}
    for name in (*FLOWS, "seconds"):
        laid[name] = np.full(size, np.nan)
        laid[name][book.row] = getattr(book, name)
    return {name: laid[name] for name in FLOWS} | {"rate_seconds": laid["seconds"]}


def _with_flows(pairs: pa.Table, series: pa.Table) -> pa.Table:
    """Rows of pairs with the sums of their series; the covered time is the longest of a series."""
    if pairs.num_rows == 0 or series.num_rows == 0:
        return pairs
    bucket, pair = columns.micros(series, "bucket_start"), columns.ints(series, "pair_id")
    groups = columns.grouped(bucket, pair)
    keys = pa.table(
        {
            "bucket_start": columns.times(bucket[groups.order][groups.starts]),
            "pair_id": pair[groups.order][groups.starts],
            **{
                name: columns.nullable(
                    _sum(columns.floats(series, name)[groups.order], groups), pa.int64()
                )
                for name in FLOWS
            },
            "rate_seconds": columns.nullable(
                np.fmax.reduceat(
                    columns.floats(series, "rate_seconds")[groups.order], groups.starts
                )
            ),
        }
    )
    bare = pairs.drop_columns([*FLOWS, "rate_seconds"])
    joined = bare.join(keys, ["bucket_start", "pair_id"], join_type="left outer")
    return joined.select(ROLLUP.names).cast(ROLLUP)


def _owners(rows: pa.Table) -> tuple[Ints, Ints, Ints]:
    """Return the sort keys (pair, whether it is a series, series): the row of a pair precedes those
    of its series."""
    of_series = np.asarray(pc.is_valid(rows.column("series_id")).to_numpy(), dtype=np.int64)
    series = np.asarray(pc.fill_null(rows.column("series_id"), 0).to_numpy(), dtype=np.int64)
    return columns.ints(rows, "pair_id"), of_series, series


def _edge(values: Floats, groups: Groups, *, last: bool) -> pa.Array:
    """The first or last known value of each group, as whole messages."""
    known: Bools = ~np.isnan(values)
    place = np.arange(values.size)
    if last:
        at = np.maximum.reduceat(np.where(known, place, -1), groups.starts)
    else:
        at = np.minimum.reduceat(np.where(known, place, values.size), groups.starts)
    there = (at >= 0) & (at < values.size)
    found = np.where(there, values[np.clip(at, 0, values.size - 1)], np.nan)
    return columns.nullable(found, pa.int64())


def _mean(values: Floats, weights: Floats, groups: Groups) -> Floats:
    """Mean of the known values of each group; NaN without any."""
    known: Bools = ~np.isnan(values)
    weight = np.add.reduceat(np.where(known, weights, 0.0), groups.starts)
    total = np.add.reduceat(np.where(known, values * weights, 0.0), groups.starts)
    return np.where(weight > 0, total / np.where(weight > 0, weight, 1.0), np.nan)


def _sum(values: Floats, groups: Groups) -> Floats:
    """Sum of the known values of each group; NaN without any."""
    known: Bools = ~np.isnan(values)
    total = np.add.reduceat(np.where(known, values, 0.0), groups.starts)
    return np.where(np.logical_or.reduceat(known, groups.starts), total, np.nan)
