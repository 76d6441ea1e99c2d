"""Figure 26: what an hour of lag analytics costs, by the number of queues.

Each size is a process of its own. `collect` is the backfill of an hour from a server whose answers
are made beforehand; `evaluate` is that of an hour of positions. Both are the jobs through Spark
with two cores, after a warm-up.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from analytics.jobs.evaluate import COMPUTED
from analytics.tables import TableRoot
from analytics.tables.upkeep import keep_up
from bench.analytics_jobs import BEGIN, QUIET, TICKS, processor_seconds
from bench.analytics_positions import PERIOD_S, SLICE_S, CannedServer, hour, slices
from bench.harness import WORK_DIR, Figure, Options, Result, Series, at_most, benchmark

SIZES: Final = (1_000, 3_000, 10_000, 30_000, 100_000)
COLLECTED_MAX: Final = 30_000
"""More do not fit into one answer of the server."""
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
    dearest = max(f["evaluate"] / n for n, f in found.items() if n >= at)
    ratio = dearest / (found[at]["evaluate"] / at)
    what = f"an hour of {at:,} queues"
    per_queue = {n: f["bytes"] / n for n, f in found.items()}
    lines = {
        "collect": [(n, f["collect"] / n * 1e4) for n, f in found.items() if "collect" in f],
        "evaluate": [(n, f["evaluate"] / n * 1e4) for n, f in found.items()],
        "compact": [(n, f["compact"] / n * 1e4) for n, f in found.items()],
    }
    return Result(
        [
            at_most(f"{what}: collect and evaluate", "core-seconds", [both[at]], 20.0),
            Figure(f"{what}: compact", "core-seconds", [found[at]["compact"]]),
            at_most(f"evaluate, dearest size against {at:,} queues", "×", [ratio], 1.3),
            at_most("all tables, sorted, per queue and hour", "bytes", [per_queue[at]], 300.0),
            Figure("of these, positions", "bytes", [found[at]["positions"] / at]),
        ],
        f"""Queues of pairs of {QUEUES}, a group each, 240 ticks, 60 % idle; a bucket for
        {PER_BUCKET:,} queues; local[2]. Processor time of driver, JVM and workers. Collect: four
        samples per queue and tick from a server on the loopback address whose answers are made
        beforehand, over HTTP and JSON, into all collected tables. Evaluate: all computed tables.
        Compact: all tables, sorted, in one process. Bytes: all tables after it.""",
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
        found["collect"] = collected(spark, work / "collected", size)
    root = filled(work / "tables", size)
    found["evaluate"] = evaluated(spark, root)
    spark.stop()
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


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        print(json.dumps(one(int(sys.argv[2]))))
    else:
        benchmark(main)
