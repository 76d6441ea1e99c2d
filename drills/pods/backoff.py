"""When a container that has ended is started again. Pure; the kubelet's rule and its times.

The first restart is made at once, the next after 10 s, then after twice as long each time up to
five minutes; a container that ran for ten minutes begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FIRST_S: Final = 10.0
LONGEST_S: Final = 300.0
FORGOTTEN_S: Final = 600.0


@dataclass(slots=True)
class Backoff:
    """Of one container of one pod; times are seconds of one monotonic clock."""

    _wait_s: float = 0.0
    _ended_at: float = 0.0

    def ended(self, *, started_at: float, now: float) -> float:
        """A run is over: when the next one may begin."""
        if now - started_at > FORGOTTEN_S:
            self._wait_s = 0.0
        at = now + self._wait_s
        self._wait_s = min(max(FIRST_S, self._wait_s * 2), LONGEST_S)
        self._ended_at = now
        return at

    @property
    def wait_s(self) -> float:
        """How long the next restart will be put off."""
        return self._wait_s
