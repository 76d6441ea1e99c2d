"""collect: reads samples from a source into tables, as a stream.

The source cuts time into partitions. Executors shape and write each; the driver commits the batch
table by table. A job that is killed and started again on the same checkpoint writes every row once:
a table whose log has the batch is not changed. Step before: Prometheus, or the nodes themselves.
Step after: `evaluate`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click
from pyspark.sql import DataFrame, SparkSession

from analytics import runs
from analytics.jobs.landing import LANDED, Landing
from analytics.jobs.options import (
    landing_of,
    landing_options,
    spark_options,
    started,
    stream_options,
    tables_option,
)
from analytics.jobs.streaming import Pace, run_stream
from analytics.moments import from_us
from analytics.sources.prometheus import options as prometheus
from analytics.sources.scrape import options as scrape
from analytics.sources.telemetry import options as telemetry
from analytics.tables import Batch, TableRoot
from analytics.tables.parts import commit_all, write_frame

PROMETHEUS: Final = "tidemark_prometheus"
SOURCES = (PROMETHEUS, "tidemark_scrape", "tidemark_telemetry")
CHECKS: Mapping[str, Callable[[Mapping[str, str]], object]] = dict(
    zip(SOURCES, (prometheus.parse, scrape.parse, telemetry.parse), strict=True)
)
"""Checks of a source's options. They run here first, because Spark hides the message in a trace."""


@dataclass(frozen=True, slots=True)
class CollectOptions:
    """Settings of a collection."""

    tables: str | Path
    pace: Pace
    source: str
    source_options: Mapping[str, str] = field(default_factory=dict)
    period_s: float = 15.0
    """Interval of the scrapes; positions are placed on its multiples."""
    counters: tuple[str, ...] | None = ()
    """Counters to store as rows. The tables pairs and logs have the counters that rules need."""
    buckets: int | None = None


def run(
    spark: SparkSession, options: CollectOptions, *, stop: threading.Event | None = None
) -> None:
    """Collect until it is stopped by a signal, the marker file, or `stop`. Raises StreamFailed."""
    root = TableRoot.create(options.tables, buckets=options.buckets)
    # Batches end between two ticks, so that a broker's scrape and its ha's are in one batch.
    period = f"{options.period_s}s"
    asked = {"context": "true", "align": period, **options.source_options}
    if options.source == PROMETHEUS:
        asked = {"interval": period, **asked}
    samples = spark.readStream.format(options.source).options(**asked).load()
    landing = Landing(root, options.period_s, options.counters)
    writer = run_stream(
        "collect",
        samples,
        options.pace,
        lambda rows, batch: land(rows, batch, landing, source=options.source),
        stop=stop,
    )
    runs.note_stopped(root, "collect", writer)


def land(samples: DataFrame, batch: Batch, landing: Landing, *, source: str) -> None:
    """Write and commit one batch."""
    root = landing.root
    if root.has_batch("runs", batch):
        return  # all of it is written
    done = [table for table in LANDED if root.has_batch(table, batch)]
    with runs.run(root, "collect", batch) as noted:
        written = write_frame(samples, root, batch, landing, skip=done)
        commit_all(root, batch, written)
        noted.wrote(written.counts())
        for fact in written.facts:
            noted.saw(fact.get("nodes", {}))
        read_to = [fact["read_to_us"] for fact in written.facts if "read_to_us" in fact]
        if read_to:  # ticks are complete up to this time, even if no broker had samples
            noted.read_to(from_us(max(read_to)))
        newest = [fact["newest_us"] for fact in written.facts if "newest_us" in fact]
        if newest:
            noted.watermark(source.removeprefix("tidemark_"), from_us(max(newest)))


@click.command("collect")
@tables_option
@stream_options(required=True)
@click.option(
    "--source",
    type=click.Choice([name.removeprefix("tidemark_") for name in SOURCES]),
    required=True,
    help="A Prometheus server, the nodes' own /metrics, or the telemetry journals of brokers.",
)
@landing_options
@spark_options
def command(**given: Any) -> None:
    """Collect samples into tables, until stopped."""
    options = CollectOptions(
        tables=given["tables"],
        pace=Pace(given["checkpoint"], given["trigger_s"], given["available_now"]),
        source=f"tidemark_{given['source']}",
        **landing_of(given),
    )
    CHECKS[options.source](options.source_options)
    root = TableRoot.create(options.tables, buckets=options.buckets)
    run(started("tidemark collect", given, root.buckets), options)
