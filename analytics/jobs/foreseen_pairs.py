"""Forecasts traffic, capacity and age of the pairs of one bucket. Runs on executors.

A part of `forecast`: it reads the roll-ups of the pairs, calls the kernel on matrices of [pair ×
time], and makes rows of FORECASTS and CAPACITY.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analytics.kernel import columns
from analytics.kernel.capacity import capacity, limited_by
from analytics.kernel.columns import SECOND, Floats, Ints
from analytics.kernel.forecast import MODELS, NONE, Forecast, forecast
from analytics.kernel.race import HOUR_S, expected_ages, time_to_limit
from analytics.kernel.rollup import MINUTE, QUARTER
from analytics.moments import HOUR, hour_of, to_us
from analytics.schema import CAPACITY, FORECASTS, fit
from analytics.tables import TableRoot
from analytics.tables.parts import Writer

HISTORY: Final = timedelta(weeks=4, days=7)
"""Four weeks for the model, and one week before them for the back test."""
BUSY: Final = timedelta(days=7)
HORIZON: Final = 24  # hours
HOURS_MIN: Final = 6  # hours with known values that a forecast needs
AT_A_TIME: Final = 256  # pairs whose matrices are in memory at once
_NAMES: Final = ("cluster", "broker", "group", "topic")


class Pairs(NamedTuple):
    """The bucket's pairs by id, with their newest rows."""

    ids: Ints
    rows: pa.Table  # of pair_lag, the newest of each
    retention: Floats  # age of the oldest message of the pair's log [s]; NaN unknown

    def subject(self, at: int) -> str:
        """Return the name of the pair in the table of forecasts."""
        row = self.rows.select(_NAMES).slice(at, 1).to_pylist()[0]
        return " ".join(f"{name}={row[name]}" for name in _NAMES)


def foresee_pairs(root: TableRoot, bucket: int, issued_at: datetime, writer: Writer) -> None:
    """Write forecasts and capacity of a bucket's pairs, as of issued_at."""
    pairs = _pairs(root, bucket, issued_at)
    for first in range(0, pairs.ids.size, AT_A_TIME):
        chosen = slice(first, first + AT_A_TIME)
        part = Pairs(pairs.ids[chosen], pairs.rows.slice(first, AT_A_TIME), pairs.retention[chosen])
        _foresee(root, bucket, part, issued_at, writer)


def _foresee(
    root: TableRoot, bucket: int, pairs: Pairs, issued_at: datetime, writer: Writer
) -> None:
    until = hour_of(issued_at)
    history = _hourly(root, bucket, pairs.ids, until)
    known = (~np.isnan(history)).sum(axis=1) >= HOURS_MIN
    found = forecast(np.where(known[:, None], history, np.nan), HORIZON + 1)
    busy = _minutes(root, bucket, pairs.ids, issued_at)
    able = capacity(busy.consumed, busy.produced, busy.ready, busy.members)
    queues = columns.floats(pairs.rows, "queues")
    produced, aged, held = [], [], []
    for at in range(pairs.ids.size):
        most, least = float(able.c_max[at]), float(able.c_max_low[at])
        if found.model[at] != NONE:
            produced.append(_produce_rows(pairs, at, found, most, until, issued_at))
            if not math.isnan(most):
                row = history[at]
                aged.append(_age_rows(pairs, at, row, found, most, least, until, issued_at))
        limit = limited_by(float(able.members[at]), float(queues[at]))
        held.append(limit if not math.isnan(most) else None)
    for rows in (produced, aged):
        writer.write("forecasts", pa.concat_tables([FORECASTS.empty_table(), *rows]))
    day = issued_at.replace(hour=0, minute=0, second=0, microsecond=0)
    table = pairs.rows.select(_NAMES)
    made = {
        "c_max_per_second": able.c_max,
        "c_max_low_per_second": able.c_max_low,
        "utilisation_p95": able.utilisation,
        "members_at_max": able.members,
        "queues": queues,
        "minutes": able.minutes,
    }
    for name, values in made.items():
        table = table.append_column(name, columns.nullable(values, CAPACITY.field(name).type))
    table = table.append_column("day", pa.array([day] * table.num_rows, CAPACITY.field("day").type))
    table = table.append_column("limited_by", pa.array(held, pa.string()))
    writer.write("capacity", fit(table, CAPACITY))


