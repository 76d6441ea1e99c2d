"""Figure 26: what an hour of lag analytics costs, by the number of queues.

Each size is a process of its own. `collect` is the backfill of an hour from servers whose answers
are made beforehand; `evaluate` is that of an hour of positions. Both are the jobs through Spark
with two cores, after a warm-up. The journal is read without Spark, a batch per minute, as is a
batch of evaluation of a single tick.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import uvloop

from analytics.moments import to_us
from analytics.schema import COMPUTED, TIME
from analytics.sources.telemetry.options import BrokerSet
from analytics.sources.telemetry.samples import batches as samples_of
from analytics.tables import DataFile, TableRoot
from analytics.tables.parts import Writer, Written, commit_all
from analytics.tables.upkeep import keep_up
from bench.analytics_jobs import BEGIN, QUIET, TICKS, processor_seconds
from bench.analytics_positions import PERIOD_S, SLICE_S, CannedServer, hour, slices
from bench.harness import WORK_DIR, Figure, Options, Result, Series, at_most, benchmark
from bench.telemetry import Journal
from services.broker.telemetry import KEYFRAME_EVERY
from tidemark.formats.telemetry import decode
from tidemark.formats.telemetry_reader import SnapshotReader

SIZES: Final = (1_000, 3_000, 10_000, 30_000, 100_000)
OF_SERVER: Final = 5_000
"""Queues of one server: more samples than of so many do not fit into one answer."""
COLLECTED_MAX: Final = 30_000
"""More are more of the same: one server after the other."""
JOURNAL_TICKS: Final = KEYFRAME_EVERY
BATCH_TICKS: Final = 4
"""Ticks of a batch: a minute."""
LIVE_TICKS: Final = 64
"""Ticks that a table has in files of one tick; a batch reads the last sixty."""
QUEUES: Final = 10
"""Queues of a pair."""
CHUNK: Final = 1_000
"""Pairs that are generated at a time."""
PER_BUCKET: Final = 1_250
"""Queues of a bucket, as in figure 20."""
GOAL_SIZE: Final = 10_000


def main(given: Options) -> Result:
    sizes = given.pick(SIZES, quick=SIZES[:2])
    found = {size: measured(size) for size in sizes}
    at = GOAL_SIZE if GOAL_SIZE in found else sizes[-1]
    both = {n: f["collect"] + f["evaluate"] for n, f in found.items() if "collect" in f}
    by_journal = found[at]["journal"] + found[at]["evaluate"]
    larger = [f["evaluate"] / n / (found[at]["evaluate"] / at) for n, f in found.items() if n > at]
    linear = f"evaluate, dearest size against {at:,} queues"
    what = f"an hour of {at:,} queues"
    per_queue = {n: f["bytes"] / n for n, f in found.items()}
    lines = {
        "collect": [(n, f["collect"] / n * 1e4) for n, f in found.items() if "collect" in f],
        "collect, journal": [(n, f["journal"] / n * 1e4) for n, f in found.items()],
        "evaluate": [(n, f["evaluate"] / n * 1e4) for n, f in found.items()],
        "compact": [(n, f["compact"] / n * 1e4) for n, f in found.items()],
    }
    return Result(
        [
            at_most(f"{what}: collect and evaluate", "core-seconds", [both[at]], 20.0),
            at_most(f"{what}: the same with the journal", "core-seconds", [by_journal], 20.0),
            Figure(f"{what}: evaluate alone", "core-seconds", [found[at]["evaluate"]]),
            Figure("a batch of one tick of 10,000 queues", "core-seconds", [tick_evaluated()]),
            Figure(f"{what}: compact", "core-seconds", [found[at]["compact"]]),
            *([at_most(linear, "×", [max(larger)], 1.3)] if larger else []),
            at_most("all tables, sorted, per queue and hour", "bytes", [per_queue[at]], 300.0),
            Figure("of these, positions", "bytes", [found[at]["positions"] / at]),
        ],
        f"""Queues of pairs of {QUEUES}, a group each, 240 ticks, 60 % idle; a bucket for
        {PER_BUCKET:,} queues; local[2]. Processor time of driver, JVM and workers. Collect: four
        samples per queue and tick from servers of {OF_SERVER:,} queues on the loopback address,
        whose answers are made beforehand, over HTTP and JSON, into all collected tables. Journal:
        {JOURNAL_TICKS} snapshots with one keyframe, 40 % of the queues moving, from decoding to
        commits, {BATCH_TICKS} ticks in a batch, times {TICKS // JOURNAL_TICKS}; without the way
        through Spark. Evaluate: all computed tables. A batch of one tick: a quarter of an hour in
        files of one tick, in the process that has evaluated the tick before; without Spark.
        Compact: all tables, sorted, in one process. Bytes: all tables after it. Load of the
        machine beside it: {os.getloadavg()[1]:.0f}.""",
        series=[
            Series(
                "analytics_scale",
                "Lag analytics: an hour, per 10,000 queues",
                "queues",
                "core-seconds",
                lines,
            )
        ],
    )


def measured(size: int) -> dict[str, float]:
    """Run one size in a process of its own."""
    command = [sys.executable, "-m", "bench.analytics_scale", "one", str(size)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(size, found, flush=True)
    return found


def one(size: int) -> dict[str, float]:
    """Return the core-seconds of each job, and bytes, of an hour of this many queues."""
    from analytics.session import session

    work = WORK_DIR / f"analytics_scale_{size}"
    shutil.rmtree(work, ignore_errors=True)
    spark = session("bench", master="local[2]", driver_memory="1g", extra=QUIET)
    evaluated(spark, filled(work / "warm", 1_000))
    found: dict[str, float] = {}
    if size <= COLLECTED_MAX:
        found["collect"] = sum(
            collected(spark, work / f"collected{first}", min(OF_SERVER, size - first))
            for first in range(0, size, OF_SERVER)
        )
    root = filled(work / "tables", size)
    found["evaluate"] = evaluated(spark, root)
    spark.stop()
    found["journal"] = uvloop.run(journal_collected(work / "journal", size))
    before = processor_seconds()
    for table in root.tables():
        keep_up(root, table, BEGIN + timedelta(days=2), keep_days=36_500)
    found["compact"] = processor_seconds() - before
    sizes = {table: sum(f.size for f in root.files(table)) for table in root.tables()}
    found["bytes"], found["positions"] = sum(sizes.values()), sizes["positions"]
    found |= {f"bytes of {table}": sizes[table] for table in COMPUTED if table in sizes}
    shutil.rmtree(work, ignore_errors=True)
    return found


def filled(place: Path, size: int) -> TableRoot:
    """Create the collected tables of an hour."""
    root = TableRoot.create(place, buckets=max(8, size // PER_BUCKET))
    pairs = size // QUEUES
    for first in range(0, pairs, CHUNK):
        made = hour(min(CHUNK, pairs - first), QUEUES, TICKS, seed=first, first=first)
        logs = made.pop("logs")
        if first == 0:
            root.commit("logs", batch="made", files=root.write("logs", logs))
        for table, rows in made.items():
            root.commit(table, batch="made", files=root.write(table, rows))
    return root


def evaluated(spark: Any, root: TableRoot) -> float:
    """Evaluate the hour; return the core-seconds."""
    from analytics.jobs import evaluate
    from analytics.jobs.evaluate import EvaluateOptions
    from analytics.kernel.rules import Rules

    before = processor_seconds()
    end = BEGIN + timedelta(hours=1)
    evaluate.run(spark, EvaluateOptions(root.uri, Rules(), since=BEGIN, before=end))
    used = processor_seconds() - before
    rows = root.read("lag", columns=["tick"]).num_rows
    wanted = root.read("positions", columns=["tick"]).num_rows
    if rows != wanted:
        raise ValueError(f"{rows} rows of lag, not {wanted}")
    return used


def collected(spark: Any, place: Path, size: int) -> float:
    """Fill an hour from a server; return the core-seconds."""
    from analytics.jobs import backfill
    from analytics.jobs.backfill import BackfillOptions

    with CannedServer(slices(size)) as server:
        options = BackfillOptions(
            tables=place,
            since=BEGIN,
            before=BEGIN + timedelta(hours=1),
            source_options={"url": server.url, "slice": f"{SLICE_S}s"},
            period_s=PERIOD_S,
        )
        before = processor_seconds()
        done = backfill.run(spark, options)
        used = processor_seconds() - before
    if done.rows["positions"] != size * TICKS:
        raise ValueError(f"{done.rows['positions']} positions, not {size * TICKS}")
    return used


async def journal_collected(place: Path, size: int) -> float:
    """Read a journal into tables; return the core-seconds of an hour."""
    from analytics.jobs.landing import Landing

    root = TableRoot.create(place, buckets=max(8, size // PER_BUCKET))
    landing, journal = Landing(root, PERIOD_S, ()), Journal(size)
    reader, of, used = SnapshotReader(), BrokerSet((), "c", "g0", "n0"), 0.0
    for _ in range(0, JOURNAL_TICKS, BATCH_TICKS):
        ticks = []
        for _ in range(BATCH_TICKS):
            journal.world.move()
            ticks.append((await journal.snapshot())[1])
        began = time.process_time()
        writer = Writer(root)
        rows: list[pa.RecordBatch] = []
        for bodies in ticks:
            whole = [reader.feed(decode(body)) for body in bodies][-1]
            if whole is None:
                raise ValueError("a snapshot is not complete")
            rows += samples_of(whole, of)
        landing(iter(rows), writer)
        commit(root, "collect", writer)
        used += time.process_time() - began
    wanted, there = size * JOURNAL_TICKS, root.read("positions", columns=["tick"]).num_rows
    if there != wanted:
        raise ValueError(f"{there} positions, not {wanted}")
    return used * TICKS / JOURNAL_TICKS


def commit(root: TableRoot, batch: str, writer: Writer) -> None:
    """Commit what one task has written."""
    files: dict[str, list[DataFile]] = {}
    for file in writer.files:
        files.setdefault(file.table, []).append(file)
    commit_all(root, batch, Written(files, []))


def tick_evaluated() -> float:
    """Evaluate a tick whose look-back is in files of one tick; return the core-seconds."""
    from analytics.jobs.evaluate import Evaluation
    from analytics.kernel.rules import Rules
    from analytics.ticks.spark import Task

    place = WORK_DIR / "analytics_scale_tick"
    shutil.rmtree(place, ignore_errors=True)
    root = TableRoot.create(place, buckets=GOAL_SIZE // PER_BUCKET)
    made = hour(GOAL_SIZE // QUEUES, QUEUES, LIVE_TICKS, seed=1)
    root.commit("series", batch="made", files=root.write("series", made.pop("series")))
    for number in range(LIVE_TICKS):
        at = BEGIN + number * timedelta(seconds=PERIOD_S)
        for table, rows in made.items():
            own = rows.filter(pc.equal(rows["tick"], pa.scalar(at, TIME)))
            root.commit(table, batch="made", files=root.write(table, own))
    evaluation, used = Evaluation(root, Rules()), 0.0
    for number in (LIVE_TICKS - 2, LIVE_TICKS - 1):
        until = to_us(BEGIN) + number * PERIOD_S * 1_000_000
        began, writer = time.process_time(), Writer(root)
        for bucket in range(root.buckets):
            after = until - PERIOD_S * 1_000_000
            evaluation.bucket(Task(bucket, after, until, after, until), writer)
        commit(root, "evaluate", writer)
        used = time.process_time() - began
    shutil.rmtree(place)
    return used


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        print(json.dumps(one(int(sys.argv[2]))))
    else:
        benchmark(main)
