"""From tables to facts. Memory is bounded by pairs and bins, not by the length of the time.

Step before: ``analytics.tables`` reads. Step after: ``page`` draws, ``facts.to_json`` writes.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Final

from analytics.report.changes import Previous, changes
from analytics.report.course import details
from analytics.report.facts import Facts, Pair
from analytics.report.outlook import anomalies, capacity, forecasts, gaps, unknowns
from analytics.report.overview import Overview, overview
from analytics.statuses import LEVELS, Level
from analytics.tables import TableRoot

ATTENTION_MAX: Final = 24
"""Maximum number of cards; all other pairs are in the list."""
OTHERS_MAX: Final = 12
"""Maximum number of timelines of pairs that are in time now, but had a problem before."""
PAIRS_MAX: Final = 500
"""Maximum number of pairs in the list."""
_PERIOD_S: Final = 15.0
"""Assumed period if there are too few ticks."""


def gather(
    tables: TableRoot,
    *,
    start: datetime,
    end: datetime,
    made_at: datetime,
    title: str = "",
    before: Previous | None = None,
) -> Facts:
    """Return the facts of start ≤ time < end. before: the previous report, for the comparison.
    Raises ValueError for an empty time."""
    seen = overview(tables, start, end)
    # A late pair that became unknown has not recovered.
    pairs = [
        replace(pair, was_late=pair.level == Level.UNKNOWN and pair.pair_id in seen.late)
        for pair in seen.pairs
    ]
    pairs.sort(key=urgency)
    urgent = [
        pair for pair in pairs if pair.level not in (Level.NONE, Level.UNKNOWN) or pair.was_late
    ]
    shown = urgent[:ATTENTION_MAX]
    others = _others(seen, pairs, {pair.pair_id for pair in shown})
    period_s = seen.period_s or _PERIOD_S
    drawn = []
    if seen.newest is not None:
        drawn = details(tables, [*shown, *others], seen.bins, seen.newest, period_s)
    counts: dict[str, int] = {}
    for pair in pairs:
        counts[pair.status] = counts.get(pair.status, 0) + 1
    clusters = sorted({pair.cluster for pair in pairs if pair.cluster})
    return Facts(
        title=title or ", ".join(clusters[:4]) or "Tidemark",
        made_at=made_at,
        bins=seen.bins,
        period_s=seen.period_s,
        newest=seen.newest,
        known_share=seen.known_share,
        counts=counts,
        by_status=seen.by_status,
        attention=drawn[: len(shown)],
        others=drawn[len(shown) :],
        pairs=pairs[:PAIRS_MAX],
        pairs_left_out=max(0, len(pairs) - PAIRS_MAX),
        attention_left_out=len(urgent) - len(shown),
        forecasts=forecasts(tables, end),
        capacity=capacity(tables, end),
        anomalies=anomalies(tables, start, end),
        gaps=gaps(tables, start, end),
        unknowns=unknowns(tables, seen.newest, period_s),
        previous_at=None if before is None else before.made_at,
        changes=changes(before, pairs[:PAIRS_MAX], is_whole=len(pairs) <= PAIRS_MAX),
    )


def urgency(pair: Pair) -> tuple[int, bool, float, str, str]:
    """Sort key of pairs: by level; within a level, the furthest above its objective first. A pair
    that was late before it became unknown comes before pairs that only inform."""
    burn = 0.0
    if pair.age_s is not None and pair.objective_s:
        burn = pair.age_s / pair.objective_s
    of = Level.INFO if pair.was_late else pair.level
    return LEVELS.index(of), not pair.was_late, -burn, pair.group, pair.topic


def _others(seen: Overview, pairs: list[Pair], shown: set[int]) -> list[Pair]:
    """Return the pairs with the longest problems that are not shown already."""
    found = [
        pair for pair in pairs if pair.pair_id not in shown and seen.troubled.get(pair.pair_id)
    ]
    found.sort(key=lambda pair: -seen.troubled[pair.pair_id])
    return found[:OTHERS_MAX]
