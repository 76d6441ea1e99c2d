"""export: serves the results of analytics to Prometheus and Grafana, without Spark.

Without a file it answers scrapes on its admin port until it is stopped. With ``--openmetrics`` it
writes the history of a range and ends. Step before: `evaluate`, `forecast`. Step after: Prometheus.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import click

from analytics.errors import BadOption
from analytics.export import history
from analytics.export.service import EVERY_S, PORT, Exporter, ExportOptions
from analytics.jobs.options import MOMENT, LocalPath, tables_option
from analytics.tables import TableRoot
from shared.runtime.lifecycle import stop_on_signals

JOB: Final = "export"


def write_history(
    tables: str | Path, out: Path, since: datetime | None, before: datetime | None
) -> history.Written:
    """Write a range of the tables as OpenMetrics. Raises TablesMissing, BadOption."""
    root = TableRoot(tables)
    span = root.span("pair_lag")
    if since is None or before is None:
        if span is None:
            raise BadOption(f"{tables} has no evaluated tick yet.", "Nothing was written.")
        since, before = since or span[0], before or span[1] + timedelta(microseconds=1)
    if since >= before:
        raise BadOption(f"--since {since} is not before --before {before}.", "Nothing was written.")
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_name(f".{out.name}.new")
    with beside.open("w", encoding="utf-8") as file:
        written = history.write(root, file, since, before)
    beside.replace(out)
    return written


async def serve(options: ExportOptions) -> None:
    """Answer until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    stop_on_signals(stop)
    await Exporter(options, stop).run()


@click.command(JOB)
@tables_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address of the admin port.")
@click.option(
    "--port",
    default=PORT,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Admin port: /metrics, /live, /ready; 0: any that is free.",
)
@click.option(
    "--every",
    "every_s",
    default=EVERY_S,
    show_default=True,
    type=click.FloatRange(min=0.1),
    help="Seconds between two readings of the tables.",
)
@click.option(
    "--webhook",
    metavar="URL",
    help="Post changes of status there as JSON, where no Alertmanager sends them.",
)
@click.option(
    "--openmetrics",
    type=LocalPath(dir_okay=False, path_type=Path),
    help="Write the history to this file and end: for promtool tsdb create-blocks-from.",
)
@click.option("--since", type=MOMENT, help="Start of the history, included; default: all.")
@click.option("--before", type=MOMENT, help="End of the history, excluded.")
def command(
    tables: Path,
    host: str,
    port: int,
    every_s: float,
    webhook: str | None,
    openmetrics: Path | None,
    since: datetime | None,
    before: datetime | None,
) -> None:
    """Export the results of analytics to scrapes, or write their history."""
    if openmetrics is None:
        if since is not None or before is not None:
            raise BadOption(
                "--since and --before need --openmetrics.", "Name a file, or leave them out."
            )
        asyncio.run(serve(ExportOptions(tables, host, port, every_s, webhook)))
        return
    written = write_history(tables, openmetrics, since, before)
    click.echo(f"{written.samples:,} samples of {written.families} families: {openmetrics}")
