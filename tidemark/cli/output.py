"""Output of commands: tables for people, JSON for programs, errors with cause, effect and fix.

Invariant: standard output contains results only, so that it can be piped; progress, remarks and
errors go to standard error. An expected failure never shows a traceback.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import os
import re
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any, Final, Literal, ParamSpec, TypeVar, cast, get_args

import click
import uvloop
from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import Progress, ProgressColumn
from rich.table import Table
from rich.text import Text

from tidemark.cli.times import shown_duration, shown_time
from tidemark.client.client import DEFAULT_URL, Client, connect
from tidemark.client.connection import ReadFrom
from tidemark.client.messages import Message
from tidemark.client.transport import TRACE_ID
from tidemark.errors import PartialFailure, TidemarkError

P = ParamSpec("P")
T = TypeVar("T")

READER_RETRY_FOR_S: Final = 60.0
"""Long enough that a reader survives a restart of the broker."""
_NO_WIDTH: Final = 10_000
_FORMAT_KEY: Final = "tidemark.cli.output.format"
_TRACE_KEY: Final = "tidemark.cli.output.trace"
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9`\"'])")


def with_output(function: Callable[P, T]) -> Callable[P, T]:
    """Add ``-o table|json``, which ``as_json`` reads, to a command that may fail as expected."""

    def remember(context: click.Context, _option: click.Parameter, value: str) -> str:
        context.meta[_FORMAT_KEY] = value
        return value

    return click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        expose_value=False,
        callback=remember,
        help="How results and errors are printed.",
    )(expected_errors(function))


def with_broker(function: Callable[P, T]) -> Callable[P, T]:
    """Add what ``with_output`` adds, and ``--url`` of the broker or ``TIDEMARK_URL``."""
    return click.option(
        "--url",
        default=DEFAULT_URL,
        envvar="TIDEMARK_URL",
        show_default=True,
        show_envvar=True,
        help="A broker or name service, or several separated by commas.",
    )(with_output(function))


def read_from_option(function: Callable[P, T]) -> Callable[P, T]:
    """Add ``--read-from`` to a command that only reads."""
    return click.option(
        "--read-from",
        type=click.Choice(get_args(ReadFrom)),
        default="master",
        show_default=True,
        help="any: read from the nodes in --url, slaves first; data may be slightly behind.",
    )(function)


def trace_option(function: Callable[P, T]) -> Callable[P, T]:
    """Add ``--trace`` to a command that sends or reads messages; ``client_for`` uses it."""

    def keep(context: click.Context, _: click.Parameter, given: str | None) -> None:
        if given is not None and TRACE_ID.fullmatch(given) is None:
            raise click.BadParameter("1 to 64 characters of A-Z, a-z, 0-9, '.', '_' and '-'")
        context.meta[_TRACE_KEY] = given

    return click.option(
        "--trace",
        metavar="ID",
        expose_value=False,
        callback=keep,
        help="Trace the messages: the services log each of their steps under this id.",
    )(function)


def as_json() -> bool:
    """Whether the running command was asked for JSON."""
    context = click.get_current_context(silent=True)
    return context is not None and context.meta.get(_FORMAT_KEY) == "json"


class Failed(click.ClickException):
    """An expected failure that click shows; ends the command with status 1."""

    exit_code = 1

    def __init__(self, error: TidemarkError) -> None:
        super().__init__(error.detail)
        self.error = error
        self.json = as_json()  # the command's context no longer exists when it is shown

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the error to standard error."""
        click.echo(error_text(self.error, json_form=self.json), file=file, err=file is None)


