"""``tidemark store``: look at a store's files, check them, rebuild what is derived."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import click

from shared.files.valid_end import Verdict
from tidemark.cli.offline import LogEnd, OfflineStore, described
from tidemark.cli.output import expected_errors, say
from tidemark.cli.store_dump import queue_lines, record_lines
from tidemark.errors import CorruptRecord

T = TypeVar("T")

LINES_AT_ONCE: Final = 512


def store_option(function: Callable[..., T]) -> Callable[..., T]:
    """``--store DIR``, which must exist."""
    return click.option(
        "--store",
        "root",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        default=Path("data"),
        show_default=True,
        help="Directory of the store: the one that holds commitlog/.",
    )(function)


@click.group()
def store() -> None:
    """A store's files, without a broker."""


@store.command()
@store_option
@click.option("--queues", is_flag=True, help="The consume queues instead of the records.")
@expected_errors
def dump(root: Path, queues: bool) -> None:
    """Print every record in physical order, one JSON object per line.

    With --queues: one object per (topic, queue) with all its units, as the next start will leave
    them. Reads only; any store will do, also one that RocketMQ wrote or that a node is using.
    """
    with OfflineStore(root) as offline:
        lines = queue_lines(offline) if queues else record_lines(offline)
        pending: list[str] = []
        for line in lines:
            if isinstance(line, LogEnd):
                _write(pending)
                _tell_end(offline, line)
                return
            pending.append(line)
            if len(pending) >= LINES_AT_ONCE:
                _write(pending)
                pending = []


def _write(lines: list[str]) -> None:
    if lines:
        # surrogatepass: a property may hold what is no text; it is shown as it was read.
        sys.stdout.buffer.write(("\n".join(lines) + "\n").encode("utf-8", "surrogatepass"))
        sys.stdout.buffer.flush()


def _tell_end(offline: OfflineStore, end: LogEnd) -> None:
    """Say how the log ends; corruption is a failure, a torn tail is not."""
    if end.decision.verdict is Verdict.CORRUPTION:
        path = offline.files.path(offline.files.start_of(end.end))
        raise CorruptRecord(end.end, f"{end.reason}; {end.decision.reason}", path)
    if (text := described(end)) is not None:
        say(text)
