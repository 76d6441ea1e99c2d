"""The balance of each series: produced = consumed + skipped + change of lag
(docs/analytics-methods.md, "Balance"). Pure.

All terms are whole numbers, so a difference other than 0 is a defect of the data or the code. There
is no balance where a term is unknown, for example across a change of epoch.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analytics.kernel import columns
from analytics.kernel.columns import Floats, Ints

MOVES_NO_COMMIT: Final = "truncate"  # its `from` and `to` are max offsets, not commits


class Books(NamedTuple):
    """Changes between rows of LAG; one entry per row with a sample, by series and time.
    row: index in the table. The other fields compare it with the previous row of its series
    [messages, seconds]; NaN if there is none, or if a value is not known."""

    row: Ints
    produced: Floats
    consumed: Floats
    skipped: Floats
    imbalance: Floats
    seconds: Floats


def books(lag: pa.Table, rates: pa.Table, events: pa.Table) -> Books:
    """Balance every step between two rows of a series.

    lag, rates, events: rows of LAG, RATES and OFFSET_EVENTS of the same time. `skipped` is the
    distance by which events moved the commit: forward counts up, backward counts down. The first
    row of a series in `lag` has no step, so `lag` should begin one row earlier.
    """
    sampled = np.flatnonzero(np.asarray(pc.is_valid(lag.column("ts")).to_numpy(), dtype=np.bool_))
    series, tick = columns.ints(lag, "series_id")[sampled], columns.micros(lag, "tick")[sampled]
    order = np.lexsort((tick, series))
    sampled, series, tick = sampled[order], series[order], tick[order]
    unread = columns.floats(lag, "lag")[sampled]
    has_before = np.zeros(sampled.size, dtype=np.bool_)
    has_before[1:] = series[1:] == series[:-1]
    change = np.full(sampled.size, np.nan)
    change[has_before] = (unread[1:] - unread[:-1])[has_before[1:]]

    at = columns.places(
        series, tick, columns.ints(rates, "series_id"), columns.micros(rates, "tick")
    )
    produced, consumed, passed = (
        _put(sampled.size, at, columns.floats(rates, name))
        for name in ("produced", "consumed", "dt_seconds")
    )
    ts = columns.micros(lag.take(pa.array(sampled)), "ts")
    skipped = _skipped(series, ts, events)
    known = ~np.isnan(produced) & ~np.isnan(consumed)
    return Books(
        sampled,
        produced,
        consumed,
        np.where(has_before, skipped, np.nan),
        produced - consumed - skipped - change,
        np.where(known, passed, np.nan),
    )


def _put(size: int, at: Ints, values: Floats) -> Floats:
    placed = np.full(size, np.nan)
    placed[at[at >= 0]] = values[at >= 0]
    return placed


def _skipped(series: Ints, ts: Ints, events: pa.Table) -> Floats:
    """Return how many messages each event skipped, at the first row after the event. An event
    without a distance makes the row unknown."""
    total = np.zeros(series.size)
    events = events.filter(pc.not_equal(events.column("kind"), MOVES_NO_COMMIT))
    if events.num_rows == 0 or series.size == 0:
        return total
    moved = columns.floats(events, "to_offset") - columns.floats(events, "from_offset")
    whose, when = columns.ints(events, "series_id"), columns.micros(events, "ts")
    keys, wanted = columns.keyed(series, ts, whose, when)
    at = np.searchsorted(keys, wanted)
    there = at < series.size
    there[there] = series[at[there]] == whose[there]
    np.add.at(total, at[there], moved[there])
    return total
