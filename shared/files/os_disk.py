"""The real disk: mmap, pwrite, fdatasync, fallocate, rename, directory sync, record locks.

It is the only module that imports mmap. It converts error numbers to errors that an operator can
act on (``DiskFull``, ``ReadOnlyDisk``: path, numbers, remedy) and contains no other rule.
Invariants:

- A file appears under its name with its full length or not at all: it is created without a name
  (``O_TMPFILE``) and linked, so a kill or a full disk in the middle leaves nothing behind. On a
  file system without ``O_TMPFILE`` it is created exclusively, and removed again on failure.
- A file is never shortened, so no mapping of it, here or in another process, can raise SIGBUS.

All other modules access the file system through this one (docs/formats.md, section 7). ``disk``
documents the methods.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import resource
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from shared.files.disk import DirectoryEntry, FileStat, Space
from shared.files.os_page_lock import OsPageLock
from shared.files.os_whole_sync import OsWholeSync, reports_failed_writes
from tidemark.errors import (
    DiskFull,
    MemoryLockRefused,
    OutOfResources,
    ReadFailed,
    ReadOnlyDisk,
    StoreError,
    StrayFile,
)

MODE: Final = 0o644
BLOCK_SIZE: Final = 512
"""Unit of st_blocks on Linux, whatever the file system's block is."""
FLOCK: Final = struct.Struct("hhqqi4x")
"""struct flock on 64-bit Linux: type, whence, start, length, pid (0 for F_OFD_*), padding."""
NO_TMPFILE: Final = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT})
"""Errors of open(O_TMPFILE), or of linking its file, on file systems that do not support it."""
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
MADV_POPULATE_READ: Final = 22
"""From Linux 5.14; the module mmap of Python 3.11 does not name it."""
MISPLACED: Final = frozenset({errno.EISDIR, errno.ENOTDIR})
REFUSED: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def _named(error: OSError, path: Path, needed_bytes: int) -> StoreError | None:
    """Return an error that an operator can act on; None if error is of another kind."""
    if error.errno in FULL:
        free = _free_bytes(path)
        what = f"{needed_bytes} bytes in " if needed_bytes else "the name "
        return DiskFull(
            f"no room for {what}{path}: {free} bytes are free "
            f"({os.strerror(error.errno or errno.ENOSPC)}). Stored messages stay readable.",
            "Free space on this file system or enlarge it; writes resume automatically.",
            path=path,
            free_bytes=free,
            needed_bytes=needed_bytes,
        )
    if error.errno in REFUSED:
        return ReadOnlyDisk(
            f"cannot write {path}: {os.strerror(error.errno or errno.EROFS)}. "
            "What is stored stays readable.",
            "Remount the file system for writing or give this user write permission.",
            path=path,
        )
    if error.errno in EXHAUSTED:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return OutOfResources(
            f"cannot open or map {path}: {os.strerror(error.errno or errno.EMFILE)} (this process "
            f"may have {soft} descriptors). Nothing was changed.",
            "It is tried again. Close connections, or raise the limit of open files (ulimit -n, "
            "LimitNOFILE=), fs.file-max or vm.max_map_count.",
            path=path,
            limit=soft,
        )
    if error.errno in MISPLACED:
        found = next((each for each in (path, *path.parents) if each.is_file()), path)
        what, wanted = ("file", "directory") if found.is_file() else ("directory", "file")
        return StrayFile(
            f"{found} is a {what} where a {wanted} belongs. Nothing was changed.",
            "Move it away.",
            path=found,
        )
    return None


def _unread(error: OSError, path: Path) -> StoreError | None:
    """Return the error of a failed read that an operator can act on, or None."""
    if error.errno in EXHAUSTED | MISPLACED:
        return _named(error, path, 0)
    if error.errno != errno.EIO:
        return None
    return ReadFailed(
        f"cannot read {path}: {os.strerror(errno.EIO)}. Nothing was changed.",
        "Look at the kernel's log for errors of this disk (dmesg, smartctl). If they last, move "
        "the store to another disk, or copy it from another replica.",
        path=path,
    )


@contextlib.contextmanager
def _naming(path: Path, *, needed_bytes: int = 0) -> Iterator[None]:
    """Convert OSErrors of the block to errors that an operator can act on, where possible."""
    try:
        yield
    except OSError as error:
        named = _named(error, path, needed_bytes)
        if named is None:
            raise
        raise named from error


def _space(path: Path) -> Space:
    """Return the usage of the file system on which path is or would be."""
    for candidate in (path, *path.parents):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            facts = os.statvfs(candidate)
            size = facts.f_frsize
            return Space((facts.f_blocks - facts.f_bfree) * size, facts.f_bavail * size)
    return Space(0, 0)


