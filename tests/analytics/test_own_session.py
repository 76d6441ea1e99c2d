"""The sources in a session of the caller, as docs/analytics.md describes: register_all."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.xdist_group("spark")

CODE = """
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()

from analytics.session import register_all
from tests.support.range_server import RangeServer

register_all(spark)
labels = (("__name__", "up"), ("instance", "127.0.0.1:1"))
samples = {labels: [(1_700_000_000_000 + 15_000 * number, 1.0) for number in range(10)]}
with RangeServer(samples) as server:
    rows = (
        spark.read.format("tidemark_prometheus")
        .option("url", server.url)
        .option("selectors", "up")
        .option("start", "2023-11-14T22:00:00Z")
        .option("end", "2023-11-14T23:00:00Z")
        .load()
    )
    print("rows:", rows.count(), rows.where("metric = 'up' and value = 0").count())
spark.stop()
"""


def test_a_source_works_in_ones_own_session() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "rows: 10 0" in done.stdout
