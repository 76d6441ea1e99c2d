from __future__ import annotations

import numpy as np
import pytest

from analytics.kernel import columns
from analytics.kernel.anomaly import (
    REPORT,
    ROWS_MAX,
    Raised,
    Scores,
    Usual,
    anomalies,
    raised,
    ranked,
    scores,
    usual_week,
)
from analytics.kernel.columns import Floats, Ints
from analytics.moments import to_us
from analytics.schema import ANOMALIES
from tests.unit.analytics.kernel.made_rows import at

QUARTER, MINUTE = 900, 60
START = to_us(at(0)) // (3600 * 10**6) * 3600 * 10**6
ALONE: Ints = np.array([-1])
DAY = 96
WEEK = 7 * DAY


def season(steps: int) -> Floats:
    """A daily swing with quiet week-ends and 2 % growth a week, by the quarter of an hour."""
    step = np.arange(steps, dtype=np.float64)
    week_end = step % WEEK >= 5 * DAY
    level = (300 + 200 * np.sin(2 * np.pi * step / DAY)) * np.where(week_end, 0.4, 1.0)
    grown: Floats = level * (1 + 0.02 * step / WEEK)
    return grown


def found_in(series: Floats, recent: int, parents: Ints = ALONE) -> tuple[Scores, Raised]:
    """Scores of the last `recent` quarters of rows, by the weeks before them."""
    history, values = series[:, :-recent], series[:, -recent:]
    usual = usual_week(history, start=START, step_s=QUARTER)
    begin = START + history.shape[1] * QUARTER * 10**6
    scored = scores(values, start=begin, step_s=QUARTER, usual=usual)
    return scored, raised(scored, parents, first=0)


@pytest.mark.parametrize("factor", [3.0, 0.1])
def test_a_step_is_found_where_it_is_and_nowhere_else(factor: float) -> None:
    series = season(5 * WEEK)[None, :]
    series[0, -WEEK + 200 : -WEEK + 220] *= factor
    scored, what = found_in(series, WEEK)
    assert what.step.tolist() == [202]
    assert np.sign(scored.score[0, 202]) == np.sign(factor - 1)
    far = np.flatnonzero(np.abs(scored.score[0]) >= REPORT)
    assert far.tolist() == list(range(200, 220))


def test_a_season_with_a_trend_is_no_anomaly() -> None:
    _, what = found_in(season(5 * WEEK)[None, :], WEEK)
    assert what.subject.size == 0


def test_two_steps_are_too_few() -> None:
    series = season(5 * WEEK)[None, :]
    series[0, -50:-48] *= 5
    assert found_in(series, WEEK)[1].subject.size == 0


def test_a_child_that_its_parent_explains_is_suppressed() -> None:
    """Topic 1 and both its groups triple; of topic 2 only one group does, to a part of it."""
    base = season(5 * WEEK)
    series = np.vstack([base * share for share in (2, 1, 0.5, 0.5, 1, 0.9, 0.1)])
    parents: Ints = np.array([-1, 0, 1, 1, 0, 4, 4])
    series[1:4, -60:-40] *= 3
    series[6, -60:-40] *= 3
    series[0], series[4] = series[1] + series[4], series[5] + series[6]
    _, what = found_in(series, WEEK, parents)
    found = dict(zip(what.subject.tolist(), what.parent.tolist(), strict=True))
    assert found == {0: -1, 1: -1, 2: 1, 3: 1, 6: -1}


def test_an_ancestor_may_explain_when_the_parent_is_silent() -> None:
    base = season(5 * WEEK)
    series = np.vstack([base, base, base])
    series[[0, 2], -60:-40] *= 3
    _, what = found_in(series, WEEK, np.array([-1, 0, 1]))
    assert dict(zip(what.subject.tolist(), what.parent.tolist(), strict=True)) == {0: -1, 2: 0}


def test_two_weeks_are_no_history_of_weeks() -> None:
    usual = usual_week(season(2 * WEEK)[None, :], start=START, step_s=QUARTER)
    assert np.isnan(usual.middle).all()


