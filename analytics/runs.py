"""Notes on runs of jobs: one small file per job in ``ROOT/_runs``, replaced after each good run.

Counts only grow, so that a periodic reader (``export``) misses no run. A failed run leaves the file
unchanged. Each job has one writer. Step before: a job, or a micro-batch of it. Step after:
``analytics.export``, which exports them as metrics.
"""

from __future__ import annotations

import json
import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from analytics.local_path import replace_text
from shared.metrics.catalogue.analytics import RUN_BUCKETS

DIRECTORY: Final = "_runs"
VERSION: Final = 1


class BadRuns(ValueError):
    """The file with the runs of a job is damaged."""


@dataclass(slots=True)
class Runs:
    """Summary of one job's runs."""

    job: str
    finished_at: float = math.nan
    """End of the last good run [wall clock s]."""
    runs: int = 0
    seconds: float = 0.0
    """Total duration of all runs [s]."""
    buckets: list[int] = field(default_factory=lambda: [0] * (len(RUN_BUCKETS) + 1))
    """Number of runs by duration; the last entry exceeds every bound."""
    rows: dict[str, int] = field(default_factory=dict)
    """Rows written, by table."""
    watermarks: dict[str, float] = field(default_factory=dict)
    """Newest sample time read [wall clock s], by source."""

    def noted(self, finished_at: float, seconds: float, run: Run) -> Runs:
        """Return the summary with one more run."""
        buckets = list(self.buckets)
        buckets[bisect_left(RUN_BUCKETS, seconds)] += 1
        rows = dict(self.rows)
        for table, count in run.written.items():
            rows[table] = rows.get(table, 0) + count
        marks = dict(self.watermarks)
        for source, mark in run.marks.items():
            marks[source] = max(mark, marks.get(source, mark))
        return Runs(
            self.job, finished_at, self.runs + 1, self.seconds + seconds, buckets, rows, marks
        )


@dataclass(slots=True)
class Run:
    """One run in progress."""

    written: dict[str, int] = field(default_factory=dict)
    marks: dict[str, float] = field(default_factory=dict)

    def rows(self, table: str, count: int) -> None:
        """Add to the number of rows written to a table."""
        self.written[table] = self.written.get(table, 0) + count

    def wrote(self, counts: Mapping[str, int]) -> None:
        """Add the rows of several tables."""
        for table, count in counts.items():
            self.rows(table, count)

    def watermark(self, source: str, newest: datetime) -> None:
        """Note the newest sample time of a source; an older one changes nothing."""
        moment = newest.astimezone(UTC).timestamp()
        self.marks[source] = max(moment, self.marks.get(source, moment))


@contextmanager
def run(
    root: Path,
    job: str,
    *,
    clock: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
) -> Iterator[Run]:
    """Note a run of a job if it ends without an exception."""
    began, under_way = monotonic(), Run()
    yield under_way
    before = read(root, job) or Runs(job)
    _write(root, before.noted(clock(), monotonic() - began, under_way))


def read(root: Path, job: str) -> Runs | None:
    """Return the summary of a job; None if no run ended well. Raises BadRuns."""
    try:
        text = _path(root, job).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        found: dict[str, Any] = json.loads(text)
        if found.pop("version") != VERSION:
            raise BadRuns(f"{_path(root, job)} is of another version")
        runs = Runs(**found)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadRuns(f"{_path(root, job)}: {error}") from error
    if len(runs.buckets) != len(RUN_BUCKETS) + 1:
        raise BadRuns(f"{_path(root, job)} has {len(runs.buckets)} buckets")
    return runs


def read_all(root: Path) -> Mapping[str, Runs]:
    """Return the summaries of all jobs. Raises BadRuns."""
    found: dict[str, Runs] = {}
    for path in sorted((root / DIRECTORY).glob("*.json")):
        runs = read(root, path.stem)
        if runs is not None:
            found[path.stem] = runs
    return found


def _path(root: Path, job: str) -> Path:
    return root / DIRECTORY / f"{job}.json"


def _write(root: Path, runs: Runs) -> None:
    path = _path(root, runs.job)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps({"version": VERSION, **asdict(runs)}) + "\n")
