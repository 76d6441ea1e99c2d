"""The chain over the stage: which jobs run, with which arguments, in which order. Nothing is faked:
the same commands as in a deployment.

``collect`` and ``evaluate`` run beside each other while samples come, and until they are through
with them; then ``rollup``, ``forecast`` and ``report`` run once.
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
    # Jobs of a minute are most of all a JVM that warms up: a third less CPU without the second
    # compiler (forecast: 15 s of CPU instead of 23 s).
    *("--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"),
)
BUCKETS: Final = 2
"""Forty series: more buckets would be more tasks and no more work."""
OPEN_TICKS: Final = 3
"""A tick is closed by a later one of every broker, which a batch brings later still."""


class Source(NamedTuple):
    """What collect reads."""

    name: str
    options: Mapping[str, str]


def scraping(directory: Path, targets: Sequence[Target], times: Times) -> Source:
    """The nodes' own /metrics. Writes the file of targets, in the form of Prometheus' discovery."""
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
    """All jobs of one run. ``close`` ends what still runs."""

    def __init__(self, directory: Path, source: Source, times: Times) -> None:
        """directory: tables, checkpoints, logs and the report go below it."""
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
        """The page."""
        return self.report_dir / "report.html"

    @property
    def facts(self) -> Path:
        """The same as JSON."""
        return self.report_dir / "report.json"

    def start_collect(self) -> None:
        """Samples into tables, from now on."""
        self._streams.append(self._job("collect", *self._collect()))

    def start_evaluate(self) -> None:
        """Tables into statuses, from now on; needs tables that ``collect`` has begun."""
        self._streams.append(self._job("evaluate", *self._evaluate()))

    @property
    def has_samples(self) -> bool:
        """Whether ``collect`` has written some."""
        made = (self.tables / "_root.json").exists()
        return made and TableRoot(self.tables).has("positions")

    def is_through(self, until: datetime) -> bool:
        """Whether all is evaluated that was seen up to then, but for ticks that are still open."""
        left_s = self.left_s(until)
        return left_s is not None and left_s <= 0

    def left_s(self, until: datetime) -> float | None:
        """How much of what was seen up to then is not evaluated; None: nothing is."""
        mark = TableRoot(self.tables).watermark("pair_lag")
        if mark is None:
            return None
        return (until - mark).total_seconds() - OPEN_TICKS * self._times.period_s

    def check(self) -> None:
        """Raises StageFailed if a stream has ended."""
        for job in self._streams:
            job.check()

    def stop_streams(self) -> None:
        """Both end after their batch in hand; ``collect`` first."""
        while self._streams:
            self._streams[0].stop()
            self._streams.pop(0)

    def finish(self, meanwhile: Callable[[str], None]) -> None:
        """What is done once. meanwhile: called again and again with which job it is."""
        jobs: tuple[tuple[str, Sequence[str]], ...] = (
            ("rollup", self._batch()),
            ("forecast", self._batch()),
            ("report", ("--tables", str(self.tables), "--out", str(self.report_dir))),
        )
        for number, (name, arguments) in enumerate(jobs, 1):
            doing = f"{name}, job {number} of {len(jobs)}"
            job = self._job(name, *arguments)
            try:
                job.wait(lambda doing=doing: meanwhile(doing))  # type: ignore[misc]
            finally:
                job.close()

    def close(self) -> None:
        """End whatever runs."""
        for job in self._streams:
            job.close()
        self._streams.clear()

    def _job(self, name: str, *arguments: str) -> Job:
        return Job(name, [name, *arguments], self._logs)

    def _collect(self) -> list[str]:
        options = [f"{name}={value}" for name, value in self._source.options.items()]
        return [
            *self._stream("collect"),
            *("--source", self._source.name),
            *(word for option in options for word in ("--option", option)),
            *("--buckets", str(BUCKETS)),
        ]

    def _evaluate(self) -> list[str]:
        return [*self._stream("evaluate"), "--scaled", "--closing", "data"]

    def _stream(self, name: str) -> list[str]:
        period = f"{self._times.period_s:g}"
        return [
            *("--tables", str(self.tables)),
            *("--checkpoint", str(self._checkpoints / name)),
            *("--period", period),
            *("--trigger", period),
            *LOCAL,
        ]

    def _batch(self) -> list[str]:
        return ["--tables", str(self.tables), *LOCAL]
