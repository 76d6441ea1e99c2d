"""The end of the commit log as its only writer handles it: files, positions, flushing.

This is the common part of appending encoded records (``commit_log_appender``) and appending bytes
that another node encoded (``copied_log_writer``). It belongs to the holder of the append lock
(docs/formats.md, sections 2.11 to 2.13). Invariants:

- WRITTEN moves after the bytes are in the page cache, never before.
- FLUSHED crosses a file border only after the old file's sync and with the new file's name durable
  (the name is synced when the file is created, before anything can be written to it).
- After a failed write or flush nothing more is accepted: the process has to end.

Step before: recovery finds the end of the log. Step after: reput and ha see the positions.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Final

import msgspec

from shared.files.disk import File
from shared.files.mapped_file_queue import WAIT_S, MappedFileQueue, Preallocation, flush_failed
from shared.files.positions import Positions
from shared.files.store_dir import StoreDir
from tidemark.errors import (
    DiskFull,
    LogFileReplaced,
    OutOfResources,
    ReadOnlyDisk,
    StoreError,
    WriteFailed,
)
from tidemark.formats.checkpoint import Slot
from tidemark.offsets import PhysicalOffset

FILES_AHEAD: Final = 2
"""The next file and the one after it (section 7.3)."""


class Mark(msgspec.Struct, frozen=True):
    """An end of the log and the store time of the last record before it. Both are one value, so
    that another thread reads them atomically."""

    end: int
    store_timestamp_ms: int


class LogWriter:
    """Writes at the end of the log. One at a time per store: the holder of the append lock. Writing
    belongs to one thread; ``flush`` and ``prepare_next`` may run in others at the same time."""

    def __init__(
        self,
        store: StoreDir,
        positions: Positions,
        *,
        ahead: int = FILES_AHEAD,
        background: bool | None = None,
        warm_up: bool = False,
        lock_memory: bool = False,
    ) -> None:
        """background: create files ahead in a separate thread; by default if warm_up or lock_memory
        makes that slow. warm_up: fill new files with zeros before they are used. lock_memory: keep
        files in memory until they are full and flushed.
        """
        if background is None:
            background = warm_up or lock_memory
        self._prepares_soon = background and (warm_up or lock_memory)
        self._file_size = store.config.commit_log_file_size
        self._positions = positions
        self._store = store
        self._files = MappedFileQueue(
            store.disk,
            store.commit_log_dir,
            self._file_size,
            mapped_max=1,
            writable=True,
            preallocation=Preallocation(
                ahead=ahead,
                reserve=True,
                background=background,
                warm_up=warm_up,
                lock_memory=lock_memory,
            ),
        )
        self._open: dict[int, File] = {}
        self._current: int | None = None
        self._settled = False
        self._written = Mark(0, 0)
        self._flushed = 0
        self._flushing = threading.Lock()
        self._failure: StoreError | None = None

    # -- where it is ----------------------------------------------------------------------------

    @property
    def written(self) -> PhysicalOffset:
        """End of the bytes that are in the file and published."""
        return PhysicalOffset(self._written.end)

    @property
    def newest(self) -> Mark:
        """End of the bytes in the file, with the store time of the record before it; the time is 0
        while nothing was appended since ``start_at``."""
        return self._written

    @property
    def flushed(self) -> PhysicalOffset:
        """End of the bytes that are on disk."""
        return PhysicalOffset(self._flushed)

    @property
    def settled(self) -> bool:
        """Whether the file in which the log ends, if there is one, can be written to its end."""
        return self._settled

    @property
    def files(self) -> MappedFileQueue:
        """The files, for retention; only this writer may cut them or write to them."""
        return self._files

    # -- start and end --------------------------------------------------------------------------

    def start_at(self, end: PhysicalOffset) -> None:
        """Continue at end, where recovery found the end of the log; publish it. Blocks.

        The file's bytes after end are zeros already. Files after the one of end are removed;
        recovery has kept their contents aside. Files ahead are left to ``prepare_next``: a node
        that becomes master, or a slave again, answers without waiting for them. A full or read-only
        disk raises nothing yet: append and ``prepare_next`` will. Raises StrayFile, WrongFileSize,
        FlushFailed.
        """
        files = self._files
        files.load()
        for file in self._open.values():  # opened by an earlier call, before a second recovery
            file.close()
        self._open.clear()
        self._current, self._settled = None, False
        files.wrote_offset = self._flushed = end
        self._written = Mark(end, 0)
        with contextlib.suppress(DiskFull, ReadOnlyDisk, OutOfResources):
            self._make_settled()
            if self._current is None:  # the log's first file: nothing can wait for it yet
                self._files.prepare_next(1)
                self.open_next()
        self._positions.publish(Slot.FLUSHED, end)
        self._positions.publish(Slot.WRITTEN, end)

    def _make_settled(self) -> None:
        """Prepare the end of the log for writing, once, as soon as the disk allows it."""
        if not self._settled:
            try:
                self._settle()
            except (DiskFull, ReadOnlyDisk, OutOfResources) as error:
                self._files.last_error = error
                raise

    def _settle(self) -> None:
        end, files = self._written.end, self._files
        self._store.make_up()
        for start in reversed(files.starts):
            if start > end:
                files.delete_last()
        start = end - end % self._file_size
        if files.last() == start:
            self._open[start] = self._adopt(start, end)
            self._current = start
        self._settled = True

    def _adopt(self, start: int, end: int) -> File:
        """Open the file at start, whose name recovery made durable, and reserve its blocks."""
        file = self._files.open_file(start)
        try:
            # RocketMQ creates sparse files. From here on a write must not find the disk full.
            file.reserve(end - start, start + self._file_size - end)
        except (DiskFull, ReadOnlyDisk, OutOfResources):
            file.close()
            raise
        try:
            file.sync()
        except (OSError, StoreError) as error:
            file.close()
            self._failure = flush_failed(file.path, error)
            raise self._failure from error
        return file

    def prepare_next(self) -> None:
        """Make the current file writable and create the files ahead, where needed. Blocks.

        If creating files is slow, only the next file is created here, the others in a thread. Call
        this again after DiskFull or ReadOnlyDisk: writing then resumes without a restart.
        """
        self._make_settled()
        if self._prepares_soon:
            self._files.prepare_soon()
        else:
            self._files.prepare_all()
        if self._files.next_ready:
            self.open_next()

    def open_next(self) -> None:
        """Open the next file, which exists already. Usable in any thread. Raises OutOfResources.

        It is opened when it is created, not when the log moves into it. Otherwise: 1. the file is
        created; 2. all descriptors that the process may have are used up; 3. the log reaches the
        end of its file, and cannot continue in the next although it exists.
        """
        start = self._files.next_start
        if start not in self._open:
            file = self._files.open_file(start)
            if self._open.setdefault(start, file) is not file:  # another thread was faster
                file.close()

    def ensure_next(self, timeout_s: float = WAIT_S) -> None:
        """Wait until the next file exists. Raises FileNotReady, DiskFull, ReadOnlyDisk."""
        if not self._settled:
            self.prepare_next()
        self._files.ensure_next(timeout_s)

    def close(self, *, clean: bool) -> None:
        """Close all files. clean: flush first, and remove the files that were never used."""
        try:
            if clean and self._failure is None:
                self.flush()
                self._files.close()  # first, because its thread would create them again
                self._files.remove_unused()
        finally:
            self._files.close()
            for file in self._open.values():
                file.close()
            self._open.clear()
            self._current = None

    # -- write ----------------------------------------------------------------------------------

    def _write(self, data: bytes | memoryview, at: int) -> None:
        """Write data into the file that holds physical offset at."""
        position = at % self._file_size
        file = self._open[at - position]
        try:
            file.pwrite(data, position)
        except (OSError, StoreError) as error:
            self._failure = WriteFailed(
                f"writing {len(data)} bytes at {position} of {file.path} failed: {error}. "
                f"Everything below physical offset {self._written.end} is unchanged. Nothing "
                f"written from {at} on is visible now; the next start may keep the first complete "
                "records and cuts the rest: the outcome is unknown.",
                "Send again with the same unique ids: what is there already is not stored twice. "
                "The process ends; check the disk (dmesg, smartctl).",
                path=file.path,
                physical_offset=at,
                size=len(data),
            )
            raise self._failure from error

    def _publish(self, mark: Mark) -> None:
        self._written = mark
        self._files.wrote_offset = mark.end
        self._positions.publish(Slot.WRITTEN, mark.end)

    # -- flush ----------------------------------------------------------------------------------

    def commit(self) -> PhysicalOffset:
        """Write accepted bytes into the file, publish WRITTEN, return it. Usable in any thread.

        In this class no bytes ever wait. Raises WriteFailed or FlushFailed, then and on every later
        call.
        """
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        return self.written

    def flush(self) -> PhysicalOffset:
        """Make everything appended so far durable, publish FLUSHED, return it. Blocks; any thread.

        Raises FlushFailed, then and on every later call: a second fdatasync on the descriptor would
        succeed without the bytes being on disk. Raises LogFileReplaced likewise: the bytes are on
        disk, but in a file that no later start will find.
        """
        with self._flushing:
            self.commit()
            mark, flushed, size = self._written, self._flushed, self._file_size
            if mark.end <= flushed:
                return PhysicalOffset(flushed)
            starts = range(flushed - flushed % size, mark.end, size)
            for start in starts:
                file = self._open[start]
                try:
                    file.sync()
                except (OSError, StoreError) as error:
                    self._failure = flush_failed(file.path, error)
                    raise self._failure from error
                if not file.is_named():  # checked before these bytes are acknowledged
                    self._failure = log_file_replaced(file.path, flushed)
                    raise self._failure
            self._flushed = mark.end
            self._positions.publish(Slot.FLUSHED, mark.end)
            if mark.store_timestamp_ms > 0:
                self._positions.put_head(physic_timestamp_ms=mark.store_timestamp_ms)
            full = mark.end - mark.end % size
            for start in starts:
                if start < full:  # synced and never written again
                    self._open.pop(start).close()
            if starts[0] < full:
                self._files.done_below(full)
            return PhysicalOffset(mark.end)


def log_file_replaced(path: Path, flushed: int) -> LogFileReplaced:
    """Return the error for a log file that something else changed while the node was running."""
    return LogFileReplaced(
        f"{path} was removed, moved, replaced or given another size while this node was running. "
        f"The log was on disk up to physical offset {flushed}; nothing further is acknowledged.",
        "The process ends. Put the file back before the next start, which says what is missing.",
        path=path,
        flushed=flushed,
    )
