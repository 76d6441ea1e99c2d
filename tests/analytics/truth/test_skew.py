"""One queue or one member that is unlike the others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from analytics.kernel.rules import Rules
from tests.analytics.truth.judged import after, first, judge, judge_window, of_pair, window_of
from tests.truth import answers, cases
from tests.truth.steps import SECOND, Floats
from tests.truth.tables import collected
from tests.truth.workload import Truth


def gini(values: Floats) -> float:
    """By its definition: half of the mean difference of any two, against the mean."""
    count = len(values)
    differences = np.abs(values[:, None] - values[None, :]).sum()
    return float(differences / (2 * count * count * values.mean()))


def lags(truth: Truth) -> Floats:
    """[tick, queue]."""
    each = [answers.series(truth, reading).lag for reading in truth.pairs[0].readings]
    return np.stack(each, axis=1).astype(np.float64)


def shown_as_it_is(truth: Truth, since: float) -> None:
    rows = of_pair(judge(truth).pair_lag, truth)
    late = np.flatnonzero(after(truth, rows["tick"]) > since)
    every = lags(truth)
    for index in late[::10]:
        of_tick = every[index]
        top = int(np.argmax(of_tick))
        others = np.delete(of_tick, top)
        if others.mean() > 0:
            assert rows["skew"][index] == pytest.approx(of_tick[top] / others.mean(), rel=6e-3)
        assert rows["gini"][index] == pytest.approx(gini(of_tick), abs=6e-4)


def test_one_poisoned_queue_of_sixteen_is_enough_and_is_named() -> None:
    truth = cases.poison_of_sixteen(since=600.0)
    judged = judge(truth)
    rows = of_pair(judged.pair_lag, truth)
    stalled = first(rows, "STALLED")
    assert after(truth, np.array([stalled]))[0] <= 600.0 + 105.0
    late = rows["tick"] >= stalled
    assert set(rows.words("status")[late]) == {"STALLED"}
    assert set(rows["stuck"][late]) == {1.0}
    assert set(rows["queues"]) == {16.0}
    assert set(rows.words("skew_kind")[late]) == {"poison_message"}
    assert all("1 of 16" in cause for cause in rows.words("cause")[late])
    shown_as_it_is(truth, 900.0)


def test_four_slow_queues_of_sixteen_have_the_skew_and_gini_of_the_closed_form() -> None:
    shown_as_it_is(cases.slow_member(), 300.0)


def test_a_member_that_is_slower_than_the_others_is_named() -> None:
    """Its queues get 2 a second and lose 1: half of the time since the start is their age."""
    truth = cases.slow_member()
    rows = of_pair(judge(truth).pair_lag, truth)
    objective = truth.pairs[0].objective_seconds
    late = after(truth, rows["tick"]) > 2 * objective + 1.0
    assert set(rows.words("skew_kind")[late]) == {"slow_member"}
    assert set(rows.words("skew_kind")[~late]) <= {"", "slow_member"}
    assert all("slow member" in cause for cause in rows.words("cause")[late] if cause)


def test_a_queue_without_a_member_is_named_at_the_first_sample_that_shows_it() -> None:
    truth = cases.unassigned_queue(since=600.0)
    rows = of_pair(judge(truth).pair_lag, truth)
    seconds = after(truth, rows["tick"])
    assert "unassigned_queue" not in rows.words("skew_kind")[seconds < 600.0]
    late = seconds > 601.0  # a message came to it
    assert set(rows.words("skew_kind")[late]) == {"unassigned_queue"}
    stalled = first(rows, "STALLED")
    assert after(truth, np.array([stalled]))[0] <= 600.0 + 105.0
    causes = rows.words("cause")[rows["tick"] >= stalled]
    assert all("1 of 16" in cause and "unassigned queue, queue 5" in cause for cause in causes)
    shown_as_it_is(truth, 900.0)


@pytest.mark.parametrize("make", [cases.slow_member, cases.unassigned_queue])
def test_without_members_by_queue_no_member_is_named(make: Callable[[], Truth]) -> None:
    """Tables written before brokers exported the owner of a queue have no such column."""
    truth = make()
    before = collected(truth)
    before = before._replace(positions=before.positions.drop_columns(["member"]))
    ends = [truth.end]
    rules = Rules(period_s=truth.period / SECOND)
    kinds = judge_window(window_of(before), rules, truth.start, ends).pair_lag["skew_kind"]
    assert set(kinds.to_pylist()) <= {None, "stuck_queue"}


def test_a_hot_queue_is_named_by_its_share_of_what_is_produced() -> None:
    truth = cases.hot_queue()
    rows = of_pair(judge(truth).pair_lag, truth)
    late = after(truth, rows["tick"]) > 400.0
    assert set(rows.words("skew_kind")[late]) == {"hot_queue"}
    shown_as_it_is(truth, 400.0)
