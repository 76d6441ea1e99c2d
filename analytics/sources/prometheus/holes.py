"""Times at which a Prometheus server scraped nothing, found in its metric `up`. Pure.

The server writes `up` of a target at each scrape, whether or not the target answers. If `up` of all
targets is missing for several intervals, the server was down, or stored nothing. A query of such a
time gives no error and no samples, as if the brokers were silent.

Each part of the work is judged from the samples of its own time and some time before it. Parts can
therefore be read in any order and repeatedly; together they report every hole once. Step before:
``reader`` asked for `up`. Step after: rows of gaps.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from analytics.sources.labelled import Ints

INTERVALS: Final = 3
"""Intervals without a sample that make a hole; with fewer, a scrape may be late or have failed."""


class Hole(NamedTuple):
    """A time without scrapes [microseconds since 1970]."""

    from_us: int
    to_us: int


def range_before_us(interval_us: int) -> int:
    """Return how long before a part samples are read, because a hole may begin before the part."""
    return (INTERVALS + 1) * interval_us


def holes(seen_us: Ints, start_us: int, end_us: int, interval_us: int) -> list[Hole]:
    """Return the holes that a part reports, in order: those of at least INTERVALS intervals.

    seen_us: times of all samples of `up`, from `range_before_us` before start_us to end_us.
    start_us, end_us: bounds of the part; the first is exclusive, the second inclusive. The previous
    part has reported a hole up to start_us if it was long enough by then.
    """
    bound_us = INTERVALS * interval_us
    times = np.unique(seen_us)
    before, inside = times[times <= start_us], times[(times > start_us) & (times <= end_us)]
    last_us = int(before[-1]) if before.size else start_us - bound_us - 1
    found = []
    for at_us in [*inside.tolist(), end_us]:
        if at_us - last_us > bound_us:
            is_reported = last_us < start_us - bound_us  # by the previous part
            found.append(Hole(start_us if is_reported else last_us, at_us))
        last_us = at_us
    return [hole for hole in found if hole.to_us > hole.from_us]
