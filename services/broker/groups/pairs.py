"""Lag of group–topic pairs: the queues summed up. Pure.

A queue is *stuck* when its commit has not moved for longer than is usual for it: four times the
longest recent gap between two moves while there was lag, within a minute and half an hour.
Step before: ``lag`` computed the lag of each queue. Step after: ``lag_series`` writes the series.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from services.broker.groups.lag import Lag, Reason
from services.broker.groups.oldest import NOTHING_OUTSTANDING, Oldest, over

STUCK_GAPS: Final = 4
STUCK_MIN_S: Final = 60.0
STUCK_MAX_S: Final = 1800.0
FADE: Final = 0.8
"""Factor by which a longest gap decays at each later move: one outlier is forgotten in ten
moves."""


class Movement(NamedTuple):
    """How the committed offset of a lagging queue moves; times on the monotonic clock [s]."""

    committed: int
    moved_at_s: float
    """When it was last seen to move, or seen for the first time."""
    gap_s: float = 0.0
    """The longest recent time between two moves."""

    def seen(self, committed: int, now_s: float) -> Movement:
        """Return the movement after a later sample of the queue."""
        if committed == self.committed:
            return self
        gap_s = max(now_s - self.moved_at_s, self.gap_s * FADE)
        return Movement(committed, now_s, gap_s)

    def is_stuck(self, now_s: float) -> bool:
        """Return whether the offset has not moved for far longer than usual."""
        limit_s = min(max(STUCK_GAPS * self.gap_s, STUCK_MIN_S), STUCK_MAX_S)
        return now_s - self.moved_at_s >= limit_s


class QueueSample(NamedTuple):
    """One queue of a pair."""

    lag: Lag
    commit_age_s: float = 0.0
    """Seconds since the commit moved, for a queue with lag."""
    is_stuck: bool = False
    oldest: Oldest | None = NOTHING_OUTSTANDING
    """None: the store time of a message could not be read."""


class Pair(NamedTuple):
    """Lag of one group in one topic, over all queues."""

    group: str
    topic: str
    kind: str
    """``main``, or ``retry`` for the group's own retry topic."""
    messages: int | None
    """None: it is unknown for every queue."""
    seconds: float | None
    queue_max: int | None
    """Lag of the queue with the largest one; this and the next four are None as ``messages`` is."""
    in_flight: int | None
    commit_age_s: float | None
    lagging: int | None
    stuck: int | None
    ahead: int
    """Queues whose commit lies beyond all that is stored, not only beyond what is dispatched."""
    unknown: int
    subscribed: bool
    oldest: Oldest | None = None
    """None: unknown."""
    activity: int = 0
    """Changes when the pair is used: the sum of committed and available messages."""


def pair(
    group: str,
    topic: str,
    kind: str,
    queues: Iterable[QueueSample],
    *,
    objective_s: float,
    subscribed: bool,
) -> Pair:
    """Sum up the queues of one pair. objective_s: a queue with an older message counts as
    lagging."""
    each = list(queues)
    known = [sample for sample in each if sample.lag.messages is not None]
    messages = [sample.lag.messages or 0 for sample in known]
    times = [sample.oldest for sample in known if sample.oldest is not None]
    ages = [sample.lag.seconds for sample in known if sample.lag.seconds is not None]
    return Pair(
        group,
        topic,
        kind,
        sum(messages) if known else None,
        max(ages, default=None),
        max(messages, default=None),
        sum(sample.lag.in_flight or 0 for sample in known) if known else None,
        max((sample.commit_age_s for sample in known), default=None),
        sum(age > objective_s for age in ages) if known else None,
        sum(sample.is_stuck for sample in known) if known else None,
        sum(sample.lag.reasons.get("messages") is Reason.AHEAD for sample in each),
        len(each) - len(known),
        subscribed,
        over(times) if known and len(times) == len(known) else None,
    )


def older(found: Pair, ages_s: Sequence[float], commit_age_s: float, objective_s: float) -> Pair:
    """Return a pair in which nothing has moved, some time later.

    ages_s: ages of the oldest unread message of each queue that has one; empty if none is known.
    """
    return found._replace(
        seconds=max(ages_s, default=found.seconds),
        commit_age_s=commit_age_s,
        lagging=sum(age_s > objective_s for age_s in ages_s),
    )
