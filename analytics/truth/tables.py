"""A workload as Arrow tables of `analytics.schema`: what the sources would have collected. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from analytics import schema
from analytics.truth.reading import (
    master,
    pair_look,
    position,
    stages,
    started,
)
from analytics.truth.steps import ABSENT, SECOND, Ints, Mask
from analytics.truth.workload import RECORD_SIZE, Broker, Pair, Truth


class Collected(NamedTuple):
    """The collected tables of one workload, each sorted by its key and then by time."""

    series: pa.Table
    positions: pa.Table
    pairs: pa.Table
    logs: pa.Table
    replicas: pa.Table
    counters: pa.Table
    offset_events: pa.Table
    gaps: pa.Table


def collected(truth: Truth) -> Collected:
    """Everything the cluster reported at the ticks that were heard of.

    There are no rows of `offset_events`: from collected counters and offsets alone they must be
    found. The rows of `gaps` say which ticks are missing.
    """
    ticks, looks = truth.ticks(), truth.looks()
    positions = [_positions(truth, pair, ticks, looks) for pair in truth.pairs]
    return Collected(
        series=series(truth),
        positions=_joined(schema.POSITIONS, positions).sort_by(
            [("series_id", "ascending"), ("ts", "ascending")]
        ),
        pairs=_joined(schema.PAIRS, [_pairs(truth, pair, ticks, looks) for pair in truth.pairs]),
        logs=_joined(
            schema.LOGS,
            [
                _logs(truth, broker, node, ticks, looks)
                for broker in truth.brokers
                for node in range(len(broker.nodes))
            ],
        ),
        replicas=_joined(
            schema.REPLICAS, [_replicas(truth, broker, ticks, looks) for broker in truth.brokers]
        ),
        counters=_counters(truth, looks),
        offset_events=schema.OFFSET_EVENTS.empty_table(),
        gaps=_gaps(truth),
    )


def pair_id(truth: Truth, pair: Pair) -> int:
    """As all tables name it."""
    return schema.pair_id(truth.cluster, pair.broker, pair.group, pair.topic)


def series_id(truth: Truth, pair: Pair, queue: int) -> int:
    """As all tables name it."""
    return schema.series_id(truth.cluster, pair.broker, pair.group, pair.topic, queue)


def series(truth: Truth) -> pa.Table:
    """One row for each queue of each pair."""
    ticks = truth.looks()
    rows = [
        {
            "series_id": series_id(truth, pair, reading.queue.queue),
            "pair_id": pair_id(truth, pair),
            "cluster": truth.cluster,
            "broker": pair.broker,
            "group": pair.group,
            "topic": pair.topic,
            "queue": reading.queue.queue,
            "kind": "main",
            "first_seen": int(ticks[0]) if len(ticks) else truth.start,
            "last_seen": int(ticks[-1]) if len(ticks) else truth.end,
        }
        for pair in truth.pairs
        for reading in pair.readings
    ]
    return pa.Table.from_pylist(
        rows,
        schema=pa.schema(
            [
                pa.field(field.name, pa.int64() if field.type == schema.TIME else field.type)
                for field in schema.SERIES
            ]
        ),
    ).cast(schema.SERIES)


def _positions(truth: Truth, pair: Pair, ticks: Ints, looks: Ints) -> pa.Table:
    broker = truth.broker(pair.broker)
    who, epoch = master(broker, looks), broker.epoch(looks)
    here = (who != ABSENT) & (pair.subscribed(looks) != ABSENT)
    made = []
    for reading in pair.readings:
        at = position(reading, looks)
        seen = here & (at.max_offset != ABSENT)
        told = at.head_told != ABSENT
        hidden = (at.head_time != ABSENT) & ~told
        never = "broadcasting" if pair.broadcasting else "never_committed"
        reason = np.where(at.commit == ABSENT, never, np.where(hidden, "head_unknown", ""))
        made.append(
            _table(
                seen,
                {
                    "ts": looks,
                    "tick": ticks,
                    "series_id": np.full(
                        len(looks), series_id(truth, pair, reading.queue.queue), np.int64
                    ),
                    "pair_id": np.full(len(looks), pair_id(truth, pair), np.int64),
                    "replica": _names(broker, who),
                    "epoch": epoch,
                    "min_offset": at.min_offset,
                    "max_offset": at.max_offset,
                    "commit_offset": at.commit,
                    "pull_offset": np.full(len(looks), ABSENT, np.int64),
                    "head_store_ts": at.head_told,
                    "head_method": np.where(told, "exact", "none"),
                    "head_error_seconds": np.where(told, 0.0, np.nan),
                    "reason": reason,
                },
            )
        )
    return pa.concat_tables([schema.fit(table, schema.POSITIONS) for table in made])


def _pairs(truth: Truth, pair: Pair, ticks: Ints, looks: Ints) -> pa.Table:
    broker = truth.broker(pair.broker)
    who = master(broker, looks)
    look = pair_look(truth, pair, looks)
    paused = pair.paused(looks)
    subscribed = pair.subscribed(looks)
    size = len(looks)
    columns: dict[str, object] = {
        "ts": looks,
        "tick": ticks,
        "pair_id": np.full(size, pair_id(truth, pair), np.int64),
        "cluster": np.full(size, truth.cluster),
        "broker": np.full(size, pair.broker),
        "replica": _names(broker, who),
        "group": np.full(size, pair.group),
        "topic": np.full(size, pair.topic),
        "subscribed": subscribed == 1,
        "members": pair.members(looks),
        "objective_seconds": np.full(size, pair.objective_seconds),
        "inflight": look.inflight,
        "oldest_undelivered_ts": look.oldest_undelivered,
        "oldest_uncommitted_ts": look.oldest_uncommitted,
        "redelivered_total": look.redelivered,
        "consumed_total": look.totals.consumed,
        "expired_total": look.totals.expired,
        "reset_forward_total": look.totals.reset_forward,
        "reset_backward_total": look.totals.resets_backward,
        "topic_messages_in_total": look.arrived,
        "topic_received_bytes_total": look.arrived * RECORD_SIZE,
    }
    if pair.stall_after_seconds is not None:
        columns["stall_after_seconds"] = np.full(size, pair.stall_after_seconds)
    if len(pair.paused.at):
        columns["paused"] = paused == 1
    if pair.pinned is not None:
        columns["pinned"] = np.full(size, pair.pinned)
    if pair.broadcasting is not None:
        columns["broadcasting"] = np.full(size, pair.broadcasting)
    return schema.fit(_table((who != ABSENT) & (subscribed != ABSENT), columns), schema.PAIRS)


def _logs(truth: Truth, broker: Broker, node: int, ticks: Ints, looks: Ints) -> pa.Table:
    at = stages(broker, looks)
    size = len(looks)
    mine = master(broker, looks) == node
    return schema.fit(
        _table(
            np.ones(size, np.bool_),
            {
                "ts": looks,
                "tick": ticks,
                "cluster": np.full(size, truth.cluster),
                "broker": np.full(size, broker.name),
                "replica": np.full(size, broker.nodes[node]),
                "epoch": broker.epoch(looks),
                "role": np.where(mine, "master", "slave"),
                "up_since": started(truth, broker, node, looks),
                "min_physical_offset": at.min_offset,
                "max_physical_offset": at.max_offset,
                "flushed_physical_offset": at.max_offset,
                "confirm_physical_offset": at.confirm,
                "dispatched_physical_offset": at.dispatched,
                "t_max": at.t_max,
                "t_confirm": at.t_confirm,
                "t_dispatched": at.t_dispatched,
                "t_min": at.t_min,
                "free_bytes": broker.log.free_bytes(looks),
                "capacity_bytes": np.full(size, broker.log.capacity_bytes, np.int64),
            },
        ),
        schema.LOGS,
    )


def _replicas(truth: Truth, broker: Broker, ticks: Ints, looks: Ints) -> pa.Table:
    who = master(broker, looks)
    made = []
    for peer in range(len(broker.nodes)):
        size = len(looks)
        lag = broker.replica_lag_bytes(looks)
        made.append(
            _table(
                (who != ABSENT) & (who != peer),
                {
                    "ts": looks,
                    "tick": ticks,
                    "cluster": np.full(size, truth.cluster),
                    "broker": np.full(size, broker.name),
                    "replica": _names(broker, who),
                    "peer": np.full(size, broker.nodes[peer]),
                    "in_sync": np.ones(size, np.bool_),
                    "lag_bytes": lag,
                    "lag_seconds": np.zeros(size),
                    "skew_seconds": broker.skew_microseconds(looks) / SECOND,
                },
            )
        )
    return pa.concat_tables([schema.fit(table, schema.REPLICAS) for table in made])


def _counters(truth: Truth, looks: Ints) -> pa.Table:
    made = [schema.COUNTERS.empty_table()]
    for counter in truth.counters:
        broker = truth.broker(counter.broker)
        begun = started(truth, broker, broker.nodes.index(counter.node), looks)
        labels = dict(counter.labels)
        others = ",".join(
            f'{name}="{value}"'
            for name, value in sorted(labels.items())
            if name not in {"group", "topic"}
        )
        size = len(looks)
        before = np.maximum(counter.counted(begun), 0)
        columns: dict[str, object] = {
            "ts": looks,
            "target": np.full(size, target(counter.node, counter.service)),
            "metric": np.full(size, counter.metric),
            "cluster": np.full(size, truth.cluster),
            "broker": np.full(size, counter.broker),
            "replica": np.full(size, counter.node),
            "service": np.full(size, counter.service),
            "labels": np.full(size, others, dtype=object),
            "value": (np.maximum(counter.counted(looks), 0) - before).astype(np.float64),
            "started_at": begun,
        }
        for name in ("group", "topic"):
            if name in labels:
                columns[name] = np.full(size, labels[name])
        made.append(schema.fit(_table(looks >= begun, columns), schema.COUNTERS))
    return pa.concat_tables(made)


def target(node: str, service: str) -> str:
    """The label `instance` of a process of a workload."""
    return f"{node}.{service}:9100"


def _gaps(truth: Truth) -> pa.Table:
    missing = sorted(truth.missing)
    rows = [
        {
            "source": "scrape",
            "subject": truth.cluster,
            "from_ts": tick - truth.period,
            "to_ts": tick,
            "reason": "unreachable",
            "detail": "removed from the workload",
        }
        for tick in missing
    ]
    columns = {
        name: pa.array([row[name] for row in rows])
        for name in ("source", "subject", "from_ts", "to_ts", "reason", "detail")
        if rows
    }
    return schema.fit(pa.table(columns), schema.GAPS) if rows else schema.GAPS.empty_table()


def _names(broker: Broker, index: Ints) -> np.ndarray:
    names = np.array(broker.nodes)
    found: np.ndarray = names[np.clip(index, 0, len(names) - 1)]
    return found


def _table(rows: Mask, columns: dict[str, object]) -> pa.Table:
    """Of these rows; ABSENT, NaN and empty reasons become null."""
    made = {}
    for name, column in columns.items():
        values = np.asarray(column)[rows]
        if values.dtype == np.int64:
            made[name] = pa.array(values, mask=values == ABSENT)
        elif values.dtype == np.float64:
            made[name] = pa.array(values, mask=np.isnan(values))
        elif name == "reason":
            made[name] = pa.array(values.tolist(), pa.string(), mask=values == "")
        else:
            kind = pa.bool_() if values.dtype == np.bool_ else pa.string()
            made[name] = pa.array(values.tolist(), kind)
    return pa.table(made)


def _joined(fields: pa.Schema, tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables([fields.empty_table(), *tables]).combine_chunks()
