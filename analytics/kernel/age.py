"""How old the oldest unread message is: measured, else bounded; never extrapolated. Pure.

The first of these that is known:

1. the store time that the broker read;
2. the same, if an earlier sample had it of the same message;
3. earlier max offsets: the message appeared between two samples, and its store time is interpolated
   between them;
4. otherwise the message is older than all samples: the age is a lower bound, its method `bounded`.

Rates are not used: a consumer at a bulk load of last week is a week behind, however slowly messages
come today.
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
second off, or off by an unknown time (``clocks``)."""
MARKED: Final = tuple(f"{method}{mark}" for mark in CLOCKS for method in METHODS)
"""Values in rows of lag, by method + clock × number of methods."""
CELLS: Final = 16_384
"""Number of heads dated together: their windows fit into the cache."""


class Age(NamedTuple):
    """Matrices [tick, series], of all ticks; seconds, NaN where not known."""

    age: Floats
    low: Floats
    high: Floats
    """NaN: no bound is known."""
    method: Ints
    """Index into METHODS."""
    across_hole: Bools
    """Interpolated between samples that are further apart than a period."""
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

    segment: the tick at which the segment began; NaN: not known, then nothing earlier is used.
    waiting: when the head was first seen unread. Both [microseconds].
    """
    shape = grid.ts.shape
    nothing_unread = lag.lag == 0
    measured = (lag.lag > 0) & ~np.isnan(grid.head)
    age = np.where(nothing_unread, 0.0, np.nan)
    # A store time after the sample comes from another clock. The age is then 0, not negative.
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
    # In the history only ages inside a window of progress are needed.
    undated[: max(0, ticks.first - rules.ticks(rules.progress_window_s))] = False
    at, series = np.nonzero(undated)
    if at.size:
        _Dating(grid, lag, segment, waiting, logs, ticks, known, rules).date(out, at, series)
    return out


def at_least(
    age: Age, head: Floats, commit: Floats, unread: Floats, begin: int, period_s: float
) -> tuple[Age, Age]:
    """Return the ages that rows show, and the ages that rules use from tick number `begin` on.

    Rules use no age below the time for which the head has been seen unread. Otherwise:
    1. a group hangs; 2. another node becomes master, whose clock is ten minutes behind; 3. by that
    clock the head is not stored yet, and the group would be in time for ten minutes.
    Rows keep the age by the clocks. An age of 0 because the stamp is later than the sample is
    marked: it is not known how far the clock is off.
    unread: how long the message at the commit has been unread, from `begin` on [s], measured in
    ticks, which do not depend on the master. A sample may be up to a period before or after its
    tick. head: another message once retention has passed the commit. Unknown ages stay unknown.
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
    """Dates heads whose store time is not known, by earlier samples."""

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
        """Fill `out` at these ticks and series."""
        for start in range(0, at.size, CELLS):
            part = slice(start, start + CELLS)
            self._date(out, at[part], series[part])

    def _date(self, out: Age, at: Ints, series: Ints) -> None:
        grid = self._grid
        now, head = grid.ts[at, series], self._lag.head[at, series]
        # Ticks up to each place, the newest first: [tick, place].
        rows = at - np.arange(self._back)[:, None]
        inside = rows >= 0
        rows = np.maximum(rows, 0)
        ts = grid.ts[rows, series]
        begun = self._segment[at, series]
        same = inside & ~np.isnan(ts) & (self._ticks[rows] >= begun)
        high = grid.high[rows, series]

        # The last sample with a head: if it is this message, its store time is used.
        has_head = same & ~np.isnan(grid.head[rows, series])
        last = np.argmax(has_head, axis=0)
        column = np.arange(at.size)
        source = rows[last, column]
        remembered = has_head.any(axis=0) & (self._lag.head[source, series] == head)

        unseen = same & (high <= head)
        first_unseen = np.argmax(unseen, axis=0)
        bracketed = unseen.any(axis=0)
        # Samples after the last one without the message have it; the oldest of them is the first.
        number = np.arange(self._back)[:, None]
        limit = np.where(bracketed, first_unseen, self._back)
        seen = same & (high > head) & (number < limit)
        first_seen = self._back - 1 - np.argmax(seen[::-1], axis=0)

        t_after, t_before = ts[first_seen, column], ts[first_unseen, column]
        e_before, e_after = high[first_unseen, column], high[first_seen, column]
        share = np.full(at.size, np.nan)
        between_samples = bracketed & (e_after > e_before)
        np.divide(head - e_before + 0.5, e_after - e_before, out=share, where=between_samples)
        between = t_before + share * (t_after - t_before)
        # At t_before it was not visible, though perhaps stored: not before the newest message that
        # was dispatched by then.
        dispatched = self._logs.t_dispatched[rows[first_unseen, column], self._broker[series]]
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
