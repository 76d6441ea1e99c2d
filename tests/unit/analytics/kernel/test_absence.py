"""A restart explains an age only while the pace since then may be that of a group in time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from analytics.kernel.absence import keeps_pace
from analytics.kernel.columns import Bools, Floats, Ints
from analytics.kernel.debounce import debounce
from analytics.kernel.grid import Ticks
from analytics.kernel.rules import Rules
from analytics.kernel.status import CODE
from analytics.statuses import Status
from tests.unit.analytics.kernel.positions_by_hand import column, facts, judged, row, window

AWAY = 6
"""Samples without a member, in the tests that simulate."""


class Made(NamedTuple):
    """What keeps_pace takes."""

    absent: Bools
    at: Ints
    age: Floats
    lag: Floats
    alone: Floats
    due: Floats

    def part(self, rows: slice) -> Made:
        absent, at, age, lag, alone, due = self
        return Made(absent[rows], at[rows], age[rows], lag[rows], alone[rows], due[rows])

    def kept(self, carried: dict[str, Floats] | None = None) -> Bools:
        if carried is None:
            carried = nothing(self.age.shape[1])
        return keeps_pace(*self, carried=carried, rules=Rules())


def nothing(series: int) -> dict[str, Floats]:
    names = ("excused_tick", "excused_age", "excused_last")
    return {name: np.full(series, np.nan) for name in names}


def after_an_absence(
    random: np.random.Generator, pace: float, rate: float, samples: int, series: int
) -> Made:
    """Ages and lags of groups that were away and then read `pace` seconds a second on average.

    Messages come at random at this rate, so the stored time between those that are read is random.
    """
    period = Rules().period_s
    at = np.arange(samples, dtype=np.float64) * period
    ages, lags = np.empty((samples, series)), np.empty((samples, series))
    for number in range(series):
        stored = np.cumsum(random.exponential(1 / rate, int(rate * (at[-1] + 100) * 3) + 50)) - 60
        back = (AWAY - 1) * period + random.uniform(0, period)
        read = np.floor(np.maximum(at - back, 0) * pace * rate).astype(np.int64)
        head = int(np.searchsorted(stored, 0.0)) + read
        came = np.searchsorted(stored, at, "right")
        ages[:, number] = np.maximum(at - stored[head], 0)
        lags[:, number] = np.maximum(came - head, 0)
    absent = np.broadcast_to(np.arange(samples)[:, None] < AWAY, ages.shape)
    alone = np.where(absent, at[:, None], np.nan)
    ticks = (at[:, None] * 1e6).astype(np.int64)
    return Made(absent, ticks, ages, lags, alone, np.zeros(ages.shape))


@pytest.mark.parametrize("rate", [0.5, 3.0, 30.0])
def test_a_group_that_keeps_pace_is_not_called_slower_by_chance(rate: float) -> None:
    # At half a message a second one restart of ten was: its age fell by chance more slowly than
    # the slope over five minutes wants, which still holds the absence.
    made = after_an_absence(np.random.default_rng(1), 1.5, rate, AWAY + 10, 400)
    kept = made.kept()[AWAY:]
    late = made.age[AWAY:] > Rules().objective_s
    assert late.any()
    assert (late & ~kept).sum() <= 0.00135 * late.sum()


@pytest.mark.parametrize(
    ("pace", "rate", "seconds"),
    [(0.0, 30.0, 45.0), (0.0, 0.5, 60.0), (0.5, 30.0, 120.0), (0.8, 30.0, 240.0)],
)
def test_a_group_that_does_not_is_recognised_by_what_it_has_read(
    pace: float, rate: float, seconds: float
) -> None:
    made = after_an_absence(np.random.default_rng(2), pace, rate, AWAY + 18, 50)
    kept = made.kept()
    assert not kept[AWAY + round(seconds / 15.0) :].any()


def test_an_absence_gives_time_for_a_window_of_progress_at_most() -> None:
    made = after_an_absence(np.random.default_rng(3), 1.2, 30.0, AWAY + 30, 5)
    kept = made.kept()
    assert kept[AWAY : AWAY + 20].all()
    assert not kept[AWAY + 20 :].any()


def test_the_pace_is_the_same_however_time_is_cut() -> None:
    made = after_an_absence(np.random.default_rng(4), 0.9, 2.0, 40, 20)
    whole = made.kept()
    for cut in (1, AWAY - 1, AWAY, AWAY + 5):
        carried = nothing(20)
        parts = [made.part(rows).kept(carried) for rows in (slice(0, cut), slice(cut, None))]
        assert (np.concatenate(parts) == whole).all()


def test_a_restart_that_is_made_good_slowly_is_no_alarm() -> None:
    # Half a message a second, 1.5 times as able: after 71 s away the age fell by 2 s in 75 s, by
    # chance. It was FALLING_BEHIND, for the absence was still a part of the slope.
    away = [17.0, 32.0, 47.0, 62.0]
    back = [77.0, 76.3, 79.3, 72.4, 65.1, 74.6, 42.7, 45.2]
    ages = [7.1, 4.6, 6.9, 2.0, 8.0] * 6 + away + back
    lags = [4] * 30 + [13, 24, 33, 39] + [53, 49, 43, 35, 36, 36, 30, 25]
    read = [*range(0, 240, 8)] + [232] * 5 + [240, 250, 264, 270, 276, 290, 300]
    rows = [
        row(n, commit + lag, commit, age=age)
        for n, (age, lag, commit) in enumerate(zip(ages, lags, read, strict=True))
    ]
    pairs = [facts(n, members=int(not 30 <= n < 34)) for n in range(len(rows))]
    statuses = set(column(judged(window(rows, pairs), len(rows)).lag, "status"))
    assert statuses <= {"OK", "CATCHING_UP"}
    # One that reads nothing when it is back is late a minute after its objective is broken.
    stuck = [
        row(n, 8 * n + 100, 8 * min(n, 29) + 96, age=5.0 + 15 * max(0, n - 29)) for n in range(42)
    ]
    status = column(judged(window(stuck, pairs), 42).lag, "status")
    assert status.index("STALLED") <= 37


def test_of_absences_that_follow_one_another_the_first_counts() -> None:
    # Away for two samples, back for three, and it reads half of what comes: each absence begins
    # with an age within the objective at first, and would give time anew.
    members = [0 if n % 5 < 2 else 1 for n in range(40)]
    ages = 5.0 + 7.5 * np.arange(40.0)
    absent = np.array([[not here and age <= 75.0] for here, age in zip(members, ages, strict=True)])
    alone = np.array([[15.0 * (n % 5) if not here else np.nan] for n, here in enumerate(members)])
    ticks = np.arange(40)[:, None] * 15_000_000
    made = Made(absent, ticks, ages[:, None], np.full((40, 1), 1e4), alone, np.zeros((40, 1)))
    kept = made.kept()[:, 0]
    assert kept[2]
    assert not kept[7:].any()


def test_a_gap_between_commits_with_an_absence_in_it_is_not_usual() -> None:
    # Three samples away, five at work with a commit at each: it is not known to commit seldom, so
    # it is STALLED a minute after its last commit. It was given four times its absences.
    rows, pairs, committed = [], [], 0
    for n in range(60):
        here = n % 8 >= 3 and n < 48
        committed = 150 * n if here else committed
        rows.append(row(n, 150 * n + 10, committed, age=2.0 + 15 * ((150 * n - committed) // 150)))
        pairs.append(facts(n, members=int(n % 8 >= 3 or n >= 48)))
    found = judged(window(rows, pairs), 60).lag.to_pylist()
    assert [each["status"] for each in found][-1] == "STALLED"
    assert '"stall_after_seconds":60' in found[-1]["evidence"]


def test_samples_at_which_a_group_is_late_count_together_whichever_rule_holds() -> None:
    # At 97 % of its input a group is FALLING_BEHIND and LAGGING in turn: each began the time of
    # the other anew, and the group was no alarm for minutes.
    ok, falls, lags = (CODE[each] for each in (Status.OK, Status.FALLING_BEHIND, Status.LAGGING))
    candidate = np.array([[ok]] + [[falls], [lags]] * 6, np.int8)
    at = np.arange(len(candidate)) * 15_000_000
    names = ("status", "candidate", "since", "held", "judged")
    carried = {name: np.full(1, np.nan) for name in names} | {"held": np.zeros(1)}
    here = np.ones(candidate.shape, np.bool_)
    ticks = Ticks(at, 0)
    none = np.zeros(candidate.shape)
    status = debounce(candidate, none, here, none > 0, ticks, 0, carried, Rules()).status[:, 0]
    assert (status[:5] == ok).all()
    assert status[5] == falls
