"""docs/cli.md names every command there is, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import click

from tidemark.cli.main import cli

PAGE = Path(__file__).resolve().parents[3] / "docs/cli.md"


def commands() -> set[str]:
    """``noun verb`` of every command, the noun alone where it is one."""
    found: set[str] = set()
    for name, command in cli.commands.items():
        if isinstance(command, click.Group):
            found |= {f"{name} {verb}" for verb in command.commands}
        else:
            found.add(name)
    return found


def test_the_page_has_a_row_for_every_command_and_no_other() -> None:
    named: set[str] = set()
    for row in re.findall(r"^\| `tidemark ([^`]+)` \|", PAGE.read_text(), re.MULTILINE):
        noun, _, verbs = row.partition(" ")
        named |= {f"{noun} {verb}" for verb in verbs.split("\\|")} if verbs else {noun}
    assert named == commands()
