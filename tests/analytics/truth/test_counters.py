"""Counters of a process that is started anew, and samples that are missing around it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analytics.kernel.counters import deltas
from tests.truth import cases
from tests.truth.steps import Floats, Ints
from tests.truth.tables import collected
from tests.truth.workload import Truth

RESTARTS = (305.0, 900.4, 1207.0)


def counted(truth: Truth) -> tuple[Ints, Floats, Floats, Floats, Floats]:
    """(ts, value, started_at, counted, seconds) of the one counter."""
    table = collected(truth).counters
    ts = table.column("ts").to_numpy().astype("datetime64[us]").astype(np.int64)
    value = table.column("value").to_numpy()
    started = table.column("started_at").to_numpy().astype("datetime64[us]").astype(np.float64)
    found = deltas(np.zeros(len(ts), np.int64), ts, value, started)
    assert not found.defect.any()
    return ts, value, started, found.counted, found.seconds


def unknowable(truth: Truth, ts: Ints) -> int:
    """What was counted between the last sample before a restart and the restart."""
    (counter,) = truth.counters
    total = 0
    for seconds in RESTARTS:
        restart = np.array([cases.at(seconds)])
        if ts[0] < restart[0] <= ts[-1]:
            before = ts[ts < restart[0]][-1:]
            total += int(counter.counted(restart)[0] - counter.counted(before)[0])
    return total


def check(truth: Truth) -> None:
    ts, value, started, found, seconds = counted(truth)
    (counter,) = truth.counters
    true_count = int(counter.counted(ts[-1:])[0] - counter.counted(ts[:1])[0])
    between = np.diff(started) != 0
    restarted = np.flatnonzero(between) + 1
    # Several restarts between two samples: all but what the last process counted is unknown.
    lost = sum(
        int(counter.counted(started[[index]].astype(np.int64))[0])
        - int(counter.counted(ts[[index - 1]])[0])
        for index in restarted
    )
    assert np.nansum(found) == true_count - lost
    assert (found[1:] >= 0).all()
    np.testing.assert_allclose(found[restarted], value[restarted])
    expected = (ts[restarted] - started[restarted]) / 1e6
    np.testing.assert_allclose(seconds[restarted], expected)


def test_what_is_counted_is_the_true_count_less_what_no_sample_could_see() -> None:
    truth = cases.restarts(RESTARTS)
    check(truth)
    ts, _, _, found, _ = counted(truth)
    (counter,) = truth.counters
    true_count = int(counter.counted(ts[-1:])[0] - counter.counted(ts[:1])[0])
    lost = unknowable(truth, ts)
    assert np.nansum(found) == true_count - lost
    # At ten a second: 4.8, 0.2 and 6.8 s between the last sample and each restart.
    assert lost == pytest.approx(118, abs=3)


def test_rates_are_those_of_the_process_that_was_seen() -> None:
    _, _, _, found, seconds = counted(cases.restarts(RESTARTS))
    rate = found[1:] / seconds[1:]
    np.testing.assert_allclose(rate, 10.0, atol=1.0)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_missing_samples_lose_only_what_restarts_hide(data: st.DataObject) -> None:
    truth = cases.restarts(RESTARTS)
    ticks = truth.ticks().tolist()
    removed = data.draw(st.sets(st.sampled_from(ticks), max_size=len(ticks) - 2))
    check(truth.without(removed))