def error_text(error: TidemarkError, *, json_form: bool) -> str:
    """Format an error for a person or a program; a partial one with that of each broker group."""
    parts = error.errors if isinstance(error, PartialFailure) else {}
    if json_form:
        facts: dict[str, object] = {
            "code": error.code,
            "title": error.title,
            "detail": error.detail,
            "advice": error.advice,
            "retriable": error.retriable,
        }
        if parts:
            facts["done"] = error.facts["done"]
            facts["failed"] = {
                name: {"code": each.code, "detail": each.detail} for name, each in parts.items()
            }
        return to_json(facts)
    cause, *effect = _SENTENCE_END.split(error.detail, maxsplit=1)
    lines = [f"error: {error.title} [{error.code}]", f"  cause:  {cause}"]
    if effect:
        lines.append(f"  effect: {effect[0]}")
    lines += [f"  {name}: {each.detail} [{each.code}]" for name, each in parts.items()]
    if error.advice:
        lines.append(f"  fix:    {error.advice}")
    return "\n".join(lines)


def expected_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Convert a TidemarkError of a command to ``Failed``; end quietly if the output is closed."""

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except TidemarkError as error:
            raise Failed(error) from error
        except BrokenPipeError:
            ignore_closed_output()
            raise click.exceptions.Exit(0) from None

    return guarded


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine to its end; Ctrl-C cancels it first."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def with_client(
    url: str,
    work: Callable[[Client], Awaitable[T]],
    *,
    retry_for_s: float = 1.0,
    read_from: ReadFrom = "master",
) -> T:
    """Connect, do the work, close. Few retries, so that an unreachable broker is reported soon."""

    async def connected() -> T:
        async with client_for(url, retry_for_s=retry_for_s, read_from=read_from) as client:
            return await work(client)

    return run(connected())


def read_with_client(
    url: str, work: Callable[[Client], Awaitable[T]], *, read_from: ReadFrom = "master"
) -> tuple[T, PartialFailure | None]:
    """Like ``with_client`` for a call that reads. If some broker groups fail, return the answer of
    the others, and the failure for ``end_partly``."""

    async def partly(client: Client) -> tuple[T, PartialFailure | None]:
        return await answer_of(work(client))

    return with_client(url, partly, read_from=read_from)


async def answer_of(call: Awaitable[T]) -> tuple[T, PartialFailure | None]:
    """Return the answer to a call that reads; if some broker groups fail, that of the others, and
    the failure."""
    try:
        return await call, None
    except PartialFailure as failure:
        if failure.answer is None:
            raise
        return cast(T, failure.answer), failure


def end_partly(failure: PartialFailure | None) -> None:
    """End a command that has shown a partial answer: with the broker groups that it lacks."""
    if failure is not None:
        raise Failed(failure)


def addresses(url: str) -> list[str]:
    """Split ``--url`` into the addresses of brokers or name services."""
    return [each.strip().rstrip("/") for each in url.split(",") if each.strip()] or [url]


def client_for(url: str, *, retry_for_s: float, read_from: ReadFrom = "master") -> Client:
    """Create a client; an invalid URL is a usage error."""
    context = click.get_current_context(silent=True)
    trace = None if context is None else context.meta.get(_TRACE_KEY)
    try:
        return connect(addresses(url), retry_for_s=retry_for_s, read_from=read_from, trace=trace)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--url") from error


def to_json(value: object) -> str:
    """Format one line of JSON without escaping non-ASCII text."""
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))


def print_rows(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> None:
    """Print a result with many rows: a table, or one JSON list."""
    if as_json():
        click.echo(to_json([dict(row) for row in rows]))
        return
    console = _console()
    console.print(fitting(rows, columns, console))


def fitting(
    rows: Sequence[Mapping[str, object]], columns: Sequence[str], console: Console
) -> RenderableType:
    """Return a table if it fits, else one name and value per line and empty lines between rows.

    Folded cells would break ids, addresses and headings that are copied from them.
    """
    table = table_of(rows, columns)
    natural = table.__rich_measure__(console, console.options.update(max_width=_NO_WIDTH))
    if not rows or natural.maximum <= console.width:
        return table
    blocks = ("\n".join(_lines({name: row.get(name) for name in columns})) for row in rows)
    return Text("\n\n".join(blocks))


def table_of(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> Table:
    """Build a table with a line per row; unknown values are ``-``."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        known = [row[column] for row in rows if row.get(column) is not None]
        numeric = bool(known) and all(isinstance(value, int | float) for value in known)
        justify: Literal["left", "right"] = "right" if numeric else "left"
        # Folded in a narrow terminal, because a truncated id is useless.
        table.add_column(_heading(column), justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(column, row.get(column)) for column in columns))
    return table


