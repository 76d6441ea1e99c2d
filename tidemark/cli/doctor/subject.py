"""The options that select what ``doctor`` and ``support-bundle`` examine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from tidemark.cli.doctor.settings import files_of
from tidemark.cli.output import addresses
from tidemark.client.client import DEFAULT_URL

Command = TypeVar("Command", bound=Callable[..., Any])


class Subject(NamedTuple):
    """The selected settings, store and nodes; the node of this machine by default."""

    files: Mapping[str, Path]
    """Settings files by service."""
    store: Path | None
    """None: the store of the settings."""
    urls: Sequence[str]


def subject_options(command: Command) -> Command:
    """Give a command the options ``--config``, ``--store`` and ``--url``."""
    for option in (
        click.option(
            "--url",
            envvar="TIDEMARK_URL",
            show_envvar=True,
            help="A running node or name service, or several separated by commas; the other nodes "
            f"of their group are found. {DEFAULT_URL} if neither --config nor --store is given.",
        ),
        click.option(
            "--store",
            type=click.Path(path_type=Path),
            help="The store directory; default: the one in the settings.",
        ),
        click.option(
            "--config",
            multiple=True,
            metavar="PATH",
            help="A directory with broker.toml, reput.toml, ha.toml or names.toml; or such a file; "
            "or SERVICE=FILE.",
        ),
    ):
        command = option(command)
    return command


def subject(config: tuple[str, ...], store: Path | None, url: str | None) -> Subject:
    """Resolve the options. Raises click.BadParameter."""
    try:
        files = files_of(config)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--config") from error
    if url is None and not files and store is None:
        url = DEFAULT_URL
    return Subject(files, store, [] if url is None else addresses(url))
