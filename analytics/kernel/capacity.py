"""Largest consume rate of a group (docs/analytics-methods.md, "Capacity"). Pure.

Only minutes in which unread messages were always ready show the capacity: a group that has read
everything consumes only what is produced.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from analytics.kernel import robust
from analytics.kernel.columns import Floats

MINUTES_MIN: Final = 30
HIGH: Final = 0.95
LOW_Z: Final = 1.2815515594600038  # c_max exceeds c_max_low in nine cases of ten


class Capacity(NamedTuple):
    """Messages per second by row; NaN with fewer than MINUTES_MIN minutes of constant work."""

    c_max: Floats
    c_max_low: Floats
    utilisation: Floats  # 95th percentile of the produce rate over c_max
    members: Floats  # members in the minutes at or above c_max
    minutes: Floats


def capacity(consumed: Floats, produced: Floats, ready: Floats, members: Floats) -> Capacity:
    """Capacity of each row's pair, from one-minute means of the last seven days.

    All arrays are [pair × minute]; NaN is unknown. consumed, produced: messages per second; ready:
    smallest lag [messages] at any tick of the minute.
    """
    busy = np.where(ready > 0, consumed, np.nan)
    minutes = np.count_nonzero(~np.isnan(busy), axis=-1)
    enough = minutes >= MINUTES_MIN
    # The rank of the quantile among n values has a standard deviation of sqrt(n p (1 − p)).
    n = np.maximum(minutes, 1)
    place = np.maximum(HIGH - LOW_Z * np.sqrt(HIGH * (1 - HIGH) / n), 0.0)
    c_max = np.where(enough, robust.quantile(busy, HIGH), np.nan)
    low = np.array([float(robust.quantile(row, at)) for row, at in zip(busy, place, strict=True)])
    c_low = np.where(enough, low, np.nan)
    at_max = np.where(busy >= c_max[:, None], members, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        used = robust.quantile(produced, HIGH) / c_max
    utilisation = np.where(c_max > 0, used, np.nan)
    return Capacity(
        c_max, c_low, utilisation, np.rint(robust.median(at_max)), minutes.astype(np.float64)
    )


def limited_by(members: float, queues: float) -> str | None:
    """Return what limits a group's rate: `queues` if each has its own member, else `members`; None
    if either is not known."""
    if np.isnan(members) or np.isnan(queues):
        return None
    return "queues" if members >= queues else "members"
