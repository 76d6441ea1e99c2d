"""From a snapshot of the telemetry journal to samples, as a scrape of the same instant has them.

So one function shapes both (``kernel.shape``), and a table does not tell where its rows came from.
A value that is absent has no sample. Step before: ``reader`` put a snapshot together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analytics.schema import SAMPLES
from analytics.sources.telemetry.options import BrokerSet
from shared.metrics.catalogue import every as of_every
from shared.metrics.catalogue import groups as of_groups
from shared.metrics.catalogue import ha as of_ha
from shared.metrics.catalogue import log as of_log
from shared.metrics.catalogue import requests as of_requests
from shared.metrics.family import Family
from tidemark.formats.telemetry import Absent, Head
from tidemark.formats.telemetry_reader import Rows, Snapshot

SOURCE: Final = "telemetry"
BATCH_ROWS: Final = 65_536

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class Metric(NamedTuple):
    """The metric that a column of the journal is."""

    family: Family
    factor: int = 1
    """Numbers of the journal in one unit of the metric."""
    labels: str = ""


_MS: Final = 1000
_US: Final = 1_000_000
TABLES: Final[Mapping[str, Mapping[str, Metric]]] = {
    "topic": {
        "messages_in_total": Metric(of_requests.BROKER_MESSAGES_IN_TOTAL),
        "received_bytes_total": Metric(of_requests.BROKER_RECEIVED_BYTES_TOTAL),
    },
    "group": {
        "members": Metric(of_groups.GROUP_MEMBERS),
        "objective_ms": Metric(of_groups.GROUP_LAG_OBJECTIVE_SECONDS, _MS),
        "consume_enabled": Metric(of_groups.GROUP_CONSUME_ENABLED),
        "broadcasting": Metric(of_groups.GROUP_BROADCASTING),
    },
    "queue": {
        "min_offset": Metric(of_requests.QUEUE_MIN_OFFSET_MESSAGES),
        "max_offset": Metric(of_requests.QUEUE_MAX_OFFSET_MESSAGES),
    },
    "pair": {
        "subscribed": Metric(of_groups.GROUP_SUBSCRIBED),
        "unknown_queues": Metric(of_groups.GROUP_UNKNOWN_QUEUES),
        "inflight": Metric(of_groups.GROUP_INFLIGHT_MESSAGES),
        "oldest_undelivered_at_ms": Metric(
            of_groups.GROUP_OLDEST_UNDELIVERED_TIMESTAMP_SECONDS, _MS
        ),
        "oldest_uncommitted_at_ms": Metric(
            of_groups.GROUP_OLDEST_UNCOMMITTED_TIMESTAMP_SECONDS, _MS
        ),
        "awaiting_delivery_at_ms": Metric(of_groups.GROUP_AWAITING_DELIVERY_TIMESTAMP_SECONDS, _MS),
        "redelivered_total": Metric(of_groups.GROUP_REDELIVERED_MESSAGES_TOTAL),
        "consumed_total": Metric(of_groups.GROUP_CONSUMED_MESSAGES_TOTAL),
        "expired_total": Metric(of_groups.GROUP_SKIPPED_MESSAGES_TOTAL, 1, 'reason="expired"'),
        "reset_forward_total": Metric(
            of_groups.GROUP_SKIPPED_MESSAGES_TOTAL, 1, 'reason="reset_forward"'
        ),
        "reset_backward_total": Metric(
            of_groups.GROUP_OFFSET_RESETS_TOTAL, 1, 'direction="backward"'
        ),
    },
    "position": {
        "commit_offset": Metric(of_groups.GROUP_QUEUE_OFFSET_MESSAGES),
        "head_at_ms": Metric(of_groups.GROUP_QUEUE_OLDEST_TIMESTAMP_SECONDS, _MS),
        "member": Metric(of_groups.GROUP_QUEUE_MEMBER_NUMBER),
    },
}
FACTS: Final[Mapping[str, Metric]] = {
    "min_physical_offset": Metric(of_log.LOG_MIN_OFFSET_BYTES),
    "max_physical_offset": Metric(of_log.LOG_MAX_OFFSET_BYTES),
    "flushed_physical_offset": Metric(of_log.LOG_FLUSHED_OFFSET_BYTES),
    "confirm_physical_offset": Metric(of_log.LOG_CONFIRM_OFFSET_BYTES),
    "dispatched_physical_offset": Metric(of_log.LOG_DISPATCHED_OFFSET_BYTES),
    "t_max_ms": Metric(of_log.LOG_NEWEST_MESSAGE_TIMESTAMP_SECONDS, _MS),
    "t_confirm_ms": Metric(of_log.LOG_CONFIRM_MESSAGE_TIMESTAMP_SECONDS, _MS),
    "t_dispatched_ms": Metric(of_log.LOG_DISPATCHED_MESSAGE_TIMESTAMP_SECONDS, _MS),
    "t_min_ms": Metric(of_log.LOG_OLDEST_MESSAGE_TIMESTAMP_SECONDS, _MS),
    "free_bytes": Metric(of_log.STORE_FREE_BYTES, 1, 'volume="log"'),
    "capacity_bytes": Metric(of_log.STORE_CAPACITY_BYTES, 1, 'volume="log"'),
    "pulls_queued": Metric(of_requests.BROKER_REQUESTS_QUEUED, 1, 'pool="pull"'),
    "put_wait_us": Metric(of_requests.BROKER_OLDEST_QUEUED_REQUEST_SECONDS, _US, 'pool="put"'),
    "long_polls": Metric(of_requests.BROKER_LONG_POLLS),
    "up_since_us": Metric(of_every.UP_SINCE_TIMESTAMP_SECONDS, _US),
}
_SAMPLED: Final = Metric(of_requests.BROKER_LOOK_TIMESTAMP_SECONDS, _MS)
_EPOCH: Final = Metric(of_ha.HA_EPOCH)
_ROLE: Final = Metric(of_ha.HA_ROLE, 1, 'role="master"')


class _Names(NamedTuple):
    """Names of the rows of a table; None where the table has no such label."""

    groups: pa.Array | None
    topics: pa.Array | None
    queues: Ints | None


def batches(snapshot: Snapshot, of: BrokerSet) -> Iterator[pa.RecordBatch]:
    """Yield the samples of a snapshot. The time of each is the snapshot's tick."""
    head = snapshot.head
    target = f"{of.name}/{head.node}" if head.node else of.name
    alike = {
        "source": SOURCE,
        "target": target,
        "cluster": of.cluster or None,
        "broker": of.broker or None,
        "replica": head.node or of.replica or None,
        "service": "broker",
    }
    for table, columns in TABLES.items():
        rows = snapshot.tables.get(table)
        if rows is None:
            continue
        names = _names(snapshot, table)
        for name, metric in columns.items():
            if name in rows.values:
                known, values = _values(rows, name, head)
                yield from _of_metric(metric, values[known], names, known, head.tick_ms, alike)
    yield from _of_node(head, alike)


