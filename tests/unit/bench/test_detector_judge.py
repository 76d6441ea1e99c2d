"""Groups written by hand, of which every delay, false minute and name is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench import analytics_detectors as bench
from bench.detector_judge import Alarms, Case, Seen, change, holding, judged, totals
from tests.truth.paces import slow_consumer
from tests.truth.steps import DAWN, steps

AT = np.arange(0.0, 600.0, 15.0)
"""Ten minutes, a sample every 15 s."""
FAULT = Case(AT, 15.0, (120.0, 480.0), 180.0, 540.0)
"""It begins at 120 s and breaks the objective at 180 s; from 540 s on all is well again."""


def alarms(*spans: tuple[float, float, str]) -> Alarms:
    """Alarms that stand from the first time to before the second."""
    kinds = np.full(len(AT), "OK", dtype="<U16")
    for since, until, kind in spans:
        kinds[np.searchsorted(AT, since) : np.searchsorted(AT, until)] = kind
    return Alarms(kinds != "OK", kinds)


def test_an_alarm_of_a_group_that_is_well_is_false_for_as_long_as_it_stands() -> None:
    seen = judged(Case(AT, 15.0), alarms((60.0, 120.0, "WARN"), (300.0, 330.0, "STOP")))
    assert seen[:3] == (10.0, 1.5, None)


def test_a_delay_counts_from_the_harm_to_the_alarm() -> None:
    seen = judged(FAULT, alarms((240.0, 520.0, "STOPPED")))
    assert (seen.delay_s, seen.kind, seen.false_minutes) == (60.0, "STOPPED", 0.0)
    assert seen.well_minutes == 3.0  # two before the fault, one after it


def test_an_alarm_before_the_harm_has_a_delay_below_zero() -> None:
    assert judged(FAULT, alarms((150.0, 480.0, "WARN"))).delay_s == -30.0


def test_the_first_alarm_names_the_fault() -> None:
    seen = judged(FAULT, alarms((180.0, 240.0, "WARN"), (240.0, 480.0, "STALL")))
    assert (seen.delay_s, seen.kind) == (0.0, "WARN")


def test_an_alarm_that_stood_before_the_fault_does_not_find_it() -> None:
    seen = judged(FAULT, alarms((60.0, 480.0, "WARN")))
    assert (seen.delay_s, seen.kind, seen.false_minutes) == (math.inf, "", 1.0)
    again = judged(FAULT, alarms((60.0, 300.0, "WARN"), (360.0, 390.0, "WARN")))
    assert again.delay_s == 180.0


def test_an_alarm_after_the_fault_does_not_find_it_and_is_false_once_all_is_well() -> None:
    seen = judged(FAULT, alarms((490.0, 570.0, "WARN")))
    assert (seen.delay_s, seen.false_minutes) == (math.inf, 0.5)


def test_a_fault_without_harm_is_neither_found_nor_missed() -> None:
    seen = judged(FAULT._replace(harm_s=None), alarms((240.0, 480.0, "STOPPED")))
    assert seen.delay_s is None
    assert seen.kind == ""
    assert seen.false_minutes == 0.0


def test_a_missed_fault_counts_as_infinitely_late() -> None:
    delays = [30.0, 10.0, math.inf, 20.0, None]
    found = totals([Seen(720.0, 1.0, delay) for delay in delays])
    assert (found.faults, found.found, found.median_s, found.p90_s) == (4, 0.75, 20.0, math.inf)
    assert found.false_per_day == pytest.approx(2.0)
    assert totals([Seen(0.0, 0.0, float(each)) for each in range(10)]).p90_s == 8.0
    assert math.isnan(totals([]).found)
    assert math.isnan(totals([]).false_per_day)


def test_a_condition_holds_once_it_was_true_at_every_sample_of_its_time() -> None:
    at = np.array([0.0, 10.0, 20.0, 30.0, 40.0, 90.0])
    held = holding(np.array([True, True, False, True, True, True]), at, 10.0)
    assert held.tolist() == [False, True, False, False, True, True]


def test_a_change_is_against_the_last_sample_that_is_old_enough() -> None:
    changed = change(np.array([5.0, 7.0, 4.0, 9.0]), np.array([0.0, 10.0, 25.0, 30.0]), 20.0)
    assert np.isnan(changed[:2]).all()
    assert changed[2:].tolist() == [-1.0, 2.0]


def test_hidden_lag_is_our_alarm_only_of_a_group_that_is_in_time_and_held_back_above() -> None:
    status = np.array(["OK", "OK", "OK", "STALLED", "CATCHING_UP"])
    blamed = np.array(["dispatch", "processing", "replication", "processing", "dispatch"])
    found = bench.ours(status, blamed, np.array([True, True, False, False, True]))
    assert found.standing.tolist() == [True, False, False, True, False]
    assert found.kinds.tolist() == ["HIDDEN", "OK", "OK", "STALLED", "CATCHING_UP"]


def test_burrow_gets_ten_commits_of_before_at_the_usual_interval() -> None:
    commits = bench.with_history(steps([(DAWN - 9, 0), (DAWN + 30, 5), (DAWN + 50, 8)]))
    assert commits.at.tolist() == [DAWN + each for each in range(-170, 51, 20)]
    assert commits.offset.tolist() == [0] * 10 + [5, 8]
    assert bench.with_history(steps([(DAWN - 9, 0)])).at.tolist() == []


def test_thresholds_see_the_lag_of_all_queues_in_messages() -> None:
    """Twenty a second come and sixteen are read: the lag is 1,000 at 250 s, 1,200 at 300 s."""
    at = np.arange(0.0, 1800.0, 15.0)
    truth = slow_consumer(20.0, 16.0)
    found = bench.thresholds(truth, at[1:])
    raised = {name: float(at[1:][each.standing][0]) for name, each in found.items()}
    assert raised == {"lag > 1,000": 555.0, "lag > a minute's messages": 600.0, "lag grows": 1215.0}
