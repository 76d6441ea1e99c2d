"""A failover between nodes whose clocks differ: the true age lies within the bounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from analytics.kernel.rules import Rules
from tests.analytics.truth.judged import Columns, after, judge_window, of_series, window_of
from tests.truth import answers, cases, tables
from tests.truth.steps import SECOND, always
from tests.truth.workload import Truth

READ_LATER_S = 120.0


def behind() -> Truth:
    """`failover`, except that the group reads everything two minutes later."""
    truth = cases.failover()
    (pair,) = truth.pairs
    (one,) = pair.readings
    later = one.commit._replace(at=one.commit.at + round(READ_LATER_S * SECOND))
    return replace(truth, pairs=(replace(pair, readings=(replace(one, commit=later),)),))


def with_clocks(truth: Truth, ahead_s: float | None) -> tuple[Columns, answers.SeriesAnswer]:
    """Ages if the first master's clock is ahead by that much; None: not measured."""
    skew = 0.0 if ahead_s is None else ahead_s
    # The second master measures that the first is ahead, the first measures the opposite;
    # the master at each time reports it, and before the failover that is the first.
    broker = replace(truth.brokers[0], skew_microseconds=always(round(-skew * SECOND)))
    given = tables.collected(replace(truth, brokers=(broker,)))
    positions = given.positions
    stamps = positions.column("head_store_ts").cast(pa.int64()).to_numpy(zero_copy_only=False)
    by_first = stamps < truth.start + 607 * SECOND
    shifted = np.where(by_first, stamps + skew * SECOND, stamps)
    place = positions.column_names.index("head_store_ts")
    known = ~np.isnan(shifted)
    column = pa.array(np.where(known, shifted, 0).astype(np.int64), mask=~known)
    positions = positions.set_column(
        place, positions.schema.field(place), column.cast(positions.schema.field(place).type)
    )
    window = window_of(given)._replace(positions=positions)
    if ahead_s is not None:
        window = window._replace(replicas=given.replicas)
    judged = judge_window(window, Rules(), truth.start, [truth.end])
    return of_series(judged.lag, truth), answers.series(truth, truth.pairs[0].readings[0])


@pytest.mark.parametrize("ahead_s", [-4.0, -0.3, 0.0, 0.3, 4.0])
def test_the_true_age_lies_within_the_bounds_after_a_failover(ahead_s: float) -> None:
    truth = behind()
    rows, answer = with_clocks(truth, ahead_s)
    at = np.isin(answer.tick, rows["tick"])
    given = after(truth, rows["tick"]) > 615.0
    true = answer.age_seconds[at]
    late = given & (true > 0) & ~np.isnan(rows["age_seconds"])
    assert late.sum() > 8
    assert (rows.bound("low")[late] <= true[late] + 2e-3).all()
    assert (rows.bound("high")[late] >= true[late] - 2e-3).all()
    marked = np.char.endswith(rows.words("age_method").astype(np.str_), "_clock_off")
    assert marked.any() == (abs(ahead_s) > 1.0)
    # What the new master stored is by its own clock, exactly.
    own = late & (after(truth, rows["tick"]) > 615.0 + READ_LATER_S + 60.0)
    assert not marked[own].any()
    np.testing.assert_allclose(rows.bound("low")[own], rows.bound("high")[own])


def test_without_a_measured_skew_the_bounds_are_not_known() -> None:
    truth = behind()
    rows, _ = with_clocks(truth, None)
    words = rows.words("age_method").astype(np.str_)
    marked = np.char.endswith(words, "_clock_unknown")
    assert marked.any()
    assert np.isnan(rows.bound("low")[marked & (words == "exact_clock_unknown")]).all()
    assert np.isnan(rows.bound("high")[marked]).all()
    assert not marked[after(truth, rows["tick"]) < 601.0].any()
