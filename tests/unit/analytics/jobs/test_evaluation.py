"""What the evaluation of a bucket writes, without Spark."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from analytics import runs
from analytics.errors import HourOpen
from analytics.jobs import evaluate
from analytics.jobs.evaluate import COMPUTED, Evaluation, ends, replaced
from analytics.kernel.rules import Rules
from analytics.kernel.window import STATUS_STATE, Evaluated, Window
from analytics.moments import HOUR, from_us, to_us
from analytics.runs import Fact
from analytics.schema import REVISED_AT, TABLES
from analytics.tables import Batch, Span, TableRoot
from analytics.tables.parts import Writer, Written
from analytics.ticks.spark import Task
from analytics.ticks.window import read_state, state_ticks, write_state
from tests.support.lag_world import END, as_table

TICK = timedelta(seconds=15)
TICKS = [END + number * TICK for number in range(1, 9)]


def state_of(tick: datetime) -> pa.Table:
    """A state that says only which tick it is of."""
    row = {"pair_id": 1, "series_id": 2, "series": [0.0], "until": tick}
    return pa.Table.from_pylist([row], schema=STATUS_STATE)


def of_kernel(rows: pa.Table) -> pa.Table:
    """The columns that the kernel knows."""
    return rows.drop_columns(REVISED_AT.name)


class Kernel:
    """In place of the kernel: a row of stages for each tick, and the calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[datetime | None, datetime, datetime]] = []

    def evaluate(
        self, _: Window, rules: Rules, state: pa.Table | None, after: datetime, until: datetime
    ) -> Evaluated:
        begun = None if state is None else state["until"][0].as_py()
        self.calls.append((begun, after, until))
        names = dict.fromkeys(("cluster", "broker", "group", "topic"), "x")
        rows = [{"tick": tick, "pair_id": 1, **names} for tick in TICKS if after < tick <= until]
        empty: dict[str, Any] = {name: of_kernel(TABLES[name].empty_table()) for name in COMPUTED}
        return Evaluated(
            **empty | {"stages": of_kernel(as_table("stages", rows))}, state=state_of(until)
        )


@pytest.fixture
def root(tmp_path: Path) -> TableRoot:
    return TableRoot.create(tmp_path, buckets=1)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    found = Kernel()
    monkeypatch.setattr(evaluate, "evaluate", found.evaluate)
    monkeypatch.setattr(evaluate, "fits", lambda *_: True)
    return found


def written(evaluation: Evaluation, task: Task) -> dict[datetime, datetime | None]:
    """The ticks of the rows of stages that a task writes, each with its `revised_at`."""
    writer = Writer(evaluation.root)
    evaluation.bucket(task, writer)
    rows = [row for file in writer.files for row in evaluation.root.rows_of(file).to_pylist()]
    found = {row["tick"]: row["revised_at"] for row in rows}
    assert len(found) == len(rows)
    return found


def task(after: int, until: int, judged: int, at: datetime = END + HOUR) -> Task:
    """Task between ticks, by number in TICKS; 0 is the tick before the first."""
    after_us, until_us, judged_us = (to_us(END + n * TICK) for n in (after, until, judged))
    return Task(0, after_us, until_us, judged_us, to_us(at))


def test_a_stream_adds_no_rows_of_ticks_that_a_range_has_evaluated(
    root: TableRoot, kernel: Kernel
) -> None:
    assert written(Evaluation(root, Rules()), task(0, 4, 0)) == dict.fromkeys(TICKS[:4])
    marks = {"stages": TICKS[1]}
    again = written(Evaluation(root, Rules(), marks), task(0, 4, 0))
    assert again == dict.fromkeys(TICKS[2:4])


def test_ticks_that_are_evaluated_again_get_the_time_of_it_and_new_ones_do_not(
    root: TableRoot, kernel: Kernel
) -> None:
    evaluation = Evaluation(root, Rules(), {"stages": TICKS[5]})
    at = END + HOUR
    found = written(evaluation, task(2, 8, 6))
    assert found == dict.fromkeys(TICKS[2:6], at) | dict.fromkeys(TICKS[6:8])


def test_ticks_that_a_range_has_evaluated_after_those_of_the_stream_are_replaced(
    root: TableRoot, kernel: Kernel
) -> None:
    evaluation = Evaluation(root, Rules(), {"stages": TICKS[6]})
    found = written(evaluation, task(2, 8, 4))
    assert found == dict.fromkeys(TICKS[2:7], END + HOUR) | dict.fromkeys(TICKS[7:8])


def test_an_evaluation_of_a_range_is_no_revision(root: TableRoot, kernel: Kernel) -> None:
    writer = Writer(root)
    Evaluation(root, Rules()).ticks(root, (0, END, TICKS[7]), writer)
    (file,) = writer.files
    assert root.rows_of(file)["revised_at"].null_count == 8


