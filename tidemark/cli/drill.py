"""``tidemark drill``: fault drills on a group of real processes, made for them on this machine.

The drills are the package ``drills``, which stands above the commands in the import order: this
command replaces itself with that program.
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
@click.option("--list", "listing", is_flag=True, help="Name all drills, and do nothing.")
@click.option("--all", "everything", is_flag=True, help="Run all of them: about half an hour.")
@click.option("--seed", type=int, help="Of everything that is random; any by default.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("drill-report"),
    show_default=True,
    help="Directory of the stores, the logs and the report; what is in it is replaced.",
)
@expected_errors
def drill(
    names: tuple[str, ...], listing: bool, everything: bool, seed: int | None, out: Path
) -> None:
    """Break a group of nodes on purpose, under load, and say what was lost.

    \b
    NAME is a drill's name or number (--list). Touches no running node: it starts groups
    of its own. As root it puts every node into a network namespace, and can cut them apart;
    otherwise drills that need that are left out.
    """
    if not names and not listing and not everything:
        raise click.UsageError("Name a drill, or use --list or --all.")
    if find_spec(programs.DRILLS) is None:
        raise click.ClickException(
            f"This installation has no package {programs.DRILLS}: images leave the drills out. "
            "Run them from a checkout, or install the wheel."
        )
    arguments = [*(("--list",) if listing else ()), *(("--all",) if everything else ())]
    if seed is not None:
        arguments += ["--seed", str(seed)]
    command = [*programs.python_module(programs.DRILLS), *arguments, "--out", str(out)]
    os.execv(sys.executable, [*command, *names])
