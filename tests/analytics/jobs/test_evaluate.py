"""evaluate as a stream, over a range, and the kernel called once: the same tables to the byte."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from analytics.jobs import evaluate
from analytics.jobs.evaluate import COMPUTED, EvaluateOptions
from analytics.kernel.rules import Rules
from analytics.moments import HOUR
from analytics.tables import TableRoot, spans_of
from analytics.ticks.window import state_ticks
from tests.support.driver_watch import watched
from tests.support.evaluated_once import at_once
from tests.support.job_runs import BUCKETS, collect_recorded, evaluate_closed
from tests.support.recorded_samples import RecordedSamples, record
from tests.support.spark import spark
from tests.support.table_rows import assert_collected, assert_same
from tests.truth import cases
from tests.truth.steps import DAWN, moment

__all__ = ["spark"]
pytestmark = pytest.mark.xdist_group("spark")
BEGIN = moment(DAWN)
TICK = timedelta(seconds=15)
SECONDS = 1200.0


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Path:
    spark.dataSource.register(RecordedSamples)
    directory = tmp_path_factory.mktemp("recorded")
    workloads = [
        cases.slow_consumer(seconds=SECONDS),
        cases.poison_of_sixteen(seconds=SECONDS),
        cases.failover(seconds=SECONDS),
    ]
    record(workloads, directory)
    return directory


def test_stream_range_and_one_call_of_the_kernel_agree_to_the_byte(
    spark: SparkSession, recorded: Path, tmp_path: Path
) -> None:
    tables = tmp_path / "tables"
    with watched(spark) as seen:
        collect_recorded(spark, tables, tmp_path / "c1", recorded, ticks=40)
        evaluate_closed(spark, tables, tmp_path / "c2", ticks=23)
    seen.assert_no_rows()
    root = TableRoot(tables)
    assert_collected(root, recorded, 15.0)
    ids = root.read("series").column("series_id")
    assert len(ids) == pc.count_distinct(ids).as_py()  # not once for each tick
    named = {f"{name}/{file.path}" for name in root.tables() for file in root.files(name)}
    there = Path(root.uri).glob("*/date=*/**/*.parquet")
    assert {path.relative_to(root.uri).as_posix() for path in there} == named
    until = root.watermark("lag")
    newest = pc.max(root.read("positions", columns=["tick"]).column("tick")).as_py()
    assert until == newest - TICK  # the last tick is not over: no node has sent a later one

    stream = {name: root.read(name) for name in COMPUTED}
    assert stream["lag"].num_rows > 1000
    assert stream["status_changes"].num_rows > 0
    for name, wanted in at_once(root, until).items():
        assert_same(stream[name], wanted, name)

    options = EvaluateOptions(
        tables=tables, rules=Rules(), since=BEGIN, before=BEGIN + HOUR, closing="data"
    )
    for name in COMPUTED:  # a range is evaluated anew, not from what the stream left
        root.commit(name, batch="gone", clears=spans_of(root.hours(name)))
    with watched(spark) as seen:
        evaluate.run(spark, options)
    seen.assert_no_rows()
    assert seen.tasks == BUCKETS  # one for each bucket, and no other stage: nothing is shuffled
    # A step ends at each state that the stream has left, to write it again.
    assert len(root.files("lag")) <= BUCKETS * len(state_ticks(root, 0))
    for name, wanted in stream.items():
        assert_same(root.read(name, before=until + TICK), wanted, name)


def test_the_watch_sees_rows_that_reach_the_driver(spark: SparkSession) -> None:
    with watched(spark) as seen:
        spark.range(0, 200_000, 1, 2).collect()
    with pytest.raises(AssertionError, match=r"fetched by \['collect'"):
        seen.assert_no_rows()
    seen.fetches.clear()  # had it gone past Python
    with pytest.raises(AssertionError, match="bytes of results per task reach the driver"):
        seen.assert_no_rows()
