"""The offset of a peer's wall clock, measured with STATUS requests. Pure.

STATUS carries its send time by the sender's boot clock, and STATUS_OK the peer's wall clock at some
moment between request and answer. The middle of the two is wrong by at most half of the time
between them. The fastest of the last SAMPLES_MAX exchanges is used, since its error is smallest.
One that contradicts a newer one is dropped, because a clock was set. The reference is this node's
boot clock, so that a step of its wall clock shows at once.

For people and alarms only: no decision of the group uses a wall clock. Step before: ``peers`` gets
STATUS_OK. Step after: ``metrics`` exports it to Prometheus.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

SAMPLES_MAX: Final = 16
ROUNDING_MS: Final = 2.0
"""The clocks are read in whole milliseconds, in three places."""
DRIFT_MS: Final = 10.0
"""Allowed drift between two remembered samples of correct clocks."""


class Skew(NamedTuple):
    """How far a peer's wall clock is ahead."""

    ahead_ms: float
    error_ms: float
    """Largest error, either way."""


class PeerClock:
    """One peer's wall clock, relative to this node's boot clock."""

    def __init__(self) -> None:
        self._samples: deque[Skew] = deque(maxlen=SAMPLES_MAX)

    def answered(self, *, asked_ms: int, answered_ms: int, wall_ms: int) -> None:
        """Note an answered request: sent at asked_ms, answered at answered_ms, both by this node's
        boot clock. wall_ms: the peer's wall clock in between."""
        if not 0 < asked_ms <= answered_ms or wall_ms <= 0:
            return  # it has no time, or one of another start
        newest = Skew(
            wall_ms - (asked_ms + answered_ms) / 2, (answered_ms - asked_ms) / 2 + ROUNDING_MS
        )
        agreeing = [old for old in self._samples if _agree(old, newest)]
        self._samples.clear()
        self._samples.extend((*agreeing, newest))

    def forget(self) -> None:
        """Drop all samples: another process may answer from here on."""
        self._samples.clear()

    def skew(self, own_ahead_ms: int | None) -> Skew | None:
        """Return the peer's wall clock minus this node's; None until both are known.

        own_ahead_ms: this node's wall clock minus its boot clock.
        """
        if own_ahead_ms is None or not self._samples:
            return None
        best = min(reversed(self._samples), key=lambda sample: sample.error_ms)
        return best._replace(ahead_ms=best.ahead_ms - own_ahead_ms)


def _agree(old: Skew, new: Skew) -> bool:
    """Return whether a clock that was not set can have shown both."""
    return abs(old.ahead_ms - new.ahead_ms) <= old.error_ms + new.error_ms + DRIFT_MS
