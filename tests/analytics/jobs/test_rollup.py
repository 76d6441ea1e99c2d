"""rollup: what is written, from which range, and what a repeated run changes: nothing."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from analytics import runs
from analytics.errors import BadOption
from analytics.jobs import rollup
from analytics.jobs.rollup import plan
from analytics.moments import HOUR, to_us
from analytics.schema import ROLLUP
from analytics.tables import Batch, Span, TableRoot, spans_of
from tests.support.driver_watch import watched
from tests.support.evaluated import Named, write_evaluated
from tests.support.spark import spark

__all__ = ["spark"]
pytestmark = pytest.mark.xdist_group("spark")

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
PERIOD = 300.0
PER_HOUR = 12
PAIRS = [Named(number) for number in range(5)]


def root_with(path: Path, hours: float, begin: datetime = BEGIN) -> TableRoot:
    root = TableRoot.create(path, buckets=4)
    write_evaluated(root, PAIRS, begin, round(hours * PER_HOUR), PERIOD)
    return root


def rows(root: TableRoot, grain_s: int) -> pa.Table:
    table = root.read("rollup")
    return table.filter(pc.equal(table.column("grain_seconds"), grain_s))


def everything(root: TableRoot) -> list[dict[str, object]]:
    return sorted(root.read("rollup").to_pylist(), key=str)


def test_a_plan_names_its_range_and_the_hours_it_replaces() -> None:
    todo = plan(BEGIN + 22 * HOUR, BEGIN + 25 * HOUR + timedelta(minutes=7), 2)
    assert [(task.bucket, task.since, task.before, task.day_over) for task in todo.tasks] == [
        (0, BEGIN + 22 * HOUR, BEGIN + 24 * HOUR, True),
        (1, BEGIN + 22 * HOUR, BEGIN + 24 * HOUR, True),
        (0, BEGIN + 24 * HOUR, BEGIN + 25 * HOUR + timedelta(minutes=7), False),
        (1, BEGIN + 24 * HOUR, BEGIN + 25 * HOUR + timedelta(minutes=7), False),
    ]
    assert todo.hours == [BEGIN, *(BEGIN + hour * HOUR for hour in (22, 23, 24, 25))]


def test_a_day_is_rolled_up_in_three_grains(tmp_path: Path, spark: SparkSession) -> None:
    root = root_with(tmp_path, 25)
    with watched(spark) as seen:
        assert rollup.run(spark, root.uri) is not None
    seen.assert_no_rows()
    count = len(PAIRS) * 3  # a pair and its two series
    assert rows(root, 60).num_rows == count * 25 * 12
    assert rows(root, 900).num_rows == count * 25 * 4
    (day,) = {row["bucket_start"] for row in rows(root, 86_400).to_pylist()}
    assert day == BEGIN
    of_day = rows(root, 86_400).filter(pc.field("pair_id") == PAIRS[0].pair_id).to_pylist()
    (pair,) = (row for row in of_day if row["series_id"] is None)
    (first,) = (row for row in of_day if row["series_id"] == PAIRS[0].series_id(0))
    ticks = 24 * PER_HOUR
    assert (pair["ticks"], pair["members"], pair["queues"]) == (ticks, 2, 2)
    assert pair["produced"] == 61 * (ticks - 1)
    assert first["rate_seconds"] == PERIOD * (ticks - 1)
    assert json.loads(pair["seconds_in_status"]) == {"OK": 86_400.0}
    table = root.read("rollup")
    assert pc.sum(pc.abs(table.column("imbalance"))).as_py() == 0
    assert root.watermark("rollup") == BEGIN + 25 * HOUR


def test_runs_by_the_hour_leave_what_one_run_leaves(tmp_path: Path, spark: SparkSession) -> None:
    """Ticks arrive in pieces that end within a minute; the open hour is done again each time."""
    whole = root_with(tmp_path / "whole", 26)
    rollup.run(spark, whole.uri, period_s=PERIOD)
    pieces = TableRoot.create(tmp_path / "pieces", buckets=4)
    for upto in (1, 23, 25, 26):
        end = BEGIN + upto * HOUR
        last = end - timedelta(seconds=PERIOD)
        for name in ("lag", "rates", "pair_lag"):
            written = pieces.write(name, whole.read(name, before=end))
            old = spans_of(pieces.hours(name))
            pieces.commit(name, batch="evaluate", files=written, clears=old, watermark=last)
        rollup.run(spark, pieces.uri, period_s=PERIOD)
    assert everything(pieces) == everything(whole)


def test_a_repeated_run_changes_nothing(tmp_path: Path, spark: SparkSession) -> None:
    root = root_with(tmp_path, 25)
    given = (root.uri, BEGIN, BEGIN + 25 * HOUR, PERIOD)
    rollup.run(spark, *given)
    before, files = everything(root), len(root.files("rollup"))
    rollup.run(spark, *given)
    assert everything(root) == before
    assert len(root.files("rollup")) == files
    rollup.run(spark, root.uri, BEGIN + 20 * HOUR, BEGIN + 21 * HOUR, PERIOD)
    assert everything(root) == before


def test_hours_that_were_evaluated_again_are_rolled_up_again_once(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollup, "CLOCKS_APART", timedelta(0))
    root = root_with(tmp_path, 27)
    rollup.run(spark, root.uri, period_s=PERIOD)
    first = BEGIN + 22.5 * HOUR  # of the day before
    late = root.read("lag", since=first)
    number = late.schema.get_field_index("lag")
    late = late.set_column(number, late.schema.field(number), pc.add(late["lag"], 5))
    span = Span(to_us(first), to_us(BEGIN + 27 * HOUR))
    root.commit("lag", batch="evaluate", files=root.write("lag", late), clears=[span])
    with runs.run(root, "evaluate", Batch("evaluate-ab", 7)) as noted:
        noted.revised(first, {"lag": late.num_rows})
    done = rollup.run(spark, root.uri, period_s=PERIOD)
    assert done is not None
    assert done.since == BEGIN + 22 * HOUR
    found = everything(root)
    assert rollup.run(spark, root.uri, BEGIN, BEGIN + 27 * HOUR, PERIOD) is not None
    assert everything(root) == found
    assert rollup.run(spark, root.uri, period_s=PERIOD) is None


def test_minutes_of_the_open_hour_are_there(tmp_path: Path, spark: SparkSession) -> None:
    root = root_with(tmp_path, 0.5)
    done = rollup.run(spark, root.uri)
    assert done is not None
    assert (done.since, done.before) == (BEGIN, BEGIN + timedelta(minutes=30))
    assert rows(root, 60).num_rows == len(PAIRS) * 3 * 6
    assert rows(root, 900).num_rows == len(PAIRS) * 3 * 2


def test_the_period_is_seen_from_the_ticks(tmp_path: Path) -> None:
    assert rollup.period_of(root_with(tmp_path, 1)) == PERIOD
    assert rollup.period_of(TableRoot.create(tmp_path / "empty")) == rollup.PERIOD_S


def test_a_root_without_ticks_is_nothing_to_do(tmp_path: Path, spark: SparkSession) -> None:
    root = TableRoot.create(tmp_path)
    assert rollup.run(spark, root.uri) is None
    assert root.read("rollup") == ROLLUP.empty_table()


def test_a_range_that_is_no_whole_hours_is_refused(tmp_path: Path, spark: SparkSession) -> None:
    root = root_with(tmp_path, 1)
    with pytest.raises(BadOption):
        rollup.run(spark, root.uri, BEGIN + HOUR / 2, BEGIN + HOUR)
