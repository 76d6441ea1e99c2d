"""The oldest message that a group was not handed, and the oldest that it has not committed. Pure.

Together with the times of the log (``log_times``) they split how far a group is behind the newest
record (docs/lag.md): replication, dispatch, delivery and processing. Where nothing is outstanding
at a stage its time is that of the stage before it, so that each stage takes 0 seconds at least and
the four add up to the whole. A group is looked at a moment after the log was: what the log has got
since then is not outstanding, for it was not there.
Before: ``look`` found the messages of each queue. After: ``metrics`` shows the times, and lag
analytics takes the differences.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from services.broker.log.log_times import LogTimes


class Oldest(NamedTuple):
    """Of one pair of a group and a topic, over its queues; store times [wall clock ms]."""

    undelivered_ms: int | None = None
    """None: everything is handed out."""
    uncommitted_ms: int | None = None
    """None: everything is committed."""
    awaiting_ms: int | None = None
    """Of the queue with the oldest uncommitted message: its oldest undelivered one. None: there is
    none, or what is not delivered waits for processing (``Coordinator.busy_holders``). Of one
    queue, for the stages of another say nothing of it."""

    def with_(self, other: Oldest) -> Oldest:
        """Of both together."""
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
    """What the series of one pair say; store times [wall clock ms]."""

    undelivered_ms: int
    uncommitted_ms: int
    awaiting_ms: int
    """Where delivery ends and processing begins."""


def shown(times: LogTimes, oldest: Oldest) -> Shown:
    """A pair's times as of the look at the log; each at most that of the stage before."""
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
    """Of several queues together."""
    found = NOTHING_OUTSTANDING
    for each in queues:
        found = found.with_(each)
    return found


def earlier(one: int | None, other: int | None) -> int | None:
    """The earlier of what there is."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
