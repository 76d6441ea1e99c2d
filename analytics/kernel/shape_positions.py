"""The tables series, positions and pairs, made from coded samples. Pure.

The queues of a pair are those of its topic in the same scrape. For a missing commit, the pair's
count of unknown queues separates a group that never committed from one whose series exceeded the
bound. Step before: ``sampled`` coded the samples. Step after: ``shape`` puts the tables together.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from analytics import schema
from analytics.kernel import sampled
from analytics.kernel.columns import Bools, Floats, Ints, nullable
from analytics.kernel.sampled import (
    NO_QUEUE,
    Grouped,
    Rows,
    expand,
    find,
    instants,
    integers,
    labelled,
    microseconds,
    replica_of,
    wide,
)
from analytics.statuses import Reason

OTHER: Final = "_other"
"""Topic or group label of the sum of all series beyond the bound; it belongs to no pair."""
RETRY_PREFIX: Final = "%RETRY%"
DEAD_PREFIX: Final = "%DLQ%"
SYSTEM_PREFIXES: Final = ("%LMQ%", "rmq_sys_", "RMQ_SYS_")
SYSTEM_TOPICS: Final = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "TBW102",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    }
)
_REASONS: Final = (
    Reason.BROADCASTING,
    Reason.NEVER_COMMITTED,
    Reason.NOT_EXPORTED,
    Reason.HEAD_UNKNOWN,
)
"""Reasons that the samples of a snapshot give, in order of precedence."""
_METHODS: Final = pa.array(["none", "exact"])
_MAX: Final = "tidemark_queue_max_offset_messages"
_MIN: Final = "tidemark_queue_min_offset_messages"
_COMMIT: Final = "tidemark_group_queue_offset_messages"
_OLDEST: Final = "tidemark_group_queue_oldest_timestamp_seconds"
_MEMBER: Final = "tidemark_group_queue_member_number"
_SUBSCRIBED: Final = "tidemark_group_subscribed"
_UNKNOWN_QUEUES: Final = "tidemark_group_unknown_queues"
_GAUGES: Final = {
    "inflight": "tidemark_group_inflight_messages",
    "redelivered_total": "tidemark_group_redelivered_messages_total",
    "consumed_total": "tidemark_group_consumed_messages_total",
}
_TIMES: Final = {
    "oldest_undelivered_ts": "tidemark_group_oldest_undelivered_timestamp_seconds",
    "oldest_uncommitted_ts": "tidemark_group_oldest_uncommitted_timestamp_seconds",
    "awaiting_delivery_ts": "tidemark_group_awaiting_delivery_timestamp_seconds",
}
_OF_GROUPS: Final = {
    "members": "tidemark_group_members",
    "objective_seconds": "tidemark_group_lag_objective_seconds",
    "consume_enabled": "tidemark_group_consume_enabled",
    "broadcasting": "tidemark_group_broadcasting",
}
_BY_LABEL: Final = {
    "expired_total": ("tidemark_group_skipped_messages_total", 'reason="expired"'),
    "reset_forward_total": ("tidemark_group_skipped_messages_total", 'reason="reset_forward"'),
    "reset_backward_total": ("tidemark_group_offset_resets_total", 'direction="backward"'),
}
_MESSAGES_IN: Final = "tidemark_broker_messages_in_total"
"""By topic and kind of message."""
_BYTES_IN: Final = "tidemark_broker_received_bytes_total"
_SHOWING_PAIRS: Final = (
    _SUBSCRIBED,
    _UNKNOWN_QUEUES,
    "tidemark_group_inflight_messages",
    "tidemark_group_lag_messages",
    _COMMIT,
    _OLDEST,
)
"""Families of a snapshot that prove that a pair exists. Counters do not: they outlive it."""

QUEUE_METRICS: Final = frozenset({_MAX, _MIN, _COMMIT, _OLDEST, _MEMBER})
"""All families by queue that are read."""
METRICS: Final = QUEUE_METRICS | {
    *_SHOWING_PAIRS,
    *_GAUGES.values(),
    *_TIMES.values(),
    *_OF_GROUPS.values(),
    *(metric for metric, _ in _BY_LABEL.values()),
    _MESSAGES_IN,
    _BYTES_IN,
}
"""All families that are read here."""


class Scrapes(Protocol):
    """Values that all samples of one scrape share; arrays by scrape."""

    ts_us: Ints
    tick_us: Ints
    epoch: Floats


def kind(topic: str) -> str:
    """Return the purpose of a topic by its name: main, retry, dlq or system."""
    if topic.startswith(RETRY_PREFIX):
        return "retry"
    if topic.startswith(DEAD_PREFIX):
        return "dlq"
    if topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIXES):
        return "system"
    return "main"


class Pairs:
    """The pairs of each snapshot, by the key (scrape, pair), sorted by it."""

    def __init__(self, rows: Rows, is_fresh: Bools) -> None:
        """is_fresh: by scrape, whether its snapshot is new."""
        folded = rows.group.is_in(("", OTHER)) | rows.topic.is_in(("", OTHER))
        self.is_named: Bools = ~folded & is_fresh[rows.scrape.at]
        pair = Grouped.of(rows.group.codes * (len(rows.topic.names) + 1) + rows.topic.codes)
        self.pair_of: Ints = pair.at
        """Index of the pair of each sample."""
        self.count = len(pair.keys) + 1
        self.key_of: Ints = rows.scrape.at * self.count + pair.at
        own = np.flatnonzero(rows.metric.is_in(_SHOWING_PAIRS) & self.is_named)
        found = Grouped.of(self.key_of[own])
        self.keys = found.keys
        self.rows: Ints = own[found.first_rows()]
        """One sample of each pair."""
        owned = own[rows.is_own[own] & (rows.queue[own] == NO_QUEUE)]
        self.is_own: Bools = np.isin(self.keys, self.key_of[owned])
        """Pairs whose samples without a queue are in this partition."""

    def table(self, rows: Rows, scrapes: Scrapes) -> pa.Table:
        """The table ``pairs``, for snapshots whose samples are in this partition."""
        keys, row = self.keys[self.is_own], self.rows[self.is_own]
        scrape = rows.scrape.at[row]
        metrics = (_SUBSCRIBED, *_GAUGES.values(), *_TIMES.values())
        found = wide(rows, self.key_of, metrics, self.is_named)
        of_group = wide(
            rows, _group_keys(rows), tuple(_OF_GROUPS.values()), rows.topic.is_in(("",))
        )
        group_keys = _group_keys(rows)[row]
        subscribed = found.at(_SUBSCRIBED, keys)
        enabled = of_group.at(_OF_GROUPS["consume_enabled"], group_keys)
        broadcasting = of_group.at(_OF_GROUPS["broadcasting"], group_keys)
        columns = {
            "ts": instants(scrapes.ts_us[scrape]),
            "tick": instants(scrapes.tick_us[scrape]),
            "pair_id": _pair_ids(rows, row),
            "cluster": rows.cluster.at(row),
            "broker": rows.broker.at(row),
            "replica": replica_of(rows, row),
            "group": rows.group.at(row),
            "topic": rows.topic.at(row),
            "subscribed": pa.array(subscribed == 1, pa.bool_(), mask=np.isnan(subscribed)),
            "members": integers(of_group.at(_OF_GROUPS["members"], group_keys)),
            "objective_seconds": nullable(of_group.at(_OF_GROUPS["objective_seconds"], group_keys)),
            "paused": pa.array(enabled == 0, pa.bool_(), mask=np.isnan(enabled)),
            "broadcasting": pa.array(broadcasting == 1, pa.bool_(), mask=np.isnan(broadcasting)),
        }
        for name, metric in _GAUGES.items():
            columns[name] = integers(found.at(metric, keys))
        for name, metric in _TIMES.items():
            columns[name] = instants(microseconds(found.at(metric, keys)))
        for name, (metric, label) in _BY_LABEL.items():
            one = wide(rows, self.key_of, (metric,), self.is_named & labelled(rows.labels, label))
            columns[name] = integers(one.at(metric, keys))
        topic_keys = scrape * (len(rows.topic.names) + 1) + rows.topic.codes[row]
        columns["topic_messages_in_total"] = integers(_by_topic(rows, _MESSAGES_IN, topic_keys))
        columns["topic_received_bytes_total"] = integers(_by_topic(rows, _BYTES_IN, topic_keys))
        order = [("pair_id", "ascending"), ("ts", "ascending"), ("replica", "ascending")]
        return schema.fit(pa.table(columns), schema.PAIRS).sort_by(order)


def _group_keys(rows: Rows) -> Ints:
    """(scrape, group) of each sample."""
    keys: Ints = rows.scrape.at * (len(rows.group.names) + 1) + rows.group.codes
    return keys


def _by_topic(rows: Rows, metric: str, topic_keys: Ints) -> Floats:
    """A counter of topics, summed over its other labels, for the given (scrape, topic) keys."""
    of_topic = rows.scrape.at * (len(rows.topic.names) + 1) + rows.topic.codes
    each = wide(rows, of_topic * (len(rows.labels.names) + 1) + rows.labels.codes, (metric,))
    topic = Grouped.of(of_topic[each.rows])
    sums = np.bincount(topic.at, weights=each.of(metric), minlength=len(topic.keys))
    return find(topic.keys, sums.astype(np.float64), topic_keys)


def positions_and_series(rows: Rows, pairs: Pairs, scrapes: Scrapes) -> tuple[pa.Table, pa.Table]:
    """The tables ``positions`` and ``series``, sorted by series and time."""
    row, queue, queue_key, key = _standings(rows, pairs)
    if not len(row):
        return schema.POSITIONS.empty_table(), schema.SERIES.empty_table()
    of_queue = _by_queue(rows)
    of_series = wide(rows, _series_key(rows, pairs), (_COMMIT, _OLDEST, _MEMBER), pairs.is_named)
    most = of_queue.at(_MAX, queue_key)
    least = of_queue.at(_MIN, queue_key)
    commit = of_series.at(_COMMIT, key)
    head_us = microseconds(of_series.at(_OLDEST, key))
    scrape = rows.scrape.at[row]
    reason = _reasons(rows, pairs, row, least, most, commit, head_us)
    set_code = rows.set.at[row]
    series = Grouped.of((set_code * pairs.count + pairs.pair_of[row]) * _queues(rows) + queue)
    first = series.first_rows()
    series_ids, pair_ids = _series_ids(rows, row[first], queue[first])
    ts = scrapes.ts_us[scrape]
    positions = schema.fit(
        pa.table(
            {
                "ts": instants(ts),
                "tick": instants(scrapes.tick_us[scrape]),
                "series_id": series_ids[series.at],
                "pair_id": pair_ids[series.at],
                "replica": replica_of(rows, row),
                "epoch": integers(scrapes.epoch[scrape]),
                "min_offset": integers(least),
                "max_offset": integers(most),
                "commit_offset": integers(commit),
                "head_store_ts": instants(head_us),
                "head_method": _METHODS.take(pa.array((~np.isnan(head_us)).astype(np.int8))),
                "head_error_seconds": nullable(np.where(np.isnan(head_us), np.nan, 0.0)),
                "reason": reason,
                "member": integers(of_series.at(_MEMBER, key)),
            }
        ),
        schema.POSITIONS,
    )
    seen_first, seen_last = np.full(len(first), np.iinfo(np.int64).max), np.zeros(len(first), int)
    np.minimum.at(seen_first, series.at, ts)
    np.maximum.at(seen_last, series.at, ts)
    kinds = [kind(name) for name in rows.topic.names]
    row = row[first]
    named = schema.fit(
        pa.table(
            {
                "series_id": series_ids,
                "pair_id": pair_ids,
                "cluster": rows.cluster.at(row),
                "broker": rows.broker.at(row),
                "group": rows.group.at(row),
                "topic": rows.topic.at(row),
                "queue": queue[first],
                "kind": pa.array(kinds, pa.string()).take(pa.array(rows.topic.codes[row])),
                "first_seen": instants(seen_first),
                "last_seen": instants(seen_last),
            }
        ),
        schema.SERIES,
    )
    keys = ("pair_id", "series_id", "ts", "replica")
    order = [(name, "ascending") for name in keys]
    return positions.sort_by(order), named.sort_by("series_id")


def _queues(rows: Rows) -> int:
    """Return a factor for keys that exceeds all queue numbers."""
    return int(rows.queue.max(initial=0)) + 2


def _series_key(rows: Rows, pairs: Pairs) -> Ints:
    return pairs.key_of * _queues(rows) + rows.queue


def _by_queue(rows: Rows) -> sampled.Wide:
    keys = (rows.scrape.at * (len(rows.topic.names) + 1) + rows.topic.codes) * _queues(rows)
    is_queue = (rows.queue != NO_QUEUE) & rows.group.is_in(("",))
    return wide(rows, keys + rows.queue, (_MAX, _MIN), is_queue)


def _standings(rows: Rows, pairs: Pairs) -> tuple[Ints, Ints, Ints, Ints]:
    """For each pair, snapshot and queue: return a sample, the queue, and both keys."""
    queues = _queues(rows)
    topics = len(rows.topic.names) + 1
    exported = _by_queue(rows).keys
    topic_keys = (rows.scrape.at[pairs.rows] * topics + rows.topic.codes[pairs.rows]) * queues
    low = np.searchsorted(exported, topic_keys).astype(np.int64)
    high = np.searchsorted(exported, topic_keys + queues).astype(np.int64)
    at, queue_at = expand(low, high)
    queue = exported[queue_at] - topic_keys[at]
    key = pairs.keys[at] * queues + queue
    # A group may have an offset on a queue that is not exported itself.
    own = np.flatnonzero(
        rows.metric.is_in((_COMMIT, _OLDEST)) & pairs.is_named & (rows.queue != NO_QUEUE)
    )
    own_keys = Grouped.of(_series_key(rows, pairs)[own])
    alone = ~np.isin(own_keys.keys, key)
    more = own[own_keys.first_rows()][alone]
    more_topic = (rows.scrape.at[more] * topics + rows.topic.codes[more]) * queues
    return (
        np.concatenate([pairs.rows[at], more]),
        np.concatenate([queue, rows.queue[more]]),
        np.concatenate([topic_keys[at] + queue, more_topic + rows.queue[more]]),
        np.concatenate([key, own_keys.keys[alone]]),
    )


def _reasons(
    rows: Rows,
    pairs: Pairs,
    row: Ints,
    least: Floats,
    most: Floats,
    commit: Floats,
    head_us: Floats,
) -> pa.Array:
    """Return why a value of a position is null; null if none is missing.
    row: one sample of each position."""
    unknown = wide(rows, pairs.key_of, (_UNKNOWN_QUEUES,), pairs.is_named)
    each = Grouped.of(pairs.key_of[row])
    absent = np.bincount(each.at, weights=np.isnan(commit), minlength=len(each.keys))
    unknown_count = find(unknown.keys, unknown.of(_UNKNOWN_QUEUES), each.keys)
    # A pair without a count of unknown queues is within the bound; a missing commit was never made.
    never = (np.isnan(unknown_count) | (absent <= unknown_count))[each.at]
    unread = most > np.maximum(commit, least)
    metric = _OF_GROUPS["broadcasting"]
    group_keys = _group_keys(rows)
    broadcasts = wide(rows, group_keys, (metric,), rows.topic.is_in(("",)))
    cases = [
        broadcasts.at(metric, group_keys[row]) == 1,
        np.isnan(commit) & never,
        np.isnan(commit) | np.isnan(most) | np.isnan(least),
        unread & np.isnan(head_us),
    ]
    code = np.select(cases, range(len(_REASONS)), -1)
    return pa.array(_REASONS, pa.string()).take(pa.array(code.astype(np.int8), mask=code < 0))


def _names(rows: Rows, row: Ints) -> tuple[list[str], list[str], list[str], list[str]]:
    """Cluster, broker, group and topic of some samples."""
    columns = (rows.cluster, rows.broker, rows.group, rows.topic)
    one, two, three, four = (column.take(column.codes[row]).to_pylist() for column in columns)
    return one, two, three, four


def _series_ids(rows: Rows, row: Ints, queue: Ints) -> tuple[Ints, Ints]:
    """Ids of series and of their pairs; row: one sample of each series."""
    names = _names(rows, row)
    series = [
        schema.series_id(cluster, broker, group, topic, number)
        for cluster, broker, group, topic, number in zip(*names, queue.tolist(), strict=True)
    ]
    return np.array(series, np.int64), _pair_ids(rows, row)


def _pair_ids(rows: Rows, row: Ints) -> Ints:
    """Ids of the pairs of samples, hashed once for each pair."""
    each = Grouped.of(
        (rows.set.at[row] * (len(rows.group.names) + 1) + rows.group.codes[row])
        * (len(rows.topic.names) + 1)
        + rows.topic.codes[row]
    )
    names = _names(rows, row[each.first_rows()])
    ids = [schema.pair_id(*pair) for pair in zip(*names, strict=True)]
    return np.array(ids, np.int64)[each.at]