def print_facts(facts: Mapping[str, object]) -> None:
    """Print one result: a name and value per line, or one JSON object."""
    if as_json():
        click.echo(to_json(dict(facts)))
        return
    for line in _lines(facts):
        click.echo(line)


def _lines(facts: Mapping[str, object]) -> Iterator[str]:
    width = max((len(_heading(name)) for name in facts), default=0)
    for name, value in facts.items():
        yield f"{_heading(name):<{width}}  {_cell(name, value)}"


def confirm_deletion(kind: str, name: str, what: str, *, yes: bool) -> None:
    """Ask for the name of what is deleted, unless ``--yes`` is given. Raises ClickException."""
    if yes:
        return
    say(f"about to delete {what}")
    typed = click.prompt(f"Type the {kind}'s name to delete it", err=True)
    if typed != name:
        raise click.ClickException(f"{typed!r} is not {name!r}; nothing was deleted")


@contextmanager
def progress_bar(
    what: str, *columns: ProgressColumn, total: int | None = None
) -> Iterator[Callable[..., None]]:
    """Yield a function that sets the ``completed`` and ``total`` work that a bar shows.

    The bar is shown on standard error, and only in a terminal.
    """
    if not sys.stderr.isatty():
        yield lambda **_: None
        return
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield functools.partial(progress.update, progress.add_task(what, total=total))


def say(text: str) -> None:
    """Print a remark to standard error; it is not part of the result."""
    click.echo(text, err=True)


def message_facts(message: Message) -> dict[str, object]:
    """Return a message with the API's names; the body as text if it is UTF-8, else base64."""
    facts: dict[str, object] = message._asdict()
    facts["keys"] = list(message.keys)
    del facts["body"]
    return facts | body_facts(message.body)


def body_facts(body: bytes | memoryview) -> dict[str, object]:
    """Return ``body_text`` if the body is UTF-8, else ``body`` in base64."""
    try:
        return {"body_text": str(body, "utf-8")}
    except UnicodeDecodeError:
        return {"body": base64.b64encode(body).decode("ascii")}


def ignore_closed_output() -> None:
    """Discard further output because its reader has closed it (``| head``)."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _heading(name: str) -> str:
    return name.removesuffix("_ms").replace("_", " ")


def _cell(name: str, value: object) -> str:
    """Format a value; the name of milliseconds shows whether they are a time or a duration."""
    match value:
        case None:
            return "-"
        case int() if name.endswith(("_timestamp_ms", "_at_ms")) or name == "at_ms":
            return shown_time(value) or "-"
        case int() if name.endswith("_ms"):
            return shown_duration(value) or "-"
        case list() | tuple():
            return " ".join(map(str, value))
        case dict():
            return to_json(value)
        case float():
            return f"{value:.1f}"
        case _:
            return str(value)


@contextmanager
def repeated(columns: Sequence[str]) -> Iterator[Callable[[Sequence[Mapping[str, object]]], None]]:
    """Yield a function that prints the current rows: in place in a terminal, else again."""
    if as_json() or not sys.stdout.isatty():
        yield lambda rows: print_rows(rows, columns)
        return
    with Live(console=_console(), auto_refresh=False) as live:
        yield lambda rows: live.update(fitting(rows, columns, live.console), refresh=True)


def _console() -> Console:
    # Not wrapped in a pipe, so that a row stays one line for grep and awk.
    width = None if sys.stdout.isatty() else _NO_WIDTH
    return Console(width=width, highlight=False, soft_wrap=False, markup=False)
