"""A small tmpfs below each store of a drill, which can be filled up and freed.

Requires the right to mount. The mounts are in the drills' mount namespace, so they end with it.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from drills.namespaces import NoNamespaces


class SmallDisks:
    """Context manager of the file systems; it does nothing without a size."""

    def __init__(self, size: int | None) -> None:
        """size: bytes of each file system; None: the stores are on the machine's own disk."""
        self._size = size
        self._mounted: list[Path] = []

    def __enter__(self) -> SmallDisks:
        return self

    def __exit__(self, *_: object) -> None:
        for where in self._mounted:
            subprocess.run(["umount", "-l", str(where)], check=False)

    def mount(self, places: Iterable[Path]) -> None:
        """Mount a file system at each place. Raises NoNamespaces if this is not permitted."""
        if self._size is None:
            return
        for where in places:
            where.mkdir(parents=True, exist_ok=True)
            command = ["mount", "-t", "tmpfs", "-o", f"size={self._size}", "tmpfs", str(where)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise NoNamespaces(f"a small disk cannot be mounted: {done.stderr.strip()}")
            self._mounted.append(where)


def fill(store_dir: Path) -> Path:
    """Use up all free space on the disk of a store; return the file that occupies it.

    The nodes run meanwhile: they may take some of what was free a moment ago.
    """
    path = store_dir.parent / "store" / "ballast"
    taken = 0
    with path.open("wb") as file:
        while blocks := (free := os.statvfs(store_dir)).f_bavail:
            size = blocks * free.f_frsize
            try:
                os.posix_fallocate(file.fileno(), taken, size)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
            else:
                taken += size
    return path
