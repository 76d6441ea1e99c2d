"""The commit log, read by physical offset (docs/formats.md, section 2).

Records one behind the other in files of a fixed size; a record never crosses a file, the rest of a
file that is too short for the next one begins with a BLANK filler. Knows where records lie, not
what they mean; the appender has a module of its own, ``commit_log_appender``. Invariants:

- Readers never look beyond the end they are given: a published position, never a file's length.
- Bytes handed out are borrowed from a mapping and stay valid while they are held.
- Bytes below a published end that cannot be trusted are named, never skipped.

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
    """Reads the log of one store. Any process, any thread."""

    def __init__(self, store: StoreDir, positions: Positions | None = None) -> None:
        """positions: tells the start of the log; without them it is that of the first file."""
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
        """First byte of the log that can be read; 0 if there is no file yet."""
        positions, published = self._positions, 0
        if positions is not None:
            published = positions.get(Slot.MIN)
            if positions.get(Slot.GENERATION) != self._generation:
                # A recovery has passed: a file may have been removed and made again under the
                # same name, and what is mapped here is the old one.
                self._generation = positions.get(Slot.GENERATION)
                self._files.unmap()
                self._files.refresh()
        first = self._files.min_offset
        if first is None or published != self._published_min or first < published:
            # Files have come or gone since the last look, and a removed one that is still mapped
            # keeps its blocks: one below the published start is about to be.
            self._published_min = published
            self._files.refresh()
            first = self._files.min_offset
        # Every recovery publishes where the log begins: a first file behind that is no expired
        # beginning but a missing file, and a reader who was sent on would never come back.
        return PhysicalOffset(published if self._generation else max(published, first or 0))

    def next_file(self, offset: PhysicalOffset) -> PhysicalOffset:
        """First byte behind the file that holds offset."""
        return PhysicalOffset(offset - offset % self._file_size + self._file_size)

    def window(self, offset: PhysicalOffset, end: PhysicalOffset) -> memoryview:
        """The bytes from offset to end or to the end of offset's file, whichever comes first.

        end: a published position. Borrowed, valid while held. Empty if offset is not below end or
        before the start of the log. Raises CorruptRecord if the file is missing between the two.
        """
        size = min(end, self.next_file(offset)) - offset
        if size <= 0 or offset < self.min_offset:
            return NO_VIEW
        view = self._files.view(offset, size)
        if view is None:
            if offset < self.min_offset:  # expired between the two looks
                return NO_VIEW
            path = self._files.path(offset - offset % self._file_size)
            raise CorruptRecord(offset, "the file is missing", path)
        return view

    def read(self, offset: PhysicalOffset, size: int, end: PhysicalOffset) -> memoryview | None:
        """Exactly the bytes [offset, offset + size); None if they are not all in one file,
        at or above the start of the log and below end. Nothing in them is checked."""
        if size <= 0 or offset + size > end or offset < self.min_offset:
            return None
        return self._files.view(offset, size)

    def store_timestamp(self, offset: PhysicalOffset, size: int, end: PhysicalOffset) -> int | None:
        """Store time [ms] of the record at offset; None if it does not lie below end."""
        view = self.read(offset, size, end)
        return None if view is None else record.peek_store_timestamp(view, 0)

    def checks_at(self, offset: int) -> Checks:
        """What a record at offset has to keep.

        Where RocketMQ wrote, a record CRC property may be a copy of another record's: it carries
        along what it takes for a user's property. The body's CRC is judged everywhere.
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
        """The record at offset, checked, its body borrowed; None behind the last record of a
        file, at end, and before the start of the log.

        offset: where a record begins, by a unit, an index entry or the record before it; for one
        that a user gave see ``find``. Raises CorruptRecord.
        """
        if checks is None:
            checks = self.checks_at(offset)
        found = native.read_record(self.window(offset, end), at=offset, checks=checks)
        if found is not None:
            return found
        # Judged once more: a CPU with weak ordering may show the position before the bytes. Bytes
        # that are damaged stay so.
        view, outcome = self._judge(offset, end, checks)
        if not view or outcome.kind is Kind.BLANK:
            return None
        if outcome.kind is not Kind.VALID:
            path = self._files.path(offset - offset % self._file_size)
            raise CorruptRecord(offset, outcome.reason, path)
        return record.decode(view)

    def find(self, offset: PhysicalOffset, end: PhysicalOffset) -> Record | None:
        """The record at offset, checked; None if no record begins there. offset is
        what somebody typed: only a missing file raises CorruptRecord."""
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
        """Look at everything again, after the log was cut or emptied under this reader."""
        self._files.unmap()
        self._files.refresh()

    @property
    def files(self) -> MappedFileQueue:
        """The files themselves, for look-ups by name and age."""
        return self._files

    def close(self) -> None:
        """Unmap everything that is not borrowed."""
        self._files.close()
