"""A batch that executors write and the driver commits, without collecting rows.

Each task writes Parquet files, and returns a row for each that describes it. The driver commits
them. If a task or the driver is killed before that, no log names the files; the batch runs again,
and `compact` removes the first attempt later.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from analytics.errors import PartsMissing
from analytics.schema import TABLES
from analytics.tables.files import DataFile, Span
from analytics.tables.root import Batch, TableRoot
from analytics.worker import exempt_modules_from_gc

_WRITTEN: Final = pa.schema([("file", pa.string()), ("facts", pa.string())])
"""Result of a task: a row for each file, and one with its facts; JSON."""


class Writer:
    """Writes one task's part of one batch. Used on an executor."""

    def __init__(self, root: TableRoot, skip: Collection[str] = ()) -> None:
        """skip: tables that have the batch."""
        self._root = root
        self._skip = frozenset(skip)
        self.files: list[DataFile] = []
        self.facts: dict[str, Any] = {}
        """Small numbers for the driver, like counts; never rows."""

    def write(self, table: str, rows: pa.Table) -> None:
        """Add rows to a table; any number of calls."""
        if table not in self._skip and rows.num_rows:
            self.files += self._root.write(table, rows)

    def skips(self, table: str) -> bool:
        """Whether the table has the batch already, so that nothing needs to be computed for it."""
        return table in self._skip

    def add(self, fact: str, count: int) -> None:
        """Add to a fact."""
        self.facts[fact] = self.facts.get(fact, 0) + count

    def most(self, fact: str, value: int) -> None:
        """Keep the largest value of a fact."""
        self.facts[fact] = max(value, self.facts.get(fact, value))

    def described(self) -> pa.RecordBatch:
        """Return the rows that describe the files and the facts."""
        files = [json.dumps(file) for file in self.files]
        facts = [None] * len(files) + [json.dumps(self.facts)]
        return pa.RecordBatch.from_arrays(
            [pa.array([*files, None], pa.string()), pa.array(facts, pa.string())], schema=_WRITTEN
        )


class Written(NamedTuple):
    """What a batch wrote."""

    files: Mapping[str, list[DataFile]]  # by table
    facts: list[dict[str, Any]]  # by task

    def counts(self) -> dict[str, int]:
        """Return the number of rows of each table that has any."""
        return {table: sum(file.rows for file in files) for table, files in self.files.items()}


def write_frame(
    frame: DataFrame,
    root: TableRoot,
    batch: Batch | str,
    work: Callable[[Iterator[pa.RecordBatch], Writer], None],
    *,
    skip: Collection[str] = (),
) -> Written:
    """Run work on every partition of the frame, on executors; nothing becomes visible.

    work: gets the partition's batches and a writer; it must be picklable. skip: tables that have
    the batch. Raises PartsMissing if the driver does not see what executors wrote.
    """
    skipped = frozenset(skip)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        exempt_modules_from_gc()
        writer = Writer(root, skipped)
        work(batches, writer)
        yield writer.described()

    # the stubs of mapInArrow name pyarrow's types
    rows = frame.mapInArrow(cast(Any, task), "file string, facts string").collect()
    files: dict[str, list[DataFile]] = {}
    for row in rows:
        if row.file is not None:
            file = DataFile(*json.loads(row.file))
            files.setdefault(file.table, []).append(file)
    _check_seen(root, str(batch), [file for each in files.values() for file in each])
    return Written(files, [json.loads(row.facts) for row in rows if row.facts is not None])


def commit_all(
    root: TableRoot,
    batch: Batch | str,
    written: Written,
    *,
    clears: Mapping[str, Collection[Span]] | None = None,
    watermarks: Mapping[str, datetime] | None = None,
) -> None:
    """Commit to every table that the batch changed.

    clears: by table, the spans whose present rows go. Each commit is atomic, all together are not:
    who needs all rows of a batch waits for its row in the table `runs`, which comes last. The names
    of series are committed before their positions, so that no reader finds positions without them.
    """
    clears, watermarks = clears or {}, watermarks or {}
    changed = {*written.files, *clears, *watermarks}
    for table in (name for name in TABLES if name in changed):
        root.commit(
            table,
            batch=batch,
            files=written.files.get(table, ()),
            clears=clears.get(table, ()),
            watermark=watermarks.get(table),
        )


def run_parts(
    spark: SparkSession,
    root: TableRoot,
    batch: Batch | str,
    tasks: Sequence[Any],
    work: Callable[[TableRoot, Any, Writer], None],
) -> Written:
    """Run work on executors, one Spark task for each of `tasks`; nothing becomes visible.

    tasks: picklable values, a few thousand at most. work: gets the root, one task and a writer.
    """
    if not tasks:
        return Written({}, [])
    plan = list(tasks)

    def one(batches: Iterator[pa.RecordBatch], writer: Writer) -> None:
        for rows in batches:
            for index in rows.column(0).to_pylist():
                work(root, plan[index], writer)

    return write_frame(spark.range(0, len(plan), 1, len(plan)), root, batch, one)


def _check_seen(root: TableRoot, batch: str, files: Sequence[DataFile]) -> None:
    """Check that the driver sees all files. An object store is the same for everyone."""
    if not root.location.is_local:
        return
    paths = [root.location.child(f"{file.table}/{file.path}") for file in files]
    missing = [path for path in paths if not Path(path).exists()]
    if missing:
        raise PartsMissing(batch, missing[0], missing=len(missing), written=len(paths))
