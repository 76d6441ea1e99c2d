"""cut/: bytes cut off the log (torn tails, forked branches), kept for people, bounded.

A file is named ``<start>-<end>-epoch<N>-<reason>``, offsets of 20 digits each, and holds the bytes
of that range of physical offsets. It appears under its name complete and durable, before any byte
of the range is zeroed. The oldest files are removed at the limits. No service reads these files.
Step before: recovery determines the end. Step after: it zeroes the bytes after the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Final

from shared.files.disk import Disk, FileStat
from tidemark.errors import DiskFull, ReadOnlyDisk
from tidemark.formats.filenames import offset_name

CUT_FILES_MAX: Final = 64
CUT_BYTES_MAX: Final = 1 << 30
NAME_PARTS: Final = 4


def keep_cut(
    disk: Disk, cut_dir: Path, start: int, data: Iterable[bytes], *, epoch: int, reason: str
) -> Path:
    """Keep bytes, from physical offset start on, that are about to be cut from the log.

    Keeps at most the first 1 GiB, and removes the oldest kept files so that all stay within 64
    files and 1 GiB. Durable on return. Raises DiskFull, ReadOnlyDisk; then nothing new is kept.
    """
    disk.make_directory(cut_dir)
    temporary = cut_dir / "keeping.tmp"
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(temporary)
    size = 0
    try:
        with closing(disk.create(temporary, 0, reserve=False)) as file:
            for part in data:
                piece = part[: CUT_BYTES_MAX - size]
                if not piece and part:
                    break
                file.reserve(size, len(piece))
                file.pwrite(piece, size)
                size += len(piece)
            file.sync()
    except (DiskFull, ReadOnlyDisk):
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(temporary)
        raise
    name = f"{offset_name(start)}-{offset_name(start + size)}-epoch{epoch}-{reason}"
    _make_room(disk, cut_dir, size, keep=name)
    path = cut_dir / name
    disk.rename(temporary, path)
    disk.sync_directory(cut_dir)
    return path


def _make_room(disk: Disk, cut_dir: Path, size: int, *, keep: str) -> None:
    """Remove the oldest kept files until one more file of size bytes fits the limits."""
    kept: list[tuple[FileStat, str]] = []
    for entry in disk.list_directory(cut_dir):
        facts = disk.stat(cut_dir / entry.name)
        is_cut = len(entry.name.split("-", NAME_PARTS - 1)) == NAME_PARTS
        if is_cut and not entry.is_directory and entry.name != keep and facts is not None:
            kept.append((facts, entry.name))
    kept.sort(key=lambda cut: (cut[0].modified_ms, cut[1]))
    total = size + sum(facts.size for facts, _ in kept)
    count = len(kept) + 1
    for facts, name in kept:
        if count <= CUT_FILES_MAX and total <= CUT_BYTES_MAX:
            break
        disk.unlink(cut_dir / name)
        total -= facts.size
        count -= 1
