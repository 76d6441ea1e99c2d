"""The tables: names, columns, units. Sources, kernel, jobs and report share this definition.

Times are UTC microseconds. Columns of durations end in ``_seconds``, of rates in ``_per_second``,
of positions in the log in ``_physical_offset``; other offsets are queue offsets. Unknown is null.
There are no dictionary columns, because Spark accepts none from Python sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from hashlib import blake2b
from typing import Final

import pyarrow as pa

TIME: Final = pa.timestamp("us", tz="UTC")
_HASH_KEY: Final = b"tidemark series 1"


def _table(*fields: tuple[str, pa.DataType], required: tuple[str, ...]) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=name not in required) for name, kind in fields])


class HeadMethod(StrEnum):
    """Source of the store time of the oldest unread message."""

    EXACT = "exact"
    INTERPOLATED = "interpolated"
    BOUNDED = "bounded"
    NONE = "none"


class Stage(StrEnum):
    """Stage in which a message spends time."""

    APPEND = "append"
    REPLICATION = "replication"
    DISPATCH = "dispatch"
    DELIVERY = "delivery"
    PROCESSING = "processing"
    MIXED = "mixed"


class Gap(StrEnum):
    """Reason why a source has no rows of a time."""

    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    OVERLOAD = "overload"
    TORN = "torn"
    LATE = "late"
    DOWN = "down"
    DAMAGED = "damaged"
    VANISHED = "vanished"
    EXPIRED = "expired"
    HIDDEN = "hidden"
    UNSCRAPED = "unscraped"
    """There are no samples because the scraper was down; the targets may be healthy."""


# -- collected ------------------------------------------------------------------------------------

SAMPLES: Final = _table(
    ("ts", TIME),
    ("source", pa.string()),  # prometheus, or scrape
    ("target", pa.string()),  # label instance: host:port
    ("metric", pa.string()),  # with _total, _bucket, _sum, _count
    ("cluster", pa.string()),
    ("broker", pa.string()),  # the broker set, like g0
    ("replica", pa.string()),  # the node
    ("service", pa.string()),  # broker, reput, ha
    ("group", pa.string()),  # null if the family has no such label
    ("topic", pa.string()),
    ("queue", pa.int32()),
    ("labels", pa.string()),  # all others: `a="b",c="d"`, sorted, escaped as in exposition text
    ("value", pa.float64()),
    required=("ts", "source", "target", "metric", "labels", "value"),
)
SERIES: Final = _table(
    ("series_id", pa.int64()),
    ("pair_id", pa.int64()),
    ("cluster", pa.string()),
    ("broker", pa.string()),
    ("group", pa.string()),
    ("topic", pa.string()),
    ("queue", pa.int32()),
    ("kind", pa.string()),  # main, retry, dlq, system
    ("first_seen", TIME),
    ("last_seen", TIME),
    required=(
        "series_id",
        "pair_id",
        "cluster",
        "broker",
        "group",
        "topic",
        "queue",
        "kind",
        "first_seen",
        "last_seen",
    ),
)
POSITIONS: Final = _table(
    ("ts", TIME),  # of the snapshot, by the node's clock: a row is read in one pass
    ("tick", TIME),  # of the scrape, by the scraper's clock, rounded down to the period
    ("series_id", pa.int64()),
    ("pair_id", pa.int64()),
    ("replica", pa.string()),  # the node that reported it
    ("epoch", pa.int64()),
    ("min_offset", pa.int64()),
    ("max_offset", pa.int64()),
    ("commit_offset", pa.int64()),
    ("pull_offset", pa.int64()),
    ("head_store_ts", TIME),  # store time of the oldest message that is not committed
    ("head_method", pa.string()),  # exact or none
    ("head_error_seconds", pa.float64()),
    ("reason", pa.string()),  # why something is null: statuses.Reason
    ("member", pa.int64()),  # number of the queue's owner in its group; 0: none
    required=("ts", "tick", "series_id", "pair_id", "replica", "head_method"),
)
LOGS: Final = _table(
    ("ts", TIME),
    ("tick", TIME),
    ("cluster", pa.string()),
    ("broker", pa.string()),
    ("replica", pa.string()),
    ("epoch", pa.int64()),
    ("role", pa.string()),
    ("up_since", TIME),
    ("min_physical_offset", pa.int64()),
    ("max_physical_offset", pa.int64()),
    ("flushed_physical_offset", pa.int64()),
    ("confirm_physical_offset", pa.int64()),
    ("dispatched_physical_offset", pa.int64()),
    ("t_max", TIME),  # store time of the newest record
    ("t_confirm", TIME),  # of the first record not confirmed; t_max if all are
    ("t_dispatched", TIME),  # of the first confirmed record not dispatched; t_confirm if all are
    ("t_min", TIME),  # of the oldest record in the log
    ("free_bytes", pa.int64()),  # of the volume of the commit log
    ("capacity_bytes", pa.int64()),
    ("put_wait_seconds", pa.float64()),  # of the send request that has waited longest
    ("pulls_queued", pa.int64()),
    ("long_polls", pa.int64()),
    ("clock_seconds", pa.float64()),  # its snapshot minus the scrape: how far its clock is ahead
    required=("ts", "tick", "cluster", "broker", "replica"),
)
PAIRS: Final = _table(
    ("ts", TIME),
    ("tick", TIME),
    ("pair_id", pa.int64()),
    ("cluster", pa.string()),
    ("broker", pa.string()),
    ("replica", pa.string()),
    ("group", pa.string()),
    ("topic", pa.string()),
    ("subscribed", pa.bool_()),
    ("members", pa.int64()),
    ("objective_seconds", pa.float64()),
    ("stall_after_seconds", pa.float64()),
    ("paused", pa.bool_()),  # an operator stopped the group from consuming
    ("broadcasting", pa.bool_()),
    ("inflight", pa.int64()),
    ("oldest_undelivered_ts", TIME),  # t_dispatched if nothing is ready
    ("oldest_uncommitted_ts", TIME),  # oldest_undelivered_ts if nothing is in flight
    # The oldest undelivered message of the queue that has the oldest uncommitted one. t_dispatched
    # if there is none, or if the queue's member is busy and does not fetch. Null: not exported.
    ("awaiting_delivery_ts", TIME),
    ("redelivered_total", pa.int64()),
    ("consumed_total", pa.int64()),
    ("expired_total", pa.int64()),  # messages lost to retention
    ("reset_forward_total", pa.int64()),
    ("reset_backward_total", pa.int64()),  # resets by request
    ("topic_messages_in_total", pa.int64()),  # of the topic on this broker, all kinds
    ("topic_received_bytes_total", pa.int64()),
    required=("ts", "tick", "pair_id", "cluster", "broker", "replica", "group", "topic"),
)
REPLICAS: Final = _table(
    ("ts", TIME),
    ("tick", TIME),
    ("cluster", pa.string()),
    ("broker", pa.string()),
    ("replica", pa.string()),
    ("peer", pa.string()),
    ("in_sync", pa.bool_()),
    ("lag_bytes", pa.int64()),
    ("lag_seconds", pa.float64()),
    ("skew_seconds", pa.float64()),
    required=("ts", "tick", "cluster", "broker", "replica", "peer"),
)
COUNTERS: Final = _table(
    ("ts", TIME),
    ("target", pa.string()),
    ("metric", pa.string()),
    ("cluster", pa.string()),
    ("broker", pa.string()),
    ("replica", pa.string()),
    ("service", pa.string()),
    ("group", pa.string()),
    ("topic", pa.string()),
    ("labels", pa.string()),
    ("value", pa.float64()),
    ("started_at", TIME),  # of the process that counts
    required=("ts", "target", "metric", "labels", "value"),
)
OFFSET_EVENTS: Final = _table(
    ("ts", TIME),
    ("tick", TIME),
    ("series_id", pa.int64()),
    ("pair_id", pa.int64()),
    ("kind", pa.string()),  # reset_backward, reset_forward, expire, clear, truncate, rewind
    ("from_offset", pa.int64()),
    ("to_offset", pa.int64()),
    ("by_request", pa.bool_()),
    required=("ts", "tick", "series_id", "pair_id", "kind"),
)
MESSAGES: Final = _table(
    ("broker", pa.string()),
    ("file", pa.string()),
    ("physical_offset", pa.int64()),
    ("size", pa.int32()),
    ("topic", pa.string()),
    ("queue", pa.int32()),
    ("queue_offset", pa.int64()),
    ("born_ts", TIME),
    ("store_ts", TIME),
    ("tag_hash", pa.int64()),
    ("keys", pa.string()),
    ("sys_flag", pa.int32()),
    ("body_size", pa.int32()),
    ("crc_ok", pa.bool_()),  # null: not verified
    ("gap", pa.string()),  # a Gap: this row is no record, from here size bytes were not read
    ("gap_detail", pa.string()),
    required=("broker", "file", "physical_offset", "size"),
)
QUEUE_UNITS: Final = _table(
    ("broker", pa.string()),
    ("topic", pa.string()),
    ("queue", pa.int32()),
    ("queue_offset", pa.int64()),
    ("physical_offset", pa.int64()),  # of the record that the unit points to
    ("size", pa.int32()),
    ("tags_code", pa.int64()),  # hash of the tags; of a delayed record the time when it is due
    ("gap", pa.string()),  # a Gap: no unit, and none behind it in its file
    ("gap_detail", pa.string()),
    required=("broker", "topic", "queue", "queue_offset"),
)
OFFSETS: Final = _table(
    ("broker", pa.string()),
    ("group", pa.string()),
    ("topic", pa.string()),
    ("queue", pa.int32()),
    ("commit_offset", pa.int64()),  # next queue offset to consume
    ("min_offset", pa.int64()),  # of the queue, from its files; null: it has none
    ("max_offset", pa.int64()),
    ("origin", pa.string()),  # log: the broker's state records; json: consumerOffset.json
    required=("broker", "group", "topic", "queue", "commit_offset", "origin"),
)
TOPIC_MESSAGES: Final = _table(
    ("topic", pa.string()),
    ("queue", pa.int32()),
    ("queue_offset", pa.int64()),
    ("next_offset", pa.int64()),  # queue offset after this row: of a gap, where it goes on
    ("physical_offset", pa.int64()),
    ("size", pa.int32()),  # of the record
    ("born_ts", TIME),
    ("store_ts", TIME),
    ("tag", pa.string()),
    ("keys", pa.string()),  # as sent, separated by spaces
    ("unique_id", pa.string()),
    ("properties", pa.map_(pa.string(), pa.string())),  # tag, keys and unique id among them
    ("sys_flag", pa.int32()),
    ("reconsume_times", pa.int32()),
    ("body", pa.binary()),
    ("gap", pa.string()),  # a Gap: no message; [queue_offset, next_offset) cannot be had
    ("gap_detail", pa.string()),
    required=("topic", "queue", "queue_offset", "next_offset"),
)
GAPS: Final = _table(
    ("source", pa.string()),
    ("subject", pa.string()),  # target, selector or file
    ("from_ts", TIME),
    ("to_ts", TIME),
    ("reason", pa.string()),
    ("detail", pa.string()),
    ("rows_lost", pa.int64()),
    required=("source", "subject", "reason", "detail"),
)

# -- computed -------------------------------------------------------------------------------------

RATES: Final = _table(
    ("tick", TIME),
    ("series_id", pa.int64()),
    ("pair_id", pa.int64()),
    ("segment", TIME),  # begin of the segment, a stretch of offsets without a cut
    ("dt_seconds", pa.float64()),
    ("produced", pa.int64()),
    ("consumed", pa.int64()),
    ("produce_per_second", pa.float64()),
    ("consume_per_second", pa.float64()),
    required=("tick", "series_id", "pair_id"),
)
LAG: Final = _table(
    ("tick", TIME),
    ("ts", TIME),
    ("series_id", pa.int64()),
    ("pair_id", pa.int64()),
    ("lag", pa.int64()),
    ("lost", pa.int64()),
    ("ahead", pa.int64()),
    ("in_flight", pa.int64()),
    ("ready", pa.int64()),
    ("age_seconds", pa.float64()),
    ("age_low_seconds", pa.float64()),
    ("age_high_seconds", pa.float64()),
    ("age_method", pa.string()),
    ("progress", pa.float64()),
    ("status", pa.string()),
    ("status_since", TIME),
    ("reason", pa.string()),
    ("evidence", pa.string()),  # JSON object: the numbers that the rule used
    required=("tick", "series_id", "pair_id", "age_method", "status", "status_since"),
)
PAIR_LAG: Final = _table(
    ("tick", TIME),
    ("pair_id", pa.int64()),
    ("cluster", pa.string()),
    ("broker", pa.string()),
    ("group", pa.string()),
    ("topic", pa.string()),
    ("lag_sum", pa.int64()),
    ("lag_max", pa.int64()),
    ("hidden_lag", pa.int64()),  # messages not dispatched yet, estimated
    ("age_max_seconds", pa.float64()),
    ("age_p50_seconds", pa.float64()),
    ("age_p95_seconds", pa.float64()),
    ("objective_seconds", pa.float64()),
    ("members", pa.int64()),
    ("produce_per_second", pa.float64()),
    ("consume_per_second", pa.float64()),
    ("progress", pa.float64()),
    ("drain_p10_seconds", pa.float64()),  # +inf: at this pace never
    ("drain_p50_seconds", pa.float64()),
    ("drain_p90_seconds", pa.float64()),
    ("drain_method", pa.string()),  # time, count
    ("queues", pa.int32()),
    ("lagging", pa.int32()),
    ("stuck", pa.int32()),
    ("unknown", pa.int32()),
    ("ahead", pa.int32()),
    ("lost", pa.int64()),
    ("skew", pa.float64()),
    ("gini", pa.float64()),
    ("skew_kind", pa.string()),  # hot_queue, slow_member, poison_message, unassigned_queue
    ("status", pa.string()),
    ("status_since", TIME),
    ("cause", pa.string()),  # a sentence
    required=("tick", "pair_id", "cluster", "broker", "group", "topic", "status", "status_since"),
)
STATUS_CHANGES: Final = _table(
    ("tick", TIME),
    ("series_id", pa.int64()),  # null: of the pair as a whole
    ("pair_id", pa.int64()),
    ("status_from", pa.string()),
    ("status_to", pa.string()),
    ("level", pa.string()),  # none, info, ticket, page
    ("evidence", pa.string()),
    ("previous_seconds", pa.float64()),
    required=("tick", "pair_id", "status_to", "level"),
)
STAGES: Final = _table(
    ("tick", TIME),
    ("pair_id", pa.int64()),
    ("cluster", pa.string()),
    ("broker", pa.string()),
    ("group", pa.string()),
    ("topic", pa.string()),
    ("replication_seconds", pa.float64()),
    ("dispatch_seconds", pa.float64()),
    ("delivery_seconds", pa.float64()),
    ("processing_seconds", pa.float64()),
    ("idle_seconds", pa.float64()),  # since anything was stored: ts - t_max
    ("residual_seconds", pa.float64()),  # age of the pair minus the five; 0 but for rounding
    ("blamed", pa.string()),
    ("confidence", pa.float64()),  # share of the blamed stage
    ("detail", pa.string()),
    required=("tick", "pair_id", "cluster", "broker", "group", "topic"),
)
CAPACITY: Final = _table(
    ("day", TIME),
    ("cluster", pa.string()),
    ("broker", pa.string()),
    ("group", pa.string()),
    ("topic", pa.string()),
    ("c_max_per_second", pa.float64()),
    ("c_max_low_per_second", pa.float64()),
    ("utilisation_p95", pa.float64()),
    ("members_at_max", pa.int64()),
    ("queues", pa.int64()),
    ("limited_by", pa.string()),
    ("minutes", pa.int64()),  # in which work was always ready
    required=("day", "cluster", "group", "topic", "minutes"),
)
FORECASTS: Final = _table(
    ("issued_at", TIME),
    ("subject", pa.string()),  # like `disk broker=g0 volume=log`
    ("kind", pa.string()),  # produce, disk, age
    ("at", TIME),
    ("p10", pa.float64()),
    ("p50", pa.float64()),
    ("p90", pa.float64()),
    ("model", pa.string()),
    ("backtest_error", pa.float64()),
    ("time_to_limit_p10_seconds", pa.float64()),
    ("time_to_limit_p50_seconds", pa.float64()),
    ("time_to_limit_p90_seconds", pa.float64()),
    required=("issued_at", "subject", "kind", "at", "model"),
)
ANOMALIES: Final = _table(
    ("ts", TIME),
    ("subject", pa.string()),
    ("signal", pa.string()),
    ("value", pa.float64()),
    ("expected", pa.float64()),
    ("scale", pa.float64()),
    ("score", pa.float64()),
    ("parent", pa.string()),
    ("suppressed", pa.bool_()),
    required=("ts", "subject", "signal", "value", "expected", "scale", "score", "suppressed"),
)
ROLLUP: Final = _table(
    ("bucket_start", TIME),
    ("grain_seconds", pa.int32()),
    ("series_id", pa.int64()),  # null: of the pair
    ("pair_id", pa.int64()),
    ("ticks", pa.int32()),
    ("lag_first", pa.int64()),
    ("lag_last", pa.int64()),
    ("lag_min", pa.int64()),
    ("lag_max", pa.int64()),
    ("lag_mean", pa.float64()),
    ("age_min_seconds", pa.float64()),
    ("age_max_seconds", pa.float64()),
    ("age_mean_seconds", pa.float64()),
    ("produced", pa.int64()),
    ("consumed", pa.int64()),
    ("skipped", pa.int64()),
    ("imbalance", pa.int64()),  # produced - consumed - skipped - change of lag; 0 or a defect
    ("rate_seconds", pa.float64()),  # the time that produced and consumed cover
    ("members", pa.int64()),  # largest number of members of the pair at one tick
    ("queues", pa.int32()),
    ("worst_status", pa.string()),
    ("seconds_in_status", pa.string()),  # JSON object, by status
    required=("bucket_start", "grain_seconds", "pair_id", "ticks", "worst_status"),
)

TABLES: Final[Mapping[str, pa.Schema]] = {
    "samples": SAMPLES,
    "series": SERIES,
    "positions": POSITIONS,
    "logs": LOGS,
    "pairs": PAIRS,
    "replicas": REPLICAS,
    "counters": COUNTERS,
    "offset_events": OFFSET_EVENTS,
    "messages": MESSAGES,
    "gaps": GAPS,
    "rates": RATES,
    "lag": LAG,
    "pair_lag": PAIR_LAG,
    "status_changes": STATUS_CHANGES,
    "stages": STAGES,
    "capacity": CAPACITY,
    "forecasts": FORECASTS,
    "anomalies": ANOMALIES,
    "rollup": ROLLUP,
}
"""Every table by its name."""


def pair_id(cluster: str, broker: str, group: str, topic: str) -> int:
    """Id of a pair: a group and a topic on one broker set. All its series are in the same
    bucket."""
    return _hashed(cluster, broker, group, topic)


def series_id(cluster: str, broker: str, group: str, topic: str, queue: int) -> int:
    """Id of a series: one queue of a pair."""
    return _hashed(cluster, broker, group, topic, str(queue))


def _hashed(*names: str) -> int:
    joined = "\x1f".join(names).encode()
    return int.from_bytes(blake2b(joined, digest_size=8, key=_HASH_KEY).digest(), signed=True)


def fit(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table with exactly these columns, in this order, cast; missing ones are null.

    Raises ValueError if a required column is missing or has nulls, ArrowInvalid if a cast loses
    data.
    """
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            if not field.nullable:
                raise ValueError(f"the table lacks its required column {field.name}")
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        column = table.column(field.name).cast(field.type)
        if not field.nullable and column.null_count:
            raise ValueError(f"{column.null_count} nulls in the required column {field.name}")
        columns.append(column)
    return pa.table(columns, schema=schema)
