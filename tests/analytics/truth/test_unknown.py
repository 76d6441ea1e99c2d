"""What cannot be known, and what must not alarm."""

from __future__ import annotations

import numpy as np

from tests.analytics.truth.judged import ALARMS, judge, of_pair, of_series
from tests.truth import cases


def test_groups_without_a_commit_or_a_reader_have_a_reason_and_no_alarm() -> None:
    truth = cases.unknowns()
    judged = judge(truth)
    pairs = {pair.group: pair for pair in truth.pairs}
    never = of_series(judged.lag, truth, pairs["never"])
    assert np.isnan(never["lag"]).all()
    assert np.isnan(never["age_seconds"]).all()
    assert set(never.words("reason")) == {"never_committed"}
    assert set(never.words("status")) == {"UNKNOWN"}
    broadcast = of_series(judged.lag, truth, pairs["broadcast"])
    assert np.isnan(broadcast["lag"]).all()
    assert set(broadcast.words("reason")) == {"broadcasting"}
    for group, status in (("abandoned", "ABANDONED"), ("paused", "PAUSED")):
        rows = of_series(judged.lag, truth, pairs[group])
        assert set(rows.words("status")) == {status}
        # The numbers are there: a status without an alarm does not make them unknown.
        assert rows["lag"][-1] > 17_000
        assert set(of_pair(judged.pair_lag, truth, pairs[group]).words("status")) == {status}
    levels = set(judged.status_changes.column("level").to_pylist())
    assert not levels & {"ticket", "page"}
    assert not set(judged.pair_lag.column("status").to_pylist()) & ALARMS


def test_unknown_queues_are_counted_and_in_no_sum() -> None:
    truth = cases.unknowns()
    rows = of_pair(judge(truth).pair_lag, truth, truth.pairs[0])
    assert set(rows["unknown"]) == {1.0}
    assert np.isnan(rows["lag_sum"]).all()
    assert np.isnan(rows["age_max_seconds"]).all()
