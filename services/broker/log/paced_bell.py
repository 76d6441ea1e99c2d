"""Rings a service's doorbell, but not more often than it pays.

Every ring wakes the other process: a switch to it, a step of its loop, and back. Once per flush
that is more than the flush costs. So a ring that follows another too closely waits for its moment,
and all that come meanwhile are one. None is lost: the last is always rung behind what it tells of.
"""

from __future__ import annotations

import asyncio
from typing import Final

from shared.runtime.doorbell import Doorbell
from tidemark.clock import Clock

INTERVAL_S: Final = 0.001
"""As often as consumers notice; a hundred times a ring's own cost. The loop's timers go by whole
milliseconds: less than half of one left is none."""


class PacedBell:
    """The bell of one service. Belongs to one loop."""

    def __init__(self, doorbell: Doorbell, service: str, clock: Clock) -> None:
        self._doorbell = doorbell
        self._service = service
        self._clock = clock
        self._next_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def ring(self) -> None:
        """Ring now, or as soon as it is time again."""
        if self._timer is not None:
            return
        left_s = self._next_at - self._clock.monotonic()
        if left_s <= 0:
            self._ring()
        else:
            self._timer = asyncio.get_running_loop().call_later(left_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._next_at = self._clock.monotonic() + INTERVAL_S
        self._doorbell.ring(self._service)
