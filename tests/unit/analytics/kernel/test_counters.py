"""Counters to deltas: restarts lose what cannot be known and nothing else."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from analytics.kernel.counters import Deltas, deltas

SECOND = 1_000_000
NAN = math.nan


def of_one(ts: list[float], value: list[float], started: list[float]) -> Deltas:
    return deltas(
        np.zeros(len(ts), np.int64),
        (np.array(ts) * SECOND).astype(np.int64),
        np.array(value, np.float64),
        np.array(started, np.float64) * SECOND,
    )


def test_between_two_samples_of_one_process() -> None:
    found = of_one([10, 30], [5, 45], [0, 0])
    assert math.isnan(found.counted[0])
    assert (found.counted[1], found.seconds[1], found.per_second[1]) == (40, 20, 2)
    assert not found.restarted.any()


def test_a_restart_counts_from_its_start() -> None:
    found = of_one([10, 30], [500, 10], [0, 25])
    assert (found.counted[1], found.seconds[1], found.per_second[1]) == (10, 5, 2)
    assert found.restarted[1]


def test_a_start_before_the_last_sample_of_its_counter_gives_the_time_since_that_sample() -> None:
    found = of_one([10, 30], [50, 3], [0, 8])
    assert (found.counted[1], found.seconds[1]) == (3, 20)


def test_a_restart_that_counted_more_than_before_is_still_one() -> None:
    found = of_one([10, 30], [5, 500], [0, 20])
    assert (found.counted[1], found.seconds[1]) == (500, 10)


def test_fewer_by_the_same_process_is_a_defect_and_not_a_rate() -> None:
    found = of_one([10, 30, 40], [50, 20, 30], [0, 0, 0])
    assert found.defect.tolist() == [False, True, False]
    assert np.isnan(found.counted[:2]).all()
    assert math.isnan(found.per_second[1])
    assert found.counted[2] == 10


def test_without_a_start_a_decrease_is_a_restart() -> None:
    found = of_one([10, 30], [50, 20], [NAN, NAN])
    assert (found.counted[1], found.seconds[1], bool(found.restarted[1])) == (20, 20, True)


def test_two_samples_at_one_instant_have_no_rate() -> None:
    assert math.isnan(of_one([10, 10], [1, 2], [0, 0]).per_second[1])


def test_counters_do_not_run_into_each_other() -> None:
    found = deltas(
        np.array([1, 1, 2, 2]),
        np.array([0, 10, 0, 10]) * SECOND,
        np.array([100.0, 110.0, 5.0, 7.0]),
        np.zeros(4),
    )
    assert np.isnan(found.counted[[0, 2]]).all()
    assert found.counted[[1, 3]].tolist() == [10, 2]


@given(st.lists(st.integers(0, 50), min_size=2, max_size=40), st.data())
def test_missing_samples_change_no_sum(steps: list[int], data: st.DataObject) -> None:
    total = np.cumsum(steps).astype(np.float64)
    kept = data.draw(st.sets(st.integers(1, len(steps) - 1)))
    value = np.where([n in kept or n in (0, len(steps) - 1) for n in range(len(steps))], total, NAN)
    found = of_one(list(range(len(steps))), value.tolist(), [0] * len(steps))
    assert np.nansum(found.counted) == total[-1] - total[0]


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=8), min_size=1, max_size=5),
    st.data(),
)
def test_restarts_lose_what_came_after_the_last_sample_and_nothing_else(
    runs: list[list[int]], data: st.DataObject
) -> None:
    """Of each process at least one sample is there, and any of the others may be missing."""
    ts: list[float] = []
    value: list[float] = []
    started: list[float] = []
    expected = 0.0
    for number, run in enumerate(runs):
        start, total = 100.0 * number, np.cumsum(run).astype(float)
        kept = sorted(data.draw(st.sets(st.integers(0, len(run) - 1), min_size=1)))
        ts += [start + 1 + index for index in range(len(run))]
        value += [total[index] if index in kept else NAN for index in range(len(run))]
        started += [start] * len(run)
        expected += total[kept[-1]] - (0 if number else total[kept[0]])
    found = of_one(ts, value, started)
    assert np.nansum(found.counted) == expected
    assert found.restarted.sum() == len(runs) - 1
    assert not found.defect.any()
    assert (found.seconds[found.restarted] <= 100).all()
