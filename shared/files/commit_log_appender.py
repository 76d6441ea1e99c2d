"""Appender of the commit log: numbered runs in, published bytes out; one per store.

It belongs to the holder of the append lock (docs/formats.md, sections 2.11 to 2.13). The code it
shares with copying a log is in ``log_writer``. Invariants, in addition to those of ``log_writer``:

- An append is all or nothing: all its bytes are in the page cache before WRITTEN moves past it.
- With a pool, records stay in its memory until ``commit``, and are invisible until then.
- A batch lies in one file. A file that is too short for it ends in a BLANK filler of at least
  8 bytes, for which 8 bytes are always left.

Write path, step 4: ``formats.runs`` encodes into the buffer before; afterwards reput and ha see
the positions.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final, NamedTuple

from shared.files.log_writer import FILES_AHEAD, LogWriter, Mark
from shared.files.positions import Positions
from shared.files.store_dir import StoreDir
from shared.files.write_pool import WritePool
from tidemark.errors import MessageTooLarge
from tidemark.formats import native, record
from tidemark.formats.record import BLANK_SIZE
from tidemark.formats.runs import Run
from tidemark.offsets import PhysicalOffset

BUFFER_SIZE_MAX: Final = 1 << 20
"""An encode buffer larger than this is not kept for the next append."""
SIZE_OF_SIZE: Final = 4
"""Bytes of one record's size in ``Placed.sizes``."""

FileHead = tuple[Sequence[Run], Sequence[int]]
"""Runs with which a new file begins, and each run's first queue offset."""
NO_HEAD: Final[FileHead] = ((), ())


class Placed(NamedTuple):
    """Location of the records of one append: adjacent, in the order of the runs."""

    start: PhysicalOffset
    """Physical offset of the first record."""
    sizes: bytes
    """Size of each record as native unsigned 32-bit numbers: ``memoryview(sizes).cast("I")``."""


