"""Options that jobs share, and their parsers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any, Final

import click

from analytics.errors import BadOption
from analytics.kernel.shape import TIMED
from analytics.local_path import local
from analytics.moments import hour_of

Command = Callable[..., Any]
PERIOD_S: Final = click.FloatRange(min=0.1, max=3600.0)
"""Seconds between scrapes."""


class Moment(click.ParamType[datetime]):
    """A time like 2026-01-31T09:30, 2026-01-31T09:30:15Z or seconds since 1970; default zone
    UTC."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """Parse a time. The error names the expected forms."""
        if isinstance(value, datetime):
            return value
        text = str(value)
        try:
            if text.replace(".", "", 1).isdigit():
                return datetime.fromtimestamp(float(text), UTC)
            moment = datetime.fromisoformat(text)
        except (ValueError, OverflowError):
            self.fail(f"{text!r} is not a time such as 2026-01-31T09:30, or seconds since 1970.")
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


MOMENT: Final = Moment()


class LocalPath(click.Path):
    """A path on a file system. Raises NotLocal for a URI."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:
        """Convert a value as click does."""
        return super().convert(local(os.fspath(value)), param, ctx)


def tables_option(command: Command) -> Command:
    """--tables, which all jobs of a cluster share."""
    return click.option(
        "--tables",
        required=True,
        help="Directory of the tables on a volume that executors share, or its URI, like s3a://….",
    )(command)


def stream_options(*, required: bool) -> Callable[[Command], Command]:
    """--checkpoint, --trigger, --available-now."""
    return _all(
        click.option(
            "--checkpoint",
            required=required,
            type=LocalPath(file_okay=False, path_type=Path),
            help="Directory where the stream keeps its place; one for each stream. "
            "A file named stop in it ends the stream after its batch.",
        ),
        click.option(
            "--trigger",
            "trigger_s",
            type=float,
            default=15.0,
            show_default=True,
            help="Seconds between batches.",
        ),
        click.option(
            "--available-now",
            is_flag=True,
            help="Work through what is there, then end with status 0.",
        ),
    )


def landing_options(command: Command) -> Command:
    """--option, --period, --counter, --buckets: how samples are read and stored."""
    return _all(
        click.option(
            "--option",
            "source_options",
            multiple=True,
            help="KEY=VALUE of the source. A value env:NAME is that of a variable, file:PATH the "
            "text of a file: for logins.",
        ),
        period_option,
        click.option(
            "--counter", "counters", multiple=True, help="Counter to store; `all` stores all."
        ),
        click.option(
            "--buckets", type=click.IntRange(1, 4096), help="Buckets of new tables; default 8."
        ),
    )(command)


def landing_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `landing_options`. Raises BadOption."""
    named = given["counters"]
    return {
        "source_options": looked_up(pairs(given["source_options"], "--option"), os.environ),
        "period_s": given["period_s"],
        "counters": None if "all" in named else (*sorted(TIMED), *named),
        "buckets": given["buckets"],
    }


def period_option(command: Command) -> Command:
    """--period."""
    return click.option("--period", "period_s", type=PERIOD_S, default=15.0, show_default=True)(
        command
    )


def range_options(*, required: bool) -> Callable[[Command], Command]:
    """--since and --before: the job's range, since <= time < before."""
    return _all(
        click.option("--since", type=MOMENT, required=required, help="Start of the range, in it."),
        click.option(
            "--before", type=MOMENT, required=required, help="End of the range, not in it."
        ),
    )


def spark_options(command: Command) -> Command:
    """--master, --driver-memory, --conf."""
    return _all(
        click.option("--master", help="As for spark-submit; default: its own, or all cores here."),
        click.option("--driver-memory", help="Heap of the JVM, like 1g."),
        click.option("--conf", "confs", multiple=True, help="KEY=VALUE for Spark; repeatable."),
    )(command)


def _all(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Add options to a command, in this order."""
    return lambda command: reduce(lambda of, option: option(of), reversed(options), command)


def pairs(values: tuple[str, ...], option: str) -> dict[str, str]:
    """Parse KEY=VALUE texts. Raises BadOption."""
    found = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key:
            raise BadOption(f"{option} {value!r} is not KEY=VALUE.", "Nothing was started.")
        found[key] = text
    return found


def looked_up(options: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Replace values `env:NAME` by a variable and `file:PATH` by the text of a file.

    So a login is in no command line, which every user of the machine can read. Raises BadOption.
    """
    found = {}
    for key, value in options.items():
        kind, _, name = value.partition(":")
        if kind == "env":
            if name not in environment:
                raise BadOption(f"--option {key}: there is no variable {name}.", "Set it.")
            value = environment[name]
        elif kind == "file":
            try:
                value = Path(name).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise BadOption(
                    f"--option {key}: {name} cannot be read ({error}).",
                    "Name a text file that this user may read.",
                ) from error
        found[key] = value
    return found


def whole_hours(since: datetime | None, before: datetime | None) -> tuple[datetime, datetime]:
    """Return the range, which must be of whole hours. Raises BadOption."""
    if since is None or before is None:
        raise BadOption("--since and --before belong together.", "Give both, as whole hours.")
    for name, moment in (("--since", since), ("--before", before)):
        if hour_of(moment) != moment:
            raise BadOption(
                f"{name} is {moment:%Y-%m-%dT%H:%M:%S}, not a whole hour.",
                "Tables are replaced by the hour; give its start, like 2026-01-31T09:00.",
            )
    if since >= before:
        raise BadOption(f"--since {since} is not before --before {before}.", "Nothing was started.")
    return since, before


def started(name: str, options: dict[str, Any], buckets: int) -> Any:
    """Start the Spark session for these options."""
    from analytics.session import session  # Spark only for jobs that use it

    return session(
        name,
        master=options["master"],
        driver_memory=options["driver_memory"],
        buckets=buckets,
        extra=pairs(options["confs"], "--conf"),
    )
