"""Log files in use, held in memory by the kernel (mlock): their pages are neither dropped nor
read back from disk while records go into them (docs/durability.md).

Locked from when a file is made until it is full and flushed. A system that refuses (RLIMIT_MEMLOCK)
is told of once, as ``memory-lock-refused``; the files work without.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from shared.files.disk import File, PageLock
from tidemark.errors import MemoryLockRefused

log = logging.getLogger(__name__)


class LockedFiles:
    """The locked files of one directory. ``lock`` reads them in: for a thread that may wait."""

    def __init__(self, open_file: Callable[[int], File], file_size: int) -> None:
        """open_file: the file that begins at an offset; raises FileNotFoundError."""
        self._open_file = open_file
        self._file_size = file_size
        self._changing = threading.Lock()
        self._locks: dict[int, PageLock] = {}
        self._done_below = 0
        self.refused: MemoryLockRefused | None = None
        """Why the last file could not be locked; None if it was."""

    @property
    def starts(self) -> list[int]:
        """First offsets of the locked files, ascending."""
        return sorted(self._locks)

    def lock(self, start: int) -> None:
        """Lock the file that begins at start, unless it is already or is done with."""
        if start in self._locks or start < self._done_below:
            return
        try:
            file = self._open_file(start)
        except FileNotFoundError:  # removed meanwhile
            return
        try:
            lock = file.lock_pages()
        except MemoryLockRefused as refused:
            if self.refused is None:
                log.warning(
                    "log files are not locked in memory",
                    extra={
                        "event": "memory-lock-refused",
                        "detail": refused.detail,
                        "advice": refused.advice,
                    },
                )
            self.refused = refused
            return
        finally:
            file.close()
        self.refused = None
        with self._changing:
            if start >= self._done_below:
                self._locks[start] = lock
                return
        lock.release()  # filled and flushed while it was read in

    def done_below(self, offset: int) -> None:
        """Files that end at or below offset, a file's start, may go: by ``unlock_done``."""
        self._done_below = offset

    def unlock_done(self) -> None:
        """Unlock what is done with. Takes 10 ms per GiB: not for a thread that others wait for."""
        with self._changing:
            done = [start for start in self._locks if start < self._done_below]
            locks = [self._locks.pop(start) for start in done]
        for lock in locks:
            lock.release()

    def unlock(self, start: int) -> None:
        """Unlock one file, if it is locked: it is removed."""
        with self._changing:
            lock = self._locks.pop(start, None)
        if lock is not None:
            lock.release()

    def again(self) -> None:
        """Unlock all: the files begin anew, maybe at lower offsets."""
        self.done_below(1 << 62)
        self.unlock_done()
        self.done_below(0)
