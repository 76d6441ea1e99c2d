"""A slave's log: writes, syncs and reports the bytes of the master.

``copy`` writes whole records as they arrive. ``sync`` is called when no more bytes wait, and syncs
and reports once for all that was written; written bytes are also reported every MiB. So under load
each sync covers what arrived during the one before: no bytes wait longer than for the running sync
and their own. All this is done in one thread, because handing every piece from a thread that writes
to one that syncs costs more processor time than the overlap of both saves.

Step before: the slave's link accepts the bytes. Step after: an ACK of what is on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from services.ha.core.effects import Copy
from services.ha.core.events import Copied, CopyFault
from services.ha.wire.record_assembler import BadBytes, Part, RecordAssembler
from shared.files.copied_log_writer import CopiedLogWriter
from shared.files.positions import Positions
from shared.files.store_dir import StoreDir
from tidemark.errors import NotServing, StoreError
from tidemark.formats.checkpoint import Slot
from tidemark.offsets import PhysicalOffset

FILES_AHEAD: Final = 1
REPORT_SIZE: Final = 1 << 20
"""Written bytes that are reported before their sync: the master, which allows 8 MiB in flight,
sends the next ones meanwhile."""
SYNC_SIZE: Final = 4 << 20
"""Unsynced bytes after which a sync does not wait until no more bytes arrive."""
BAD_STREAM: Final = "bad-stream"
"""Code of a fault in the received bytes, not in this node's log: the next link may bring correct
ones."""


class Settled(NamedTuple):
    """The end of the log while nothing is being copied or synced."""

    end: int
    durable: int


class CopiedLog:
    """The log while this process holds the append lock. All methods belong to one thread."""

    def __init__(
        self, store: StoreDir, positions: Positions, report: Callable[[Copied | CopyFault], None]
    ) -> None:
        """report: called in the thread of the methods."""
        self._store, self._positions, self._report = store, positions, report
        self._file_size = store.config.commit_log_file_size
        self._records = RecordAssembler(self._file_size)
        self._writer: CopiedLogWriter | None = None
        self._taken = 0
        """End of the bytes that were returned as whole records or fillers."""
        self._reported = 0
        """The last reported end."""
        self._is_sync_due = False
        """Whether bytes were taken since the last sync."""
        self._is_broken = False

    @property
    def is_open(self) -> bool:
        """Whether bytes can be copied."""
        return self._writer is not None

    def open(self, end: int) -> None:
        """Continue at end, where recovery found the end of the log. Blocks.

        Raises StrayFile, WrongFileSize, FlushFailed.
        """
        writer = CopiedLogWriter(self._store, self._positions, ahead=FILES_AHEAD)
        writer.start_at(PhysicalOffset(end))
        self._writer, self._is_broken = writer, False
        self._records = RecordAssembler(self._file_size)
        self._records.begin(end)
        self._taken = self._reported = end
        self._is_sync_due = False

    def copy(self, effect: Copy) -> None:
        """Write whole records. Copied is posted by ``sync``, and after each MiB that is written
        before that. CopyFault is posted at once.

        After a fault, bytes are ignored until a Copy with ``first`` begins anew.
        """
        writer = self._writer
        if effect.first:
            self._is_broken = False
        if self._is_broken:
            return
        if writer is None:
            self._fault(NotServing.code, "the append lock is not held here", effect.offset)
            return
        try:
            self._take(effect, writer)
        except BadBytes as error:
            self._fault(BAD_STREAM, str(error), writer.written)
        except StoreError as error:
            self._fault(error.code, error.detail, writer.written)

    def _take(self, effect: Copy, writer: CopiedLogWriter) -> None:
        records = self._records
        if effect.first:
            records.begin(effect.offset)
            get = self._positions.get
            records.set_foreign(get(Slot.FOREIGN_FROM), get(Slot.FOREIGN_UNTIL))
            self._taken = self._reported = effect.offset
        if effect.offset != records.received:
            raise BadBytes(effect.offset, f"bytes up to {records.received} came before")
        self._is_sync_due = True
        for piece in records.take(effect.data):
            if piece.part is Part.REST:
                writer.fill_rest(piece.data, piece.at)
            elif piece.at != writer.written:
                raise BadBytes(piece.at, f"not next in the log: it ends at {writer.written}")
            elif piece.part is Part.FILLER:
                writer.fill_up(piece.data)
            else:
                writer.put(piece.data, piece.store_timestamp_ms)
            self._taken = piece.at + len(piece.data)
        if writer.written - writer.flushed >= SYNC_SIZE:
            self.sync()
        elif self._taken - self._reported >= REPORT_SIZE:
            self._report_progress(writer)

    def sync(self) -> None:
        """Sync what was written, and post Copied. Blocks. Does nothing after a fault, or if nothing
        was taken since the last sync. CopyFault is posted if the disk fails."""
        writer = self._writer
        if writer is None or self._is_broken or not self._is_sync_due:
            return
        try:
            writer.flush()
        except StoreError as error:
            self._fault(error.code, error.detail, writer.flushed)
            return
        self._is_sync_due = False
        self._report_progress(writer)

    def settle(self) -> Settled:
        """Drop incomplete records and sync what is written. Blocks.

        Everything is reported when it returns. Raises FlushFailed, WriteFailed.
        """
        writer = self._writer
        assert writer is not None, "the log is not open"
        end = writer.flush()
        if self._is_sync_due and not self._is_broken:
            self._report_progress(writer)
        self._records.begin(end)
        self._taken = self._reported = end
        self._is_sync_due = False
        return Settled(end, end)

    def close(self) -> None:
        """Sync, remove preallocated files, close. Blocks. Does nothing if the log is not open."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close(clean=True)

    def _report_progress(self, writer: CopiedLogWriter) -> None:
        # The log ends at a file's start as soon as the head of a filler is written. The bytes after
        # that head are still under way and must not be reported.
        end = self._reported = min(writer.written, self._taken)
        self._report(Copied(end, min(writer.flushed, end)))

    def _fault(self, code: str, detail: str, end: int) -> None:
        self._is_broken = True
        self._report(CopyFault(code, detail, end))
