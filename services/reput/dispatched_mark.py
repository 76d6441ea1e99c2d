"""The dispatched mark: up to where queues and index are synced, and the counts that prove it.

The next start continues at DISPATCHED_DURABLE if it finds exactly the recorded numbers of units and
index entries below it; otherwise it rebuilds. So the mark and the counts are published only after
every touched file and every directory with new names were synced, and are revoked before queues
below them are rebuilt. After a power cut, only this mark is trusted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from services.reput.index_writer import IndexWriter
from services.reput.queue_writer import QueueWriter, Totals
from services.reput.resume import REBUILDING
from services.reput.sync_job import NOTHING, Removed, SyncJob, SyncMark, SyncPoint
from shared.files.commit_log import CommitLogReader
from shared.files.positions import Positions
from shared.files.store_dir import StoreDir
from tidemark.errors import StoreError
from tidemark.formats.checkpoint import Slot, resume_check
from tidemark.offsets import PhysicalOffset

COPY_SIZE: Final = 1 << 20
"""Bytes of a file that are rewritten at once after a failed sync."""


class DispatchedMark:
    """Begins and ends syncs of one store's derived files. Used by the thread that dispatches."""

    def __init__(
        self,
        store: StoreDir,
        positions: Positions,
        log: CommitLogReader,
        queues: QueueWriter,
        index: IndexWriter,
    ) -> None:
        self._store = store
        self._positions = positions
        self._log = log
        self._queues = queues
        self._index = index
        # Open before the first write: it reports every write error from its creation on.
        self._whole_sync = store.disk.whole_sync(store.root)
        self.offset = 0
        """Published DISPATCHED_DURABLE."""
        self.removed = NOTHING
        """Removals since the start of the process."""
        self._unit_timestamp_ms = 0
        """Store time of the record of the newest unit."""
        self._point = SyncPoint(0, Totals(0, 0), 0)
        self._published: tuple[int, int] | None = None
        """Resume number and position published last."""
        self._resume_number = 0
        self._files: frozenset[Path] = frozenset()
        """Files of a sync that could not be started; the next sync includes them."""
        self._directories: frozenset[Path] = frozenset()

    def forget_syncs(self) -> None:
        """Publish nothing of syncs that began before, because resume cuts what they cover."""
        self._resume_number += 1

    def resumed(self) -> None:
        """Read the marks that resume has left in the checkpoint page."""
        self.offset = self._positions.get(Slot.DISPATCHED_DURABLE)
        self._unit_timestamp_ms = self._positions.head().logics_timestamp_ms

    def withdraw(self, log_min: int) -> None:
        """Revoke the mark, and make that durable before anything is rebuilt.

        Otherwise: 1. units are missing and are rewritten; 2. the process is killed: the next start
        counts them in the page cache and continues at the old mark; 3. after a power cut they are
        missing again.
        """
        self.forget_syncs()
        self._positions.publish(Slot.RESUME_UNITS, REBUILDING)
        self._positions.publish(Slot.DISPATCHED_DURABLE, log_min)
        self._positions.sync()
        self.offset = log_min

    def settle(self, position: PhysicalOffset, unit_timestamp_ms: int = 0) -> None:
        """Note that queues and index cover exactly the log below position. Call it only between
        steps: an interrupted step has units in the totals that are above position.

        unit_timestamp_ms: store time of the record of the newest unit; 0 if there is no new one.
        """
        self._unit_timestamp_ms = unit_timestamp_ms or self._unit_timestamp_ms
        self._point = SyncPoint(position, self._queues.totals, self._index.entries)

    def note_removed(self, change: Removed) -> None:
        """Note that expired files were removed, which may happen while a step is interrupted."""
        firsts, entries = change
        position, totals, index_entries = self._point
        self.removed = Removed(self.removed.firsts + firsts, self.removed.entries + entries)
        self._point = SyncPoint(
            position, Totals(totals.units, totals.firsts + firsts), index_entries - entries
        )

    def begin(self, *, publishable: bool) -> SyncJob | None:
        """Collect what was touched since the last sync; None if there is nothing to do.

        publishable: False while queues or index are compared with the log or rebuilt.
        """
        files, directories = self._queues.take_touched()
        more_files, more_directories = self._index.take_touched()
        files |= more_files | self._files
        directories |= more_directories | self._directories
        self._files = self._directories = frozenset()
        state = (self._resume_number, self._point.position)
        if not files and not directories and (not publishable or self._published == state):
            return None
        mark = SyncMark(
            self._point,
            self._resume_number,
            self._unit_timestamp_ms,
            self._index.filled_timestamp_ms,
            self.removed,
        )
        return SyncJob(
            self._store.disk,
            frozenset(files),
            frozenset(directories),
            mark if publishable else None,
            self._whole_sync,
            self._unflushed_log(),
        )

    def _unflushed_log(self) -> frozenset[Path]:
        """Return log files with dispatched records that are not flushed; empty unless written
        records are visible before they are flushed.

        They are synced first, because otherwise:
        1. DISPATCHED_DURABLE covers such records and the power fails.
        2. The log then ends below it.
        3. The log grows past it with other records.
        4. The next start trusts the offset, continues in the middle of a record and reports the
           log as damaged.
        """
        position, flushed = self._point.position, self._positions.get(Slot.FLUSHED)
        size = self._store.config.commit_log_file_size
        starts = range(flushed - flushed % size, position, size) if flushed < position else ()
        return frozenset(self._log.files.path(start) for start in starts)

    def finish(self, job: SyncJob) -> Removed | None:
        """Publish what job made durable, unless dispatch resumed or was withdrawn in between.

        Returns the removals that the published totals include; None if nothing was published.
        """
        mark = job.mark
        if mark is None or mark.resume_number != self._resume_number:
            return None
        publish = self._positions.publish
        self._positions.put_head(logics_timestamp_ms=mark.unit_timestamp_ms)
        if mark.index_timestamp_ms:
            self._positions.put_head(index_timestamp_ms=mark.index_timestamp_ms)
        position, (units, firsts), entries = mark.sync_point
        publish(Slot.RESUME_UNITS, units)
        publish(Slot.RESUME_FIRSTS, firsts)
        publish(Slot.RESUME_INDEX_ENTRIES, entries)
        publish(Slot.RESUME_CHECK, resume_check(position, units, entries))
        publish(Slot.DISPATCHED_DURABLE, position)
        self.offset = position
        self._published = (mark.resume_number, position)
        return mark.removed

    def give_back(self, job: SyncJob) -> None:
        """Take back a job that could not run; the next one includes its files. No sync of the job
        may have failed."""
        self._files |= job.files
        self._directories |= job.directories

    def distrust_cache(self, paths: Iterable[Path]) -> None:
        """Invalidate the marks after a failed sync: the page cache may hold data that is not on
        disk.

        The kernel marks such pages clean, so a later sync would succeed without writing them. So
        the next start must trust only the last dispatched mark, as after a power cut, and cut what
        lies after. If queues were never synced or are being rebuilt, the next start keeps units
        that equal the log. Therefore the files are rewritten with their own content now: their
        pages become dirty, and the next sync writes them. Call it between steps, because the files
        must not be written meanwhile.
        """
        self._positions.publish(Slot.REPUT_GENERATION, 0)
        self._positions.publish(Slot.REPUT_BOOT_ID_HIGH, 0)
        self._positions.publish(Slot.REPUT_BOOT_ID_LOW, 0)
        for path in paths:
            # the first failure ends the process anyway
            with contextlib.suppress(OSError, StoreError):
                self._write_over_itself(path)

    def _write_over_itself(self, path: Path) -> None:
        file = self._store.disk.open(path, writable=True)
        try:
            end = file.data_end()
            for at in range(0, end, COPY_SIZE):
                file.pwrite(file.pread(min(COPY_SIZE, end - at), at), at)
        finally:
            file.close()

    def close(self) -> None:
        """Close the handle of whole syncs, without a sync."""
        if self._whole_sync is not None:
            self._whole_sync.close()
