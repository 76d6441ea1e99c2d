"""Tables for the questions of docs/analytics-questions.md: `lag_world`, and what it lacks.

Another group on a second broker set with two alarms that ended, forecasts of ages, changes of
status, days of traffic, redeliveries and records of a store. Every number is small enough to check
by hand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from analytics.moments import HOUR
from analytics.schema import pair_id, series_id
from analytics.statuses import row_of
from analytics.tables import TableRoot
from tests.support.lag_world import (
    BLIND,
    CLUSTER,
    END,
    NAMES,
    OBJECTIVE_S,
    TICKS,
    as_table,
    lag_rows,
    number_of,
    pair_row,
    stage_row,
    tables,
    tick,
)

Row = dict[str, Any]
ARCHIVE: Final = {"cluster": CLUSTER, "broker": "g1", "group": "archive", "topic": "orders"}
ARCHIVE_ID: Final = pair_id(**ARCHIVE)
DAY: Final = timedelta(days=1)
TODAY: Final = END.replace(hour=0)
PLACES: Final = [place for place in range(TICKS) if place not in BLIND]
AT_ELEVEN: Final = END - HOUR


def archive_row(place: int) -> Row:
    """A row of pair_lag of the group `archive`: two alarms of several statuses, then in time."""
    status = "OK"
    for first, last, held in (
        (20, 25, "STALLED"),
        (25, 30, "UNKNOWN"),
        (30, 40, "STALLED"),
        (60, 65, "FALLING_BEHIND"),
        (65, 70, "STALLED"),
    ):
        if first <= place / 4 < last:
            status = held
    age = {"OK": 1.0, "UNKNOWN": None}.get(status, 100.0)
    changed = {"pair_id": ARCHIVE_ID, "status": status, "age_max_seconds": age}
    return pair_row("billing", place) | ARCHIVE | changed


def asked_tables() -> dict[str, list[Row]]:
    """Rows of every table that a question needs."""
    rows: dict[str, list[Row]] = {name: table.to_pylist() for name, table in tables().items()}
    rows["pair_lag"] += [archive_row(place) for place in PLACES]
    rows["stages"] += [
        stage_row("billing", place) | ARCHIVE | {"pair_id": ARCHIVE_ID} for place in PLACES
    ]
    rows["series"].append(_series_of_archive())
    rows["lag"] = [_known(row) for place in PLACES[-2:] for row in lag_rows(place)]
    rows["gaps"] += _gaps()
    rows["forecasts"] += _ages()
    rows["logs"] = _logs()
    rows["status_changes"] = [*_changes(), _change_of_a_queue()]
    rows["rollup"] = _days()
    rows["pairs"] = _redelivered()
    rows["messages"] = _records()
    return rows


def write(path: Path, rows: Mapping[str, Sequence[Row]]) -> TableRoot:
    """Write the tables into a root."""
    root = TableRoot.create(path, buckets=4)
    for name, found in rows.items():
        files = root.write(name, as_table(name, found))
        root.commit(name, batch="made", files=files)
    return root


def _series_of_archive() -> Row:
    kept = {"kind": "main", "first_seen": AT_ELEVEN, "last_seen": END}
    number = series_id(**ARCHIVE, queue=0)
    return {"series_id": number, "pair_id": ARCHIVE_ID, **ARCHIVE, "queue": 0, **kept}


def _known(row: Row) -> Row:
    """The lag of one queue of `mailer` is not known."""
    broker, topic = NAMES["mailer"]
    if row["series_id"] != series_id(CLUSTER, broker, "mailer", topic, 2):
        return row
    return row | {"lag": None, "age_seconds": None, "status": "UNKNOWN", "reason": "head_unknown"}


def _gaps() -> list[Row]:
    """One target has an open gap of unknown size and an earlier one; another gap is of long ago."""
    same = {"source": "scrape", "subject": "10.0.0.9:8083", "detail": ""}
    gone = same | {"reason": "unreachable"}
    return [
        gone | {"from_ts": AT_ELEVEN, "to_ts": AT_ELEVEN + timedelta(minutes=5), "rows_lost": 50},
        gone | {"from_ts": END - timedelta(minutes=10), "to_ts": None, "rows_lost": None},
        same | {"from_ts": END - 3 * DAY, "to_ts": END - 2 * DAY, "reason": "late"},
    ]


def _ages() -> list[Row]:
    """Ages in seconds at the end of each hour from noon on, p50 and p90 by group; and a rate."""
    found: list[Row] = []
    for group, now, p50_step, p90_step, limits_h in (
        ("billing", 0.0, 1.0, 10.0, (math.inf, math.inf, math.inf)),
        ("search-index", 600.0, 500.0, 700.0, (2.5, 3.0, 4.0)),
        ("audit", 3600.0, 3600.0, 3600.0, (30.0, 36.0, math.inf)),
        ("mailer", 1800.0, 10.0, 20.0, (None, None, None)),
        ("ledger", 0.0, 1.0, 4.8, (math.inf, math.inf, math.inf)),  # above a minute tomorrow
        ("sensors", 0.0, 16.0, 25.0, (20.0, math.inf, math.inf)),
    ):
        broker, topic = NAMES[group]
        for hour in range(24):
            p50, p90 = (now + hour * step for step in (p50_step, p90_step))
            limits = [each and each * 3600 for each in limits_h]
            found.append(
                {
                    "issued_at": AT_ELEVEN,
                    "subject": f"cluster={CLUSTER} broker={broker} group={group} topic={topic}",
                    "kind": "age",
                    "at": END + hour * HOUR,
                    **{"p10": now, "p50": p50, "p90": p90, "model": "last_day"},
                    "time_to_limit_p10_seconds": limits[0],
                    "time_to_limit_p50_seconds": limits[1],
                    "time_to_limit_p90_seconds": limits[2],
                }
            )
    of_ledger = next(row for row in found if "group=ledger" in row["subject"])
    return [*found, of_ledger | {"kind": "produce", "p50": 400.0, "p90": 500.0}]


def _logs() -> list[Row]:
    """The broker set g0 kept 36 hours at the last tick but one. What g1 keeps is not known."""
    node = {"cluster": CLUSTER, "replica": "n0"}
    known, newest = tick(TICKS - 2), tick(TICKS - 1)
    return [
        {"ts": at, "tick": at, **node, "broker": broker, "t_min": t_min}
        for at, broker, t_min in (
            (known, "g0", known - timedelta(hours=36)),
            (newest, "g0", None),
            (newest, "g1", None),
        )
    ]


def _changes() -> Iterator[Row]:
    """Changes of status of all pairs, from the rows of pair_lag."""
    for name in (*NAMES, None):
        before, since = "OK", tick(0)
        for place in PLACES:
            row = archive_row(place) if name is None else pair_row(name, place)
            if row["status"] == before:
                continue
            yield {
                "tick": row["tick"],
                "pair_id": row["pair_id"],
                "status_from": before,
                "status_to": row["status"],
                "level": str(row_of(row["status"]).level),
                "previous_seconds": (row["tick"] - since).total_seconds(),
            }
            before, since = row["status"], row["tick"]


def _change_of_a_queue() -> Row:
    """A queue alone is no alarm of its pair."""
    broker, topic = NAMES["billing"]
    number = series_id(CLUSTER, broker, "billing", topic, 0)
    moved = {"status_to": "STALLED", "level": "page"}
    return {"tick": tick(8), "series_id": number, "pair_id": number_of("billing"), **moved}


def _days() -> list[Row]:
    """Messages per second by day, this week and the week before, whose last day has 70 more; None:
    not known. The day before these two weeks does not count."""
    found = []
    for pair, before, now, seconds in (
        (number_of("billing"), 300, 360, 86_400),
        (number_of("audit"), 900, 900, 3_600),  # was there for the busiest hour of each day
        (number_of("mailer"), None, None, 0),
        (ARCHIVE_ID, 100, 100, 86_400),
        (number_of("ledger"), None, 50, 86_400),
        (number_of("sensors"), 100, 200, 86_400),
    ):
        for days in range(1, 16):
            rate = now if days <= 7 else before
            if rate is not None:
                rate = {8: rate + 70, 15: 99_999}.get(days, rate)
            day = {
                "bucket_start": TODAY - days * DAY,
                "pair_id": pair,
                "ticks": 5760,
                "worst_status": "OK",
                "grain_seconds": 86_400,
                "rate_seconds": None if rate is None else float(seconds),
                "produced": None if rate is None else seconds * rate,
            }
            part = {"grain_seconds": 900, "produced": 10**9, "rate_seconds": 900.0}
            found += [day, day | part, day | part | {"grain_seconds": 86_400, "series_id": 1}]
    return found


def _redelivered() -> list[Row]:
    """Counters of redeliveries every quarter of an hour; that of `mailer` begins again at 11:30."""
    counted: dict[str, list[int | None]] = {
        "mailer": [100, 110, 130, 5, 25, 40],
        "audit": [None, None, 3, 3, 3, 3],
        "search-index": [None] * 6,
    }
    return [
        {
            "ts": at,
            "tick": at,
            "pair_id": number_of(group),
            **{"cluster": CLUSTER, "broker": NAMES[group][0], "replica": "n0"},
            **{"group": group, "topic": NAMES[group][1]},
            "objective_seconds": OBJECTIVE_S,
            "redelivered_total": total,
        }
        for group, totals in counted.items()
        for at, total in zip(_quarters(AT_ELEVEN - HOUR / 4), totals, strict=False)
    ]


def _quarters(at: datetime) -> Iterator[datetime]:
    while True:
        yield at
        at += HOUR / 4


def _records() -> list[Row]:
    """Records of a store around eleven o'clock, and a part of it that could not be read."""
    found: list[Row] = []
    for topic, sizes, minutes in (
        ("%DLQ%mailer", (1000, 1200, 800), 10),
        ("%DLQ%mailer", (5000,), -10),  # an hour too early
        ("%RETRY%mailer", (900,) * 40, 5),
        ("%DLQ%audit", (500,), 20),
        ("%DLQ%search-index", (400,), 30),
        ("%RETRY%billing", (700,), 30),  # has no dead letters
        ("orders", (300,), 30),
    ):
        found += [
            {
                "broker": "g0",
                "file": "0",
                "physical_offset": 10_000 * (len(found) + number),
                "size": size,
                "topic": topic,
                "store_ts": AT_ELEVEN + timedelta(minutes=minutes),
            }
            for number, size in enumerate(sizes)
        ]
    # A batch: two messages, one record.
    found.append(next(row for row in found if row["topic"] == "%DLQ%audit"))
    unread = {"physical_offset": 9_000_000, "size": 4096, "gap": "damaged", "gap_detail": ""}
    return [*found, {"broker": "g0", "file": "0", **unread}]
