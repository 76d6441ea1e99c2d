"""Where messages wait: replication, dispatch, delivery, processing."""

from __future__ import annotations

import numpy as np
import pytest

from tests.analytics.truth.judged import after, judge, judged_case, of_pair, truth_of
from tests.truth import answers, cases
from tests.truth.reading import stages
from tests.truth.steps import SECOND
from tests.truth.workload import RECORD_SIZE

TERMS = ("replication", "dispatch", "delivery", "processing")


def test_a_dispatch_that_stands_still_is_to_blame_though_the_group_has_no_lag() -> None:
    truth = cases.dispatch_stops()
    judged = judge(truth)
    rows = of_pair(judged.stages, truth)
    at = after(truth, rows["tick"])
    # Messages are 50 ms apart, and the first that waits was stored up to 50 ms after the stop.
    (last,) = np.flatnonzero((at > 640.0) & (at < 655.0))
    assert rows["dispatch_seconds"][last] == pytest.approx(40.0, abs=0.15)
    assert rows.words("blamed")[last] == "dispatch"
    pair = of_pair(judged.pair_lag, truth)
    standing = (at > 606.0) & (at < 646.0)
    assert set(pair["lag_sum"][standing]) == {0.0}
    log = stages(truth.brokers[0], truth.sample_times())
    hidden = (log.confirm - log.dispatched) / RECORD_SIZE
    np.testing.assert_allclose(pair["hidden_lag"][standing], hidden[standing], atol=1)
    assert hidden[standing].max() > 700
    assert set(pair["hidden_lag"][at > 700.0]) == {0.0}


@pytest.mark.parametrize(
    ("delays", "objective", "blamed"),
    [
        ((1.0, 2.0, 3.0, 4.0), 8.0, "processing"),
        ((1.0, 2.0, 3.0, 7.0), 8.0, "processing"),
        ((1.0, 2.0, 9.0, 4.0), 8.0, "delivery"),
        ((1.0, 8.0, 2.0, 3.0), 8.0, "dispatch"),
        ((9.0, 2.0, 3.0, 1.0), 8.0, "replication"),
    ],
)
def test_four_delays_come_out_as_they_are_and_add_up(
    delays: tuple[float, float, float, float], objective: float, blamed: str
) -> None:
    truth = cases.four_delays(delays, objective=objective)
    judged = judge(truth)
    rows = of_pair(judged.stages, truth)
    settled = after(truth, rows["tick"]) > sum(delays) + 60.0
    for term, delay in zip(TERMS, delays, strict=True):
        np.testing.assert_allclose(rows[f"{term}_seconds"][settled], delay, atol=0.03)
    total = sum(rows[f"{term}_seconds"] for term in TERMS) + rows["idle_seconds"]
    age = of_pair(judged.pair_lag, truth)["age_max_seconds"]
    np.testing.assert_allclose(total[settled], age[settled], atol=0.01)
    np.testing.assert_allclose(rows["residual_seconds"][settled], 0.0, atol=0.01)
    assert set(rows.words("blamed")[settled]) == {blamed}


@pytest.mark.parametrize("name", cases.EVERY)
def test_stages_are_those_of_the_store_times_and_never_negative(name: str) -> None:
    truth = truth_of(name)
    judged = judged_case(name)
    for pair in truth.pairs:
        rows = of_pair(judged.stages, truth, pair)
        answer = answers.split(truth, pair)
        at = np.isin(answer.tick, rows["tick"])
        for term in TERMS:
            mine = rows[f"{term}_seconds"]
            known = ~np.isnan(mine)
            expected = np.maximum(getattr(answer, term)[at], 0.0)
            np.testing.assert_allclose(mine[known], expected[known], atol=2e-3, err_msg=term)
            assert (mine[known] >= 0).all()
    assert truth.period == 15 * SECOND
