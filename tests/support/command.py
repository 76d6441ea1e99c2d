"""Run the `tidemark` command as a user would: a process of its own, its output caught."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

PROJECT = Path(__file__).resolve().parents[2]


def tidemark(*arguments: str | Path, timeout_s: float = 240) -> bytes:
    """Standard output of a command that must succeed; its error output is in the failure."""
    done = run(*arguments, timeout_s=timeout_s)
    assert done.returncode == 0, (
        f"tidemark {' '.join(map(str, arguments))}: status {done.returncode}\n"
        f"{done.stdout[-2000:].decode(errors='replace')}\n"
        f"{done.stderr.decode(errors='replace')}"
    )
    return done.stdout


def run(*arguments: str | Path, timeout_s: float = 240) -> subprocess.CompletedProcess[bytes]:
    """Run the command to its end, whatever its status."""
    return subprocess.run(
        [sys.executable, "-m", "tidemark.cli.main", *map(str, arguments)],
        cwd=PROJECT,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=timeout_s,
        check=False,
    )


def dump(store: Path, *more: str) -> list[dict[str, Any]]:
    """All objects that `tidemark store dump` prints."""
    lines = tidemark("store", "dump", "--store", store, *more).splitlines()
    return [cast(dict[str, Any], json.loads(line)) for line in lines]