class CommitLogAppender(LogWriter):
    """Appends to the log. One at a time per store: the holder of the append lock.

    ``append`` belongs to one thread; ``commit``, ``flush`` and ``prepare_next`` may run in others
    at the same time.
    """

    def __init__(
        self,
        store: StoreDir,
        positions: Positions,
        *,
        ahead: int = FILES_AHEAD,
        background: bool | None = None,
        pool_size: int = 0,
        warm_up: bool = False,
        lock_memory: bool = False,
    ) -> None:
        """ahead, background, warm_up, lock_memory: as for ``LogWriter``. pool_size: bytes
        of memory in which appends wait for ``commit``; 0: every append goes into the file itself.
        """
        super().__init__(
            store,
            positions,
            ahead=ahead,
            background=background,
            warm_up=warm_up,
            lock_memory=lock_memory,
        )
        self._record_crc = store.config.record_crc
        self._pool = WritePool(pool_size) if pool_size > 0 else None
        self._appended = Mark(0, 0)
        self._buffer = memoryview(bytearray(1 << 16))
        self._committing = threading.Lock()
        self.intended: Placed | None = None
        """Location of the last append's records, even if their write failed."""

    # -- where it is ----------------------------------------------------------------------------

    @property
    def appended(self) -> PhysicalOffset:
        """End of everything appended, including pooled bytes."""
        return PhysicalOffset(self._appended.end)

    @property
    def pooled(self) -> bool:
        """Whether appends wait in memory for ``commit``."""
        return self._pool is not None

    @property
    def reserved_bytes(self) -> int:
        """Bytes that can still be appended if no further file can be created."""
        current = self._current
        left = 0 if current is None else current + self._file_size - self._appended.end
        return left + self._files.ready_ahead * self._file_size

    def room(self, total_size: int) -> bool:
        """Whether that many bytes and a filler of 8 bytes after them fit into the current file."""
        if self._current is None:
            return False
        return self._appended.end + total_size + BLANK_SIZE <= self._current + self._file_size

    def start_at(self, end: PhysicalOffset) -> None:
        """Continue at end; see ``LogWriter``. Bytes in the pool are dropped."""
        super().start_at(end)
        if self._pool is not None:
            self._pool.free(self._appended.end)
        self._appended = Mark(end, 0)

    # -- append ---------------------------------------------------------------------------------

    def size_of(self, runs: Sequence[Run]) -> int:
        """Return the size of the runs' records in this log. Raises RecordError, BadBatch."""
        return native.runs_size(runs, record_crc=self._record_crc)

    def append(
        self,
        runs: Sequence[Run],
        firsts: Sequence[int],
        store_timestamp_ms: int,
        head: FileHead = NO_HEAD,
        size: int | None = None,
    ) -> Placed:
        """Append the runs' records, adjacent in one file; publish WRITTEN, or leave that to
        ``commit``.

        firsts: queue offset of each run's first message. head: written before the runs if they
        begin a new file. size: what ``size_of`` returned for the runs; None: it is not known.
        Returns the records' location, without those of the head. Raises, with nothing written:
        FileNotReady (create the next file, then try again), DiskFull, ReadOnlyDisk, MessageTooLarge
        (larger than a file), RecordError, BadBatch. After an I/O error it raises WriteFailed or
        FlushFailed, then and on every later call; nothing of the failed append was published.
        """
        self.intended = None
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        at, current = self._appended.end, self._current
        total = self.size_of(runs) if size is None else size
        if total == 0:
            return Placed(PhysicalOffset(at), b"")
        if current is None or at + total + BLANK_SIZE > current + self._file_size:
            if total > self._file_size - BLANK_SIZE:
                raise self._too_large(total)
            if not self._settled:
                raise self._files.not_ready(at - at % self._file_size)
            return self._append_in_next(runs, firsts, store_timestamp_ms, head)
        buffer = self._room_for(total)
        sizes = self._encode(buffer, runs, firsts, at, store_timestamp_ms)
        placed = self.intended = Placed(PhysicalOffset(at), sizes)
        self._take(buffer, at, store_timestamp_ms)
        return placed

    def _append_in_next(
        self,
        runs: Sequence[Run],
        firsts: Sequence[int],
        store_timestamp_ms: int,
        head: FileHead,
    ) -> Placed:
        """Fill up the current file, if there is one, and append in the next."""
        self.commit()  # the old file's last bytes must be written before anything in the new one
        files, written, current = self._files, self._written.end, self._current
        start = files.next_start
        if not files.next_ready:
            raise files.not_ready(start)
        at = max(start, written)  # an empty log may begin inside its first file
        before = 0
        own, own_firsts = head
        if own and at == start:
            runs, firsts = [*own, *runs], [*own_firsts, *firsts]
            before = sum(run.record_count for run in own)
        total = self.size_of(runs)
        if at + total + BLANK_SIZE > start + self._file_size:
            raise self._too_large(total + at - start)
        buffer = self._room_for(total)
        sizes = self._encode(buffer, runs, firsts, at, store_timestamp_ms)
        self.open_next()
        if current is not None and (room := current + self._file_size - written) >= BLANK_SIZE:
            self._write(record.encode_blank(room), written)
        self._current = files.roll()
        own_size = sum(memoryview(sizes).cast("I")[:before])
        placed = self.intended = Placed(
            PhysicalOffset(at + own_size), sizes[SIZE_OF_SIZE * before :]
        )
        self._take(buffer, at, store_timestamp_ms)
        return placed

    def _room_for(self, total: int) -> memoryview:
        """Return memory for that many bytes: from the pool, or valid until the next call."""
        if self._pool is not None:
            place = self._pool.place(total)
            if place is None:
                self.commit()
                place = self._pool.place(total)
            if place is not None:
                return place
            # Larger than the pool, which is empty now: written directly into the file.
        if total > len(self._buffer):
            buffer = memoryview(bytearray(total))
            if total > BUFFER_SIZE_MAX:
                return buffer
            self._buffer = buffer
        return self._buffer[:total]

    def _encode(
        self,
        buffer: memoryview,
        runs: Sequence[Run],
        firsts: Sequence[int],
        at: int,
        store_timestamp_ms: int,
    ) -> bytes:
        """Encode the records for physical offset at, filling buffer; return their sizes."""
        return native.encode_runs(
            buffer,
            runs,
            firsts=firsts,
            physical_offset=at,
            store_timestamp_ms=store_timestamp_ms,
            record_crc=self._record_crc,
        )

    def _too_large(self, total: int) -> MessageTooLarge:
        limit = self._file_size - BLANK_SIZE
        return MessageTooLarge(
            f"{total} bytes of records, and one commit log file holds {limit}. Nothing was stored.",
            "Send less at a time, or make the store anew with a larger commit_log_file_size.",
            size=total,
            limit=limit,
        )

    def _take(self, buffer: memoryview, at: int, store_timestamp_ms: int) -> None:
        """Count the encoded bytes as appended at physical offset at; without a pool, write them."""
        mark = Mark(at + len(buffer), store_timestamp_ms)
        if self._pool is not None and len(buffer) <= self._pool.size:
            self._pool.put(at, len(buffer))
            self._appended = mark
            return
        self._write(buffer, at)
        self._appended = mark
        self._publish(mark)

    # -- commit ---------------------------------------------------------------------------------

    def commit(self) -> PhysicalOffset:
        """Write the pool's bytes into the file, publish WRITTEN, return it. Usable in any thread.

        Without a pool it writes nothing. Raises WriteFailed or FlushFailed, then and on every later
        call; bytes after WRITTEN are then invisible, and none of them may be acknowledged.
        """
        pool = self._pool
        if pool is None:
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            return self.written
        with self._committing:
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            # Appends may continue meanwhile: their bytes lie after the mark.
            mark = self._appended
            if mark.end > self._written.end:
                for offset, data in pool.stretches(mark.end):
                    self._write(data, offset)
                self._publish(mark)
                pool.free(mark.end)
            return PhysicalOffset(mark.end)
