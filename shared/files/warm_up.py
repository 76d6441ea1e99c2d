"""Warm-up of a new log file: zeros through all of it before it is used (docs/durability.md).

A reserved block that was never written is noted as such by the file system. The first flush of each
page then also writes that note into the file system's journal and waits for it, together with
everything else that is in the journal; a page that was written before costs the page alone. The
price is that every byte is written twice.

The thread that makes files ahead does it (``file_run.create``), in steps, so that it holds one step
in memory and no more than ``SYNC_SIZE`` unsynced. A file that is needed at once is used as far as
it came: not warmed up, it is as good as any other.

In no hurry it rests three times as long as each of its syncs took: while the disk is busy with
zeros the log's own flushes wait, and a file lasts much longer than it takes to warm up the next.
"""

from __future__ import annotations

import threading
import time
from typing import Final

from shared.files.disk import File

STEP_SIZE: Final = 64 << 10
"""The page cache keeps what one write brought in as one piece, and a small write into a piece costs
by its size (ext4, Linux 6.18, 300 bytes: 0.8 µs behind steps of 4 to 64 KiB, 1.4 µs behind 1 MiB).
"""
SYNC_SIZE: Final = 16 << 20
"""RocketMQ's flushLeastPagesWhenWarmMapedFile, 4096 pages: what a flush of the log waits behind."""
RESTS: Final = 3
"""Times that a sync took: the disk is the log's for three quarters of the time at least."""
ZEROS: Final = bytes(STEP_SIZE)


class WarmUp:
    """Warms up one file at a time; others may cut that short."""

    def __init__(self) -> None:
        self._needed = -1
        self._stopped = False
        self._no_rest = threading.Event()

    def hurry(self, start: int) -> None:
        """The file that begins at start is needed now, and those before it. Any thread."""
        self._needed = max(self._needed, start)
        self._no_rest.set()

    def again(self) -> None:
        """Forget all that: the files begin anew, maybe at lower offsets."""
        self._needed, self._stopped = -1, False
        self._no_rest.clear()

    def stop(self) -> None:
        """Warm up nothing more. Any thread."""
        self._stopped = True
        self._no_rest.set()

    def run(self, file: File, start: int) -> bool:
        """Write file, new and full of zeros, which begins at start; whether it got to its end.

        What was written is synced; an early end leaves the last steps to the caller's sync. Raises
        DiskFull, OSError.
        """
        for at in range(0, file.size, STEP_SIZE):
            if self._stopped or start <= self._needed:
                return False
            size = min(STEP_SIZE, file.size - at)
            file.pwrite(ZEROS if size == STEP_SIZE else bytes(size), at)
            if (at + size) % SYNC_SIZE == 0 or at + size == file.size:
                began = time.monotonic()
                file.sync()
                if at + size < file.size:
                    self._rest((time.monotonic() - began) * RESTS, start)
        return True

    def _rest(self, seconds: float, start: int) -> None:
        """Leave the disk to the log, unless the file is needed meanwhile."""
        self._no_rest.clear()
        # Looked at after the clearing: what was said before it would wake nobody.
        if not self._stopped and start > self._needed:
            self._no_rest.wait(seconds)
