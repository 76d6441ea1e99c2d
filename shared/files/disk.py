"""The seam between the store and a disk: every simulated disk stands here.

Everything below ``shared/files`` reaches the file system through a ``Disk`` and nothing else.
The real one is ``os_disk.OsDisk``; the simulated one loses what was not synced. Both keep:

- A file's bytes are one: what ``pwrite`` stored is seen through every mapping at once, and back.
- ``sync`` makes a file's bytes durable, not its name; ``sync_directory`` makes names durable.
- A mapping shows the file's whole length at the time of mapping; files are never shortened.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol


class FileStat(NamedTuple):
    """What the file system knows of one file."""

    size: int
    """Length in bytes."""
    allocated: int
    """Bytes of blocks really reserved; less than size in a sparse file."""
    modified_ms: int
    """Last modification, ms since 1970."""
    inode: int


class Space(NamedTuple):
    """Blocks of a file system, in bytes; what only its administrator may take counts as neither."""

    used: int
    available: int
    """What an ordinary user may still take."""

    @property
    def used_percent(self) -> int | None:
        """Used of what an ordinary user can ever use, in whole percent rounded up, as sends are
        refused by it; None if the file system states no blocks."""
        total = self.used + self.available
        if self.used < 0 or self.available < 0 or total <= 0:
            return None
        return -(-self.used * 100 // total)


class DirectoryEntry(NamedTuple):
    """One name in a directory."""

    name: str
    is_directory: bool


class MappedRegion(Protocol):
    """A whole file seen as memory. ``view`` is valid until ``close``."""

    @property
    def view(self) -> memoryview:
        """The file's bytes, format "B"; writable only if mapped so."""
        ...

    def close(self) -> None:
        """Unmap. If a borrowed view is still alive, the memory goes with the last of them."""
        ...


class PageLock(Protocol):
    """A whole file held in memory until ``release`` or the process's end."""

    def release(self) -> None:
        """Let the kernel drop the pages again; a second call does nothing."""
        ...


class File(Protocol):
    """An open file of fixed length."""

    @property
    def path(self) -> Path: ...

    @property
    def size(self) -> int:
        """Length in bytes, as of opening."""
        ...

    def is_named(self) -> bool:
        """Whether ``path`` still leads to this file: same device, same inode.

        False once its name was removed, or given to another file: what is written goes where
        nobody will find it.
        """
        ...

    def pread(self, size: int, offset: int) -> bytes:
        """Read up to size bytes at offset; fewer at the end of the file."""
        ...

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write all of data at offset. Raises DiskFull, ReadOnlyDisk, OSError."""
        ...

    def reserve(self, offset: int, size: int) -> None:
        """Reserve blocks for [offset, offset + size) so that later stores cannot fail.

        Extends the file if the range lies behind its end. Raises DiskFull with nothing half done
        that matters: bytes are unchanged.
        """
        ...

    def data_end(self) -> int:
        """Offset behind the last byte that may be other than zero, at least; at most the size.

        What lies behind are holes, or blocks never written. Do not read those through a mapping:
        on tmpfs even that takes a block, and on a full one the process dies of SIGBUS.
        """
        ...

    def sync(self) -> None:
        """fdatasync: bytes (mapped stores included) and length are durable on return."""
        ...

    def map(self, *, writable: bool, scattered: bool = False) -> MappedRegion:
        """Map the whole file, shared.

        scattered: reads jump about, so nothing beside a page that is read is worth reading. Without
        it the kernel reads ahead, up to megabytes of zeros of a sparse file for 20 bytes.
        """
        ...

    def lock_pages(self) -> PageLock:
        """Read in the whole file and hold it in memory (mlock); outlives ``close``.

        Raises MemoryLockRefused if the system does not allow it.
        """
        ...

    def close(self) -> None: ...


class RecordLock(Protocol):
    """An open-file-description lock on one byte; freed by ``release`` or the process's end."""

    def show(self, sign: Path) -> None:
        """Make a symbolic link named sign to this process's open lock file, until ``release``.

        The link leads to a file of a few bytes while the process lives, and to nothing after its
        end, whatever ends it. Does nothing where the system or the disk does not allow it.
        """
        ...

    def release(self) -> None: ...


class WholeSync(Protocol):
    """A file system, to be made durable as a whole. From before the first write to ``close``."""

    @property
    def files_min(self) -> int:
        """Of so many files on, it costs less than syncing each."""
        ...

    def covers(self, directory: Path) -> bool:
        """Whether the directory, and so the files in it, lie on this file system."""
        ...

    def run(self) -> None:
        """All bytes, lengths and names that it holds are durable on return. Blocks.

        Raises OSError if any write to it has failed since this object was made or last ran,
        whoever saw that already: then nothing is known of any file, as after a failed ``sync``.
        """
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """A file system, as far as the store needs one. Raises OSError unless told."""

    def create(self, path: Path, size: int, *, reserve: bool) -> File:
        """Make a new zero-filled file of size bytes, open for writing.

        reserve: take all blocks now (else sparse). On failure nothing stays behind.
        Raises FileExistsError, DiskFull, ReadOnlyDisk. The name is durable after sync_directory.
        """
        ...

    def open(self, path: Path, *, writable: bool) -> File:
        """Open an existing file. Raises FileNotFoundError, ReadOnlyDisk."""
        ...

    def stat(self, path: Path) -> FileStat | None:
        """Facts of a file or directory; None if there is none."""
        ...

    def list_directory(self, path: Path) -> Sequence[DirectoryEntry]:
        """Names in the directory, sorted; empty if the directory is missing."""
        ...

    def make_directory(self, path: Path, *, durable: bool = True) -> None:
        """Make it and missing parents; fine if it exists.

        durable: each new name is synced into its parent at once. False leaves that to the caller.
        """
        ...

    def rename(self, old: Path, new: Path) -> None:
        """Rename, replacing; durable after sync_directory of the parent."""
        ...

    def unlink(self, path: Path) -> None: ...

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""
        ...

    def sync_directory(self, path: Path) -> None:
        """fsync the directory: creations, renames and removals of names in it are durable."""
        ...

    def whole_sync(self, path: Path) -> WholeSync | None:
        """Of the file system that holds path; None where it does not tell of every failed write."""
        ...

    def free_bytes(self, path: Path) -> int:
        """Bytes that an ordinary user may still take on the file system of path."""
        ...

    def space(self, path: Path) -> Space:
        """How full the file system of path is; path may be missing. Raises OSError."""
        ...

    def lock(self, path: Path, *, byte: int) -> RecordLock | None:
        """Lock one byte exclusively (F_OFD_SETLK) without waiting; None if somebody holds it."""
        ...


def write_atomically(disk: Disk, path: Path, data: bytes) -> None:
    """Replace a small file as one step: temporary, sync, rename, directory sync.

    After a crash at any point the file holds either the old bytes or all of the new ones; a
    leftover ``.tmp`` is overwritten by the next call.
    """
    temporary = path.with_name(path.name + ".tmp")
    if disk.stat(temporary) is not None:
        disk.unlink(temporary)
    file = disk.create(temporary, len(data), reserve=False)
    try:
        file.pwrite(data, 0)
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_directory(path.parent)


def read_whole(disk: Disk, path: Path) -> bytes | None:
    """All bytes of a small file; None if it is missing."""
    try:
        file = disk.open(path, writable=False)
    except FileNotFoundError:
        return None
    try:
        return file.pread(file.size, 0)
    finally:
        file.close()
