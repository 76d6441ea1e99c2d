"""report: writes the computed tables as one HTML file and one JSON file.

It reads with pyarrow, one file of a table at a time, and sums as it reads; it needs no Spark. The
same range of the same tables gives the same files, apart from the creation time and the comparison
with the previous report. Step before: `evaluate`, `rollup`, `forecast`. Step after: a browser.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from analytics import runs
from analytics.errors import BadOption
from analytics.jobs.options import MOMENT, LocalPath, tables_option
from analytics.local_path import replace_text
from analytics.report.changes import Previous, previous
from analytics.report.facts import Facts, to_json
from analytics.report.gather import gather
from analytics.report.page import page
from analytics.report.sentences import headline
from analytics.tables import TableRoot

JOB: Final = "report"
SPAN: Final = timedelta(hours=24)
"""Length of a report without --since."""


class Written(NamedTuple):
    """The written files and their facts."""

    html: Path
    json: Path
    facts: Facts


def range_of(
    root: TableRoot, since: datetime | None, before: datetime | None, now: datetime
) -> tuple[datetime, datetime]:
    """Return the report's range: since ≤ time < before. By default it ends just after the newest
    evaluated tick, and starts a day earlier, or where the tables start if that is later. Raises
    BadOption if the range is empty."""
    span = root.span("pair_lag")
    if before is None:
        before = now if span is None else span[1] + timedelta(microseconds=1)
    if since is None:
        since = before - SPAN
        if span is not None and since < span[0] < before:
            since = span[0]
    if since >= before:
        raise BadOption(f"--since {since} is not before --before {before}.", "Nothing was written.")
    return since, before


def run(
    tables: str | Path,
    out: Path,
    since: datetime | None = None,
    before: datetime | None = None,
    title: str = "",
    compare: Path | None = None,
    made_at: datetime | None = None,
) -> Written:
    """Write the report. Raises TablesMissing, TableFileMissing, BadOption.
    out: directory for report.html and report.json. compare: the report.json to compare with; None:
    the one that this report replaces. made_at: None: now."""
    root, made_at = TableRoot(tables), made_at or datetime.now(UTC)
    start, end = range_of(root, since, before, made_at)
    html, json = out / "report.html", out / "report.json"
    with runs.run(root, JOB):
        last = _before(compare or json)
        facts = gather(root, start=start, end=end, made_at=made_at, title=title, before=last)
        out.mkdir(parents=True, exist_ok=True)
        replace_text(html, page(facts))
        replace_text(json, to_json(facts))
    return Written(html, json, facts)


def _before(path: Path) -> Previous | None:
    try:
        return previous(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


@click.command(JOB)
@tables_option
@click.option(
    "--out",
    required=True,
    type=LocalPath(file_okay=False, path_type=Path),
    help="Directory for report.html and report.json.",
)
@click.option("--since", type=MOMENT, help="Start of the range, in it; default: a day before.")
@click.option("--before", type=MOMENT, help="End, not in it; default: after the newest tick.")
@click.option("--title", default="", help="What the report is of; default: the clusters' names.")
@click.option(
    "--compare",
    type=LocalPath(exists=True, dir_okay=False, path_type=Path),
    help="The report.json to compare with; default: the one that is replaced.",
)
def command(**given: Any) -> None:
    """Write what needs attention, and why, as one HTML file."""
    written = run(**given)
    click.echo(f"{headline(written.facts)}.\n{written.html}")
