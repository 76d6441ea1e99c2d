"""Progress: seconds of stored time that a group consumes per second. Pure.

At 1 a group keeps pace, at 0 it is stuck, at 3 it catches up at triple speed, so no topic needs its
own threshold. Progress is 1 minus the slope of the age over a window. With eight or more samples
the slope is the median of the slopes between any two (Theil–Sen), so one outlier does not change
it. It is computed only where there is lag. With missing samples it is a range: from the median over
the present samples to the slope between the first and the last of them, which no missing sample can
change.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from analytics.kernel.age import EXACT, INTERPOLATED, Age
from analytics.kernel.columns import SECOND, Bools, Floats, Ints
from analytics.kernel.grid import Positions, Ticks
from analytics.kernel.rules import Rules
from analytics.statuses import Status

ROBUST_FROM: Final = 8  # samples
CELLS: Final = 2_048
"""Number of slopes computed together, so that their 190 pairs of samples fit into the CPU cache."""


class Batches(NamedTuple):
    """Groups that commit less often than they are sampled, so that their age falls in steps.

    A slope across steps is random. It is computed between their corners: samples at which the
    commit has just moved or nothing is unread, and the newest sample if a commit is overdue.
    """

    corner: Bools
    """[tick, series], of all ticks."""
    seldom: Bools
    """[tick, series], from tick number `begin` on."""
    overdue: Bools
    soon: Bools
    """A commit is overdue, or will be before FALLING_BEHIND is raised."""


def batches_of(grid: Positions, lag: Floats, still: Floats, gap: Floats, rules: Rules) -> Batches:
    """Find the series whose age falls in steps, and the corners of the steps. grid, lag: all ticks.
    still, gap [s]: from tick `begin` on."""
    commit = grid.commit
    seldom = gap > rules.period_s
    overdue = still > rules.overdue_factor * gap
    # At least two samples: if they are a minute apart, one commit per sample is frequent enough.
    raised = rules.raise_ticks(Status.FALLING_BEHIND) * rules.period_s
    soon = overdue | (rules.overdue_factor * gap <= raised)
    if not seldom.any():
        return Batches(np.broadcast_to(np.bool_(True), commit.shape), seldom, overdue, soon)
    corner = lag == 0
    before, present = np.full(commit.shape[1], np.nan), grid.present
    for row, now in enumerate(commit):
        # A commit first seen after a hole may be much older than a period.
        seen = present[row - 1] if row else True
        corner[row] |= ~np.isnan(now) & (now != before) & seen
        np.copyto(before, now, where=~np.isnan(now))
    return Batches(corner, seldom, overdue, soon)


def not_due(still: Floats, most: Floats, gap: Floats, learned: Floats, rules: Rules) -> Floats:
    """Return the part of `most` that is usual between two commits [s]; 0 if one is overdue.

    still, most: the shortest and longest time since the last commit [s]. learned: 1 if the number
    of gaps is sufficient to know their length.
    """
    factor = np.where(learned > 0, rules.overdue_factor, rules.overdue_unlearned_factor)
    usual = (gap > rules.period_s) & (still <= factor * gap)
    return np.where(usual, np.fmin(most, factor * gap), 0.0)


class Progress(NamedTuple):
    """Matrices [tick, series], from tick number `begin` on."""

    progress: Floats
    """NaN: no lag, or not known."""
    least: Floats
    most: Floats
    """Smallest and largest possible value with the missing samples; infinite: no bound."""
    young: Bools
    """The segment is younger than half a window."""
    recovers: Bools
    """The age fell at every sample for recovery_s, and for at least three samples."""
    may_recover: Bools
    """The age is lower than recovery_s ago."""
    rises: Bools
    """The age exceeds that of the previous sample, and a commit would be seen before FALLING_BEHIND
    is raised."""


def progress_of(
    grid: Positions,
    lag: Floats,
    age: Age,
    segment: Floats,
    batches: Batches,
    gap: Floats,
    ticks: Ticks,
    begin: int,
    rules: Rules,
) -> Progress:
    """Return the slope of the age in the window before every tick from number `begin` on.
    segment: matrix of all ticks, start of each segment [microseconds]. gap: usual time between two
    commits [s], from `begin` on."""
    size = rules.ticks(rules.progress_window_s)
    since = segment[begin:]
    now = ticks.at[begin:, None]
    full = np.minimum((now - since) / rules.period_us + 1, size)
    out = Progress(
        np.full(full.shape, np.nan),
        np.full(full.shape, -np.inf),
        np.full(full.shape, np.inf),
        ~(full >= size / 2),
        *recovery_of(grid.ts, age, segment, gap, begin, rules),
        _rises(grid.ts, age, segment, begin, rules) & batches.soon,
    )
    dated = (age.method == EXACT) | (age.method == INTERPOLATED)
    wanted = (lag[begin:] > 0) & dated[begin:] & ~out.young
    at, series = np.nonzero(wanted)
    for start in range(0, at.size, CELLS):
        row, column = at[start : start + CELLS], series[start : start + CELLS]
        # [tick, place], the oldest tick first.
        rows = begin + row - np.arange(size - 1, -1, -1)[:, None]
        inside = rows >= 0
        rows = np.maximum(rows, 0)
        ages, ts = age.age[rows, column], grid.ts[rows, column]
        used = inside & dated[rows, column] & (ticks.at[rows] >= since[row, column])
        expected, needed = full[row, column], np.full(row.size, 3.0)
        apart = np.full(row.size, (size / 2 - 1) * rules.period_s)
        chance = np.zeros(row.size)
        unheard = np.zeros(row.size, np.bool_)
        if batches.seldom.any():
            corner = batches.corner[rows, column]
            corner[-1] |= batches.overdue[row, column]
            corners = used & corner
            count = corners.sum(axis=0)
            these = batches.seldom[row, column] & (count >= 2)
            # A missing sample may have been a corner.
            count = count + np.maximum(expected - used.sum(axis=0), 0)
            heard, used = used, np.where(these, corners, used)
            # Nothing bounds progress from below if a hole hides what came after the last corner.
            later = np.cumsum(used[::-1], axis=0)[::-1] == 0
            unheard = (these & later & ~heard).any(axis=0)
            expected, needed = np.where(these, count, expected), np.where(these, 2, needed)
            chance = np.where(these, rules.period_s, 0.0)
            apart = np.where(these, 0.0, apart)
        slope, least, most = _slopes(ages, ts, used, expected, needed, chance, apart)
        place = (row, column)
        out.progress[place], out.most[place] = 1 - slope, 1 - least
        out.least[place] = np.where(unheard, -np.inf, 1 - most)
    return out


def recovery_of(
    ts: Floats, age: Age, segment: Floats, gap: Floats, begin: int, rules: Rules
) -> tuple[Bools, Bools]:
    """Return where the age falls now, regardless of the window of progress.

    A group that returns after ten minutes reads at three times the pace of its topic. For half a
    window, though, the slope over all of it is still that of falling behind. If commits are less
    frequent than samples, the age is compared over thirds of the time instead. It must fall by more
    than the difference between two samples before and after one commit.
    """
    least = rules.catches_up_above - 1
    minute = _changes(ts, age, segment, rules.ticks(rules.recovery_s)) < -least
    falls = _for_long(_changes(ts, age, segment, 1) < -least, 1, rules)
    third = rules.ticks(rules.recovery_s / 3)
    if third > 1:
        steps = _for_long(_changes(ts, age, segment, third) < -least, third, rules)
        fallen = -_changes(ts, age, segment, 3 * third) * (3 * third * rules.period_s)
        beyond = fallen[begin:] > gap + least * rules.recovery_s
        return falls[begin:] | (steps[begin:] & beyond), minute[begin:]
    return falls[begin:], minute[begin:]


def _for_long(fell: Bools, apart: int, rules: Rules) -> Bools:
    """Return where the age fell for recovery_s and in at least three steps.
    apart: number of ticks between two compared samples."""
    steps = max(rules.ticks(rules.recovery_s) // apart, 3)
    each = fell.copy()
    for back in range(apart, steps * apart, apart):
        each[back:] &= fell[:-back]
        each[:back] = False
    return each


def _rises(ts: Floats, age: Age, segment: Floats, begin: int, rules: Rules) -> Bools:
    found: Bools = _changes(ts, age, segment, 1) > 1 - rules.keeps_pace_above
    return found[begin:]


def _changes(ts: Floats, age: Age, segment: Floats, apart: int) -> Floats:
    """Change of the age per second over `apart` ticks; NaN if a sample is missing or there is a
    cut."""
    dated = (age.method == EXACT) | (age.method == INTERPOLATED)
    ages = np.where(dated, age.age, np.nan)
    found = np.full(ages.shape, np.nan)
    if ages.shape[0] > apart:
        seconds = (ts[apart:] - ts[:-apart]) / SECOND
        known = (segment[apart:] == segment[:-apart]) & (seconds > 0)
        np.divide(ages[apart:] - ages[:-apart], seconds, out=found[apart:], where=known)
    return found


def _slopes(
    ages: Floats,
    ts: Floats,
    used: Bools,
    full: Floats,
    needed: Floats,
    chance: Floats,
    seconds: Floats,
) -> tuple[Floats, Floats, Floats]:
    """Return the slope of the age in each column, with bounds if samples are missing.

    full: number of samples without holes. needed: minimum number of samples. chance: random
    difference of ages at corners [s]. seconds: minimum time that the samples span. The slope is NaN
    below these minimums.
    """
    count = used.sum(axis=0)
    median = _robust(ages, ts, used)
    missing = count < full
    few = count < ROBUST_FROM
    if not (missing.any() or few.any()):
        return median, median, median
    ends, apart = _ends(ages, ts, used, chance)
    slope = np.where(few, ends, median)
    unknown = (count < needed) | (apart < seconds) | np.isnan(slope)
    least = np.where(missing, np.fmin(median, ends), slope)
    most = np.where(missing, np.fmax(median, ends), slope)
    return (
        np.where(unknown, np.nan, slope),
        np.where(unknown, -np.inf, least),
        np.where(unknown, np.inf, most),
    )


def _robust(ages: Floats, ts: Floats, used: Bools) -> Floats:
    """Median slope between any two of the present samples."""
    size, places = ages.shape
    if not used.all():
        ages = np.where(used, ages, np.nan)
    # The sort is the slowest step; single precision with seven digits suffices for it.
    slopes = np.empty((size * (size - 1) // 2, places), np.float32)
    done = 0
    for apart in range(1, size):
        seconds = ts[apart:] - ts[:-apart]
        seconds *= 1 / SECOND
        # Two samples at one instant have no slope.
        seconds[seconds == 0] = np.nan
        block = slopes[done : done + size - apart]
        np.divide(ages[apart:] - ages[:-apart], seconds, out=block, casting="same_kind")
        done += size - apart
    slopes = np.ascontiguousarray(slopes.T)
    slopes.sort(axis=1)
    known = (~np.isnan(slopes)).sum(axis=1)
    row = np.arange(places)

    def ranked(rank: Ints) -> Floats:
        """Return the known slope with that rank."""
        found = slopes[row, np.maximum(rank, 0)].astype(np.float64)
        return np.where(known > 0, found, np.nan)

    return 0.5 * (ranked((known - 1) // 2) + ranked(known // 2))


def _ends(ages: Floats, ts: Floats, used: Bools, chance: Floats) -> tuple[Floats, Floats]:
    """The slope between the first and the last sample, and the time between them [s].

    A commit is seen up to a period after it was made. Ages at two corners therefore differ by up to
    a period; only what exceeds that counts as slope.
    """
    place = np.arange(ages.shape[1])
    first = np.argmax(used, axis=0)
    last = ages.shape[0] - 1 - np.argmax(used[::-1], axis=0)
    seconds = (ts[last, place] - ts[first, place]) / SECOND
    slope = np.full(place.size, np.nan)
    rise = ages[last, place] - ages[first, place]
    beyond = np.copysign(np.maximum(np.abs(rise) - chance, 0), rise)
    np.divide(beyond, seconds, out=slope, where=seconds > 0)
    return slope, seconds
