"""Waits for a byte of ``lock`` that another process of the node is about to release.

It polls, because a wait in the kernel could not be ended when this process is to stop. There is no
limit, because the owner of the byte may itself be stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from shared.files.disk import RecordLock
from shared.files.store_dir import LockByte, StoreDir
from tidemark.formats.filenames import RUNNING_SIGN

POLL_S: Final = 0.002


class Stopping(Exception):
    """This process is to end; the next start finishes what was begun."""


def wait_for_byte(directory: StoreDir, role: LockByte, stopping: Callable[[], bool]) -> RecordLock:
    """Take a byte as soon as it is free. Blocks. Raises Stopping, ReadOnlyDisk, DiskFull."""
    while True:
        lock = directory.disk.lock(directory.lock_path, byte=role)
        if lock is not None:
            if role is LockByte.APPEND:
                # A slave's store, too, must not be recovered by a RocketMQ broker.
                lock.show(directory.commit_log_dir / RUNNING_SIGN)
            return lock
        if stopping():
            raise Stopping
        time.sleep(POLL_S)
