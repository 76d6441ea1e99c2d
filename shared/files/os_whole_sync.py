"""syncfs: one call makes a whole file system durable, in place of thousands of fdatasyncs.

Part of ``os_disk``. Believed only where a failed write is sure to be heard of and the device's own
cache is sure to be emptied: on ext4, on a kernel that hands through what ext4 says
(docs/decisions/0010 has the sources and the measurement).
"""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path
from typing import Final

FILE_SYSTEMS: Final = frozenset({"ext4"})
KERNEL_MIN: Final = (5, 17)
"""Before, sync_filesystem() dropped what the file system's own part of the sync returned."""
FILES_MIN: Final = 128
"""By the measurement; fewer are not worth waiting for what others have written."""
MOUNTS_PATH: Final = Path("/proc/self/mountinfo")
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class OsWholeSync:
    """One file system, through a descriptor of a directory on it.

    The kernel remembers per descriptor which failed writes were told of (errseq): kept open from
    before the first write, it misses none, also if somebody else's sync heard of one before.
    """

    files_min = FILES_MIN

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        self._device = os.fstat(self._descriptor).st_dev
        self._covered: set[str] = set()

    def covers(self, directory: Path) -> bool:
        """Whether the directory lies here: one below may be another mount, or a link to one."""
        name = str(directory)
        if name not in self._covered:
            try:
                if directory.stat().st_dev != self._device:
                    return False
            except OSError:
                return False  # gone: whoever looks at it alone finds out
            self._covered.add(name)
        return True

    def run(self) -> None:
        """Sync it. Raises OSError; never try the same again."""
        if _LIBC.syncfs(self._descriptor) != 0:  # ctypes gives the interpreter lock free
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(self._path))

    def close(self) -> None:
        """Close the descriptor."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def tells_of_failed_writes(
    path: Path, *, release: str | None = None, mounts_path: Path = MOUNTS_PATH
) -> bool:
    """Whether syncfs can be believed on the file system that holds path."""
    version = re.match(r"(\d+)\.(\d+)", os.uname().release if release is None else release)
    if version is None or (int(version[1]), int(version[2])) < KERNEL_MIN:
        return False
    try:
        device = path.stat().st_dev
        mounts = mounts_path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    number = f"{os.major(device)}:{os.minor(device)}"
    kinds = {
        after.split()[0]
        for before, _, after in (line.partition(" - ") for line in mounts.splitlines())
        if before.split()[2:3] == [number] and after
    }
    return bool(kinds) and kinds <= FILE_SYSTEMS
