"""A slave's log: writes, syncs and reports the bytes of the master.

``copy`` writes whole records as they arrive. A thread of its own keeps syncing while there are
unsynced bytes, and reports after every sync; written bytes are reported every MiB. So one fdatasync
runs while the next bytes are checked and written, and a sync covers more under load: no bytes wait
longer than for the running sync and their own.

Step before: the slave's link accepts the bytes. Step after: an ACK of what is on disk.
"""

from __future__ import annotations

import threading
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
"""Written bytes that are reported before their sync has ended: the master, which allows 8 MiB in
flight, keeps sending while a disk is slow."""
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
        self,
        store: StoreDir,
        positions: Positions,
        report: Callable[[Copied | CopyFault], None],
        crashed: Callable[[BaseException], None],
    ) -> None:
        """report: called in the thread of ``copy`` and in that of the syncs. crashed: called with
        the error that ended the latter, unless it is a disk error."""
        self._store, self._positions = store, positions
        self._report, self._crashed = report, crashed
        self._file_size = store.config.commit_log_file_size
        self._records = RecordAssembler(self._file_size)
        self._writer: CopiedLogWriter | None = None
        self._syncing: _Syncing | None = None
        self._taken = 0
        """End of the bytes that were returned as whole records or fillers."""
        self._reported = 0
        """The last reported end."""
        self._reporting = threading.Lock()
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
        self._syncing = _Syncing(lambda: self._sync(writer), self._crashed)

    def copy(self, effect: Copy) -> None:
        """Write whole records. Copied is posted after the sync, and after each MiB that is written
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
        assert self._syncing is not None
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
        self._syncing.request()
        if self._taken - self._reported >= REPORT_SIZE:
            self._report_progress(writer)

    def settle(self) -> Settled:
        """Drop incomplete records, sync what is written, wait for the running sync. Blocks.

        Everything is reported when it returns. Raises FlushFailed, WriteFailed.
        """
        writer, syncing = self._writer, self._syncing
        assert writer is not None, "the log is not open"
        assert syncing is not None
        syncing.wait_idle()
        end = writer.flush()
        self._records.begin(end)
        self._taken = self._reported = end
        return Settled(end, end)

    def close(self) -> None:
        """Sync, remove preallocated files, close. Blocks. Does nothing if the log is not open."""
        writer, syncing = self._writer, self._syncing
        self._writer = self._syncing = None
        if syncing is not None:
            syncing.close()
        if writer is not None:
            writer.close(clean=True)

    def _sync(self, writer: CopiedLogWriter) -> bool:
        """Sync and report; return False if nothing can be synced any more."""
        try:
            writer.flush()
        except StoreError as error:
            self._report(CopyFault(error.code, error.detail, writer.flushed))
            return False
        self._report_progress(writer)
        return True

    def _report_progress(self, writer: CopiedLogWriter) -> None:
        """Report the end of the log, in one thread at a time so that reports never go back."""
        with self._reporting:
            durable = writer.flushed
            # The log ends at a file's start as soon as the head of a filler is written. The bytes
            # after that head are still under way and must not be reported.
            end = min(writer.written, self._taken)
            self._reported = end
            self._report(Copied(end, min(durable, end)))

    def _fault(self, code: str, detail: str, end: int) -> None:
        self._is_broken = True
        self._report(CopyFault(code, detail, end))


class _Syncing:
    """A thread that syncs whenever a sync was requested since the last one began."""

    def __init__(self, sync: Callable[[], bool], crashed: Callable[[BaseException], None]) -> None:
        self._sync, self._crashed = sync, crashed
        self._changed = threading.Condition()
        self._is_wanted = self._is_busy = self._is_over = False
        self._thread = threading.Thread(target=self._run, name="sync of the log", daemon=True)
        self._thread.start()

    def request(self) -> None:
        """Request a sync."""
        with self._changed:
            self._is_wanted = True
            self._changed.notify_all()

    def wait_idle(self) -> None:
        """Return when no sync is requested or running."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or not (self._is_wanted or self._is_busy))

    def close(self) -> None:
        """End the thread after the running sync."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._begin() and self._sync():
                with self._changed:
                    self._is_busy = False
                    self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - whatever it is ends the process
            self._crashed(error)
        finally:
            with self._changed:
                self._is_over, self._is_busy = True, False
                self._changed.notify_all()

    def _begin(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._is_wanted)
            self._is_wanted, self._is_busy = False, True
            return not self._is_over
