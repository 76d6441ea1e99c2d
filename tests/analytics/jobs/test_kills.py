"""The driver is killed while it collects and evaluates: no row is lost and none is there twice.

A few kills here; `make lag-kills` does ten of each. The seed is printed.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from analytics.jobs.evaluate import COMPUTED
from analytics.jobs.landing import LANDED
from analytics.tables import TableRoot
from tests.support.evaluated_once import at_once
from tests.support.job_runs import collect_recorded, evaluate_closed
from tests.support.killed_jobs import command, killed, versions
from tests.support.recorded_samples import RecordedSamples, record
from tests.support.spark import spark
from tests.support.table_rows import assert_collected, assert_same
from tests.truth import cases

__all__ = ["spark"]
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(3600)]
KILLS = int(os.environ.get("TIDEMARK_LAG_KILLS", "1"))
SECONDS = 15.0 * (40 if KILLS < 4 else 40 * KILLS)


def test_killed_drivers_lose_no_row_and_double_none(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(RecordedSamples)
    seed = int(os.environ.get("TIDEMARK_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    recorded, tables, log = tmp_path / "recorded", tmp_path / "tables", tmp_path / "log"
    record([cases.slow_consumer(seconds=SECONDS), cases.failover(seconds=SECONDS)], recorded)

    collecting = command("collect", tables, tmp_path / "c1", recorded)
    kills = sum(
        killed(collecting, log, lambda: versions(tables, LANDED), chance) for _ in range(KILLS)
    )
    print(f"collect was killed {kills} times")
    assert kills >= KILLS * 0.7, "the jobs ended before they were killed: nothing is shown"
    collect_recorded(spark, tables, tmp_path / "c1", recorded, ticks=40)
    root = TableRoot(tables)
    assert_collected(root, recorded, 15.0)

    evaluating = command("evaluate", tables, tmp_path / "c2", recorded)
    kills = sum(
        killed(evaluating, log, lambda: versions(tables, COMPUTED), chance) for _ in range(KILLS)
    )
    print(f"evaluate was killed {kills} times")
    assert kills >= KILLS * 0.7, "the jobs ended before they were killed: nothing is shown"
    evaluate_closed(spark, tables, tmp_path / "c2", ticks=40)
    until = root.watermark("lag")
    assert until is not None
    for name, wanted in at_once(root, until).items():
        assert_same(root.read(name), wanted, name)
