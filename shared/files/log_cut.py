"""What recovery writes to a log: the cut of its torn tail, and what may not be on disk yet.

``recovery`` has decided where the log ends. All steps can be repeated: after a kill in between, the
next start finds the same end and does them again. The caller syncs the directory afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from shared.files.log_walk import CHUNK_SIZE, LogFiles, chunks
from shared.files.store_dir import StoreDir
from tidemark.offsets import PhysicalOffset


class CutTail(NamedTuple):
    """Bytes that were cut off the log."""

    start: PhysicalOffset
    end: PhysicalOffset
    """Offset after the last non-zero byte."""
    path: Path
    """File that keeps the bytes."""
    reason: str


def cut_tail(
    store: StoreDir, files: LogFiles, start: int, end: int, *, epoch: int, reason: str
) -> CutTail:
    """Copy [start, end) to ``cut/`` durably, remove the files after the one that contains start,
    then zero the range there and sync it. Raises DiskFull, ReadOnlyDisk.

    In this order a repetition cannot replace the copy by zeros: once a byte is zeroed, no file is
    left that would give the range the same end, and so the copy the same name.
    """
    path = store.keep_cut(start, chunks(files, start, end), epoch=epoch, reason="torn-tail")
    file_start = files.start_of(start)
    # Files that a killed process removed may be removed in the cache only.
    store.disk.sync_directory(store.commit_log_dir)
    _remove(files, [later for later in files.starts if later > file_start])
    if file_start in files.starts:
        with closing(files.open(file_start, writable=True)) as file:
            stop = min(end, file_start + files.file_size)
            for at in range(start, stop, CHUNK_SIZE):
                file.pwrite(bytes(min(CHUNK_SIZE, stop - at)), at - file_start)
            file.sync()
    return CutTail(PhysicalOffset(start), PhysicalOffset(end), path, reason)


def remove_unusable(files: LogFiles, end: int) -> None:
    """Remove files of length 0, and those that follow a gap after end."""
    last = files.start_of(end)
    later = [start for start in files.starts if start > last]
    follows_gap = last not in files.starts and bool(later)
    unusable = []
    for previous, start in zip([last, *later], later, strict=False):
        follows_gap = follows_gap or start - previous > files.file_size
        if follows_gap:
            unusable.append(start)
    _remove(files, unusable)
    while files.empty:
        files.disk.unlink(files.path(files.empty.pop()))


def _remove(files: LogFiles, starts: Sequence[int]) -> None:
    """Remove files, the last one first. Each removal is synced on its own: they become durable in
    any order, and two could leave a gap."""
    for start in reversed(starts):
        path = files.path(start)
        files.disk.unlink(path)
        files.disk.sync_directory(path.parent)
        files.starts.remove(start)


def rewrite(files: LogFiles, start: int, end: int) -> None:
    """Rewrite [start, end) with its own bytes and sync it."""
    known = set(files.starts)
    at = start
    while at < end:
        file_start = files.start_of(at)
        stop = min(end, file_start + files.file_size)
        if file_start in known:
            with closing(files.open(file_start, writable=True)) as file:
                while at < stop:
                    chunk = file.pread(min(CHUNK_SIZE, stop - at), at - file_start)
                    file.pwrite(chunk, at - file_start)
                    at += len(chunk)
                file.sync()
        at = stop
