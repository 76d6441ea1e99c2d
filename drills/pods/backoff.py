"""Restart backoff of containers, with the kubelet's rules and times. Pure.

The first restart is immediate, the next after 10 s, and the delay doubles each time up to five
minutes. After a run of ten minutes the delay is reset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FIRST_S: Final = 10.0
LONGEST_S: Final = 300.0
FORGOTTEN_S: Final = 600.0


@dataclass(slots=True)
class Backoff:
    """Backoff of one container of one pod; times are seconds of one monotonic clock."""

    _wait_s: float = 0.0
    _ended_at: float = 0.0

    def ended(self, *, started_at: float, now: float) -> float:
        """Record the end of a run; return when the next one may start."""
        if now - started_at > FORGOTTEN_S:
            self._wait_s = 0.0
        at = now + self._wait_s
        self._wait_s = min(max(FIRST_S, self._wait_s * 2), LONGEST_S)
        self._ended_at = now
        return at

    @property
    def wait_s(self) -> float:
        """Delay of the restart after the next end."""
        return self._wait_s