def _free_bytes(path: Path) -> int:
    """Return the bytes available to an ordinary user where path is or would be."""
    return _space(path).available


class OsRegion:
    """A mapped file. ``view`` is valid until ``close``."""

    __slots__ = ("_memory", "view")

    def __init__(self, descriptor: int, size: int, *, writable: bool, scattered: bool) -> None:
        if size == 0:  # the kernel does not map an empty range
            self._memory: mmap.mmap | None = None
            self.view = memoryview(b"")
            return
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._memory = mmap.mmap(descriptor, size, mmap.MAP_SHARED, protection)
        if scattered:
            self._memory.madvise(mmap.MADV_RANDOM)
        self.view = memoryview(self._memory)

    def close(self) -> None:
        # BufferError: a slice is still referenced. It keeps the mapping until it is released.
        with contextlib.suppress(BufferError):
            self.view.release()
        if self._memory is not None:
            with contextlib.suppress(BufferError):
                self._memory.close()
            self._memory = None


class OsFile:
    """An open file with one descriptor."""

    __slots__ = ("_descriptor", "path", "size")

    def __init__(self, path: Path, descriptor: int, size: int) -> None:
        self.path = path
        self.size = size
        self._descriptor = descriptor

    def pread(self, size: int, offset: int) -> bytes:
        try:
            data = os.pread(self._descriptor, size, offset)
            while len(data) < size:
                more = os.pread(self._descriptor, size - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            named = _unread(error, self.path)
            if named is None:
                raise
            raise named from error
        return data

    def borrow(self, size: int, offset: int) -> memoryview | bytes:
        """Read like ``pread``, within the size as of opening, but without a copy where possible.

        Returns a view of the page cache, which is unmapped with the last reference to it. All its
        pages are read before. If that fails (an error of the disk, a kernel before Linux 5.14), it
        returns or raises what ``pread`` does: access to a page that cannot be read would kill the
        process. So would access after another process has shortened the file; ours never do.
        """
        first_page = offset - offset % mmap.ALLOCATIONGRANULARITY
        end = min(offset + size, self.size)
        if end <= offset:
            return b""
        try:
            pages = mmap.mmap(
                self._descriptor,
                end - first_page,
                mmap.MAP_SHARED,
                mmap.PROT_READ,
                offset=first_page,
            )
            pages.madvise(MADV_POPULATE_READ)
        except (OSError, ValueError):  # ValueError: the file was cut meanwhile
            return self.pread(size, offset)
        return memoryview(pages)[offset - first_page :]

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        size = len(data)
        try:
            done = os.pwrite(self._descriptor, data, offset)
            while done < size:
                with memoryview(data) as rest:
                    done += os.pwrite(self._descriptor, rest[done:], offset + done)
        except OSError as error:  # not _naming: its generator would double the cost of an append
            named = _named(error, self.path, size)
            if named is None:
                raise
            raise named from error
        if offset + size > self.size:
            self.size = offset + size

    def is_named(self) -> bool:
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(self._descriptor))

    def reserve(self, offset: int, size: int) -> None:
        if size == 0:
            return
        with _naming(self.path, needed_bytes=size):
            os.posix_fallocate(self._descriptor, offset, size)
        self.size = max(self.size, offset + size)

    def data_end(self) -> int:
        end = 0
        with _naming(self.path):
            while end < self.size:
                try:
                    data = os.lseek(self._descriptor, end, os.SEEK_DATA)
                except OSError as error:
                    if error.errno == errno.ENXIO:  # holes up to the end of the file
                        return end
                    raise
                end = os.lseek(self._descriptor, data, os.SEEK_HOLE)
        return min(end, self.size)

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def map(self, *, writable: bool, scattered: bool = False) -> OsRegion:
        try:
            return OsRegion(self._descriptor, self.size, writable=writable, scattered=scattered)
        except OSError as error:
            named = _unread(error, self.path)
            if named is None:
                raise
            raise named from error

    def lock_pages(self) -> OsPageLock:
        try:
            return OsPageLock(self._descriptor, self.size)
        except OSError as error:
            limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
            raise MemoryLockRefused(
                f"cannot lock {self.size} bytes of {self.path} in memory: {error.strerror}; "
                f"RLIMIT_MEMLOCK is {limit} bytes. The file is used without.",
                "Raise the limit (ulimit -l, LimitMEMLOCK=, the capability IPC_LOCK) to three log "
                "files, or set lock_files_memory = false.",
                path=self.path,
                limit=limit,
            ) from error

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class OsRecordLock:
    """One byte locked through its own open file description."""

    __slots__ = ("_descriptor", "_sign")

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._sign: Path | None = None

    def show(self, sign: Path) -> None:
        target = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        if self._sign is not None or not Path(target).exists():
            return
        with contextlib.suppress(OSError):  # full or read-only disk: the link is optional
            sign.unlink(missing_ok=True)  # left by a process that was killed
            sign.symlink_to(target)
            self._sign = sign

    def release(self) -> None:
        if self._descriptor >= 0:
            if self._sign is not None:
                with contextlib.suppress(OSError):
                    self._sign.unlink()
            os.close(self._descriptor)  # the description's last descriptor, so the lock is freed
            self._descriptor = -1


