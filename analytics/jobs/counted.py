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
from analytics.kernel.columns import SECOND, Floats
from analytics.kernel.counters import deltas, increases
from analytics.kernel.histogram import quantile
from analytics.kernel.rollup import MINUTE
from analytics.schema import part_of
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
    read = root.scan("counters", since=since, before=before, columns=wanted)
    pieces = [rows.filter(pc.field("metric") == PUT_BUCKETS) for rows in read]
    rows = pa.concat_tables([part_of("counters", wanted).empty_table(), *pieces])
    if not rows.num_rows:
        return rows.select(_NODE), np.empty(0)
    rows, counted = increases(rows, *_NODE, "labels")
    label, labels = columns.named(rows, "labels")
    bounds, place = np.unique([_bound(text) for (text,) in labels], return_inverse=True)
    node, ts = columns.codes(columns.joined(rows, *_NODE))[0], columns.micros(rows, "ts")
    groups = columns.grouped(node, ts // _MINUTE_US)
    grown = np.zeros((groups.starts.size, bounds.size))
    bucket = place.reshape(-1)[label]
    # The first sample of a counter gives no rate; the other samples of its minute do.
    np.add.at(grown, (groups.of, bucket[groups.order]), np.nan_to_num(counted[groups.order]))
    head = groups.order[groups.starts]
    made = rows.select(_NODE).take(pa.array(head)).append_column("tick", columns.times(ts[head]))
    return made, quantile(bounds, grown, HIGH).value


def repeated(root: TableRoot, since: datetime, before: datetime) -> tuple[pa.Table, Floats]:
    """Share of repeated deliveries: rows of pair and minute, and their values."""
    wanted = ["ts", "pair_id", *_PAIR, "redelivered_total", "consumed_total"]
    read = root.scan("pairs", since=since, before=before, columns=wanted)
    pieces = [part_of("pairs", wanted).empty_table(), *map(_last_of_minutes, read)]
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
    return rows.take(pa.array(columns.last_of(pair, ts // _MINUTE_US, ts)))


def _bound(labels: str) -> float:
    found = _BOUND.search(labels)
    return float(found[1]) if found else math.nan