def _produce_rows(
    pairs: Pairs, at: int, found: Forecast, most: float, until: datetime, issued_at: datetime
) -> pa.Table:
    """Forecast messages per second by hour; the limit is the largest rate of the group."""
    bands = [band[at, :HORIZON] for band in (found.p10, found.p50, found.p90)]
    since = (issued_at - until).total_seconds()
    limits = [_first_above(band, most) - since for band in reversed(bands)]
    return _rows(pairs, at, "produce", until, issued_at, bands, found, limits)


def _first_above(band: Floats, most: float) -> float:
    """Seconds until the hour in which the band exceeds `most`; NaN if either is not known."""
    if math.isnan(most) or np.isnan(band).any():
        return math.nan
    above = np.flatnonzero(band > most)
    return float(above[0]) * HOUR_S if above.size else math.inf


def _age_rows(
    pairs: Pairs,
    at: int,
    history: Floats,
    found: Forecast,
    most: float,
    least: float,
    until: datetime,
    issued_at: datetime,
) -> pa.Table:
    """Forecast the age of the oldest unread message by hour; the limit is retention."""
    backlog = float(columns.floats(pairs.rows, "lag_sum")[at])
    age = float(columns.floats(pairs.rows, "age_max_seconds")[at])
    if math.isnan(backlog) or math.isnan(age):
        return FORECASTS.empty_table()
    # The late case has more input and a lower consume rate than is likely.
    cases = ((found.p10, most), (found.p50, most), (found.p90, least))
    # Forecasts are by the hour of the clock. An hour from now overlaps two of them.
    passed = (issued_at - until) / HOUR
    bands = []
    for band, able in cases:
        to_come = (1 - passed) * band[at, :-1] + passed * band[at, 1:]
        bands.append(expected_ages(history, to_come, backlog, able, age))
    retention = float(pairs.retention[at])
    limits = [
        math.nan
        if math.isnan(retention) or np.isnan(band).any()
        else time_to_limit(band, age, retention)
        for band in reversed(bands)
    ]
    return _rows(pairs, at, "age", issued_at + HOUR, issued_at, bands, found, limits)


def _rows(
    pairs: Pairs,
    at: int,
    kind: str,
    first: datetime,
    issued_at: datetime,
    bands: list[Floats],
    found: Forecast,
    limits: list[float],
) -> pa.Table:
    times = [first + HOUR * hour for hour in range(bands[0].size)]
    model, error = MODELS[found.model[at]], float(found.backtest_error[at])
    return forecast_rows(pairs.subject(at), kind, issued_at, times, bands, model, error, limits)


def forecast_rows(
    subject: str,
    kind: str,
    issued_at: datetime,
    times: list[datetime],
    bands: Sequence[Floats],
    model: str,
    error: float,
    limits: Sequence[float],
) -> pa.Table:
    """Rows of FORECASTS, one for each time; NaN is unknown.
    bands: p10, p50, p90. limits: seconds from issued_at, the earliest first."""
    size, names = len(times), ("p10", "p50", "p90")
    made = {
        "issued_at": pa.array([issued_at] * size, FORECASTS.field("issued_at").type),
        "subject": [subject] * size,
        "kind": [kind] * size,
        "at": pa.array(times),
        "model": [model] * size,
        "backtest_error": columns.nullable(np.full(size, error)),
    }
    for name, band, limit in zip(names, bands, limits, strict=True):
        made[name] = columns.nullable(band)
        limit_s = np.maximum(np.full(size, limit), 0.0)
        made[f"time_to_limit_{name}_seconds"] = columns.nullable(limit_s)
    return fit(pa.table(made), FORECASTS)


