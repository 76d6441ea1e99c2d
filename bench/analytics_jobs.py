"""Jobs of lag analytics through Spark: evaluate on one and two cores, bytes per row, backfill.

Each run of evaluate is a separate process with `local[1]` or `local[2]`, alternately. The first
evaluation in it warms up the JVM and its Python workers and is not counted.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from analytics.errors import BadOption
from analytics.tables import TableRoot
from bench.analytics_positions import BEGIN_S, PERIOD_S, SLICE_S, CannedServer, hour, slices
from bench.harness import (
    WORK_DIR,
    Figure,
    Options,
    Result,
    at_most,
    benchmark,
    interleave,
    of_ratios,
)

PAIRS, QUEUES, TICKS = 625, 16, 240  # 10,000 series, an hour
SAMPLED_QUEUES: Final = 2_500  # four samples each: 10,000 series of Prometheus
BEGIN: Final = datetime.fromtimestamp(BEGIN_S, UTC)


def main(given: Options) -> Result:
    work = WORK_DIR / "analytics_jobs"
    shutil.rmtree(work, ignore_errors=True)
    tables = work / "tables"
    pairs = given.pick(PAIRS, quick=PAIRS // 10)
    per_row = fill(tables, pairs)
    rows = pairs * QUEUES * TICKS
    runs = interleave(
        {
            cores: lambda cores=cores: rows / run("evaluate", str(tables), cores)["seconds"]  # type: ignore[misc]
            for cores in ("1", "2")
        },
        runs=given.pick(3, quick=2),
        warm_up=0,
    )
    hours = given.pick(24, quick=1)
    filled = run("backfill", str(work / "filled"), str(hours))
    shutil.rmtree(work, ignore_errors=True)
    load = os.getloadavg()[1]
    backfilled = f"backfill of {hours} h of 10,000 series of Prometheus"
    cpu_time = "processor time of driver, JVM and workers"
    return Result(
        [
            at_most("positions on disk", "bytes/row", [per_row], 5.0),
            Figure("evaluate through Spark, two cores", "rows/s", runs["2"], 500_000),
            of_ratios("evaluate, two cores", runs["2"], runs["1"], 1.6, "one core"),
            at_most(backfilled, "s", [filled["seconds"]], 180.0 * hours / 24),
            Figure("the same, samples", "samples/s", [filled["samples"] / filled["seconds"]]),
            at_most(f"the same, {cpu_time}", "core-seconds", [filled["core_seconds"]]),
        ],
        f"""evaluate: one hour of {pairs * QUEUES} series of {pairs} pairs, 240 ticks, 60 % idle, in
        8 buckets on disk, all computed tables written; seconds of the job in a warm session. Bytes
        per row: the same positions as collect leaves them after compaction. backfill: {hours} h of
        {SAMPLED_QUEUES} queues of a group, four series each, every 15 s, from a server on the
        loopback address whose answers are made beforehand (it costs a copy of the bytes), over
        HTTP and JSON into all tables; local[2]. Load of the machine beside it: {load:.1f}.""",
    )


def fill(path: Path, pairs: int) -> float:
    """Create the tables of an hour; return the bytes per row of positions."""
    root = TableRoot.create(path, buckets=8)
    for table, rows in hour(pairs, QUEUES, TICKS, seed=1).items():
        root.commit(table, batch="made", files=root.write(table, rows))
    files = root.files("positions")
    return sum(file.size for file in files) / sum(file.rows for file in files)


def run(job: str, *arguments: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.analytics_jobs", job, *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(job, *arguments[1:], found, flush=True)
    return found


def one_evaluate(arguments: list[str]) -> dict[str, float]:
    """Return seconds and CPU time of one evaluation of the hour after a warm-up."""
    from analytics.jobs import evaluate
    from analytics.jobs.evaluate import EvaluateOptions
    from analytics.kernel.rules import Rules
    from analytics.session import session

    tables, cores = Path(arguments[0]), arguments[1]
    spark = session("bench", master=f"local[{cores}]", driver_memory="1g", extra=QUIET)
    given = EvaluateOptions(
        tables=tables, rules=Rules(), since=BEGIN, before=BEGIN + timedelta(hours=1)
    )
    evaluate.run(spark, given)
    before, began = processor_seconds(), time.monotonic()
    evaluate.run(spark, given)
    seconds, used = time.monotonic() - began, processor_seconds() - before
    spark.stop()
    return {"seconds": seconds, "core_seconds": used}


def one_backfill(arguments: list[str]) -> dict[str, float]:
    """Return seconds, samples and CPU time of a backfill."""
    from analytics.jobs import backfill
    from analytics.jobs.backfill import BackfillOptions
    from analytics.session import session

    tables, hours = Path(arguments[0]), int(arguments[1])
    spark = session("bench", master="local[2]", driver_memory="1g", extra=QUIET)
    spark.range(2).count()
    with CannedServer(slices(SAMPLED_QUEUES)) as server:
        before, began = processor_seconds(), time.monotonic()
        done = backfill.run(
            spark,
            BackfillOptions(
                tables=tables,
                since=BEGIN,
                before=BEGIN + timedelta(hours=hours),
                source_options={"url": server.url, "slice": f"{SLICE_S}s"},
                period_s=PERIOD_S,
            ),
        )
        seconds, used = time.monotonic() - began, processor_seconds() - before
    spark.stop()
    wanted = hours * 240 * SAMPLED_QUEUES
    if done.rows["positions"] != wanted:
        raise BadOption(f"{done.rows['positions']} positions, not {wanted}", "")
    return {"seconds": seconds, "samples": float(done.samples), "core_seconds": used}


def processor_seconds() -> float:
    """CPU time of this process and its descendants that are alive or were waited for."""
    tick, family = os.sysconf("SC_CLK_TCK"), {os.getpid()}
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        stats[int(path.parent.name)] = (int(fields[1]), sum(map(int, fields[11:15])))
    while more := {pid for pid, (parent, _) in stats.items() if parent in family} - family:
        family |= more
    return sum(used for pid, (_, used) in stats.items() if pid in family) / tick


QUIET: Final = {"spark.log.level": "ERROR"}

if __name__ == "__main__":
    JOBS: Final = {"evaluate": one_evaluate, "backfill": one_backfill}
    if len(sys.argv) > 1 and sys.argv[1] in JOBS:  # one run in this process
        print(json.dumps(JOBS[sys.argv[1]](sys.argv[2:])))
    else:
        benchmark(main)
