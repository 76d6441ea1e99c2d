"""Anomalies: robust scores of signals, raised, explained by parents and ranked
(docs/analytics-methods.md, "Anomalies"). Pure.

A call handles one signal: a row per subject, a column per time step; NaN is unknown. Scores are of
log1p(value / unit), so that a doubling weighs the same at every level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from analytics.kernel import columns, robust
from analytics.kernel.columns import SECOND, Bools, Floats, Ints
from analytics.schema import ANOMALIES

WEEK_HOURS: Final = 168
WEEKS_MIN: Final = 3
HALF_LIFE_S: Final = 3600.0
WARM_S: Final = 3600.0  # of known values before the moving mean is used
SIGMA_PER_DEVIATION: Final = math.sqrt(math.pi / 2)  # of a normal distribution
LEVEL_SHARE: Final = 0.05  # a scale is at least this share of the level, and one unit
CLIP: Final = 3.0  # limit in scales for the effect of one value on the moving mean
REPORT: Final = 6.0
STEPS: Final = 3
EXPLAINS: Final = 0.8
ROWS_MAX: Final = 1000


class Usual(NamedTuple):
    """Usual values by subject and hour of the week, as log1p(value / unit); NaN unknown."""

    middle: Floats
    scale: Floats


class Scores(NamedTuple):
    """Matrices [subject × step]; a score is NaN without an expected value or a sample."""

    value: Floats  # on the scale of log1p(value / unit), like the next two
    expected: Floats
    scale: Floats
    score: Floats


def usual_week(history: Floats, *, start: int, step_s: int, unit: float = 1.0) -> Usual:
    """Median and MAD of each hour of the week, from at least three weeks of history.
    start: time of the first column [microseconds since 1970]; step_s: seconds per column, a divisor
    of an hour. Hours with fewer than three known weeks are NaN."""
    hours = SECOND * 3600
    lead = (start // hours) % WEEK_HOURS * (3600 // step_s) + start % hours // (step_s * SECOND)
    per_week = WEEK_HOURS * (3600 // step_s)
    tail = -(lead + history.shape[1]) % per_week
    whole = np.pad(np.log1p(history / unit), ((0, 0), (lead, tail)), constant_values=np.nan)
    weeks = whole.reshape(history.shape[0], -1, WEEK_HOURS, 3600 // step_s)
    known = (~np.isnan(weeks)).any(axis=-1).sum(axis=1) >= WEEKS_MIN
    by_hour = np.moveaxis(weeks, 1, 2).reshape(history.shape[0], WEEK_HOURS, -1)
    middle = robust.median(by_hour)
    scale = robust.spread(by_hour, middle)
    return Usual(np.where(known, middle, np.nan), np.where(known, scale, np.nan))


def scores(
    values: Floats, *, start: int, step_s: int, unit: float = 1.0, usual: Usual | None = None
) -> Scores:
    """Distance of each value from the expected one, in robust standard deviations.

    The expected value is the usual one of that hour of the week. If that is unknown, it is the
    exponentially weighted mean of earlier values (half-life one hour, after one hour of values).
    The scale is at least 5 % of the level and at least one unit. start, step_s: as in
    ``usual_week``.
    """
    log = np.log1p(values / unit)
    mean, deviation = _moving(log, step_s)
    expected, scale = mean, deviation
    if usual is not None:
        at = start // SECOND + step_s * np.arange(values.shape[1])
        hour = (at // 3600) % WEEK_HOURS
        middle, week_scale = usual.middle[:, hour], usual.scale[:, hour]
        weekly = ~np.isnan(middle)
        expected = np.where(weekly, middle, mean)
        # Columns may be finer than the history, so their own variation counts too.
        scale = np.where(weekly, np.fmax(week_scale, _jitter(log, step_s)), deviation)
    scale = np.fmax(scale, _floor(expected))
    return Scores(log, expected, scale, (log - expected) / scale)


def _floor(level: Floats) -> Floats:
    """Minimum scale at a level: 5 % of the level or one unit, if that is more. The level and the
    result are log1p values."""
    above = np.exp(level)  # 1 + value / unit
    least: Floats = np.maximum(math.log1p(LEVEL_SHARE), np.log1p(1 / above))
    return least


def _moving(log: Floats, step_s: int) -> tuple[Floats, Floats]:
    """Mean and deviation (as sigma) of the values before each step; NaN at first. A value counts
    with at most three scales, so that one spike does not become the expected value."""
    decay = 0.5 ** (step_s / HALF_LIFE_S)
    rows = log.shape[0]
    weight, seen = np.zeros(rows), np.zeros(rows)
    mean, deviation = np.zeros(rows), np.zeros(rows)
    means, deviations = np.full(log.shape, np.nan), np.full(log.shape, np.nan)
    for step in range(log.shape[1]):
        warm = seen * step_s >= WARM_S
        means[warm, step] = mean[warm]
        deviations[warm, step] = deviation[warm] * SIGMA_PER_DEVIATION
        known = ~np.isnan(log[:, step])
        off = np.where(known, log[:, step] - mean, 0.0)
        far = CLIP * np.fmax(deviation * SIGMA_PER_DEVIATION, _floor(mean))
        off = np.where(warm, np.clip(off, -far, far), off)
        weight = np.where(known, decay * weight + 1, weight)
        share = np.where(known, 1 / np.maximum(weight, 1), 0.0)
        # The first value has no earlier mean to deviate from.
        deviation += share * (np.where(seen > 0, np.abs(off), 0.0) - deviation)
        mean += share * off
        seen += known
    return means, deviations


def _jitter(log: Floats, step_s: int) -> Floats:
    """Deviation between neighbours before each step, as sigma; NaN at first. Unlike the deviation
    from a mean, it stays small for values that follow the time of day."""
    apart = np.full(log.shape, np.nan)
    apart[:, 1:] = np.abs(np.diff(log, axis=1)) / math.sqrt(2)
    return _moving(apart, step_s)[0] * SIGMA_PER_DEVIATION


class Raised(NamedTuple):
    """Places in a matrix of scores to report, and their explanations."""

    subject: Ints
    step: Ints
    parent: Ints  # nearest reported ancestor that explains it; −1: none


def raised(found: Scores, parents: Ints, *, first: int) -> Raised:
    """Report values that were far off on one side for three steps: once, at the third.

    parents: for each subject the row of its parent, −1 for none. first: the first step to report;
    earlier ones show how long it has lasted. A subject is explained by the nearest ancestor that is
    far off to the same side by at least 80 % as much.
    """
    side = np.where(np.abs(found.score) >= REPORT, np.sign(found.score), 0.0)
    side = np.nan_to_num(side, nan=0.0)
    lasted = np.zeros(side.shape[0])
    at_third = np.zeros(side.shape, dtype=np.bool_)
    before = np.zeros(side.shape[0])
    for step in range(side.shape[1]):
        here = side[:, step]
        lasted = np.where(here == 0, 0.0, np.where(here == before, lasted + 1, 1.0))
        at_third[:, step] = lasted == STEPS
        before = here
    at_third[:, :first] = False
    subject, steps = (each.astype(np.int64) for each in np.nonzero(at_third))
    off = found.value - found.expected
    explained = np.full(subject.size, -1, dtype=np.int64)
    ancestor = parents[subject]
    while (ancestor >= 0).any():
        asked = np.maximum(ancestor, 0)
        explains: Bools = (ancestor >= 0) & (explained < 0)
        explains &= side[asked, steps] == side[subject, steps]
        explains &= np.abs(off[asked, steps]) >= EXPLAINS * np.abs(off[subject, steps])
        explained = np.where(explains, ancestor, explained)
        ancestor = np.where(ancestor >= 0, parents[asked], -1)
    return Raised(subject, steps, explained)


def anomalies(
    found: Scores,
    what: Raised,
    subjects: Sequence[str],
    signal: str,
    *,
    start: int,
    step_s: int,
    unit: float = 1.0,
) -> pa.Table:
    """Rows of ANOMALIES. value and expected are in the signal's unit. The scale is of log1p: 0.05
    is 5 %. ts is the start of the third step that was far off."""
    here = (what.subject, what.step)
    names = pa.array(subjects, pa.string())
    return pa.table(
        [
            columns.times(start + what.step * step_s * SECOND),
            names.take(pa.array(what.subject)),
            pa.array([signal] * what.subject.size, pa.string()),
            pa.array(np.expm1(found.value[here]) * unit),
            pa.array(np.expm1(found.expected[here]) * unit),
            pa.array(found.scale[here]),
            pa.array(found.score[here]),
            names.take(pa.array(np.maximum(what.parent, 0), mask=what.parent < 0)),
            pa.array(what.parent >= 0),
        ],
        schema=ANOMALIES,
    )


def ranked(rows: pa.Table, rates: Floats) -> pa.Table:
    """Sort rows: unexplained ones first, then by score × messages per second; keep the first ones.
    rates: messages per second of each row's subject; NaN counts as 0."""
    weight = np.abs(columns.floats(rows, "score")) * (1 + np.nan_to_num(rates, nan=0.0))
    suppressed = columns.truths(rows, "suppressed")
    names = columns.codes(rows.column("subject"))[0]
    order = np.lexsort((names, columns.micros(rows, "ts"), -weight, suppressed))[:ROWS_MAX]
    return rows.take(pa.array(order))
