"""Reads a store through ``tidemark_store``: records per second with Spark on two cores, and alone.

The store is written by the code of broker and reput. The baseline is one process that reads the
same bytes once, from the page cache and from disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import pyarrow
import pyspark
from pyspark.sql import SparkSession

from analytics.session import session
from analytics.sources.store.options import StoreOptions
from analytics.sources.store.reader import StoreReader
from bench.dispatch import Log, Shape
from bench.harness import Figure, Options, Result, benchmark, interleave, of_ratios
from bench.servers import work_dir
from bench.stores import drop_cache
from services.reput.config import ReputConfig
from tidemark.formats import native
from tidemark.formats.filenames import offset_name

RECORDS_GOAL: Final = 1e6
RATIO_GOAL: Final = 0.5
FILE_SIZE: Final = 1 << 30
SHAPE: Final = Shape(body_size=860, queues=384, keys=True)
"""Including topic, tag, key and unique id, a record has about one kilobyte."""
MARGIN: Final = 32 << 20
"""What the last file of the log lacks to be full."""
READ_SIZE: Final = 2 << 20
FEW: Final = ("topic", "queue", "queue_offset", "store_ts", "body_size", "gap")
ALL: Final = tuple(StoreOptions(root=Path()).schema.names)
READ: Final = "one sequential read of the same bytes"


def sequential(root: Path, size: int) -> float:
    """Return the seconds to read the log once."""
    began = time.perf_counter()
    for start in range(0, size, FILE_SIZE):
        with (root / "commitlog" / offset_name(start)).open("rb", buffering=0) as file:
            left = min(FILE_SIZE, size - start)
            while left:
                left -= len(file.read(min(READ_SIZE, left)))
    return time.perf_counter() - began


def from_disk(root: Path, job: Callable[[], float]) -> Callable[[], float]:
    """Return the job preceded by dropping the log from the page cache."""

    def run() -> float:
        for path in (root / "commitlog").glob("[0-9]*"):
            drop_cache(path)
        return job()

    return run


def alone(root: Path, columns: Sequence[str], expected: int) -> float:
    """Return the seconds that the reader takes in this process, including planning."""
    reader = StoreReader(StoreOptions(root=root, columns=tuple(columns)))
    began = time.perf_counter()
    rows = sum(len(found) for part in reader.plan() for found in reader.read(part))
    seconds = time.perf_counter() - began
    assert rows == expected, f"{rows} rows of {expected} records"
    return seconds


def with_spark(spark: SparkSession, root: Path, columns: Sequence[str]) -> float:
    """Return the seconds until Spark has read every row of these columns, including planning."""
    frame = (
        spark.read.format("tidemark_store")
        .options(root=str(root), columns=",".join(columns))
        .load()
    )
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def main(given: Options) -> Result:
    size = given.pick(4, quick=1) * FILE_SIZE - MARGIN
    with closing(Log(work_dir("analytics-store-"), SHAPE, size)) as log:
        log.dispatch(ReputConfig().step_size)
        return _measure(given, log)


def _measure(given: Options, log: Log) -> Result:
    root, count = log.root, log.records
    spark = session("bench", master="local[2]", driver_memory="1g")
    try:
        rows = spark.read.format("tidemark_store").options(root=str(root), columns="size,gap")
        assert rows.load().where("gap is null").count() == count

        def read() -> float:
            return sequential(root, log.size)

        def few() -> float:
            return with_spark(spark, root, FEW)

        jobs: dict[str, Callable[[], float]] = {
            "read from disk": from_disk(root, read),
            "spark few from disk": from_disk(root, few),
            "read": read,
            "spark all": lambda: with_spark(spark, root, ALL),
            "spark few": few,
            "alone all": lambda: alone(root, ALL, count),
            "alone few": lambda: alone(root, FEW, count),
        }
        seconds = interleave(jobs, runs=given.runs)
    finally:
        spark.stop()
    rates = {name: [count / each for each in found] for name, found in seconds.items()}
    what, alone_on = "records of a log through Spark on two cores", "the reader alone on one core"
    unit, six, every = "records/s", f"{what}, 6 columns", f"{what}, all {len(ALL)} columns"
    few_disk, read_disk = rates["spark few from disk"], rates["read from disk"]
    figures = [
        Figure(six, unit, rates["spark few"], RECORDS_GOAL),
        of_ratios(six, rates["spark few"], rates["read"], RATIO_GOAL, READ),
        of_ratios(f"{six}, from disk", few_disk, read_disk, RATIO_GOAL, f"{READ} from disk"),
        Figure(every, unit, rates["spark all"], RECORDS_GOAL, READ, rates["read"]),
        Figure(f"{alone_on}, 6 columns", unit, rates["alone few"]),
        Figure(f"{alone_on}, all columns", unit, rates["alone all"]),
    ]
    return Result(
        figures,
        f"""{count:,} records of about 1 kB in {-(-log.size // FILE_SIZE)} files of
        1 GiB and {SHAPE.queues} queues, in the page cache or dropped from it. Spark local[2], rows
        to the sink noop, planning included. The baseline is one process with pread of 2 MiB.""",
        versions={"PySpark": pyspark.__version__, "pyarrow": pyarrow.__version__},
        notes=[] if native.COMPILED else [native.WHY_PURE],
    )


if __name__ == "__main__":
    benchmark(main)
