"""The commit log's appender: numbered messages in, published bytes out; one per store.

Belongs to whoever holds the append lock (docs/formats.md, sections 2.11 to 2.13). Invariants:

- An append is all or nothing: every byte of it is in the page cache before WRITTEN moves, once.
- A batch lies in one file; a file that is too short for it ends in a BLANK filler of 8 bytes, and
  8 bytes for that are always left.
- FLUSHED crosses a file border only after the old file's sync and with the new file's name
  durable (the name is synced when the file is made, before anything can be written to it).
- After a failed write or flush nothing more is accepted: the process has to end.

Steps 5 and 6 of a record's walk: before it ``formats.record`` encodes; after it reput, ha and the
group commit see the positions.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from shared.files.disk import File
from shared.files.mapped_file_queue import WAIT_S, MappedFileQueue, flush_failed
from shared.files.positions import Positions
from shared.files.store_dir import StoreDir
from tidemark.errors import DiskFull, MessageTooLarge, ReadOnlyDisk, StoreError, WriteFailed
from tidemark.formats import record
from tidemark.formats.checkpoint import Slot
from tidemark.formats.record import BLANK_SIZE, Message
from tidemark.offsets import PhysicalOffset

FILES_AHEAD: Final = 2
"""The next and the next but one (section 7.3)."""
BUFFER_SIZE_MAX: Final = 1 << 20
"""An encode buffer larger than this is not kept for the next append."""
RECORD_EXTRA_SIZE: Final = 512
"""More than a record takes beside its body and properties: fields, hosts, topic, CRC property."""

Placed = tuple[PhysicalOffset, int]
"""Physical offset and size of one record."""
NewFileHook = Callable[[PhysicalOffset], tuple[Sequence[Message], Sequence[int]]]
"""Start of a new file → the messages it must begin with, and their queue offsets."""


class _Mark(NamedTuple):
    """End of the log and the store time of its last record; one value, so read in one piece."""

    end: int
    store_timestamp_ms: int


class CommitLogAppender:
    """Appends to the log. One at a time per store: the holder of the append lock.

    ``append`` belongs to one thread; ``flush`` and ``prepare_next`` may run in others meanwhile.
    """

    def __init__(
        self,
        store: StoreDir,
        positions: Positions,
        *,
        ahead: int = FILES_AHEAD,
        background: bool = False,
        on_new_file: NewFileHook | None = None,
    ) -> None:
        """background: make files ahead in a thread of its own. on_new_file: asked for the messages
        that a new file begins with, when an append moves into it; they go out with that append.
        """
        self._file_size = store.config.commit_log_file_size
        self._record_crc = store.config.record_crc
        self._positions = positions
        self._store = store
        self._files = MappedFileQueue(
            store.disk,
            store.commit_log_dir,
            self._file_size,
            mapped_max=1,
            writable=True,
            ahead=ahead,
            reserve=True,
            background=background,
        )
        self.on_new_file = on_new_file
        self._open: dict[int, File] = {}
        self._current: int | None = None
        self._settled = False
        self._mark = _Mark(0, 0)
        self._flushed = 0
        self._buffer = bytearray(1 << 16)
        self._flushing = threading.Lock()
        self._failure: StoreError | None = None

    # -- where it is ----------------------------------------------------------------------------

    @property
    def written(self) -> PhysicalOffset:
        """End of what was appended and published."""
        return PhysicalOffset(self._mark.end)

    @property
    def flushed(self) -> PhysicalOffset:
        """End of what is on disk."""
        return PhysicalOffset(self._flushed)

    @property
    def files(self) -> MappedFileQueue:
        """The files, for retention; cut and written to only through this appender."""
        return self._files

    @property
    def reserved_bytes(self) -> int:
        """Bytes that can still be appended if no further file can be made."""
        current = 0 if self._current is None else self._current + self._file_size - self._mark.end
        return current + self._files.ready_ahead * self._file_size

    def room(self, total_size: int) -> bool:
        """Whether that many bytes fit into the current file, the 8 of a filler behind them."""
        if self._current is None:
            return False
        return self._mark.end + total_size + BLANK_SIZE <= self._current + self._file_size

    # -- start and end --------------------------------------------------------------------------

    def start_at(self, end: PhysicalOffset) -> None:
        """Go on at end, where recovery found the log to end; publish it. Blocks.

        Bytes of the file behind end are zeros already. Files behind end's own are removed: what
        was in them recovery has kept aside. A disk that is full or read-only does not matter yet:
        append and ``prepare_next`` say so. Raises StrayFile, WrongFileSize, FlushFailed.
        """
        files = self._files
        files.load()
        for file in self._open.values():  # of an earlier call, before a second recovery
            file.close()
        self._open.clear()
        self._current, self._settled = None, False
        files.wrote_offset = files.flushed_offset = self._flushed = end
        self._mark = _Mark(end, 0)
        with contextlib.suppress(DiskFull, ReadOnlyDisk):
            self.prepare_next()
        self._positions.publish(Slot.FLUSHED, end)
        self._positions.publish(Slot.WRITTEN, end)

    def _settle(self) -> None:
        """Make the end of the log the place to write: once, as soon as the disk allows it."""
        end, files = self._mark.end, self._files
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
        """The existing file at start, fit for writing: blocks reserved, names durable."""
        disk = self._store.disk
        file = self._files.open_file(start)
        try:
            # RocketMQ makes sparse files; from here on a write must not find the disk full.
            file.reserve(end - start, start + self._file_size - end)
            # Made by a process that was killed before it could sync the names?
            disk.sync_directory(self._store.commit_log_dir)
            disk.sync_directory(self._store.root)
        except (DiskFull, ReadOnlyDisk):
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
        """Make the current file writable and the files ahead, as far as they are not. Blocks.

        Call it again after DiskFull or ReadOnlyDisk: writes come back by themselves.
        """
        if not self._settled:
            try:
                self._settle()
            except (DiskFull, ReadOnlyDisk) as error:
                self._files.last_error = error
                raise
        self._files.prepare_next()

    def ensure_next(self, timeout_s: float = WAIT_S) -> None:
        """Wait until the next file is there. Raises FileNotReady, DiskFull, ReadOnlyDisk."""
        if not self._settled:
            self.prepare_next()
        self._files.ensure_next(timeout_s)

    def close(self, *, clean: bool) -> None:
        """Close all files; clean: flush first and remove the files that were never used."""
        try:
            if clean and self._failure is None:
                self.flush()
                self._files.close()  # first: its thread would make them again
                self._files.remove_unused()
        finally:
            self._files.close()
            for file in self._open.values():
                file.close()
            self._open.clear()
            self._current = None

    # -- append ---------------------------------------------------------------------------------

    def append(
        self,
        messages: Sequence[Message],
        queue_offsets: Sequence[int],
        store_timestamp_ms: int,
    ) -> list[Placed]:
        """Put the messages' records behind one another in one file; publish WRITTEN.

        Returns (physical offset, size) of each. Raises, with nothing written: FileNotReady (make
        the next file, then try again), DiskFull, ReadOnlyDisk, MessageTooLarge (no file can hold
        them), RecordError. Raises WriteFailed or FlushFailed once and for all after an I/O error;
        nothing of this append was published then.
        """
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if not messages:
            return []
        at, current = self._mark.end, self._current
        if current is None:
            if not self._settled:
                raise self._files.not_ready(at - at % self._file_size)
            return self._append_in_next(messages, queue_offsets, store_timestamp_ms)
        buffer, sizes = self._encode(messages, queue_offsets, at, store_timestamp_ms)
        total = sum(sizes)
        if at + total + BLANK_SIZE > current + self._file_size:
            self._check_fits(total)
            return self._append_in_next(messages, queue_offsets, store_timestamp_ms)
        self._write(self._open[current], buffer, total, at - current)
        self._publish(at + total, store_timestamp_ms)
        return _places(at, sizes)

    def _append_in_next(
        self, messages: Sequence[Message], queue_offsets: Sequence[int], store_timestamp_ms: int
    ) -> list[Placed]:
        """Fill up the current file, if there is one, and append in the next."""
        files, written, current = self._files, self._mark.end, self._current
        start = files.next_start
        if not files.next_ready:
            raise files.not_ready(start)
        at = max(start, written)  # an empty log may begin inside its first file
        first: Sequence[Message] = ()
        if self.on_new_file is not None and at == start:
            first, first_offsets = self.on_new_file(PhysicalOffset(start))
            messages = [*first, *messages]
            queue_offsets = [*first_offsets, *queue_offsets]
        buffer, sizes = self._encode(messages, queue_offsets, at, store_timestamp_ms)
        total = sum(sizes)
        self._check_fits(total + at - start)
        file = self._open[start] = files.open_file(start)
        if current is not None and (room := current + self._file_size - written) >= BLANK_SIZE:
            blank = record.encode_blank(room)
            self._write(self._open[current], blank, BLANK_SIZE, written - current)
        self._write(file, buffer, total, at - start)
        self._current = files.roll()
        self._publish(at + total, store_timestamp_ms)
        return _places(at, sizes)[len(first) :]

    def _encode(
        self,
        messages: Sequence[Message],
        queue_offsets: Sequence[int],
        at: int,
        store_timestamp_ms: int,
    ) -> tuple[bytearray, list[int]]:
        """The records for physical offset at, from the buffer's start on, and their sizes."""
        least = most = 0
        for message in messages:
            least += len(message.body)
            most += len(message.body) + len(message.properties) + RECORD_EXTRA_SIZE
        self._check_fits(least)
        buffer = self._buffer
        if len(buffer) < most:
            buffer = bytearray(most)
            if most <= BUFFER_SIZE_MAX:
                self._buffer = buffer
        sizes = record.encode_batch(
            buffer,
            messages,
            queue_offsets=queue_offsets,
            physical_offset=at,
            store_timestamp_ms=store_timestamp_ms,
            record_crc=self._record_crc,
        )
        return buffer, sizes

    def _check_fits(self, total: int) -> None:
        limit = self._file_size - BLANK_SIZE
        if total > limit:
            raise MessageTooLarge(
                f"{total} bytes of records, and one commit log file holds {limit}. "
                "Nothing was stored.",
                "Send less at a time, or make the store anew with a larger commit_log_file_size.",
                size=total,
                limit=limit,
            )

    def _write(self, file: File, data: bytes | bytearray, size: int, position: int) -> None:
        try:
            with memoryview(data)[:size] as view:
                file.pwrite(view, position)
        except (OSError, StoreError) as error:
            self._failure = WriteFailed(
                f"writing {size} bytes at {position} of {file.path} failed: {error}. "
                f"Everything below physical offset {self._mark.end} is as it was; nothing of this "
                "request is visible, and nothing further is accepted.",
                "Check the disk (dmesg, smartctl). The process ends; recovery at the next start "
                "cuts what was half written.",
                path=file.path,
            )
            raise self._failure from error

    def _publish(self, end: int, store_timestamp_ms: int) -> None:
        self._mark = _Mark(end, store_timestamp_ms)
        self._files.wrote_offset = end
        self._positions.publish(Slot.WRITTEN, end)

    # -- flush ----------------------------------------------------------------------------------

    def flush(self) -> PhysicalOffset:
        """Make everything written so far durable, publish FLUSHED, return it. Blocks; any thread.

        Raises FlushFailed, then and ever after: a second fdatasync on the descriptor would succeed
        without the bytes being on disk.
        """
        with self._flushing:
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            mark, flushed, size = self._mark, self._flushed, self._file_size
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
            self._flushed = mark.end
            self._files.flushed_offset = mark.end
            self._positions.publish(Slot.FLUSHED, mark.end)
            if mark.store_timestamp_ms > 0:
                self._positions.put_head(physic_timestamp_ms=mark.store_timestamp_ms)
            for start in starts[:-1]:  # full, synced, never written again
                self._open.pop(start).close()
            return PhysicalOffset(mark.end)


def _places(at: int, sizes: Sequence[int]) -> list[Placed]:
    """Where each of the records from physical offset at on lies."""
    places = []
    for size in sizes:
        places.append((PhysicalOffset(at), size))
        at += size
    return places
