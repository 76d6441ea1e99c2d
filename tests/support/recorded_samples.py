"""A source of samples that were written down before: a stream that gives the same each time.

`record` plays workloads with known answers into files, one for each tick and cluster; the format
`recorded_samples` hands them out a few ticks at a time, as a scraper would have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from analytics.schema import SAMPLES
from analytics.tables.frames import spark_schema
from tests.truth.rendered import samples_table
from tests.truth.workload import Truth

NAME = "recorded_samples"


def record(truths: Sequence[Truth], directory: Path) -> int:
    """Write what the workloads expose, each as a cluster of its own; return the number of ticks."""
    directory.mkdir(parents=True, exist_ok=True)
    ticks = max(len(truth.ticks()) for truth in truths)
    for shard, truth in enumerate(truths):
        whole = samples_table(replace(truth, cluster=f"c{shard}"))
        times = np.asarray(whole.column("ts").cast(pa.int64()))
        for number, at in enumerate(np.unique(times)):
            pq.write_table(
                whole.filter(pa.array(times == at)), directory / f"{number:06d}-{shard}.parquet"
            )
    return ticks


def delay(directory: Path, shard: int, ticks: range, until: int) -> None:
    """Let the samples of some ticks of one cluster come with those of a later tick."""
    late = [directory / f"{number:06d}-{shard}.parquet" for number in ticks]
    into = directory / f"{until:06d}-{shard}.parquet"
    tables = [pq.read_table(path, partitioning=None) for path in (*late, into)]
    pq.write_table(pa.concat_tables(tables), into)
    for path in late:
        path.unlink()


def hand_out(directory: Path, into: Path, until: int) -> None:
    """Move the files of the ticks before `until` to where the stream finds them."""
    into.mkdir(exist_ok=True)
    for path in directory.glob("[0-9]*.parquet"):
        if int(path.stem.split("-")[0]) < until:
            path.rename(into / path.name)


class RecordedPart(InputPartition):
    """One cluster's ticks from the first to before the end, by number."""

    def __init__(self, directory: str, shard: int, first: int, end: int) -> None:
        self.directory, self.shard, self.first, self.end = directory, shard, first, end

    def read(self) -> Iterator[pa.RecordBatch]:
        for number in range(self.first, self.end):
            path = Path(self.directory) / f"{number:06d}-{self.shard}.parquet"
            if path.exists():
                yield from pq.read_table(path, partitioning=None).cast(SAMPLES).to_batches()


def _extent(directory: str) -> tuple[int, int]:
    """How many clusters and ticks there are."""
    names = [path.stem.split("-") for path in Path(directory).glob("[0-9]*-*.parquet")]
    shards = max((int(shard) + 1 for _, shard in names), default=0)
    return shards, max((int(number) + 1 for number, _ in names), default=0)


class RecordedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Options: directory, ticks (in one batch), until (number of ticks there are in all)."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._directory, self._ticks = options["directory"], int(options.get("ticks", 4))
        self._last: int | None = None

    def initialOffset(self) -> dict[str, int]:
        return {"number": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._ticks)

    def prepareForTriggerAvailableNow(self) -> None:
        self._last = self._there()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        there = self._there() if self._last is None else self._last
        return {"number": min(there, start["number"] + self._ticks)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [
            RecordedPart(self._directory, shard, start["number"], end["number"])
            for shard in range(_extent(self._directory)[0])
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return cast(RecordedPart, partition).read()

    def commit(self, end: dict[str, int]) -> None: ...

    def stop(self) -> None: ...

    def _there(self) -> int:
        return _extent(self._directory)[1]


class RecordedBatch(DataSourceReader):
    """Options: directory, start, end (as of the source for Prometheus: start < ts <= end)."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._directory = options["directory"]
        self._start, self._end = (
            datetime.fromisoformat(options[name]).astimezone(UTC) for name in ("start", "end")
        )

    def partitions(self) -> Sequence[InputPartition]:
        shards, ticks = _extent(self._directory)
        return [RecordedPart(self._directory, shard, 0, ticks) for shard in range(shards)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for batch in cast(RecordedPart, partition).read():
            times = batch.column("ts").to_pylist()
            if times and self._start < times[0] <= self._end:
                yield batch


class RecordedSamples(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType | str:
        return spark_schema(SAMPLES)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return RecordedStream(dict(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        return RecordedBatch(dict(self.options))
