"""The tables: names, columns, units. Sources, kernel, jobs and report share this definition.

Times are UTC microseconds. Columns of durations end in ``_seconds``, of rates in ``_per_second``,
of positions in the log in ``_physical_offset``; other offsets are queue offsets. Unknown is null.
There are no dictionary columns, because Spark accepts none from Python sources.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

import pyarrow as pa

TIME: Final = pa.timestamp("us", tz="UTC")
TEXT, BOOL, FLOAT = pa.string(), pa.bool_(), pa.float64()
INT, INT32 = pa.int64(), pa.int32()
_HASH_KEY: Final = b"tidemark series 1"
IDS_KEPT: Final = 1 << 17
"""Hashes that a process keeps, because each tick has the same series."""


def _table(*columns: Sequence[Any]) -> pa.Schema:
    """Schema of columns, given as a type and names; a name that ends in `!` is never null."""
    return pa.schema(
        [
            pa.field(name.rstrip("!"), kind, nullable=not name.endswith("!"))
            for kind, *names in columns
            for name in names
        ]
    )


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
    (TIME, "ts!"),
    (TEXT, "source!"),  # prometheus, or scrape
    (TEXT, "target!"),  # label instance: host:port
    (TEXT, "metric!"),  # with _total, _bucket, _sum, _count
    (TEXT, "cluster"),
    (TEXT, "broker"),  # the broker set, like g0
    (TEXT, "replica"),  # the node
    (TEXT, "service"),  # broker, reput, ha
    (TEXT, "group"),  # null if the family has no such label
    (TEXT, "topic"),
    (INT32, "queue"),
    (TEXT, "labels!"),  # all others: `a="b",c="d"`, sorted, escaped as in exposition text
    (FLOAT, "value!"),
)
CODED_SAMPLES: Final = pa.schema(
    [
        pa.field(field.name, pa.dictionary(pa.int32(), TEXT), field.nullable)
        if field.type == TEXT
        else field
        for field in SAMPLES
    ]
)
"""The same with each text once per batch, for readers that do not pass samples through Spark."""
SERIES: Final = _table(
    (INT, "series_id!", "pair_id!"),
    (TEXT, "cluster!", "broker!", "group!", "topic!"),
    (INT32, "queue!"),
    (TEXT, "kind!"),  # main, retry, dlq, system
    (TIME, "first_seen!", "last_seen!"),
)
POSITIONS: Final = _table(
    (TIME, "ts!"),  # of the snapshot, by the node's clock: a row is read in one pass
    (TIME, "tick!"),  # of the scrape, by the scraper's clock, rounded down to the period
    (INT, "series_id!", "pair_id!"),
    (TEXT, "replica!"),  # the node that reported it
    (INT, "epoch", "min_offset", "max_offset", "commit_offset", "pull_offset"),
    (TIME, "head_store_ts"),  # store time of the oldest message that is not committed
    (TEXT, "head_method!"),  # exact or none
    (FLOAT, "head_error_seconds"),
    (TEXT, "reason"),  # why something is null: statuses.Reason
    (INT, "member"),  # number of the queue's owner in its group; 0: none
)
LOGS: Final = _table(
    (TIME, "ts!", "tick!"),
    (TEXT, "cluster!", "broker!", "replica!"),
    (INT, "epoch"),
    (TEXT, "role"),
    (TIME, "up_since"),
    (INT, "min_physical_offset", "max_physical_offset", "flushed_physical_offset"),
    (INT, "confirm_physical_offset", "dispatched_physical_offset"),
    (TIME, "t_max"),  # store time of the newest record
    (TIME, "t_confirm"),  # of the first record not confirmed; t_max if all are
    (TIME, "t_dispatched"),  # of the first confirmed record not dispatched; t_confirm if all are
    (TIME, "t_min"),  # of the oldest record in the log
    (INT, "free_bytes"),  # of the volume of the commit log
    (INT, "capacity_bytes"),
    (FLOAT, "put_wait_seconds"),  # of the send request that has waited longest
    (INT, "pulls_queued", "long_polls"),
    (FLOAT, "clock_seconds"),  # its snapshot minus the scrape: how far its clock is ahead
)
PAIRS: Final = _table(
    (TIME, "ts!", "tick!"),
    (INT, "pair_id!"),
    (TEXT, "cluster!", "broker!", "replica!", "group!", "topic!"),
    (BOOL, "subscribed"),
    (INT, "members"),
    (FLOAT, "objective_seconds", "stall_after_seconds"),
    (BOOL, "paused"),  # an operator stopped the group from consuming
    (BOOL, "broadcasting"),
    (INT, "inflight"),
    (TIME, "oldest_undelivered_ts"),  # t_dispatched if nothing is ready
    (TIME, "oldest_uncommitted_ts"),  # oldest_undelivered_ts if nothing is in flight
    # The oldest undelivered message of the queue that has the oldest uncommitted one. t_dispatched
    # if there is none, or if the queue's member is busy and does not fetch. Null: not exported.
    (TIME, "awaiting_delivery_ts"),
    (INT, "redelivered_total", "consumed_total"),
    (INT, "expired_total"),  # messages lost to retention
    (INT, "reset_forward_total"),
    (INT, "reset_backward_total"),  # resets by request
    (INT, "topic_messages_in_total"),  # of the topic on this broker, all kinds
    (INT, "topic_received_bytes_total"),
)
REPLICAS: Final = _table(
    (TIME, "ts!", "tick!"),
    (TEXT, "cluster!", "broker!", "replica!", "peer!"),
    (BOOL, "in_sync"),
    (INT, "lag_bytes"),
    (FLOAT, "lag_seconds", "skew_seconds"),
)
COUNTERS: Final = _table(
    (TIME, "ts!"),
    (TEXT, "target!", "metric!", "cluster", "broker", "replica", "service", "group", "topic"),
    (TEXT, "labels!"),
    (FLOAT, "value!"),
    (TIME, "started_at"),  # of the process that counts
)
OFFSET_EVENTS: Final = _table(
    (TIME, "ts!", "tick!"),
    (INT, "series_id!", "pair_id!"),
    (TEXT, "kind!"),  # reset_backward, reset_forward, expire, clear, truncate, rewind
    (INT, "from_offset", "to_offset"),
    (BOOL, "by_request"),
)
MESSAGES: Final = _table(
    (TEXT, "broker!", "file!"),
    (INT, "physical_offset!"),  # of the record; the messages of an inner batch share it
    (INT32, "size!"),
    (TEXT, "topic"),
    (INT32, "queue"),
    (INT, "queue_offset"),
    (TIME, "born_ts", "store_ts"),
    (INT, "tag_hash"),
    (TEXT, "keys"),
    (INT32, "sys_flag", "body_size"),
    (BOOL, "crc_ok"),  # null: not verified
    (TEXT, "gap"),  # a Gap: not a record; size bytes from here on were not read
    (TEXT, "gap_detail"),
)
QUEUE_UNITS: Final = _table(
    (TEXT, "broker!", "topic!"),
    (INT32, "queue!"),
    (INT, "queue_offset!"),
    (INT, "next_offset"),  # queue offset after the unit's messages; a batch has several
    (INT, "physical_offset"),  # of the record that the unit points to
    (INT32, "size"),
    (INT, "tags_code"),  # hash of the tags; of a delayed record the time when it is due
    (TEXT, "gap"),  # a Gap: no unit, and none after it in its file
    (TEXT, "gap_detail"),
)
OFFSETS: Final = _table(
    (TEXT, "broker!", "group!", "topic!"),
    (INT32, "queue!"),
    (INT, "commit_offset!"),  # next queue offset to consume
    (INT, "min_offset"),  # of the queue, from its files; null: it has none
    (INT, "max_offset"),
    (TEXT, "origin!"),  # log: the broker's state records; json: consumerOffset.json
)
TOPIC_MESSAGES: Final = _table(
    (TEXT, "topic!"),
    (INT32, "queue!"),
    (INT, "queue_offset!"),
    (INT, "next_offset!"),  # queue offset after this row: of a gap, where it goes on
    (INT, "physical_offset"),
    (INT32, "size"),  # of the record
    (TIME, "born_ts", "store_ts"),
    (TEXT, "tag"),
    (TEXT, "keys"),  # as sent, separated by spaces
    (TEXT, "unique_id"),
    (pa.map_(pa.string(), pa.string()), "properties"),  # tag, keys and unique id among them
    (INT32, "sys_flag", "reconsume_times"),
    (pa.binary(), "body"),
    (TEXT, "gap"),  # a Gap: no message; [queue_offset, next_offset) cannot be had
    (TEXT, "gap_detail"),
)
GAPS: Final = _table(
    (TEXT, "source!"),
    (TEXT, "subject!"),  # target, selector or file
    (TIME, "from_ts", "to_ts"),
    (TEXT, "reason!", "detail!"),
    (INT, "rows_lost"),
)

# -- computed -------------------------------------------------------------------------------------

RATES: Final = _table(
    (TIME, "tick!"),
    (INT, "series_id!", "pair_id!"),
    (TIME, "segment"),  # start of the segment, a stretch of offsets without a cut
    (FLOAT, "dt_seconds"),
    (INT, "produced", "consumed"),  # over dt_seconds: rates, except at the cut tick = segment
)
LAG: Final = _table(
    (TIME, "tick!", "ts"),
    (INT, "series_id!", "pair_id!", "lag", "lost", "ahead", "in_flight", "ready"),
    (FLOAT, "age_seconds"),
    (FLOAT, "age_low_seconds", "age_high_seconds"),  # null if age_method is exact: the age itself
    (TEXT, "age_method!"),
    (FLOAT, "progress"),
    (TEXT, "status!"),
    (TIME, "status_since!"),
    (TEXT, "reason"),
    (TEXT, "evidence"),  # JSON object: the numbers that the rule used
)
PAIR_LAG: Final = _table(
    (TIME, "tick!"),
    (INT, "pair_id!"),
    (TEXT, "cluster!", "broker!", "group!", "topic!"),
    (INT, "lag_sum", "lag_max"),
    (INT, "hidden_lag"),  # messages not dispatched yet, estimated
    (FLOAT, "age_max_seconds", "objective_seconds"),
    (INT, "members"),
    (FLOAT, "produce_per_second", "consume_per_second", "progress"),
    (FLOAT, "drain_p10_seconds"),  # +inf: at this pace never
    (FLOAT, "drain_p50_seconds", "drain_p90_seconds"),
    (TEXT, "drain_method"),  # time, count
    (INT32, "queues", "lagging", "stuck", "unknown", "ahead"),
    (INT, "lost"),
    (FLOAT, "skew", "gini"),
    (TEXT, "skew_kind"),  # hot_queue, slow_member, poison_message, unassigned_queue
    (TEXT, "status!"),
    (TIME, "status_since!"),
    (TEXT, "cause"),  # a sentence
)
STATUS_CHANGES: Final = _table(
    (TIME, "tick!"),
    (INT, "series_id"),  # null: of the pair as a whole
    (INT, "pair_id!"),
    (TEXT, "status_from", "status_to!"),
    (TEXT, "level!"),  # none, info, ticket, page
    (TEXT, "evidence"),
    (FLOAT, "previous_seconds"),
)
STAGES: Final = _table(
    (TIME, "tick!"),
    (INT, "pair_id!"),
    (TEXT, "cluster!", "broker!", "group!", "topic!"),
    (FLOAT, "replication_seconds", "dispatch_seconds", "delivery_seconds", "processing_seconds"),
    (FLOAT, "idle_seconds"),  # since anything was stored: ts - t_max
    (FLOAT, "residual_seconds"),  # age of the pair minus the five; 0 but for rounding
    (TEXT, "blamed"),
    (FLOAT, "confidence"),  # share of the blamed stage
    (TEXT, "detail"),
)
CAPACITY: Final = _table(
    (TIME, "day!"),
    (TEXT, "cluster!", "broker", "group!", "topic!"),
    (FLOAT, "c_max_per_second", "c_max_low_per_second", "utilisation_p95"),
    (INT, "members_at_max", "queues"),
    (TEXT, "limited_by"),
    (INT, "minutes!"),  # in which work was always ready
)
FORECASTS: Final = _table(
    (TIME, "issued_at!"),
    (TEXT, "subject!"),  # like `disk broker=g0 volume=log`
    (TEXT, "kind!"),  # produce, disk, age
    (TIME, "at!"),
    (FLOAT, "p10", "p50", "p90"),
    (TEXT, "model!"),
    (FLOAT, "backtest_error", "time_to_limit_p10_seconds", "time_to_limit_p50_seconds"),
    (FLOAT, "time_to_limit_p90_seconds"),
)
ANOMALIES: Final = _table(
    (TIME, "ts!"),
    (TEXT, "subject!", "signal!"),
    (FLOAT, "value!", "expected!", "scale!", "score!"),
    (TEXT, "parent"),
    (BOOL, "suppressed!"),
)
ROLLUP: Final = _table(
    (TIME, "bucket_start!"),
    (INT32, "grain_seconds!"),
    (INT, "series_id"),  # null: of the pair
    (INT, "pair_id!"),
    (INT32, "ticks!"),
    (INT, "lag_first", "lag_last", "lag_min", "lag_max"),
    (FLOAT, "lag_mean", "age_min_seconds", "age_max_seconds", "age_mean_seconds"),
    (INT, "produced", "consumed", "skipped"),
    (INT, "imbalance"),  # produced - consumed - skipped - change of lag; 0 or a defect
    (FLOAT, "rate_seconds"),  # the time that produced and consumed cover
    (INT, "members"),  # largest number of members of the pair at one tick
    (INT32, "queues"),
    (TEXT, "worst_status!"),
    (TEXT, "seconds_in_status"),  # JSON object, by status
)
RUNS: Final = _table(
    (TIME, "finished_at!"),
    (TEXT, "job!", "writer!"),  # writer: job and stream, or the job
    (FLOAT, "seconds!"),  # duration of the run
    (TEXT, "fact!"),  # run, rows, source, node …: runs.Fact
    (TEXT, "subject"),  # table, source or node
    (INT, "rows"),
    (TIME, "until"),
)

EVALUATED: Final = ("positions", "pairs", "logs", "replicas", "gaps")
"""The tables that evaluation reads. `series` is not among them: its rows come before those of
`positions`, which are as late as they are."""
COMPUTED: Final = ("rates", "lag", "pair_lag", "stages", "status_changes", "offset_events")
"""The tables that evaluation writes."""
REVISED_AT: Final = pa.field("revised_at", TIME)
"""When the row was computed again because samples came after its tick was evaluated; null: first
result. The kernel does not know it."""


_SCHEMAS: Final[Mapping[str, pa.Schema]] = {
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
    "runs": RUNS,
}
TABLES: Final[Mapping[str, pa.Schema]] = {
    name: schema.append(REVISED_AT) if name in COMPUTED else schema
    for name, schema in _SCHEMAS.items()
}
"""Every table by its name, with its columns as stored."""


def part_of(table: str, names: Iterable[str] | None) -> pa.Schema:
    """Schema of some columns of a table, in the order of the names; None: all."""
    return TABLES[table] if names is None else pa.schema([TABLES[table].field(n) for n in names])


@lru_cache(IDS_KEPT)
def pair_id(cluster: str, broker: str, group: str, topic: str) -> int:
    """Id of a pair: a group and a topic on one broker set. All its series are in the same
    bucket."""
    return _hashed(cluster, broker, group, topic)


@lru_cache(IDS_KEPT)
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
