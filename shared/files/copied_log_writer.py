"""Appends bytes that another node encoded to the end of the log, unchanged.

It takes whole records that the caller has checked, at exactly the offsets that they have in the
other node's log, so file borders and fillers are the same. Invariants, in addition to those of
``log_writer``:

- WRITTEN is always where a recovery would find the end of the log: after a whole record, or at a
  file's start once the filler of the file before is written.
- A file is created when its first byte is written. On a full disk that fails, and the bytes written
  before stay.

Step before: the slave's side of replication receives and checks. Step after: ``flush``, an ack.
"""

from __future__ import annotations

from shared.files.log_writer import LogWriter, Mark
from tidemark.formats.record import BLANK_SIZE
from tidemark.offsets import PhysicalOffset


class CopiedLogWriter(LogWriter):
    """Appends copied records to the log. One per store at a time, as for the base class."""

    def put(self, records: memoryview, store_timestamp_ms: int) -> PhysicalOffset:
        """Append whole records of one file to the log; publish and return WRITTEN.

        records: at least one byte, at most to the end of the file. store_timestamp_ms: store time
        of the last record. Raises DiskFull, ReadOnlyDisk, FileNotReady with nothing written. Raises
        WriteFailed or FlushFailed, then and on every later call.
        """
        at = self._written.end
        self._enter(at)
        self._write(records, at)
        self._publish(Mark(at + len(records), store_timestamp_ms))
        return self.written

    def fill_up(self, filler: memoryview) -> PhysicalOffset:
        """Write the head of a filler at the end of the log, which then ends at the next file.
        filler: its first bytes, at most 8, as far as they are in the file. Raises as ``put``."""
        at = self._written.end
        self._enter(at)
        self._write(filler[:BLANK_SIZE], at)
        border = at - at % self._file_size + self._file_size
        self._publish(Mark(border, self._written.store_timestamp_ms))
        return self.written

    def fill_rest(self, rest: memoryview, at: int) -> None:
        """Write the bytes after a filler's head. Ours are zeros, which need not be written.
        at: physical offset of rest[0], in the file that the filler ended."""
        if bytes(rest).count(0) != len(rest):
            self._write(rest, at)

    def _enter(self, at: int) -> None:
        """Make the file that holds physical offset at the current one."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        start = at - at % self._file_size
        self._make_settled()  # a full disk has space again
        if start == self._current:
            return
        self.ensure_next()
        assert self._files.next_start == start, "a copied log has no gap"
        self.open_next()
        self._current = self._files.roll()