def test_hours_of_the_week_are_separated_wherever_the_history_begins() -> None:
    history = np.arange(4 * 168, dtype=np.float64)[None, :] % 168
    for hours in (0, 5, 167):
        begin = START + hours * 3600 * 10**6
        usual = usual_week(np.roll(history, -hours), start=begin, step_s=3600)
        first = (START // (3600 * 10**6)) % 168
        assert np.expm1(np.roll(usual.middle[0], -first)) == pytest.approx(history[0, :168])


def test_without_weeks_the_hours_before_give_the_expected_value() -> None:
    seed = 21
    print("seed", seed)
    values = np.random.default_rng(seed).poisson(600, (1, 600)).astype(np.float64)
    values[0, 500:] *= 2
    scored = scores(values, start=START, step_s=MINUTE)
    assert np.isnan(scored.score[0, :60]).all()
    assert np.abs(scored.score[0, 60:500]).max() < REPORT
    assert raised(scored, ALONE, first=0).step.tolist() == [502]


def test_a_spike_does_not_become_what_is_expected() -> None:
    values = np.full((1, 300), 100.0)
    values[0, 200] = 1e7
    scored = scores(values, start=START, step_s=MINUTE)
    assert np.expm1(scored.expected[0, 201:]) == pytest.approx(100, rel=0.05)


def test_a_few_messages_more_or_less_on_a_quiet_topic_are_nothing() -> None:
    values = np.zeros((1, 300))
    values[0, 200:] = [3, 0] * 50
    scored = scores(values, start=START, step_s=MINUTE)
    assert raised(scored, ALONE, first=0).subject.size == 0


def test_what_is_not_known_is_neither_usual_nor_unusual() -> None:
    values = np.full((1, 300), 100.0)
    values[0, 150:] = np.nan
    scored = scores(values, start=START, step_s=MINUTE)
    assert np.isnan(scored.score[0, 150:]).all()
    assert raised(scored, ALONE, first=0).subject.size == 0


def test_time_may_be_cut_anywhere() -> None:
    """What was raised in the range before is not raised again: steps before `first` are seen."""
    values = np.full((1, 300), 100.0)
    values[0, 200:220] = 900
    scored = scores(values, start=START, step_s=MINUTE)
    for cut in range(195, 210):
        early = raised(Scores(*(each[:, :cut] for each in scored)), ALONE, first=0)
        late = raised(scored, ALONE, first=cut)
        assert early.step.tolist() + late.step.tolist() == [202]


def test_a_scale_is_never_below_a_twentieth_of_the_level_or_one_unit() -> None:
    usual = Usual(np.log1p(np.full((1, 168), 1000.0)), np.zeros((1, 168)))
    values = np.array([[1000 * 1.05 + 0.05] * 2])
    scored = scores(values, start=START, step_s=3600, usual=usual)
    assert scored.score == pytest.approx(np.ones((1, 2)))
    few = Usual(np.zeros((1, 168)), np.zeros((1, 168)))
    one_unit = scores(np.array([[0.2]]), start=START, step_s=3600, unit=0.2, usual=few)
    assert one_unit.score == pytest.approx(np.ones((1, 1)))


def test_rows_have_the_expected_value_in_the_signals_unit() -> None:
    values = np.full((2, 120), 100.0)
    values[:, 100:] = 900
    scored = scores(values, start=START, step_s=MINUTE)
    what = raised(scored, np.array([-1, 0]), first=0)
    rows = anomalies(scored, what, ["topic", "pair"], "produce_rate", start=START, step_s=MINUTE)
    assert rows.schema == ANOMALIES
    first, second = rows.to_pylist()
    assert first["value"] == pytest.approx(900)
    assert first["expected"] == pytest.approx(100, rel=0.3)
    assert (first["subject"], first["parent"], first["suppressed"]) == ("topic", None, False)
    assert (second["subject"], second["parent"], second["suppressed"]) == ("pair", "topic", True)
    assert columns.micros(rows, "ts").tolist() == [START + 102 * 60 * 10**6] * 2


def test_only_so_many_are_kept_by_score_times_rate() -> None:
    size = ROWS_MAX + 50
    values = np.full((size, 120), 100.0)
    values[:, 100:] = 900
    scored = scores(values, start=START, step_s=MINUTE)
    parents = np.full(size, -1)
    parents[: size // 2] = size - 1
    names = [f"pair {number:04}" for number in range(size)]
    what = raised(scored, parents, first=0)
    rows = anomalies(scored, what, names, "age", start=START, step_s=MINUTE)
    kept = ranked(rows, np.arange(size, dtype=np.float64))
    assert kept.num_rows == ROWS_MAX
    names_kept = kept.column("subject").to_pylist()
    assert names_kept[:2] == [names[-1], names[-2]]
    assert kept.column("suppressed").to_pylist() == [False] * (size // 2) + [True] * (
        ROWS_MAX - size // 2
    )
    assert names[0] not in names_kept
