"""evaluate begins before there is anything to evaluate, follows collect, and stops at a signal."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from analytics import runs
from analytics.jobs import evaluate
from analytics.jobs.evaluate import EvaluateOptions
from analytics.jobs.streaming import STOP_FILE, Pace, StreamFailed, run_stream
from analytics.kernel.rules import Rules
from analytics.moments import EPOCH
from analytics.tables import Batch, TableRoot
from tests.support.job_runs import BUCKETS, collect_recorded
from tests.support.node import wait_until
from tests.support.recorded_samples import NAME, RecordedSamples, record
from tests.support.spark import spark
from tests.truth import cases

__all__ = ["spark"]
pytestmark = pytest.mark.xdist_group("spark")


def test_evaluation_waits_for_positions_follows_them_and_ends_by_the_marker(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.dataSource.register(RecordedSamples)
    record([cases.slow_consumer(seconds=300)], tmp_path / "recorded")
    root = TableRoot.create(tmp_path / "tables", buckets=BUCKETS)
    checkpoint = tmp_path / "c2"
    options = EvaluateOptions(
        tables=root.uri, rules=Rules(), pace=Pace(checkpoint, trigger_s=0.5), closing="data"
    )
    ended = threading.Event()

    def work() -> None:
        evaluate.run(spark, options)
        ended.set()

    job = threading.Thread(target=work)
    job.start()

    def is_so(holds: Callable[[], bool]) -> bool:
        assert job.is_alive(), "evaluation failed"
        return holds()

    try:
        begun = partial(is_so, lambda: any(checkpoint.glob("commits/[0-9]*")))
        wait_until(begun, "a batch of nothing", 120)
        collect_recorded(spark, root.uri, tmp_path / "c1", tmp_path / "recorded", ticks=20)
        wait_until(partial(is_so, lambda: root.has("lag")), "lag", 120)
    finally:
        (checkpoint / STOP_FILE).touch()
        job.join(60)
    assert ended.is_set(), "the marker did not end the stream in order"
    ticks = sorted(root.read("positions").column("tick").to_pylist())
    judged = sorted(root.read("lag").column("tick").to_pylist())
    assert judged == ticks[:-1]  # of one series; the last is not over
    noted = [run for run in runs.ended(root, EPOCH) if run.job == "evaluate"]
    assert sum(run.rows.get("lag", 0) for run in noted) == len(judged)


def test_a_batch_that_fails_is_repeated_and_one_that_always_fails_is_an_error(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.dataSource.register(RecordedSamples)
    record([cases.slow_consumer(seconds=60)], tmp_path / "recorded")
    rows = spark.readStream.format(NAME).options(directory=str(tmp_path / "recorded")).load()
    tried: list[Batch] = []

    def fails_once(_: DataFrame, batch: Batch) -> None:
        tried.append(batch)
        if len(tried) == 1:
            raise OSError("no space left")

    run_stream("once", rows, Pace(tmp_path / "once", available_now=True), fails_once)
    assert len(tried) == 2
    assert tried[0] == tried[1]  # the same number of the same writer: it overwrites itself

    def fails(_: DataFrame, batch: Batch) -> None:
        tried.append(batch)
        raise OSError("no space left on /data/tables")

    tried.clear()
    with pytest.raises(StreamFailed, match=r"always stopped at a batch that failed: .*no space"):
        run_stream("always", rows, Pace(tmp_path / "always", available_now=True), fails)
    assert len(tried) == 3
