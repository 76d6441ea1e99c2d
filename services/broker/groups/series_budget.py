"""Budget of the series per queue: which queues get them if not all can. Pure.

Series per queue are bounded (``queue_series_max``). Each queue that is shown takes two for its
offsets, and three more for each group shown on it; two of these are reserved for the oldest unread
message and for the member that holds the queue. Pairs of a group and a topic have this order:
subscribed with recent lag, subscribed, recent lag, others; then come topics that no group reads.
Recent means ten minutes, and among equals a pair that was shown stays: so series do not come and go
with every short lag. Step before: ``lag_sampler`` offers every pair and every topic. Step after: it
writes the rows of the admitted ones.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator
from typing import Final

Name = tuple[str, str]
"""A pair: (group, topic)."""

LATE_S: Final = 600.0
"""A pair counts as lagging for this long after its lag has gone."""
PER_QUEUE: Final = 2
"""Series of a queue itself."""
PER_GROUP: Final = 3
"""Series of one group on a queue."""


class Rank(enum.IntEnum):
    """Order in which pairs are admitted."""

    READ_AND_LAGGING = 0
    READ = 1
    LAGGING = 2
    IDLE = 3
    NO_GROUP = 4


class Lagging:
    """The pairs with recent lag."""

    def __init__(self) -> None:
        self._until: dict[Name, float] = {}
        self._forget_at_s = float("-inf")

    def rank(self, pair: Name, *, has_lag: bool, subscribed: bool, now_s: float) -> Rank:
        """Return a pair's rank in this sample. now_s: monotonic."""
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
        """Drop pairs that were not ranked for long: their group is gone. Call it seldom, because it
        goes through all pairs; it yields after each one so that other tasks can run."""
        if now_s < self._forget_at_s:
            return
        self._forget_at_s = now_s + LATE_S
        for pair, until in list(self._until.items()):
            if until <= now_s:
                self._until.pop(pair, None)
            yield


class SeriesBudget:
    """The budget of series per queue in one sample."""

    def __init__(self, series_max: int, before: SeriesBudget | None = None) -> None:
        """before: budget of the last sample; of two pairs with the same rank, one that it admitted
        comes first."""
        self._left = series_max
        self._was_in: Collection[Name] = () if before is None else before.pairs
        self._offered: dict[tuple[Rank, bool], dict[Name, int]] = {}
        self.pairs: dict[Name, int] = {}
        """Admitted pair → number of its admitted queues, from the first on. The group is empty for
        a topic that no group reads."""
        self.topics: dict[str, int] = {}
        """Topic → number of its admitted queues, from the first on."""

    def offer(self, pair: Name, queues: int, rank: Rank) -> None:
        """Ask for series of a pair with this number of queues."""
        if queues:
            self._offered.setdefault((rank, pair not in self._was_in), {})[pair] = queues

    def fill(self) -> Iterator[None]:
        """Admit the offered pairs in the order of their ranks; yields after each one so that other
        tasks can run."""
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
