"""Times at which a Prometheus server scraped nothing, found from its own metric `up`. Pure.

The server writes `up` of a target at each scrape, whether or not the target answers. Where `up` of
no target has a sample for several intervals, the server itself was down, or kept nothing: a query
of such a time has no error and no samples, and would pass for silent brokers.

Each part of the work is judged by itself, from the samples of its own time and a stretch before it,
so parts may be read in any order and read again. Together their gaps cover every hole once.
Step before: ``reader`` asked for `up`. Step after: rows of gaps.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from analytics.sources.labelled import Ints

INTERVALS: Final = 3
"""Intervals without a sample that make a hole; fewer may be a scrape that was late or failed."""


class Hole(NamedTuple):
    """Nothing was scraped between these times [microseconds since 1970]."""

    from_us: int
    to_us: int


def range_before_us(interval_us: int) -> int:
    """Return how long before a part samples are read: a hole may begin before the part."""
    return (INTERVALS + 1) * interval_us


def holes(seen_us: Ints, start_us: int, end_us: int, interval_us: int) -> list[Hole]:
    """The holes that a part reports, in order: those that are seen to last INTERVALS or more.

    seen_us: times of all samples of `up`, of any target, from `range_before_us` before start_us to
    end_us. start_us, end_us: of the part, open and closed. The part before has reported a hole up
    to start_us if that was one by then.
    """
    bound_us = INTERVALS * interval_us
    times = np.unique(seen_us)
    before, inside = times[times <= start_us], times[(times > start_us) & (times <= end_us)]
    last_us = int(before[-1]) if before.size else start_us - bound_us - 1
    found = []
    for at_us in [*inside.tolist(), end_us]:
        if at_us - last_us > bound_us:
            is_reported = last_us < start_us - bound_us  # up to start_us, by the part before
            found.append(Hole(start_us if is_reported else last_us, at_us))
        last_us = at_us
    return [hole for hole in found if hole.to_us > hole.from_us]
