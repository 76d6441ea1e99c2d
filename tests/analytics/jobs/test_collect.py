"""collect on a recorded source: every row once, few files, nothing on the driver."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from analytics.jobs import collect
from analytics.jobs.collect import CollectOptions
from analytics.jobs.streaming import Pace
from analytics.tables import TableRoot
from analytics.ticks.window import merged_series
from tests.support.recorded_samples import NAME, RecordedSamples, record
from tests.support.spark import spark
from tests.support.table_rows import assert_collected
from tests.truth import cases

__all__ = ["spark"]
pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Path:
    spark.dataSource.register(RecordedSamples)
    directory = tmp_path_factory.mktemp("recorded")
    record([cases.slow_consumer(seconds=600), cases.slow_member(seconds=600)], directory)
    return directory


def options(tables: Path, checkpoint: Path, recorded: Path) -> CollectOptions:
    return CollectOptions(
        tables=tables,
        pace=Pace(checkpoint, available_now=True),
        source=NAME,
        source_options={"directory": str(recorded), "ticks": "16"},
        buckets=4,
    )


def test_all_rows_are_collected_once_in_few_files(
    spark: SparkSession, recorded: Path, tmp_path: Path
) -> None:
    collect.run(spark, options(tmp_path / "tables", tmp_path / "checkpoint", recorded))
    root = TableRoot(tmp_path / "tables")
    assert_collected(root, recorded, 15.0)
    series = root.read("series")
    known = pc.count_distinct(series.column("series_id")).as_py()
    assert len(series) == known == 17  # not once for each tick
    assert len(merged_series(series)) == 17
    named = {
        path.relative_to(root.path).as_posix() for path in root.path.glob("*/dt=*/**/*.parquet")
    }
    assert named == {file.path for name in root.tables() for file in root.files(name)}
