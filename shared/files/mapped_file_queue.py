"""Fixed-size files as one range of offsets without end (docs/formats.md, section 7).

It holds the written end of one directory's files, and the operations based on it: the next file,
and the removal of the last or the oldest one. It does not know the files' contents. One process
writes a directory. Invariants:

- Expiry removes files from the start, never the last one in use.
- Files created ahead of the current one do not count as files of the queue until ``roll``.

Step before: ``store_dir`` provides the directory. Step after: ``commit_log``, and reput's queue
writer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from shared.files.disk import Disk, File
from shared.files.file_maker import FileMaker
from shared.files.file_run import FileRun
from shared.files.locked_files import LockedFiles
from shared.files.region_cache import RegionCache
from shared.files.warm_up import WarmUp
from tidemark.errors import FileNotReady, FlushFailed, StoreError

WAIT_S: Final = 5.0
"""Time that a writer waits for the next file (section 7.3)."""
ZEROING_SIZE: Final = 1 << 20


class Preallocation(NamedTuple):
    """How a queue creates its files."""

    ahead: int = 0
    """Number of files to keep ready after the current one."""
    reserve: bool = False
    """Whether all blocks of a new file are allocated."""
    background: bool = False
    """Whether files are created ahead in a thread of the queue."""
    warm_up: bool = False
    """Whether new files are filled with zeros before they are used."""
    lock_memory: bool = False
    """Whether the current file and those ahead are kept in memory."""


ON_DEMAND: Final = Preallocation()
"""No file is created before it is used."""


class MappedFileQueue(FileRun):
    """A run of files with its written end. Call ``load`` before anything else."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        file_size: int,
        *,
        mapped_max: int = 64,
        cache: RegionCache | None = None,
        writable: bool = False,
        preallocation: Preallocation = ON_DEMAND,
    ) -> None:
        """mapped_max: files mapped at a time; not used if cache, shared with other queues, is
        given.
        """
        super().__init__(
            disk,
            directory,
            file_size,
            cache=cache if cache is not None else RegionCache(disk, mapped_max),
            writable=writable,
            reserve=preallocation.reserve,
            warm_up=WarmUp() if preallocation.warm_up else None,
        )
        self.locked = LockedFiles(self.open_file) if preallocation.lock_memory else None
        """The files locked in memory; None without lock_memory."""
        self.wrote_offset = 0
        """Written end, set by the owner; after ``load`` the end of the last file."""
        self.last_error: StoreError | OSError | None = None
        """Error of the last attempt to create the next file; None after a success."""
        self._ahead = preallocation.ahead
        self._maker = self._new_maker() if preallocation.background else None

    def load(self) -> None:
        """Read the directory; all its contents count as written. Raises StrayFile or WrongFileSize,
        with the file's name and the remedy; nothing was changed then."""
        if self._maker is not None:
            self._end_maker()
            self._maker = self._new_maker()
        super().load()
        if self._warm_up is not None:
            self._warm_up.again()
        if self.locked is not None:
            self.locked.again()
        end = self._starts[-1] + self.file_size if self._starts else 0
        self.wrote_offset = end

    # -- removing files -------------------------------------------------------------------------

    def delete_last(self) -> int | None:
        """Remove the last file and any created ahead of it; return its start, None if none."""
        with self.changing:
            last = self.last()
            if last is None:
                return None
            for start in reversed([start for start in self._starts if start >= last]):
                self.remove(start)
            self.wrote_offset = min(self.wrote_offset, last)
            return last

    def delete_oldest(self, start: int) -> bool:
        """Remove the first file if it begins at start and is not the last; return whether it was
        removed. Usable in any thread while another appends."""
        starts = self.starts
        if len(starts) < 2 or starts[0] != start:
            return False
        with self.changing:
            self.remove(start)
        return True

    # -- making files ahead ---------------------------------------------------------------------

    @property
    def next_start(self) -> int:
        """Start of the file after the last one, or of the first file of an empty queue."""
        last = self.last()
        if last is None:
            return self.wrote_offset - self.wrote_offset % self.file_size
        return last + self.file_size

    @property
    def next_ready(self) -> bool:
        """Whether ``roll`` can be called now."""
        return self.next_start in self._unused

    @property
    def ready_ahead(self) -> int:
        """Number of files that are created and not used yet."""
        return len(self._unused)

    def prepare_next(self, count: int | None = None) -> None:
        """Create the next file, and further ones until count, by default ``ahead``, are unused.
        Blocks; usable in any thread.

        Raises DiskFull, ReadOnlyDisk, OSError if the next one cannot be created. A failure further
        ahead is left to the next call. May be called again at any time.
        """
        with self.changing:
            # Always after the last existing one, wherever ``roll`` is meanwhile: no gaps.
            while len(self._unused) < max(1, self._ahead if count is None else count):
                try:
                    self.create(
                        self._starts[-1] + self.file_size if self._starts else self.next_start
                    )
                except (StoreError, OSError) as error:
                    if self.next_ready:
                        break
                    self.last_error = error
                    raise
            self.last_error = None

    def prepare_all(self) -> None:
        """Call ``prepare_next``; with lock_memory, lock exactly the files in use and ahead."""
        if self.locked is not None:
            self.locked.unlock_done()
        self.prepare_next()
        if self.locked is not None:
            for start in self._starts[-1 - self._ahead :]:
                self.locked.lock(start)

    def done_below(self, offset: int) -> None:
        """Note that files that end at or below offset, a file's start, are full and flushed."""
        if self.locked is not None:
            self.locked.done_below(offset)
            if self._maker is not None:
                self._maker.request()

    def prepare_soon(self) -> None:
        """Ensure that a next file exists, without warm-up if it has to be created now, and let the
        thread create the others. Blocks while a file is created.

        Raises DiskFull, ReadOnlyDisk, OSError if it cannot be created. Only with ``background``.
        """
        assert self._maker is not None
        if not self.next_ready:
            if self._warm_up is not None:
                self._warm_up.hurry(self.next_start)
            self.prepare_next(1)
        self._maker.request()

    def ensure_next(self, timeout_s: float = WAIT_S) -> None:
        """Wait until the next file is ready; with ``background``, at most timeout_s. Raises
        FileNotReady (the attempt continues), or what ``prepare_next`` raises."""
        if self._maker is None:
            if not self.next_ready:
                self.prepare_next()
            return
        request = self._maker.request()
        if self.next_ready:
            return
        if self._warm_up is not None:
            self._warm_up.hurry(self.next_start)
        self._maker.wait(request, timeout_s)
        if not self.next_ready:
            raise FileNotReady(
                f"{self.path(self.next_start)} was not ready within {timeout_s} s. "
                "Nothing was stored.",
                "Try again; if it lasts, see whether the disk is slow or nearly full.",
                path=self.path(self.next_start),
                limit=timeout_s,
            )

    def roll(self) -> int:
        """Make the next file, which must be ready, the current one; return its start."""
        start = self.next_start
        if start not in self._unused:
            raise self.not_ready(start)
        self._unused.discard(start)
        self.wrote_offset = max(self.wrote_offset, start)
        if self._maker is not None:
            self._maker.request()
        return start

    def not_ready(self, start: int) -> StoreError:
        """Return why the file at start cannot be written now, and skip the rest of its warm-up."""
        if self._warm_up is not None:
            self._warm_up.hurry(start)
        if isinstance(self.last_error, StoreError):
            return self.last_error.with_traceback(None)
        return FileNotReady(
            f"{self.path(start)} is not ready yet. Nothing was stored.",
            "Try again.",
            path=self.path(start),
        )

    def remove_unused(self) -> None:
        """Remove the files that were created ahead and never used."""
        with self.changing:
            for start in sorted(self._unused, reverse=True):
                self.remove(start)

    def close(self) -> None:
        """End the thread and unmap the files. Files created ahead stay: see remove_unused."""
        self._end_maker()
        if self.locked is not None:
            self.locked.again()
        super().close()

    def _new_maker(self) -> FileMaker:
        return FileMaker(self.prepare_all, f"files of {self.directory.name}")

    def _end_maker(self) -> None:
        if self._warm_up is not None:
            self._warm_up.stop()
        if self._maker is not None:
            self._maker.stop()

    def remove(self, start: int) -> None:
        """Remove one file durably. The caller holds ``changing``."""
        if self.locked is not None:
            self.locked.unlock(start)
        super().remove(start)


def zero_range(file: File, start: int, end: int) -> bool:
    """Overwrite non-zero bytes in [start, end) of file with zeros; return whether there were any.

    It starts at the end: after a kill in the middle, the remaining old bytes are a shorter run, and
    never lie after zeros.
    """
    zeros = bytes(ZEROING_SIZE)
    changed = False
    for at in range(end - (end - start) % ZEROING_SIZE, start - 1, -ZEROING_SIZE):
        size = min(ZEROING_SIZE, end - at)
        if size and file.pread(size, at) != zeros[:size]:
            file.pwrite(zeros[:size], at)
            changed = True
    return changed


def flush_failed(path: Path, error: BaseException) -> FlushFailed:
    """Return the error after which nothing more is written."""
    return FlushFailed(
        f"fdatasync of {path} failed: {error}. What was acked is on disk; what was written after "
        "it may be in memory only. Nothing further is accepted.",
        "Check the disk (dmesg, smartctl). The process ends; recovery at the next start finds "
        "the end of what is on disk.",
        path=path,
    )
