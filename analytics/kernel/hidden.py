"""Messages that the lag does not contain: stored, not dispatched (docs/analytics-methods.md,
"Hidden lag"). An estimate, pure.

A queue's max offset moves at dispatch. Bytes of the log that are not dispatched yet are divided
among topics by their shares of recent traffic.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import numpy as np
import pyarrow as pa

from analytics.kernel import columns
from analytics.kernel.columns import SECOND, Floats, Ints
from analytics.kernel.logs_of import logs_of
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
    """Estimate each pair's messages that are in the log and not in its queues yet.

    pairs, logs: rows of PAIRS and LOGS that reach back window_s [seconds] before `after`.
    Bytes not dispatched × the topic's messages per byte of log within the window: the topic's
    share of the bytes over its mean size, in one fraction. 0 where all is dispatched, null where
    the log's offsets, or the traffic of the window, are not known.
    Returns rows of HIDDEN for ticks later than `after`, by tick and pair.
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
    wanted = np.flatnonzero(tick > columns.micros_of(after))
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
    """Messages of the pair's topic per byte of log, of the window that ends at each row.

    Between the first and the last row of the window that one process wrote: a restart begins the
    counts anew. NaN if the log did not grow, or if there is one row only.
    """
    # Rows are sorted by pair and tick; those of one run of one process are a stretch.
    changed = np.ones(tick.size, dtype=np.bool_)
    changed[1:] = (pair[1:] != pair[:-1]) | (process[1:] != process[:-1])
    unknown = np.isnan(taken) | np.isnan(end)
    changed |= unknown  # a row without numbers is in no window
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
