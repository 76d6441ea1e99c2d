"""Rows of pairs beside the log of the node that reported them, of the same tick. Pure.

A node's values of groups and of its log are from one snapshot, so they can be subtracted. Values of
two nodes or two ticks cannot.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analytics.kernel import columns
from analytics.kernel.columns import Ints


class PairsWithLogs(NamedTuple):
    """Rows of pairs and of logs side by side, one per pair and tick, by pair, then tick.
    process: equal for rows that one run of one node reported. logs: nulls where the node has no row
    about its log at that tick."""

    pairs: pa.Table
    logs: pa.Table
    tick: Ints
    pair: Ints
    process: Ints


def logs_of(pairs: pa.Table, logs: pa.Table) -> PairsWithLogs:
    """Put each row of PAIRS beside the row of LOGS of its node and tick.

    If a pair has several rows at a tick, the latest counts: around a change of master two nodes
    may report it. Raises ValueError if a required column has nulls.
    """
    names = ("cluster", "broker", "replica")
    of_pairs, of_logs = columns.codes(columns.joined(pairs, *names), columns.joined(logs, *names))
    latest = _latest(columns.ints(pairs, "pair_id"), pairs)
    pairs, of_pairs = pairs.take(pa.array(latest)), of_pairs[latest]
    tick, pair = columns.micros(pairs, "tick"), columns.ints(pairs, "pair_id")
    one_each = _latest(of_logs, logs)
    log_tick, of_logs = columns.micros(logs, "tick")[one_each], of_logs[one_each]

    if log_tick.size:
        low = min(int(tick.min()), int(log_tick.min())) if tick.size else int(log_tick.min())
        span = max(int(tick.max()) if tick.size else low, int(log_tick.max())) - low + 1
        keys = of_logs * span + (log_tick - low)
        wanted = of_pairs * span + (tick - low)
        at = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
        beside = pa.array(one_each[at], mask=keys[at] != wanted)
    else:
        beside = pa.nulls(tick.size, pa.int64())
    taken = logs.take(beside)
    return PairsWithLogs(pairs, taken, tick, pair, _process(taken, of_pairs))


def _latest(key: Ints, table: pa.Table) -> Ints:
    """The row of latest ts of each key and tick, sorted by key and tick."""
    tick, ts = columns.micros(table, "tick"), columns.micros(table, "ts")
    order = np.lexsort((ts, tick, key))
    last = np.ones(order.size, dtype=np.bool_)
    same = (key[order][1:] == key[order][:-1]) & (tick[order][1:] == tick[order][:-1])
    last[:-1] = ~same
    return order[last].astype(np.int64)


def _process(logs: pa.Table, node: Ints) -> Ints:
    """A number for each run of each node: by its name and its start."""
    started = pc.fill_null(logs.column("up_since").cast(pa.int64()), -1).to_numpy()
    together = np.stack([node, np.asarray(started, dtype=np.int64)], axis=1)
    if together.size == 0:
        return np.zeros(0, dtype=np.int64)
    return np.asarray(np.unique(together, axis=0, return_inverse=True)[1], np.int64).reshape(-1)
