"""The stall time that a pair's own gaps between commits give."""

from __future__ import annotations

import numpy as np

from analytics.kernel.columns import SECOND
from analytics.kernel.rules import Rules
from analytics.kernel.stall import StallTimes, bin_ends

RULES = Rules()
PERIOD = RULES.period_s
HANG = 900.0
QUEUES = 16


class Gaps:
    """Gaps of the queues of one pair, sample by sample."""

    def __init__(self) -> None:
        self._pairs = {"gaps": np.zeros(1), "gaps_tick": np.full(1, np.nan)}
        self._times = StallTimes(self._pairs, np.zeros((1, bin_ends(RULES).size)), RULES)
        self._now = 0.0

    def end(self, *gaps: float, after: float = PERIOD) -> None:
        """End these gaps at a sample that many seconds later."""
        self._now += after
        count = len(gaps)
        self._times.learn(
            int(self._now * SECOND),
            np.zeros(count, np.int64),
            np.array(gaps),
            np.ones(count, np.bool_),
        )

    def stall_after(self) -> float:
        """What the pair may stand still for [s]."""
        return float(self._times.times(np.full(1, np.nan)).after[0])


def test_a_hang_of_many_queues_does_not_excuse_the_next_one() -> None:
    # Messages are rare: at each sample one queue or another ends its gap. All end theirs together
    # when the hang is over. Counted one by one they would be 16 of 56.
    gaps = Gaps()
    for _ in range(40):
        gaps.end(PERIOD)
    before = gaps.stall_after()
    gaps.end(*[HANG] * QUEUES, after=HANG)
    assert gaps.stall_after() == before == RULES.stall_factor * PERIOD


def test_gaps_of_several_lengths_that_end_at_one_sample_share_its_weight() -> None:
    # Two queues commit at every sample; the third is read once in a while. Its gaps are a third of
    # those at a sample that ends one, and one sample in ten ends one: below a twentieth.
    gaps = Gaps()
    for sample in range(200):
        gaps.end(*[PERIOD] * 2, *([10 * PERIOD] if sample % 10 == 9 else []))
    assert gaps.stall_after() == RULES.stall_factor * PERIOD


def test_a_group_that_commits_all_queues_seldom_is_given_its_time() -> None:
    gaps = Gaps()
    for _ in range(RULES.stall_gaps_needed + 1):
        gaps.end(*[300.0] * QUEUES, after=300.0)
    assert gaps.stall_after() >= RULES.stall_factor * 300.0
