"""How long a pair may stand still: learned from the gaps between its own commits. Pure.

Some consumers commit every second, some every two minutes; neither should decide how soon a fault
of the other is seen. Gaps between moves of a commit, while there was work, fall into bins of a few
lengths; old ones fade. The stall time is a multiple of their 95th percentile, within bounds.
A gap with a hole in its ticks is of unknown length: it counts as shortest and as longest, and the
stall time is then known as a range.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from analytics.kernel.columns import SECOND, Bools, Floats, Ints
from analytics.kernel.rules import Rules

QUANTILE: Final = 0.95


class Learned(NamedTuple):
    """Matrices [tick, pair]: the least and the most that the stall time may be [s]."""

    least: Floats
    most: Floats


def bin_ends(rules: Rules) -> Floats:
    """Longest gap of each bin [s]: 1, 2, 3, 4, 6, 8, 12, … periods, until 4 × it is the maximum."""
    enough = rules.stall_most_s / rules.stall_factor
    ends = [rules.period_s]
    power = 2.0
    while ends[-1] < enough:
        ends += [power * rules.period_s, 1.5 * power * rules.period_s]
        power *= 2
    return np.array(ends)


class StallTimes:
    """The bins of all pairs, brought forward tick by tick."""

    def __init__(self, pairs: dict[str, Floats], bins: Floats, rules: Rules) -> None:
        """pairs, bins: of the state, changed in place."""
        self._pairs = pairs
        self._bins = bins
        self._rules = rules
        self._ends = bin_ends(rules)
        self._changed = True
        self._least = self._most = np.zeros(bins.shape[0])

    def learn(self, now: int, pair: Ints, gap: Floats, clear: Bools, unclear: Bools) -> None:
        """Count the gaps [s] that ended at this tick; of those unclear the length is not known."""
        clear = clear & ~np.isnan(gap)
        if not clear.any() and not unclear.any():
            return
        size = self._bins.shape[0]
        known = np.bincount(pair[clear], minlength=size).astype(np.float64)
        unknown = np.bincount(pair[unclear], minlength=size).astype(np.float64)
        touched = (known + unknown) > 0
        passed = np.nan_to_num((now - self._pairs["gaps_tick"]) / SECOND)
        fade = np.where(touched, 0.5 ** (passed / self._rules.stall_half_life_s), 1.0)
        self._bins *= fade[:, None]
        # Gaps are whole periods; the hair is for periods that no double holds exactly.
        number = np.minimum(np.searchsorted(self._ends, gap[clear] - 1e-6), self._ends.size - 1)
        flat = pair[clear] * self._ends.size + number
        counted = np.bincount(flat, minlength=self._bins.size).astype(np.float64)
        self._bins += counted.reshape(self._bins.shape)
        self._pairs["gaps_known"][:] = self._pairs["gaps_known"] * fade + known
        self._pairs["gaps_unknown"][:] = self._pairs["gaps_unknown"] * fade + unknown
        np.copyto(self._pairs["gaps_tick"], float(now), where=touched)
        self._changed = True

    def times(self, given: Floats) -> tuple[Floats, Floats]:
        """The least and the most that each pair's stall time is now [s].

        given: what the pair itself says [s]; NaN: nothing, then it is what was learned.
        """
        if self._changed:
            self._least, self._most = self._bounds()
            self._changed = False
        told = ~np.isnan(given)
        return np.where(told, given, self._least), np.where(told, given, self._most)

    def _bounds(self) -> tuple[Floats, Floats]:
        rules = self._rules
        known, unknown = self._pairs["gaps_known"], self._pairs["gaps_unknown"]
        # Weights fade: what was learned is forgotten only when half of the least is left.
        enough = rules.stall_gaps_needed * 0.5
        so_far = np.cumsum(self._bins, axis=1)
        wanted = QUANTILE * (known + unknown)

        def learned(below: Floats) -> Floats:
            at = np.argmax(so_far + below[:, None] >= wanted[:, None] - 1e-9, axis=1)
            reached = so_far[:, -1] + below >= wanted - 1e-9
            gap = self._ends[np.where(reached, at, self._ends.size - 1)]
            return np.clip(rules.stall_factor * gap, rules.stall_least_s, rules.stall_most_s)

        unlearned = rules.stall_unlearned_s
        least = np.where(known + unknown >= enough, learned(unknown), unlearned)
        most = np.where(known >= enough, learned(np.zeros_like(unknown)), rules.stall_most_s)
        most = np.where((known < enough) & (unknown == 0), unlearned, most)
        return least, np.maximum(least, most)
