"""Groups drawn at random: none that is well raises an alarm, and every fault is found in time.

`make lag-scenarios SEEDS=100` judges a hundred of every kind.
"""

from __future__ import annotations

from tests.support.lag_drawn import judge_seeds

SEEDS = (1, 2)
"""One through samples, one through tables."""


def test_groups_drawn_at_random_are_judged_by_what_is_true_of_them() -> None:
    verdicts = judge_seeds(SEEDS)
    assert [each for each in verdicts if each.problems] == []
    # Each fault that did harm was found: a generator of nothing but health would pass, too.
    faulty = {each.kind for each in verdicts if each.faulty}
    assert faulty <= {each.kind for each in verdicts if each.found_s is not None}
    assert len(faulty) > 10
