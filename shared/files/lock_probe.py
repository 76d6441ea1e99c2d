"""Checks whether a byte of ``lock`` is locked, without locking it.

Locking the byte to see whether it is free would briefly refuse it to a process that starts. The
caller holds other bytes through other descriptors. An open-file-description lock also excludes
other descriptors of the same process, so the result counts those locks as held.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from shared.files.os_disk import FLOCK


class LockProbe:
    """One lock file, kept open. This descriptor never holds a lock, so closing it drops none."""

    def __init__(self, path: Path) -> None:
        """Raises FileNotFoundError if the file is missing."""
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def is_held(self, byte: int) -> bool:
        """Whether any process, or another descriptor of this process, holds the byte."""
        question = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        answer = fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, question)
        found: int = FLOCK.unpack(answer)[0]
        return found != fcntl.F_UNLCK

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
