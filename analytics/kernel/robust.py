"""Robust medians, quantiles and slopes. Pure; NaN is unknown.

All functions work along the last axis of an array, for all rows at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from analytics.kernel.columns import Bools, Floats

SIGMA_PER_MAD: Final = 1.4826  # of a normal distribution


def quantile(values: Floats, share: float) -> Floats:
    """Return the quantile of the known values, with linear interpolation; NaN without any."""
    return quantiles(values, (share,))[0]


def quantiles(values: Floats, shares: Sequence[float]) -> list[Floats]:
    """Return several quantiles like `quantile`; the values are sorted once."""
    ordered = np.sort(values, axis=-1)  # NaN is last
    known = np.count_nonzero(~np.isnan(values), axis=-1)
    last = np.maximum(known - 1, 0)
    results: list[Floats] = []
    for share in shares:
        place = last * share
        below = np.floor(place).astype(np.int64)
        above = np.minimum(below + 1, last)
        low = np.take_along_axis(ordered, below[..., None], -1)[..., 0]
        high = np.take_along_axis(ordered, above[..., None], -1)[..., 0]
        results.append(low + (high - low) * (place - below))
    return results


def median(values: Floats) -> Floats:
    """Return the median of the known values; NaN where none is known."""
    return quantile(values, 0.5)


def spread(values: Floats, centre: Floats) -> Floats:
    """Return the median absolute deviation, scaled to the sigma of a normal distribution."""
    return SIGMA_PER_MAD * median(np.abs(values - centre[..., None]))


def slope(at: Floats, values: Floats) -> Floats:
    """Theil–Sen slope: the median of the slopes between any two points, per unit of `at`.
    at: the position of each column. NaN for a row with fewer than two known points."""
    left, right = np.triu_indices(at.size, 1)
    apart = at[right] - at[left]
    left, right, apart = left[apart != 0], right[apart != 0], apart[apart != 0]
    if apart.size == 0:
        return np.full(values.shape[:-1], np.nan)
    return median((values[..., right] - values[..., left]) / apart)


def autocorrelation(values: Floats) -> float:
    """Autocorrelation of neighbours in one row without NaN, −1 … 1; 0 for fewer than 3 values."""
    if values.size < 3:
        return 0.0
    centred = values - values.mean()
    power = float(np.dot(centred, centred))
    return float(np.dot(centred[1:], centred[:-1])) / power if power > 0 else 0.0


def pinball(actual: Floats, forecast: Floats, share: float) -> Floats:
    """Return the pinball loss: share × shortfall, or (1 − share) × excess of the forecast."""
    short = actual - forecast
    return np.maximum(share * short, (share - 1) * short)


def mean_of_known(values: Floats) -> Floats:
    """Mean of the known values along the last axis; NaN where nothing is known."""
    known: Bools = ~np.isnan(values)
    count = known.sum(axis=-1)
    total = np.where(known, values, 0.0).sum(axis=-1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
