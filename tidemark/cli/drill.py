"""``tidemark drill``: runs fault drills on groups of real processes that it starts locally.

The drills are the package ``drills``, a layer above the commands, so this command replaces itself
by that program.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import click

from shared.runtime import programs
from tidemark.cli.output import expected_errors


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--list", "listing", is_flag=True, help="List all drills; run none.")
@click.option("--all", "everything", is_flag=True, help="Run all drills: about half an hour.")
@click.option(
    "--lease",
    type=click.Choice(["etcd"]),
    help="Keep the lease of each drill in an etcd with a member on each of three machines.",
)
@click.option("--seed", type=int, help="Seed of all random choices; random by default.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("drill-report"),
    show_default=True,
    help="Directory of the stores, the logs and the report; its contents are replaced.",
)
@expected_errors
def drill(
    names: tuple[str, ...],
    listing: bool,
    everything: bool,
    lease: str | None,
    seed: int | None,
    out: Path,
) -> None:
    """Break a group of nodes on purpose, under load, and report what was lost.

    \b
    NAME is a drill's name or number (--list). Running nodes are not touched: drills start
    their own groups. As root each node gets a network namespace, so that nodes can be
    partitioned; otherwise drills that need that are skipped.
    """
    if not names and not listing and not everything:
        raise click.UsageError("Name a drill, or use --list or --all.")
    if find_spec(programs.DRILLS) is None:
        raise click.ClickException(
            f"This installation has no package {programs.DRILLS}: images leave the drills out. "
            "Run them from a checkout, or install the wheel."
        )
    arguments = [*(("--list",) if listing else ()), *(("--all",) if everything else ())]
    if lease is not None:
        arguments += ["--lease", lease]
    if seed is not None:
        arguments += ["--seed", str(seed)]
    command = [*programs.python_module(programs.DRILLS), *arguments, "--out", str(out)]
    os.execv(sys.executable, [*command, *names])
