"""How old the oldest unread message is: measured, else bounded; never extrapolated. Pure.

In order: its store time as the broker read it; the same if an earlier look had it of the same
message; from earlier max offsets, the two looks between which the message came to be seen, and the
value between them by interpolation; else it is older than all that is known, the age is "at least"
and its method `bounded`. A rate never enters: a consumer at a bulk load of last week is a week
behind, however slowly messages come today.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from analytics.kernel.columns import SECOND, Bools, Floats, Ints
from analytics.kernel.facts import Logs
from analytics.kernel.grid import Known, Positions, Ticks
from analytics.kernel.lag import Lag
from analytics.kernel.rules import Rules
from analytics.schema import HeadMethod

METHODS: Final = tuple(HeadMethod)
EXACT, INTERPOLATED, BOUNDED, NONE = range(4)
CLOCK_ONE, CLOCK_OFF, CLOCK_UNKNOWN = range(3)
CLOCKS: Final = ("", "_clock_off", "_clock_unknown")
"""Appended to a method in rows: another node stamped the head, whose clock may be more than a
second off, or by nobody knows how much (``clocks``)."""
MARKED: Final = tuple(f"{method}{mark}" for mark in CLOCKS for method in METHODS)
"""How rows of lag say it: by method + clock × their number."""
CELLS: Final = 16_384
"""Dated at a time: a window of each of them fits into the cache."""


class Age(NamedTuple):
    """Matrices [tick, series], of all ticks; seconds, NaN where not known."""

    age: Floats
    low: Floats
    high: Floats
    """NaN: no bound is known."""
    method: Ints
    """Index into METHODS."""
    across_hole: Bools
    """Interpolated between looks that are further apart than a period."""
    clock: npt.NDArray[np.int8]
    """Index into CLOCKS."""


def age_of(
    grid: Positions,
    lag: Lag,
    segment: Floats,
    waiting: Floats,
    logs: Logs,
    ticks: Ticks,
    known: Known,
    rules: Rules,
) -> Age:
    """Date the head of every series at every tick.

    segment: the tick at which each one's segment began; NaN where it is not known, then nothing
    earlier is looked at. waiting: when its head was first seen to wait. Both [microseconds].
    """
    shape = grid.ts.shape
    nothing_unread = lag.lag == 0
    measured = (lag.lag > 0) & ~np.isnan(grid.head)
    age = np.where(nothing_unread, 0.0, np.nan)
    # A store time after the look: clocks of two nodes. The age is not negative for that.
    np.copyto(age, np.maximum(grid.ts - grid.head, 0) / SECOND, where=measured)
    method = np.where(nothing_unread | measured, EXACT, NONE)
    low, high = age.copy(), age.copy()
    off = measured & (grid.head_error > 0)
    if off.any():
        low[off] = np.maximum(age[off] - grid.head_error[off], 0)
        high[off] += grid.head_error[off]
    one_clock = np.broadcast_to(np.int8(CLOCK_ONE), shape)
    out = Age(age, low, high, method, np.zeros(shape, np.bool_), one_clock)
    undated = (lag.lag > 0) & ~measured
    # Of history only what a window of progress can reach is asked for.
    undated[: max(0, ticks.first - rules.ticks(rules.progress_window_s))] = False
    at, series = np.nonzero(undated)
    if at.size:
        _Dating(grid, lag, segment, waiting, logs, ticks, known, rules).date(out, at, series)
    return out


def at_least(
    age: Age, head: Floats, commit: Floats, unread: Floats, begin: int, period_s: float
) -> tuple[Age, Age]:
    """The ages as rows show them, and those from tick number `begin` on that the rules go by.

    No rule goes by an age that is lower than the time for which its head has been seen unread.
    Story: 1. a group hangs; 2. another node becomes master, whose clock is ten minutes behind;
    3. by that clock the head is not stored yet, and the group would be in time for ten minutes.
    Rows keep the age that the clocks give; one of 0, the stamp being later than the look, says that
    nobody measured how far it is off.
    unread: of the message at the commit, from `begin` on [s], by ticks, which do not change with
    the master. A look may be up to a period before or behind its tick. head: another message once
    retention has passed the commit. Unknown ages stay unknown.
    """
    late = slice(begin, None)
    given = Age(
        age.age[late],
        age.low[late],
        age.high[late],
        age.method[late],
        age.across_hole[late],
        age.clock[late],
    )
    least = np.where(head[late] == commit[late], unread - period_s, np.nan)
    too_low = least > given.age
    if not too_low.any():
        return age, given
    unmeasured = too_low & (given.clock == CLOCK_ONE) & (given.age == 0)
    high, clock = age.high.copy(), age.clock.copy()
    np.copyto(high[late], np.nan, where=unmeasured)
    np.copyto(clock[late], CLOCK_UNKNOWN, where=unmeasured)
    by_ticks = given._replace(
        age=np.where(too_low, least, given.age),
        low=np.where(least > given.low, least, given.low),
        high=np.where(least > given.high, least, given.high),
    )
    return age._replace(high=high, clock=clock), by_ticks


class _Dating:
    """Dates heads whose store time is not known, by what was seen before."""

    def __init__(
        self,
        grid: Positions,
        lag: Lag,
        segment: Floats,
        waiting: Floats,
        logs: Logs,
        ticks: Ticks,
        known: Known,
        rules: Rules,
    ) -> None:
        self._grid, self._lag, self._logs = grid, lag, logs
        self._segment, self._waiting = segment, waiting
        self._broker = logs.of_pair[known.pair]
        self._ticks = ticks.at
        self._back = rules.ticks(rules.interpolation_s)
        self._hole = 1.5 * rules.period_us

    def date(self, out: Age, at: Ints, series: Ints) -> None:
        """Fill `out` at these places."""
        for start in range(0, at.size, CELLS):
            part = slice(start, start + CELLS)
            self._date(out, at[part], series[part])

    def _date(self, out: Age, at: Ints, series: Ints) -> None:
        grid = self._grid
        now, head = grid.ts[at, series], self._lag.head[at, series]
        # Looks at and before each place, the newest first: [look, place].
        looks = at - np.arange(self._back)[:, None]
        inside = looks >= 0
        looks = np.maximum(looks, 0)
        ts = grid.ts[looks, series]
        begun = self._segment[at, series]
        same = inside & ~np.isnan(ts) & (self._ticks[looks] >= begun)
        high = grid.high[looks, series]

        # The last look that told a head: if it is this message, its store time still holds.
        told = same & ~np.isnan(grid.head[looks, series])
        last = np.argmax(told, axis=0)
        column = np.arange(at.size)
        source = looks[last, column]
        remembered = told.any(axis=0) & (self._lag.head[source, series] == head)

        unseen = same & (high <= head)
        first_unseen = np.argmax(unseen, axis=0)
        bracketed = unseen.any(axis=0)
        # Newer looks than the last without the message have it; the oldest of them is the first.
        number = np.arange(self._back)[:, None]
        limit = np.where(bracketed, first_unseen, self._back)
        seen = same & (high > head) & (number < limit)
        first_seen = self._back - 1 - np.argmax(seen[::-1], axis=0)

        t_after, t_before = ts[first_seen, column], ts[first_unseen, column]
        e_before, e_after = high[first_unseen, column], high[first_seen, column]
        share = np.full(at.size, np.nan)
        between_looks = bracketed & (e_after > e_before)
        np.divide(head - e_before + 0.5, e_after - e_before, out=share, where=between_looks)
        between = t_before + share * (t_after - t_before)
        # It was not to be seen at t_before, though perhaps stored: but not before the newest
        # message that was dispatched then.
        dispatched = self._logs.t_dispatched[looks[first_unseen, column], self._broker[series]]
        earliest = np.fmin(t_before, dispatched)

        waited = now - np.fmin(t_after, self._waiting[at, series])
        oldest = now - self._logs.t_min[at, self._broker[series]]

        cases = [remembered, bracketed]
        stored = grid.head[source, series]
        age = np.select(cases, [now - stored, now - between], waited)
        low = np.select(cases, [now - stored, now - t_after], waited)
        high_age = np.select(cases, [now - stored, now - earliest], np.maximum(oldest, waited))
        out.age[at, series] = np.maximum(age, 0) / SECOND
        out.low[at, series] = np.maximum(low, 0) / SECOND
        out.high[at, series] = np.maximum(high_age, 0) / SECOND
        out.method[at, series] = np.select(cases, [EXACT, INTERPOLATED], BOUNDED)
        out.across_hole[at, series] = bracketed & ~remembered & (t_after - t_before > self._hole)
