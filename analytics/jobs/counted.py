"""Signals from counters, by the minute: duration of sends, share of repeated deliveries.

Part of the search for anomalies, on an executor. The first signal exists only if `collect` stores
the counter (`--counter tidemark_broker_put_duration_seconds_bucket`).
"""

from __future__ import annotations

import math
import re
from datetime import datetime
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analytics.kernel import columns
from analytics.kernel.columns import SECOND, Floats, Ints
from analytics.kernel.counters import deltas
from analytics.kernel.histogram import quantile
from analytics.kernel.rollup import MINUTE
from analytics.tables import TableRoot

PUT_BUCKETS: Final = "tidemark_broker_put_duration_seconds_bucket"
HIGH: Final = 0.99
_NODE: Final = ("cluster", "broker", "replica")
_PAIR: Final = ("cluster", "broker", "topic", "group")
_BOUND: Final = re.compile(r'(?:^|,)le="([^"]*)"')
_MINUTE_US: Final = MINUTE * SECOND


def slow_puts(root: TableRoot, since: datetime, before: datetime) -> tuple[pa.Table, Floats]:
    """99th percentile of the duration of a send [s]: rows of node and minute, and their values."""
    wanted = ["ts", "metric", *_NODE, "labels", "value", "started_at"]
    pieces = []
    for rows in root.scan("counters", since=since, before=before, columns=wanted):
        pieces.append(rows.filter(pc.field("metric") == PUT_BUCKETS))
    if not sum(piece.num_rows for piece in pieces):
        return _minutes(_NODE, {}, np.empty(0, dtype=np.int64)), np.empty(0)
    rows = pa.concat_tables(pieces)
    encoded = rows.column("labels").combine_chunks().dictionary_encode()
    limits = np.array([_bound(labels) for labels in encoded.dictionary.to_pylist()])
    bounds, place = np.unique(limits, return_inverse=True)
    counter = columns.codes(columns.joined(rows, *_NODE, "labels"))[0]
    ts = columns.micros(rows, "ts")
    order = np.lexsort((ts, counter))
    value, started = columns.floats(rows, "value"), columns.instants(rows, "started_at")
    counted = deltas(counter[order], ts[order], value[order], started[order]).counted

    node = columns.joined(rows, *_NODE).combine_chunks().dictionary_encode()
    of_node = np.asarray(node.indices.to_numpy(False), dtype=np.int64)[order]
    groups = columns.grouped(of_node, ts[order] // _MINUTE_US)
    grown = np.zeros((groups.starts.size, bounds.size))
    bucket = place.reshape(-1)[np.asarray(encoded.indices.to_numpy(False), np.int64)][order]
    # The first sample of a counter gives no rate; the other samples of its minute do.
    np.add.at(grown, (groups.of, bucket[groups.order]), np.nan_to_num(counted[groups.order]))
    head = groups.order[groups.starts]
    names = node.dictionary.take(pa.array(of_node[head]))
    made = _minutes(_NODE, dict(enumerate(names.to_pylist())), ts[order][head])
    return made, quantile(bounds, grown, HIGH).value


def repeated(root: TableRoot, since: datetime, before: datetime) -> tuple[pa.Table, Floats]:
    """Share of repeated deliveries: rows of pair and minute, and their values."""
    wanted = ["ts", "pair_id", *_PAIR, "redelivered_total", "consumed_total"]
    pieces = [
        _last_of_minutes(rows)
        for rows in root.scan("pairs", since=since, before=before, columns=wanted)
    ]
    if not pieces:
        return _minutes(_PAIR, {}, np.empty(0, dtype=np.int64)), np.empty(0)
    rows = _last_of_minutes(pa.concat_tables(pieces))
    pair, ts = columns.ints(rows, "pair_id"), columns.micros(rows, "ts")
    unknown = np.full(ts.size, np.nan)
    again, first = (
        deltas(pair, ts, columns.floats(rows, name), unknown).counted
        for name in ("redelivered_total", "consumed_total")
    )
    every = again + first
    share = np.divide(again, every, out=np.full(ts.size, np.nan), where=every > 0)
    return rows.select(_PAIR).append_column("tick", columns.times(ts)), share


def _last_of_minutes(rows: pa.Table) -> pa.Table:
    """The last row of each pair and minute, by pair and time."""
    pair, ts = columns.ints(rows, "pair_id"), columns.micros(rows, "ts")
    groups = columns.grouped(pair, ts // _MINUTE_US, ts)
    minutes = columns.grouped(pair[groups.order], ts[groups.order] // _MINUTE_US)
    last = groups.order[minutes.starts + minutes.sizes - 1]
    return rows.take(pa.array(last))


def _bound(labels: str) -> float:
    found = _BOUND.search(labels)
    return float(found[1]) if found else math.nan


def _minutes(names: tuple[str, ...], joined: dict[int, str], ts: Ints) -> pa.Table:
    """Return one row for each joined name and time."""
    parts = [text.split("\x1f") for text in joined.values()]
    columns_ = {
        name: pa.array([part[at] for part in parts], pa.string()) for at, name in enumerate(names)
    }
    return pa.table({"tick": columns.times(ts), **columns_})
