"""Stall time of a pair, learned from the gaps between its commits. Pure.

Some consumers commit every second, others every two minutes, so each needs its own stall time. Gaps
between two commits with unread messages are counted in bins by length; old gaps lose weight. The
stall time is a multiple of their 95th percentile, within bounds.

- A gap with a hole in its ticks is not counted: it does not show how often a group commits, and the
  stall time would become a multiple of the hole.
- A gap without a member is not counted: it shows how long members were absent.
- Gaps of several queues that end at one sample share a weight of 1, because one commit ended them.
  Counted singly, one hang of a group with many queues would outweigh all other gaps and hide the
  next hang.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from analytics.kernel.columns import SECOND, Bools, Floats, Ints
from analytics.kernel.rules import Rules

QUANTILE: Final = 0.95
HALF_A_GAP: Final = 0.5  # weight of one gap after a half-life


class Learned(NamedTuple):
    """Learned stall times and gaps of pairs: matrices [tick, pair], or one row of them, in
    seconds."""

    after: Floats
    """The stall time."""
    gap: Floats
    """The 95th percentile of the gaps between commits; 0 until one was seen."""
    learned: Floats
    """1 if the stall time was learned, or is a setting of the pair."""


def bin_ends(rules: Rules) -> Floats:
    """Upper ends of the bins [s]: 1, 2, … 12 periods, then each 1/8 longer, until stall_factor ×
    the end is the maximum stall time."""
    enough = rules.stall_most_s / rules.stall_factor
    periods = [1]
    while periods[-1] * rules.period_s < enough:
        periods.append(periods[-1] + max(1, periods[-1] // 8 if periods[-1] >= 12 else 1))
    return np.array(periods) * rules.period_s


class StallTimes:
    """The bins of all pairs, updated tick by tick."""

    def __init__(self, pairs: dict[str, Floats], bins: Floats, rules: Rules) -> None:
        """pairs, bins: parts of the state, changed in place."""
        self._pairs = pairs
        self._bins = bins
        self._rules = rules
        self._ends = bin_ends(rules)
        self._changed = True
        self._learned = Learned(*(np.zeros(bins.shape[0]) for _ in Learned._fields))

    def learn(self, now: int, pair: Ints, gap: Floats, ended: Bools) -> None:
        """Count the gaps [s] that ended at this tick."""
        ended = ended & ~np.isnan(gap)
        if not ended.any():
            return
        pair, gap = pair[ended], gap[ended]
        counted = np.bincount(pair, minlength=self._bins.shape[0]).astype(np.float64)
        passed = np.nan_to_num((now - self._pairs["gaps_tick"]) / SECOND)
        fade = np.where(counted > 0, 0.5 ** (passed / self._rules.stall_half_life_s), 1.0)
        self._bins *= fade[:, None]
        # Gaps are whole periods; the tolerance is for periods that are not exact as a double.
        number = np.minimum(np.searchsorted(self._ends, gap - 1e-6), self._ends.size - 1)
        np.add.at(self._bins, (pair, number), 1.0 / counted[pair])
        self._pairs["gaps"][:] = self._pairs["gaps"] * fade + (counted > 0)
        np.copyto(self._pairs["gaps_tick"], float(now), where=counted > 0)
        self._changed = True

    def times(self, given: Floats) -> Learned:
        """Stall times of each pair now.
        given: the stall time from the settings of the pair [s]; NaN: none, then it is learned."""
        if self._changed:
            self._learned = self._of_bins()
            self._changed = False
        is_given, now = ~np.isnan(given), self._learned
        after = np.where(is_given, given, now.after)
        return now._replace(after=after, learned=np.where(is_given, 1.0, now.learned))

    def _of_bins(self) -> Learned:
        rules, gaps = self._rules, self._pairs["gaps"]
        # Weights fade, so a learned time is dropped only below half of the required weight.
        enough = gaps >= rules.stall_gaps_needed * 0.5

        def bounded(gap: Floats) -> Floats:
            return np.clip(rules.stall_factor * gap, rules.stall_least_s, rules.stall_most_s)

        gap = np.where(gaps >= HALF_A_GAP, self._percentile(QUANTILE), 0.0)
        # A group that commits every five minutes has only one gap in that time.
        few = np.maximum(rules.stall_unlearned_s, bounded(gap))
        return Learned(np.where(enough, bounded(gap), few), gap, enough.astype(np.float64))

    def _percentile(self, share: float) -> Floats:
        """Return the end of the bin that holds the percentile [s]."""
        so_far = np.cumsum(self._bins, axis=1)
        wanted = share * so_far[:, -1:] * (1 - 1e-9)
        end: Floats = self._ends[np.argmax(so_far >= wanted, axis=1)]
        return end
