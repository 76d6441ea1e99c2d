"""How far a peer's wall clock is ahead of the own one, from questions that are asked anyway. Pure.

STATUS says when it left, by the asker's boot clock, and STATUS_OK says what the peer's wall clock
showed in between: somewhere between the question and the answer, so the middle of the two is wrong
by half of the time between them at most. The quickest of the last SAMPLES_MAX exchanges counts,
since it errs least; one that cannot be true together with a newer one is forgotten: a clock was
set. Measured against the own boot clock, so that a step of the own wall clock shows at once.

For people and alarms only: no decision of the group asks a wall clock. Step before: ``peers`` gets
STATUS_OK. Step after: ``metrics`` shows it to Prometheus.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

SAMPLES_MAX: Final = 16
ROUNDING_MS: Final = 2.0
"""The clocks are read in whole milliseconds, at three places."""
DRIFT_MS: Final = 10.0
"""Two honest clocks may drift so far apart between two samples that are remembered."""


class Skew(NamedTuple):
    """How far a peer's wall clock is ahead."""

    ahead_ms: float
    error_ms: float
    """At most so wrong, either way."""


class PeerClock:
    """One peer's wall clock, against the own boot clock."""

    def __init__(self) -> None:
        self._samples: deque[Skew] = deque(maxlen=SAMPLES_MAX)

    def answered(self, *, asked_ms: int, answered_ms: int, wall_ms: int) -> None:
        """A question that left at asked_ms was answered, as heard at answered_ms, both by the own
        boot clock; wall_ms: what the peer's wall clock showed in between."""
        if not 0 < asked_ms <= answered_ms or wall_ms <= 0:
            return  # it says no time, or one of another start
        newest = Skew(
            wall_ms - (asked_ms + answered_ms) / 2, (answered_ms - asked_ms) / 2 + ROUNDING_MS
        )
        agreeing = [old for old in self._samples if _agree(old, newest)]
        self._samples.clear()
        self._samples.extend((*agreeing, newest))

    def forget(self) -> None:
        """Another process may answer from here on."""
        self._samples.clear()

    def skew(self, own_ahead_ms: int | None) -> Skew | None:
        """Peer's wall clock minus the own one; None until both are known.

        own_ahead_ms: own wall clock minus own boot clock.
        """
        if own_ahead_ms is None or not self._samples:
            return None
        best = min(reversed(self._samples), key=lambda sample: sample.error_ms)
        return best._replace(ahead_ms=best.ahead_ms - own_ahead_ms)


def _agree(old: Skew, new: Skew) -> bool:
    """Whether a clock that nobody set can have shown both."""
    return abs(old.ahead_ms - new.ahead_ms) <= old.error_ms + new.error_ms + DRIFT_MS
