"""Results do not depend on how time is cut into calls, nor on the order of rows."""

from __future__ import annotations

import itertools
from datetime import datetime

import numpy as np
import pyarrow as pa
import pytest

from analytics.kernel.evaluate import evaluate
from analytics.kernel.rules import Rules
from analytics.kernel.state import fits
from analytics.kernel.window import Evaluated, Window
from tests.analytics.truth.judged import judged_case, truth_of, window_of
from tests.support.for_each import for_each
from tests.truth import cases
from tests.truth.steps import SECOND, moment
from tests.truth.tables import collected

pytestmark = pytest.mark.xdist_group("workloads")


def only(window: Window, after: int, until: int, history_s: float) -> Window:
    """What a job would read for (after, until]: nothing earlier, and nothing later."""
    begin = after - round(history_s * SECOND)

    def within(table: pa.Table) -> pa.Table:
        tick = np.asarray(table.column("tick").cast(pa.int64()).to_numpy())
        return table.filter(pa.array((tick > begin) & (tick <= until)))

    return window._replace(
        positions=within(window.positions),
        pairs=within(window.pairs),
        logs=within(window.logs),
        events=within(window.events),
    )


def in_pieces(window: Window, rules: Rules, borders: list[int]) -> Evaluated:
    state: pa.Table | None = None
    done: list[Evaluated] = []
    for after, until in itertools.pairwise(borders):
        part = only(window, after, until, rules.history_s)
        done.append(evaluate(part, rules, state, moment(after), moment(until)))
        state = done[-1].state
    return Evaluated(*(pa.concat_tables(list(tables)) for tables in zip(*done, strict=True)))


def in_order(table: pa.Table) -> list[str]:
    """Names and rows as texts, so that NaN, null and the last bit of a number count."""
    columns = [
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        for column in table.columns  # a time as an object costs ten times as much
    ]
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return [repr(table.column_names), *sorted(map(repr, rows))]


@for_each("name", sorted(cases.EVERY))
def test_any_cutting_of_time_gives_the_same_rows(name: str) -> None:
    truth, whole = truth_of(name), judged_case(name)
    rng = np.random.default_rng(1)
    window, rules = window_of(collected(truth)), Rules(period_s=truth.period / SECOND)
    ticks = truth.ticks(with_missing=True)
    inner = rng.choice(ticks[:-1], size=min(3, ticks.size - 1), replace=False)
    borders = [truth.start, *sorted(int(tick) for tick in inner), truth.end]
    parts = in_pieces(window, rules, borders)
    assert whole.lag.num_rows > 0
    for table in ("rates", "lag", "pair_lag", "stages", "status_changes", "offset_events"):
        assert in_order(getattr(parts, table)) == in_order(getattr(whole, table)), table


def test_a_call_per_minute_leaves_the_state_of_one_call() -> None:
    truth = truth_of("expiry")
    window, rules = window_of(collected(truth)), Rules()
    ticks = [truth.start, *(int(tick) for tick in truth.ticks()[3::4])]
    state: pa.Table | None = None
    for after, until in itertools.pairwise(ticks):
        part = only(window, after, until, rules.history_s)
        state = evaluate(part, rules, state, moment(after), moment(until)).state
    whole = evaluate(window, rules, None, moment(truth.start), moment(ticks[-1]))
    assert state is not None
    assert in_order(state) == in_order(whole.state)


def test_the_order_of_rows_does_not_matter() -> None:
    truth = truth_of("unknowns")
    window = window_of(collected(truth))
    rng = np.random.default_rng(3)
    shuffled = Window(*(table.take(pa.array(rng.permutation(table.num_rows))) for table in window))
    begin, end = moment(truth.start), moment(truth.end)
    first = evaluate(window, Rules(), None, begin, end)
    second = evaluate(shuffled, Rules(), None, begin, end)
    for one, other in zip(first, second, strict=True):
        assert in_order(one) == in_order(other)


def test_pairs_that_are_evaluated_apart_come_out_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = truth_of("unknowns")
    window, begin, end = window_of(collected(truth)), moment(truth.start), moment(truth.end)
    together = evaluate(window, Rules(), None, begin, end)
    monkeypatch.setattr("analytics.kernel.evaluate.PLACES_AT_ONCE", 1)
    apart = evaluate(window, Rules(), None, begin, end)
    for one, other in zip(together, apart, strict=True):
        assert in_order(one) == in_order(other)


def test_nothing_to_evaluate_leaves_the_state_as_it_was() -> None:
    truth = truth_of("trickle")
    window = window_of(collected(truth))
    done = evaluate(window, Rules(), None, moment(truth.start), moment(truth.end))
    again = evaluate(window, Rules(), done.state, moment(truth.end), moment(truth.end))
    assert again.lag.num_rows == 0
    assert in_order(again.state) == in_order(done.state)


def test_a_state_of_other_rules_is_refused() -> None:
    truth = truth_of("trickle")
    window, middle = (
        window_of(collected(truth)),
        moment(truth.start + (truth.end - truth.start) // 2),
    )
    done = evaluate(window, Rules(), None, moment(truth.start), middle)
    other = Rules(drain_minutes=7)
    assert fits(done.state, Rules())
    assert not fits(done.state, other)
    with pytest.raises(ValueError, match="left by other rules"):
        evaluate(window, other, done.state, middle, _later(middle))


def _later(instant: datetime) -> datetime:
    return instant.replace(microsecond=0) + (moment(60_000_000) - moment(0))
