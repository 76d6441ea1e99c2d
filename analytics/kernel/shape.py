"""From samples to the collected tables: series, positions, logs, pairs, replicas, counters. Pure.

A broker reads all groups and queues of one scrape in one pass, the *snapshot* (its family is
``tidemark_broker_look_timestamp_seconds``). Its instant is the ``ts`` of the rows. The tick is that
of the scrape; scrapes are evenly spaced. All times of a row except its tick are by the node's
clock, which may differ from the scraper's. A snapshot that an earlier scrape had is left out, and a
gap stays a gap. Only the owner of a queue exports it, so a slave has no positions. A missing value
is null, with a reason, and never 0.

Step before: ``sources`` read samples. Step after: ``evaluate`` judges positions.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analytics import schema
from analytics.kernel import sampled, shape_positions
from analytics.kernel.columns import Bools, Floats, Ints, equals, nullable
from analytics.kernel.sampled import (
    Grouped,
    Rows,
    instants,
    integers,
    label_value,
    labelled,
    microseconds,
    or_null,
    replica_of,
    wide,
)
from analytics.kernel.shape_positions import Pairs, positions_and_series

LOOK: Final = "tidemark_broker_look_timestamp_seconds"
UP_SINCE: Final = "tidemark_up_since_timestamp_seconds"
ROLE: Final = "tidemark_ha_role"
EPOCH: Final = "tidemark_ha_epoch"
COUNTED: Final = ("_total", "_bucket", "_sum", "_count")
"""Suffixes of counters and of the parts of histograms."""
PUT_SECONDS: Final = "tidemark_broker_put_duration_seconds"
FLUSH_SECONDS: Final = "tidemark_log_flush_duration_seconds"
ACK_SECONDS: Final = "tidemark_ha_ack_duration_seconds"
TIMED: Final = frozenset(
    f"{family}{end}"
    for family in (PUT_SECONDS, FLUSH_SECONDS, ACK_SECONDS)
    for end in ("_sum", "_count")
)
"""Counters that are always stored, a few per node: durations of sends, flushes and replication, as
evidence beside a blamed stage (``analytics.report.moved``)."""
STALE_PERIODS: Final = 2
"""Values of another process of the node are used if they are at most this many periods away."""

_LOG_OFFSETS: Final = {
    "min_physical_offset": "tidemark_log_min_offset_bytes",
    "max_physical_offset": "tidemark_log_max_offset_bytes",
    "flushed_physical_offset": "tidemark_log_flushed_offset_bytes",
    "confirm_physical_offset": "tidemark_log_confirm_offset_bytes",
    "dispatched_physical_offset": "tidemark_log_dispatched_offset_bytes",
}
_LOOK_TIMES: Final = {
    "t_max": "tidemark_log_newest_message_timestamp_seconds",
    "t_confirm": "tidemark_log_confirm_message_timestamp_seconds",
    "t_dispatched": "tidemark_log_dispatched_message_timestamp_seconds",
}
_OLDEST_RECORD: Final = "tidemark_log_oldest_message_timestamp_seconds"
_OF_LABEL: Final = {
    "free_bytes": ("tidemark_store_free_bytes", 'volume="log"'),
    "capacity_bytes": ("tidemark_store_capacity_bytes", 'volume="log"'),
    "pulls_queued": ("tidemark_broker_requests_queued", 'pool="pull"'),
    "put_wait_seconds": ("tidemark_broker_oldest_queued_request_seconds", 'pool="put"'),
}
_LONG_POLLS: Final = "tidemark_broker_long_polls"
_PEERS: Final = {
    "in_sync": "tidemark_ha_replica_in_sync",
    "lag_bytes": "tidemark_ha_replica_lag_bytes",
    "lag_seconds": "tidemark_ha_replica_lag_seconds",
    "skew_seconds": "tidemark_ha_clock_skew_seconds",
}

METRICS: Final = shape_positions.METRICS | {
    LOOK,
    UP_SINCE,
    ROLE,
    EPOCH,
    *_LOG_OFFSETS.values(),
    *_LOOK_TIMES.values(),
    _OLDEST_RECORD,
    *(metric for metric, _ in _OF_LABEL.values()),
    _LONG_POLLS,
    *_PEERS.values(),
}
"""All families that any table except ``counters`` needs."""
QUEUE_METRICS: Final = shape_positions.QUEUE_METRICS
"""The families of METRICS by queue."""


class Scrapes:
    """Values that all samples of one scrape share. All arrays are by scrape."""

    def __init__(self, rows: Rows, period_us: int) -> None:
        count = len(rows.scrape.keys)
        first = rows.scrape.first_rows()
        self.first = first
        self.at_us: Ints = rows.ts[first]
        self.tick_us: Ints = self.at_us // period_us * period_us
        self.node: Ints = rows.node.at[first]
        about = wide(rows, rows.scrape.at, (LOOK, UP_SINCE))
        every = np.arange(count, dtype=np.int64)
        snapshot_us = microseconds(about.at(LOOK, every))
        self.up_since_us: Floats = microseconds(about.at(UP_SINCE, every))
        # Without that family (older versions, other exporters) the time of the scrape is used. Two
        # clocks may differ, so a snapshot is old only if an earlier scrape had it.
        self.is_fresh: Bools = _shown_first(rows.target.codes[first], snapshot_us, self.at_us)
        known = self.is_fresh & np.isfinite(snapshot_us)
        self.ts_us: Ints = np.where(known, snapshot_us, self.at_us).astype(np.int64)
        self.clock_seconds: Floats = (snapshot_us - self.at_us) / 1e6
        self.epoch, self.role = _roles(rows, self, STALE_PERIODS * period_us)


def shape(
    samples: pa.Table, period_s: float, *, counters: Collection[str] | None = None
) -> dict[str, pa.Table]:
    """Make typed tables from all samples of one partition.
    period_s: period of the ticks. counters: names of counters to keep; None: all. A repeated sample
    makes one row. Rows are sorted by series and time."""
    period_us = round(period_s * 1_000_000)
    is_gap = equals(samples.column("metric"), sampled.GAP_METRIC)
    if pc.any(is_gap).as_py():  # rare, and a filter copies all strings
        samples = samples.filter(pc.invert(is_gap))
    rows = Rows(samples)
    scrapes = Scrapes(rows, period_us)
    known = Pairs(rows, scrapes.is_fresh)
    positions, series = positions_and_series(rows, known, scrapes)
    return {
        "series": series,
        "positions": positions,
        "logs": _logs(rows, scrapes),
        "pairs": known.table(rows, scrapes),
        "replicas": _replicas(rows, scrapes),
        "counters": _counters(rows, scrapes, counters),
    }


def _shown_first(target: Ints, snapshot_us: Floats, at_us: Ints) -> Bools:
    """Return which scrapes are the first of a target to show its snapshot, or show none."""
    order = np.lexsort((at_us, snapshot_us, target))
    same = np.diff(target[order]) == 0
    same &= np.diff(snapshot_us[order]) == 0
    fresh = np.ones(len(order), dtype=bool)
    # Two samples of one instant are one scrape.
    fresh[order[1:][same & (np.diff(at_us[order]) > 0)]] = False
    return fresh


def _roles(rows: Rows, scrapes: Scrapes, reach_us: int) -> tuple[Floats, pa.Array]:
    """Return epoch and role by scrape, from the ha of the same node: the last before it, or the
    next."""
    own = np.flatnonzero(rows.metric.is_in((ROLE,)) & (rows.value == 1))
    label_sets = rows.labels.codes[own].astype(np.float64)
    role = integers(_nearest(rows.node.at[own], rows.ts[own], label_sets, scrapes, reach_us))
    roles = _labels(rows, "role").take(role)
    of_epoch = np.flatnonzero(rows.metric.is_in((EPOCH,)))
    epoch = _nearest(
        rows.node.at[of_epoch], rows.ts[of_epoch], rows.value[of_epoch], scrapes, reach_us
    )
    return epoch, roles


def _labels(rows: Rows, name: str) -> pa.Array:
    """Values of one label, by the code of the label set."""
    return pa.array([label_value(text, name) for text in rows.labels.names], pa.string())


def _nearest(node: Ints, ts: Ints, values: Floats, scrapes: Scrapes, reach_us: int) -> Floats:
    """Value of the same node nearest to each scrape, within reach_us; earlier ones first."""
    found = np.full(len(scrapes.at_us), np.nan)
    for each in np.unique(node):
        here = np.flatnonzero(node == each)
        here = here[np.argsort(ts[here], kind="stable")]
        asked = np.flatnonzero(scrapes.node == each)
        at = np.searchsorted(ts[here], scrapes.at_us[asked], side="right")
        before, after = here[np.maximum(at - 1, 0)], here[np.minimum(at, len(here) - 1)]
        is_before = (at > 0) & (scrapes.at_us[asked] - ts[before] <= reach_us)
        is_after = (at < len(here)) & (ts[after] - scrapes.at_us[asked] <= reach_us)
        found[asked] = np.where(
            is_before, values[before], np.where(is_after, values[after], np.nan)
        )
    return found


def _logs(rows: Rows, scrapes: Scrapes) -> pa.Table:
    metrics = (*_LOG_OFFSETS.values(), *_LOOK_TIMES.values(), _OLDEST_RECORD)
    found = wide(rows, rows.scrape.at, metrics, rows.is_own)
    at, row = found.keys, found.rows
    is_fresh = scrapes.is_fresh[at]
    columns = {
        "ts": instants(scrapes.ts_us[at]),
        "tick": instants(scrapes.tick_us[at]),
        "cluster": rows.cluster.at(row),
        "broker": rows.broker.at(row),
        "replica": replica_of(rows, row),
        "epoch": integers(scrapes.epoch[at]),
        "role": scrapes.role.take(pa.array(at)),
        "up_since": instants(scrapes.up_since_us[at]),
        "t_min": instants(microseconds(found.of(_OLDEST_RECORD))),
    }
    for name, metric in _LOG_OFFSETS.items():
        columns[name] = integers(found.of(metric))
    for name, metric in _LOOK_TIMES.items():
        columns[name] = instants(np.where(is_fresh, microseconds(found.of(metric)), np.nan))
    for name, (metric, label) in _OF_LABEL.items():
        one = wide(rows, rows.scrape.at, (metric,), labelled(rows.labels, label))
        columns[name] = nullable(one.at(metric, at))
    polls = wide(rows, rows.scrape.at, (_LONG_POLLS,))
    columns["clock_seconds"] = nullable(scrapes.clock_seconds[at])
    columns["long_polls"] = integers(polls.at(_LONG_POLLS, at))
    return schema.fit(pa.table(columns), schema.LOGS)


def _replicas(rows: Rows, scrapes: Scrapes) -> pa.Table:
    keys = rows.scrape.at * (len(rows.labels.names) + 1) + rows.labels.codes
    found = wide(rows, keys, tuple(_PEERS.values()), rows.is_own)
    row = found.rows
    at = rows.scrape.at[row]
    in_sync = found.of(_PEERS["in_sync"])
    return schema.fit(
        pa.table(
            {
                "ts": instants(scrapes.at_us[at]),
                "tick": instants(scrapes.tick_us[at]),
                "cluster": rows.cluster.at(row),
                "broker": rows.broker.at(row),
                "replica": replica_of(rows, row),
                "peer": _labels(rows, "peer").take(pa.array(rows.labels.codes[row])),
                "in_sync": pa.array(in_sync == 1, pa.bool_(), mask=np.isnan(in_sync)),
                "lag_bytes": integers(found.of(_PEERS["lag_bytes"])),
                "lag_seconds": nullable(found.of(_PEERS["lag_seconds"])),
                "skew_seconds": nullable(found.of(_PEERS["skew_seconds"])),
            }
        ),
        schema.REPLICAS,
    )


def _counters(rows: Rows, scrapes: Scrapes, kept: Collection[str] | None) -> pa.Table:
    names = frozenset(
        name
        for name in rows.metric.names
        if (name.endswith(COUNTED) if kept is None else name in kept)
    )
    row = np.flatnonzero(rows.metric.is_in(names) & rows.is_own & ~np.isnan(rows.value))
    if not len(row):
        return schema.COUNTERS.empty_table()
    label_set = rows.scrape.at[row]
    for column in (rows.metric, rows.service, rows.group, rows.topic, rows.labels):
        label_set = Grouped.of(label_set * (len(column.names) + 1) + column.codes[row]).at
    row = row[Grouped.of(label_set).first_rows()]
    at = rows.scrape.at[row]
    columns = {
        "ts": instants(rows.ts[row]),
        "target": rows.target.at(row),
        "metric": rows.metric.at(row),
        "cluster": rows.cluster.at(row),
        "broker": rows.broker.at(row),
        "replica": replica_of(rows, row),
        "service": or_null(rows.service.at(row)),
        "group": or_null(rows.group.at(row)),
        "topic": or_null(rows.topic.at(row)),
        "labels": rows.labels.at(row),
        "value": pa.array(rows.value[row], pa.float64()),
        "started_at": instants(scrapes.up_since_us[at]),
    }
    order = [(name, "ascending") for name in ("metric", "target", "labels", "ts")]
    return schema.fit(pa.table(columns), schema.COUNTERS).sort_by(order)