def _of_node(head: Head, alike: Mapping[str, str | None]) -> Iterator[pa.RecordBatch]:
    facts = [(metric, head.facts[name]) for name, metric in FACTS.items() if name in head.facts]
    facts.append((_SAMPLED, head.at_ms))
    if head.node:
        facts += [(_EPOCH, head.epoch), (_ROLE, 1)]  # only the master writes the journal
    nothing, one = _Names(None, None, None), np.ones(1, np.bool_)
    for metric, value in facts:
        values = np.array([value], np.int64)
        yield from _of_metric(metric, values, nothing, one, head.tick_ms, alike)


def _values(rows: Rows, name: str, head: Head) -> tuple[Bools, Ints]:
    """Return which rows have a value in a column, and the values of all rows."""
    values = np.frombuffer(rows.values[name], np.int64)
    absent = np.frombuffer(rows.absent[name], np.uint8)
    known = (absent == 0) & _present(rows)
    dispatched_ms = head.facts.get("t_dispatched_ms")
    if dispatched_ms is not None:
        is_dispatched = absent == Absent.AS_DISPATCHED.value
        values = np.where(is_dispatched, dispatched_ms, values)
        known |= is_dispatched & _present(rows)
    return known, values


def _present(rows: Rows) -> Bools:
    return np.frombuffer(rows.present, np.bool_)


def _names(snapshot: Snapshot, table: str) -> _Names:
    rows = snapshot.tables[table]
    match table:
        case "topic":
            return _Names(None, pa.array(rows.names, pa.string()), None)
        case "group":
            return _Names(pa.array(rows.names, pa.string()), None, None)
        case "queue":
            return _Names(None, _of_row(snapshot, "topic", rows.keys["topic"]), _queues(rows))
        case "pair":
            return _Names(
                _of_row(snapshot, "group", rows.keys["group"]),
                _of_row(snapshot, "topic", rows.keys["topic"]),
                None,
            )
    pairs = snapshot.tables["pair"].keys
    pair = np.frombuffer(rows.keys["pair"], np.int64)
    group = np.frombuffer(pairs["group"], np.int64)[pair]
    topic = np.frombuffer(pairs["topic"], np.int64)[pair]
    return _Names(
        _of_row(snapshot, "group", group), _of_row(snapshot, "topic", topic), _queues(rows)
    )


def _queues(rows: Rows) -> Ints:
    return np.frombuffer(rows.keys["queue"], np.int64)


def _of_row(snapshot: Snapshot, table: str, ids: npt.ArrayLike) -> pa.Array:
    """Names of rows of another table."""
    names = pa.array(snapshot.tables[table].names, pa.string())
    return names.take(pa.array(np.asarray(ids, np.int64)))


def _of_metric(
    metric: Metric,
    values: Ints,
    names: _Names,
    known: Bools,
    tick_ms: int,
    alike: Mapping[str, str | None],
) -> Iterator[pa.RecordBatch]:
    """Samples of one metric. values: of the known rows; names: of all rows."""
    places = pa.array(np.flatnonzero(known))
    numbers = values.astype(np.float64) if metric.factor == 1 else values / metric.factor
    for start in range(0, len(places), BATCH_ROWS):
        rows = places.slice(start, BATCH_ROWS)
        count = len(rows)
        columns = {
            "ts": pa.repeat(pa.scalar(tick_ms * 1000, pa.int64()), count),
            "metric": _repeated(metric.family.name, count),
            "labels": _repeated(metric.labels, count),
            "group": _taken(names.groups, rows),
            "topic": _taken(names.topics, rows),
            "queue": _taken(None if names.queues is None else pa.array(names.queues), rows),
            "value": pa.array(numbers[start : start + count]),
            **{name: _repeated(value, count) for name, value in alike.items()},
        }
        arrays = [columns[field.name].cast(field.type) for field in SAMPLES]
        yield pa.RecordBatch.from_arrays(arrays, schema=SAMPLES)


def _repeated(text: str | None, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)


def _taken(names: pa.Array | None, rows: pa.Array) -> pa.Array:
    return pa.nulls(len(rows)) if names is None else names.take(rows)
