"""Changes of status that are sent to a webhook, for installations without Alertmanager. Pure.

At most one notice per pair and status is sent in ten minutes. A recovery is sent only when the
status of the pair is known: a pair that became UNKNOWN has not recovered. The id of a notice is a
hash of its content. A receiver can drop one that comes twice, after a restart or a lost answer.
When ticks were evaluated again because samples came late, their changes are not sent: of each pair
only the status that it has now, unless that was sent. Step before: ``reading`` found changes. Step
after: ``webhook`` posts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Final, NamedTuple

from analytics.statuses import URGENT, Status, row_of

AGAIN_AFTER: Final = timedelta(minutes=10)
REMEMBERED: Final = 100_000
"""Pairs and statuses that are remembered. The oldest are dropped and may be sent again."""


class Change(NamedTuple):
    """A row of ``status_changes`` about a pair as a whole. A pair has at most one in a tick."""

    tick: datetime
    pair_id: int
    status_from: str | None
    status_to: str
    is_revised: bool = False
    """Whether its tick was evaluated again."""


class Notice(NamedTuple):
    """Content of one notice."""

    id: str
    at: str
    """The tick at which it is sent; ISO 8601."""
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
    """Names of a pair's group and topic, and the cause of its status."""

    cluster: str
    broker: str
    group: str
    topic: str
    cause: str


def identity(change: Change) -> str:
    """Id of a change; it does not depend on the process or on the time."""
    text = f"{change.pair_id} {change.status_to} {change.tick.isoformat()}"
    return blake2b(text.encode(), digest_size=12).hexdigest()


class Notices:
    """Notices that were sent, and changes that wait to be sent."""

    def __init__(self) -> None:
        self._sent: OrderedDict[tuple[int, str], datetime] = OrderedDict()
        """When a notice of a pair and status was last sent."""
        self._last: dict[int, str] = {}
        """The status that was last sent of a pair."""
        self._owed: dict[int, Change] = {}
        """Changes that came too soon after an equal notice. They are sent after the interval if
        they still hold. Otherwise a problem that returns soon after its end would never be sent."""
        self._until: datetime | None = None
        """Tick of the newest change that was handled."""

    def take(
        self,
        changes: Iterable[Change],
        names: Mapping[int, Names],
        now: datetime,
        in_time: Collection[int] = (),
    ) -> list[Notice]:
        """Return the notices for new changes, oldest first, and for those that waited.
        names: of all pairs; a pair without names is not sent. now: the newest tick. in_time: pairs
        whose status is OK now."""
        found: list[Notice] = []
        sent_before = dict(self._last)
        for change in self._news(changes):
            self._until = change.tick if self._until is None else max(self._until, change.tick)
            self._owed.pop(change.pair_id, None)
            if not self._matters(change) or change.pair_id not in names:
                continue
            if self._is_too_soon(change, change.tick):
                self._owed[change.pair_id] = change
            else:
                found.append(self._send(change, change.tick, names))
        for change in list(self._owed.values()):
            if change.pair_id in names and not self._is_too_soon(change, now):
                del self._owed[change.pair_id]
                if self._last.get(change.pair_id) != change.status_to:
                    found.append(self._send(change, now, names))
        for pair, status in sent_before.items():
            # Late samples have shown that there was no trouble: no change says that it ended. But
            # `in_time` may be older than a change that was sent just now.
            is_same = self._last[pair] == status
            if is_same and pair in in_time and pair not in self._owed and status != Status.OK:
                found.append(self._send(Change(now, pair, status, Status.OK), now, names))
        while len(self._sent) > REMEMBERED:
            (pair, _), _ = self._sent.popitem(last=False)
            self._last.pop(pair, None)
        return found

    def _news(self, changes: Iterable[Change]) -> list[Change]:
        """Return the changes to handle, in order: those after the last one that was handled, and
        of a revised past what holds now and was not sent."""
        ordered = sorted(changes, key=lambda each: (each.tick, each.pair_id))
        last = {each.pair_id: each for each in ordered}
        return [each for each in ordered if self._is_news(each, last[each.pair_id])]

    def _is_news(self, change: Change, last_of_pair: Change) -> bool:
        if change.is_revised:
            sent = self._last.get(change.pair_id, Status.OK)
            return change == last_of_pair and change.status_to != sent
        return self._until is None or change.tick > self._until

    def _matters(self, change: Change) -> bool:
        if change.status_to != Status.OK:
            return row_of(change.status_to).level in URGENT
        # The process before a restart may have sent the notice that the problem began.
        last = self._last.get(change.pair_id, change.status_from or "")
        return row_of(last).level in URGENT

    def _is_too_soon(self, change: Change, at: datetime) -> bool:
        before = self._sent.get((change.pair_id, change.status_to))
        return before is not None and at - before < AGAIN_AFTER

    def _send(self, change: Change, at: datetime, names: Mapping[int, Names]) -> Notice:
        key = (change.pair_id, change.status_to)
        self._sent[key] = at
        self._sent.move_to_end(key)
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
        *of,
    )
