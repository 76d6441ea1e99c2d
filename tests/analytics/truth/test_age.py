"""Lag, age and progress of workloads whose answers are closed formulas."""

from __future__ import annotations

import numpy as np
import pytest

from tests.analytics.truth.judged import (
    after,
    first,
    int_or_nan,
    judge,
    judged_case,
    of_pair,
    of_series,
    statuses,
    truth_of,
)
from tests.truth import answers, cases
from tests.truth.steps import DAWN, SECOND
from tests.truth.workload import Truth

STEP = 0.11
"""Between two messages at ten a second, and a millisecond of rounding."""


@pytest.mark.parametrize("name", cases.EVERY)
def test_lag_age_and_counts_are_exact_wherever_the_store_time_is_known(name: str) -> None:
    truth = truth_of(name)
    judged = judged_case(name)
    for pair in truth.pairs:
        for reading in pair.readings:
            answer = answers.series(truth, reading)
            rows = of_series(judged.lag, truth, pair, reading.queue.queue)
            sampled = np.isin(rows["tick"], answer.tick) & ~np.isnan(rows["ts"])
            at = np.isin(answer.tick, rows["tick"][sampled])
            for column in ("lag", "lost", "ahead"):
                expected = int_or_nan(getattr(answer, column))[at]
                np.testing.assert_array_equal(rows[column][sampled], expected, err_msg=column)
            exact = sampled & (rows.words("age_method") == "exact")
            expected_age = answer.age_seconds[at][exact[sampled]]
            np.testing.assert_allclose(rows["age_seconds"][exact], expected_age, atol=2e-3)


def test_a_slow_consumer_falls_back_by_the_difference_of_the_rates() -> None:
    produced, consumed = 10.0, 8.0
    truth = cases.slow_consumer(produced, consumed)
    judged = judge(truth)
    rows = of_series(judged.lag, truth)
    t = after(truth, rows["tick"])
    np.testing.assert_allclose(rows["lag"], (produced - consumed) * t, atol=2)
    expected = (1 - consumed / produced) * t
    np.testing.assert_allclose(rows["age_seconds"], expected, atol=STEP + 1 / consumed)
    settled = t > 300.0
    np.testing.assert_allclose(rows["progress"][settled], consumed / produced, atol=0.005)
    pair = of_pair(judged.pair_lag, truth)
    falling = pair.words("status") == "FALLING_BEHIND"
    late = after(truth, pair["tick"]) > 600.0
    assert falling[late].all()
    assert np.isposinf(pair["drain_p50_seconds"][late]).all()
    rates = of_series(judged.rates, truth)
    np.testing.assert_allclose(rates.rate("produced")[1:], produced, atol=0.1)
    np.testing.assert_allclose(rates.rate("consumed")[1:], consumed, atol=0.1)
    # The objective of 60 s is broken after 300 s; the status follows after four ticks more.
    found = after(truth, np.array([first(pair, "FALLING_BEHIND")]))
    assert 300.0 <= found[0] <= 375.0


def test_a_backlog_drains_in_its_size_by_the_surplus_and_then_all_is_well() -> None:
    produced, consumed, backlog = 10.0, 30.0, 18_000
    truth = cases.draining(produced, consumed, backlog)
    drained_after = backlog / (consumed - produced)
    judged = judge(truth)
    rows = of_series(judged.lag, truth)
    t = after(truth, rows["tick"])
    draining = (t > 300.0) & (t < drained_after - 30.0)
    np.testing.assert_allclose(rows["progress"][draining], consumed / produced, rtol=0.01)
    pair = of_pair(judged.pair_lag, truth)
    at = after(truth, pair["tick"])
    settled = (at > 360.0) & (at < drained_after - 30.0)
    left = drained_after - at[settled]
    np.testing.assert_allclose(pair["drain_p50_seconds"][settled], left, rtol=0.02, atol=2.0)
    assert (pair.words("status")[settled] == "CATCHING_UP").all()
    assert (pair["lag_sum"][at > drained_after + 15.0] <= 2).all()
    # Age falls by 2 s a second from 1800 s: below the objective at 870 s; cleared 4 ticks later.
    cleared = after(truth, np.array([first(pair, "OK")]))
    assert 870.0 <= cleared[0] <= 870.0 + 75.0
    assert not set(statuses(pair)) & {"FALLING_BEHIND", "LAGGING", "STALLED", "STOPPED"}


