"""Joins rows of pairs with the log row of the reporting node at the same tick. Pure.

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
    latest = columns.last_of(columns.ints(pairs, "pair_id"), *_times(pairs))
    pairs, of_pairs = pairs.take(pa.array(latest)), of_pairs[latest]
    tick, pair = columns.micros(pairs, "tick"), columns.ints(pairs, "pair_id")
    one_each = columns.last_of(of_logs, *_times(logs))
    at = columns.places(of_logs[one_each], _times(logs)[0][one_each], of_pairs, tick)
    taken = columns.beside(logs.take(pa.array(one_each)), at)
    return PairsWithLogs(pairs, taken, tick, pair, _process(taken, of_pairs))


def _times(table: pa.Table) -> tuple[Ints, Ints]:
    return columns.micros(table, "tick"), columns.micros(table, "ts")


def _process(logs: pa.Table, node: Ints) -> Ints:
    """A number for each run of a node; the name of the node and its start time identify a run."""
    started = pc.fill_null(logs.column("up_since").cast(pa.int64()), -1).to_numpy()
    runs, run = np.unique(np.asarray(started, dtype=np.int64), return_inverse=True)
    return node * runs.size + run.reshape(-1)
