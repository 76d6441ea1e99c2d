"""Forecast of when the disk will be full: "full in 38 min", or why that is unknown. Pure.

The pace is the median of the slopes between all pairs of samples (Theil and Sen). A deletion, a
burst or a backup that is moved away affects fewer than half of them, and does not change it. Log
files reserve their blocks long before they are written. A sample therefore subtracts the reserved
blocks, which would otherwise make the curve a staircase.

Step before: ``keeper`` takes the samples. Step after: ``GET /v1/retention`` and the metrics.
"""

from __future__ import annotations

from collections import deque
from itertools import combinations
from statistics import median
from typing import Final, NamedTuple

SAMPLES_MAX: Final = 60
"""The number of pairs is quadratic: 1770 of them take about a millisecond."""
SAMPLES_MIN: Final = 6
SAMPLE_EVERY_S: Final = 5.0
FORESEEN_MAX_S: Final = 10 * 365 * 86400.0
"""Bound of a forecast: the present pace is meaningless for later times."""


class Forecast(NamedTuple):
    """The forecast."""

    full_in_s: float | None
    """Seconds until sends are refused; 0: they are refused now."""
    growth_bytes_per_s: float | None
    """Growth of the used bytes, negative if they decrease; None: unknown."""
    reason: str | None
    """Why full_in_s is None."""


class Growth:
    """Samples of the used bytes in the last minutes; bounded."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=SAMPLES_MAX)

    def sample(self, at_s: float, used_bytes: int) -> None:
        """Add a sample, by a monotonic clock; samples that come too early are ignored."""
        if not self._samples or at_s - self._samples[-1][0] >= SAMPLE_EVERY_S:
            self._samples.append((at_s, used_bytes))

    @property
    def bytes_per_s(self) -> float | None:
        """Return the pace; None before there are enough samples."""
        if len(self._samples) < SAMPLES_MIN:
            return None
        return median(
            (later[1] - earlier[1]) / (later[0] - earlier[0])
            for earlier, later in combinations(self._samples, 2)
        )

    def forecast(self, room_bytes: int | None) -> Forecast:
        """Forecast when room_bytes will be used up; None: the disk could not be measured."""
        pace = self.bytes_per_s
        if room_bytes is None:
            return Forecast(None, pace, "disk_not_measured")
        if room_bytes <= 0:
            return Forecast(0.0, pace, None)
        if pace is None:
            return Forecast(None, None, "too_few_samples")
        if pace <= 0:
            return Forecast(None, pace, "not_growing")
        full_in_s = room_bytes / pace
        if full_in_s > FORESEEN_MAX_S:
            return Forecast(None, pace, "too_far_ahead")
        return Forecast(full_in_s, pace, None)
