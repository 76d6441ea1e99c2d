"""Samples that come after their ticks were evaluated: the stream evaluates these ticks again."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from analytics.jobs.evaluate import COMPUTED
from analytics.runs import Fact
from analytics.schema import TIME
from analytics.tables import TableRoot
from tests.support.evaluated_once import at_once
from tests.support.job_runs import collect_recorded, evaluate_closed
from tests.support.recorded_samples import RecordedSamples, delay, hand_out, record
from tests.support.spark import spark
from tests.support.table_rows import assert_same
from tests.truth import cases

__all__ = ["spark"]
pytestmark = pytest.mark.xdist_group("spark")
TICK = timedelta(seconds=15)
FIRST = 20  # tick of the first late samples, which come with tick 28


def test_ticks_with_late_samples_are_evaluated_again_and_equal_a_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.dataSource.register(RecordedSamples)
    whole, recorded, tables = (tmp_path / name for name in ("whole", "recorded", "tables"))
    count = record([cases.slow_consumer(seconds=900), cases.failover(seconds=900)], whole)
    delay(whole, 1, range(FIRST, FIRST + 4), 28)

    def run(until: int) -> None:
        hand_out(whole, recorded, until)
        collect_recorded(spark, tables, tmp_path / "c1", recorded, ticks=30)
        evaluate_closed(spark, tables, tmp_path / "c2", ticks=12)

    run(28)
    root = TableRoot(tables)
    judged = root.watermark("lag")
    before = {name: root.read(name) for name in COMPUTED}
    run(count)
    until = root.watermark("lag")
    assert judged is not None
    assert until is not None
    first = min(root.read("positions")["tick"].to_pylist()) + FIRST * TICK
    assert first + 4 * TICK < judged < until
    for name, wanted in at_once(root, until).items():
        found = root.read(name)
        assert_same(found, wanted, name)
        is_late = pc.and_(
            pc.greater_equal(found["tick"], pa.scalar(first, TIME)),
            pc.less_equal(found["tick"], pa.scalar(judged, TIME)),
        )
        assert pc.is_valid(found["revised_at"]).equals(is_late), name
    revised = root.read("runs").filter(pc.field("fact") == Fact.REVISED)
    assert set(revised["until"].to_pylist()) == {first}
    changed = before["lag"].num_rows - root.read("lag", before=judged + TICK).num_rows
    assert changed != 0, "the late samples made no difference: nothing is shown"
