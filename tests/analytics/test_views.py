"""Tables as temporary views of Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from analytics.session import views
from analytics.tables import TableRoot
from tests.support.lag_world import END, as_table
from tests.support.spark import spark

__all__ = ["spark"]
pytestmark = pytest.mark.xdist_group("spark")


def add(root: TableRoot, batch: str) -> None:
    gap = {"source": "scrape", "subject": batch, "from_ts": END, "reason": "late", "detail": ""}
    files = root.write("gaps", as_table("gaps", [gap]))
    root.commit("gaps", batch=batch, files=files)


def test_views_are_the_tables_that_were_written_as_they_are_when_called(
    tmp_path: Path, spark: SparkSession
) -> None:
    spark.catalog.dropTempView("anomalies")  # of an earlier test
    root = TableRoot.create(tmp_path, buckets=1)
    add(root, "one")
    assert views(spark, root) == ["gaps"]
    assert spark.sql("SELECT COUNT(*) AS rows FROM gaps").first() == (1,)
    with pytest.raises(AnalysisException):
        spark.sql("SELECT * FROM anomalies")
    add(root, "two")
    views(spark, root)
    assert spark.sql("SELECT COUNT(*) AS rows FROM gaps").first() == (2,)
