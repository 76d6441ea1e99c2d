"""A batch that executors write and the driver commits, without collecting rows.

Each task writes its Parquet files and then one small JSON file that describes them, in
``ROOT/_parts/<batch>/``. The driver compares their number with the tasks that Spark reports as
done, reads them, and replaces the manifests. If the driver is killed before that, no manifest names
the files; the batch runs again and overwrites them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, cast
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from analytics.errors import PartsMissing
from analytics.moments import hour_of, to_us
from analytics.tables.files import DataFile, write_whole
from analytics.tables.manifest import Batch
from analytics.tables.root import TableRoot
from analytics.worker import exempt_modules_from_gc

_DONE: Final = "part int"
_NAMES: Final = 10_000  # maximum number of files of one task


class Writer:
    """Writes one task's part of one batch. Used on an executor."""

    def __init__(self, root: TableRoot, batch: str, part: int, skip: Collection[str]) -> None:
        """part: number of this task; the same when it runs again. skip: tables that have the
        batch."""
        self._root, self._batch, self._part = root, batch, part
        self._skip = frozenset(skip)
        self._files: list[DataFile] = []
        self._written = 0
        self._seen: dict[str, dict[str, int]] = {}
        self.facts: dict[str, Any] = {}
        """Small numbers for the driver, like counts; never rows."""

    def write(self, table: str, rows: pa.Table, *, bucket: int | None = None) -> None:
        """Add rows to a table; any number of calls. bucket: of all these rows, if known."""
        if table in self._skip or not rows.num_rows:
            return  # committed before a restart; compaction may have moved the rows since
        # A task has 10,000 names, so parts of two tasks never have the same.
        part = self._part * _NAMES + self._written
        self._written += 1
        if self._written > _NAMES:
            raise ValueError(f"a task of batch {self._batch} writes more than {_NAMES} times")
        self._files += self._root.write(table, rows, batch=self._batch, part=part, bucket=bucket)

    def skips(self, table: str) -> bool:
        """Whether the table has the batch already, so that nothing needs to be computed for it."""
        return table in self._skip

    def saw(self, table: str, node: str, tick_us: int) -> None:
        """Note the newest tick of a node, which determines the complete ticks."""
        seen = self._seen.setdefault(table, {})
        seen[node] = max(tick_us, seen.get(node, tick_us))

    def add(self, fact: str, count: int) -> None:
        """Add to a fact."""
        self.facts[fact] = self.facts.get(fact, 0) + count

    def most(self, fact: str, value: int) -> None:
        """Keep the largest value of a fact."""
        self.facts[fact] = max(value, self.facts.get(fact, value))

    def describe(self, directory: Path) -> None:
        """Write the description of the files, as the last step of a task."""
        facts = {
            "files": [list(file) for file in self._files],
            "seen": self._seen,
            "facts": self.facts,
        }
        text = json.dumps(facts).encode()
        write_whole(directory / f"{self._part:06d}.json", lambda out: out.write(text))


class Written(NamedTuple):
    """What a batch wrote, by table."""

    files: Mapping[str, list[DataFile]]
    seen: Mapping[str, Mapping[str, int]]
    facts: list[dict[str, Any]]  # by part

    def rows(self, table: str) -> int:
        """Return the number of rows."""
        return sum(file.rows for file in self.files.get(table, ()))

    def counts(self) -> dict[str, int]:
        """Return the number of rows of each table that has any."""
        return {table: self.rows(table) for table in self.files}


