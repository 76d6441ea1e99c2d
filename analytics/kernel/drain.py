"""Drain time: how long a pair takes to read everything unread. Pure.

There are two estimates. By time: age / (progress − 1). By count: lag / (consume rate − produce
rate). Both use the rates of the last fifteen minutes, one per minute, which give p10, median and
p90. The estimates agree while the produce rate is constant. If they differ by more than a factor of
two, the backlog is denser or thinner than present traffic, and the count is used.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from analytics.kernel import robust
from analytics.kernel.columns import SECOND, Bools, Floats, Ints
from analytics.kernel.grid import Ticks
from analytics.kernel.pairs import Rolled
from analytics.kernel.rules import Rules

METHODS: Final = (None, "time", "count")
NONE, TIME, COUNT = range(3)
QUANTILES: Final = (0.1, 0.5, 0.9)
FACTOR: Final = 2.0


class Drain(NamedTuple):
    """Matrices [tick, pair], from tick number `begin` on."""

    quantiles: tuple[Floats, Floats, Floats]
    """p10, p50, p90 [s]; infinite: never at this pace; NaN: nothing to drain, or not known."""
    method: Ints
    """Index into METHODS."""


def drain_of(
    rolled: Rolled,
    ticks: Ticks,
    begin: int,
    carried: dict[str, Floats],
    minutes: Floats,
    rules: Rules,
) -> Drain:
    """Process the ticks from number `begin` on; updates `carried` and `minutes`."""
    shape = rolled.lag_sum.shape
    book = _Minutes(carried, minutes, rules)
    quantiles = tuple(np.full(shape, np.nan) for _ in QUANTILES)
    method = np.full(shape, NONE, np.int64)
    for row in range(shape[0]):
        book.add(int(ticks.at[begin + row]), rolled, row)
        lag, age = rolled.lag_sum[row], rolled.age_max[row]
        by_time, by_count = book.by_time(age), book.by_count(lag)
        there = lag > 0
        use_time = there & ~np.isnan(by_time[1])
        use_count = there & ~np.isnan(by_count[1])
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = by_count[1] / by_time[1]
        agree = ((ratio <= FACTOR) & (ratio >= 1 / FACTOR)) | (
            np.isinf(by_time[1]) & np.isinf(by_count[1])
        )
        chosen_time = use_time & (agree | ~use_count)
        chosen_count = use_count & ~chosen_time
        for chosen, code, times in (
            (chosen_time, TIME, by_time),
            (chosen_count, COUNT, by_count),
        ):
            np.copyto(method[row], code, where=chosen)
            for quantile, time in zip(quantiles, times, strict=True):
                np.copyto(quantile[row], time, where=chosen)
    return Drain((quantiles[0], quantiles[1], quantiles[2]), method)


class _Minutes:
    """Rates of the last minutes of every pair."""

    def __init__(self, carried: dict[str, Floats], minutes: Floats, rules: Rules) -> None:
        self._now = carried
        self._kept = rules.drain_minutes
        self._least = rules.drain_minutes_least
        self._minute = max(round(rules.minute_s * SECOND), rules.period_us)
        self._rings = [minutes[:, part * self._kept : (part + 1) * self._kept] for part in range(3)]
        self._summed()

    def add(self, now: int, rolled: Rolled, row: int) -> None:
        """Add one tick, and close the current minute if the tick ends it or lies after it."""
        state = self._now
        number = (now - 1) // self._minute
        other = ~np.isnan(state["minute"]) & (state["minute"] != number)
        if other.any():
            self._close(other, number - state["minute"])
        np.copyto(state["minute"], float(number))
        age = rolled.age_max[row]
        known = ~np.isnan(age) & rolled.dated[row]
        # Across a cut the age jumps, so it gives no pace.
        np.copyto(state["minute_age"], np.nan, where=~np.isnan(age) & ~rolled.dated[row])
        begins = known & np.isnan(state["minute_age"])
        np.copyto(state["minute_age"], age, where=begins)
        np.copyto(state["minute_age_at"], rolled.ts[row], where=begins)
        np.copyto(state["last_age"], age, where=known)
        np.copyto(state["last_age_at"], rolled.ts[row], where=known)
        produced, consumed = rolled.produce_rate[row], rolled.consume_rate[row]
        both = ~np.isnan(produced) & ~np.isnan(consumed)
        for name, rate in (("minute_produced", produced), ("minute_consumed", consumed)):
            np.copyto(state[name], np.nan_to_num(state[name]) + rate, where=both)
        np.copyto(state["minute_rates"], np.nan_to_num(state["minute_rates"]) + 1, where=both)
        if now % self._minute == 0:
            everywhere = np.ones(age.size, np.bool_)
            self._close(everywhere, np.ones(age.size))
            np.copyto(state["minute"], float(number + 1))

    def _close(self, where: Bools, passed: Floats) -> None:
        """Store the minute's rates; minutes without samples are stored as unknown."""
        state = self._now
        seconds = (state["last_age_at"] - state["minute_age_at"]) / SECOND
        some = (seconds > 0) & ((state["minute_age"] > 0) | (state["last_age"] > 0))
        progress = np.full(where.size, np.nan)
        np.divide(state["last_age"] - state["minute_age"], seconds, out=progress, where=some)
        count = state["minute_rates"]
        values = [1 - progress, state["minute_produced"] / count, state["minute_consumed"] / count]
        for ring, value in zip(self._rings, values, strict=True):
            ring[where] = np.concatenate([ring[where, 1:], value[where, None]], axis=1)
        late = where & (passed > 1)
        for step in range(2, self._kept + 2):
            still = late & (passed >= step)
            if not still.any():
                break
            for ring in self._rings:
                ring[still] = np.concatenate(
                    [ring[still, 1:], np.full((int(still.sum()), 1), np.nan)], axis=1
                )
        np.copyto(state["minute_age"], state["last_age"], where=where & ~late)
        np.copyto(state["minute_age_at"], state["last_age_at"], where=where & ~late)
        np.copyto(state["minute_age"], np.nan, where=late)
        for name in ("minute_produced", "minute_consumed", "minute_rates"):
            np.copyto(state[name], np.nan, where=where)
        self._summed()

    def _summed(self) -> None:
        """Compute the quantiles of the stored rates; called only when a minute ends."""
        progress, produced, consumed = self._rings
        self._gain = [each - 1 for each in _quantiles(progress, self._least)]
        gain = _quantiles(consumed - produced, self._least)
        middle = _quantiles(consumed, self._least)[1] - _quantiles(produced, self._least)[1]
        self._net = [gain[0], middle, gain[2]]

    def by_time(self, age: Floats) -> list[Floats]:
        """Quantiles of the drain time by age [s]; the fastest minutes give the shortest time."""
        return [_lasts(age, gain) for gain in self._gain[::-1]]

    def by_count(self, lag: Floats) -> list[Floats]:
        """Quantiles of the drain time by message counts [s]."""
        return [_lasts(lag, net) for net in self._net[::-1]]


def _lasts(amount: Floats, pace: Floats) -> Floats:
    """Return how long an amount takes at a rate [s]; infinite at rate 0."""
    lasts = np.where(np.isnan(pace), np.nan, np.inf)
    np.divide(amount, pace, out=lasts, where=pace > 0)
    return lasts


def _quantiles(ring: Floats, least: int) -> list[Floats]:
    """Quantiles of each row's known values; NaN where fewer than `least` are known."""
    known = (~np.isnan(ring)).sum(axis=1) >= least
    return [np.where(known, each, np.nan) for each in robust.quantiles(ring, QUANTILES)]