class OsDisk:
    """The file systems of this machine."""

    def create(self, path: Path, size: int, *, reserve: bool) -> OsFile:
        if reserve and size > 0:
            # Checked first: on a nearly full disk fallocate takes all that is left before it fails,
            # and all other writes fail meanwhile.
            free = _free_bytes(path)
            if free < size:
                named = _named(OSError(errno.ENOSPC, ""), path, size)
                assert named is not None
                raise named
        with _naming(path, needed_bytes=size):
            descriptor = self._open_nameless(path)
            nameless = descriptor is not None
            if descriptor is None:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, MODE)
            try:
                if reserve and size > 0:
                    os.posix_fallocate(descriptor, 0, size)
                else:
                    os.ftruncate(descriptor, size)
                if nameless:
                    self._give_name(descriptor, path)
            except OSError:
                os.close(descriptor)
                if not nameless:
                    os.unlink(path)
                raise
        return OsFile(path, descriptor, size)

    @staticmethod
    def _open_nameless(path: Path) -> int | None:
        """Create a file without a name in path's directory; None if that is not supported."""
        if not os.path.exists("/proc/self/fd") or not os.path.isdir(path.parent):
            return None
        try:
            return os.open(path.parent, os.O_RDWR | os.O_TMPFILE, MODE)
        except OSError as error:
            if error.errno in NO_TMPFILE:
                return None
            raise

    @staticmethod
    def _give_name(descriptor: int, path: Path) -> None:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # Python follows the link in /proc only if dst_dir_fd is given.
            os.link(f"/proc/self/fd/{descriptor}", path.name, dst_dir_fd=directory)
        finally:
            os.close(directory)

    def open(self, path: Path, *, writable: bool) -> OsFile:
        try:
            descriptor = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
        except OSError as error:  # not _naming: thousands of queues are opened repeatedly
            named = _named(error, path, 0) if writable else _unread(error, path)
            if named is None:
                raise
            raise named from error
        return OsFile(path, descriptor, os.fstat(descriptor).st_size)

    def stat(self, path: Path) -> FileStat | None:
        try:
            facts = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return FileStat(
            size=facts.st_size,
            allocated=facts.st_blocks * BLOCK_SIZE,
            modified_ms=facts.st_mtime_ns // 1_000_000,
            inode=facts.st_ino,
        )

    def list_directory(self, path: Path) -> Sequence[DirectoryEntry]:
        try:
            with _naming(path), os.scandir(path) as names:
                return sorted(DirectoryEntry(name.name, _is_directory(name)) for name in names)
        except FileNotFoundError:
            return []

    def make_directory(self, path: Path, *, durable: bool = True) -> None:
        if os.path.isdir(path):
            return
        if path.parent != path:
            self.make_directory(path.parent, durable=durable)
        with _naming(path), contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o755)
        if durable:
            self.sync_directory(path.parent)

    def rename(self, old: Path, new: Path) -> None:
        with _naming(new):
            os.rename(old, new)

    def unlink(self, path: Path) -> None:
        """Remove a name. Raises FileNotFoundError, ReadOnlyDisk."""
        with _naming(path):
            os.unlink(path)

    def remove_directory(self, path: Path) -> None:
        with _naming(path):
            os.rmdir(path)

    def sync_directory(self, path: Path) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            named = _named(error, path, 0) if error.errno in EXHAUSTED else None
            if named is None:
                raise
            raise named from error
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def whole_sync(self, path: Path) -> OsWholeSync | None:
        return OsWholeSync(path) if reports_failed_writes(path) else None

    def space(self, path: Path) -> Space:
        return _space(path)

    def lock(self, path: Path, *, byte: int) -> OsRecordLock | None:
        # An open-file-description lock conflicts with the POSIX record locks of a RocketMQ broker,
        # conflicts also inside one process, and survives closing another descriptor of the file.
        with _naming(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, MODE)
        wanted = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, wanted)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return None
            raise
        return OsRecordLock(descriptor)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    """Whether a name leads to a directory; false for a link that this process may not follow.

    1. A node in a container links ``commitlog/tidemark-is-running`` to ``/proc/1/fd/N``. 2. Outside
    the container that is a descriptor of another process, which we may not be allowed to read.
    """
    try:
        return entry.is_dir()
    except PermissionError:
        return False
