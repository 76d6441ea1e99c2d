"""Message lag: number of unread messages, from the offsets of one sample. Pure.

It is never negative, because the offsets are from the same instant. A commit below the min offset
is LOST, one above the max offset AHEAD. Both are counted separately; the lag has only messages that
can still be read.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from analytics.kernel.columns import Floats
from analytics.kernel.grid import Positions


class Lag(NamedTuple):
    """Matrices [tick, series], of all ticks; messages, NaN where not known."""

    head: Floats
    """Offset of the next message that the group reads."""
    lag: Floats
    lost: Floats
    ahead: Floats


def effective(low: Floats, high: Floats, commit: Floats) -> Floats:
    """Offset of the next message to read: the commit, limited to stored messages; NaN: not
    known."""
    within: Floats = np.minimum(np.fmax(commit, low), high)
    within[np.isnan(commit)] = np.nan
    return within


def lag_of(grid: Positions) -> Lag:
    """Compute the lag of each sample."""
    head = effective(grid.low, grid.high, grid.commit)
    return Lag(
        head,
        grid.high - head,
        np.maximum(grid.low - grid.commit, 0),
        np.maximum(grid.commit - grid.high, 0),
    )


def delivered(head: Floats, pull: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Messages in flight and messages ready for delivery; NaN where deliveries are not tracked."""
    within = np.minimum(np.maximum(pull, head), high)
    return within - head, high - within
