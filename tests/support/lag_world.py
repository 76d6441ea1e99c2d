"""A small cluster's tables by closed formulas, for tests of report and export. Pure.

Two hours of ticks of 15 s. Groups: one in time, one that reads at 80 %, one that stopped, one with
a poison message, one held back by dispatch, one that was not visible for a while.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from analytics.schema import TABLES, TIME, fit, pair_id, part_of, series_id
from analytics.tables import TIME_COLUMN, TableRoot

END: Final = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)
PERIOD: Final = timedelta(seconds=15)
TICKS: Final = 480
START: Final = END - TICKS * PERIOD
CLUSTER: Final = "tidemark"
OBJECTIVE_S: Final = 60.0
BLIND: Final = range(200, 232)
"""Ticks that were not evaluated."""
NAMES: Final = {
    "billing": ("g0", "orders"),
    "search-index": ("g0", "orders"),
    "audit": ("g0", "orders"),
    "mailer": ("g0", "orders"),
    "ledger": ("g1", "payments"),
    "sensors": ("g1", "telemetry"),
}


class MemoryTables(TableRoot):
    """Tables held in memory, a few hundred rows at a time."""

    def __init__(self, tables: Mapping[str, pa.Table], piece_rows: int = 700) -> None:
        self.held, self.piece_rows = dict(tables), piece_rows

    def span(self, table: str) -> tuple[datetime, datetime] | None:
        whole = self.held.get(table)
        if whole is None or not whole.num_rows:
            return None
        found = pc.min_max(whole[TIME_COLUMN[table]]).as_py()
        return found["min"], found["max"]

    def scan(
        self,
        table: str,
        *,
        since: datetime | None = None,
        before: datetime | None = None,
        buckets: Collection[int] | None = None,
        columns: Sequence[str] | None = None,
        pair_ids: Collection[int] | None = None,
    ) -> Iterator[pa.Table]:
        whole = self.held.get(table, TABLES[table].empty_table())
        time = pc.field(TIME_COLUMN[table])
        for first in range(0, whole.num_rows, self.piece_rows):
            rows = whole.slice(first, self.piece_rows)
            if since is not None:
                rows = rows.filter(time >= pa.scalar(since, TIME))
            if before is not None:
                rows = rows.filter(time < pa.scalar(before, TIME))
            if pair_ids is not None:
                rows = rows.filter(pc.field("pair_id").isin(list(pair_ids)))
            if rows.num_rows:
                yield rows.select(part_of(table, columns).names)


def as_table(name: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Rows of a table of the schema; columns that no row has are null."""
    schema = TABLES[name]
    named = [field for field in schema if any(field.name in row for row in rows)]
    found = pa.Table.from_pylist([dict(row) for row in rows], schema=pa.schema(named))
    return fit(found, schema)


def number_of(group: str) -> int:
    """The id of a group's pair."""
    broker, topic = NAMES[group]
    return pair_id(CLUSTER, broker, group, topic)


def tick(place: int) -> datetime:
    """The instant of a tick."""
    return START + place * PERIOD


