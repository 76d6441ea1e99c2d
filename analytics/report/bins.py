"""Time bins, and rows summed by bin, piece by piece. Pure.

Each piece is summed, then the sums. Memory holds one row for each bin and pair that is drawn, so a
day of ten thousand pairs fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analytics.kernel.columns import micros
from analytics.moments import to_us
from analytics.report.facts import Bins, Values
from analytics.statuses import BY_SEVERITY, Status, severity

BINS_MAX: Final = 240
"""Maximum number of bins; a plot of 1200 pixels has no room for more."""
_FINEST_S: Final = 1.0
_NICE_S: Final = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400),
)


def bins_of(start: datetime, end: datetime, period_s: float | None) -> Bins:
    """Cut a time into at most BINS_MAX bins, each of some whole periods.
    period_s: time between ticks; None: not known. Raises ValueError for an empty time."""
    span_s = (end - start).total_seconds()
    if span_s <= 0:
        raise ValueError(f"the report's time is empty: from {start} to {end}")
    period = max(period_s or _FINEST_S, span_s / 1e6)
    least = span_s / BINS_MAX
    width = next((float(nice) for nice in _NICE_S if nice >= max(least, period)), 0.0)
    width = width or math.ceil(least / 86400) * 86400.0
    # Otherwise every second bin would hold a tick more than its neighbours.
    width = math.ceil(round(width / period, 6)) * period
    # In whole microseconds: the end may be one microsecond after the newest tick.
    return Bins(start, end, width, -(-round(span_s * 1e6) // round(width * 1e6)))


def places(rows: pa.Table, time: str, bins: Bins) -> pa.Array:
    """The bin of each row."""
    since = micros(rows, time) - to_us(bins.start)
    return pa.array(since // round(bins.width_s * 1e6), pa.int32())


def summed(
    pieces: Iterable[pa.Table], keys: Sequence[str], how: Sequence[tuple[str, str]]
) -> pa.Table:
    """Group rows by keys, piece by piece. how: column and ``sum``, ``min``, ``max`` or ``count``.
    Columns of the result: keys, then ``column_how``."""
    parts = [piece.group_by(list(keys)).aggregate(list(how)) for piece in pieces]
    if not parts:
        return pa.table({})
    renamed = [f"{column}_{function}" for column, function in how]
    again = [
        (name, function if function in ("min", "max") else "sum")
        for name, (_, function) in zip(renamed, how, strict=True)
    ]
    found = pa.concat_tables(parts).group_by(list(keys)).aggregate(again)
    wanted = [f"{name}_{function}" for name, function in again]
    return found.select([*keys, *wanted]).rename_columns([*keys, *renamed])


def ranks(statuses: pa.ChunkedArray) -> pa.Array:
    """The severity of each status."""
    found = pc.index_in(statuses, pa.array(BY_SEVERITY))
    return pc.fill_null(found, severity(Status.UNKNOWN))


def spread(table: pa.Table, column: str, bins: Bins, per: str = "") -> list[float | None]:
    """The values of a column by bin. per: the column to divide by, for a mean. None if nothing is
    known."""
    found: list[float | None] = [None] * bins.count
    if not table.num_rows:
        return found
    values = table[column].to_pylist()
    counts = table[per].to_pylist() if per else [1] * len(values)
    for place, value, count in zip(table["bin"].to_pylist(), values, counts, strict=True):
        if value is not None and count and 0 <= place < bins.count:
            found[place] = value / count if per else float(value)
    return found


def by_pair(table: pa.Table) -> Mapping[int, pa.Table]:
    """The rows of each pair."""
    if not table.num_rows:
        return {}
    ids = np.asarray(table["pair_id"])
    order = np.argsort(ids, kind="stable")
    ordered = table.take(pa.array(order))
    unique, starts = np.unique(ids[order], return_index=True)
    ends = [*starts[1:], len(ids)]
    return {
        int(pair): ordered.slice(int(first), int(last - first))
        for pair, first, last in zip(unique, starts, ends, strict=True)
    }


def is_known(values: Values) -> bool:
    """Whether any value is known."""
    return any(value is not None for value in values)