@pytest.mark.parametrize("delay", [20.0, 50.0, 90.0])
def test_a_constant_delay_is_a_constant_age_however_the_lag_swings(delay: float) -> None:
    truth = cases.swinging(delay)
    judged = judge(truth)
    rows = of_series(judged.lag, truth)
    t = after(truth, rows["tick"])
    settled = t > delay + 15.0
    np.testing.assert_allclose(rows["age_seconds"][settled], delay, atol=0.15)
    assert np.ptp(rows["lag"][settled]) > 10 * delay
    progress = rows["progress"][t > delay + 330.0]
    np.testing.assert_allclose(progress, 1.0, atol=0.005)
    pair = of_pair(judged.pair_lag, truth)
    late = after(truth, pair["tick"]) > delay + 600.0
    expected = "OK" if delay <= 60.0 else "LAGGING"
    assert set(pair.words("status")[late]) == {expected}


def test_a_stuck_group_on_a_topic_that_fell_silent_ages_by_a_second_a_second() -> None:
    truth = cases.stuck_after_stop()
    with np.errstate(all="raise"):
        judged = judge(truth)
    rows = of_series(judged.lag, truth)
    t = after(truth, rows["tick"])
    still = t > 601.0
    assert set(rows["lag"][still]) == {3000.0}
    np.testing.assert_allclose(np.diff(rows["age_seconds"][still]), 15.0, atol=1e-6)
    np.testing.assert_allclose(rows["age_seconds"][still], 300.0 + t[still] - 600.0, atol=0.3)
    np.testing.assert_allclose(rows["progress"][t > 915.0], 0.0, atol=1e-9)
    pair = of_pair(judged.pair_lag, truth)
    assert pair.words("status")[-1] == "STALLED"
    assert np.isposinf(pair["drain_p50_seconds"][-1])


def test_an_old_bulk_load_is_as_old_as_it_is() -> None:
    days = 20.0
    truth = cases.old_bulk_load(days)
    rows = of_series(judge(truth).lag, truth)
    t = after(truth, rows["tick"])
    # Twenty a second of a load of 10,000 a second: the head moves by 2 ms a second.
    expected = days * 86_400.0 + t - 20.0 * t / 10_000.0
    np.testing.assert_allclose(rows["age_seconds"], expected, atol=0.01)


def test_a_message_every_five_minutes_read_within_two_seconds_is_never_but_ok() -> None:
    truth = cases.trickle()
    judged = judge(truth)
    assert set(of_series(judged.lag, truth).words("status")) == {"OK"}
    assert set(of_pair(judged.pair_lag, truth).words("status")) == {"OK"}
    assert judged.offset_events.num_rows == 0


def _bounded(truth: Truth) -> None:
    rows = of_series(judge(truth).lag, truth)
    answer = answers.series(truth, truth.pairs[0].readings[0])
    true_age = answer.age_seconds
    method = rows.words("age_method")
    known = ~np.isnan(rows["age_seconds"])
    low, high = rows.bound("low"), rows.bound("high")
    assert (low[known] <= true_age[known] + 1e-3).all()
    bounded_above = known & ~np.isnan(high)
    assert (true_age[bounded_above] <= high[bounded_above] + 1e-3).all()
    inside = method == "interpolated"
    assert inside.sum() > 10
    width = high[inside] - low[inside]
    assert (width <= truth.period / SECOND + 1e-3).all()
    assert (np.abs(rows["age_seconds"] - true_age)[inside] <= 1.0).all()
    beyond = method == "bounded"
    np.testing.assert_array_equal(rows["age_seconds"][beyond], low[beyond])


def test_interpolated_ages_are_marked_and_the_true_age_lies_within_their_bounds() -> None:
    truth = cases.heads_half_known()
    _bounded(truth)
    rows = of_series(judge(truth).lag, truth)
    sampled = rows.words("age_method") == "exact"
    assert (sampled.sum(), (~sampled).sum()) == (59, 60)


def test_an_age_that_is_never_exported_is_still_bounded() -> None:
    _bounded(cases.heads_unknown())


def test_an_age_beyond_the_history_is_a_lower_bound_and_marked() -> None:
    truth = cases.heads_unknown(4 * 3600.0)
    rows = of_series(judge(truth).lag, truth)
    answer = answers.series(truth, truth.pairs[0].readings[0])
    late = after(truth, rows["tick"]) > 3 * 3600.0
    assert set(rows.words("age_method")[late]) == {"bounded"}
    assert (rows.bound("low")[late] <= answer.age_seconds[late]).all()
    assert (rows["age_seconds"][late] == rows.bound("low")[late]).all()
    assert truth.start == DAWN
