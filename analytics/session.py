"""The Spark session of every job.

It works in local mode (one process, the default), with ``spark-submit``, and with executors as
pods. Settings of the launcher take precedence. This module imports Spark; the tables and the kernel
do not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Final

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from analytics import jars
from analytics.errors import SparkStart
from analytics.tables import TableRoot

SOURCE_MODULES: Final = (
    "sources.prometheus.spark",
    "sources.scrape.spark",
    "sources.store.spark",
    "sources.telemetry.spark",
    "sources.topic.spark",
    "ticks.spark",
)
"""Modules of this package, each with a tuple SOURCES of data source classes. None of them accepts
filters: Spark 4.2 applies those of one query to the next one of the same DataFrame as well."""


def session(
    name: str,
    *,
    master: str | None = None,
    buckets: int = 8,
    driver_memory: str | None = None,
    extra: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark or take the running session, and register all sources of Tidemark.

    name: name of the job, for cluster managers. master: as for spark-submit; null: the launcher's,
    or all cores of this machine. buckets: number of buckets of the tables; a shuffle makes as many
    tasks. driver_memory: memory of the JVM, like "1g"; no effect if Spark runs already. extra:
    further settings, which take precedence. Raises SparkStart.
    """
    # Spark reads this when it forks workers. A setting of the builder has no effect in local mode,
    # and the workers would be the first `python3` of the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    builder = SparkSession.builder.appName(name)
    for key, value in _settings(master, buckets, driver_memory, submitted=submitted):
        builder = builder.config(key, value)
    for key, value in (extra or {}).items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except (PySparkRuntimeError, OSError) as error:
        raise SparkStart(str(error)) from error
    register_all(spark)
    return spark


def register_all(spark: SparkSession) -> None:
    """Register the sources in a session that the caller started."""
    for source in sources():
        spark.dataSource.register(source)


def views(spark: SparkSession, root: TableRoot) -> list[str]:
    """Register every table of a root as a temporary view of its name, for questions in SQL.

    A view has the rows that the table has now; another call adds newer ones. A table that was never
    written has no view, so a question about it fails: an empty view would answer that there is
    nothing. Returns the names of the views.
    """
    names = root.tables()
    for table in names:
        root.frame(spark, table).createOrReplaceTempView(table)
    return names


def sources() -> Iterator[type[DataSource]]:
    """Every data source of Tidemark."""
    for module in SOURCE_MODULES:
        yield from import_module(f"{__package__}.{module}").SOURCES


def _settings(
    master: str | None, buckets: int, driver_memory: str | None, *, submitted: bool
) -> Iterator[tuple[str, str]]:
    yield "spark.sql.session.timeZone", "UTC"
    yield "spark.ui.showConsoleProgress", "false"
    yield "spark.sql.shuffle.partitions", str(buckets)
    # Otherwise Spark would start a job to list many named files.
    yield "spark.sql.sources.parallelPartitionDiscovery.threshold", "100000"
    yield "spark.sql.execution.arrow.maxRecordsPerBatch", "65536"
    if jars.are_there():
        yield from jars.SETTINGS.items()
    if submitted:
        return  # master, memory, network and UI are the launcher's
    master = master or "local[*]"
    yield "spark.master", master
    if master.startswith("local"):
        yield "spark.driver.host", "127.0.0.1"
        yield "spark.driver.bindAddress", "127.0.0.1"
        yield "spark.ui.enabled", "false"
    if driver_memory is not None:
        yield "spark.driver.memory", driver_memory
