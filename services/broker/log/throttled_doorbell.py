"""Rings a service's doorbell at a limited rate.

Every ring wakes the other process, which costs two context switches and an iteration of its event
loop. Once per flush that would cost more than the flush. A ring that follows another too closely is
delayed, and all rings during the delay are merged into one. None is lost: the delayed ring always
comes after the event that it announces.
"""

from __future__ import annotations

import asyncio
from typing import Final

from shared.runtime.doorbell import Doorbell
from tidemark.clock import Clock

INTERVAL_S: Final = 0.001
"""Shortest time between two rings: about a hundred times the cost of a ring, and short enough for
consumers. The loop's timers have a resolution of one millisecond; less than half rounds to 0."""


class ThrottledDoorbell:
    """Rate-limited doorbell of one service. Belongs to one loop."""

    def __init__(self, doorbell: Doorbell, service: str, clock: Clock) -> None:
        self._doorbell = doorbell
        self._service = service
        self._clock = clock
        self._next_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def ring(self) -> None:
        """Ring now, or as soon as the interval has passed."""
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
