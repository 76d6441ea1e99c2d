"""Jobs in a process of their own that is killed at random, and started again.

`python -m tests.support.killed_jobs collect|evaluate TABLES CHECKPOINT RECORDED` runs one to its
end; `killed` starts it, waits until it writes, kills driver and JVM at once, and returns the state
of the tables.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from analytics.errors import TablesMissing
from analytics.tables import TableRoot

READY_S = 300.0
"""Until the first batch of a fresh JVM, on a machine that does other things."""


def command(job: str, tables: str | Path, checkpoint: Path, recorded: Path) -> list[str]:
    return [
        sys.executable,
        "-m",
        "tests.support.killed_jobs",
        job,
        *(str(path) for path in (tables, checkpoint, recorded)),
    ]


def killed(
    arguments: list[str], log: Path, version: Callable[[], int], chance: random.Random
) -> bool:
    """Run until the tables move, then kill after a random while; False: it ended before that.

    version: something that grows with each commit.
    """
    before = version()
    with log.open("ab") as out:
        process = subprocess.Popen(
            arguments, stdout=out, stderr=out, start_new_session=True, cwd=Path(__file__).parents[2]
        )
    deadline = time.monotonic() + READY_S
    while version() == before and process.poll() is None:
        assert time.monotonic() < deadline, f"nothing was written in {READY_S} s; see {log}"
        time.sleep(0.02)
    pause = chance.uniform(0.0, 2.5)
    try:
        status = process.wait(pause)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        wait_for_group(process.pid)
        return True
    assert status == 0, f"the job ended with status {status}: {log.read_text()[-2000:]}"
    return False


def wait_for_group(group: int) -> None:
    """Wait until the JVM of the killed driver is gone as well: it holds the checkpoint."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    raise AssertionError(f"processes of group {group} outlive SIGKILL")


def versions(tables: str | Path, names: tuple[str, ...]) -> int:
    """How many commits these tables had."""
    try:
        root = TableRoot(tables)
    except TablesMissing:
        return 0
    return sum(root.version(name) for name in names)


def main() -> None:
    job, tables, *paths = sys.argv[1:]
    checkpoint, recorded = (Path(path) for path in paths)
    from analytics.session import session
    from tests.support.job_runs import collect_recorded, evaluate_closed
    from tests.support.recorded_samples import RecordedSamples

    spark = session(job, master="local[2]", buckets=4, driver_memory="1g")
    spark.dataSource.register(RecordedSamples)
    if job == "collect":
        collect_recorded(spark, tables, checkpoint, recorded)
    else:
        evaluate_closed(spark, tables, checkpoint)
    spark.stop()


if __name__ == "__main__":
    main()
