"""Whether somebody holds a byte of ``lock``, asked without taking it.

Taking a byte to see whether it is free would refuse it, for that moment, to a process that starts.
Who asks holds other bytes through other descriptors: an open-file-description lock excludes inside
one process too, so the answer counts those as held.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from shared.files.os_disk import FLOCK


class LockProbe:
    """One lock file, kept open: closing this descriptor drops no lock, for it never holds one."""

    def __init__(self, path: Path) -> None:
        """Raises FileNotFoundError."""
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def is_held(self, byte: int) -> bool:
        """Whether any process, or another descriptor of this one, holds the byte."""
        question = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        answer = fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, question)
        found: int = FLOCK.unpack(answer)[0]
        return found != fcntl.F_UNLCK

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
