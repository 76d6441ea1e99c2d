"""Groups drawn at random: none that is well raises an alarm, and every fault is found in time.

`make lag-scenarios SEEDS=100` judges a hundred of every kind.
"""

from __future__ import annotations

import pytest

from tests.support.lag_drawn import KINDS, judge

SEEDS = (1, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_drawn_at_random_is_judged_by_what_is_true_of_it(kind: str) -> None:
    problems = [(seed, each) for seed in SEEDS for each in judge(kind, seed).problems]
    assert problems == []
