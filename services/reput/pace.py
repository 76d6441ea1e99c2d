"""Step timing: dispatch at once at low rates, in larger and fewer steps at high rates. Pure.

Each step has a fixed cost: a context switch, a loop iteration and a doorbell for the broker. At a
few thousand records per second this is most of the cost of reput, which shares a core with the
broker. So steps are spaced out then, and each takes the records that arrived meanwhile. A single
record never waits, because the pause counts from the beginning of the previous step.

``dispatch_loop`` is the shell.
"""

from __future__ import annotations

import math
from typing import Final

INTERVAL_S: Final = 0.002
"""Minimum time between the starts of two steps at high rates, which is the added latency."""
MANY_PER_S: Final = 2000.0
"""Rate of records from which steps are spaced out."""
SETTLING_S: Final = 0.05
"""Time constant of the rate estimate."""


class Pace:
    """Estimates the rate of records and the resulting pause. Times are of one monotonic clock."""

    def __init__(self) -> None:
        self._rate = 0.0
        self._last_at = float("-inf")

    def stepped(self, now: float, records: int) -> None:
        """Record a step that began at ``now`` and found that many records."""
        elapsed = now - self._last_at
        self._last_at = now
        if elapsed >= SETTLING_S:
            self._rate = records / elapsed
        elif elapsed > 0:
            self._rate += (records / elapsed - self._rate) * elapsed / SETTLING_S

    def rest_s(self, now: float) -> float:
        """Return how long to pause from ``now`` on: whole milliseconds, 0 for no pause."""
        if self._rate < MANY_PER_S:
            return 0.0
        # The timers of uvloop have millisecond resolution; less than half a millisecond would be
        # rounded to zero and make the loop spin.
        return max(0.0, math.ceil((self._last_at + INTERVAL_S - now) * 1000) / 1000)
