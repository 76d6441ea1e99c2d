"""One reading of the tables: everything that is exported, with bounds.

Step before: jobs wrote tables and noted their runs. Step after: ``metrics`` shows the last reading.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import numpy as np
import pyarrow.compute as pc

from analytics import runs
from analytics.export.notices import AGAIN_AFTER, Change, Names
from analytics.kernel.columns import micros
from analytics.report.facts import Pair
from analytics.report.gather import urgency
from analytics.report.overview import pairs_at
from analytics.statuses import Level, Status
from analytics.tables import TableRoot

PAIRS_MAX: Final = 10_000
"""Maximum number of exported pairs; the worst are chosen."""
ANOMALIES_MAX: Final = 200
VOLUMES_MAX: Final = 200
GAPS_KEPT: Final = 100_000
"""Number of remembered gaps. Each gap is counted once."""
PERIOD_WITHIN: Final = timedelta(minutes=15)
RECENT: Final = timedelta(hours=1)
"""Anomalies older than this are not shown."""
ISSUED_WITHIN: Final = timedelta(hours=6)
"""Older forecasts are not used."""
CHANGES_WITHIN: Final = AGAIN_AFTER
"""How far back a restart reads, so that changes in between are still sent."""
GAPS_WITHIN: Final = timedelta(days=1)
ANOMALY_LEAST: Final = 6.0
_PERIOD_S: Final = 15.0

Gap = tuple[str, str, str, datetime | None]
"""Source, subject, reason, begin."""


class Reading(NamedTuple):
    """Result of one reading."""

    newest: datetime | None
    """The newest tick evaluated; None: there is none."""
    pairs: list[Pair]
    """Pairs that are late, unknown or held back; the worst first."""
    counts: Mapping[tuple[str, str], int]
    """Pairs by cluster and status."""
    full_s: Mapping[str, float]
    """Time until a volume is full, by subject."""
    anomalies: Mapping[tuple[str, str], float]
    """Scores by subject and signal."""
    gaps: list[Gap]
    """Gaps of the last day."""
    runs: list[runs.Ended]
    """Runs of jobs that ended since the time that was asked for."""
    names: Mapping[int, Names]
    """Names of all pairs, with the cause of their status."""
    changes: list[Change]
    """Changes of the last minutes, of pairs as a whole; of pairs with late samples also that to
    the present status, however long ago."""
    in_time: frozenset[int]
    """Pairs whose status is OK."""


def read(tables: TableRoot, now: datetime, runs_since: datetime) -> Reading:
    """Read once. Raises what the tables raise."""
    span = tables.span("pair_lag")
    newest = None if span is None else span[1]
    pairs = [] if newest is None else pairs_at(tables, newest, period_of(tables, newest))
    counts: dict[tuple[str, str], int] = {}
    for pair in pairs:
        key = (pair.cluster, pair.status.lower())
        counts[key] = counts.get(key, 0) + 1
    shown = sorted((pair for pair in pairs if pair.level != Level.NONE), key=urgency)
    return Reading(
        newest,
        shown[:PAIRS_MAX],
        counts,
        _volumes(tables, now),
        _anomalies(tables, now),
        _gaps(tables, now),
        runs.ended(tables, runs_since),
        {
            pair.pair_id: Names(pair.cluster, pair.broker, pair.group, pair.topic, pair.cause)
            for pair in pairs
        },
        [] if newest is None else _with_revised(_changes(tables, newest), tables, newest, pairs),
        frozenset(pair.pair_id for pair in pairs if pair.status == Status.OK),
    )


def period_of(tables: TableRoot, newest: datetime) -> float:
    """Time between ticks [s]: the median of the latest intervals."""
    found = tables.read(
        "pair_lag",
        since=newest - PERIOD_WITHIN,
        before=newest + timedelta(microseconds=1),
        columns=["tick"],
    )
    ticks = np.unique(micros(found, "tick"))
    return float(np.median(np.diff(ticks))) / 1e6 if len(ticks) > 1 else _PERIOD_S


def _changes(tables: TableRoot, newest: datetime) -> list[Change]:
    found: list[Change] = []
    for piece in tables.scan(
        "status_changes",
        since=newest - CHANGES_WITHIN,
        before=newest + timedelta(microseconds=1),
        columns=["tick", "series_id", "pair_id", "status_from", "status_to", "revised_at"],
    ):
        rows = piece.filter(pc.is_null(piece["series_id"])).drop_columns("series_id")
        is_revised = rows["revised_at"].is_valid()
        rows = rows.drop_columns("revised_at").append_column("is_revised", is_revised)
        found += [Change(**row) for row in rows.to_pylist()]
    return found


def _with_revised(
    changes: list[Change], tables: TableRoot, newest: datetime, pairs: list[Pair]
) -> list[Change]:
    """Add the change to the present status of each pair of which ticks were evaluated again: if the
    samples came late enough, the change is older than CHANGES_WITHIN as soon as it is found."""
    revised: set[int] = set()
    for piece in tables.scan(
        "pair_lag", since=newest - PERIOD_WITHIN, columns=["tick", "pair_id", "revised_at"]
    ):
        revised.update(piece.filter(piece["revised_at"].is_valid())["pair_id"].to_pylist())
    known = {(each.pair_id, each.tick) for each in changes}
    return changes + [
        Change(pair.since, pair.pair_id, None, pair.status, is_revised=True)
        for pair in pairs
        if pair.pair_id in revised
        and pair.since is not None
        and (pair.pair_id, pair.since) not in known
    ]


def _volumes(tables: TableRoot, now: datetime) -> dict[str, float]:
    newest: dict[str, tuple[datetime, float | None]] = {}
    columns = ["issued_at", "subject", "kind", "time_to_limit_p10_seconds"]
    for piece in tables.scan(
        "forecasts", since=now - ISSUED_WITHIN, before=now + RECENT, columns=columns
    ):
        for row in piece.filter(pc.equal(piece["kind"], "disk")).to_pylist():
            known = newest.get(row["subject"])
            if known is None or known[0] < row["issued_at"]:
                newest[row["subject"]] = (row["issued_at"], row["time_to_limit_p10_seconds"])
    found = {
        subject: until - (now - issued).total_seconds()
        for subject, (issued, until) in newest.items()
        if until is not None and math.isfinite(until)
    }
    soonest = sorted(found, key=lambda subject: found[subject])[:VOLUMES_MAX]
    return {subject: max(0.0, found[subject]) for subject in soonest}


def _anomalies(tables: TableRoot, now: datetime) -> dict[tuple[str, str], float]:
    newest: dict[tuple[str, str], tuple[datetime, float]] = {}
    columns = ["ts", "subject", "signal", "score", "suppressed"]
    for piece in tables.scan("anomalies", since=now - RECENT, before=now + RECENT, columns=columns):
        for row in piece.filter(pc.invert(piece["suppressed"])).to_pylist():
            key = (row["subject"], row["signal"])
            if key not in newest or newest[key][0] < row["ts"]:
                newest[key] = (row["ts"], row["score"])
    far = {key: score for key, (_, score) in newest.items() if abs(score) >= ANOMALY_LEAST}
    return {key: far[key] for key in sorted(far, key=lambda key: -abs(far[key]))[:ANOMALIES_MAX]}


def _gaps(tables: TableRoot, now: datetime) -> list[Gap]:
    columns = ["source", "subject", "reason", "from_ts"]
    found: list[Gap] = []
    for piece in tables.scan("gaps", since=now - GAPS_WITHIN, columns=columns):
        for row in piece.slice(0, GAPS_KEPT - len(found)).to_pylist():
            found.append((row["source"], row["subject"], row["reason"], row["from_ts"]))
    return found
