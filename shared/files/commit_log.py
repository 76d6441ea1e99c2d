"""Reader of the commit log by physical offset (docs/formats.md, section 2).

Records are adjacent in files of a fixed size. A record never crosses a file; if the next record
does not fit, the rest of the file begins with a BLANK filler. The reader knows where records are,
not what they mean. The appender is in ``commit_log_appender``. Invariants:

- Readers never read beyond the end they are given: a published position, not a file's length.
- Returned bytes are borrowed from a mapping and stay valid while they are referenced.
- Damaged bytes below a published end are reported, never skipped.

Step before: the appender published. Step after: reput's dispatch, a pull, a query (read path).
"""

from __future__ import annotations

from typing import Final

from shared.files.commit_log_appender import CommitLogAppender
from shared.files.mapped_file_queue import MappedFileQueue
from shared.files.positions import Positions
from shared.files.store_dir import StoreDir
from tidemark.errors import CorruptRecord
from tidemark.formats import native, record
from tidemark.formats.checkpoint import Slot
from tidemark.formats.record import BLANK_SIZE, Checks, Kind, Outcome, Record
from tidemark.offsets import PhysicalOffset

__all__ = ["CommitLogAppender", "CommitLogReader"]

ALL_CHECKS: Final = Checks()
FOREIGN_CHECKS: Final = Checks(record_crc=False)
NO_VIEW: Final = memoryview(b"")


class CommitLogReader:
    """Reads the log of one store. Usable from any process and thread."""

    def __init__(self, store: StoreDir, positions: Positions | None = None) -> None:
        """positions: provides the start of the log; without it, the first file's start is used."""
        self._files = MappedFileQueue(
            store.disk,
            store.commit_log_dir,
            store.config.commit_log_file_size,
            mapped_max=store.config.mapped_files_max,
        )
        self._files.refresh()
        self._file_size = store.config.commit_log_file_size
        self._positions = positions
        self._published_min = 0
        self._generation = positions.get(Slot.GENERATION) if positions is not None else 0

    @property
    def min_offset(self) -> PhysicalOffset:
        """First readable byte of the log; 0 if there is no file yet."""
        positions, published = self._positions, 0
        if positions is not None:
            published = positions.get(Slot.MIN)
            if positions.get(Slot.GENERATION) != self._generation:
                # A recovery has run: a file may have been removed and created again under the same
                # name, and the mapping here is of the old one.
                self._generation = positions.get(Slot.GENERATION)
                self._files.unmap()
                self._files.refresh()
        first = self._files.min_offset
        if first is None or published != self._published_min or first < published:
            # Files were added or removed since the last refresh. A removed file that is still
            # mapped keeps its blocks, and one below the published start is about to be removed.
            self._published_min = published
            self._files.refresh()
            first = self._files.min_offset
        # Every recovery publishes the start of the log. If the first file starts above it, a file
        # is missing, not expired. Skipping it would hide the loss from readers for good.
        return PhysicalOffset(published if self._generation else max(published, first or 0))

    def next_file(self, offset: PhysicalOffset) -> PhysicalOffset:
        """Return the first byte after the file that contains offset."""
        return PhysicalOffset(offset - offset % self._file_size + self._file_size)

    def window(self, offset: PhysicalOffset, end: PhysicalOffset) -> memoryview:
        """Return the bytes from offset to end or to the end of offset's file, whichever is first.

        end: a published position. The view is borrowed and valid while referenced. It is empty if
        offset is not below end, or before the start of the log. Raises CorruptRecord if the file is
        missing although offset lies in the log.
        """
        size = min(end, self.next_file(offset)) - offset
        if size <= 0 or offset < self.min_offset:
            return NO_VIEW
        view = self._files.view(offset, size)
        if view is None:
            if offset < self.min_offset:  # expired since the first check
                return NO_VIEW
            path = self._files.path(offset - offset % self._file_size)
            raise CorruptRecord(offset, "the file is missing", path)
        return view

    def read(self, offset: PhysicalOffset, size: int, end: PhysicalOffset) -> memoryview | None:
        """Return the bytes [offset, offset + size), unchecked; None if they are not all in one
        file, at or above the start of the log and below end."""
        if size <= 0 or offset + size > end or offset < self.min_offset:
            return None
        return self._files.view(offset, size)

    def store_timestamp(self, offset: PhysicalOffset, size: int, end: PhysicalOffset) -> int | None:
        """Store time [ms] of the record at offset; None if it does not lie below end."""
        view = self.read(offset, size, end)
        return None if view is None else record.peek_store_timestamp(view, 0)

    def checks_at(self, offset: int) -> Checks:
        """Return the checks that apply to a record at offset.

        In records that RocketMQ wrote, the record CRC property may be a copy of another record's,
        because RocketMQ copies it like a user's property. The body's CRC is checked everywhere.
        """
        if self._positions is None:
            return ALL_CHECKS
        until = self._positions.get(Slot.FOREIGN_UNTIL)
        if offset < until and offset >= self._positions.get(Slot.FOREIGN_FROM):
            return FOREIGN_CHECKS
        return ALL_CHECKS

    def record(
        self, offset: PhysicalOffset, end: PhysicalOffset, checks: Checks | None = None
    ) -> Record | None:
        """Return the record at offset, checked, with a borrowed body; None after the last record
        of a file, at end, and before the start of the log.

        offset: start of a record, taken from a unit, an index entry or the record before it. For an
        offset given by a user see ``find``. Raises CorruptRecord.
        """
        if checks is None:
            checks = self.checks_at(offset)
        found = native.read_record(self.window(offset, end), at=offset, checks=checks)
        if found is not None:
            return found
        # Checked once more: a CPU with weak memory ordering may show the position before the bytes.
        # Damaged bytes fail again.
        view, outcome = self._judge(offset, end, checks)
        if not view or outcome.kind is Kind.BLANK:
            return None
        if outcome.kind is not Kind.VALID:
            path = self._files.path(offset - offset % self._file_size)
            raise CorruptRecord(offset, outcome.reason, path)
        return record.decode(view)

    def find(self, offset: PhysicalOffset, end: PhysicalOffset) -> Record | None:
        """Return the record at offset, checked; None if no record begins there. offset may be any
        number, for example from a user: only a missing file raises CorruptRecord."""
        view = self.window(offset, end)
        return native.read_record(view, at=offset, checks=self.checks_at(offset))

    def _judge(
        self, offset: PhysicalOffset, end: PhysicalOffset, checks: Checks
    ) -> tuple[memoryview, Outcome]:
        view = self.window(offset, end)
        if not view:
            return view, Outcome(Kind.INCOMPLETE, 0)
        if len(view) < BLANK_SIZE and offset + len(view) == self.next_file(offset):
            return view, Outcome(Kind.BLANK, 0)  # too short even for a filler
        return view, record.validate(view, 0, at=offset, checks=checks)

    def refresh(self) -> None:
        """Discard mappings and list the files again, after the log was cut or emptied."""
        self._files.unmap()
        self._files.refresh()

    @property
    def files(self) -> MappedFileQueue:
        """The files themselves, for lookups by name and age."""
        return self._files

    def close(self) -> None:
        """Unmap everything that is not borrowed."""
        self._files.close()
