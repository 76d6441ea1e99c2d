"""A Prometheus that is away, slow, or answers half: gaps in the tables, no number that was not
told, and a job that lives; what the server still has is filled in later."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from analytics.jobs import backfill, collect
from analytics.jobs.backfill import BackfillOptions
from analytics.jobs.collect import CollectOptions
from analytics.jobs.streaming import Pace
from analytics.kernel.shape import shape
from analytics.tables import TableRoot
from analytics.tables.layout import HOUR
from analytics.truth import cases
from analytics.truth.samples import SCRAPE_AFTER_LOOK
from analytics.truth.steps import DAWN, moment
from tests.support import range_server
from tests.support.node import wait_until
from tests.support.range_server import Labels, RangeServer
from tests.support.recorded_samples import exposed
from tests.support.spark import spark
from tests.support.table_rows import assert_same

__all__ = ["spark"]
pytestmark = pytest.mark.xdist_group("spark")
BEGIN = moment(DAWN)
SECONDS = 3000.0


def served(samples: pa.Table) -> dict[Labels, list[tuple[int, float]]]:
    """The samples as a server of Prometheus holds them."""
    found: dict[Labels, list[tuple[int, float]]] = {}
    for row in samples.to_pylist():
        labels = {
            "__name__": row["metric"],
            "instance": row["target"],
            "job": f"tidemark-{row['service']}",
            **{n: row[n] for n in ("cluster", "broker", "replica", "service")},
            **{n: str(row[n]) for n in ("group", "topic", "queue") if row[n] is not None},
            **dict(pair.replace('"', "").split("=") for pair in row["labels"].split(",") if pair),
        }
        at = round(row["ts"].timestamp() * 1000)
        found.setdefault(tuple(sorted(labels.items())), []).append((at, row["value"]))
    return found


def wait_for(what: str, holds: Callable[[], bool], job: threading.Thread) -> None:
    """Wait until it holds; fail at once if the job dies before."""
    wait_until(lambda: holds() or not job.is_alive(), what, 90)
    assert holds(), f"the job died before {what}"


def test_trouble_of_the_server_is_gaps_and_the_job_lives(
    spark: SparkSession, tmp_path: Path
) -> None:
    truth = cases.slow_consumer(seconds=SECONDS)
    samples = exposed(truth)
    wanted = shape(samples, 15.0, counters=())["positions"]
    root = TableRoot.create(tmp_path / "tables", buckets=2)
    with RangeServer(served(samples)) as server:
        asked = {
            "url": server.url,
            "start": BEGIN.isoformat(),
            "end": (BEGIN + timedelta(seconds=SECONDS + 60)).isoformat(),
            "slice": "60s",
            "max_slices": "2",
            "timeout": "1s",
            "retries": "0",
            "patience": "1s",
        }
        options = CollectOptions(
            tables=root.path,
            pace=Pace(tmp_path / "checkpoint", trigger_s=0.5),
            source="tidemark_prometheus",
            source_options=asked,
        )
        stop, failures = threading.Event(), list[BaseException]()

        def work() -> None:
            try:
                collect.run(spark, options, stop=stop)
            except BaseException as error:
                failures.append(error)
                raise

        job = threading.Thread(target=work)
        job.start()
        try:
            wait_for("rows", lambda: root.has("positions"), job)
            for trouble in (
                range_server.reset,  # restarts
                range_server.status(503),  # is down behind a proxy
                range_server.cut,  # answers half
                range_server.slow(30.0),
            ):
                gaps = root.manifest("gaps").version
                server.always = trouble
                wait_for("gap", lambda was=gaps: root.manifest("gaps").version > was, job)  # type: ignore[misc]
                server.always = None
                rows = root.manifest("positions").version
                wait_for("rows", lambda was=rows: root.manifest("positions").version > was, job)  # type: ignore[misc]
            last = pc.max(wanted.column("tick")).as_py()
            wait_for("the last tick", lambda: root.span("positions")[1] == last, job)  # type: ignore[index]
        finally:
            stop.set()
            job.join(60)
        assert not failures

        told = root.read("positions")
        assert 0 < told.num_rows < wanted.num_rows
        both = pa.concat_tables([told, wanted]).group_by(wanted.column_names).aggregate([])
        assert both.num_rows == wanted.num_rows, "a row was invented"
        assert told.group_by(told.column_names).aggregate([]).num_rows == told.num_rows
        gaps_told = root.read("gaps").to_pylist()
        reasons = {gap["reason"] for gap in gaps_told}
        assert {"unreachable", "torn", "timeout"} <= reasons
        known = set(told.column("tick").to_pylist())
        scraped = timedelta(microseconds=truth.look_delay + SCRAPE_AFTER_LOOK)
        for tick in set(wanted.column("tick").to_pylist()) - known:
            at = tick + scraped
            assert any(gap["from_ts"] < at <= gap["to_ts"] for gap in gaps_told), f"{tick} unsaid"

        filled = backfill.run(
            spark,
            BackfillOptions(
                tables=root.path,
                since=BEGIN,
                before=BEGIN + HOUR,
                source_options={"url": server.url},
                hours=frozenset({BEGIN}),
            ),
        )
    assert_same(root.read("positions"), wanted, "positions")
    of_positions = next(d for d in filled.differences if d.table == "positions")
    assert (of_positions.came, of_positions.gone) == (wanted.num_rows - told.num_rows, 0)
    assert root.read("gaps").num_rows == 0
