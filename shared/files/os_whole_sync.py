"""syncfs: one call makes a whole file system durable, in place of thousands of fdatasyncs.

Part of ``os_disk``. Believed only where a failed write is sure to be heard of and the device's own
cache is sure to be emptied: on ext4, on a kernel that hands through what ext4 says
(docs/decisions/0010 has the sources and the measurement).
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from pathlib import Path
from typing import Final

FILE_SYSTEMS: Final = frozenset({"ext4"})
KERNEL_MIN: Final = (5, 17)
"""Before, sync_filesystem() dropped what the file system's own part of the sync returned."""
FILES_MIN: Final = 128
"""By the measurement; fewer are not worth waiting for what others have written."""
SLOW_S: Final = 1.0
"""A run that takes longer has written what others left there."""
EACH_FILE_S: Final = 80e-6
"""What a sync of one file among many takes."""
REMEMBERED_S: Final = 60.0
"""For so long a slow run is expected to be slow again."""
MOUNTS_PATH: Final = Path("/proc/self/mountinfo")
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class OsWholeSync:
    """One file system, through a descriptor of a directory on it.

    The kernel remembers per descriptor which failed writes were told of (errseq): kept open from
    before the first write, it misses none, also if somebody else's sync heard of one before.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        self._device = os.fstat(self._descriptor).st_dev
        self._covered: set[str] = set()
        self._slow_s = 0.0
        self._slow_at = 0.0

    @property
    def files_min(self) -> int:
        """Of so many files on, it costs less than syncing each."""
        if self._slow_s and time.monotonic() - self._slow_at < REMEMBERED_S:
            return max(FILES_MIN, round(self._slow_s / EACH_FILE_S))
        return FILES_MIN

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
        began = time.monotonic()
        if _LIBC.syncfs(self._descriptor) != 0:  # ctypes gives the interpreter lock free
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(self._path))
        ended = time.monotonic()
        self._slow_s = ended - began if ended - began > SLOW_S else 0.0
        self._slow_at = ended

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
