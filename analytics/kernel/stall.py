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

    def learn(self, now: int, pair: Ints, shortest: Floats, longest: Floats, ended: Bools) -> None:
        """Count the gaps that ended at this tick: at least and at most how long [s]."""
        ended = ended & ~np.isnan(longest)
        if not ended.any():
            return
        pair, shortest, longest = pair[ended], shortest[ended], longest[ended]
        size = self._least.shape[0]
        counted = np.bincount(pair, minlength=size).astype(np.float64)
        unclear = np.bincount(pair[shortest < longest], minlength=size).astype(np.float64)
        passed = np.nan_to_num((now - self._pairs["gaps_tick"]) / SECOND)
        fade = np.where(counted > 0, 0.5 ** (passed / self._rules.stall_half_life_s), 1.0)
        for bins, gap in ((self._least, shortest), (self._most, longest)):
            bins *= fade[:, None]
            # Gaps are whole periods; the hair is for periods that no double holds exactly.
            number = np.minimum(np.searchsorted(self._ends, gap - 1e-6), self._ends.size - 1)
            np.add.at(bins, (pair, number), 1.0)
        for name, weight in (("gaps", counted), ("gaps_unclear", unclear)):
            self._pairs[name][:] = self._pairs[name] * fade + weight
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
        wanted = QUANTILE * gaps[:, None] * (1 - 1e-9)
        shortest, longest = (
            self._ends[np.argmax(np.cumsum(bins, axis=1) >= wanted, axis=1)]
            for bins in (self._least, self._most)
        )

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
