"""A disk in memory that loses, at a power cut, everything a real one may lose.

It implements ``shared.files.disk.Disk``, so the store's own code runs on it unchanged. Two copies
of every file are kept: the *cache* (what ``pread`` and every mapping show) and the *durable* bytes.
It is as harsh as POSIX allows and as real disks have been seen to be:

- Pages reach the disk in any order, at any time, whether they were stored by ``pwrite`` or through
  a mapping; only ``sync`` guarantees a time. A page in flight is torn between sectors.
- A name and the bytes under it are made durable separately: ``sync_directory`` for the one, the
  file's ``sync`` for the other. A name whose length was not synced may come back with length 0.
- Every creation, removal and rename that was not synced survives or not, each on its own; a rename
  is old or new, never both and never neither.
- After a failed ``sync`` the kernel marks the pages clean: later syncs succeed without them.

It does not model a sector that is half written, a disk that reports a ``sync`` that it did not do,
and a crash between two stores through one mapping (a crash comes between operations; see
``checkpoint``).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Final

from shared.files.disk import DirectoryEntry, FileStat, Space
from tests.support.sim_files import (
    KEEP_ALL,
    LOSE_ALL,
    PAGE,
    SECTOR,
    Directory,
    Inode,
    Loss,
    NameChange,
    draw_loss,
    page_count,
)
from tidemark.errors import DiskFull, MemoryLockRefused, ReadOnlyDisk

__all__ = ["KEEP_ALL", "LOSE_ALL", "PAGE", "SECTOR", "Loss", "SimCrash", "SimDisk", "SimFile"]

FIRST_NOW_MS: Final = 1_700_000_000_000
_WRITE_BACK_CHANCE: Final = 0.04


class SimCrash(BaseException):
    """The machine, or the process, is gone. Not an Exception, so that no code handles it."""


class SimDisk:
    """One simulated file system and the machine around it.

    random: decides what the "kernel" writes back early and what a power cut keeps; the same seed
    and the same calls give the same disk. capacity_bytes: blocks there are; None: no end.
    """

    def __init__(self, random: Random | int = 0, *, capacity_bytes: int | None = None) -> None:
        self.random = random if isinstance(random, Random) else Random(random)
        self.capacity_bytes = capacity_bytes
        self.read_only = False
        self.write_back_chance = _WRITE_BACK_CHANCE
        self.now_ms = FIRST_NOW_MS
        self.operations = 0
        self.crash_at: int | None = None
        """Raise SimCrash instead of the operation with this number (``operations`` counts on)."""
        self.failing_sync: Callable[[Path], bool] = lambda path: False
        self.after_sync: Callable[[], None] | None = None
        """Called once, when the next file sync has done its work and not yet returned: what other
        threads did meanwhile."""
        self.unreserved_stores: list[str] = []
        """Pages stored through a mapping without blocks under them: SIGBUS on a full disk."""
        self.whole_sync_files_min = 1000
        """Number of files from which on a whole sync is preferred, where allowed."""
        self.refuses_page_locks = False
        self.page_locks: list[Path] = []
        """Files that are held in memory, one entry for each holder."""
        self.trace: list[str] | None = None
        self.check_reserved = False
        self._root = Directory(1)
        self._next_number = 2
        self._pending: list[NameChange] = []
        self._inodes: dict[int, Inode] = {}
        self._used_pages = 0
        self._locks: dict[tuple[int, int], SimLock] = {}
        self._at_crash: SimDisk | None = None

    # The operations of the Disk protocol

    def create(self, path: Path, size: int, *, reserve: bool) -> SimFile:
        """Make a zero-filled file; killed here, it may stay behind with length 0."""
        self._operation("create", path, partly=lambda: self._create_partly(path))
        self._refuse_if_read_only(path)
        directory = self._directory(path.parent)
        if path.name in directory.names:
            raise FileExistsError(errno.EEXIST, "exists", str(path))
        inode = self._new_inode(size)
        if reserve:
            self._allocate(inode, 0, size, path)
        self._link(directory, path.name, inode)
        return SimFile(self, path, inode, writable=True)

    def open(self, path: Path, *, writable: bool) -> SimFile:
        """Open an existing file."""
        self._operation("open", path)
        inode = self._find(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        if isinstance(inode, Directory):
            raise IsADirectoryError(errno.EISDIR, "is a directory", str(path))
        if writable:
            self._refuse_if_read_only(path)
        return SimFile(self, path, inode, writable=writable)

    def stat(self, path: Path) -> FileStat | None:
        """Facts of a file or directory; None if there is none."""
        node = self._find(path)
        if node is None:
            return None
        if isinstance(node, Directory):
            return FileStat(size=0, allocated=0, modified_ms=self.now_ms, inode=node.number)
        allocated = sum(node.allocated) * PAGE
        return FileStat(len(node.cache), allocated, node.modified_ms, node.number)

    def list_directory(self, path: Path) -> Sequence[DirectoryEntry]:
        """Names, sorted; empty if the directory is missing."""
        node = self._find(path)
        if not isinstance(node, Directory):
            return []
        return [
            DirectoryEntry(name, isinstance(child, Directory))
            for name, child in sorted(node.names.items())
        ]

    def make_directory(self, path: Path, *, durable: bool = True) -> None:
        """Make a directory and its missing parents; durable: each new name, and no other, at
        once."""
        node: Directory = self._root
        for depth, part in enumerate(path.parts[1:], start=2):
            child = node.names.get(part)
            if child is None:
                here = Path(*path.parts[:depth])
                self._operation("make_directory", here)
                self._refuse_if_read_only(here)
                child = Directory(self._number())
                node.names[part] = child
                if durable:
                    node.durable[part] = child
                else:
                    self._pending.append(NameChange(None, (node, part, child)))
            if isinstance(child, Inode):
                raise NotADirectoryError(errno.ENOTDIR, "is a file", str(path))
            node = child

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file or a directory, replacing a file."""
        self._operation("rename", new)
        self._refuse_if_read_only(new)
        source, target = self._directory(old.parent), self._directory(new.parent)
        if old.name not in source.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(old))
        node = source.names.pop(old.name)
        replaced = target.names.get(new.name)
        if isinstance(replaced, Inode):
            self._drop(replaced)
        target.names[new.name] = node
        self._pending.append(NameChange((source, old.name), (target, new.name, node)))

    def unlink(self, path: Path) -> None:
        """Remove a name; the bytes go with the last mapping."""
        self._operation("unlink", path)
        self._refuse_if_read_only(path)
        directory = self._directory(path.parent)
        node = directory.names.get(path.name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        if isinstance(node, Directory):
            raise IsADirectoryError(errno.EISDIR, "is a directory", str(path))
        del directory.names[path.name]
        self._drop(node)
        self._pending.append(NameChange((directory, path.name), None))

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""
        self._operation("remove_directory", path)
        self._refuse_if_read_only(path)
        parent = self._directory(path.parent)
        node = parent.names.get(path.name)
        if not isinstance(node, Directory):
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
        if node.names:
            raise OSError(errno.ENOTEMPTY, "directory not empty", str(path))
        del parent.names[path.name]
        self._pending.append(NameChange((parent, path.name), None))

    def sync_directory(self, path: Path) -> None:
        """Make every change of names in it durable."""
        self._operation("sync_directory", path)
        directory = self._directory(path)
        staying = []
        for change in self._pending:
            if change.touches(directory):
                change.apply()
            else:
                staying.append(change)
        self._pending = staying

    def whole_sync(self, path: Path) -> SimWholeSync:
        """All of the simulated disk is one file system."""
        return SimWholeSync(self)

    def free_bytes(self, path: Path) -> int:
        """Blocks that are left."""
        if self.capacity_bytes is None:
            return 1 << 50
        return max(0, self.capacity_bytes - self._used_pages * PAGE)

    def space(self, path: Path) -> Space:
        """Blocks that are taken, and left."""
        return Space(self._used_pages * PAGE, self.free_bytes(path))

    def lock(self, path: Path, *, byte: int) -> SimLock | None:
        """Lock one byte of a file, made if missing; held until release or the process's end."""
        node = self._find(path)
        if node is None:
            node = self.create(path, 0, reserve=False)._inode
        held = self._locks.get((node.number, byte))
        if held is not None:
            return None
        lock = SimLock(self._locks, (node.number, byte))
        self._locks[node.number, byte] = lock
        return lock

    # The machine around it

    def checkpoint(self, what: str) -> None:
        """Count as an operation: a place where a crash may come between two mapped stores."""
        self._operation(what, None)

    def crash(self) -> None:
        """End everything: keep this moment, refuse later operations. Then raise SimCrash."""
        if self._at_crash is None:
            self._at_crash = self._copy()

    def copy(self) -> SimDisk:
        """The same disk and page cache, all processes gone (SIGKILL): no locks, no mappings."""
        return self._at_crash.copy() if self._at_crash is not None else self._copy()

    def power_cut(self, random: Random | None = None, loss: Loss | None = None) -> SimDisk:
        """The disk as the next boot finds it. ``self`` is not changed and can be cut again."""
        if self._at_crash is not None:
            return self._at_crash.power_cut(random, loss)
        random = random or self.random
        loss = loss or draw_loss(random)
        before = self._copy()
        for change in before._pending:
            if random.random() < loss.names:
                change.apply()
        survivors: dict[int, Inode] = {}

        def survive(inode: Inode) -> Inode:
            found = survivors.get(inode.number)
            if found is None:
                found = survivors[inode.number] = inode.after_power_cut(random, loss)
            return found

        def walk(directory: Directory) -> Directory:
            after = Directory(directory.number)
            for name, child in sorted(directory.durable.items()):
                node = walk(child) if isinstance(child, Directory) else survive(child)
                after.names[name] = after.durable[name] = node
            return after

        return self._successor(walk(before._root), [])

    def revive(self) -> None:
        """Go on after a SimCrash: only one process was killed, the others and the disk live."""
        self._at_crash = None
        self.crash_at = None

    def flip_bit(self, path: Path, bit: int) -> None:
        """Damage one bit (8 · byte + bit in it), on the disk and in the cache."""
        inode = self._file(path)
        inode.cache[bit // 8] ^= 1 << bit % 8
        inode.durable[bit // 8] ^= 1 << bit % 8

    def remove_tree(self, path: Path) -> None:
        """Take away a file or a whole directory, durably: what an operator deleted by mistake."""
        if self._find(path) is None:
            return
        for entry in self.list_directory(path):
            self.remove_tree(path / entry.name)
        parent = self._directory(path.parent)
        node = parent.names.pop(path.name)
        parent.durable.pop(path.name, None)
        if isinstance(node, Inode):
            self._drop(node)

    def files(self) -> Iterator[tuple[Path, bytes]]:
        """Every file with its bytes as processes see them, in order of path."""

        def walk(directory: Directory, at: Path) -> Iterator[tuple[Path, bytes]]:
            for name, child in sorted(directory.names.items()):
                if isinstance(child, Directory):
                    yield from walk(child, at / name)
                else:
                    yield at / name, bytes(child.cache)

        return walk(self._root, Path("/"))

    def peek(self, path: Path) -> bytes | None:
        """A file's bytes as processes see them, without counting as an operation; None if there is
        no file."""
        node = self._find(path)
        return bytes(node.cache) if isinstance(node, Inode) else None

    def durable_bytes(self, path: Path) -> bytes:
        """The bytes of a file that certainly survive, whatever happens to its name."""
        inode = self._file(path)
        return bytes(inode.durable[: inode.lengths[0]])

    # What the operations share

    def _operation(
        self, what: str, path: Path | None, partly: Callable[[], None] | None = None
    ) -> None:
        if self._at_crash is not None:
            raise SimCrash("the machine is gone")
        self.operations += 1
        if self.trace is not None:
            self.trace.append(f"{self.operations} {what} {path or ''}")
        if self.operations == self.crash_at:
            if partly is not None:
                partly()
            self._at_crash = self._copy()
            raise SimCrash(f"crash at operation {self.operations}: {what} {path or ''}")
        if self.write_back_chance and self.random.random() < self.write_back_chance:
            self._write_back_some()

    def _write_back_some(self) -> None:
        if not self._inodes:
            return
        inode = self.random.choice(list(self._inodes.values()))
        for page in inode.dirtypage_count():
            if self.random.random() < 0.5:
                inode.write_back(page)

    def _create_partly(self, path: Path) -> None:
        parent = self._find(path.parent)
        if isinstance(parent, Directory) and path.name not in parent.names:
            if self.read_only or self.random.random() < 0.5:
                return
            self._link(parent, path.name, self._new_inode(0))

    def _new_inode(self, size: int) -> Inode:
        return Inode(self._number(), size, self.now_ms)

    def _number(self) -> int:
        self._next_number += 1
        return self._next_number

    def _link(self, directory: Directory, name: str, inode: Inode) -> None:
        directory.names[name] = inode
        self._inodes[inode.number] = inode
        self._pending.append(NameChange(None, (directory, name, inode)))

    def _drop(self, inode: Inode) -> None:
        if self._inodes.pop(inode.number, None) is not None:
            self._used_pages -= sum(inode.allocated)

    def _allocate(self, inode: Inode, offset: int, size: int, path: Path) -> None:
        """Take blocks for a range or none at all. Raises DiskFull."""
        end = offset + size
        first, last = offset // PAGE, page_count(end)
        known = inode.allocated[first:last]
        missing = (last - first) - sum(known)
        if missing == 0:
            return
        free_bytes = self.free_bytes(path)
        if missing * PAGE > free_bytes:
            raise DiskFull(
                f"{missing * PAGE} bytes wanted for {path}, {free_bytes} free.",
                path=path,
                free_bytes=free_bytes,
                limit=missing * PAGE,
            )
        inode.allocated.extend(bytes(max(0, last - len(inode.allocated))))
        inode.allocated[first:last] = b"\x01" * (last - first)
        self._used_pages += missing

    def _refuse_if_read_only(self, path: Path) -> None:
        if self.read_only:
            raise ReadOnlyDisk(f"{path} is on a read-only file system.", path=path)

    def _find(self, path: Path) -> Inode | Directory | None:
        node: Inode | Directory | None = self._root
        for part in path.parts[1:]:
            if not isinstance(node, Directory):
                return None
            node = node.names.get(part)
        return node

    def _directory(self, path: Path) -> Directory:
        node = self._find(path)
        if not isinstance(node, Directory):
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
        return node

    def _file(self, path: Path) -> Inode:
        node = self._find(path)
        if not isinstance(node, Inode):
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return node

    def _copy(self) -> SimDisk:
        inodes: dict[int, Inode] = {}
        directories: dict[int, Directory] = {}

        def inode_of(inode: Inode) -> Inode:
            if inode.number not in inodes:
                inodes[inode.number] = inode.copy()
            return inodes[inode.number]

        def node_of(node: Inode | Directory) -> Inode | Directory:
            return inode_of(node) if isinstance(node, Inode) else directory_of(node)

        def directory_of(directory: Directory) -> Directory:
            made = directories.get(directory.number)
            if made is None:
                made = directories[directory.number] = Directory(directory.number)
                made.names = {name: node_of(node) for name, node in directory.names.items()}
                made.durable = {name: node_of(node) for name, node in directory.durable.items()}
            return made

        root = directory_of(self._root)
        pending = [
            NameChange(
                (directory_of(change.gone[0]), change.gone[1]) if change.gone else None,
                (directory_of(change.made[0]), change.made[1], node_of(change.made[2]))
                if change.made
                else None,
            )
            for change in self._pending
        ]
        return self._successor(root, pending)

    def _successor(self, root: Directory, pending: list[NameChange]) -> SimDisk:
        other = SimDisk(self.random, capacity_bytes=self.capacity_bytes)
        other.read_only, other.now_ms = self.read_only, self.now_ms
        other.write_back_chance, other.check_reserved = self.write_back_chance, self.check_reserved
        other._root, other._pending, other._next_number = root, pending, self._next_number
        other.whole_sync_files_min = self.whole_sync_files_min
        other.trace = self.trace
        stack = [root]
        while stack:
            for node in stack.pop().names.values():
                if isinstance(node, Directory):
                    stack.append(node)
                elif node.number not in other._inodes:
                    other._inodes[node.number] = node
                    other._used_pages += sum(node.allocated)
        return other


class SimWholeSync:
    """A sync of everything. Killed in the middle, some of it was done."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    @property
    def files_min(self) -> int:
        """Number that the disk gives."""
        return self._disk.whole_sync_files_min

    def covers(self, directory: Path) -> bool:
        """There is no other file system."""
        return True

    def run(self) -> None:
        """Make bytes, lengths and names durable. If the sync of a file fails, the bytes of the
        others are synced, and OSError is raised."""
        disk = self._disk
        disk._operation("whole_sync", None, partly=self._partly)
        failing = [path for path, _ in disk.files() if disk.failing_sync(path)]
        failed = {disk._file(path).number for path in failing}
        for inode in disk._inodes.values():
            if inode.number in failed:
                inode.fail_sync()
            else:
                inode.sync()
        if failing:
            raise OSError(errno.EIO, "input/output error", str(failing[0]))
        for change in disk._pending:
            change.apply()
        disk._pending = []
        meanwhile, disk.after_sync = disk.after_sync, None
        if meanwhile is not None:
            meanwhile()

    def close(self) -> None:
        """Nothing is held."""

    def _partly(self) -> None:
        for inode in self._disk._inodes.values():
            if self._disk.random.random() < 0.5:
                inode.sync()


class SimFile:
    """An open file of a SimDisk."""

    def __init__(self, disk: SimDisk, path: Path, inode: Inode, *, writable: bool) -> None:
        self._disk, self._path, self._inode, self._writable = disk, path, inode, writable
        self._size = len(inode.cache)
        self._closed = False

    @property
    def path(self) -> Path:
        """Where it was opened."""
        return self._path

    @property
    def size(self) -> int:
        """Length in bytes, as of opening, or as extended through this file."""
        return self._size

    def is_named(self) -> bool:
        """Whether the path still leads to this file."""
        facts = self._disk.stat(self._path)
        return facts is not None and facts.inode == self._inode.number

    def pread(self, size: int, offset: int) -> bytes:
        """Read; fewer bytes at the end of the file."""
        self._disk._operation("pread", self._path)
        self._check_open()
        return bytes(self._inode.cache[offset : offset + size])

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write all of data; killed here, a prefix of whole pages may have been written."""
        raw = memoryview(data).cast("B") if len(data) else memoryview(b"")
        self._disk._operation("pwrite", self._path, partly=lambda: self._pwrite_partly(raw, offset))
        self._check_writable()
        self._disk._allocate(self._inode, offset, len(raw), self._path)
        self._store(raw, offset)

    def reserve(self, offset: int, size: int) -> None:
        """Take blocks for a range, extending the file if it lies behind the end."""
        self._disk._operation("reserve", self._path)
        self._check_writable()
        self._disk._allocate(self._inode, offset, size, self._path)
        self._inode.extend(offset + size)
        self._size = max(self._size, len(self._inode.cache))

    def data_end(self) -> int:
        """The size: nothing here is known to be a hole."""
        self._check_open()
        return len(self._inode.cache)

    def sync(self) -> None:
        """Make bytes and length durable, the name not."""
        self._disk._operation("sync", self._path)
        self._check_open()
        if self._disk.check_reserved:
            self._note_unreserved()
        if self._disk.failing_sync(self._path):
            self._inode.fail_sync()
            raise OSError(errno.EIO, "input/output error", str(self._path))
        self._inode.sync()
        meanwhile, self._disk.after_sync = self._disk.after_sync, None
        if meanwhile is not None:
            meanwhile()

    def begin_sync(self) -> Callable[[], None]:
        """A sync that takes a while: call what this returns at its end.

        What is stored between the two is not made durable by it.
        """
        self._disk._operation("sync", self._path)
        self._check_open()
        synced = self._inode.begin_sync()

        def end() -> None:
            if self._disk.failing_sync(self._path):
                self._inode.fail_sync()
                raise OSError(errno.EIO, "input/output error", str(self._path))
            synced()

        return end

    def map(self, *, writable: bool, scattered: bool = False) -> SimRegion:
        """Map the whole file."""
        self._disk._operation("map", self._path)
        self._check_open()
        if writable and not self._writable:
            raise PermissionError(errno.EACCES, "opened for reading", str(self._path))
        return SimRegion(self._inode, writable=writable)

    def lock_pages(self) -> SimPageLock:
        """Count as locked in memory, or refuse if the disk says so."""
        self._check_open()
        if self._disk.refuses_page_locks:
            raise MemoryLockRefused(f"{self._path} cannot be locked.", path=self._path)
        return SimPageLock(self._disk.page_locks, self._path)

    def close(self) -> None:
        """Close; mappings live on."""
        self._closed = True

    def _store(self, raw: memoryview, offset: int) -> None:
        inode = self._inode
        inode.extend(offset + len(raw))
        self._size = max(self._size, len(inode.cache))
        inode.cache[offset : offset + len(raw)] = raw
        inode.modified_ms = self._disk.now_ms
        if inode.failed:
            for page in range(offset // PAGE, page_count(offset + len(raw))):
                inode.failed.pop(page, None)

    def _pwrite_partly(self, raw: memoryview, offset: int) -> None:
        if self._disk.read_only or not self._writable:
            return
        borders = [0, *range(PAGE - offset % PAGE, len(raw), PAGE)]
        size = self._disk.random.choice(borders)
        if size and offset + size <= len(self._inode.cache):
            self._store(raw[:size], offset)

    def _note_unreserved(self) -> None:
        allocated = self._inode.allocated
        for page in self._inode.dirtypage_count():
            if not allocated[page]:
                self._disk.unreserved_stores.append(f"{self._path} page {page}")

    def _check_open(self) -> None:
        if self._closed:
            raise OSError(errno.EBADF, "closed", str(self._path))

    def _check_writable(self) -> None:
        self._check_open()
        if not self._writable:
            raise OSError(errno.EBADF, "opened for reading", str(self._path))
        self._disk._refuse_if_read_only(self._path)


class SimRegion:
    """A mapping: the very bytes of the cache."""

    def __init__(self, inode: Inode, *, writable: bool) -> None:
        view = memoryview(inode.cache)
        self._view = view if writable else view.toreadonly()
        self._closed = False

    @property
    def view(self) -> memoryview:
        """The file's bytes."""
        return self._view

    def close(self) -> None:
        """Unmap; slices that are still around keep their bytes."""
        if self._closed:
            return
        self._closed = True
        try:
            self._view.release()
        except BufferError:
            return  # borrowed: the memory goes with the last of them


class SimPageLock:
    """A file held in memory."""

    def __init__(self, held: list[Path], path: Path) -> None:
        self._held, self._path = held, path
        held.append(path)

    def release(self) -> None:
        """Let it go."""
        if self._path in self._held:
            self._held.remove(self._path)


class SimLock:
    """A held lock."""

    def __init__(self, locks: dict[tuple[int, int], SimLock], key: tuple[int, int]) -> None:
        self._locks, self._key = locks, key

    def show(self, sign: Path) -> None:
        """Nothing: only programs of a real machine look for it."""

    def release(self) -> None:
        """Free the byte."""
        if self._locks.get(self._key) is self:
            del self._locks[self._key]
