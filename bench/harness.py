"""Measures a figure and its baseline, interleaved in one run; prints and stores the results.

A module of this package builds its jobs, passes them to ``interleave``, creates a ``Figure`` per
goal and ends with ``report``. A rate or a time is judged by its median. It is compared with its
baseline by the median of the ratios of single runs, because a drift of the machine affects both.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, NoReturn, TypeVar

PROJECT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = PROJECT / "bench" / "results"
WORK_DIR: Final = Path(os.environ.get("TIDEMARK_BENCH_DIR") or PROJECT / "build" / "bench")
"""Directory for stores and the data of other servers; it must be on a real disk."""
NAMES: Final = (
    "encode",
    "dispatch",
    "http_single",
    "http_batch",
    "pull",
    "latency",
    "durable",
    "query",
    "restart",
    "many_queues",
    "idle",
    "end_to_end",
    "client",
    "one_bad_client",
    "replication",
    "write_pool",
    "growth",
    "metrics",
    "telemetry",
    "names",
    "broker_groups",
    "analytics_sources",
    "analytics_store",
    "analytics_evaluate",
    "analytics_jobs",
    "analytics_report",
    "analytics_scale",
    "analytics_detectors",
)
"""All benchmarks in the order of the figures, the longest last."""
RUNS: Final = 5
"""Measured runs of each job, not counting the warm-up."""
QUICK_RUNS: Final = 2

T = TypeVar("T")


class Figure(NamedTuple):
    """One measurement, its goal and its baseline."""

    what: str
    unit: str
    values: Sequence[float]
    """One per run."""
    goal: float | None = None
    """In ``unit``: the minimum of the median, or its maximum with more_is_better=False."""
    baseline: str = ""
    """Description of the baseline; "" if there is none."""
    baseline_values: Sequence[float] = ()
    """One per run, in the same unit, measured next to the value with the same index."""
    more_is_better: bool = True

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def ratio(self) -> float | None:
        """Median of value / baseline value per run; None without a baseline."""
        if not self.baseline_values:
            return None
        pairs = zip(self.values, self.baseline_values, strict=True)
        return statistics.median(value / base for value, base in pairs)

    @property
    def met(self) -> bool:
        """Whether the median reaches the goal; True without a goal."""
        if self.goal is None:
            return True
        return self.median >= self.goal if self.more_is_better else self.median <= self.goal

    def as_dict(self) -> dict[str, object]:
        ratio = self.ratio
        baseline = self.baseline
        if self.baseline_values:
            baseline += f" ({shown(statistics.median(self.baseline_values))} {self.unit})"
        return {
            "what": self.what,
            "median": _rounded(self.median),
            "min": _rounded(min(self.values)),
            "max": _rounded(max(self.values)),
            "unit": self.unit,
            "goal": self.goal,
            "baseline": baseline or None,
            "ratio": None if ratio is None else _rounded(ratio),
        }

    def line(self) -> str:
        text = (
            f"{self.what}: {shown(self.median)} {self.unit} "
            f"({shown(min(self.values))} to {shown(max(self.values))})"
        )
        if self.goal is not None:
            sign = "≥" if self.more_is_better else "≤"
            text += f"; goal {sign} {shown(self.goal)} {'met' if self.met else 'MISSED'}"
        if self.ratio is not None:
            text += (
                f"; {shown(self.ratio)} × {self.baseline} "
                f"({shown(statistics.median(self.baseline_values))} {self.unit})"
            )
        return text


def at_most(
    what: str,
    unit: str,
    values: Sequence[float],
    goal: float | None = None,
    baseline: str = "",
    baseline_values: Sequence[float] = (),
) -> Figure:
    """Build a figure of which less is better; its goal is a maximum."""
    return Figure(what, unit, values, goal, baseline, baseline_values, more_is_better=False)


def of_ratios(
    what: str,
    values: Sequence[float],
    baseline_values: Sequence[float],
    goal: float | None,
    baseline: str,
) -> Figure:
    """Build a figure of ratios: its values, and its goal if any, are multiples of the baseline."""
    ratios = [value / base for value, base in zip(values, baseline_values, strict=True)]
    return Figure(what, f"× {baseline}", ratios, goal)


def rate(count: int, work: Callable[[], object]) -> float:
    """Do the work, which processes ``count`` units; return units/s."""
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)


def interleave(
    jobs: Mapping[str, Callable[[], float]], runs: int = RUNS, warm_up: int = 1
) -> dict[str, list[float]]:
    """Run every job once per round: ``runs`` rounds after ``warm_up`` discarded ones.

    Each job measures itself and returns its rate or time. Every other round runs the jobs in
    reverse order, so that no job always runs after the same other one.
    """
    found: dict[str, list[float]] = {name: [] for name in jobs}
    for number in range(-warm_up, runs):
        names = list(jobs) if number % 2 == 0 else list(jobs)[::-1]
        for name in names:
            gc.collect()
            value = jobs[name]()
            if number >= 0:
                found[name].append(value)
    return found


class Series(NamedTuple):
    """Lines of one plot: how a figure depends on message size, batch size or the like."""

    name: str
    """``bench.plots`` draws it as bench/plots/NAME.svg."""
    title: str
    x: str
    """Label of the x axis with its unit; the axis is logarithmic."""
    y: str
    """Label of the y axis with its unit; the axis starts at 0."""
    lines: Mapping[str, Sequence[tuple[float, float]]]
    """Points of each line by its name."""


class Table(NamedTuple):
    """Rows for a page of docs/, where ``bench.table`` writes them with the plots."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


