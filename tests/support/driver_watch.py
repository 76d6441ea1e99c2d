"""Observes what reaches the driver of a Spark session: no rows of tables may.

There are two witnesses. Every way of Python to fetch rows is replaced by one that notes the call.
And Spark reports how many bytes of results each task sent to the driver: a task that hands over
rows sends more than its own accounts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from pyspark import RDD
from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame

FETCHES = (
    "collect",
    "toPandas",
    "toArrow",
    "toLocalIterator",
    "take",
    "head",
    "tail",
    "first",
    "show",
    "_collect_as_arrow",
)
DESCRIPTIONS = ["file", "facts"]
"""Columns of the rows that may be fetched: they describe the files that a task wrote."""
RESULT_BYTES_MAX = 24 * 1024
"""Of one task: its metrics and accumulators are 2 to 6 KiB, a description is 250 bytes."""


@dataclass(slots=True)
class Watched:
    """The observations."""

    fetches: list[str] = field(default_factory=list)
    tasks: int = 0
    result_bytes: int = 0

    def assert_no_rows(self) -> None:
        """Assert that no rows were fetched, and that tasks sent little beside their accounts."""
        assert self.tasks > 0, "no task ran: nothing was watched"
        assert not self.fetches, f"rows were fetched by {self.fetches}"
        mean = self.result_bytes / self.tasks
        assert mean <= RESULT_BYTES_MAX, f"{mean:.0f} bytes of results per task reach the driver"


@contextmanager
def watched(spark: SparkSession) -> Iterator[Watched]:
    """Watch everything that runs in the session until the end of the block."""
    seen, before = Watched(), _accounts(spark)
    with _noting(seen):
        yield seen
    after = _accounts(spark)
    for stage, (tasks, size) in after.items():
        had_tasks, had_size = before.get(stage, (0, 0))
        seen.tasks += tasks - had_tasks
        seen.result_bytes += size - had_size


@contextmanager
def _noting(seen: Watched) -> Iterator[None]:
    patches = []
    for owner in (DataFrame, RDD):
        for name in FETCHES:
            original = getattr(owner, name, None)
            if original is None:
                continue

            def noted(
                self: Any, *args: Any, _name: str = name, _do: Any = original, **named: Any
            ) -> Any:
                if getattr(self, "columns", None) != DESCRIPTIONS:
                    seen.fetches.append(_name)
                return _do(self, *args, **named)

            patches.append(mock.patch.object(owner, name, noted))
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def _accounts(spark: SparkSession) -> dict[tuple[int, int], tuple[int, int]]:
    """For each stage and attempt: tasks that ended, and bytes of their results."""
    context = spark.sparkContext
    jvm: Any = context._jvm
    jsc: Any = context._jsc.sc()
    jsc.listenerBus().waitUntilEmpty()
    nothing = context._gateway.new_array(jvm.double, 0)  # type: ignore[union-attr]
    stages = jsc.statusStore().stageList(
        jvm.java.util.ArrayList(), False, False, nothing, jvm.java.util.ArrayList()
    )
    found = {}
    for index in range(stages.size()):
        stage = stages.apply(index)
        found[stage.stageId(), stage.attemptId()] = (stage.numCompleteTasks(), stage.resultSize())
    return found