def write_frame(
    frame: DataFrame,
    root: TableRoot,
    batch: Batch,
    work: Callable[[Iterator[pa.RecordBatch], Writer], None],
    *,
    skip: Collection[str] = (),
) -> Written:
    """Run work on every partition of the frame, on executors; nothing becomes visible.
    work: gets the partition's batches and a writer; it must be picklable. Raises PartsMissing if
    the driver does not see what executors wrote."""
    attempt = root.path / "_parts" / f"{batch}.{uuid4().hex}"
    attempt.mkdir(parents=True)
    buckets_root, skipped, name = root, frozenset(skip), str(batch)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        if context is None:
            raise RuntimeError("not inside a Spark task")
        exempt_modules_from_gc()
        writer = Writer(buckets_root, name, context.partitionId(), skipped)
        work(batches, writer)
        writer.describe(attempt)
        yield pa.RecordBatch.from_pydict({"part": pa.array([context.partitionId()], pa.int32())})

    done = Observation()
    try:
        # the stubs of mapInArrow name pyarrow's types; the noop sink keeps no row
        parts = frame.mapInArrow(cast(Any, task), _DONE)
        parts.observe(done, f.count(f.lit(1)).alias("parts")).write.format("noop").mode(
            "overwrite"
        ).save()
        paths = sorted(attempt.glob("[0-9]*.json"))
        count = int(done.get["parts"])
        if len(paths) != count:
            raise PartsMissing(name, attempt, found=len(paths), written=count)
        return _read(paths)
    finally:
        shutil.rmtree(attempt, ignore_errors=True)


def commit_all(
    root: TableRoot,
    batch: Batch,
    written: Written,
    *,
    replaces: Mapping[str, Collection[DataFile]] | None = None,
    watermarks: Mapping[str, datetime] | None = None,
) -> None:
    """Replace the manifest of every table that the batch changed; positions last.

    Positions determine which ticks are closed. An evaluation of these ticks needs all other rows,
    even if the driver was killed between two tables.
    """
    replaces, watermarks = replaces or {}, watermarks or {}
    touched = {*written.files, *written.seen, *replaces, *watermarks}
    for table in sorted(touched, key=lambda name: (name == "positions", name)):
        root.commit(
            table,
            batch=batch,
            files=written.files.get(table, ()),
            replaces=replaces.get(table, ()),
            watermark=watermarks.get(table),
            seen=written.seen.get(table),
        )


def run_parts(
    spark: SparkSession,
    root: TableRoot,
    batch: Batch | str,
    tasks: Sequence[Any],
    work: Callable[[TableRoot, Any, Writer], None],
    *,
    replace_hours: Mapping[str, Collection[datetime]] | None = None,
    watermarks: Mapping[str, datetime] | None = None,
    commit: bool = True,
) -> Written:
    """Run work on executors, one Spark task for each of `tasks`, and commit the result.
    tasks: picklable values, a few thousand at most. work: gets the root, one task and a writer.
    replace_hours: by table, whole hours whose present files are replaced."""
    name = Batch(batch) if isinstance(batch, str) else batch
    hours = {
        table: {to_us(hour_of(moment)) for moment in moments}
        for table, moments in (replace_hours or {}).items()
    }
    replaces = {
        table: [file for file in root.manifest(table).files if file.hour_us in wanted]
        for table, wanted in hours.items()
    }
    if not tasks:
        written = Written({}, {}, [])
    else:
        plan = list(tasks)

        def one(batches: Iterator[pa.RecordBatch], writer: Writer) -> None:
            for rows in batches:
                for index in rows.column(0).to_pylist():
                    work(root, plan[index], writer)

        frame = spark.range(0, len(plan), 1, len(plan))
        written = write_frame(frame, root, name, one)
    if commit:
        commit_all(root, name, written, replaces=replaces, watermarks=watermarks)
    return written


def _read(paths: Sequence[Path]) -> Written:
    files: dict[str, list[DataFile]] = {}
    seen: dict[str, dict[str, int]] = {}
    facts = []
    for path in paths:
        part = json.loads(path.read_bytes())
        for values in part["files"]:
            file = DataFile(*values)
            files.setdefault(file.table, []).append(file)
        for table, nodes in part["seen"].items():
            known = seen.setdefault(table, {})
            for node, tick in nodes.items():
                known[node] = max(tick, known.get(node, tick))
        facts.append(part["facts"])
    return Written(files, seen, facts)
