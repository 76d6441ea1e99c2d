"""When to look for records again: at once while few come, in larger steps while many do. Pure.

A step costs its wake-up, whatever it finds: a switch of processes, a turn of the loop, a ring for
the broker. While some thousand records a second come that is most of what reput costs the core that
it shares with the broker, so steps are kept apart then and each takes what has come meanwhile. A
record that comes alone never waits: the pause counts from the beginning of the step before.

``follower`` is its shell.
"""

from __future__ import annotations

import math
from typing import Final

INTERVAL_S: Final = 0.002
"""Between the beginnings of two steps while many records come: all that consumers wait longer."""
MANY_PER_S: Final = 2000.0
"""From so many records a second on."""
SETTLING_S: Final = 0.05
"""A rate is noticed after about so long."""


class Pace:
    """The rate of records, and what follows from it. Times are those of one monotonic clock."""

    def __init__(self) -> None:
        self._rate = 0.0
        self._last_at = float("-inf")

    def stepped(self, now: float, records: int) -> None:
        """A step that began at ``now`` found so many records."""
        elapsed = now - self._last_at
        self._last_at = now
        if elapsed >= SETTLING_S:
            self._rate = records / elapsed
        elif elapsed > 0:
            self._rate += (records / elapsed - self._rate) * elapsed / SETTLING_S

    def rest_s(self, now: float) -> float:
        """How long not to look, from ``now`` on: whole milliseconds, 0 for not at all."""
        if self._rate < MANY_PER_S:
            return 0.0
        # uvloop's timers know no other times, and less than half a one is none: that would be a
        # loop that turns for nothing.
        return max(0.0, math.ceil((self._last_at + INTERVAL_S - now) * 1000) / 1000)
