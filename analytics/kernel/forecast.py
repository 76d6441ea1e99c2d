"""Forecast of the produce rate (docs/analytics-methods.md, "Produce forecast"). Pure.

There is one row per subject and one column per hour, the newest whole hour last; NaN is unknown. A
forecast depends only on that history, so earlier forecasts are repeated and compared with the
actual values. A model that is worse than repeating last week is not published.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from analytics.kernel import robust
from analytics.kernel.columns import Bools, Floats, Ints

DAY, WEEK = 24, 168  # hours
WEEKS_MAX: Final = 4
WEEK_KNOWN_MIN: Final = 0.75  # share of known hours in a week that counts
TIE: Final = 1e-9  # losses that differ by less than this are equal
BACKTEST_DAYS: Final = 7
TREND_MIN: Final = 0.05  # smallest trend factor, as a share of the newest week
QUANTILES: Final = (0.1, 0.5, 0.9)
WEEKLY, LAST_DAY, NAIVE, NONE = range(4)
MODELS: Final = ("hour_of_week", "last_day", "seasonal_naive", "none")


class Forecast(NamedTuple):
    """Forecast by [subject × hour]; the last two fields are by [subject].

    p10 and p90 are NaN if the history is too short for a band. model: an index into MODELS.
    backtest_error: mean pinball loss of day-ahead forecasts of the last week, as a share of the
    mean actual value; NaN if there is none.
    """

    p10: Floats
    p50: Floats
    p90: Floats
    model: Ints
    backtest_error: Floats


class _Bands(NamedTuple):
    p10: Floats
    p50: Floats
    p90: Floats


def forecast(history: Floats, hours: int) -> Forecast:
    """Forecast the next hours for each row of history, which has a column per hour.

    With two weeks or more: the median of each hour of the week over up to four weeks, with their
    robust trend. With less: the last day is repeated. If the same hour of last week (or of
    yesterday) was better in the back test, that is published instead.
    """
    bands, weekly, known = _model(history, hours)
    naive = _seasonal_naive(history, hours)
    error, naive_error = _backtest(history)
    worse = known & (error > naive_error + TIE)
    model = np.select([~known, worse, weekly], [NONE, NAIVE, WEEKLY], LAST_DAY)
    p10, p50, p90 = (
        np.maximum(np.where(worse[:, None], other, own), 0.0)
        for own, other in zip(bands, naive, strict=True)
    )
    scored = np.where(worse, naive_error, error)
    return Forecast(p10, p50, p90, model.astype(np.int64), scored)


def _model(history: Floats, hours: int) -> tuple[_Bands, Bools, Bools]:
    """Return the bands of each row by the best model that its history allows. Also returned: which
    rows have weeks of history, and which have a forecast at all."""
    weeks = _weeks(history)
    complete = (~np.isnan(weeks)).mean(axis=-1) >= WEEK_KNOWN_MIN
    weekly: Bools = complete.sum(axis=-1) >= 2
    daily = _repeat(history, hours, DAY)
    bands = [band.copy() for band in daily]
    if weekly.any():
        for band, better in zip(bands, _by_hour_of_week(weeks[weekly], hours), strict=True):
            band[weekly] = better
    known: Bools = np.any(~np.isnan(bands[1]), axis=-1)
    return _Bands(*bands), weekly, known


def _weeks(history: Floats) -> Floats:
    """The newest hours as [subject × week × hour of week]; unknown before the history."""
    columns = WEEKS_MAX * WEEK
    newest = history[:, -columns:]
    missing = np.full((history.shape[0], columns - newest.shape[1]), np.nan)
    return np.hstack([missing, newest]).reshape(history.shape[0], WEEKS_MAX, WEEK)


def _by_hour_of_week(weeks: Floats, hours: int) -> _Bands:
    """Return the median of each hour of the week, with an additive or multiplicative trend."""
    number = np.arange(1.0 - WEEKS_MAX, 1.0)  # the newest week is 0
    ahead = 1 + np.arange(hours) // WEEK
    hour = np.arange(hours) % WEEK

    step = _weekly_step(weeks)
    plain = weeks - step[:, None, None] * number[:, None]
    off = plain - _median_of_other_weeks(plain)
    season = robust.median(np.moveaxis(plain, 1, -1))
    add = season[:, hour] + step[:, None] * ahead
    flat = off.reshape(off.shape[0], -1)
    adding = _Bands(
        add + robust.quantile(flat, 0.1)[:, None], add, add + robust.quantile(flat, 0.9)[:, None]
    )

    factor, growth = _weekly_factor(weeks)
    plain = weeks / factor[:, :, None]
    others = _median_of_other_weeks(plain)
    off_times = (plain - others) * factor[:, :, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(others > 0, plain / others - 1, np.nan).reshape(flat.shape)
    season = robust.median(np.moveaxis(plain, 1, -1))
    times = season[:, hour] * np.maximum(1 + growth[:, None] * ahead, TREND_MIN)
    multiplying = _Bands(
        times * (1 + robust.quantile(share, 0.1)[:, None]),
        times,
        times * (1 + robust.quantile(share, 0.9)[:, None]),
    )
    miss_adding = robust.median(np.abs(flat))
    miss_multiplying = robust.median(np.abs(off_times.reshape(flat.shape)))
    better: Bools = np.isfinite(miss_multiplying) & (miss_multiplying < miss_adding)
    better &= ~np.isnan(multiplying.p10).any(axis=-1)
    return _Bands(
        *(
            np.where(better[:, None], by_factor, by_sum)
            for by_factor, by_sum in zip(multiplying, adding, strict=True)
        )
    )


def _weekly_step(weeks: Floats) -> Floats:
    """Change per week: median over all hours of week and pairs of weeks; 0 without a pair."""
    first, then = np.triu_indices(WEEKS_MAX, 1)
    steps = (weeks[:, then] - weeks[:, first]) / (then - first)[:, None]
    return np.nan_to_num(robust.median(steps.reshape(weeks.shape[0], -1)), nan=0.0)


def _weekly_factor(weeks: Floats) -> tuple[Floats, Floats]:
    """Level of each week over that of the newest, on a straight line; and its growth per week. The
    ratio of the levels of two weeks is the median of the ratios of their hours."""
    newest = weeks[:, -1:, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where((weeks > 0) & (newest > 0), weeks / newest, np.nan)
    level = robust.median(ratio)
    number = np.arange(1.0 - WEEKS_MAX, 1.0)
    growth = np.nan_to_num(robust.slope(number, level), nan=0.0)
    return np.maximum(1 + growth[:, None] * number, TREND_MIN), growth


def _median_of_other_weeks(plain: Floats) -> Floats:
    """Median of each hour over the other weeks, so that no week is part of its own forecast."""
    others = [
        robust.median(np.moveaxis(np.delete(plain, week, axis=1), 1, -1))
        for week in range(WEEKS_MAX)
    ]
    return np.stack(others, axis=1)


def _seasonal_naive(history: Floats, hours: int) -> _Bands:
    """The same hour of last week; if that is unknown, the same hour of the last day."""
    weekly, daily = _repeat(history, hours, WEEK), _repeat(history, hours, DAY)
    whole: Bools = ~np.any(np.isnan(weekly.p10 + weekly.p50), axis=-1)
    return _Bands(
        *(np.where(whole[:, None], week, day) for week, day in zip(weekly, daily, strict=True))
    )


def _repeat(history: Floats, hours: int, cycle: int) -> _Bands:
    """Repeat the last cycle; unknown hours of it have the median of the known ones. Bands are the
    past errors of repeating; unknown if the history has only one cycle."""
    rows, size = history.shape
    last = np.full((rows, cycle), np.nan)
    newest = history[:, max(0, size - cycle) :]
    last[:, cycle - newest.shape[1] :] = newest
    filled = np.where(np.isnan(last), robust.median(last)[:, None], last)
    middle = filled[:, np.arange(hours) % cycle]
    if size <= cycle:
        unknown = np.full(middle.shape, np.nan)
        return _Bands(unknown, middle, unknown)
    off = history[:, cycle:] - history[:, :-cycle]
    low, high = robust.quantile(off, 0.1), robust.quantile(off, 0.9)
    return _Bands(
        middle + np.minimum(low, 0)[:, None], middle, middle + np.maximum(high, 0)[:, None]
    )


def _backtest(history: Floats) -> tuple[Floats, Floats]:
    """Error of the model and of the naive forecast, a day ahead, over the last days."""
    own, naive, level = [], [], []
    for day in range(1, BACKTEST_DAYS + 1):
        before, came = history[:, : -day * DAY], history[:, -day * DAY :][:, :DAY]
        if before.shape[1] < DAY or came.shape[1] < DAY:
            break
        own.append(_loss(came, _model(before, DAY)[0]))
        naive.append(_loss(came, _seasonal_naive(before, DAY)))
        level.append(came)
    if not own:
        unknown = np.full(history.shape[0], np.nan)
        return unknown, unknown
    mean = robust.mean_of_known(np.abs(np.hstack(level)))
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = [robust.mean_of_known(np.hstack(each)) / mean for each in (own, naive)]
    return (
        np.where(mean > 0, errors[0], np.nan),
        np.where(mean > 0, errors[1], np.nan),
    )


def _loss(came: Floats, bands: _Bands) -> Floats:
    """Mean pinball loss of the three quantiles at each hour; of the median if there is no band."""
    losses = [
        robust.pinball(came, band, share) for band, share in zip(bands, QUANTILES, strict=True)
    ]
    whole = sum(losses) / len(losses)
    result: Floats = np.where(np.isnan(whole), losses[1], whole)
    return result
