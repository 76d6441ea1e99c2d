"""A store's files through ``tidemark_store``: records a second with Spark on two cores, and alone.

The log is written here, record by record as a broker does it, without queues: cuts are found by
walking sizes, which is the slower way. The baseline is one process that reads the same bytes once,
from the page cache, as everything here does.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pyarrow
import pyspark
from pyspark.sql import SparkSession

from analytics.session import session
from analytics.sources.store.options import StoreOptions
from analytics.sources.store.reader import StoreReader
from bench.harness import WORK_DIR, Figure, interleave, of_ratios, options, report
from tidemark.formats import batch, properties, record, twins
from tidemark.formats.batch import WireMessage
from tidemark.formats.filenames import offset_name
from tidemark.formats.hosts import parse
from tidemark.formats.runs import Run

RECORDS_GOAL: Final = 1e6
RATIO_GOAL: Final = 0.3
FILE_SIZE: Final = 1 << 30
FILES: Final = 4
FILES_QUICK: Final = 1
BATCH: Final = 256
BODY_SIZE: Final = 860
"""With its topic, tag, key and unique id a record of about a kilobyte."""
TOPICS: Final = 50
READ_SIZE: Final = 2 << 20
HOST: Final = parse("127.0.0.1:10911")
NOW_MS: Final = 1_790_000_000_000
FEW: Final = ("topic", "queue", "queue_offset", "store_ts", "body_size", "gap")
ALL: Final = tuple(StoreOptions(root=Path()).schema.names)
READ: Final = "one sequential read of the same bytes"


def write_log(root: Path, files: int) -> int:
    """Files of a log without queues or page; the number of records in them."""
    directory = root / "commitlog"
    directory.mkdir(parents=True)
    made = 0
    for number in range(files):
        start = number * FILE_SIZE
        with (directory / offset_name(start)).open("wb") as file:
            at = 0
            while True:
                run = _run(made)
                size = twins.runs_size([run], record_crc=True)
                if at + size + record.BLANK_SIZE > FILE_SIZE:
                    break
                view = memoryview(bytearray(size))
                twins.encode_runs(
                    view,
                    [run],
                    firsts=[made],
                    physical_offset=start + at,
                    store_timestamp_ms=NOW_MS + made,
                    record_crc=True,
                )
                file.write(view)
                at += size
                made += BATCH
            file.write(record.encode_blank(FILE_SIZE - at))
            file.truncate(FILE_SIZE)
    return made


def _run(first: int) -> Run:
    named = [
        properties.encode(
            {"KEYS": f"order-{number}", "TAGS": f"kind{number % 5}", "UNIQ_KEY": f"{number:032X}"}
        )
        for number in range(first, first + BATCH)
    ]
    body = os.urandom(BODY_SIZE)
    messages = [WireMessage(body, raw) for raw in named]
    topic = f"topic-{first // BATCH % TOPICS}"
    return Run(topic, first % 8, batch.encode(messages), BATCH, HOST, HOST, NOW_MS)


def sequential(root: Path) -> float:
    """Seconds to read every file once."""
    began = time.perf_counter()
    for path in sorted((root / "commitlog").iterdir()):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            at = 0
            while piece := os.pread(descriptor, READ_SIZE, at):
                at += len(piece)
        finally:
            os.close(descriptor)
    return time.perf_counter() - began


def alone(root: Path, columns: Sequence[str], expected: int) -> float:
    """Seconds of the reader in this process, planning included."""
    reader = StoreReader(StoreOptions(root=root, columns=tuple(columns)))
    began = time.perf_counter()
    rows = sum(len(found) for part in reader.plan() for found in reader.read(part))
    seconds = time.perf_counter() - began
    assert rows == expected, f"{rows} rows of {expected} records"
    return seconds


def with_spark(spark: SparkSession, root: Path, columns: Sequence[str]) -> float:
    """Seconds until Spark has had every row of these columns, planning included."""
    frame = (
        spark.read.format("tidemark_store")
        .options(root=str(root), columns=",".join(columns))
        .load()
    )
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def main() -> int:
    """Measure and report."""
    given = options(__doc__)
    root = WORK_DIR / "analytics_store"
    shutil.rmtree(root, ignore_errors=True)
    count = write_log(root, FILES_QUICK if given.quick else FILES)
    spark = session("bench", master="local[2]", driver_memory="1g")
    try:
        rows = spark.read.format("tidemark_store").options(root=str(root), columns="size,gap")
        assert rows.load().where("gap is null").count() == count
        jobs: dict[str, Callable[[], float]] = {
            "read": lambda: sequential(root),
            "spark all": lambda: with_spark(spark, root, ALL),
            "spark few": lambda: with_spark(spark, root, FEW),
            "alone all": lambda: alone(root, ALL, count),
            "alone few": lambda: alone(root, FEW, count),
        }
        seconds = interleave(jobs, runs=given.runs)
    finally:
        spark.stop()
        shutil.rmtree(root, ignore_errors=True)
    rates = {name: [count / each for each in found] for name, found in seconds.items()}
    what = "records of a log through Spark on two cores"
    figures = [
        Figure(f"{what}, 6 columns", "records/s", rates["spark few"], RECORDS_GOAL),
        of_ratios(f"{what}, 6 columns", rates["spark few"], rates["read"], RATIO_GOAL, READ),
        Figure(
            f"{what}, all {len(ALL)} columns",
            "records/s",
            rates["spark all"],
            RECORDS_GOAL,
            READ,
            rates["read"],
        ),
        Figure("the reader alone on one core, 6 columns", "records/s", rates["alone few"]),
        Figure("the reader alone on one core, all columns", "records/s", rates["alone all"]),
    ]
    return report(
        "analytics_store",
        figures,
        f"""{count:,} records of about 1 kB in {FILES_QUICK if given.quick else FILES} files of
        1 GiB, in the page cache. Spark local[2], rows to the sink noop, planning included. The
        baseline is one process with pread of 2 MiB.""",
        quick=given.quick,
        versions={"PySpark": pyspark.__version__, "pyarrow": pyarrow.__version__},
        notes=[] if twins.COMPILED else [twins.WHY_PURE],
    )


if __name__ == "__main__":
    sys.exit(main())
