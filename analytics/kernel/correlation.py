"""Whether two series moved together, and which moved first: rank correlation of first differences,
by lag (docs/analytics-methods.md, "What moved with it"). Pure.

The result supplements the blamed stage and never changes it: correlation is not causation.
Spearman's correlation of differences ignores a common trend and a single outlier. Step before: two
series with equal time steps.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from analytics.kernel.columns import Bools, Floats, Ints

REACH_S: Final = 300.0
"""Largest shift between the two series."""
STEP_LEAST_S: Final = 15.0
"""Shortest step [s]. Ticks that are closer are combined, so there are at most 41 lags."""
POINTS_MAX: Final = 480
"""Number of the newest differences that are used: two hours at 15 s. It bounds the cost of a
call."""
POINTS_LEAST: Final = 20
GRAIN: Final = 1e-6
"""Differences closer than this are equal. Otherwise rounding would rank the differences of a
straight line."""

RHO_LEAST: Final = 0.6
MOVES_LEAST: Final = 10
"""Fewer moves prove nothing: two single jumps match at some lag by chance."""
SURE: Final = 5.0
"""Required standard errors from 0, by Fisher's z (Fieller's factor 1.06 for ranks). The best of 41
lags is taken, and differences of noise depend on their neighbours. With 3, every tenth pair of
unrelated series would be reported; with 5, about one in a hundred."""
_RANK_VARIANCE: Final = 1.06


class Moved(NamedTuple):
    """Correlation of one series with another at the lag where it is strongest."""

    steps: int
    """Number of steps by which the other was earlier; below 0: later."""
    rho: float
    points: int
    """Number of steps at which both differences are known."""
    moves: int
    """Number of these steps at which the less active series moved."""

    @property
    def is_significant(self) -> bool:
        """Whether the correlation is strong, long and active enough to be reported."""
        if self.points < POINTS_LEAST or self.moves < MOVES_LEAST or abs(self.rho) < RHO_LEAST:
            return False
        within = min(abs(self.rho), 1.0 - 1e-12)  # z is infinite at 1
        return math.atanh(within) * math.sqrt((self.points - 3) / _RANK_VARIANCE) >= SURE


class ByLag(NamedTuple):
    """Correlations with another series, one entry per lag, the largest lead of the other first."""

    steps: Ints
    """Number of steps by which the other is earlier."""
    rho: Floats
    """NaN: too few points, or one of the two did not vary at them."""
    points: Ints
    moves: Ints


def step_of(period_s: float) -> float:
    """Smallest multiple of the period that is at least STEP_LEAST_S [s]."""
    return period_s * max(1, math.ceil(STEP_LEAST_S / period_s - 1e-9))


def reach_of(step_s: float) -> int:
    """Largest lag, in steps, in both directions."""
    return int(REACH_S / step_s + 1e-9)


def moved(series: Floats, other: Floats, *, reach: int) -> Moved | None:
    """Return the lag from −reach to reach steps with the strongest correlation; see `by_lag`. If
    several are equal, the shortest lag wins, then the one where the other series is earlier. None
    if no lag has a result."""
    found = by_lag(series, other, reach=reach)
    known = np.flatnonzero(~np.isnan(found.rho))
    if not known.size:
        return None
    steps, size = found.steps[known], np.round(np.abs(found.rho[known]), 12)
    best = known[np.lexsort((steps, -np.abs(steps), size))[-1]]
    return Moved(
        int(found.steps[best]),
        float(found.rho[best]),
        int(found.points[best]),
        int(found.moves[best]),
    )


def by_lag(series: Floats, other: Floats, *, reach: int, least: int = POINTS_LEAST) -> ByLag:
    """Rank correlation of the first differences at every lag.

    series, other: values at the same steps, oldest first. An unknown value (NaN) makes the two
    differences beside it unknown. The newest POINTS_MAX differences are used. least: minimum number
    of points per lag. Raises ValueError if the two differ in length.
    """
    if series.size != other.size:
        raise ValueError(f"{series.size} values, but the other series has {other.size}")
    steps = np.arange(reach, -reach - 1, -1, dtype=np.int64)
    step = _differences(series)
    if not step.size:
        none = np.zeros(steps.size, dtype=np.int64)
        return ByLag(steps, np.full(steps.size, np.nan), none, none)
    beyond = np.full(reach, np.nan)
    padded = np.concatenate([beyond, _differences(other), beyond])
    shifted = sliding_window_view(padded, step.size)
    known: Bools = ~np.isnan(step) & ~np.isnan(shifted)
    first = np.where(known, step, np.nan)
    second = np.where(known, shifted, np.nan)
    points = known.sum(axis=1)
    middle = (points[:, None] + 1) / 2  # mean of all ranks, even with ties
    left, right = (np.where(known, ranks(each) - middle, 0.0) for each in (first, second))
    together = (left * right).sum(axis=1)
    vary = (left * left).sum(axis=1) * (right * right).sum(axis=1)
    rho = np.full(steps.size, np.nan)
    np.divide(together, np.sqrt(vary), out=rho, where=(vary > 0) & (points >= least))
    counts = [np.count_nonzero(known & (each != 0), axis=1) for each in (first, second)]
    return ByLag(steps, np.clip(rho, -1.0, 1.0), points, np.minimum(*counts))


def ranks(values: Floats) -> Floats:
    """Ranks from 1 within each row of [row, column]; equal values share their mean. NaN stays
    NaN."""
    order = np.argsort(values, axis=1, kind="stable")  # NaN is last
    ordered = np.take_along_axis(values, order, 1)
    begins = np.ones(values.shape, dtype=np.bool_)
    begins[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    tie = np.cumsum(begins.reshape(-1)) - 1
    place = np.broadcast_to(np.arange(1.0, values.shape[1] + 1), values.shape).reshape(-1)
    mean = np.bincount(tie, place) / np.bincount(tie)
    found = np.empty(values.shape)
    np.put_along_axis(found, order, mean[tie].reshape(values.shape), 1)
    found[np.isnan(values)] = np.nan
    return found


def _differences(values: Floats) -> Floats:
    found: Floats = np.rint(np.diff(values[-(POINTS_MAX + 1) :]) / GRAIN)
    return found