class Options(NamedTuple):
    quick: bool
    """Shorter and fewer runs for trying out; nothing is written."""

    @property
    def runs(self) -> int:
        """Rounds for ``interleave``."""
        return self.pick(RUNS, quick=QUICK_RUNS)

    def pick(self, full: T, *, quick: T) -> T:
        return quick if self.quick else full


class Result(NamedTuple):
    figures: Sequence[Figure]
    method: str
    notes: Sequence[str] = ()
    """Observations, for example which side was saturated."""
    series: Sequence[Series] = ()
    """One plot each."""
    versions: Mapping[str, str] = MappingProxyType({})
    """Versions of the compared servers, by name."""
    tables: Sequence[Table] = ()
    """Tables of ``page``."""
    page: str = ""
    """Path of a page that shows tables and plots between the marks of ``bench.table``."""


def benchmark(main: Callable[[Options], Result]) -> NoReturn:
    """Run a module as ``python -m bench.NAME``: parse its command line, measure, report, exit.

    SIGTERM ends it cleanly, including its servers.
    """
    # Servers run compiled modules, as in the image: otherwise each start would compile all of them.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    parser = argparse.ArgumentParser(description=main.__globals__["__doc__"])
    parser.add_argument("--quick", action="store_true", help="short runs; writes no result")
    given = Options(bool(parser.parse_args().quick))
    signal.signal(signal.SIGTERM, _leave)
    name = Path(main.__globals__["__file__"]).stem
    sys.exit(report(name, main(given), quick=given.quick))


def _leave(signum: int, _: object) -> NoReturn:
    sys.exit(128 + signum)


def report(name: str, result: Result, *, quick: bool = False) -> int:
    """Print everything and, unless quick, write bench/results/NAME.json and the pages.

    Returns the exit status of the benchmark: 1 if a goal is missed.
    """
    figures, notes = result.figures, list(result.notes)
    where, method = machine(result.versions), " ".join(result.method.split())
    print(f"machine: {where}\nmethod: {method}")
    for note in notes:
        print(f"note: {note}")
    for figure in figures:
        print(figure.line())
    if not quick:
        content: dict[str, object] = {
            "name": name,
            "figures": [figure.as_dict() for figure in figures],
            "machine": where,
            "method": method,
            "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        optional = {
            "missed": [figure.what for figure in figures if not figure.met],
            "notes": notes,
            "series": [each._asdict() for each in result.series],
            "tables": [each._asdict() for each in result.tables],
            "page": result.page,
        }
        content |= {name: values for name, values in optional.items() if values}
        RESULTS.mkdir(parents=True, exist_ok=True)
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        (RESULTS / f"{name}.json").write_text(text, encoding="utf-8")
        make_pages()
    return 0 if all(figure.met for figure in figures) else 1


def make_pages() -> None:
    """Rebuild the tables and plots of all pages from all results, so that they agree."""
    for module in ("bench.table", "bench.plots"):
        subprocess.run([sys.executable, "-m", module], cwd=PROJECT, check=True)


def machine(versions: Mapping[str, str]) -> str:
    """Describe the environment: processor, cores, kernel, Python, file system, other servers."""
    parts = [
        _cpu_model(),
        f"{os.cpu_count()} cores",
        f"Linux {platform.release()}",
        f"Python {platform.python_version()}",
        _file_system(WORK_DIR),
        *(f"{name} {version}" for name, version in versions.items()),
    ]
    return ", ".join(parts)


def _cpu_model() -> str:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def _file_system(path: Path) -> str:
    """Type of the file system at path, from the longest mount point above it."""
    path.mkdir(parents=True, exist_ok=True)
    best, kind = -1, "unknown file system"
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        mount = before.split(" ")[4].encode().decode("unicode_escape")
        if path.resolve().is_relative_to(mount) and len(mount) >= best:
            best, kind = len(mount), after.split(" ")[0]
    return kind


def shown(value: float) -> str:
    """Format a number with three significant digits and grouped thousands."""
    size = abs(value)
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _rounded(value: float) -> float:
    """Round to meaningful digits; whole numbers are kept."""
    return float(f"{value:.4g}") if abs(value) < 10_000 else round(value)