def _pairs(root: TableRoot, bucket: int, issued_at: datetime) -> Pairs:
    """Pairs of the last hour's ticks, with their newest row."""
    since = issued_at - HOUR
    names = ["tick", "pair_id", *_NAMES, "lag_sum", "age_max_seconds", "queues"]
    rows = root.read("pair_lag", since=since, before=issued_at, buckets=[bucket], columns=names)
    ids = columns.ints(rows, "pair_id")
    last = columns.last_of(ids, columns.micros(rows, "tick"))
    rows = rows.take(pa.array(last[ids[last] % root.buckets == bucket]))
    logs = root.read(
        "logs", since=since, before=issued_at, columns=["tick", "cluster", "broker", "t_min", "ts"]
    )
    logs = logs.filter(pc.is_valid(logs.column("t_min"))).sort_by("tick")
    kept = {
        (row["cluster"], row["broker"]): (row["ts"] - row["t_min"]).total_seconds()
        for row in logs.group_by(["cluster", "broker"], use_threads=False)
        .aggregate([("ts", "last"), ("t_min", "last")])
        .rename_columns(["cluster", "broker", "ts", "t_min"])
        .to_pylist()
    }
    places = zip(rows.column("cluster").to_pylist(), rows.column("broker").to_pylist(), strict=True)
    retention = np.array([kept.get(place, math.nan) for place in places], dtype=np.float64)
    return Pairs(columns.ints(rows, "pair_id"), rows, retention)


class _Busy(NamedTuple):
    """Roll-ups [pair × minute] of the last seven days."""

    consumed: Floats
    produced: Floats
    ready: Floats
    members: Floats


def _minutes(root: TableRoot, bucket: int, ids: Ints, issued_at: datetime) -> _Busy:
    since, size = issued_at - BUSY, BUSY // timedelta(seconds=MINUTE)
    made = [np.full((ids.size, size), np.nan) for _ in range(4)]
    for rows, row, column in cells(root, ids, MINUTE, since, issued_at, [bucket]):
        made[0][row, column] = per_second(rows, "consumed")
        made[1][row, column] = per_second(rows, "produced")
        made[2][row, column] = columns.floats(rows, "lag_min")
        made[3][row, column] = columns.floats(rows, "members")
    return _Busy(*made)


def _hourly(root: TableRoot, bucket: int, ids: Ints, until: datetime) -> Floats:
    """Messages produced per second in each whole hour of the history; NaN where not known."""
    quarters = HISTORY // timedelta(seconds=QUARTER)
    messages, seconds = (np.zeros((ids.size, quarters)) for _ in range(2))
    for rows, row, column in cells(root, ids, QUARTER, until - HISTORY, until, [bucket]):
        messages[row, column] = np.nan_to_num(columns.floats(rows, "produced"))
        seconds[row, column] = np.nan_to_num(columns.floats(rows, "rate_seconds"))
    messages, seconds = (each.reshape(ids.size, -1, 4).sum(axis=-1) for each in (messages, seconds))
    enough = seconds >= QUARTER
    return np.where(enough, messages / np.where(enough, seconds, 1.0), np.nan)


def cells(
    root: TableRoot,
    ids: Ints,
    grain_s: int,
    since: datetime,
    before: datetime,
    buckets: list[int] | None = None,
) -> Iterator[tuple[pa.Table, Ints, Ints]]:
    """Yield roll-ups of these pairs by file, with the matrix row and column of each. ids:
    sorted."""
    names = [
        "bucket_start", "grain_seconds", "series_id", "pair_id", "produced", "consumed",
        "rate_seconds", "lag_min", "members", "age_max_seconds",
    ]  # fmt: skip
    wanted = pc.field("series_id").is_null() & (pc.field("grain_seconds") == grain_s)
    for rows in root.scan("rollup", since=since, before=before, buckets=buckets, columns=names):
        rows = rows.filter(wanted)
        pair = columns.ints(rows, "pair_id")
        row = np.minimum(np.searchsorted(ids, pair), max(ids.size - 1, 0))
        mine = np.flatnonzero(ids[row] == pair)
        rows = rows.take(pa.array(mine))
        start = columns.micros(rows, "bucket_start") - to_us(since)
        yield rows, row[mine], start // (grain_s * SECOND)


def per_second(rows: pa.Table, name: str) -> Floats:
    """Rates of a column of counts; NaN where no time is covered."""
    covered = columns.floats(rows, "rate_seconds")
    rates: Floats = columns.floats(rows, name) / np.where(covered > 0, covered, np.nan)
    return rates
