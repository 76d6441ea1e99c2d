"""How long a pair may stand still: learned from the gaps between its own commits. Pure.

Some consumers commit every second, some every two minutes; neither should decide how soon a fault
of the other is seen. Gaps between moves of a commit, while there was work, fall into bins of a few
lengths; old ones fade. The stall time is a multiple of their 95th percentile, within bounds.
The length of a gap with a hole in its ticks lies between bounds: it is counted once by each, and
the stall time is then known as a range.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from analytics.kernel.columns import SECOND, Bools, Floats, Ints
from analytics.kernel.rules import Rules

QUANTILE: Final = 0.95
HALF_A_GAP: Final = 0.5  # one gap, faded for a half-life


class Learned(NamedTuple):
    """Matrices [tick, pair], or one row of them, in seconds."""

    least: Floats
    """That the stall time may be."""
    most: Floats
    gap_least: Floats
    """That the 95th percentile of the gaps between commits may be; 0 until one was seen."""
    gap_most: Floats


def bin_ends(rules: Rules) -> Floats:
    """Longest gap of each bin [s]: 1, 2, … 12 periods, then each an eighth more than the last,
    until stall_factor × it is the maximum."""
    enough = rules.stall_most_s / rules.stall_factor
    periods = [1]
    while periods[-1] * rules.period_s < enough:
        periods.append(periods[-1] + max(1, periods[-1] // 8 if periods[-1] >= 12 else 1))
    return np.array(periods) * rules.period_s


class StallTimes:
    """The bins of all pairs, brought forward tick by tick."""

    def __init__(self, pairs: dict[str, Floats], bins: Floats, rules: Rules) -> None:
        """pairs, bins: of the state, changed in place; bins of the shortest and longest lengths."""
        self._pairs = pairs
        self._least, self._most = np.split(bins, 2, axis=1)
        self._rules = rules
        self._ends = bin_ends(rules)
        self._changed = True
        self._learned = Learned(*(np.zeros(bins.shape[0]) for _ in Learned._fields))

    def learn(self, now: int, pair: Ints, gap: Floats, hidden: Floats, ended: Bools) -> None:
        """Count the gaps [s] that ended at this tick, at most so long.

        hidden: how many ticks of a hole each one may reach over; at each of them the commit may
        have moved, so that it may have been as many more gaps of one period.
        """
        ended = ended & ~np.isnan(gap)
        if not ended.any():
            return
        pair, gap, hidden = pair[ended], gap[ended], hidden[ended]
        shortest = np.where(hidden > 0, np.minimum(gap, self._rules.period_s), gap)
        size = self._least.shape[0]
        counted = np.bincount(pair, minlength=size).astype(np.float64)
        unclear = np.bincount(pair[hidden > 0], minlength=size).astype(np.float64)
        passed = np.nan_to_num((now - self._pairs["gaps_tick"]) / SECOND)
        fade = np.where(counted > 0, 0.5 ** (passed / self._rules.stall_half_life_s), 1.0)
        for bins, length, weight in (
            (self._least, shortest, 1 + hidden),
            (self._most, gap, np.ones_like(gap)),
        ):
            bins *= fade[:, None]
            # Gaps are whole periods; the hair is for periods that no double holds exactly.
            number = np.minimum(np.searchsorted(self._ends, length - 1e-6), self._ends.size - 1)
            np.add.at(bins, (pair, number), weight)
        for name, more in (("gaps", counted), ("gaps_unclear", unclear)):
            self._pairs[name][:] = self._pairs[name] * fade + more
        np.copyto(self._pairs["gaps_tick"], float(now), where=counted > 0)
        self._changed = True

    def times(self, given: Floats) -> Learned:
        """What is known of each pair now.

        given: what the pair itself says of its stall time [s]; NaN: nothing, then it is learned.
        """
        if self._changed:
            self._learned = self._bounds()
            self._changed = False
        told, now = ~np.isnan(given), self._learned
        least, most = np.where(told, given, now.least), np.where(told, given, now.most)
        return now._replace(least=least, most=most)

    def _bounds(self) -> Learned:
        rules = self._rules
        gaps, unclear = self._pairs["gaps"], self._pairs["gaps_unclear"]
        # Weights fade: what was learned is forgotten only when half of the least is left.
        enough = gaps - unclear >= rules.stall_gaps_needed * 0.5
        shortest, longest = self._percentile(self._least), self._percentile(self._most)

        def bounded(gap: Floats) -> Floats:
            return np.clip(rules.stall_factor * gap, rules.stall_least_s, rules.stall_most_s)

        # Too few, and holes hide some: it may have been learned, and may not.
        open_ = ~enough & (unclear > 0)
        unlearned = rules.stall_unlearned_s
        least, most = bounded(shortest), bounded(longest)
        seen = gaps >= HALF_A_GAP
        return Learned(
            np.where(enough, least, np.where(open_, np.minimum(least, unlearned), unlearned)),
            np.where(enough, most, np.where(open_, np.maximum(most, unlearned), unlearned)),
            np.where(seen, shortest, 0.0),
            np.where(seen, longest, 0.0),
        )

    def _percentile(self, bins: Floats) -> Floats:
        """The end of the bin in which it lies [s]."""
        so_far = np.cumsum(bins, axis=1)
        wanted = QUANTILE * so_far[:, -1:] * (1 - 1e-9)
        end: Floats = self._ends[np.argmax(so_far >= wanted, axis=1)]
        return end
