"""Forecasts, capacity, anomalies, gaps and unknown queues; each list is bounded.

The newest version of each forecast at the end of the report counts. Step before:
``analytics.tables``. Step after: ``gather``.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from analytics.report.bins import summed
from analytics.report.facts import Anomaly, Capacity, Forecast, GapFact, UnknownFact
from analytics.report.overview import LOOK_BACK_TICKS
from analytics.schema import CAPACITY, FORECASTS
from analytics.statuses import Status
from analytics.tables import TableRoot

FORECASTS_MAX: Final = 12
POINTS_MAX: Final = 240
"""Maximum number of points of one forecast."""
CAPACITY_MAX: Final = 20
ANOMALIES_MAX: Final = 12
GAPS_MAX: Final = 40
ISSUED_WITHIN: Final = timedelta(days=2)
"""Older forecasts are not used."""
GAP_LENGTH_MAX: Final = timedelta(days=1)
"""Maximum time before the report at which an overlapping gap may have begun."""
_ENDLESS: Final = float("inf")
_KINDS: Final = {"disk": 0, "produce": 1, "age": 2}
"""Order of kinds for forecasts that reach no limit."""


def forecasts(tables: TableRoot, end: datetime) -> list[Forecast]:
    """Return the newest version by subject and kind; the first to reach a limit is first.

    The first pass chooses the forecasts to show, of maybe hundreds of thousands; the second reads
    their points.
    """
    chosen = _soonest(tables, end)
    points: dict[tuple[str, str], list[dict[str, Any]]] = {key: [] for key in chosen}
    subjects = pa.array(sorted({subject for _, subject in chosen}), pa.string())
    for piece in tables.scan(
        "forecasts", since=end - ISSUED_WITHIN, before=end, columns=FORECASTS.names
    ):
        for row in piece.filter(pc.is_in(piece["subject"], subjects)).to_pylist():
            key = (row["kind"], row["subject"])
            if chosen.get(key) == row["issued_at"]:
                points[key].append(row)
    return [_forecast(sorted(each, key=lambda row: row["at"])) for each in points.values() if each]


def _soonest(tables: TableRoot, end: datetime) -> dict[tuple[str, str], datetime]:
    """Return the forecasts to show, in order, with the time of their newest version."""
    newest: dict[tuple[str, str], tuple[datetime, float]] = {}
    columns = ["issued_at", "subject", "kind", "time_to_limit_p50_seconds"]
    for piece in tables.scan("forecasts", since=end - ISSUED_WITHIN, before=end, columns=columns):
        issues = piece.group_by(["kind", "subject", "issued_at"]).aggregate(
            [("time_to_limit_p50_seconds", "min")]
        )
        for row in issues.to_pylist():
            key = (row["kind"], row["subject"])
            if key not in newest or newest[key][0] < row["issued_at"]:
                limit = row["time_to_limit_p50_seconds_min"]
                newest[key] = (row["issued_at"], _ENDLESS if limit is None else limit)
    order = sorted(newest, key=lambda key: (newest[key][1], _KINDS.get(key[0], 9), key[1]))
    return {key: newest[key][0] for key in order[:FORECASTS_MAX]}


def _forecast(rows: list[dict[str, Any]]) -> Forecast:
    first, rows = rows[0], rows[:: -(-len(rows) // POINTS_MAX)]
    return Forecast(
        subject=first["subject"],
        kind=first["kind"],
        issued_at=first["issued_at"],
        model=first["model"],
        backtest_error=first["backtest_error"],
        at=[row["at"] for row in rows],
        p10=[row["p10"] for row in rows],
        p50=[row["p50"] for row in rows],
        p90=[row["p90"] for row in rows],
        limit_p10_s=first["time_to_limit_p10_seconds"],
        limit_p50_s=first["time_to_limit_p50_seconds"],
        limit_p90_s=first["time_to_limit_p90_seconds"],
    )


def capacity(tables: TableRoot, end: datetime) -> list[Capacity]:
    """Capacity of each group and topic on the newest day; the highest utilisation first."""
    rows = tables.read(
        "capacity", since=end - 4 * ISSUED_WITHIN, before=end, columns=CAPACITY.names
    ).to_pylist()
    keys = ("cluster", "broker", "group", "topic")
    newest: dict[tuple[str | None, ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple(row[name] for name in keys)
        if key not in newest or newest[key]["day"] < row["day"]:
            newest[key] = row
    found = [
        Capacity(
            **{name: row[name] for name in (*keys, "day", "queues", "limited_by", "minutes")},
            c_max_per_s=row["c_max_per_second"],
            c_max_low_per_s=row["c_max_low_per_second"],
            utilisation=row["utilisation_p95"],
            members=row["members_at_max"],
        )
        for row in newest.values()
    ]
    found.sort(key=lambda each: (-(each.utilisation or 0.0), each.group, each.topic))
    return found[:CAPACITY_MAX]


def anomalies(tables: TableRoot, start: datetime, end: datetime) -> list[Anomaly]:
    """Return the largest anomaly of each subject and signal that no parent explains, largest
    first."""
    most: dict[tuple[str, str], Anomaly] = {}
    names = ["ts", "subject", "signal", "value", "expected", "score"]
    for piece in tables.scan("anomalies", since=start, before=end, columns=[*names, "suppressed"]):
        shown = piece.filter(pc.invert(piece["suppressed"])).select(names)
        for row in shown.to_pylist():
            one = Anomaly(**row)
            key = (one.subject, one.signal)
            if key not in most or abs(most[key].score) < abs(one.score):
                most[key] = one
    return sorted(most.values(), key=lambda each: -abs(each.score))[:ANOMALIES_MAX]


def gaps(tables: TableRoot, start: datetime, end: datetime) -> list[GapFact]:
    """Sum gaps by source, subject and reason; the newest first."""
    columns = ["source", "subject", "reason", "detail", "from_ts", "to_ts", "rows_lost"]
    found: dict[tuple[str, str, str], GapFact] = {}
    for piece in tables.scan("gaps", since=start - GAP_LENGTH_MAX, before=end, columns=columns):
        inside = pc.or_kleene(
            pc.is_null(piece["to_ts"]),
            pc.greater(piece["to_ts"], pa.scalar(start, piece.schema.field("to_ts").type)),
        )
        for row in piece.filter(inside).to_pylist():
            key = (row["source"], row["subject"], row["reason"])
            found[key] = _with_gap(found.get(key), row)
    newest_first = sorted(
        found.values(), key=lambda each: each.to_ts or each.from_ts or start, reverse=True
    )
    return newest_first[:GAPS_MAX]


def _with_gap(known: GapFact | None, row: dict[str, Any]) -> GapFact:
    if known is None:
        return GapFact(**row, count=1)
    lost = [each for each in (known.rows_lost, row["rows_lost"]) if each is not None]
    begins = [each for each in (known.from_ts, row["from_ts"]) if each is not None]
    ends = [each for each in (known.to_ts, row["to_ts"]) if each is not None]
    return GapFact(
        known.source,
        known.subject,
        known.reason,
        row["detail"] or known.detail,
        known.count + 1,
        min(begins, default=None),
        max(ends, default=None),
        sum(lost) if lost else None,
    )


def unknowns(tables: TableRoot, newest: datetime | None, period_s: float) -> list[UnknownFact]:
    """Number of queues with an unknown value at the newest tick, by reason."""
    if newest is None:
        return []
    since = newest - timedelta(seconds=period_s * LOOK_BACK_TICKS)

    def pieces() -> Iterator[pa.Table]:
        for piece in tables.scan(
            "lag",
            since=since,
            before=newest + timedelta(microseconds=1),
            columns=["series_id", "pair_id", "reason", "status"],
        ):
            is_unknown = pc.or_kleene(
                pc.equal(piece["status"], str(Status.UNKNOWN)), pc.is_valid(piece["reason"])
            )
            yield piece.filter(is_unknown).select(["reason", "pair_id", "series_id"])

    by_series = summed(pieces(), ["reason", "pair_id", "series_id"], [("series_id", "count")])
    if not by_series.num_rows:
        return []
    counted = by_series.group_by("reason").aggregate(
        [("series_id", "count_distinct"), ("pair_id", "count_distinct")]
    )
    found = [
        UnknownFact(
            row["reason"] or "", row["series_id_count_distinct"], row["pair_id_count_distinct"]
        )
        for row in counted.to_pylist()
    ]
    return sorted(found, key=lambda each: (-each.queues, each.reason))
