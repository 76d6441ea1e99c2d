"""Compares the analytics' result for each group with the planted fault. Pure except for reads.

The last tick decides: a fault counts as detected if its status holds at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

from analytics.statuses import URGENT, row_of
from analytics.tables import TableRoot
from drills.lag.plan import Planted

LOOK_BACK: Final = timedelta(minutes=10)
HIDDEN_LEAST: Final = 300
"""Number of messages: some seconds of either topic's traffic."""


class Found(NamedTuple):
    """One group–topic pair at its last tick."""

    group: str
    topic: str
    broker: str
    facts: dict[str, Any]
    """Its row of pair_lag."""
    stages: dict[str, Any]
    """Its row of stages; empty if there is none."""

    @property
    def key(self) -> tuple[str, str, str]:
        """(group, topic, broker)."""
        return self.group, self.topic, self.broker


class Verdict(NamedTuple):
    """The result for one planted group, and how it differs from the expectation."""

    planted: Planted
    found: Found | None
    wrong: Sequence[str]


def newest(tables: Path) -> list[Found]:
    """Return every pair at its last tick, from the last evaluated minutes."""
    root = TableRoot(tables)
    mark = root.watermark("pair_lag")
    if mark is None:
        return []
    since = mark - LOOK_BACK
    stages = {_key(row): row for row in _last(root.read("stages", since=since).to_pylist())}
    return [
        Found(*_key(row), row, stages.get(_key(row), {}))
        for row in _last(root.read("pair_lag", since=since).to_pylist())
    ]


def judge(planted: Iterable[Planted], found: Iterable[Found]) -> list[Verdict]:
    by_key = {each.key: each for each in found}
    verdicts = []
    for each in planted:
        got = by_key.get((each.group, each.topic, each.broker))
        verdicts.append(
            Verdict(each, got, ["there is no result for it"] if got is None else _wrong(each, got))
        )
    return verdicts


def _wrong(planted: Planted, found: Found) -> list[str]:
    facts, wrong = found.facts, []
    if facts["status"] != planted.status:
        wrong.append(f"status {facts['status']} instead of {planted.status}")
    blamed = found.stages.get("blamed")
    if planted.blamed is not None and blamed != planted.blamed:
        wrong.append(f"blamed {blamed} instead of {planted.blamed}")
    if planted.skew_kind is not None and facts["skew_kind"] != planted.skew_kind:
        wrong.append(f"skew {facts['skew_kind']} instead of {planted.skew_kind}")
    if planted.stuck_queues != (facts["stuck"] or 0):
        wrong.append(f"{facts['stuck']} queues stuck instead of {planted.stuck_queues}")
    # Other groups may have a few messages in transit at any time.
    if planted.hides != ((facts["hidden_lag"] or 0) >= HIDDEN_LEAST):
        wrong.append(f"hidden lag is {facts['hidden_lag']}")
    return wrong


def others(tables: Path, planted: Iterable[Planted]) -> list[Found]:
    """Return pairs with an alarm that was not planted, including retry topics of the groups."""
    keys = {(each.group, each.topic, each.broker) for each in planted}
    return [
        each
        for each in newest(tables)
        if each.key not in keys and row_of(each.facts["status"]).level in URGENT
    ]


def _key(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["group"], row["topic"], row["broker"]


def _last(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the row with the latest tick of each pair."""
    latest: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in rows:
        known = latest.get(_key(row))
        if known is None or row["tick"] > known["tick"]:
            latest[_key(row)] = row
    return [latest[key] for key in sorted(latest)]
