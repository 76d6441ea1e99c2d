"""Rows of pair_lag: the roll-up, drain times and skew of each pair at each tick. Pure."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analytics.kernel import columns
from analytics.kernel.causes import causes, with_clocks
from analytics.kernel.columns import Floats, Ints
from analytics.kernel.drain import METHODS, Drain
from analytics.kernel.grid import NAMES, Ticks
from analytics.kernel.results import Judged, Places, places, reasons
from analytics.kernel.skew import skew
from analytics.kernel.status import CODE, STATUSES, stands_still
from analytics.schema import PAIR_LAG
from analytics.statuses import Status

RATE_DIGITS: Final = 4
"""Significant digits of rates: as many as 15 s, measured to the millisecond, have."""
ESTIMATE_DIGITS: Final = 3
"""Significant digits of estimates, whose own spread is larger."""


def pair_lag(judged: Judged, drain: Drain) -> pa.Table:
    """Rows of PAIR_LAG, by pair and tick; hidden lag is null until `with_hidden`."""
    rolled, status, known = judged.rolled, judged.pair_status, judged.known
    at = places(rolled.reported, judged.row)
    pair = at.series
    names = {
        name: pa.array([each[number] for each in known.names], pa.string()).take(pa.array(pair))
        for number, name in enumerate(NAMES)
    }
    uneven = _skew(judged, at)
    codes = status.status[at]
    numbers = {
        "lag_sum": rolled.lag_sum,
        "lag_max": rolled.lag_max,
        "age_max_seconds": columns.thousandths(rolled.age_max),
        "objective_seconds": judged.facts.objective,
        "members": judged.facts.members,
        "produce_per_second": columns.significant(rolled.produce_rate, RATE_DIGITS),
        "consume_per_second": columns.significant(rolled.consume_rate, RATE_DIGITS),
        "progress": columns.thousandths(rolled.progress),
        **{
            f"drain_p{share}_seconds": columns.significant(quantile, ESTIMATE_DIGITS)
            for share, quantile in zip((10, 50, 90), drain.quantiles, strict=True)
        },
        "queues": rolled.queues,
        "lagging": rolled.late,
        "stuck": rolled.counts[:, :, CODE[Status.STALLED]],
        "unknown": rolled.counts[:, :, CODE[Status.UNKNOWN]],
        "ahead": rolled.counts[:, :, CODE[Status.AHEAD]],
        "lost": rolled.lost,
    }
    sentence = causes(
        codes,
        status.since[at],
        rolled.counts[at.row, pair, codes],
        rolled.queues[at],
        names["broker"],
        uneven.column("skew_kind").combine_chunks(),
        uneven.column("top_queue").combine_chunks(),
        _reason(judged, at),
    )
    logs = judged.logs
    clock = logs.clock[at.row + judged.begin, logs.of_pair[pair]]
    sentence = with_clocks(sentence, names["broker"], clock, judged.rules.period_s)
    data: dict[str, pa.Array | pa.ChunkedArray] = {
        "tick": columns.times(judged.ticks.at[at.row + judged.begin]),
        "pair_id": pa.array(known.pair_id[pair]),
        **names,
        "hidden_lag": pa.nulls(pair.size, pa.int64()),
        "drain_method": columns.words(METHODS, drain.method[at]),
        "skew": columns.nullable(
            columns.significant(columns.floats(uneven, "skew"), ESTIMATE_DIGITS)
        ),
        "gini": columns.nullable(columns.thousandths(columns.floats(uneven, "gini"))),
        "skew_kind": uneven.column("skew_kind"),
        "status": columns.words(STATUSES, codes.astype(np.int64)),
        "status_since": columns.times(status.since[at].astype(np.int64)),
        "cause": sentence,
    }
    for name, values in numbers.items():
        data[name] = columns.nullable(values[at], PAIR_LAG.field(name).type)
    return pa.table([data[name] for name in PAIR_LAG.names], schema=PAIR_LAG)


def _skew(judged: Judged, at: Places) -> pa.Table:
    """Return the skew of the lag: one row per place, nulls where there is none."""
    rolled, known = judged.rolled, judged.known
    several = np.diff(np.append(known.starts, known.series_id.size)) > 1
    uneven = rolled.reported & (rolled.lag_sum > 0) & several
    row, series = np.nonzero(uneven[:, known.pair] & judged.debounced.reported)
    late = row >= judged.row
    row, series = row[late], series[late]
    full, pair = Places(row + judged.begin, series), known.pair[series]
    lag, inputs = judged.lag.lag[full], judged.inputs
    place = Places(row, series)
    still = stands_still(inputs)[place] & (lag > 0)
    # If the table of series lacks the queues, they are numbered in order.
    number = np.where(
        np.isnan(known.queue[series]), series - known.starts[pair], known.queue[series]
    )
    found = skew(
        pa.table(
            {
                "tick": columns.times(judged.ticks.at[full.row]),
                "pair_id": pa.array(known.pair_id[pair]),
                "series_id": pa.array(known.series_id[series]),
                "queue": pa.array(number.astype(np.int32)),
                "lag": columns.nullable(lag, pa.int64()),
                "produce_per_second": columns.nullable(
                    _rate(judged, judged.grid.high, judged.motion.produce_rate, place)
                ),
                "consume_per_second": columns.nullable(
                    _rate(judged, judged.grid.commit, judged.motion.consume_rate, place)
                ),
                "is_lagging": pa.array(
                    judged.age.age[full] - inputs.not_due[place] > inputs.objective[place]
                ),
                "stands_still": pa.array(still),
                "redeliveries_rise": pa.array(judged.facts.redeliveries_rise[row, pair]),
                "member": columns.nullable(judged.grid.member[full], pa.int64()),
            }
        )
    )
    return found.take(_rows_at(found, judged.ticks, judged.known.pair_id, judged.begin, at))


def _rate(judged: Judged, offset: Floats, rates: Floats, at: Places) -> Floats:
    """Messages per second by which an offset moved in a window of progress. The rate of a single
    period, used where that is not known, is random if messages or commits are rare."""
    row, ts = at.row + judged.begin, judged.grid.ts
    back = np.maximum(row - judged.rules.ticks(judged.rules.progress_window_s), 0)
    seconds = (ts[row, at.series] - ts[back, at.series]) / columns.SECOND
    moved = offset[row, at.series] - offset[back, at.series]
    # What was skipped at a cut was not read.
    whole = ~(judged.motion.segment[at] > judged.ticks.at[back])
    with np.errstate(divide="ignore", invalid="ignore"):
        mean: Floats = moved / seconds
    return np.where((moved >= 0) & (seconds > 0) & whole, mean, rates[at])


def _rows_at(table: pa.Table, ticks: Ticks, pair_id: Ints, begin: int, at: Places) -> pa.Array:
    """Return for each place the row of the same tick and pair in the table; null if none."""
    where = np.full((ticks.at.size - begin, pair_id.size), -1, np.int64)
    row = np.searchsorted(ticks.at, columns.micros(table, "tick")) - begin
    pair = np.searchsorted(pair_id, columns.ints(table, "pair_id"))
    where[row, pair] = np.arange(table.num_rows)
    found = where[at.row, at.series]
    return pa.array(found, mask=found < 0)


def _reason(judged: Judged, at: Places) -> pa.Array:
    """Return why the first queue of a pair is unknown; null unless all of its queues are."""
    rolled = judged.rolled
    unknown = rolled.counts[:, :, CODE[Status.UNKNOWN]] >= rolled.queues
    first = Places(at.row, judged.known.starts[at.series])
    words = reasons(judged, first)
    return pc.if_else(pa.array(unknown[at]), words, pa.scalar(None, pa.string()))


def with_hidden(rows: pa.Table, hidden: pa.Table, ticks: Ticks) -> pa.Table:
    """Rows of PAIR_LAG with the estimate of undispatched messages."""
    ids: Ints = np.unique(
        np.concatenate([columns.ints(rows, "pair_id"), columns.ints(hidden, "pair_id")])
    )
    row = np.searchsorted(ticks.at, columns.micros(rows, "tick"))
    pair = np.searchsorted(ids, columns.ints(rows, "pair_id"))
    at = _rows_at(hidden, ticks, ids, 0, Places(row, pair))
    values: Floats = columns.floats(hidden.select(["hidden_lag"]).take(at), "hidden_lag")
    number = rows.schema.get_field_index("hidden_lag")
    return rows.set_column(number, PAIR_LAG.field(number), columns.nullable(values, pa.int64()))
