"""Changes since the previous report. Pure.

A report of another version is not compared.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from analytics.report.facts import VERSION, Change, Pair
from analytics.report.words import shown_status
from analytics.statuses import LEVELS, URGENT, Level

CHANGES_MAX: Final = 40
Name = tuple[str, str, str, str]
"""Cluster, broker set, group, topic."""


class Previous(NamedTuple):
    """Content of the previous report."""

    made_at: datetime
    pairs: dict[Name, tuple[str, str]]
    """Status and level of each pair."""
    is_whole: bool
    """Whether it has all pairs, so that a missing pair did not exist."""


def previous(text: str) -> Previous | None:
    """Read a report.json; None if it is not comparable."""
    try:
        found: dict[str, Any] = json.loads(text)
        if found["version"] != VERSION:
            return None
        pairs = {
            (row["cluster"], row["broker"], row["group"], row["topic"]): (
                shown_status(str(row["status"]), str(row["level"])),
                str(row["level"]),
            )
            for row in found["pairs"]
        }
        return Previous(
            datetime.fromisoformat(found["made_at"]), pairs, found["pairs_left_out"] == 0
        )
    except (ValueError, KeyError, TypeError):
        return None


def changes(before: Previous | None, pairs: Sequence[Pair], *, is_whole: bool) -> list[Change]:
    """Return the changes: new problems first, then ended ones, then others.
    pairs: their present state; is_whole: whether these are all."""
    if before is None:
        return []
    found: list[tuple[int, int, Change]] = []
    now: set[Name] = set()
    for pair in pairs:
        name = (pair.cluster, pair.broker, pair.group, pair.topic)
        now.add(name)
        was = before.pairs.get(name)
        if was is None and not before.is_whole:
            continue
        was_status, was_level = was or (None, Level.NONE)
        now_status = shown_status(pair.status, pair.level)
        if was is not None and (was_status, was_level) == (now_status, pair.level):
            continue
        if was is None and pair.level == Level.NONE:
            kind = "other"
        elif pair.level in URGENT and _place(pair.level) < _place(was_level):
            kind = "new"
        elif pair.level == Level.NONE:
            kind = "over"
        else:
            kind = "other"
        change = Change(kind, *name, was_status, now_status)
        found.append((("new", "over", "other").index(kind), _place(pair.level), change))
    if is_whole:
        found += [
            (3, 0, Change("gone", *name, status, None))
            for name, (status, _) in before.pairs.items()
            if name not in now
        ]
    found.sort(key=lambda each: (each[0], each[1], each[2].group, each[2].topic))
    return [change for _, _, change in found[:CHANGES_MAX]]


def _place(level: str) -> int:
    return LEVELS.index(level) if level in LEVELS else len(LEVELS)
