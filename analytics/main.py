"""``tidemark-analytics``: all jobs; ``spark-submit analytics/submit.py`` does the same.

Only the module of the requested job is loaded: `export` and `report` never load Spark.
"""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from typing import Final, cast

import click

from analytics.errors import FileUnusable
from tidemark.errors import TidemarkError

JOBS: Final = (
    "backfill",
    "collect",
    "compact",
    "evaluate",
    "export",
    "forecast",
    "migrate",
    "report",
    "rollup",
)
"""Each a module of analytics.jobs with a click command named `command`."""


class Jobs(click.Group):
    """Command group: each job's command is in the module with the job's name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All jobs, by name."""
        return list(JOBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The job's command; None if there is no such job."""
        if cmd_name not in JOBS:
            return None
        return cast(click.Command, import_module(f"{__package__}.jobs.{cmd_name}").command)


@click.group(cls=Jobs)
def jobs() -> None:
    """Lag analytics of Tidemark, on Spark."""


def main() -> None:
    """Run a job. An error is printed as one message, with status 1."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    try:
        jobs(prog_name="tidemark-analytics", standalone_mode=True)
    except TidemarkError as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    except OSError as error:
        if error.filename is None:
            raise
        reason = error.strerror or type(error).__name__
        click.echo(str(FileUnusable(str(error.filename), reason)), err=True)
        sys.exit(1)
