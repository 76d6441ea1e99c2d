"""Run the analytics jobs over the stage, with the same commands as in a deployment.

``collect`` and ``evaluate`` run concurrently while samples arrive, and until they have processed
all. Then ``rollup``, ``forecast`` and ``report`` run once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from analytics.tables import TableRoot
from drills.lag.jobs import Job
from drills.lag.plan import Times
from drills.lag.processes import Target

LOCAL: Final = (
    *("--master", "local[2]", "--driver-memory", "1g", "--conf", "spark.ui.enabled=false"),
    # Short jobs consist mostly of JVM warm-up: without the second compiler they need a third less
    # CPU (forecast: 15 s of CPU instead of 23 s).
    *("--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"),
)
BUCKETS: Final = 2
"""There are forty series: more buckets would be more tasks without more work."""
OPEN_TICKS: Final = 3
"""A tick is closed by a later one of every broker, which arrives with a later batch."""


class Source(NamedTuple):
    name: str
    options: Mapping[str, str]


def scraping(directory: Path, targets: Sequence[Target], times: Times) -> Source:
    """Scrape the nodes' own /metrics; writes the targets file in the format of Prometheus."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "targets.json"
    entries = [
        {"targets": [f"127.0.0.1:{target.port}"], "labels": target.labels} for target in targets
    ]
    path.write_text(json.dumps(entries, indent=1), encoding="utf-8")
    return Source(
        "scrape",
        {
            "targets": str(path),
            "interval": f"{times.period_s:g}",
            "timeout": f"{min(times.period_s / 2, 5):g}",
            "spool": str(directory / "spool"),
        },
    )


class Pipeline:
    """All jobs of one run. ``close`` stops those that still run."""

    def __init__(self, directory: Path, source: Source, times: Times) -> None:
        """directory: contains tables, checkpoints, logs and the report."""
        self.tables, self.report_dir = directory / "tables", directory / "report"
        self._checkpoints, self._logs = directory / "checkpoints", directory / "logs"
        self._source, self._times = source, times
        self._streams: list[Job] = []
        self._logs.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def report(self) -> Path:
        return self.report_dir / "report.html"

    @property
    def facts(self) -> Path:
        return self.report_dir / "report.json"

    def start_collect(self) -> None:
        """Start the stream that writes samples to tables."""
        options = (f"{name}={value}" for name, value in self._source.options.items())
        words = [word for option in options for word in ("--option", option)]
        self._start("collect", "--source", self._source.name, *words, "--buckets", str(BUCKETS))

    def start_evaluate(self) -> None:
        """Start the stream that evaluates tables; needs tables from ``collect``."""
        self._start("evaluate", "--scaled", "--closing", "data")

    @property
    def has_samples(self) -> bool:
        """Whether ``collect`` has written samples."""
        made = (self.tables / "_root.json").exists()
        return made and TableRoot(self.tables).has("positions")

    def is_through(self, until: datetime) -> bool:
        """Whether all samples up to that time are evaluated, except for ticks that are still
        open."""
        left_s = self.left_s(until)
        return left_s is not None and left_s <= 0

    def left_s(self, until: datetime) -> float | None:
        """Seconds of samples up to that time that are not evaluated; None: none is evaluated."""
        mark = TableRoot(self.tables).watermark("pair_lag")
        if mark is None:
            return None
        return (until - mark).total_seconds() - OPEN_TICKS * self._times.period_s

    def check(self) -> None:
        for job in self._streams:
            job.check()

    def stop_streams(self) -> None:
        """Stop both after their current batch; ``collect`` first."""
        while self._streams:
            self._streams[0].stop()
            self._streams.pop(0)

    def finish(self, meanwhile: Callable[[str], None]) -> None:
        """Run the final jobs. meanwhile: called repeatedly with the current job."""
        jobs: dict[str, Sequence[str]] = {
            "rollup": LOCAL,
            "forecast": LOCAL,
            "report": ("--out", str(self.report_dir)),
        }
        for number, (name, arguments) in enumerate(jobs.items(), 1):
            doing = f"{name}, job {number} of {len(jobs)}"
            job = self._job(name, *arguments)
            try:
                job.wait(lambda doing=doing: meanwhile(doing))  # type: ignore[misc]
            finally:
                job.close()

    def close(self) -> None:
        for job in self._streams:
            job.close()
        self._streams.clear()

    def _start(self, name: str, *more: str) -> None:
        period = f"{self._times.period_s:g}"
        checkpoint = str(self._checkpoints / name)
        times = ("--checkpoint", checkpoint, "--period", period, "--trigger", period)
        self._streams.append(self._job(name, *times, *LOCAL, *more))

    def _job(self, name: str, *arguments: str) -> Job:
        return Job(name, [name, "--tables", str(self.tables), *arguments], self._logs)
