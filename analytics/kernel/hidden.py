"""Estimate of messages that are stored but not dispatched (docs/analytics-methods.md, "Hidden
lag"). Pure.

A queue's max offset moves at dispatch, so the lag does not include them. Bytes of the log that are
not dispatched are divided among topics by their shares of recent traffic.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import numpy as np
import pyarrow as pa

from analytics.kernel import columns
from analytics.kernel.columns import SECOND, Floats, Ints
from analytics.kernel.logs_of import logs_of
from analytics.moments import to_us
from analytics.schema import TIME

HIDDEN: Final = pa.schema(
    [
        pa.field("tick", TIME, nullable=False),
        pa.field("pair_id", pa.int64(), nullable=False),
        pa.field("hidden_lag", pa.int64()),
    ]
)


def hidden_lag(
    pairs: pa.Table, logs: pa.Table, *, after: datetime, window_s: float = 300.0
) -> pa.Table:
    """Estimate for each pair the messages that are in the log but not in its queues yet.

    pairs, logs: rows of PAIRS and LOGS from window_s [seconds] before `after` on. The estimate is
    undispatched bytes × messages of the topic per byte of log within the window. It is 0 where all
    is dispatched, and null where offsets of the log or the traffic are not known. Returns rows of
    HIDDEN for ticks later than `after`, by tick and pair.
    """
    if pairs.num_rows == 0:
        return HIDDEN.empty_table()
    rows = logs_of(pairs, logs)
    tick, pair = rows.tick, rows.pair
    end = columns.floats(rows.logs, "max_physical_offset")
    behind = np.maximum(end - columns.floats(rows.logs, "dispatched_physical_offset"), 0)
    taken = columns.floats(rows.pairs, "topic_messages_in_total")
    per_byte = _messages_per_byte(tick, pair, rows.process, taken, end, round(window_s * SECOND))
    estimate = np.where(behind == 0, 0.0, behind * per_byte)
    wanted = np.flatnonzero(tick > to_us(after))
    wanted = wanted[np.lexsort((pair[wanted], tick[wanted]))]
    return pa.table(
        [
            columns.times(tick[wanted]),
            pa.array(pair[wanted]),
            columns.nullable(estimate[wanted], pa.int64()),
        ],
        schema=HIDDEN,
    )


def _messages_per_byte(
    tick: Ints, pair: Ints, process: Ints, taken: Floats, end: Floats, window: int
) -> Floats:
    """Messages of the pair's topic per byte of log, in the window that ends at each row.

    It compares the first and last row of one process in the window, because a restart resets the
    counts. NaN if the log did not grow, or if there is only one row.
    """
    # Rows are sorted by pair and tick, so rows of one run of a process are adjacent.
    changed = np.ones(tick.size, dtype=np.bool_)
    changed[1:] = (pair[1:] != pair[:-1]) | (process[1:] != process[:-1])
    unknown = np.isnan(taken) | np.isnan(end)
    changed |= unknown  # a row without numbers belongs to no window
    changed[1:] |= unknown[:-1]
    run = np.cumsum(changed)
    span = int(tick.max() - tick.min()) + window + 1
    key = run * span + (tick - tick.min())
    first = np.searchsorted(key, np.maximum(key - window, run * span))
    messages, grown = taken - taken[first], end - end[first]
    with np.errstate(divide="ignore", invalid="ignore"):
        per_byte: Floats = messages / grown
    per_byte[~(grown > 0) | (messages < 0)] = np.nan
    return per_byte
