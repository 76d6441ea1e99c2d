"""A Dockerfile as instructions, as far as tests of ours need them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
DOCKERFILE: Final = ROOT / "deploy/docker/Dockerfile"


class Instruction(NamedTuple):
    """One instruction, its continued lines put together."""

    name: str
    text: str


class Stage(NamedTuple):
    """What stands between two FROMs."""

    name: str
    base: str
    steps: list[Instruction]

    def texts(self, name: str) -> list[str]:
        """What the instructions of that name say, in their order."""
        return [step.text for step in self.steps if step.name == name]


def instructions(text: str) -> list[Instruction]:
    """All instructions, without comments."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    found = []
    for line in joined.splitlines():
        name, _, rest = line.strip().partition(" ")
        if name:
            found.append(Instruction(name.upper(), rest.strip()))
    return found


def stages(text: str) -> dict[str, Stage]:
    """The stages by name; what stands before the first FROM is left out."""
    found: dict[str, Stage] = {}
    latest: Stage | None = None
    for step in instructions(text):
        if step.name == "FROM":
            base, _, name = step.text.partition(" AS ")
            latest = found[name] = Stage(name, base, [])
        elif latest is not None:
            latest.steps.append(step)
    return found


def pairs(text: str) -> dict[str, str]:
    """``name=value`` words of ENV or LABEL."""
    return dict(word.split("=", 1) for word in shlex.split(text))
