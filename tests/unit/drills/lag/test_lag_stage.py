"""The stage of five groups: its verdicts, arguments and times.

``tests/analytics/test_end_to_end.py`` tests the processes.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pytest
from rich.console import Console

from analytics.main import jobs
from analytics.schema import PAIR_LAG, STAGES, fit, pair_id
from analytics.sources.scrape.targets import parse
from analytics.statuses import Status
from analytics.tables import Batch, TableRoot
from drills.lag import __main__ as stage
from drills.lag import pipeline, plan, showing
from drills.lag.judging import judge, newest, others
from drills.lag.plan import PLANTED, Planted, Times
from drills.lag.processes import StageFailed, Target
from tests.support.for_each import for_each

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)


def row(planted: Planted, tick: datetime, **more: Any) -> dict[str, Any]:
    return {
        "tick": tick,
        "pair_id": pair_id(plan.CLUSTER, planted.broker, planted.group, planted.topic),
        "cluster": plan.CLUSTER,
        "broker": planted.broker,
        "group": planted.group,
        "topic": planted.topic,
        "status": planted.status,
        "status_since": AT,
        "stuck": planted.stuck_queues,
        "skew_kind": planted.skew_kind,
        "hidden_lag": 700 if planted.hides else 1,
        "blamed": planted.blamed,
        **more,
    }


def tables(directory: Path, rows: list[dict[str, Any]]) -> Path:
    root = TableRoot.create(directory / "tables", buckets=2)
    for name, schema in (("pair_lag", PAIR_LAG), ("stages", STAGES)):
        columns = {key: [each[key] for each in rows] for key in rows[0] if key in schema.names}
        batch = Batch("test")
        files = root.write(name, fit(pa.table(columns), schema))
        newest_tick = max(each["tick"] for each in rows)
        root.commit(name, batch=batch, files=files, watermark=newest_tick)
    return directory / "tables"


def test_what_was_planted_is_found_by_its_last_tick(tmp_path: Path) -> None:
    rows = [row(each, AT, status=Status.UNKNOWN) for each in PLANTED]
    rows += [row(each, AT + timedelta(seconds=15)) for each in PLANTED]
    found = newest(tables(tmp_path, rows))
    assert [each.wrong for each in judge(PLANTED, found)] == [[]] * len(PLANTED)


@for_each("planted", PLANTED)
@for_each(
    ("column", "value"),
    [("status", Status.LAGGING), ("blamed", "append"), ("stuck", 5), ("hidden_lag", None)],
)
def test_whatever_is_another_way_is_named(
    tmp_path: Path, planted: Planted, column: str, value: object
) -> None:
    rows = [row(each, AT, **({column: value} if each is planted else {})) for each in PLANTED]
    wrong = {
        verdict.planted.group
        for verdict in judge(PLANTED, newest(tables(tmp_path, rows)))
        if verdict.wrong
    }
    # If the group keeps up, no stage is blamed. Unknown hidden lag matters only if some is
    # expected.
    is_free = (column == "blamed" and planted.blamed is None) or (
        column == "hidden_lag" and not planted.hides
    )
    assert wrong == (set() if is_free else {planted.group})


def test_an_alarm_that_was_not_planted_is_found_too(tmp_path: Path) -> None:
    retry = plan.POISON._replace(topic="%RETRY%poison", status=Status.STOPPED)
    calm = plan.SLOW._replace(topic="%RETRY%slow", status=Status.OK)
    where = tables(tmp_path, [row(each, AT) for each in (*PLANTED, retry, calm)])
    assert [each.topic for each in others(where, PLANTED)] == ["%RETRY%poison"]


def test_nothing_is_found_where_nothing_was_evaluated(tmp_path: Path) -> None:
    TableRoot.create(tmp_path / "tables", buckets=2)
    found = newest(tmp_path / "tables")
    assert found == []
    assert all(each.wrong for each in judge(PLANTED, found))


def test_the_jobs_take_the_arguments_that_they_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    class Noted:
        def __init__(self, name: str, arguments: list[str], log_dir: Path) -> None:
            asked.append(list(arguments))

        def wait(self, meanwhile: object) -> None:
            """The job is finished."""

        def close(self) -> None:
            """There is no process."""

    monkeypatch.setattr(pipeline, "Job", Noted)
    targets = [Target("g0", "n0", "broker", 8081), Target("g0", "n0", "ha", 8083)]
    times = Times(5.0, 60.0)
    source = pipeline.scraping(tmp_path, targets, times)
    with pipeline.Pipeline(tmp_path, source, times) as chain:
        chain.start_collect()
        chain.start_evaluate()
        chain.finish(lambda _: None)
    assert [words[0] for words in asked] == [
        *("collect", "evaluate", "rollup", "forecast", "report")
    ]
    for name, *arguments in asked:
        command = jobs.get_command(click.Context(jobs), name)
        assert command is not None
        command.make_context(name, arguments)  # raises for an unknown option
    [first, second] = parse(Path(source.options["targets"]).read_text())
    assert dict(first.labels)["service"] == "broker"
    assert second.url == "http://127.0.0.1:8083/metrics"


def test_times_shrink_with_the_period_and_stay_above_what_processes_need() -> None:
    usual, fast = Times(15.0, 600.0), Times(2.0, 80.0)
    assert (usual.objective_ms, usual.session_ms, usual.calm_s) == (10_000, 30_000, 75.0)
    assert (fast.objective_ms, fast.session_ms, fast.calm_s) == (4_000, 4_000, 14.0)


def test_the_table_of_findings_shows_what_is_wrong(tmp_path: Path) -> None:
    rows = [row(each, AT) for each in PLANTED if each is not plan.STOPPED]
    where = tables(tmp_path, rows)
    console = Console(record=True, width=200, file=(tmp_path / "out").open("w"))
    console.print(showing.findings(judge(PLANTED, newest(where)), []))
    console.file.close()
    text = console.export_text()
    assert text.count("found") == len(PLANTED) - 1
    assert "there is no result for it" in text
    assert "about 700 messages" in text, "lags that have no figure are explained"
    assert "about 1 messages" not in text, "a few are on their way at any instant"


def test_the_clock_goes_on_after_the_watch() -> None:
    # The output once stayed at "240 s" for minutes while the last jobs ran.
    board = showing.Board(240.0)
    board.now("no faults yet", 240.0, None)
    assert board.now("34 s left to evaluate", 251.0, None)
    assert not board.now("34 s left to evaluate", 252.0, None)
    assert board.now("34 s left to evaluate", 266.0, None), "reported again after a while"
    board.now("rollup, job 1 of 3", 423.0, None)
    console = Console(record=True, width=100, quiet=False, file=None)
    with console.capture() as shown:
        console.print(board.table())
        console.print(board.line())
    assert shown.get().count("423 s") == 2
    assert "job 1 of 3" in shown.get()


class _Marks:
    """An evaluation with these remaining seconds, one per call; the last value repeats."""

    def __init__(self, *left_s: float | None) -> None:
        self._left_s = list(left_s)

    def left_s(self, until: datetime) -> float | None:
        return self._left_s.pop(0) if len(self._left_s) > 1 else self._left_s[0]

    def check(self) -> None:
        """All streams run."""


def test_a_slow_evaluation_is_waited_for_and_one_that_stands_still_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # On a loaded machine, evaluation needed more than three minutes, and the run was aborted.
    clock = [0.0]
    monkeypatch.setattr("drills.lag.__main__.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(
        "drills.lag.__main__.time.sleep", lambda _: clock.__setitem__(0, clock[0] + 100.0)
    )
    reports: list[str] = []
    marks = _Marks(None, 500.0, 400.0, 400.0, 300.0, 200.0, 100.0, -5.0)
    stage._evaluate_all(marks, reports.append)  # type: ignore[arg-type]
    assert "300 s left to evaluate" in reports
    with pytest.raises(StageFailed, match="no progress of evaluate"):
        stage._evaluate_all(_Marks(400.0), reports.append)  # type: ignore[arg-type]
