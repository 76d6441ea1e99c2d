"""Rank correlation by lag: shifted copies, noise, ties, gaps, and brute force beside it."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analytics.kernel.columns import Floats
from analytics.kernel.correlation import (
    GRAIN,
    POINTS_MAX,
    Moved,
    by_lag,
    moved,
    ranks,
    reach_of,
    step_of,
)

REACH = 20


def walk(size: int, seed: int = 1) -> Floats:
    return np.cumsum(np.random.default_rng(seed).normal(size=size))


def shifted(values: Floats, steps: int) -> Floats:
    """The same values, this many steps later; unknown where that reaches beyond the ends."""
    found = np.full(values.size, np.nan)
    if steps >= 0:
        found[steps:] = values[: values.size - steps]
    else:
        found[:steps] = values[-steps:]
    return found


@pytest.mark.parametrize("steps", [-20, -3, -1, 0, 1, 2, 19, 20])
def test_a_shifted_copy_has_a_rho_of_one_at_exactly_its_lag(steps: int) -> None:
    cause = walk(120)
    found = moved(shifted(cause, steps), cause, reach=REACH)
    # The copy is later: what it is a copy of moved before it.
    assert found == Moved(steps, 1.0, 119 - abs(steps), 119 - abs(steps))
    assert found.is_significant


def test_a_mirrored_copy_has_minus_one() -> None:
    cause = walk(60)
    found = moved(-shifted(cause, 2), cause, reach=REACH)
    assert found is not None
    assert (found.steps, found.rho) == (2, -1.0)
    assert found.is_significant


def test_only_order_counts_so_one_wild_value_makes_nothing() -> None:
    steps = np.random.default_rng(3).normal(size=80)
    other = np.cumsum(steps**3 * 1e3)
    found = moved(np.cumsum(steps), other, reach=REACH)
    assert found is not None
    assert (found.steps, found.rho) == (0, 1.0)
    quiet, loud = walk(60, 4), walk(60, 5)
    quiet[30:] += 1e9
    loud[30:] += 1e9
    wild = moved(quiet, loud, reach=0)
    assert wild is not None
    assert not wild.is_significant


def test_a_common_trend_is_no_relation() -> None:
    # Both grow, each by its own noise: levels are alike by 0.99, differences are not.
    time = np.arange(200.0)
    rng = np.random.default_rng(6)
    first, second = (time + rng.normal(size=200) for _ in range(2))
    assert np.corrcoef(first, second)[0, 1] > 0.99
    found = moved(first, second, reach=REACH)
    assert found is not None
    assert not found.is_significant


@pytest.mark.parametrize("size", [27, 41, 81, 241])
def test_noise_gives_nothing(size: int) -> None:
    # Best of 41 lags, of series whose differences depend on their neighbours: 200 pairs each.
    reported = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        found = moved(rng.normal(size=size), rng.normal(size=size), reach=REACH)
        reported += found is not None and found.is_significant
    assert reported <= 2


def test_two_lonely_jumps_are_a_coincidence() -> None:
    first, second = np.zeros(60), np.zeros(60)
    first[30:33], second[27:30] = 9.0, 0.5
    found = moved(first, second, reach=REACH)
    assert found is not None
    assert (found.steps, found.rho, found.moves) == (3, 1.0, 2)
    assert not found.is_significant


def test_ties_have_the_mean_of_their_ranks() -> None:
    nan = math.nan
    assert ranks(np.array([[3.0, 1.0, 3.0, nan], [2.0, 2.0, 2.0, 2.0]])).tolist()[1] == [2.5] * 4
    assert ranks(np.array([[3.0, 1.0, 3.0, nan]]))[0, :3].tolist() == [2.5, 1.0, 2.5]
    # Differences 0 1 0 1 and 0 2 1 2: ranks 1.5 3.5 1.5 3.5 and 1 3.5 2 3.5.
    first, second = np.cumsum([0.0, 0, 1, 0, 1]), np.cumsum([0.0, 0, 2, 1, 2])
    found = by_lag(first, second, reach=0, least=4)
    assert found.rho.tolist() == pytest.approx([4 / math.sqrt(4 * 4.5)])


def test_a_gap_takes_the_two_differences_beside_it_and_no_more() -> None:
    cause = walk(100)
    effect = shifted(cause, 4)
    effect[[50, 51, 70]] = math.nan
    cause[20] = math.nan
    found = moved(effect, cause, reach=REACH)
    # 95 differences overlap at that lag; the gaps take 3, 2 and 2 of them.
    assert found == Moved(4, 1.0, 88, 88)


def test_what_did_not_vary_has_no_answer() -> None:
    line = 0.1 * np.arange(100.0)  # its differences differ in the last bit alone
    assert moved(line, walk(100), reach=REACH) is None
    assert moved(walk(100), np.full(100, 3.0), reach=REACH) is None
    assert moved(np.full(100, math.nan), walk(100), reach=REACH) is None


def test_too_few_points_have_no_answer() -> None:
    cause = walk(21)
    found = by_lag(cause, cause, reach=REACH)
    assert [int(each) for each in found.steps[~np.isnan(found.rho)]] == [0]
    assert moved(cause[:20], cause[:20], reach=REACH) is None
    for size in (0, 1, 2):
        assert moved(cause[:size], cause[:size], reach=REACH) is None


def test_the_newest_differences_count_however_many_there_are() -> None:
    long, short = walk(5_000), walk(5_000, 2)
    whole = by_lag(long, short, reach=REACH)
    newest = by_lag(long[-POINTS_MAX - 1 :], short[-POINTS_MAX - 1 :], reach=REACH)
    assert np.array_equal(whole.rho, newest.rho)
    assert whole.points.max() == POINTS_MAX


def test_two_that_are_not_equally_long_are_refused() -> None:
    with pytest.raises(ValueError, match="3 values, but the other series has 4"):
        by_lag(np.zeros(3), np.zeros(4), reach=1)


def test_a_reported_correlation_needs_strength_length_and_movement() -> None:
    assert Moved(0, 0.82, 40, 40).is_significant
    assert not Moved(0, 0.82, 19, 19).is_significant
    assert not Moved(0, 0.82, 40, 9).is_significant
    assert not Moved(0, 0.59, 400, 400).is_significant
    assert Moved(0, -0.61, 400, 400).is_significant
    # Of few points the best of 41 lags is often as good as this by chance.
    assert not Moved(0, 0.7, 20, 20).is_significant


@pytest.mark.parametrize(
    ("period_s", "step_s", "reach"),
    [(15.0, 15.0, 20), (5.0, 15.0, 20), (1.0, 15.0, 20), (10.0, 20.0, 15), (60.0, 60.0, 5)],
)
def test_steps_are_whole_ticks_and_lags_few(period_s: float, step_s: float, reach: int) -> None:
    assert step_of(period_s) == pytest.approx(step_s)
    assert reach_of(step_of(period_s)) == reach


def brute(first: list[float], second: list[float], lag: int) -> tuple[float | None, int]:
    """Spearman by its definition, number by number; rho None where nothing varies."""

    def steps(values: list[float]) -> list[float]:
        return [
            math.nan if math.isnan(a) or math.isnan(b) else round((b - a) / GRAIN)
            for a, b in pairwise(values)
        ]

    one, two = steps(first), steps(second)
    pairs = [
        (one[at], two[at - lag])
        for at in range(len(one))
        if 0 <= at - lag < len(two) and not math.isnan(one[at]) and not math.isnan(two[at - lag])
    ]

    def ranked(values: list[float]) -> list[float]:
        return [
            sum(other < each for other in values) + (sum(other == each for other in values) + 1) / 2
            for each in values
        ]

    if len(pairs) < 3:
        return None, len(pairs)
    left, right = (ranked([pair[side] for pair in pairs]) for side in (0, 1))
    mean = (len(pairs) + 1) / 2
    vary = math.sqrt(
        sum((each - mean) ** 2 for each in left) * sum((each - mean) ** 2 for each in right)
    )
    if not vary:
        return None, len(pairs)
    return sum((a - mean) * (b - mean) for a, b in zip(left, right, strict=True)) / vary, len(pairs)


VALUES = st.lists(
    st.tuples(*[st.one_of(st.just(math.nan), st.integers(0, 4).map(float), st.floats(0, 1e3))] * 2),
    max_size=25,
)


@given(VALUES, st.integers(0, 6))
def test_it_equals_brute_force(values: list[tuple[float, float]], reach: int) -> None:
    first, second = ([pair[side] for pair in values] for side in (0, 1))
    found = by_lag(np.array(first), np.array(second), reach=reach, least=3)
    for lag, rho, points in zip(found.steps, found.rho, found.points, strict=True):
        wanted, count = brute(first, second, int(lag))
        assert points == count
        if wanted is None:
            assert math.isnan(rho)
        else:
            assert rho == pytest.approx(wanted, abs=1e-9)
