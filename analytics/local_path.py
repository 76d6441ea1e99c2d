"""Paths on this machine's file systems: tables, checkpoints, spools, stores and reports. Pure.

They are renamed, locked and synced, which object stores cannot do. A URI used as a path would
silently become a folder of that name.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from analytics.errors import NotLocal

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""Also what a Path makes of a URI: one slash. A drive of one letter is no scheme."""


def local(path: str | Path) -> Path:
    """The path itself. Raises NotLocal if it is a URI."""
    if _SCHEME.match(str(path)):
        raise NotLocal(str(path))
    return Path(path)
