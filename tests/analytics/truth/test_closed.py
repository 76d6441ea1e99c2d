"""The truth itself: closed formulas against a walk message by message."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.truth import answers, cases
from tests.truth.closed import Capacity, constant, drained
from tests.truth.paces import at
from tests.truth.steps import DAWN, MILLISECOND, SECOND, Ints, times

NEVER = np.iinfo(np.int64).max
arrivals = st.lists(st.integers(0, 60_000), min_size=1, max_size=60).map(sorted)
rates = st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.5, 20.0]), min_size=1, max_size=5)


def walked(visible: Ints, rates: list[float]) -> list[float]:
    """Seconds at which a server with another rate every ten seconds is done with each message."""
    now, done = 0.0, []
    for arrival in (visible - DAWN) / SECOND:
        now, left = max(now, float(arrival)), 1.0
        while left > 1e-12 and now < 1e6:
            index = min(int(now / 10.0 + 1e-9), len(rates) - 1)
            until = 10.0 * (index + 1) if index < len(rates) - 1 else float("inf")
            if rates[index] <= 0 and until == float("inf"):
                now = float("inf")
                break
            can = (until - now) * rates[index] if until < float("inf") else float("inf")
            if can >= left - 1e-12 and rates[index] > 0:
                now, left = now + left / rates[index], 0.0
            else:
                now, left = until, left - can
        done.append(now)
    return done


@settings(max_examples=200, deadline=None)
@given(arrivals, rates)
def test_a_consumer_is_done_when_one_that_takes_message_by_message_is(
    at_ms: list[int], per_second: list[float]
) -> None:
    visible = np.array(at_ms, np.int64) * MILLISECOND + DAWN
    capacity = Capacity([(10.0 * index, rate) for index, rate in enumerate(per_second)])
    found = drained(visible, capacity)
    for mine, expected in zip(found.tolist(), walked(visible, per_second), strict=True):
        if expected == float("inf"):
            assert mine == NEVER
        else:
            assert abs((mine - DAWN) / SECOND - expected) < 2e-3


def test_ages_and_lags_of_the_slow_consumer_are_those_of_the_formula() -> None:
    truth = cases.slow_consumer(10.0, 8.0)
    answer = answers.series(truth, truth.pairs[0].readings[0])
    t = (answer.ts - truth.start) / SECOND
    np.testing.assert_allclose(answer.lag, 2.0 * t, atol=2)
    np.testing.assert_allclose(answer.age_seconds, 0.2 * t, atol=0.25)
    assert answer.produced[1:].sum() == answer.lag[-1] - answer.lag[0] + answer.consumed[1:].sum()


def test_a_message_counts_from_the_instant_at_which_it_is_stored() -> None:
    truth = cases.workload("instants", 60.0, cases.many_queues((1.0,), (0.0,), 60.0))
    of = cases.only_queue(truth)
    when = times([0.0, 0.999, 1.0, 2.5])
    np.testing.assert_array_equal(of.max_offset(when), [1, 1, 2, 3])
    np.testing.assert_array_equal(of.store_time(when, np.zeros(4, np.int64)), [at(0.0)] * 4)
    assert len(constant(10.0, 3.0)) == 30
