"""Paths on local file systems: tables, checkpoints, spools, stores and reports.

These paths are renamed, locked and synced, which object stores do not support. A URI used as a path
would silently become a folder of that name.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from analytics.errors import NotLocal

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""One slash is enough, because Path keeps only one of a URI. A drive letter is not a scheme."""


def local(path: str | Path) -> Path:
    """Return the path itself. Raises NotLocal for a URI."""
    if _SCHEME.match(str(path)):
        raise NotLocal(str(path))
    return Path(path)


def replace_text(path: Path, text: str) -> None:
    """Write a text file at one instant, because it may be read at the same time."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
