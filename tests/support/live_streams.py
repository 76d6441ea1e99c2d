"""collect and evaluate as streams in processes of their own, on any master of Spark.

`python -m tests.support.live_streams collect|evaluate TABLES CHECKPOINT URL MASTER` runs one until
it is stopped. `LiveStream` starts it, and kills its driver or an executor.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyspark
from pyspark.sql import SparkSession

from analytics.jobs import collect, evaluate
from analytics.jobs.collect import CollectOptions
from analytics.jobs.evaluate import COMPUTED, EvaluateOptions
from analytics.jobs.landing import LANDED
from analytics.jobs.streaming import STOP_FILE, Pace
from analytics.kernel.rules import Rules
from analytics.session import session
from tests.support.canned_samples import NAME, CannedSamples
from tests.support.killed_jobs import versions, wait_for_group

BUCKETS: Final = 4
RECORDS: Final = 40
"""Records of each broker set in one batch."""
STOP_S: Final = 300.0
_EXECUTOR: Final = b"CoarseGrainedExecutorBackend"


def run(
    spark: SparkSession, job: str, tables: Path, checkpoint: Path, url: str, *, ends: bool
) -> None:
    """Run one job. ends: do what is there, and end; otherwise until it is stopped."""
    # The test reads the offsets of all batches.
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", "100000")
    pace = Pace(checkpoint, trigger_s=1.0, available_now=ends)
    if job == "collect":
        spark.dataSource.register(CannedSamples)
        asked = {"url": url, "records": str(RECORDS)}
        collect.run(spark, CollectOptions(tables, pace, NAME, asked, buckets=BUCKETS))
    else:
        evaluate.opened(tables, wait=True)
        evaluate.run(spark, EvaluateOptions(tables, Rules(), pace, closing="data"))


class LiveStream:
    """One job in a process of its own."""

    def __init__(self, job: str, tables: Path, url: str, directory: Path, master: str) -> None:
        self.job = job
        self._tables = tables
        self._writes = LANDED if job == "collect" else COMPUTED
        self._version = 0
        self.checkpoint = directory / job
        self._log = directory / f"{job}.log"
        self._command = [sys.executable, "-m", "tests.support.live_streams", job]
        self._command += [str(tables), str(self.checkpoint), url, master]
        self._environment = os.environ | {"SPARK_HOME": str(spark_home(directory))}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it in a group of processes of its own."""
        self._version = versions(self._tables, self._writes)
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(
                self._command,
                stdout=out,
                stderr=out,
                start_new_session=True,
                cwd=Path(__file__).parents[2],
                env=self._environment,
            )

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The driver, which was started."""
        assert self._process is not None
        return self._process

    @property
    def has_written(self) -> bool:
        """Whether it has committed something since it was started."""
        return versions(self._tables, self._writes) > self._version

    def check(self) -> None:
        """Assert that it runs."""
        status = self.process.poll()
        assert status is None, f"{self.job} ended: {status}\n{self._log.read_text()[-3000:]}"

    def kill_driver(self) -> None:
        """Kill the driver with its JVM and executors."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        wait_for_group(self.process.pid)

    def kill_executor(self) -> None:
        """Kill one of its executors."""
        os.kill(next(executors(self.process.pid)), signal.SIGKILL)

    def stop(self) -> None:
        """Let it end after its batch. A driver that begins removes the marker of an earlier end."""
        deadline = time.monotonic() + STOP_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"{self.job} does not end in {STOP_S} s"
            (self.checkpoint / STOP_FILE).touch()
            time.sleep(0.2)
        assert self.process.returncode == 0, self._log.read_text()[-3000:]


def spark_home(directory: Path) -> Path:
    """Return a directory with what the installed Spark has: workers write below it."""
    home = directory / "spark"
    home.mkdir(exist_ok=True)
    for path in Path(pyspark.__file__).parent.iterdir():
        link = home / path.name
        if path.name != "work" and not link.is_symlink():
            link.symlink_to(path)
    return home


def executors(group: int) -> Iterator[int]:
    """Process ids of the executors in a group of processes."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(path.name)) == group and _EXECUTOR in (path / "cmdline").read_bytes():
                yield int(path.name)
        except (ProcessLookupError, FileNotFoundError):
            continue  # it has ended meanwhile


def main() -> None:
    job, tables, checkpoint, url, master = sys.argv[1:]
    spark = session(
        job,
        master=master,
        buckets=BUCKETS,
        driver_memory="1g",
        extra={"spark.executor.memory": "1g", "spark.log.level": "ERROR"},
    )
    run(spark, job, Path(tables), Path(checkpoint), url, ends=False)
    spark.stop()


if __name__ == "__main__":
    main()
