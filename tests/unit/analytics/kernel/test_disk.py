from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from analytics.kernel.columns import Floats
from analytics.kernel.disk import TimeToFull, outlook

GB = 1e9
AT: Floats = np.arange(7 * 24, dtype=np.float64) * 3600.0
PACE = -0.4e6  # bytes a second
LINE: Floats = 500 * GB + PACE * AT
LEFT = 500 * GB / -PACE - float(AT[-1])
SEEDS = 300  # docs/analytics-methods.md has the shares over 1,000


def time_to_full(at: Floats, free: Floats) -> TimeToFull | None:
    found = outlook(at, free, np.empty(0))
    return None if found is None else found.full


def test_a_volume_that_fills_evenly_is_foreseen_exactly() -> None:
    found = time_to_full(AT, LINE)
    assert found is not None
    assert found[:3] == pytest.approx((LEFT, LEFT, LEFT))
    assert found.per_second == pytest.approx(PACE)


def alike(random: np.random.Generator) -> tuple[Floats, float]:
    """Noise whose neighbours are alike."""
    noise = random.normal(0, 2 * GB, AT.size)
    for hour in range(1, AT.size):
        noise[hour] += 0.5 * noise[hour - 1]
    return LINE + noise, LEFT


def wandering(random: np.random.Generator) -> tuple[Floats, float]:
    """Each hour takes more or less than usual, and what it took stays taken."""
    free = 500 * GB + np.cumsum(random.normal(PACE * 3600, 1 * GB, AT.size * 20))
    return free[: AT.size], (int(np.argmax(free <= 0)) - (AT.size - 1)) * 3600.0


@pytest.mark.parametrize(
    ("series", "off"),
    [
        (lambda random: (LINE + random.normal(0, 1 * GB, AT.size), LEFT), 0.03),
        (lambda random: (LINE + random.normal(0, 20 * GB, AT.size), LEFT), 0.03),
        (lambda random: (LINE + random.uniform(-5 * GB, 5 * GB, AT.size), LEFT), 0.03),
        (alike, 0.04),
        (wandering, 0.04),
    ],
)
def test_the_band_holds_four_fifths(
    series: Callable[[np.random.Generator], tuple[Floats, float]], off: float
) -> None:
    print("seeds 0 to", SEEDS - 1)
    held = 0
    for seed in range(SEEDS):
        free, left = series(np.random.default_rng(seed))
        found = time_to_full(AT, free)
        assert found is not None
        held += found.p10 <= left <= found.p90
    assert held / SEEDS == pytest.approx(0.80, abs=off)


def test_a_few_wild_values_move_nothing() -> None:
    free = LINE.copy()
    free[[3, 50, 120]] = 0
    found = time_to_full(AT, free)
    assert found is not None
    assert found.p50 == pytest.approx(LEFT, rel=1e-6)


def test_a_volume_that_does_not_fill_is_never_full() -> None:
    for free in (np.full(AT.size, 300 * GB), 300 * GB + 1e5 * AT):
        found = time_to_full(AT, free)
        assert found is not None
        assert (found.p10, found.p50, found.p90) == (math.inf, math.inf, math.inf)


def test_a_pace_that_may_be_nothing_has_no_late_end() -> None:
    seed = 2
    print("seed", seed)
    found = time_to_full(AT, 300 * GB + np.random.default_rng(seed).normal(0, GB, AT.size))
    assert found is not None
    assert found.p90 == math.inf
    assert found.p10 > 30 * 86_400


def test_a_full_volume_is_full_now() -> None:
    found = time_to_full(AT, LINE - LINE[-1])
    assert found is not None
    assert found[:3] == (0, 0, 0)


def test_too_few_observations_give_no_forecast() -> None:
    assert time_to_full(AT[:11], LINE[:11]) is None
    assert time_to_full(AT[:0], LINE[:0]) is None
    gaps = np.where(np.arange(AT.size) % 20 == 0, LINE, np.nan)
    assert time_to_full(AT, gaps) is None


def test_observations_that_are_missing_move_nothing() -> None:
    seed = 9
    print("seed", seed)
    free = np.where(np.random.default_rng(seed).random(AT.size) < 0.6, LINE, np.nan)
    free[-1] = LINE[-1]
    found = time_to_full(AT, free)
    assert found is not None
    assert found.p50 == pytest.approx(LEFT)


def test_the_shape_of_the_week_is_learnt_from_earlier_weeks() -> None:
    """The line of the last week alone takes a part of the week's shape for the pace."""
    at: Floats = np.arange(9 * 7 * 24, dtype=np.float64) * 3600.0
    free = 2000 * GB + PACE * at + 60 * GB * np.sin(2 * np.pi * at / (7 * 86_400))
    full = int(np.argmax(free <= 0))
    left = (full - (5 * 7 * 24 - 1)) * 3600.0
    at, free = at[: 5 * 7 * 24], free[: 5 * 7 * 24]
    found = time_to_full(at, free)
    alone = time_to_full(at[-7 * 24 :], free[-7 * 24 :])
    assert found is not None
    assert alone is not None
    assert found.per_second == pytest.approx(PACE)
    assert found.p50 == pytest.approx(left, abs=2 * 3600)
    assert abs(alone.p50 - left) > 86_400


def test_what_will_be_free_lies_on_the_line_within_its_band() -> None:
    seed = 14
    print("seed", seed)
    free = LINE + np.random.default_rng(seed).normal(0, 2 * GB, AT.size)
    ahead: Floats = np.arange(1, 20, dtype=np.float64) * 6 * 3600
    found = outlook(AT, free, ahead)
    assert found is not None
    expected = LINE[-1] + PACE * ahead
    assert found.p50 == pytest.approx(np.maximum(expected, 0), abs=3 * GB)
    assert (found.p10 <= found.p50).all()
    assert (found.p50 <= found.p90).all()
    width = found.p90 - found.p10
    assert (np.diff(width[found.p10 > 0]) > 0).all()


def test_an_outlook_ends_when_the_volume_is_full() -> None:
    found = time_to_full(AT, LINE)
    assert found is not None
    there = outlook(AT, LINE, np.array([found.p50 - 1000]))
    assert there is not None
    assert there.p50 == pytest.approx([1000 * -PACE])
