"""A clock that a test moves: it goes with the machine's, plus what the test has added.

It does not stand still. Flushes, polls and rates wait on real time whatever a test says, and a wall
clock that lags behind the test's own ``time.time()`` would make messages older than the moment that
asked for them. What a test adds is exact, and everything in the store sees it at its next look.
"""

from __future__ import annotations

import time
from typing import Final

from shared.runtime.clock import SystemClock

_MS: Final = 1000


class FakeClock(SystemClock):
    """The clocks of a store under test. May be moved from any thread."""

    def __init__(self) -> None:
        self._passed_ms = 0
        self._stepped_ms = 0

    def advance(self, seconds: float) -> None:
        """Let so much time pass at once, on all clocks: delays fall due, sessions run out.

        A living member of a group whose session is shorter than that has expired, too, as after a
        machine that was suspended: it joins again, and what it had not committed is delivered
        again. Raises ValueError for less than 0: only a wall clock goes back, by ``step``.
        """
        if seconds < 0:
            raise ValueError(f"time does not pass backwards ({seconds} s); use step()")
        self._passed_ms += round(seconds * _MS)

    def step(self, seconds: float) -> None:
        """Set the wall clock alone, forward or back, as an operator or NTP would."""
        self._stepped_ms += round(seconds * _MS)

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC, as moved."""
        return time.time_ns() // 1_000_000 + self._passed_ms + self._stepped_ms

    def monotonic(self) -> float:
        """Seconds that never step back, as advanced."""
        return time.monotonic() + self._passed_ms / _MS

    def boot_ms(self) -> int:
        """Milliseconds since boot, as advanced."""
        return super().boot_ms() + self._passed_ms
