"""A workload as Arrow tables of `analytics.schema`: what the sources would have collected. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from analytics import schema
from tests.truth import node_tables
from tests.truth.columns import joined, names, table
from tests.truth.reading import (
    master,
    pair_sample,
    position,
)
from tests.truth.steps import ABSENT, Ints, by_clock
from tests.truth.workload import RECORD_SIZE, Pair, Truth


class Collected(NamedTuple):
    """The collected tables of one workload, each sorted by its key and then by time."""

    series: pa.Table
    positions: pa.Table
    pairs: pa.Table
    logs: pa.Table
    replicas: pa.Table
    offset_events: pa.Table
    gaps: pa.Table


def collected(truth: Truth) -> Collected:
    """Everything the cluster reported at the ticks that were heard of.

    There are no rows of `offset_events`: from counters of pairs and offsets alone they must be
    found. The rows of `gaps` are the missing ticks.
    """
    ticks, sample_times = truth.ticks(), truth.sample_times()
    positions = [_positions(truth, pair, ticks, sample_times) for pair in truth.pairs]
    return Collected(
        series=series(truth),
        positions=joined(schema.POSITIONS, positions).sort_by(
            [("series_id", "ascending"), ("ts", "ascending")]
        ),
        pairs=joined(
            schema.PAIRS, [_pairs(truth, pair, ticks, sample_times) for pair in truth.pairs]
        ),
        logs=joined(
            schema.LOGS,
            [
                node_tables.logs(truth, broker, node, ticks, sample_times)
                for broker in truth.brokers
                for node in range(len(broker.nodes))
            ],
        ),
        replicas=joined(
            schema.REPLICAS,
            [node_tables.replicas(truth, broker, ticks, sample_times) for broker in truth.brokers],
        ),
        offset_events=schema.OFFSET_EVENTS.empty_table(),
        gaps=node_tables.gaps(truth),
    )


def pair_id(truth: Truth, pair: Pair) -> int:
    """Id of a pair, as in all tables."""
    return schema.pair_id(truth.cluster, pair.broker, pair.group, pair.topic)


def series_id(truth: Truth, pair: Pair, queue: int) -> int:
    """Id of a series, as in all tables."""
    return schema.series_id(truth.cluster, pair.broker, pair.group, pair.topic, queue)


def series(truth: Truth) -> pa.Table:
    """One row for each queue of each pair."""
    ticks = truth.sample_times()
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


def _positions(truth: Truth, pair: Pair, ticks: Ints, sample_times: Ints) -> pa.Table:
    broker = truth.broker(pair.broker)
    who, epoch = master(broker, sample_times), broker.epoch(sample_times)
    here = (who != ABSENT) & (pair.subscribed(sample_times) != ABSENT)
    made = []
    for reading in pair.readings:
        at = position(reading, sample_times)
        seen = here & (at.max_offset != ABSENT)
        exported = at.head_exported != ABSENT
        hidden = (at.head_time != ABSENT) & ~exported
        never = "broadcasting" if pair.broadcasting else "never_committed"
        reason = np.where(at.commit == ABSENT, never, np.where(hidden, "head_unknown", ""))
        made.append(
            table(
                seen,
                {
                    "ts": sample_times + broker.clock_off,
                    "tick": ticks,
                    "series_id": np.full(
                        len(sample_times), series_id(truth, pair, reading.queue.queue), np.int64
                    ),
                    "pair_id": np.full(len(sample_times), pair_id(truth, pair), np.int64),
                    "replica": names(broker, who),
                    "epoch": epoch,
                    "min_offset": at.min_offset,
                    "max_offset": at.max_offset,
                    "commit_offset": at.commit,
                    "pull_offset": np.full(len(sample_times), ABSENT, np.int64),
                    "head_store_ts": by_clock(at.head_exported, broker.clock_off),
                    "head_method": np.where(exported, "exact", "none"),
                    "head_error_seconds": np.where(exported, 0.0, np.nan),
                    "reason": reason,
                    "member": at.member,
                },
            )
        )
    return pa.concat_tables([schema.fit(table, schema.POSITIONS) for table in made])


def _pairs(truth: Truth, pair: Pair, ticks: Ints, sample_times: Ints) -> pa.Table:
    broker = truth.broker(pair.broker)
    who = master(broker, sample_times)
    sample = pair_sample(truth, pair, sample_times)
    paused = pair.paused(sample_times)
    subscribed = pair.subscribed(sample_times)
    size = len(sample_times)
    columns: dict[str, object] = {
        "ts": sample_times + broker.clock_off,
        "tick": ticks,
        "pair_id": np.full(size, pair_id(truth, pair), np.int64),
        "cluster": np.full(size, truth.cluster),
        "broker": np.full(size, pair.broker),
        "replica": names(broker, who),
        "group": np.full(size, pair.group),
        "topic": np.full(size, pair.topic),
        "subscribed": subscribed == 1,
        "members": pair.members(sample_times),
        "objective_seconds": np.full(size, pair.objective_seconds),
        "topic_messages_in_total": sample.arrived,
        "topic_received_bytes_total": sample.arrived * RECORD_SIZE,
    }
    of_lag: dict[str, object] = {
        "inflight": sample.inflight,
        "oldest_undelivered_ts": by_clock(sample.oldest_undelivered, broker.clock_off),
        "oldest_uncommitted_ts": by_clock(sample.oldest_uncommitted, broker.clock_off),
        "awaiting_delivery_ts": by_clock(sample.awaiting_delivery, broker.clock_off),
        "redelivered_total": sample.redelivered,
        "consumed_total": sample.totals.consumed,
        "expired_total": sample.totals.expired,
        "reset_forward_total": sample.totals.reset_forward,
        "reset_backward_total": sample.totals.resets_backward,
    }
    if not pair.broadcasting:
        columns |= of_lag
    if pair.stall_after_seconds is not None:
        columns["stall_after_seconds"] = np.full(size, pair.stall_after_seconds)
    if len(pair.paused.at):
        columns["paused"] = paused == 1
    if pair.broadcasting is not None:
        columns["broadcasting"] = np.full(size, pair.broadcasting)
    return schema.fit(table((who != ABSENT) & (subscribed != ABSENT), columns), schema.PAIRS)
