"""What the evaluation of a bucket writes, without Spark."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from analytics.jobs import evaluate
from analytics.jobs.evaluate import COMPUTED, Evaluation
from analytics.kernel.rules import Rules
from analytics.kernel.window import STATUS_STATE, Evaluated
from analytics.schema import TABLES
from analytics.tables import TableRoot
from analytics.tables.parts import Writer
from tests.support.lag_world import END, as_table

TICK = timedelta(seconds=15)


def test_a_stream_adds_no_rows_of_ticks_that_a_range_has_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = TableRoot.create(tmp_path, buckets=1)
    ticks = [END + number * TICK for number in range(1, 5)]
    names = dict.fromkeys(("cluster", "broker", "group", "topic"), "x")
    rows = as_table("stages", [{"tick": tick, "pair_id": 1, **names} for tick in ticks])
    empty = {name: TABLES[name].empty_table() for name in COMPUTED}
    found = Evaluated(**{**empty, "stages": rows}, state=STATUS_STATE.empty_table())
    monkeypatch.setattr(evaluate, "evaluate", lambda *_: found)

    def written(evaluation: Evaluation) -> list[object]:
        writer = Writer(root)
        after, until = (int(each.timestamp() * 1e6) for each in (END, ticks[-1]))
        evaluation.bucket(0, after, until, writer)
        return [row for file in writer.files for row in root.rows_of(file)["tick"].to_pylist()]

    whole = Evaluation(root, Rules())
    assert written(whole) == ticks
    root.commit("stages", batch="a range", watermark=ticks[1])
    marks = {"stages": root.watermark("stages") or END}
    assert written(Evaluation(root, Rules(), marks)) == ticks[2:]
