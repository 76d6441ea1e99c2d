"""How long a pair may stand still: learned from the gaps between its own commits. Pure.

Some consumers commit every second, some every two minutes; neither should decide how soon a fault
of the other is seen. Gaps between moves of a commit, while there was work, fall into bins of a few
lengths; old ones fade. The stall time is a multiple of their 95th percentile, within bounds.
A gap with a hole in its ticks is not counted: a hole says nothing of how often a group commits,
and a group that stands still would else be given as many times the hole before it is said.
Nor is one with an absence in it: it shows how long members were away, not how often they commit.
Gaps of several queues that end at one look share a weight of 1: one commit ended them. Counted one
by one, a single hang of a group with many queues would be most of what was seen, and excuse the
next one; and where messages are rare each of them shows when a message came rather than how long
the group waits between two commits.
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

    after: Floats
    """The stall time."""
    gap: Floats
    """The 95th percentile of the gaps between commits; 0 until one was seen."""
    learned: Floats
    """1 where the stall time was learned, or was told."""


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
        """pairs, bins: of the state, changed in place."""
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
        # Gaps are whole periods; the hair is for periods that no double holds exactly.
        number = np.minimum(np.searchsorted(self._ends, gap - 1e-6), self._ends.size - 1)
        np.add.at(self._bins, (pair, number), 1.0 / counted[pair])
        self._pairs["gaps"][:] = self._pairs["gaps"] * fade + (counted > 0)
        np.copyto(self._pairs["gaps_tick"], float(now), where=counted > 0)
        self._changed = True

    def times(self, given: Floats) -> Learned:
        """What is known of each pair now.

        given: what the pair itself says of its stall time [s]; NaN: nothing, then it is learned.
        """
        if self._changed:
            self._learned = self._of_bins()
            self._changed = False
        told, now = ~np.isnan(given), self._learned
        after = np.where(told, given, now.after)
        return now._replace(after=after, learned=np.where(told, 1.0, now.learned))

    def _of_bins(self) -> Learned:
        rules, gaps = self._rules, self._pairs["gaps"]
        # Weights fade: what was learned is forgotten only when half of the least is left.
        enough = gaps >= rules.stall_gaps_needed * 0.5

        def bounded(gap: Floats) -> Floats:
            return np.clip(rules.stall_factor * gap, rules.stall_least_s, rules.stall_most_s)

        gap = np.where(gaps >= HALF_A_GAP, self._percentile(QUANTILE), 0.0)
        # Of a group that commits every five minutes the first gap is the only one for as long.
        few = np.maximum(rules.stall_unlearned_s, bounded(gap))
        return Learned(np.where(enough, bounded(gap), few), gap, enough.astype(np.float64))

    def _percentile(self, share: float) -> Floats:
        """The end of the bin in which it lies [s]."""
        so_far = np.cumsum(self._bins, axis=1)
        wanted = share * so_far[:, -1:] * (1 - 1e-9)
        end: Floats = self._ends[np.argmax(so_far >= wanted, axis=1)]
        return end
