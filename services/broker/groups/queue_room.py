"""Which queues get series of their own where there is room for some only. Pure.

Series by queue are bounded (``queue_series_max``): each queue that is shown takes two for its
offsets, and three more for each group that is shown on it, two of them kept free for the oldest
unread message and for the member that holds the queue. Pairs of a group and a topic come in this
order: those that a member subscribes to and that had lag of late, those that a member subscribes
to, those that had lag of late, others; then topics that no group reads. *Of late* is ten minutes,
and among equals who was shown stays: so series do not come and go with every lag that comes and
goes.
Before: ``look`` offers every pair and every topic. After: it writes the rows of those that are in.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator
from typing import Final

Name = tuple[str, str]
"""Of a pair: (group, topic)."""

LATE_S: Final = 600.0
"""A pair counts as lagging for so long after its lag has gone."""
PER_QUEUE: Final = 2
"""Series of a queue itself."""
PER_GROUP: Final = 3
"""Of a group on it."""


class Rank(enum.IntEnum):
    """Who comes first."""

    READ_AND_LAGGING = 0
    READ = 1
    LAGGING = 2
    IDLE = 3
    NO_GROUP = 4


class Lagging:
    """Which pairs had lag of late."""

    def __init__(self) -> None:
        self._until: dict[Name, float] = {}
        self._forget_at_s = float("-inf")

    def rank(self, pair: Name, *, has_lag: bool, subscribed: bool, now_s: float) -> Rank:
        """A pair's rank at a look. now_s: monotonic."""
        if has_lag:
            self._until[pair] = now_s + LATE_S
            lately = True
        else:
            until = self._until.get(pair)
            lately = until is not None and now_s < until
            if until is not None and not lately:
                del self._until[pair]
        if subscribed:
            return Rank.READ_AND_LAGGING if lately else Rank.READ
        return Rank.LAGGING if lately else Rank.IDLE

    def forget_gone(self, now_s: float) -> Iterator[None]:
        """Drop pairs that nobody asked for again: their group is gone. Now and then: it goes
        through all that lag; yields after each one, for others to have their turn."""
        if now_s < self._forget_at_s:
            return
        self._forget_at_s = now_s + LATE_S
        for pair, until in list(self._until.items()):
            if until <= now_s:
                self._until.pop(pair, None)
            yield


class Room:
    """The room for series by queue of one look."""

    def __init__(self, series_max: int, before: Room | None = None) -> None:
        """before: of the look before; who is in it stays before its equals."""
        self._left = series_max
        self._was_in: Collection[Name] = () if before is None else before.pairs
        self._offered: dict[tuple[Rank, bool], dict[Name, int]] = {}
        self.pairs: dict[Name, int] = {}
        """Pair that is in → how many of its queues are, from the first on. The group of a topic
        that no group reads is empty."""
        self.topics: dict[str, int] = {}
        """Topic → how many of its queues are in, from the first on."""

    def offer(self, pair: Name, queues: int, rank: Rank) -> None:
        """A pair with so many queues would be shown."""
        if queues:
            self._offered.setdefault((rank, pair not in self._was_in), {})[pair] = queues

    def fill(self) -> Iterator[None]:
        """Let in who has room; yields after each one, for others to have their turn."""
        for key in sorted(self._offered):
            pairs = self._offered[key]
            for pair, queues in pairs.items():
                if self._left < PER_QUEUE:
                    self._offered.clear()
                    return
                self._take(pair, queues)
                yield
        self._offered.clear()

    def _take(self, pair: Name, queues: int) -> None:
        group, topic = pair
        shown = self.topics.get(topic, 0)
        own = PER_GROUP if group else 0
        # n queues take own * n, and PER_QUEUE for each that is not shown yet.
        count = min(queues, shown, self._left // own) if own else min(queues, shown)
        self._left -= own * count
        if count == min(queues, shown) and queues > shown:
            more = min(queues - shown, self._left // (own + PER_QUEUE))
            self._left -= (own + PER_QUEUE) * more
            count += more
        if count:
            self.pairs[pair] = count
            self.topics[topic] = max(shown, count)
