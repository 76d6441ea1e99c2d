"""Writes at the end of the log what another node encoded, byte for byte.

Takes whole records that the caller has checked, at the very places that they have in the other
node's log: files and fillers fall where they fall there. Invariants, beside those of
``log_writer``:

- WRITTEN is always where a recovery would find the log to end: behind a whole record, or at a
  file's start once the filler of the file before is written.
- A file is made when the first byte of it is written; that fails with the disk full, and what was
  written before stays.

Step before: the slave's side of replication receives and checks. Step after: ``flush``, an ack.
"""

from __future__ import annotations

from shared.files.log_writer import LogWriter, Mark
from tidemark.formats.record import BLANK_SIZE
from tidemark.offsets import PhysicalOffset


class CopiedLogWriter(LogWriter):
    """Puts copied records at the end of the log. One at a time per store, as its base says."""

    def put(self, records: memoryview, store_timestamp_ms: int) -> PhysicalOffset:
        """Put whole records of one file behind the end of the log; publish and return WRITTEN.

        records: at least one byte, at most to the end of the file. store_timestamp_ms: of the last
        one. Raises DiskFull, ReadOnlyDisk, FileNotReady with nothing written; WriteFailed or
        FlushFailed once and for all.
        """
        at = self._written.end
        self._enter(at)
        self._write(records, at)
        self._publish(Mark(at + len(records), store_timestamp_ms))
        return self.written

    def fill_up(self, filler: memoryview) -> PhysicalOffset:
        """Put the head of a filler at the end of the log: the log ends at the next file's start.

        filler: its first bytes, at most 8, as far as they are in the file. Raises as ``put``.
        """
        at = self._written.end
        self._enter(at)
        self._write(filler[:BLANK_SIZE], at)
        border = at - at % self._file_size + self._file_size
        self._publish(Mark(border, self._written.store_timestamp_ms))
        return self.written

    def fill_rest(self, rest: memoryview, at: int) -> None:
        """Put what stands behind a filler's head; ours are zeros and stay what they are.

        at: physical offset of rest[0], in the file that the filler ended.
        """
        if bytes(rest).count(0) != len(rest):
            self._write(rest, at)

    def _enter(self, at: int) -> None:
        """Make the file that holds physical offset at the one written to."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        start = at - at % self._file_size
        if start == self._current:
            return
        self.ensure_next()
        assert self._files.next_start == start, "a copied log has no gap"
        self.open_next()
        self._current = self._files.roll()
