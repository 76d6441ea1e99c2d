"""Prints the part of requirements.lock that the image needs: pinned versions with hashes.

``python3 deploy/docker/locked.py run k8s`` prints the dependencies of the client and of the extra
``k8s``, which has those of ``server``; ``… build`` prints the build dependencies. So one lock file
determines all versions, for tests, image and packages. The ``# via`` comments of the lock show
which package needs which. This runs before anything is installed, in the image's first stage, so it
uses only the standard library.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_REQUIREMENT: Final = re.compile(r"([A-Za-z0-9._-]+)(?:\[([^]]*)\])?")


class Pin(NamedTuple):
    lines: list[str]
    """Lines of the lock file: version, hashes, comments."""
    needed_by: frozenset[str]
    """Names of the packages that need it, from its ``# via`` comment."""


def canonical(name: str) -> str:
    """Return a package's name as the lock writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins_of(lock: str) -> dict[str, Pin]:
    """Parse a lock file into packages by name. Raises ValueError for a line outside a package."""
    pins: dict[str, Pin] = {}
    lines: list[str] = []
    for line in lock.splitlines():
        if not line.strip():
            continue
        if not line.startswith(" "):
            lines = [line]
            name = _NAME.match(line)
            if name is None or "==" not in line:
                raise ValueError(f"requirements.lock: {line!r} pins no package")
            pins[canonical(name[0])] = Pin(lines, frozenset())
            latest = canonical(name[0])
        elif not lines:
            raise ValueError(f"requirements.lock: {line!r} belongs to no package")
        else:
            lines.append(line)
            if (via := line.strip()).startswith("# via "):
                needers = via.removeprefix("# via ").split(", ")
                pins[latest] = Pin(lines, frozenset(canonical(each) for each in needers))
    return pins


def wanted(project: dict[str, Any], what: list[str]) -> set[str]:
    """Return the direct dependencies in pyproject.toml: of ``run``, ``build``, or an extra.

    An extra that names extras of the project itself (``tidemark-mq[server]``) has theirs as well.
    """
    own = canonical(project["project"]["name"])
    asked: dict[str, list[str]] = {
        "run": project["project"]["dependencies"],
        "build": project["build-system"]["requires"],
        **project["project"]["optional-dependencies"],
    }
    found: set[str] = set()
    for requirement in (each for part in what for each in asked[part]):
        if parsed := _REQUIREMENT.match(requirement):
            name, extras = canonical(parsed[1]), parsed[2]
            found |= wanted(project, re.findall(r"[\w-]+", extras)) if name == own else {name}
    return found


def needed(pins: dict[str, Pin], names: set[str]) -> list[str]:
    """Return the names and all their dependencies, sorted. Raises ValueError if one has no pin."""
    if missing := names - pins.keys():
        raise ValueError(f"requirements.lock has no {', '.join(sorted(missing))}: run `make lock`")
    found = set(names)
    while more := {name for name, pin in pins.items() if pin.needed_by & found} - found:
        found |= more
    return sorted(found)


def locked(what: list[str]) -> str:
    """Return the part of requirements.lock that ``run``, ``build`` and extras need."""
    pins = pins_of((ROOT / "requirements.lock").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    names = needed(pins, wanted(project, what))
    return "".join(f"{line}\n" for name in names for line in pins[name].lines)


if __name__ == "__main__":
    print(locked(sys.argv[1:]), end="")
