"""True time and the order of all actions: one heap, with the same order for the same seed.

No simulated node knows the true time; nodes have clocks (``clock``).
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random

from greenlet import getcurrent

Action = Callable[[], None]


class Timeline:
    """Runs actions in the order of their times, and at equal times in the order of their
    requests."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.hub = getcurrent()
        """Runs the actions; every simulated thread switches back to it."""
        self.now_us = 0
        self.actions_count = 0
        self._heap: list[tuple[int, int, Action]] = []
        self._asked = 0

    def after(self, delay_us: int, action: Action) -> None:
        """Run action after the delay."""
        self._asked += 1
        heappush(self._heap, (self.now_us + delay_us, self._asked, action))

    def run_until(self, at_us: int, *, done: Callable[[], bool] | None = None) -> bool:
        """Run what is due up to at_us; True as soon as done returns True."""
        heap = self._heap
        while heap and heap[0][0] <= at_us:
            self.now_us, _, action = heappop(heap)
            self.actions_count += 1
            action()
            if done is not None and done():
                return True
        self.now_us = max(self.now_us, at_us)
        return False
