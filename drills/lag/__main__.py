"""``python -m drills.lag``: the cluster, the five groups, the analytics, the report.

The exit status is 0 if every stage ran and every planted group was diagnosed correctly, else 1.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
import webbrowser
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Final

import click
from rich.console import Console
from rich.live import Live
from rich.markup import escape

from drills.lag import showing
from drills.lag.judging import Verdict, judge, newest, others
from drills.lag.load import Load
from drills.lag.pipeline import Pipeline, scraping
from drills.lag.plan import PLANTED, Times
from drills.lag.processes import StageCluster, StageFailed

PERIOD_S: Final = 5.0
MINUTES_MIN: Final = 2.5
POLL_S: Final = 0.5
STARTED_S: Final = 600.0
"""How long the nodes and Spark may take to the first sample: minutes on a busy machine."""
LATE_S: Final = 180.0
"""How long evaluation may make no progress at the end, which depends on the machine."""


@click.command()
@click.option("--minutes", type=click.FloatRange(MINUTES_MIN), default=4.0, show_default=True)
@click.option(
    "--period",
    "period_s",
    type=click.FloatRange(2, 60),
    default=PERIOD_S,
    show_default=True,
    help="Seconds between samples; all windows of the rules, made for 15, shrink with it.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build/lag"),
    show_default=True,
    help="Directory in which each run creates its own.",
)
@click.option("--browser/--no-browser", default=True, help="Open the report if there is a display.")
def main(minutes: float, period_s: float, out: Path, browser: bool) -> None:
    """Run five groups that lag for five reasons, and let the analytics diagnose them."""
    signal.signal(signal.SIGTERM, _end)
    console = Console()
    directory = out / datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    directory.mkdir(parents=True)
    times = Times(period_s, minutes * 60)
    try:
        report = _run(directory, times, console)
    except StageFailed as error:
        console.print(f"[bold red]failed[/] {escape(str(error))}", highlight=False)
        console.print(f"Logs are in {directory}.")
        sys.exit(1)
    verdicts = judge(PLANTED, newest(directory / "tables"))
    more = others(directory / "tables", PLANTED)
    console.print(showing.findings(verdicts, more))
    console.print(f"Report: [bold]{report.resolve()}[/]", soft_wrap=True)
    if browser and _has_display():
        webbrowser.open(report.resolve().as_uri())
    sys.exit(1 if more or any(each.wrong for each in verdicts) else 0)


def _run(directory: Path, times: Times, console: Console) -> Path:
    """Do the whole run; return the report's path. Raises StageFailed."""
    began = time.monotonic()
    cluster_dir = directory / "cluster"
    with Live(console=console, refresh_per_second=2, transient=True) as live:
        board = showing.Board(times.watch_s)

        def show(doing: str, verdicts: list[Verdict] | None = None) -> None:
            is_news = board.now(doing, time.monotonic() - began, verdicts)
            if console.is_terminal:
                live.update(board.table())
            elif is_news:
                console.print(board.line())

        show("starting a master, a slave and a standalone node")
        with (
            StageCluster(cluster_dir) as cluster,
            Load(cluster.orders_urls, cluster.solo.api_url, times, cluster_dir) as load,
            Pipeline(directory, scraping(directory, cluster.targets(), times), times) as jobs,
        ):
            jobs.start_collect()
            while not jobs.has_samples:
                show("waiting for the first samples")
                _check(cluster, load, jobs)
                if time.monotonic() - began > STARTED_S:
                    raise StageFailed(f"no sample within {STARTED_S:.0f} s: is the machine busy?")
                time.sleep(POLL_S)
            jobs.start_evaluate()
            began = time.monotonic()
            is_planted, judged_at = False, 0.0
            while (passed := time.monotonic() - began) < times.watch_s:
                _check(cluster, load, jobs)
                if not is_planted and passed >= times.calm_s:
                    load.plant_poison()
                    load.kill_member()
                    cluster.stop_reput()
                    is_planted = True
                doing = "faults are planted; watching" if is_planted else "no faults yet"
                if passed - judged_at > times.period_s:
                    judged_at = passed
                    show(doing, judge(PLANTED, newest(jobs.tables)))
                else:
                    show(doing)
                time.sleep(POLL_S)
            _evaluate_all(jobs, show)
            show("stopping the streams after their batch")
            jobs.stop_streams()
            jobs.finish(show)
            report = jobs.report
    if not report.exists():
        raise StageFailed(f"there is no report at {report}")
    shutil.rmtree(cluster_dir, ignore_errors=True)
    return report


def _evaluate_all(jobs: Pipeline, show: Callable[[str], None]) -> None:
    """Wait until all samples up to now are evaluated. Raises StageFailed if evaluation makes no
    progress."""
    until = datetime.now(UTC)
    left_s, moved_at = jobs.left_s(until), time.monotonic()
    while left_s is None or left_s > 0:
        show("evaluating what was seen" if left_s is None else f"{left_s:.0f} s left to evaluate")
        jobs.check()
        time.sleep(POLL_S)
        before, left_s = left_s, jobs.left_s(until)
        if left_s != before:
            moved_at = time.monotonic()
        elif time.monotonic() - moved_at > LATE_S:
            raise StageFailed(f"no progress of evaluate for {LATE_S:.0f} s: is the machine busy?")


def _check(*parts: StageCluster | Load | Pipeline) -> None:
    """Raise StageFailed if one of the parts has ended."""
    for part in parts:
        part.check()


def _has_display() -> bool:
    return sys.platform == "darwin" or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )


def _end(_signum: int, _frame: FrameType | None) -> None:
    """Handle SIGTERM like Ctrl-C: everything that was started is stopped first."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
