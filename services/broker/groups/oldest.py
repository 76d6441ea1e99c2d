"""The oldest undelivered message of a group, and its oldest uncommitted message. Pure.

Together with the times of the log (``log_times``) they split a group's delay behind the newest
record into stages (docs/lag.md): replication, dispatch, delivery and processing. If nothing is
outstanding at a stage, its time is that of the previous stage. So each stage takes at least 0
seconds and the four add up to the whole. Groups are sampled a moment after the log; messages that
arrived in between do not count as outstanding. Step before: ``lag_collector`` found the messages of
each queue. Step after: ``metrics`` shows the times, and lag analytics takes the differences.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from services.broker.log.log_times import LogTimes


class Oldest(NamedTuple):
    """Store times [wall clock ms] for one group and topic, over all queues."""

    undelivered_ms: int | None = None
    """Oldest undelivered message; None: everything is delivered."""
    uncommitted_ms: int | None = None
    """Oldest uncommitted message; None: everything is committed."""
    awaiting_ms: int | None = None
    """Oldest undelivered message of the queue with the oldest uncommitted one. None: there is none,
    or what is undelivered waits for processing (``Coordinator.busy_holders``). It is taken from one
    queue because stages of different queues are unrelated."""

    def with_(self, other: Oldest) -> Oldest:
        """Return the oldest of both."""
        uncommitted_ms = earlier(self.uncommitted_ms, other.uncommitted_ms)
        awaiting_ms = None
        for each in (self, other):
            if each.uncommitted_ms == uncommitted_ms:
                awaiting_ms = earlier(awaiting_ms, each.awaiting_ms)
        return Oldest(
            earlier(self.undelivered_ms, other.undelivered_ms), uncommitted_ms, awaiting_ms
        )


NOTHING_OUTSTANDING = Oldest()


class Shown(NamedTuple):
    """Store times [wall clock ms] that the series of one group and topic show."""

    undelivered_ms: int
    uncommitted_ms: int
    awaiting_ms: int
    """Where delivery ends and processing begins."""


def shown(times: LogTimes, oldest: Oldest) -> Shown:
    """Return the times to show; each is at most that of the previous stage."""
    undelivered_ms = times.dispatched_ms
    if oldest.undelivered_ms is not None:
        undelivered_ms = min(undelivered_ms, oldest.undelivered_ms)
    uncommitted_ms = undelivered_ms
    if oldest.uncommitted_ms is not None:
        uncommitted_ms = min(uncommitted_ms, oldest.uncommitted_ms)
    awaiting_ms = times.dispatched_ms
    if oldest.awaiting_ms is not None:
        awaiting_ms = max(min(awaiting_ms, oldest.awaiting_ms), uncommitted_ms)
    return Shown(undelivered_ms, uncommitted_ms, awaiting_ms)


def over(queues: Iterable[Oldest]) -> Oldest:
    """Return the oldest over several queues."""
    found = NOTHING_OUTSTANDING
    for each in queues:
        found = found.with_(each)
    return found


def earlier(one: int | None, other: int | None) -> int | None:
    """Return the earlier time, ignoring None."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
