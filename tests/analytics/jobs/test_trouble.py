"""A Prometheus that is away, slow, or answers half: the tables have gaps and no invented number,
the job goes on, and what the server still has is filled in later."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from analytics.jobs import backfill, collect
from analytics.jobs.backfill import BackfillOptions
from analytics.jobs.collect import CollectOptions
from analytics.jobs.streaming import Pace
from analytics.kernel.shape import shape
from analytics.moments import HOUR
from analytics.tables import TableRoot
from tests.support import range_server
from tests.support.prometheus import Prometheus, make_blocks, over_blocks
from tests.support.range_server import RangeServer, served
from tests.support.spark import spark
from tests.support.table_rows import assert_same
from tests.truth import cases
from tests.truth.exposition import write_openmetrics
from tests.truth.rendered import samples_table
from tests.truth.steps import DAWN, moment
from tests.truth.workload import SCRAPE_AFTER_SAMPLE, Truth
from tidemark.testing.ports import free_ports
from tidemark.testing.waiting import wait_until

__all__ = ["spark"]
pytestmark = pytest.mark.xdist_group("spark")
BEGIN = moment(DAWN)
SECONDS = 3000.0


class Job:
    """``collect`` in a thread of its own, over all that a server has of a workload."""

    def __init__(self, spark: SparkSession, directory: Path, url: str) -> None:
        self.root = TableRoot.create(directory / "tables", buckets=2)
        asked = {
            "url": url,
            "start": BEGIN.isoformat(),
            "end": (BEGIN + timedelta(seconds=SECONDS + 60)).isoformat(),
            "slice": "60s",
            "max_slices": "2",
            "timeout": "1s",
            "retries": "0",
            "patience": "1s",
        }
        self._spark = spark
        self._options = CollectOptions(
            tables=self.root.uri,
            pace=Pace(directory / "checkpoint", trigger_s=0.5),
            source="tidemark_prometheus",
            source_options=asked,
        )
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._failures

    def _work(self) -> None:
        try:
            collect.run(self._spark, self._options, stop=self._stop)
        except BaseException as error:
            self._failures.append(error)
            raise

    def wait(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait until the condition holds; fail at once if the job dies before that."""
        wait_until(lambda: holds() or not self._thread.is_alive(), what, 90)
        assert holds(), f"the job died before {what}"

    def wait_for_more(self, table: str) -> None:
        """Wait until the job has written to a table once more."""
        before = self.root.version(table)
        self.wait(f"more {table}", lambda: self.root.version(table) > before)

    def wait_for_the_end(self, wanted: pa.Table) -> None:
        """Wait until the job has read what these rows are made of."""
        last = pc.max(wanted.column("tick")).as_py()
        self.wait("the last tick", lambda: self.root.span("positions")[1] == last)  # type: ignore[index]


def judge(spark: SparkSession, root: TableRoot, truth: Truth, wanted: pa.Table, url: str) -> None:
    """Check that no row is invented or doubled, and that missing ones lie in gaps and are still at
    the server."""
    collected = root.read("positions")
    assert 0 < collected.num_rows < wanted.num_rows
    both = pa.concat_tables([collected, wanted]).group_by(wanted.column_names).aggregate([])
    assert both.num_rows == wanted.num_rows, "a row was invented"
    assert collected.group_by(collected.column_names).aggregate([]).num_rows == collected.num_rows
    gaps = root.read("gaps").to_pylist()
    known = set(collected.column("tick").to_pylist())
    scraped = timedelta(microseconds=truth.sample_delay + SCRAPE_AFTER_SAMPLE)
    for tick in set(wanted.column("tick").to_pylist()) - known:
        at = tick + scraped
        assert any(gap["from_ts"] < at <= gap["to_ts"] for gap in gaps), f"{tick} unsaid"

    filled = backfill.run(
        spark,
        BackfillOptions(
            tables=root.uri,
            since=BEGIN,
            before=BEGIN + HOUR,
            source_options={"url": url},
            hours=frozenset({BEGIN}),
        ),
    )
    assert_same(root.read("positions"), wanted, "positions")
    of_positions = next(d for d in filled.differences if d.table == "positions")
    assert (of_positions.came, of_positions.gone) == (wanted.num_rows - collected.num_rows, 0)
    # The server has samples of a part of the hours only, and the rest is a gap.
    assert set(root.read("gaps").column("reason").to_pylist()) <= {"unscraped"}


def test_trouble_of_the_server_is_gaps_and_the_job_lives(
    spark: SparkSession, tmp_path: Path
) -> None:
    truth = cases.slow_consumer(seconds=SECONDS)
    samples = samples_table(truth)
    wanted = shape(samples, 15.0, counters=())["positions"]
    with RangeServer(served(samples)) as server:
        with Job(spark, tmp_path, server.url) as job:
            job.wait("rows", lambda: job.root.has("positions"))
            for trouble in (
                range_server.reset,  # restarts
                range_server.status(503),  # is down behind a proxy
                range_server.cut,  # answers half
                range_server.slow(30.0),
            ):
                server.always = trouble
                job.wait_for_more("gaps")
                server.always = None
                job.wait_for_more("positions")
            job.wait_for_the_end(wanted)
        reasons = {gap["reason"] for gap in job.root.read("gaps").to_pylist()}
        assert {"unreachable", "torn", "timeout"} <= reasons
        judge(spark, job.root, truth, wanted, server.url)


def test_a_prometheus_that_is_killed_and_comes_back(spark: SparkSession, tmp_path: Path) -> None:
    truth = cases.slow_consumer(seconds=SECONDS)
    wanted = shape(samples_table(truth), 15.0, counters=())["positions"]
    write_openmetrics(truth, tmp_path / "samples.om")
    blocks = make_blocks(tmp_path / "samples.om", tmp_path / "blocks")
    (port,) = free_ports(1)

    def started() -> Prometheus:
        return over_blocks(tmp_path / "server", blocks, port=port)

    with ExitStack() as stack:
        server = stack.enter_context(started())
        with Job(spark, tmp_path, server.url) as job:
            job.wait("rows", lambda: job.root.has("positions"))
            for _ in range(2):
                server.kill()
                job.wait_for_more("gaps")
                server = stack.enter_context(started())
                job.wait_for_more("positions")
            job.wait_for_the_end(wanted)
        judge(spark, job.root, truth, wanted, server.url)
