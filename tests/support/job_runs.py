"""The jobs as tests run them: a recorded source, four buckets, small batches, up to the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from analytics.jobs import collect, evaluate
from analytics.jobs.collect import CollectOptions
from analytics.jobs.evaluate import EvaluateOptions
from analytics.jobs.streaming import Pace, StreamFailed
from analytics.kernel.rules import Rules
from tests.support.recorded_samples import NAME

BUCKETS = 4
STARTS: Final = 5


def collect_recorded(
    spark: SparkSession, tables: str | Path, checkpoint: Path, recorded: Path, *, ticks: int = 3
) -> None:
    """Collect all that is recorded, at most `ticks` ticks in a batch."""
    options = CollectOptions(
        tables=tables,
        pace=Pace(checkpoint, available_now=True),
        source=NAME,
        source_options={"directory": str(recorded), "ticks": str(ticks)},
        buckets=BUCKETS,
    )
    _run(lambda: collect.run(spark, options))


def evaluate_closed(
    spark: SparkSession, tables: str | Path, checkpoint: Path, *, ticks: int = 5
) -> None:
    """Evaluate what the data close, at most `ticks` ticks in a batch."""
    options = EvaluateOptions(
        tables=tables,
        rules=Rules(),
        pace=Pace(checkpoint, available_now=True),
        closing="data",
        max_ticks=ticks,
    )
    _run(lambda: evaluate.run(spark, options))


def _run(job: Callable[[], None]) -> None:
    """Run a job, and start it again, as an operator does, while Spark cannot start its workers.

    Spark waits 10 s for a Python worker, whatever the machine does, and no setting changes that.
    """
    for left in reversed(range(STARTS)):
        try:
            job()
            return
        except StreamFailed as error:
            if not left or "failed to connect back" not in str(error):
                raise
