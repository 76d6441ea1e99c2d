"""Keeps the log files in use in memory (mlock), so that their pages are neither dropped nor read
back from disk while records are appended (docs/durability.md).

A file is locked from its creation until it is full and flushed. If the system refuses
(RLIMIT_MEMLOCK), this is logged once as ``memory-lock-refused``; the files work without.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from shared.files.disk import File, PageLock
from tidemark.errors import MemoryLockRefused

log = logging.getLogger(__name__)


class LockedFiles:
    """The locked files of one directory. ``lock`` reads a file; call it where it may wait."""

    def __init__(self, open_file: Callable[[int], File]) -> None:
        """open_file: opens the file that begins at an offset; raises FileNotFoundError."""
        self._open_file = open_file
        self._changing = threading.Lock()
        self._locks: dict[int, PageLock] = {}
        self._done_below = 0
        self.refused: MemoryLockRefused | None = None
        """Why the last file could not be locked; None if it was locked."""

    @property
    def starts(self) -> list[int]:
        """First offsets of the locked files, ascending."""
        return sorted(self._locks)

    def lock(self, start: int) -> None:
        """Lock the file that begins at start, unless it is locked already or no longer in use."""
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
        lock.release()  # the file was filled and flushed while it was read

    def done_below(self, offset: int) -> None:
        """Let ``unlock_done`` unlock files that end at or below offset, a file's start."""
        self._done_below = offset

    def unlock_done(self) -> None:
        """Unlock files no longer in use. It takes 10 ms per GiB: do not call it in a thread that
        others wait for."""
        with self._changing:
            done = [start for start in self._locks if start < self._done_below]
            locks = [self._locks.pop(start) for start in done]
        for lock in locks:
            lock.release()

    def unlock(self, start: int) -> None:
        """Unlock a file that is being removed, if it is locked."""
        with self._changing:
            lock = self._locks.pop(start, None)
        if lock is not None:
            lock.release()

    def again(self) -> None:
        """Unlock all files, because the log starts anew, possibly at lower offsets."""
        self.done_below(1 << 62)
        self.unlock_done()
        self.done_below(0)
