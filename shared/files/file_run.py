"""A directory of fixed-size files: found by name, mapped on demand, created and removed singly.

This is the part of a mapped file queue that every process needs (docs/formats.md, section 7); the
write position is in ``mapped_file_queue``. A file's name is the 20-digit offset of its first byte.
Another process may create and remove files at any time: ``refresh`` reads the names again.
Invariants:

- A file's name and length are durable before the next is created, a removal before the next
  removal: after any crash the files have no gap, in whatever order the disk persists names.
- The number of mapped files is bounded; see ``region_cache``.
"""

from __future__ import annotations

import contextlib
import threading
from bisect import bisect_left
from pathlib import Path

from shared.files.disk import Disk, File
from shared.files.region_cache import RegionCache, wrong_size
from shared.files.warm_up import WarmUp
from tidemark.errors import ReadOnlyDisk, StoreError, StrayFile
from tidemark.formats.filenames import RUNNING_SIGN, offset_name, parse_offset_name


class FileRun:
    """The files of one directory. Call ``load`` or ``refresh`` before anything else."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        file_size: int,
        *,
        cache: RegionCache,
        writable: bool,
        reserve: bool,
        warm_up: WarmUp | None = None,
    ) -> None:
        """reserve: allocate all blocks of a new file. warm_up: initialization of new files."""
        self.directory = directory
        self.file_size = file_size
        self.changing = threading.Lock()
        """Held while files are created or removed."""
        self._disk = disk
        self._writable = writable
        self._reserve = reserve
        self._warm_up = warm_up
        self._cache = cache
        self._key = str(directory)
        self._starts: list[int] = []
        self._unused: set[int] = set()

    def load(self) -> None:
        """Read the directory.

        An empty last file is left by a kill during its creation; it is removed if writable. Raises
        StrayFile or WrongFileSize, with the file's name and the remedy; nothing was changed then.
        """
        found: list[tuple[int, int]] = []
        for entry in self._disk.list_directory(self.directory):
            if entry.is_directory or entry.name == RUNNING_SIGN:
                continue
            path = self.directory / entry.name
            start = parse_offset_name(entry.name)
            if start is None or start % self.file_size != 0:
                raise stray_file(path, self.file_size)
            facts = self._disk.stat(path)
            if facts is not None:  # else removed meanwhile by its owner
                found.append((start, facts.size))
        if found and found[-1][1] == 0:
            start, _ = found.pop()
            if self._writable:
                with contextlib.suppress(ReadOnlyDisk):
                    self._disk.unlink(self.path(start))
                    self._disk.sync_directory(self.directory)
        for start, size in found:
            if size != self.file_size:
                raise wrong_size(self.path(start), size, self.file_size)
        self._starts = [start for start, _ in found]
        self._unused.clear()

    def refresh(self) -> None:
        """Read the names again, because another process creates and removes files."""
        entries = self._disk.list_directory(self.directory)
        starts = [parse_offset_name(entry.name) for entry in entries if not entry.is_directory]
        found = [start for start in starts if start is not None]
        for start in set(self._starts).difference(found):
            self._cache.drop((self._key, start))  # a removed file keeps its blocks while mapped
        self._starts = found

    def path(self, start: int) -> Path:
        """Return the path of the file that begins at start."""
        return self.directory / offset_name(start)

    @property
    def starts(self) -> list[int]:
        """First offsets of all files, ascending, without files created ahead."""
        return [start for start in self._starts if start not in self._unused]

    @property
    def min_offset(self) -> int | None:
        """First offset of the first file; None if there is no file."""
        return self._starts[0] if self._starts else None

    def last(self) -> int | None:
        """Return the start of the last file; None if there is none."""
        starts = self.starts
        return starts[-1] if starts else None

    def _insert(self, start: int) -> None:
        """Add a known file. This replaces the list, as ``remove`` does, because otherwise:

        1. the appending thread iterates over the list; 2. another thread removes the first item;
        3. the items move up by one, the iteration ends early, and the last file is missed.
        """
        starts = self._starts
        at = bisect_left(starts, start)
        self._starts = [*starts[:at], start, *starts[at:]]

    def region(self, start: int) -> memoryview:
        """Return all bytes of the file that begins at start, mapped on demand.

        The view is writable if the queue is, and valid while it is referenced. Raises
        FileNotFoundError, WrongFileSize.
        """
        key = (self._key, start)
        view = self._cache.get(key)
        if view is None:
            path, size = self.path(start), self.file_size
            view = self._cache.map(key, path, size, writable=self._writable)
        return view

    def view(self, offset: int, size: int) -> memoryview | None:
        """Return the bytes [offset, offset + size); None if they are not all in one existing file.
        This does not check how far the file is written; the positions contain that."""
        position = offset % self.file_size
        if offset < 0 or size < 0 or position + size > self.file_size:
            return None
        try:
            return self.region(offset - position)[position : position + size]
        except FileNotFoundError:
            return None

    def open_file(self, start: int) -> File:
        """Open the file that begins at start with a new descriptor, as writable as the queue."""
        return self._disk.open(self.path(start), writable=self._writable)

    def remove(self, start: int) -> None:
        """Remove one file durably. The caller holds ``changing``."""
        self._cache.drop((self._key, start))
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(self.path(start))
        # One sync per removal: names are lost in any order, so two removals could leave a gap.
        self._disk.sync_directory(self.directory)
        self._starts = [each for each in self._starts if each != start]
        self._unused.discard(start)

    def create(self, start: int) -> None:
        """Create a zero-filled, unused file with durable name and length. Needs ``changing``."""
        self._disk.make_directory(self.directory)
        path = self.path(start)
        try:
            file = self._disk.create(path, self.file_size, reserve=self._reserve)
        except FileExistsError:
            raise stray_file(path, self.file_size) from None
        try:
            if self._warm_up is not None:
                self._warm_up.run(file, start)
            file.sync()  # makes the length durable: after a power cut a name can have length 0
            self._disk.sync_directory(self.directory)
        except (OSError, StoreError):
            self._disk.unlink(path)  # otherwise it blocks the next attempt
            raise
        finally:
            file.close()
        # In this order: the appending thread would write to a file that it sees and that is not
        # marked unused.
        self._unused.add(start)
        self._insert(start)

    def unmap(self) -> None:
        """Unmap this directory's files until they are used again; borrowed views stay valid."""
        self._cache.drop_all(self._key)

    def close(self) -> None:
        """Unmap this directory's files; borrowed views stay valid."""
        self.unmap()


def stray_file(path: Path, file_size: int) -> StrayFile:
    """Return the error for a file name that does not belong in this directory."""
    return StrayFile(
        f"{path} does not belong here: this directory holds nothing but files named by 20 digits, "
        f"a multiple of {file_size}. Nothing was changed.",
        "Move the file out of the store.",
        path=path,
    )
