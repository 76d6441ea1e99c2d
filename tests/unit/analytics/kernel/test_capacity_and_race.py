from __future__ import annotations

import numpy as np
import pytest

from analytics.kernel.capacity import capacity, limited_by
from analytics.kernel.race import expected_ages, time_to_limit

NAN = float("nan")


def test_capacity_is_what_is_consumed_while_work_is_always_ready() -> None:
    """A hundred minutes at rates 1 to 100 with work, a thousand at 5000 that drained to nothing."""
    consumed = np.concatenate([np.arange(1.0, 101), np.full(1000, 5000.0)])[None, :]
    ready = np.concatenate([np.ones(100), np.zeros(1000)])[None, :]
    members = np.where(consumed >= 96, 8.0, 4.0)
    found = capacity(consumed, np.full(consumed.shape, 40.0), ready, members)
    assert found.c_max == pytest.approx([np.quantile(np.arange(1, 101), 0.95)])
    assert found.utilisation == pytest.approx([40 / found.c_max[0]])
    assert found.members.tolist() == [8]
    assert found.minutes.tolist() == [100]


def test_c_max_low_is_below_the_true_quantile_nine_times_in_ten() -> None:
    seed = 12
    print("seed", seed)
    consumed = np.random.default_rng(seed).random((2000, 500))
    found = capacity(consumed, consumed, np.ones_like(consumed), np.full_like(consumed, NAN))
    assert (found.c_max_low <= 0.95).mean() == pytest.approx(0.9, abs=0.03)
    assert np.isnan(found.members).all()


def test_too_few_busy_minutes_give_no_capacity() -> None:
    consumed = np.full((2, 40), 7.0)
    ready = np.ones((2, 40))
    ready[0, 29:] = 0
    ready[1, 30:] = NAN
    found = capacity(consumed, consumed, ready, consumed)
    assert np.isnan(found.c_max[0])
    assert np.isnan(found.utilisation[0])
    assert found.minutes.tolist() == [29, 30]
    assert found.c_max[1] == 7


def test_what_limits_is_members_until_each_queue_has_one() -> None:
    assert limited_by(4, 8) == "members"
    assert limited_by(8, 8) == "queues"
    assert limited_by(NAN, 8) is None


def test_a_group_that_keeps_up_has_no_age() -> None:
    ages = expected_ages(np.full(24, 10.0), np.full(6, 10.0), 0, 12.0, 0)
    assert ages.tolist() == [0] * 6


def test_a_group_too_slow_falls_behind_by_the_share_it_lacks() -> None:
    """Constant rates, caught up now: the age after t is (1 − C/P) t."""
    ages = expected_ages(np.full(24, 100.0), np.full(10, 100.0), 0, 80.0, 0)
    assert ages == pytest.approx([0.2 * 3600 * hour for hour in range(1, 11)])


def test_a_backlog_is_drained_at_what_capacity_is_over() -> None:
    """1 h of backlog, double pace: the age falls to nothing within an hour of drain time."""
    backlog = 100.0 * 3600
    ages = expected_ages(np.full(24, 100.0), np.full(4, 100.0), backlog, 150.0, 3600.0)
    assert ages == pytest.approx([1800, 0, 0, 0])


def test_a_group_that_stands_still_ages_with_the_clock() -> None:
    ages = expected_ages(np.full(24, 5.0), np.full(3, 0.0), 100, 0.0, 50.0)
    assert ages == pytest.approx([50 + 3600 * hour for hour in (1, 2, 3)])


def test_an_hour_that_is_not_forecast_ends_the_race_unknown() -> None:
    ages = expected_ages(np.full(2, 5.0), np.array([5.0, NAN, 5.0]), 10, 1.0, 2.0)
    assert np.isnan(ages).tolist() == [False, True, True]


def test_retention_wins_when_the_age_reaches_it() -> None:
    ages = np.array([1000.0, 2000.0, 3000.0])
    assert time_to_limit(ages, 0, 1500) == pytest.approx(3600 * 1.5)
    assert time_to_limit(ages, 0, 5000) == float("inf")
    assert time_to_limit(ages, 900, 800) == 0
    assert time_to_limit(np.array([NAN]), 0, 800) == float("inf")
