"""Warm-up of a new log file: it is filled with zeros before it is used (docs/durability.md).

The file system marks reserved blocks as unwritten. The first flush of such a page must also clear
the mark in the file system's journal, and waits for that together with everything else in the
journal; the flush of a page that was written before costs only the page. The price is that every
byte is written twice.

The thread that creates files ahead does the warm-up (``file_run.create``) in steps, so that one
step is in memory and at most ``SYNC_SIZE`` is unsynced. If a file is needed at once, its warm-up
ends early; the file works without.

If there is no hurry, the thread sleeps three times as long as each of its syncs took: while the
disk is busy with zeros the log's own flushes wait, and the log needs much longer to fill a file
than the warm-up of the next takes.
"""

from __future__ import annotations

import threading
import time
from typing import Final

from shared.files.disk import File

STEP_SIZE: Final = 64 << 10
"""The page cache keeps the bytes of one write in one piece, and a small write into a piece costs
by the piece's size (ext4, Linux 6.18, 300 bytes: 0.8 µs after steps of 4 to 64 KiB, 1.4 µs after
1 MiB)."""
SYNC_SIZE: Final = 16 << 20
"""RocketMQ's flushLeastPagesWhenWarmMapedFile, 4096 pages; a flush of the log may wait for it."""
RESTS: Final = 3
"""Pause as a multiple of a sync's time: the disk is free for the log three quarters of the time."""
ZEROS: Final = bytes(STEP_SIZE)


class WarmUp:
    """Warms up one file at a time; other threads may end that early."""

    def __init__(self) -> None:
        self._needed = -1
        self._stopped = False
        self._no_rest = threading.Event()

    def hurry(self, start: int) -> None:
        """End the warm-up of the file that begins at start, and of those before it. Any thread."""
        self._needed = max(self._needed, start)
        self._no_rest.set()

    def again(self) -> None:
        """Reset this object, because the files start again, possibly at lower offsets."""
        self._needed, self._stopped = -1, False
        self._no_rest.clear()

    def stop(self) -> None:
        """End all warm-ups. Usable in any thread."""
        self._stopped = True
        self._no_rest.set()

    def run(self, file: File, start: int) -> bool:
        """Fill a new file that begins at start with zeros; return whether the end was reached.

        The written bytes are synced; after an early end the caller's sync covers the last steps.
        Raises DiskFull, OSError.
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
        # Checked after clear(), which erases the event of an earlier hurry() or stop().
        if not self._stopped and start > self._needed:
            self._no_rest.wait(seconds)