def pair_row(group: str, place: int) -> dict[str, Any]:
    """A row of pair_lag, by closed formulas."""
    broker, topic = NAMES[group]
    minutes = place / 4
    wave = 1 + 0.25 * math.sin(minutes / 9)
    produce = 400 * wave
    row: dict[str, Any] = {
        "tick": tick(place),
        "pair_id": number_of(group),
        "cluster": CLUSTER,
        "broker": broker,
        "group": group,
        "topic": topic,
        "objective_seconds": OBJECTIVE_S,
        "members": 4,
        "queues": 8,
        "lagging": 0,
        "stuck": 0,
        "unknown": 0,
        "ahead": 0,
        "lost": 0,
        "hidden_lag": 0,
        "produce_per_second": produce,
        "consume_per_second": produce,
        "lag_sum": round(30 * wave),
        "lag_max": 9,
        "age_max_seconds": 0.4 * wave,
        "progress": 1.0,
        "status": "OK",
        "status_since": START,
        "cause": "",
    }
    late = max(0.0, minutes - 40) * 60
    match group:
        case "search-index" if late:
            age = 0.2 * late
            row |= {
                "age_max_seconds": age,
                "lag_sum": round(age * 400),
                "consume_per_second": produce * 0.8,
                "progress": 0.8,
                "drain_p10_seconds": math.inf,
                "drain_p50_seconds": math.inf,
                "drain_p90_seconds": math.inf,
                "drain_method": "time",
                "lagging": 8,
            }
            if age > OBJECTIVE_S:
                row |= {
                    "status": "FALLING_BEHIND",
                    "status_since": tick(184),
                    "cause": "FALLING_BEHIND on 8 of 8 queues since 10:46 UTC",
                }
        case "audit" if minutes > 60:
            age = (minutes - 60) * 60
            row |= {
                "age_max_seconds": age,
                "lag_sum": round(age * 400),
                "consume_per_second": 0.0,
                "progress": 0.0,
                "drain_p50_seconds": math.inf,
                "members": 0,
                "lagging": 8 if age > OBJECTIVE_S else 0,
            }
            if age > 120:
                row |= {
                    "status": "STOPPED",
                    "status_since": tick(250),
                    "cause": "STOPPED on 8 of 8 queues since 11:02 UTC",
                }
        case "mailer" if minutes > 75:
            age = (minutes - 75) * 60
            row |= {
                "age_max_seconds": age,
                "lag_sum": round(age * 50),
                "consume_per_second": produce * 7 / 8,
                "progress": 0.0,
                "drain_p50_seconds": math.inf,
                "lagging": 1 if age > OBJECTIVE_S else 0,
                "stuck": 1 if age > OBJECTIVE_S else 0,
                "skew": 420.0,
                "gini": 0.87,
                "skew_kind": "poison_message",
            }
            if age > 75:
                row |= {
                    "status": "STALLED",
                    "status_since": tick(306),
                    "cause": "STALLED on 1 of 8 queues since 11:16 UTC (poison message, queue 5)",
                }
        case "ledger" if minutes > 100:
            hidden = (minutes - 100) * 60
            row |= {
                "lag_sum": 0,
                "age_max_seconds": 0.0,
                "hidden_lag": round(hidden * 100),
                "queues": 4,
                "consume_per_second": 0.0,
                "progress": None,
            }
        case "sensors" if 60 < minutes < 80:
            row |= {
                "status": "UNKNOWN",
                "status_since": tick(240),
                "age_max_seconds": None,
                "lag_sum": None,
                "unknown": 8,
                "produce_per_second": None,
                "consume_per_second": None,
            }
        case "sensors" if 20 < minutes < 35:
            age = (minutes - 20) * 20 if minutes < 28 else max(2.0, 160 - (minutes - 28) * 25)
            row |= {"age_max_seconds": age, "progress": 0.7}
            if age > OBJECTIVE_S:
                row |= {"status": "FALLING_BEHIND" if minutes < 28 else "CATCHING_UP"}
    return row


_DETAILS: Final = {
    "audit": "no member is there to ask",
    "mailer": "one message is delivered again and again",
}


def stage_row(group: str, place: int) -> dict[str, Any]:
    """A row of stages that fits the pair's."""
    pair = pair_row(group, place)
    age = pair["age_max_seconds"]
    terms: dict[str, Any] = {
        "replication_seconds": 0.05,
        "dispatch_seconds": 0.02,
        "delivery_seconds": 0.1,
        "processing_seconds": 0.2,
    }
    blamed, share = None, None
    if age is None:
        terms = dict.fromkeys(terms)
    elif group == "ledger" and pair["hidden_lag"]:
        terms["dispatch_seconds"] = pair["hidden_lag"] / 100
        blamed, share = "dispatch", 0.99
    elif age > 15:
        late = "delivery" if group == "audit" else "processing"
        terms[f"{late}_seconds"] = age - 0.4
        blamed, share = late, 0.97
    return {
        **{name: pair[name] for name in ("tick", "pair_id", "cluster", "broker", "group", "topic")},
        **terms,
        "idle_seconds": 0.1,
        "residual_seconds": 0.0,
        "blamed": blamed,
        "confidence": share,
        "detail": _DETAILS.get(group) if blamed else None,
    }


def lag_rows(place: int) -> Iterator[dict[str, Any]]:
    """Rows of lag at a tick, one for each queue."""
    for group in NAMES:
        pair = pair_row(group, place)
        broker, topic = NAMES[group]
        for queue in range(pair["queues"]):
            only = group == "mailer" and queue != 5 and pair["status"] == "STALLED"
            lag = None if pair["lag_sum"] is None else pair["lag_sum"] // pair["queues"]
            if group == "mailer" and pair["status"] == "STALLED":
                lag = pair["lag_sum"] if queue == 5 else 3
            yield {
                "tick": pair["tick"],
                "series_id": series_id(CLUSTER, broker, group, topic, queue),
                "pair_id": pair["pair_id"],
                "lag": lag,
                "age_seconds": 0.1 if only else pair["age_max_seconds"],
                "age_method": "exact",
                "progress": pair["progress"],
                "status": "OK" if only else pair["status"],
                "status_since": pair["status_since"],
                "reason": "never_committed" if group == "sensors" and queue == 7 else None,
                "evidence": json.dumps(
                    {
                        "age_seconds": pair["age_max_seconds"],
                        "objective_seconds": OBJECTIVE_S,
                        "members": pair["members"],
                        "progress": pair["progress"],
                        "still_seconds": 812.0 if queue == 5 else 1.0,
                    }
                ),
            }


