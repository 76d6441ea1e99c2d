"""syncfs: one call makes a whole file system durable, instead of thousands of fdatasync calls.

Part of ``os_disk``. It is used only where every failed write is reported and the device's cache is
flushed: on ext4, with a kernel that passes on ext4's errors (docs/decisions/0010 has the sources
and the measurement).
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
"""In earlier kernels sync_filesystem() dropped the error of the file system's own sync."""
FILES_MIN: Final = 128
"""Minimum from the measurement; for fewer files, waiting for others' writes is not worth it."""
SLOW_S: Final = 1.0
"""A run that takes longer has written other processes' data."""
EACH_FILE_S: Final = 80e-6
"""Time of the sync of one file among many."""
REMEMBERED_S: Final = 60.0
"""Time for which the next run is expected to be slow after a slow one."""
MOUNTS_PATH: Final = Path("/proc/self/mountinfo")
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class OsWholeSync:
    """One file system, accessed through a descriptor of a directory on it.

    The kernel records per descriptor which failed writes it has reported (errseq). A descriptor
    opened before the first write misses none, even if another sync has already reported one.
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
        """Number of files from which on one ``run`` costs less than syncing each file."""
        if self._slow_s and time.monotonic() - self._slow_at < REMEMBERED_S:
            return max(FILES_MIN, round(self._slow_s / EACH_FILE_S))
        return FILES_MIN

    def covers(self, directory: Path) -> bool:
        """Whether the directory is on this file system: it may be a mount point, or a link."""
        name = str(directory)
        if name not in self._covered:
            try:
                if directory.stat().st_dev != self._device:
                    return False
            except OSError:
                return False  # it is gone; syncing it individually reports that
            self._covered.add(name)
        return True

    def run(self) -> None:
        """Sync the file system. Raises OSError; after that, never call it again."""
        began = time.monotonic()
        if _LIBC.syncfs(self._descriptor) != 0:  # ctypes releases the interpreter lock
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


def reports_failed_writes(
    path: Path, *, release: str | None = None, mounts_path: Path = MOUNTS_PATH
) -> bool:
    """Whether syncfs reports every failed write on the file system that holds path."""
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
