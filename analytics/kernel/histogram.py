"""Quantiles of histograms (docs/analytics-methods.md, "Rates"). Pure.

Step before: the increase of each bucket's counter in an interval. A histogram has bounds instead of
values, so the result includes the bounds of the bucket.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from analytics.kernel.columns import Floats


class Quantile(NamedTuple):
    """One value per row; NaN if nothing was counted or a bucket is not known."""

    value: Floats
    """Linear interpolation within the bucket."""
    low: Floats
    high: Floats
    """Bounds of the bucket. Above the last one high is infinite, and value is the lower bound."""


def quantile(bounds: Floats, grown: Floats, share: float) -> Quantile:
    """Return the quantile of each row of a cumulative histogram.
    bounds: upper bounds of the buckets, ascending, the last infinite. grown: [row × bucket], the
    increase of each bucket's counter, which includes those of the buckets before it."""
    total = grown[:, -1]
    known = ~np.isnan(grown).any(axis=1) & (total > 0)
    # Buckets are scraped one after the other, so a bucket may be a count ahead of the next.
    counts = np.maximum.accumulate(np.nan_to_num(grown), axis=1)
    wanted = share * counts[:, -1]
    at = np.argmax(counts >= wanted[:, None], axis=1)
    row = np.arange(at.size)
    lower = np.concatenate([[0.0], bounds[:-1]])
    low, high = lower[at], bounds[at]
    before = np.where(at > 0, counts[row, np.maximum(at - 1, 0)], 0.0)
    inside = counts[row, at] - before
    part = np.divide(wanted - before, inside, out=np.ones(at.size), where=inside > 0)
    width = np.where(np.isfinite(high), high - low, 0.0)
    unknown = np.where(known, 0.0, np.nan)
    return Quantile(low + part * width + unknown, low + unknown, high + unknown)
