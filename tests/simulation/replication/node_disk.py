"""A node's disk as one process sees it: ``SimDisk`` with time, borders and locks of processes.

A sync takes time, and makes durable what was stored when it began. Every access of a process after
its end raises ``Killed``.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shared.files.disk import DirectoryEntry, File, FileStat, MappedRegion, PageLock, Space
from tests.simulation.replication.process import Process, border, work
from tests.support.sim_disk import SECTOR, SimDisk, SimFile

if TYPE_CHECKING:
    from tests.simulation.replication.machine import Machine


class ProcessDisk:
    """``shared.files.disk.Disk`` for one process."""

    def __init__(self, machine: Machine, process: Process) -> None:
        self.machine, self.process = machine, process

    def create(self, path: Path, size: int, *, reserve: bool) -> File:
        """Create a file."""
        self.machine.creates(path, self.process)
        file = self._disk.create(path, size, reserve=reserve)
        self.machine.touched(path, self.process)
        border()
        return ProcessFile(self, file)

    def open(self, path: Path, *, writable: bool) -> File:
        """Open a file."""
        return ProcessFile(self, self._disk.open(path, writable=writable))

    def stat(self, path: Path) -> FileStat | None:
        """Return the size and the kind of a path; None if it does not exist."""
        return self._disk.stat(path)

    def list_directory(self, path: Path) -> Sequence[DirectoryEntry]:
        """List a directory."""
        return self._disk.list_directory(path)

    def make_directory(self, path: Path, *, durable: bool = True) -> None:
        """Create a directory."""
        self._disk.make_directory(path, durable=durable)

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file."""
        self._disk.rename(old, new)
        self.machine.touched(new, self.process)
        border()

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        self.machine.unlinks(path, self.process)
        self._disk.unlink(path)
        self.machine.touched(path, self.process)
        border()

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""
        self._disk.remove_directory(path)
        border()

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        self.process.check_alive()
        work(self.machine.disk_delay_us())
        if self.machine.syncs_fail:
            raise OSError(errno.EIO, "input/output error", str(path))
        self._disk.sync_directory(path)
        border()

    def whole_sync(self, path: Path) -> None:
        """Do nothing: this disk does not report every failed write."""
        return

    def free_bytes(self, path: Path) -> int:
        """Return the free space in bytes."""
        return self._disk.free_bytes(path)

    def space(self, path: Path) -> Space:
        """Return the size of the disk and its free space."""
        return self._disk.space(path)

    def lock(self, path: Path, *, byte: int) -> ProcessLock | None:
        """Lock a byte for this process; None if another living process holds it."""
        self.process.check_alive()
        if self._disk.stat(path) is None:
            self._disk.create(path, 0, reserve=False)
        if not self.machine.take_lock(byte, self.process):
            return None
        border()
        return ProcessLock(self.machine, byte, self.process)

    @property
    def _disk(self) -> SimDisk:
        self.process.check_alive()
        return self.machine.disk


class ProcessLock:
    """A byte of a lock file that a process holds."""

    def __init__(self, machine: Machine, byte: int, process: Process) -> None:
        self._machine, self._byte, self._process = machine, byte, process

    def show(self, sign: Path) -> None:
        """Do nothing: only programs of a real machine read the sign."""

    def release(self) -> None:
        """Release the byte."""
        self._process.check_alive()
        self._machine.release_lock(self._byte, self._process)
        border()


class ProcessFile:
    """An open file of one process."""

    def __init__(self, disk: ProcessDisk, file: SimFile) -> None:
        self._disk, self._file = disk, file

    @property
    def path(self) -> Path:
        """Path at which the file was opened."""
        return self._file.path

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self._file.size

    def is_named(self) -> bool:
        """Whether the file still has a name."""
        self._disk.process.check_alive()
        return self._file.is_named()

    def pread(self, size: int, offset: int) -> bytes:
        """Read bytes."""
        self._disk.process.check_alive()
        return self._file.pread(size, offset)

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write bytes. A process that is about to be killed may write only the first half."""
        self._disk.process.check_alive()
        self._disk.machine.check_write(self._disk.process, self.path)
        sectors = range(SECTOR - offset % SECTOR, len(data), SECTOR)
        if self._disk.process.is_threatened and sectors:
            # A kernel copies page by page, so a kill inside a write leaves a part in the page
            # cache. This disk copies sector by sector.
            half = self._disk.machine.timeline.random.choice(sectors)
            self._file.pwrite(data[:half], offset)
            border()
            data, offset = data[half:], offset + half
        self._file.pwrite(data, offset)
        border()

    def reserve(self, offset: int, size: int) -> None:
        """Reserve space."""
        self._disk.process.check_alive()
        self._file.reserve(offset, size)
        border()

    def data_end(self) -> int:
        """End of the data before a trailing hole."""
        return self._file.data_end()

    def sync(self) -> None:
        """Take some time, then make durable what was stored when the sync began."""
        disk = self._disk
        disk.process.check_alive()
        synced = self._file.begin_sync()
        work(disk.machine.disk_delay_us(self.path))
        disk.process.check_alive()
        synced()
        border()

    def map(self, *, writable: bool, scattered: bool = False) -> MappedRegion:
        """Map the file."""
        self._disk.process.check_alive()
        return self._file.map(writable=writable, scattered=scattered)

    def lock_pages(self) -> PageLock:
        """Lock the mapped pages in memory."""
        return self._file.lock_pages()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
