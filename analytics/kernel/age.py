"""Age of the oldest unread message: measured, else bounded, never extrapolated. Pure.

The first known value is used:

1. the store time that the broker read;
2. the store time that an earlier sample had of the same message;
3. a time interpolated between the two samples between which the max offset passed the message;
4. a lower bound, because the message is older than all samples (method `bounded`).

Rates are not used: a consumer in last week's bulk load is a week behind, even if few messages come
today.
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
"""Suffix of a method in rows. Another node stamped the head, and its clock may differ by more than
a second (`_clock_off`) or by an unknown time (`_clock_unknown`); see ``clocks``."""
MARKED: Final = tuple(f"{method}{mark}" for mark in CLOCKS for method in METHODS)
"""Values of the method column, by clock × number of methods + method."""
CELLS: Final = 16_384
"""Number of heads dated together, so that their windows fit into the CPU cache."""


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


class Heads(NamedTuple):
    """The series whose heads are dated, and what is known of them."""

    grid: Positions
    lag: Lag
    segment: Floats
    """The tick at which the segment began [µs]; NaN: not known, then no earlier sample is used."""
    waiting: Floats
    """When the head was first seen unread [µs]."""
    logs: Logs
    ticks: Ticks
    known: Known


def age_of(heads: Heads, rules: Rules) -> Age:
    """Date the head of every series at every tick."""
    grid, lag, ticks = heads.grid, heads.lag, heads.ticks
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
    # Older ticks need no age: only those within a window of progress do.
    undated[: max(0, ticks.first - rules.ticks(rules.progress_window_s))] = False
    at, series = np.nonzero(undated)
    for start in range(0, at.size, CELLS):
        part = slice(start, start + CELLS)
        _date(out, at[part], series[part], heads, rules)
    return out


def at_least(
    age: Age, head: Floats, commit: Floats, unread: Floats, begin: int, period_s: float
) -> tuple[Age, Age]:
    """Return the ages for rows, and the ages for rules from tick number `begin` on.

    Rules use at least the time for which the head has been seen unread. Otherwise: 1. A group
    hangs. 2. Another node becomes master, with a clock that is ten minutes behind. 3. By that clock
    the head is not stored yet, so the group would be in time for ten minutes.

    Rows keep the age by the clocks. An age of 0 is marked if the stamp is later than the sample,
    because the difference of the clocks is not known. unread: how long the message at the commit
    has been unread [s], from `begin` on, measured in ticks, which do not depend on the master. A
    sample may be a period before or after its tick. head: differs from the commit once retention
    has passed it. Unknown ages stay unknown.
    """
    late = slice(begin, None)
    given = Age._make(each[late] for each in age)
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


def _date(out: Age, at: Ints, series: Ints, heads: Heads, rules: Rules) -> None:
    """Fill `out` at these ticks and series, from store times of heads in earlier samples."""
    grid, lag, segment, waiting, logs, ticks, known = heads
    now, head = grid.ts[at, series], lag.head[at, series]
    broker, back = logs.of_pair[known.pair[series]], rules.ticks(rules.interpolation_s)
    # Each place's own tick and the ticks before it, newest first: [tick, place].
    rows = at - np.arange(back)[:, None]
    inside = rows >= 0
    rows = np.maximum(rows, 0)
    ts = grid.ts[rows, series]
    begun = segment[at, series]
    same = inside & ~np.isnan(ts) & (ticks.at[rows] >= begun)
    high = grid.high[rows, series]

    # The last sample with a head has the store time if its head is this message.
    has_head = same & ~np.isnan(grid.head[rows, series])
    last = np.argmax(has_head, axis=0)
    column = np.arange(at.size)
    source = rows[last, column]
    remembered = has_head.any(axis=0) & (lag.head[source, series] == head)

    unseen = same & (high <= head)
    first_unseen = np.argmax(unseen, axis=0)
    bracketed = unseen.any(axis=0)
    # The message is in all samples after the last one without it; the oldest of these is used.
    number = np.arange(back)[:, None]
    limit = np.where(bracketed, first_unseen, back)
    seen = same & (high > head) & (number < limit)
    first_seen = back - 1 - np.argmax(seen[::-1], axis=0)

    t_after, t_before = ts[first_seen, column], ts[first_unseen, column]
    e_before, e_after = high[first_unseen, column], high[first_seen, column]
    share = np.full(at.size, np.nan)
    between_samples = bracketed & (e_after > e_before)
    np.divide(head - e_before + 0.5, e_after - e_before, out=share, where=between_samples)
    between = t_before + share * (t_after - t_before)
    # The message may have been stored before t_before without being visible, but not before the
    # newest message that was dispatched by then.
    dispatched = logs.t_dispatched[rows[first_unseen, column], broker]
    earliest = np.fmin(t_before, dispatched)

    waited = now - np.fmin(t_after, waiting[at, series])
    oldest = now - logs.t_min[at, broker]

    cases = [remembered, bracketed]
    stored = grid.head[source, series]
    age = np.select(cases, [now - stored, now - between], waited)
    low = np.select(cases, [now - stored, now - t_after], waited)
    high_age = np.select(cases, [now - stored, now - earliest], np.maximum(oldest, waited))
    out.age[at, series] = np.maximum(age, 0) / SECOND
    out.low[at, series] = np.maximum(low, 0) / SECOND
    out.high[at, series] = np.maximum(high_age, 0) / SECOND
    out.method[at, series] = np.select(cases, [EXACT, INTERPOLATED], BOUNDED)
    out.across_hole[at, series] = (
        bracketed & ~remembered & (t_after - t_before > 1.5 * rules.period_us)
    )
