"""Progress: seconds of stored time that a group consumes per second. Pure.

1 keeps pace, 0 is stuck, 3 catches up at triple speed; needs no unit and no threshold per topic.
It is 1 minus the slope of the age over a window of time. With eight looks or more the slope is
the median of the slopes of all pairs of looks (Theil–Sen): one odd look does not move it.
Computed only where there is lag. Looks that are missing leave a range: the median of all pairs
lies between two ranks of those that are known.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from analytics.kernel.age import EXACT, INTERPOLATED, Age
from analytics.kernel.columns import SECOND, Bools, Floats, Ints
from analytics.kernel.grid import Positions, Ticks
from analytics.kernel.rules import Rules

ROBUST_FROM: Final = 8  # looks
CELLS: Final = 2_048
"""Slopes computed at a time: 190 of each fit into the cache."""


class Batches(NamedTuple):
    """Groups that commit less often than they are looked at: their age goes by stairs.

    The slope over stairs is chance, so it is taken between their corners: looks at which the
    commit has just moved, or nothing is unread, and the newest look if a commit is overdue.
    """

    corner: Bools
    """[tick, series], of all ticks."""
    seldom: Bools
    """[tick, series], from the first tick that is gone through."""
    overdue: Bools


def batches_of(commit: Floats, lag: Floats, still: Floats, gap: Floats, rules: Rules) -> Batches:
    """Find the stairs. commit and lag: of all ticks; still and gap [s] from tick `begin` on."""
    seldom = gap > rules.period_s
    overdue = still > rules.overdue_factor * gap
    if not seldom.any():
        return Batches(np.broadcast_to(np.bool_(True), commit.shape), seldom, overdue)
    corner = lag == 0
    before = np.full(commit.shape[1], np.nan)
    for row, now in enumerate(commit):
        corner[row] |= ~np.isnan(now) & (now != before)
        np.copyto(before, now, where=~np.isnan(now))
    return Batches(corner, seldom, overdue)


def not_due(still: Floats, gap: Floats, rules: Rules) -> Floats:
    """How much of `still` is usual between two commits; 0 once the next one is overdue [s]."""
    usual = (gap > rules.period_s) & (still <= rules.overdue_factor * gap)
    return np.where(usual, still, 0.0)


class Progress(NamedTuple):
    """Matrices [tick, series], from the first tick that is gone through."""

    progress: Floats
    """NaN: no lag, or not known."""
    least: Floats
    most: Floats
    """What it may be at the least and the most, were no look missing; infinite: anything."""
    young: Bools
    """Less than half a window since the segment began."""


def progress_of(
    grid: Positions,
    lag: Floats,
    age: Age,
    segment: Floats,
    batches: Batches,
    ticks: Ticks,
    begin: int,
    rules: Rules,
) -> Progress:
    """The slope before every tick from number `begin` on.

    segment: matrix of all ticks, when each one's segment began [microseconds].
    """
    size = rules.ticks(rules.progress_window_s)
    since = segment[begin:]
    now = ticks.at[begin:, None]
    full = np.minimum((now - since) / rules.period_us + 1, size)
    out = Progress(
        np.full(full.shape, np.nan),
        np.full(full.shape, -np.inf),
        np.full(full.shape, np.inf),
        ~(full >= size / 2),
    )
    dated = (age.method == EXACT) | (age.method == INTERPOLATED)
    wanted = (lag[begin:] > 0) & dated[begin:] & ~out.young
    at, series = np.nonzero(wanted)
    for start in range(0, at.size, CELLS):
        row, column = at[start : start + CELLS], series[start : start + CELLS]
        # [look, place], the oldest look first.
        looks = begin + row - np.arange(size - 1, -1, -1)[:, None]
        inside = looks >= 0
        looks = np.maximum(looks, 0)
        ages, ts = age.age[looks, column], grid.ts[looks, column]
        used = inside & dated[looks, column] & (ticks.at[looks] >= since[row, column])
        expected, needed = full[row, column], np.full(row.size, size / 2)
        chance = np.zeros(row.size)
        if batches.seldom.any():
            corner = batches.corner[looks, column]
            corner[-1] |= batches.overdue[row, column]
            corners = used & corner
            count = corners.sum(axis=0)
            these = batches.seldom[row, column] & (count >= 2)
            used = np.where(these, corners, used)
            expected, needed = np.where(these, count, expected), np.where(these, 2, needed)
            chance = np.where(these, rules.period_s, 0.0)
        slope, least, most = _slopes(ages, ts, used, expected, needed, chance)
        place = (row, column)
        out.progress[place], out.least[place], out.most[place] = 1 - slope, 1 - most, 1 - least
    return out


def _slopes(
    ages: Floats, ts: Floats, used: Bools, full: Floats, needed: Floats, chance: Floats
) -> tuple[Floats, Floats, Floats]:
    """Slope of the age in each column of looks, and its least and most were no look missing.

    full: how many looks there would be; needed: NaN where there are fewer. chance: by how much
    ages at corners differ without a reason [s].
    """
    count = used.sum(axis=0)
    enough = count >= needed
    few = enough & (count < ROBUST_FROM)
    if few.any():
        slope, least, most = _robust(ages, ts, used, full)
        ends = _ends(ages, ts, used, chance)
        whole = few & (count >= full)
        slope = np.where(few, ends, slope)
        least = np.where(whole, ends, np.where(few, -np.inf, least))
        most = np.where(whole, ends, np.where(few, np.inf, most))
    else:
        slope, least, most = _robust(ages, ts, used, full)
    unknown = ~enough | np.isnan(slope)
    return (
        np.where(unknown, np.nan, slope),
        np.where(unknown, -np.inf, least),
        np.where(unknown, np.inf, most),
    )


def _robust(ages: Floats, ts: Floats, used: Bools, full: Floats) -> tuple[Floats, Floats, Floats]:
    """The median slope of all pairs of looks, and the ranks that bound it."""
    size, places = ages.shape
    if not used.all():
        ages = np.where(used, ages, np.nan)
    # Single precision for the sort alone: it is the dearest step, and seven digits are enough.
    slopes = np.empty((size * (size - 1) // 2, places), np.float32)
    done = 0
    for apart in range(1, size):
        seconds = ts[apart:] - ts[:-apart]
        seconds *= 1 / SECOND
        # Two looks at one instant say nothing of a slope.
        seconds[seconds == 0] = np.nan
        block = slopes[done : done + size - apart]
        np.divide(ages[apart:] - ages[:-apart], seconds, out=block, casting="same_kind")
        done += size - apart
    slopes = np.ascontiguousarray(slopes.T)
    slopes.sort(axis=1)
    known = (~np.isnan(slopes)).sum(axis=1)
    count = used.sum(axis=0)
    missing = (full * (full - 1) / 2).astype(np.int64) - count * (count - 1) // 2
    missing = np.maximum(missing, 0)
    whole = known + missing
    row = np.arange(places)

    def ranked(rank: Ints) -> Floats:
        """The slope of that rank among the known; infinite beyond them."""
        found = slopes[row, np.clip(rank, 0, np.maximum(known - 1, 0))].astype(np.float64)
        found = np.where(rank < 0, -np.inf, np.where(rank >= known, np.inf, found))
        return np.where(known > 0, found, np.nan)

    median = 0.5 * (ranked((known - 1) // 2) + ranked(known // 2))
    if not missing.any():
        return median, median, median
    # Were the missing slopes all below, or all above, the known ones.
    least = 0.5 * (ranked((whole - 1) // 2 - missing) + ranked(whole // 2 - missing))
    most = 0.5 * (ranked((whole - 1) // 2) + ranked(whole // 2))
    return median, least, most


def _ends(ages: Floats, ts: Floats, used: Bools, chance: Floats) -> Floats:
    """The slope between the first and the last look.

    A commit is seen up to a period after it was made, so that ages at two corners differ by as
    much in good order: only what is beyond that is a slope.
    """
    place = np.arange(ages.shape[1])
    first = np.argmax(used, axis=0)
    last = ages.shape[0] - 1 - np.argmax(used[::-1], axis=0)
    seconds = (ts[last, place] - ts[first, place]) / SECOND
    slope = np.full(place.size, np.nan)
    rise = ages[last, place] - ages[first, place]
    beyond = np.copysign(np.maximum(np.abs(rise) - chance, 0), rise)
    np.divide(beyond, seconds, out=slope, where=seconds > 0)
    return slope
