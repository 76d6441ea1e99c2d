"""report: writes the computed tables as one HTML file and one JSON file.

It reads with pyarrow, one file of a table at a time, and sums as it reads; it needs no Spark. The
same range of the same tables gives the same files, apart from the creation time and the comparison
with the previous report. Step before: `evaluate`, `rollup`, `forecast`. Step after: a browser.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

import click

from analytics import runs
from analytics.errors import BadOption
from analytics.jobs.options import MOMENT, LocalPath, tables_option
from analytics.report.changes import Previous, previous
from analytics.report.facts import Facts, to_json
from analytics.report.gather import gather
from analytics.report.page import page
from analytics.report.sentences import headline
from analytics.tables import TableRoot

JOB: Final = "report"
SPAN: Final = timedelta(hours=24)
"""Length of a report without --since."""


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Settings of a report."""

    tables: Path
    out: Path
    """Directory for report.html and report.json."""
    since: datetime | None = None
    """None: a day before the end, or the begin of the tables."""
    before: datetime | None = None
    """None: just after the newest tick that was evaluated."""
    title: str = ""
    compare: Path | None = None
    """The report.json to compare with; None: the one that this report replaces."""
    made_at: datetime | None = None
    """None: now."""


class Written(NamedTuple):
    """The written files and their facts."""

    html: Path
    json: Path
    facts: Facts


def range_of(options: ReportOptions, root: TableRoot) -> tuple[datetime, datetime]:
    """Return the report's range: since ≤ time < before. Raises BadOption if it is empty."""
    span = root.span("pair_lag")
    before = options.before
    if before is None:
        newest = None if span is None else span[1] + timedelta(microseconds=1)
        before = newest or options.made_at or datetime.now(UTC)
    since = options.since
    if since is None:
        since = before - SPAN
        if span is not None and since < span[0] < before:
            since = span[0]
    if since >= before:
        raise BadOption(f"--since {since} is not before --before {before}.", "Nothing was written.")
    return since, before


def run(options: ReportOptions) -> Written:
    """Write the report. Raises TablesMissing, TableFileMissing, BadOption."""
    root = TableRoot(options.tables)
    since, before = range_of(options, root)
    html, json = options.out / "report.html", options.out / "report.json"
    with runs.run(root.path, JOB):
        facts = gather(
            root,
            start=since,
            end=before,
            made_at=options.made_at or datetime.now(UTC),
            title=options.title,
            before=_before(options.compare or json),
        )
        options.out.mkdir(parents=True, exist_ok=True)
        _write(html, page(facts))
        _write(json, to_json(facts))
    return Written(html, json, facts)


def _before(path: Path) -> Previous | None:
    try:
        return previous(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def _write(path: Path, text: str) -> None:
    """Write a file atomically: a browser may read it at the same time."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


@click.command(JOB)
@tables_option
@click.option(
    "--out",
    required=True,
    type=LocalPath(file_okay=False, path_type=Path),
    help="Directory for report.html and report.json.",
)
@click.option("--since", type=MOMENT, help="Begin of the range, in it; default: a day before.")
@click.option("--before", type=MOMENT, help="End, not in it; default: after the newest tick.")
@click.option("--title", default="", help="What the report is of; default: the clusters' names.")
@click.option(
    "--compare",
    type=LocalPath(exists=True, dir_okay=False, path_type=Path),
    help="The report.json to compare with; default: the one that is replaced.",
)
def command(
    tables: Path,
    out: Path,
    since: datetime | None,
    before: datetime | None,
    title: str,
    compare: Path | None,
) -> None:
    """Write what needs attention, and why, as one HTML file."""
    written = run(ReportOptions(tables, out, since, before, title, compare))
    click.echo(f"{headline(written.facts)}.\n{written.html}")
