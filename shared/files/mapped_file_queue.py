"""Fixed-size files as one range of offsets without end (docs/formats.md, section 7).

It holds the written and flushed ends of one directory's files, and the operations based on them:
the next file, truncation, expiry. It does not know the files' contents. One process writes a
directory. Invariants:

- Bytes behind a cut are overwritten with zeros, not cut off: others have the file mapped.
- Truncation removes files from the end, expiry from the start, never the last one in use.
- Files created ahead of the current one do not count as files of the queue until ``roll``.

Step before: ``store_dir`` provides the directory. Step after: ``commit_log``, and reput's queue
writer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
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
DELETE_FILES_MAX: Final = 10
"""Files removed per run of retention (section 14.2)."""
ZEROING_SIZE: Final = 1 << 20
PAGE_SIZE: Final = 4096


class Preallocation(NamedTuple):
    """How a queue creates its files."""

    ahead: int = 0
    """Number of files to keep ready behind the current one."""
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
    """A run of files with its written and flushed ends. Call ``load`` before anything else."""

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
        self.locked = LockedFiles(self.open_file, file_size) if preallocation.lock_memory else None
        """The files locked in memory; None without lock_memory."""
        self.wrote_offset = 0
        """Written end, set by the owner; after ``load`` the end of the last file."""
        self.flushed_offset = 0
        """End of the bytes on disk, as far as this queue flushed them."""
        self.last_error: StoreError | OSError | None = None
        """Error of the last attempt to create the next file; None after a success."""
        self._ahead = preallocation.ahead
        self._flush_error: FlushFailed | None = None
        self._maker = self._new_maker() if preallocation.background else None

    def load(self) -> None:
        """Read the directory; all its contents count as written and flushed.

        Raises StrayFile or WrongFileSize, with the file's name and the remedy; nothing was changed
        then.
        """
        if self._maker is not None:
            self._end_maker()
            self._maker = self._new_maker()
        super().load()
        if self._warm_up is not None:
            self._warm_up.again()
        if self.locked is not None:
            self.locked.again()
        end = self._starts[-1] + self.file_size if self._starts else 0
        self.wrote_offset = self.flushed_offset = end

    @property
    def max_offset(self) -> int:
        """Written end; 0 if there is no file."""
        return self.wrote_offset if self._starts else 0

    @property
    def bytes_behind(self) -> int:
        """Bytes that are written and not flushed yet."""
        return self.max_offset - self.flushed_offset if self._starts else 0

    def last_or_create(self, offset: int = 0) -> int:
        """Return the start of the file to write to: the last one, or a new one if that is full.

        offset: an offset in the first file of an empty queue; the file starts at the file border at
        or below it. Raises what ``prepare_next`` raises.
        """
        last = self.last()
        if last is None:
            self.wrote_offset = self.flushed_offset = offset - offset % self.file_size
        if last is None or self.wrote_offset >= last + self.file_size:
            self.ensure_next()
            return self.roll()
        return last

    def flush(self, *, least_pages: int = 0) -> int:
        """Sync the files between flushed and written end; return the flushed end.

        least_pages: do nothing unless that many page borders were crossed, or a file was filled.
        Raises FlushFailed, then and on every later call: the page cache may hold bytes that never
        reach the disk.
        """
        if self._flush_error is not None:
            raise self._flush_error.with_traceback(None)
        wrote, flushed, size = self.wrote_offset, self.flushed_offset, self.file_size
        pages = wrote // PAGE_SIZE - flushed // PAGE_SIZE
        if wrote <= flushed or (pages < least_pages and wrote // size == flushed // size):
            return flushed
        for start in range(flushed - flushed % size, wrote, size):
            path = self.path(start)
            try:
                file = self._disk.open(path, writable=self._writable)
            except FileNotFoundError:  # expired or cut meanwhile, so there is nothing to sync
                self.flushed_offset = min(wrote, start + size)
                continue
            try:
                file.sync()
            except (OSError, StoreError) as error:
                self._flush_error = flush_failed(path, error)
                raise self._flush_error from error
            finally:
                file.close()
            self.flushed_offset = min(wrote, start + size)
        return self.flushed_offset

    def truncate_behind(self, offset: int) -> None:
        """Make offset the end: remove later files, zero later bytes of its file, durably.

        For the owner only, and only after others have stopped reading behind offset.
        """
        with self.changing:
            for start in reversed([start for start in self._starts if start > offset]):
                self.remove(start)
            last = self._starts[-1] if self._starts else None
            if last is not None and offset < last + self.file_size:
                file = self.open_file(last)
                try:
                    if zero_range(file, offset - last, self.file_size):
                        file.sync()
                finally:
                    file.close()
            self.wrote_offset = min(self.wrote_offset, offset)
            self.flushed_offset = min(self.flushed_offset, offset)

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
            self.flushed_offset = min(self.flushed_offset, last)
            return last

    def delete_oldest_while(
        self, may_go: Callable[[int], bool], *, files_max: int = DELETE_FILES_MAX
    ) -> list[int]:
        """Remove files from the first on, never the last, while may_go(start) is true."""
        deleted: list[int] = []
        for start in self.starts[:-1]:
            if len(deleted) >= files_max or not may_go(start):
                break
            with self.changing:
                self.remove(start)
            deleted.append(start)
        return deleted

    def delete_oldest(self, start: int) -> bool:
        """Remove the first file if it begins at start and is not the last; return whether it was
        removed. Usable in any thread while another appends."""
        return bool(self.delete_oldest_while(lambda first: first == start, files_max=1))

    def destroy(self) -> None:
        """Remove every file and, if it is then empty, the directory."""
        with self.changing:
            for start in reversed(list(self._starts)):
                self.remove(start)
            self.wrote_offset = self.flushed_offset = 0
            with contextlib.suppress(OSError):
                self._disk.remove_directory(self.directory)

    # -- making files ahead ---------------------------------------------------------------------

    @property
    def next_start(self) -> int:
        """Start of the file behind the last one, or of the first file of an empty queue."""
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
            # Always behind the last existing one, wherever ``roll`` is meanwhile: no gaps.
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
        """Wait until the next file is ready; with ``background``, at most timeout_s.

        Raises FileNotReady (the attempt continues), or what ``prepare_next`` raises.
        """
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
    never lie behind zeros.
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
