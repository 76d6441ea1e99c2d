from __future__ import annotations

import numpy as np
import pytest

from analytics.kernel.columns import Floats
from analytics.kernel.forecast import DAY, LAST_DAY, MODELS, NAIVE, NONE, WEEK, WEEKLY, forecast

HOUR = np.arange(10 * WEEK)
SEASON = 200 + 120 * np.sin(2 * np.pi * HOUR / DAY) + 50 * (HOUR % WEEK < 2 * DAY)


def known(hours: Floats, weeks: float) -> tuple[Floats, Floats]:
    """Four days to come of a series, and the weeks before them as one row of history."""
    size = round(weeks * WEEK)
    return hours[None, :size], hours[size : size + 4 * DAY]


@pytest.mark.parametrize(
    ("series", "weeks"),
    [
        *((SEASON, weeks) for weeks in (3, 4, 5.5)),
        *((SEASON + 0.3 * HOUR, weeks) for weeks in (3, 4, 5.5)),
        (SEASON - 0.02 * HOUR, 4),
        (SEASON * (1 + 0.08 * (HOUR // WEEK)), 3),
        (SEASON * (1 + 0.08 * (HOUR // WEEK)), 4),
    ],
)
def test_a_season_with_a_trend_is_foreseen_exactly(series: Floats, weeks: float) -> None:
    history, came = known(series, weeks)
    found = forecast(history, 4 * DAY)
    assert found.model.tolist() == [WEEKLY]
    assert found.p50[0] == pytest.approx(came, rel=1e-9)


def test_without_noise_there_is_no_band_and_no_error() -> None:
    history, came = known(SEASON + 0.3 * HOUR, 4)
    found = forecast(history, 4 * DAY)
    assert found.p10[0] == pytest.approx(came)
    assert found.p90[0] == pytest.approx(came)
    assert found.backtest_error[0] == pytest.approx(0, abs=1e-12)


def test_an_hour_that_was_unlike_all_others_changes_nothing() -> None:
    history, came = known(SEASON + 0.3 * HOUR, 4)
    history = history.copy()
    history[0, 2 * WEEK + 40] *= 10
    assert forecast(history, 4 * DAY).p50[0] == pytest.approx(came)


def test_hours_that_are_not_known_change_nothing() -> None:
    history, came = known(SEASON, 4)
    seed = 11
    print("seed", seed)
    history = history.copy()
    history[0, np.random.default_rng(seed).choice(4 * WEEK, WEEK, replace=False)] = np.nan
    assert forecast(history, 4 * DAY).p50[0] == pytest.approx(came)


def test_bands_hold_four_fifths_of_what_comes() -> None:
    seed = 7
    print("seed", seed)
    random = np.random.default_rng(seed)
    noisy = SEASON[: 4 * WEEK + WEEK] * np.exp(random.normal(0, 0.1, (60, 5 * WEEK)))
    found = forecast(noisy[:, : 4 * WEEK], WEEK)
    came = noisy[:, 4 * WEEK :]
    held = ((found.p10 <= came) & (came <= found.p90)).mean()
    assert held == pytest.approx(0.8, abs=0.03)
    assert (found.model == WEEKLY).all()


def test_with_little_history_the_last_day_comes_again() -> None:
    history = 100 + 50 * np.sin(2 * np.pi * HOUR[None, : 10 * DAY] / DAY)
    found = forecast(history, 2 * DAY)
    assert [MODELS[model] for model in found.model] == ["last_day"]
    assert found.p50[0, :DAY] == pytest.approx(history[0, -DAY:])
    assert found.p50[0, DAY:] == pytest.approx(history[0, -DAY:])


def test_one_day_gives_no_band() -> None:
    history = SEASON[None, :DAY]
    found = forecast(history, DAY)
    assert found.model.tolist() == [LAST_DAY]
    assert found.p50[0] == pytest.approx(SEASON[:DAY])
    assert np.isnan(found.p10).all()
    assert np.isnan(found.backtest_error).all()


def test_nothing_known_is_nothing_forecast() -> None:
    found = forecast(np.full((1, 4 * WEEK), np.nan), DAY)
    assert found.model.tolist() == [NONE]
    assert np.isnan(found.p50).all()


def test_what_repeating_last_week_foresees_better_is_published_as_that() -> None:
    """The topic's traffic tripled eight days ago: the median of four weeks does not see it yet."""
    series = SEASON[: 4 * WEEK].copy()
    series[-8 * DAY :] *= 3
    found = forecast(np.vstack([series, SEASON[: 4 * WEEK]]), DAY)
    assert found.model.tolist() == [NAIVE, WEEKLY]
    assert found.p50[0] == pytest.approx(series[-WEEK : -WEEK + DAY])


def test_less_than_nothing_is_never_foreseen() -> None:
    seed = 3
    print("seed", seed)
    noise = np.random.default_rng(seed).normal(0, 5, (1, 4 * WEEK))
    series = np.maximum(40 - 0.06 * np.arange(4 * WEEK) + noise, 0)
    found = forecast(series, WEEK)
    assert (found.p10 >= 0).all()
    assert (found.p50 >= found.p10).all()
    assert (found.p90 >= found.p50).all()


def test_rows_do_not_know_of_each_other() -> None:
    seed = 5
    print("seed", seed)
    rows = np.random.default_rng(seed).gamma(2, 50, (7, 3 * WEEK))
    rows[2, :WEEK] = np.nan
    rows[4, : 2 * WEEK] = np.nan
    together = forecast(rows, DAY)
    for at, row in enumerate(rows):
        alone = forecast(row[None, :], DAY)
        for whole, single in zip(together, alone, strict=True):
            np.testing.assert_array_equal(whole[at], single[0])
