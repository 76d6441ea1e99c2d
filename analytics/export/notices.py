"""Which changes of status are told to a webhook, for whoever has no Alertmanager. Pure.

At most one per pair and status in ten minutes. A change that is over is told only from a known good
state: a pair that became unknown has not recovered. Every notice has an id made of what it is
about, so whoever gets one twice (a restart, an answer that was lost) can drop it.
Before: ``look`` found changes. After: ``webhook`` posts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Final, NamedTuple

from analytics.statuses import URGENT, Status, row_of

AGAIN_AFTER: Final = timedelta(minutes=10)
REMEMBERED: Final = 100_000
"""Pairs and statuses; the oldest are forgotten first, and at worst told once more."""


class Change(NamedTuple):
    """A row of ``status_changes`` about a pair as a whole. A pair has at most one in a tick."""

    tick: datetime
    pair_id: int
    status_from: str | None
    status_to: str


class Notice(NamedTuple):
    """What is posted."""

    id: str
    at: str
    """The tick at which it is told; ISO 8601."""
    since: str
    """The tick at which it changed."""
    resolved: bool
    level: str
    status: str
    before: str | None
    cluster: str
    broker: str
    group: str
    topic: str
    cause: str


class Names(NamedTuple):
    """Of a pair."""

    cluster: str
    broker: str
    group: str
    topic: str
    cause: str


def identity(change: Change) -> str:
    """Of a change; the same whoever finds it, and when."""
    text = f"{change.pair_id} {change.status_to} {change.tick.isoformat()}"
    return blake2b(text.encode(), digest_size=12).hexdigest()


class Notices:
    """What was told already, and what is still owed."""

    def __init__(self) -> None:
        self._told: OrderedDict[tuple[int, str], datetime] = OrderedDict()
        """When a pair's status was last told."""
        self._last: dict[int, str] = {}
        """What was told last of a pair."""
        self._owed: dict[int, Change] = {}
        """What changed too soon after the same was told: told when the time is over, if it still
        is so. Else who was told of an end would never hear that trouble came back."""
        self._until: datetime | None = None
        """Changes up to here were looked at."""

    def take(
        self, changes: Iterable[Change], names: Mapping[int, Names], now: datetime
    ) -> list[Notice]:
        """What to tell of changes that are new, oldest first, and what was owed.

        names: of all pairs; one that is not there is not told. now: the newest tick.
        """
        news = sorted(
            (each for each in changes if self._until is None or each.tick > self._until),
            key=lambda each: (each.tick, each.pair_id),
        )
        found: list[Notice] = []
        for change in news:
            self._until = change.tick
            self._owed.pop(change.pair_id, None)
            if not self._matters(change) or change.pair_id not in names:
                continue
            if self._is_too_soon(change, change.tick):
                self._owed[change.pair_id] = change
            else:
                found.append(self._tell(change, change.tick, names))
        for change in list(self._owed.values()):
            if change.pair_id in names and not self._is_too_soon(change, now):
                del self._owed[change.pair_id]
                if self._last.get(change.pair_id) != change.status_to:
                    found.append(self._tell(change, now, names))
        while len(self._told) > REMEMBERED:
            (pair, _), _ = self._told.popitem(last=False)
            self._last.pop(pair, None)
        return found

    def _matters(self, change: Change) -> bool:
        if change.status_to != Status.OK:
            return row_of(change.status_to).level in URGENT
        # Its begin may have been told by whoever ran here before.
        last = self._last.get(change.pair_id, change.status_from or "")
        return row_of(last).level in URGENT

    def _is_too_soon(self, change: Change, at: datetime) -> bool:
        before = self._told.get((change.pair_id, change.status_to))
        return before is not None and at - before < AGAIN_AFTER

    def _tell(self, change: Change, at: datetime, names: Mapping[int, Names]) -> Notice:
        key = (change.pair_id, change.status_to)
        self._told[key] = at
        self._told.move_to_end(key)
        self._last[change.pair_id] = change.status_to
        return _notice(change, at, names[change.pair_id])


def _notice(change: Change, at: datetime, of: Names) -> Notice:
    return Notice(
        identity(change),
        at.isoformat(),
        change.tick.isoformat(),
        change.status_to == Status.OK,
        row_of(change.status_to).level,
        change.status_to,
        change.status_from,
        of.cluster,
        of.broker,
        of.group,
        of.topic,
        of.cause,
    )
