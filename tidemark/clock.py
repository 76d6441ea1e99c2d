"""The interface of clocks: decisions take times as arguments, shells take a ``Clock``.

The system clock is ``shared.runtime.clock.SystemClock``; tests and simulations use their own.
"""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Three clocks, each for its own purpose."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC; may step. For store times and display."""

    def monotonic(self) -> float:
        """Seconds that never step back within this process. For waits and rates."""

    def boot_ms(self) -> int:
        """Milliseconds since boot, suspend included, equal in all processes. For leases."""
