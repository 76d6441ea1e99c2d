"""Interface between the store and a disk; simulated disks implement it.

Everything in ``shared/files`` accesses the file system only through a ``Disk``. The real one is
``os_disk.OsDisk``; the simulated one loses bytes that were not synced. Both guarantee:

- A file has one set of bytes: ``pwrite`` is visible through every mapping at once, and vice versa.
- ``sync`` makes a file's bytes durable, not its name; ``sync_directory`` makes names durable.
- A mapping covers the file's whole length at the time of mapping; files are never shortened.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple, Protocol


class FileStat(NamedTuple):
    """Attributes of one file."""

    size: int
    """Length in bytes."""
    allocated: int
    """Bytes of allocated blocks; less than size for a sparse file."""
    modified_ms: int
    """Last modification, ms since 1970."""
    inode: int


class Space(NamedTuple):
    """Blocks of a file system in bytes; blocks reserved for its administrator are not included."""

    used: int
    available: int
    """Bytes available to an ordinary user."""

    @property
    def used_percent(self) -> int | None:
        """Used share of the bytes available to ordinary users, in whole percent rounded up. Sends
        are refused by this value. None if the file system does not report blocks."""
        total = self.used + self.available
        if self.used < 0 or self.available < 0 or total <= 0:
            return None
        return -(-self.used * 100 // total)


class DirectoryEntry(NamedTuple):
    """One name in a directory."""

    name: str
    is_directory: bool


class MappedRegion(Protocol):
    """A whole file mapped into memory. ``view`` is valid until ``close``."""

    @property
    def view(self) -> memoryview:
        """The file's bytes, format "B"; writable only if mapped as writable."""

    def close(self) -> None:
        """Unmap. If borrowed views exist, the memory is unmapped with the last of them."""


class PageLock(Protocol):
    """Keeps a whole file in memory until ``release`` or the end of the process."""

    def release(self) -> None:
        """Allow the kernel to drop the pages again; a second call does nothing."""


class File(Protocol):
    """An open file of fixed length."""

    @property
    def path(self) -> Path: ...

    @property
    def size(self) -> int:
        """Length in bytes, as of opening."""

    def is_named(self) -> bool:
        """Whether ``path`` still leads to this file: same device, same inode. False after the name
        was removed or given to another file: written bytes are then lost when the process ends."""

    def pread(self, size: int, offset: int) -> bytes:
        """Read up to size bytes at offset; fewer at the end of the file."""

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write all of data at offset. Raises DiskFull, ReadOnlyDisk, OSError."""

    def reserve(self, offset: int, size: int) -> None:
        """Reserve blocks for [offset, offset + size) so that later stores cannot fail.

        Extends the file if the range lies after its end. Raises DiskFull; the file's bytes are
        then unchanged.
        """

    def data_end(self) -> int:
        """Return an offset at or after the last non-zero byte's end; at most the size.

        After it are only holes or unwritten blocks. Do not read those through a mapping: on tmpfs
        even a read allocates a block, and on a full tmpfs the process dies of SIGBUS.
        """

    def sync(self) -> None:
        """fdatasync: bytes (mapped stores included) and length are durable on return. After an
        OSError it must never be called again."""

    def map(self, *, writable: bool, scattered: bool = False) -> MappedRegion:
        """Map the whole file, shared.
        scattered: access is random, so the kernel should not read ahead. Otherwise it reads up to
        megabytes of zeros of a sparse file for 20 bytes."""

    def lock_pages(self) -> PageLock:
        """Read the whole file and keep it in memory (mlock); the lock outlives ``close``. Raises
        MemoryLockRefused if the system does not allow it."""

    def close(self) -> None: ...


class RecordLock(Protocol):
    """An open-file-description lock on one byte; freed by ``release`` or the end of the process."""

    def show(self, sign: Path) -> None:
        """Create a symbolic link named sign to this process's open lock file, until ``release``.

        While the process lives, the link leads to a file of a few bytes; afterwards it is dangling,
        however the process ended. Does nothing where the system or the disk does not allow it.
        """

    def release(self) -> None: ...


class WholeSync(Protocol):
    """Syncs a whole file system. It must exist from before the first write until ``close``."""

    @property
    def files_min(self) -> int:
        """Number of files from which on one ``run`` costs less than syncing each file."""

    def covers(self, directory: Path) -> bool:
        """Whether the directory, and so the files in it, are on this file system."""

    def run(self) -> None:
        """Make all bytes, lengths and names of the file system durable. Blocks.

        Raises OSError if any write to it has failed since this object was created or last ran, even
        if another process was notified of it. The state of every file is then unknown, as after a
        failed ``sync``.
        """

    def close(self) -> None: ...


class Disk(Protocol):
    """The file system operations that the store needs. They raise OSError unless noted."""

    def create(self, path: Path, size: int, *, reserve: bool) -> File:
        """Create a zero-filled file of size bytes, open for writing.
        reserve: allocate all blocks now; otherwise the file is sparse. On failure no file is left.
        Raises FileExistsError, DiskFull, ReadOnlyDisk. The name is durable after sync_directory."""

    def open(self, path: Path, *, writable: bool) -> File:
        """Open a file. Raises FileNotFoundError, ReadOnlyDisk, OutOfResources, ReadFailed."""

    def stat(self, path: Path) -> FileStat | None:
        """Return the attributes of a file or directory; None if it does not exist."""

    def list_directory(self, path: Path) -> Sequence[DirectoryEntry]:
        """Return the names in the directory, sorted; empty if the directory is missing."""

    def make_directory(self, path: Path, *, durable: bool = True) -> None:
        """Create the directory and missing parents; does nothing if it exists.
        durable: sync each new name into its parent. False leaves that to the caller."""

    def rename(self, old: Path, new: Path) -> None:
        """Rename, replacing new; durable after sync_directory of the parent."""

    def unlink(self, path: Path) -> None: ...

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""

    def sync_directory(self, path: Path) -> None:
        """fsync the directory, so that creations, renames and removals in it are durable."""

    def whole_sync(self, path: Path) -> WholeSync | None:
        """Return a sync of path's file system; None if it does not report all failed writes."""

    def space(self, path: Path) -> Space:
        """Return the usage of the file system of path; path may be missing. Raises OSError."""

    def lock(self, path: Path, *, byte: int) -> RecordLock | None:
        """Lock one byte exclusively (F_OFD_SETLK) without waiting; None if it is locked."""


def write_atomically(disk: Disk, path: Path, data: bytes) -> None:
    """Replace a small file atomically: temporary file, sync, rename, directory sync.

    After a crash at any point the file holds either the old bytes or all of the new ones. A
    leftover ``.tmp`` is overwritten by the next call.
    """
    replace(disk, path, data)
    disk.sync_directory(path.parent)


def replace(disk: Disk, path: Path, data: bytes) -> None:
    """Do what ``write_atomically`` does, except that the caller syncs the directory."""
    temporary = path.with_name(path.name + ".tmp")
    if disk.stat(temporary) is not None:
        disk.unlink(temporary)
    with closing(disk.create(temporary, len(data), reserve=False)) as file:
        file.pwrite(data, 0)
        file.sync()
    disk.rename(temporary, path)


def read_whole(disk: Disk, path: Path) -> bytes | None:
    """Return all bytes of a small file; None if it is missing."""
    try:
        file = disk.open(path, writable=False)
    except FileNotFoundError:
        return None
    try:
        return file.pread(file.size, 0)
    finally:
        file.close()
