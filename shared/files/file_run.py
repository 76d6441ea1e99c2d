"""A directory of fixed-size files: found by name, mapped on demand, made and removed one by one.

The part of a mapped file queue that every process needs (docs/formats.md, section 7); where writing
stands in the files is ``mapped_file_queue``. Files are named by the 20-digit offset of their first
byte; another process may make and remove them at any time, so names are looked up on the disk when
they are not known. Invariants:

- A file's name and length are durable before the next is made, a removal before the next removal:
  after any crash the files are a gapless run, whatever order the disk keeps names in.
- At most a bounded number of files are mapped; see ``region_cache``.
"""

from __future__ import annotations

import contextlib
import threading
from bisect import bisect_left, bisect_right
from pathlib import Path

from shared.files.disk import Disk, File
from shared.files.region_cache import RegionCache, wrong_size
from shared.files.warm_up import WarmUp
from tidemark.errors import ReadOnlyDisk, StoreError, StrayFile
from tidemark.formats.filenames import RUNNING_SIGN, offset_name, parse_offset_name


class FileRun:
    """The files of one directory. ``load`` or ``refresh`` before anything else."""

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
        """reserve: take all blocks of a new file at once. warm_up: what a new file goes through."""
        self.directory = directory
        self.file_size = file_size
        self.changing = threading.Lock()
        """Held by whoever makes or removes files."""
        self._disk = disk
        self._writable = writable
        self._reserve = reserve
        self._warm_up = warm_up
        self._cache = cache
        self._key = str(directory)
        self._starts: list[int] = []
        self._unused: set[int] = set()

    def load(self) -> None:
        """Take stock of the directory.

        An empty last file is what a kill during its creation left: removed if we may write.
        Raises StrayFile, WrongFileSize: by name, with the remedy; nothing was changed then.
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
        """Look at the names again: another process makes and removes files."""
        entries = self._disk.list_directory(self.directory)
        starts = [parse_offset_name(entry.name) for entry in entries if not entry.is_directory]
        found = [start for start in starts if start is not None]
        for start in set(self._starts).difference(found):
            self._cache.drop((self._key, start))  # removed: while it is mapped it keeps its blocks
        self._starts = found

    def path(self, start: int) -> Path:
        """Path of the file that begins at start."""
        return self.directory / offset_name(start)

    @property
    def starts(self) -> list[int]:
        """First offsets of all files, ascending; without those made ahead."""
        return [start for start in self._starts if start not in self._unused]

    @property
    def min_offset(self) -> int | None:
        """First offset of the first file; None if there is no file."""
        return self._starts[0] if self._starts else None

    def last(self) -> int | None:
        """Start of the last file; None if there is none."""
        starts = self.starts
        return starts[-1] if starts else None

    def file_at(self, offset: int, *, first_if_missing: bool = False) -> int | None:
        """Start of the file that holds offset; None, or the first file's if asked for, if none."""
        start = offset - offset % self.file_size
        if offset >= 0 and self._exists(start):
            return start
        return self.min_offset if first_if_missing else None

    def file_by_update_time(self, time_ms: int) -> int | None:
        """Start of the first file last written at or after time_ms, else of the last file."""
        starts = self.starts
        for start in starts:
            facts = self._disk.stat(self.path(start))
            if facts is not None and facts.modified_ms >= time_ms:
                return start
        return starts[-1] if starts else None

    def _exists(self, start: int) -> bool:
        """Whether there is a file; asks the disk if it was not there before."""
        starts = self._starts
        at = bisect_right(starts, start)
        if at and starts[at - 1] == start:
            return True
        if self._disk.stat(self.path(start)) is None:
            return False
        with self.changing:
            if start not in self._starts:
                self._insert(start)
        return True

    def _insert(self, start: int) -> None:
        """Know one file more. A new list, as in ``remove``:

        1. the thread that appends walks the list; 2. another takes out its first file; 3. all move
        up by one, the walk ends one file early, and the last file is not seen.
        """
        starts = self._starts
        at = bisect_left(starts, start)
        self._starts = [*starts[:at], start, *starts[at:]]

    def self_check(self) -> list[str]:
        """What is wrong with the directory now, one sentence each; nothing is changed."""
        problems: list[str] = []
        previous: int | None = None
        for entry in self._disk.list_directory(self.directory):
            if entry.is_directory or entry.name == RUNNING_SIGN:
                continue
            path = self.directory / entry.name
            start = parse_offset_name(entry.name)
            if start is None or start % self.file_size != 0:
                problems.append(stray_file(path, self.file_size).detail)
                continue
            facts = self._disk.stat(path)
            if facts is not None and facts.size != self.file_size:
                problems.append(wrong_size(path, facts.size, self.file_size).detail)
            if previous is not None and start != previous + self.file_size:
                problems.append(
                    f"{path} does not follow its neighbour: {offset_name(previous)} ends at "
                    f"{previous + self.file_size}."
                )
            previous = start
        return problems

    def region(self, start: int) -> memoryview:
        """All bytes of the file that begins at start, mapped on demand; writable if the queue is.

        Valid for as long as it is held. Raises FileNotFoundError, WrongFileSize.
        """
        key = (self._key, start)
        view = self._cache.get(key)
        if view is None:
            path, size = self.path(start), self.file_size
            view = self._cache.map(key, path, size, writable=self._writable)
        return view

    def view(self, offset: int, size: int) -> memoryview | None:
        """The bytes [offset, offset + size); None if they are not all in one existing file.

        Knows nothing of how far they are written: that is in the positions.
        """
        position = offset % self.file_size
        if offset < 0 or size < 0 or position + size > self.file_size:
            return None
        try:
            return self.region(offset - position)[position : position + size]
        except FileNotFoundError:
            return None

    def open_file(self, start: int) -> File:
        """The file that begins at start, with a descriptor of its own, as writable as the queue."""
        return self._disk.open(self.path(start), writable=self._writable)

    def remove(self, start: int) -> None:
        """Remove one file, durably. Under ``changing``."""
        self._cache.drop((self._key, start))
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(self.path(start))
        # Each on its own: names are lost in any order, and two removals at once could leave a gap.
        self._disk.sync_directory(self.directory)
        self._starts = [each for each in self._starts if each != start]
        self._unused.discard(start)

    def create(self, start: int) -> None:
        """Make one zero-filled file, durable by name and length; unused. Under ``changing``."""
        self._disk.make_directory(self.directory)
        path = self.path(start)
        try:
            file = self._disk.create(path, self.file_size, reserve=self._reserve)
        except FileExistsError:
            raise stray_file(path, self.file_size) from None
        try:
            if self._warm_up is not None:
                self._warm_up.run(file, start)
            file.sync()  # its length: a name can come back from a power cut with length 0
            self._disk.sync_directory(self.directory)
        except (OSError, StoreError):
            self._disk.unlink(path)  # else it stands in the way of the next attempt
            raise
        finally:
            file.close()
        # In this order: the thread that appends would take a file that it sees and that is not
        # marked unused for the one it writes to.
        self._unused.add(start)
        self._insert(start)

    def unmap(self) -> None:
        """Unmap this directory's files, to be mapped again on demand; borrowed views stay valid."""
        self._cache.drop_all(self._key)

    def close(self) -> None:
        """Unmap this directory's files; borrowed views stay valid."""
        self.unmap()


def stray_file(path: Path, file_size: int) -> StrayFile:
    """The error for a name that is none of this directory's."""
    return StrayFile(
        f"{path} does not belong here: this directory holds nothing but files named by 20 digits, "
        f"a multiple of {file_size}. Nothing was changed.",
        "Move the file out of the store.",
        path=path,
    )
