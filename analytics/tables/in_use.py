"""Whether a stream writes the tables now: a shared lock, released when its process ends.

A stream that catches up writes hours that ended long ago. Replacing such an hour at the same time
would lose or duplicate rows.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def writing(root: Path, job: str) -> Iterator[None]:
    """Hold the lock until the end of the block; any number of processes may hold it."""
    descriptor = _open(root, job)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def is_written(root: Path, job: str) -> bool:
    """Whether any process holds the lock."""
    descriptor = _open(root, job)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _open(root: Path, job: str) -> int:
    directory = root / "_manifests"
    directory.mkdir(parents=True, exist_ok=True)
    return os.open(directory / f".{job}.writing", os.O_RDWR | os.O_CREAT, 0o666)
