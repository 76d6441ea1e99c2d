"""When a volume is full (docs/analytics-methods.md, "Disk"). Pure.

A robust straight line is fitted to the free bytes of the last week. The width of the band comes
from the past errors of the line.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from analytics.kernel import robust
from analytics.kernel.columns import Bools, Floats, Ints

WINDOW_S: Final = 7 * 86_400.0
WEEK_S: Final = 7 * 86_400
HOUR_S: Final = 3600
POINTS_MIN: Final = 12
Z90: Final = 1.2815515594600038  # a normal value is below this in nine cases of ten
THEIL_SEN_VARIANCE: Final = (
    math.pi / 3
)  # variance of the slope relative to least squares (normal noise)
MEDIAN_VARIANCE: Final = math.pi / 2  # variance of a median relative to a mean (normal noise)
OUTLIER: Final = 3.5  # sigmas; larger residuals are clipped
WALK: Final = 0.8  # minimum autocorrelation of errors that count as a random walk
PROFILE_GAIN: Final = 0.7  # weekly shape must reduce the noise to at most this share


class TimeToFull(NamedTuple):
    """Seconds from the last observation until no byte is free; infinity: not at this pace.

    p10 is the early end of the band, p90 the late one. per_second: change of free bytes. noise:
    standard deviation of the observations around the line [bytes].
    """

    p10: float
    p50: float
    p90: float
    per_second: float
    noise: float


class _Line(NamedTuple):
    """Free bytes now and their change per second, with the variance of the predicted value: var(u)
    = fixed + linear × u + square × (u + middle)²."""

    now: float
    per_second: float
    fixed: float
    linear: float
    square: float
    middle: float
    noise: float


class Outlook(NamedTuple):
    """When the volume is full, and the free bytes at the requested instants."""

    full: TimeToFull
    p10: Floats
    p50: Floats
    p90: Floats


def outlook(at: Floats, free: Floats, ahead: Floats) -> Outlook | None:
    """Return when no byte is free, and how many will be free.

    at: seconds since 1970, increasing, the last is now; free: bytes, NaN unknown. The line uses the
    last seven days, the weekly shape also older data. ahead: seconds from now. None with fewer than
    12 observations in the last seven days.
    """
    known = ~np.isnan(free)
    at, free = at[known], free[known]
    if at.size == 0:
        return None
    recent = at > at[-1] - WINDOW_S
    if np.count_nonzero(recent) < POINTS_MIN:
        return None
    shape = _weekly_shape(at, free, recent)
    now = float(at[-1])
    line = _line(at[recent] - now, free[recent] - shape[_hour_of_week(at[recent])])
    middle = line.now + line.per_second * ahead
    variance = line.fixed + line.linear * ahead + line.square * (ahead + line.middle) ** 2
    off = Z90 * np.sqrt(variance)
    usual = shape[_hour_of_week(now + ahead)]
    p10, p50, p90 = (np.maximum(each + usual, 0) for each in (middle - off, middle, middle + off))
    return Outlook(_time_to_full(line, shape, now, float(free[-1])), p10, p50, p90)


def _time_to_full(line: _Line, shape: Floats, now: float, free: float) -> TimeToFull:
    if free <= 0:
        return TimeToFull(0.0, 0.0, 0.0, line.per_second, line.noise)
    early, late = _crossings(line)
    middle = -line.now / line.per_second if line.per_second < 0 else math.inf
    p10, p50, p90 = (
        max(_with_shape(when, line.per_second, now, shape), 0.0)
        for when in (min(early, middle), middle, max(late, middle))
    )
    return TimeToFull(min(p10, p50), p50, max(p50, p90), line.per_second, line.noise)


def _line(now: Floats, free: Floats) -> _Line:
    """Fit a robust line to observations at times up to 0; return it with its variance."""
    per_second = float(robust.slope(now, free[None, :])[0])
    centre = float(now.mean())
    level = float(robust.median(free - per_second * (now - centre)))
    residual = free - level - per_second * (now - centre)
    scale = float(robust.spread(residual[None, :], np.zeros(1))[0])
    if scale > 0:
        residual = np.clip(residual, -OUTLIER * scale, OUTLIER * scale)
    noise = float(np.sqrt(np.dot(residual, residual) / (now.size - 2)))
    alike = robust.autocorrelation(residual)
    if alike > WALK:
        return _walk(now, free)
    # Correlated errors reduce the number of independent observations; small correlation is chance.
    repeat = (1 + alike) / (1 - alike) if alike > 2 / math.sqrt(now.size) else 1.0
    variance = noise * noise * repeat
    square = THEIL_SEN_VARIANCE * variance / float(np.dot(now - centre, now - centre))
    here = level - per_second * centre
    return _Line(
        here, per_second, MEDIAN_VARIANCE * variance / now.size, 0.0, square, -centre, noise
    )


def _walk(now: Floats, free: Floats) -> _Line:
    """Return the line of a random walk: from the last value, at the mean rate of the window."""
    span = float(now[-1] - now[0])
    per_second = float(free[-1] - free[0]) / span
    steps = np.diff(free) - per_second * np.diff(now)
    variance = float(np.dot(steps, steps)) / span  # per second of walking
    return _Line(
        float(free[-1]), per_second, 0.0, variance, variance / span, 0.0, math.sqrt(variance)
    )


def _crossings(line: _Line) -> tuple[float, float]:
    """Return when both edges of the band reach zero: the roots of one quadratic equation. (now +
    pace × u)² = z² × var(u); at the lower edge, now + pace × u is positive."""
    z2 = Z90 * Z90
    a = line.per_second**2 - z2 * line.square
    b = 2 * line.now * line.per_second - z2 * (line.linear + 2 * line.square * line.middle)
    c = line.now**2 - z2 * (line.fixed + line.square * line.middle**2)
    if a == 0:
        roots = [-c / b] if b != 0 else []
    else:
        inside = b * b - 4 * a * c
        # This form avoids the cancellation of two nearly equal roots.
        root = math.sqrt(max(inside, 0.0)) if inside > -1e-9 * b * b else math.nan
        q = -(b + math.copysign(root, b)) / 2
        roots = [] if math.isnan(root) else [q / a, *([c / q] if q != 0 else [])]
    slack = 1e-9 * abs(line.now)
    early, late = [], []
    for u in roots:
        if u < 0:
            continue
        ahead = line.now + line.per_second * u
        if ahead >= -slack:
            early.append(u)
        if ahead <= slack:
            late.append(u)
    if c < 0:  # already at zero within the noise
        early.append(0.0)
    return min(early, default=math.inf), min(late, default=math.inf)


def _weekly_shape(at: Floats, free: Floats, recent: Bools) -> Floats:
    """Return the usual distance of free bytes from a straight line, by hour of the week.

    It is learned from at least two weeks before the last seven days. The result is zeros unless it
    clearly reduces the noise of the last seven days, which were not used to learn it.
    """
    nothing = np.zeros(WEEK_S // HOUR_S)
    week = np.floor((at - at[-1]) / WEEK_S - 1e-12).astype(np.int64)
    earlier = np.unique(week[~recent & (week < -1)])
    enough = [number for number in earlier if np.count_nonzero(week == number) >= POINTS_MIN]
    if len(enough) < 2:
        return nothing
    shape = _shape(at, free, week, np.array(enough, dtype=np.int64))
    return _gain(at[recent], free[recent], shape)


def _shape(at: Floats, free: Floats, week: Ints, earlier: Ints) -> Floats:
    """Return the median over these weeks of the residuals from the trend between weeks. The trend
    compares equal hours of two weeks, because the shape itself rises and falls within a week."""
    sheets = np.full((earlier.size, WEEK_S // HOUR_S), np.nan)
    began = np.zeros_like(sheets)
    for row, start, number in zip(sheets, began, earlier, strict=True):
        there = week == number
        row[_hour_of_week(at[there])] = free[there]
        start[_hour_of_week(at[there])] = at[there]
    first, then = np.triu_indices(earlier.size, 1)
    paces = (sheets[then] - sheets[first]) / (earlier[then] - earlier[first])[:, None] / WEEK_S
    pace = float(np.nan_to_num(robust.median(paces.reshape(1, -1)))[0])
    plain = sheets - pace * began
    plain -= robust.median(plain)[:, None]
    shape = np.nan_to_num(robust.median(plain.T), nan=0.0)
    return shape - float(np.median(shape))


def _gain(at: Floats, free: Floats, shape: Floats) -> Floats:
    """Return the shape if subtracting it improves the fit of the line; else zeros."""
    left = np.abs(_residual(at, free - shape[_hour_of_week(at)])).sum()
    return shape if left <= PROFILE_GAIN * np.abs(_residual(at, free)).sum() else shape * 0.0


def _hour_of_week(at: Floats) -> Ints:
    return ((at % WEEK_S) // HOUR_S).astype(np.int64)


def _residual(at: Floats, free: Floats) -> Floats:
    pace = float(robust.slope(at, free[None, :])[0])
    level = free - pace * (at - at[0])
    result: Floats = level - np.median(level)
    return result


def _with_shape(crossing: float, pace: float, now: float, shape: Floats) -> float:
    """Return when the sum of line and weekly shape first reaches zero [s from now].
    now: the instant of the last observation [s since 1970], for the hour of the week."""
    if not shape.any() or not math.isfinite(crossing):
        return crossing
    near = np.arange(max(crossing - WEEK_S, 0.0), crossing + WEEK_S, HOUR_S / 4)
    level = pace * (near - crossing) + shape[_hour_of_week(now + near)]
    below = np.flatnonzero(level <= 0)
    return float(near[below[0]]) if below.size else crossing