def tables() -> dict[str, pa.Table]:
    """Return all tables."""
    places = [place for place in range(TICKS) if place not in BLIND]
    found = {
        "pair_lag": [pair_row(group, place) for place in places for group in NAMES],
        "stages": [stage_row(group, place) for place in places for group in NAMES],
        "lag": [row for place in places[-12:] for row in lag_rows(place)],
        "series": [
            {
                "series_id": series_id(CLUSTER, broker, group, topic, queue),
                "pair_id": number_of(group),
                "cluster": CLUSTER,
                "broker": broker,
                "group": group,
                "topic": topic,
                "queue": queue,
                "kind": "main",
                "first_seen": START,
                "last_seen": END,
            }
            for group, (broker, topic) in NAMES.items()
            for queue in range(8)
        ],
        "gaps": _gaps(),
        "forecasts": _forecasts(),
        "capacity": _capacity(),
        "anomalies": _anomalies(),
    }
    return {name: as_table(name, rows) for name, rows in found.items()}


def _gaps() -> list[dict[str, Any]]:
    return [
        {
            "source": "prometheus",
            "subject": "http://prometheus:9090",
            "from_ts": tick(BLIND.start),
            "to_ts": tick(BLIND.stop),
            "reason": "unreachable",
            "detail": "connection refused",
            "rows_lost": None,
        },
        *(
            {
                "source": "scrape",
                "subject": "10.0.0.7:8083",
                "from_ts": tick(place),
                "to_ts": tick(place + 1),
                "reason": "timeout",
                "detail": "no answer within 7.5 s",
                "rows_lost": 120,
            }
            for place in (31, 90, 91)
        ),
    ]


def _forecasts() -> list[dict[str, Any]]:
    found = []
    for hour in range(73):
        free = 4.1e11 - hour * 6.2e9
        for subject, kind, mid, spread, limits in (
            (
                "cluster=tidemark broker=g0 replica=n0 volume=log",
                "disk",
                free,
                hour * 6e8,
                (2.1e5, 2.4e5, 2.8e5),
            ),
            (
                "cluster=tidemark broker=g0 group=search-index topic=orders",
                "produce",
                430 + 120 * math.sin(hour / 24 * 2 * math.pi),
                40 + hour / 2,
                (None, None, None),
            ),
        ):
            low, mid_, high = limits
            found.append(
                {
                    "issued_at": END - timedelta(hours=1),
                    "subject": subject,
                    "kind": kind,
                    "at": END + timedelta(hours=hour),
                    "p10": max(0.0, mid - spread),
                    "p50": max(0.0, mid),
                    "p90": max(0.0, mid + spread),
                    "model": "profile" if kind == "produce" else "robust slope",
                    "backtest_error": 12.5 if kind == "produce" else None,
                    "time_to_limit_p10_seconds": low,
                    "time_to_limit_p50_seconds": mid_,
                    "time_to_limit_p90_seconds": high,
                }
            )
    return found


def _capacity() -> list[dict[str, Any]]:
    day = END.replace(hour=0)
    return [
        {
            "day": day,
            "cluster": CLUSTER,
            "group": group,
            "topic": "orders",
            "c_max_per_second": most,
            "c_max_low_per_second": most and most * 0.93,
            "utilisation_p95": most and 480 / most,
            "members_at_max": 4,
            "queues": 8,
            "limited_by": why,
            "minutes": minutes,
        }
        for group, most, why, minutes in (
            ("search-index", 344.0, "members", 80),
            ("billing", 2100.0, "members", 212),
            ("mailer", None, None, 4),
        )
    ]


def _anomalies() -> list[dict[str, Any]]:
    return [
        {
            "ts": END - timedelta(minutes=place),
            "subject": subject,
            "signal": signal,
            "value": value,
            "expected": expected,
            "scale": 1.0,
            "score": score,
            "suppressed": hidden,
        }
        for place, subject, signal, value, expected, score, hidden in (
            (
                40,
                "cluster=tidemark broker=g0 group=audit topic=orders",
                "consume_per_second",
                0.0,
                402.0,
                -14.2,
                False,
            ),
            (20, "cluster=tidemark broker=g1", "dispatch_seconds", 1190.0, 0.02, 31.0, False),
            (
                20,
                "cluster=tidemark broker=g1 group=ledger topic=payments",
                "consume_per_second",
                0.0,
                99.0,
                -12.0,
                True,
            ),
        )
    ]