def test_an_evaluation_of_a_range_writes_the_states_in_it_again(
    root: TableRoot, kernel: Kernel
) -> None:
    # A stream left them before the samples of the range were filled in.
    for tick in (END, TICKS[3]):
        write_state(root, tick, 0, state_of(END))
    Evaluation(root, Rules()).ticks(root, (0, END, TICKS[7]), Writer(root))
    assert kernel.calls == [(END, END, TICKS[3]), (TICKS[3], TICKS[3], TICKS[7])]
    state = read_state(root, TICKS[3], 0)
    assert state is not None
    assert state["until"].to_pylist() == [TICKS[3]]


def test_a_revision_begins_at_the_newest_state_before_it_and_writes_later_ones_again(
    root: TableRoot, kernel: Kernel
) -> None:
    stale = state_of(END)
    for number in (1, 3, 5, 6):
        write_state(root, END + number * TICK, 0, stale)
    write_state(root, END + 4 * TICK, 1, stale)  # of another bucket
    written(Evaluation(root, Rules()), task(4, 8, 6))
    at = [END + number * TICK for number in range(9)]
    assert kernel.calls == [(END, at[3], at[5]), (at[5], at[5], at[6]), (at[6], at[6], at[8])]
    assert state_ticks(root, 0) == [at[1], at[3], at[5], at[6], at[8]]
    for number in (5, 6, 8):
        state = read_state(root, at[number], 0)
        assert state is not None
        assert state["until"].to_pylist() == [at[number]]


def test_a_revision_without_an_older_state_is_warmed_up(root: TableRoot, kernel: Kernel) -> None:
    write_state(root, TICKS[5], 0, state_of(END))
    written(Evaluation(root, Rules()), task(2, 8, 6))
    assert kernel.calls[0] == (None, TICKS[1], TICKS[5])  # no positions: nothing to warm up with


def test_a_batch_replaces_and_notes_what_it_evaluated_again_and_notes_what_it_left(
    root: TableRoot,
) -> None:
    first, period = task(2, 8, 6), round(TICK / timedelta(microseconds=1))
    tasks = [first, first._replace(bucket=1, after_us=first.after_us + 2 * period)]
    facts = [each._asdict() | {"revised lag": 5} for each in [*tasks, task(6, 8, 6)]]
    facts[0]["left_us"] = to_us(END - HOUR)
    written = Written({}, facts)
    spans = replaced(written, period)
    assert spans == [
        Span(to_us(TICKS[2]), to_us(TICKS[7]) + period, 0),
        Span(to_us(TICKS[4]), to_us(TICKS[7]) + period, 1),
    ]
    with runs.run(root, "evaluate") as noted:
        evaluate._note_late(noted, written, spans)
    assert runs.revised_from(root, None) == TICKS[2]
    rows = root.read("runs").to_pylist()
    of_lag = [row for row in rows if row["fact"] == Fact.REVISED and row["subject"] == "lag"]
    assert [row["rows"] for row in of_lag] == [15]
    assert [row["until"] for row in rows if row["fact"] == Fact.LEFT] == [END - HOUR]


def test_steps_are_an_hour_at_most_and_end_at_each_state() -> None:
    begin = from_us(0)
    until = begin + 3 * HOUR
    states = [begin - TICK, begin, begin + TICK, begin + 2 * HOUR, until, until + TICK]
    assert ends(begin, until, states) == [
        begin + TICK,
        begin + TICK + HOUR,
        begin + 2 * HOUR,
        until,
    ]
    assert ends(begin, until, []) == [begin + HOUR, begin + 2 * HOUR, until]


@pytest.mark.parametrize(("times", "runs_of_parts"), [(0, 1), (1, 2), (9, 3)])
def test_a_range_is_evaluated_again_if_samples_of_it_came_meanwhile(
    root: TableRoot, monkeypatch: pytest.MonkeyPatch, times: int, runs_of_parts: int
) -> None:
    # The stream had evaluated these ticks with the samples; the range replaced that without them.
    calls: list[int] = []

    def run_parts(*_: object) -> Written:
        calls.append(len(calls))
        if len(calls) <= times:
            row = {"ts": END - TICK, "tick": END - TICK, "cluster": "c", "broker": "g0"}
            files = root.write("logs", as_table("logs", [row | {"replica": "n0"}]))
            root.commit("logs", batch=Batch("collect-a", len(calls)), files=files)
        return Written({}, [])

    monkeypatch.setattr(evaluate, "run_parts", run_parts)
    spark: Any = None
    tasks = [(0, END - HOUR, END)]
    if times < 3:
        evaluate._settled(spark, Evaluation(root, Rules()), tasks)
    else:
        with pytest.raises(HourOpen):
            evaluate._settled(spark, Evaluation(root, Rules()), tasks)
    assert len(calls) == runs_of_parts
