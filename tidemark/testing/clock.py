"""A clock that a test can move: the machine's clocks plus what the test has added.

It keeps running. Flushes, polls and rates wait on real time in any case, and a wall clock behind
the test's own ``time.time()`` would make messages appear older than the request for them. The time
that a test adds is exact, and the store uses it when it next reads the clock.
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
        """Advance all clocks at once: delays become due, sessions expire.

        A running member of a group with a shorter session expires, too, as after a suspend of the
        machine: it joins again, and uncommitted messages are delivered again. Raises ValueError for
        a negative value; only the wall clock can go back, with ``step``.
        """
        if seconds < 0:
            raise ValueError(f"time cannot go back ({seconds} s); use step() for the wall clock")
        self._passed_ms += round(seconds * _MS)

    def step(self, seconds: float) -> None:
        """Move only the wall clock, forward or back, like an operator or NTP."""
        self._stepped_ms += round(seconds * _MS)

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC, including all moves."""
        return time.time_ns() // 1_000_000 + self._passed_ms + self._stepped_ms

    def monotonic(self) -> float:
        """Seconds of a monotonic clock, including ``advance``."""
        return time.monotonic() + self._passed_ms / _MS

    def boot_ms(self) -> int:
        """Milliseconds since boot, including ``advance``."""
        return super().boot_ms() + self._passed_ms
