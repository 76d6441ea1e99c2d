"""Remove the leading files of consume queues and index whose records have expired.

The checkpoint page has totals of the derived files, by which the next start detects missing ones. A
crash or power cut during a removal must not look like a loss, which would cause a complete rebuild:

1. The possible difference of the totals is published and synced (REMOVING_FIRSTS,
   REMOVING_ENTRIES).
2. The files are removed one after the other. Each removal is durable before the next file of the
   same queue is removed.
3. The next sync publishes the current totals and sets the difference to 0.

A few files are removed at a time, between two steps of dispatch. The last file of a queue and of
the index is kept at any age, because it defines the numbering. The step before is the broker, which
published MIN. Afterwards the broker unmaps removed files when CLEANED_MIN has followed. On a full
disk it waits for RELEASED_MIN, which means that reput has closed the removed log files.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from services.reput.dispatched_mark import DispatchedMark
from services.reput.index_writer import IndexWriter
from services.reput.queue_survey import QueueKey
from services.reput.queue_writer import QueueWriter
from services.reput.sync_job import NOTHING, Removed
from shared.files.commit_log import CommitLogReader
from shared.files.positions import Positions
from tidemark.formats.checkpoint import Slot

FILES_AT_ONCE: Final = 8
"""Files removed between two steps; each removal syncs its directory, which takes milliseconds."""
QUEUES_AT_ONCE: Final = 200
"""Queues checked between two steps; each check takes two short reads."""


class Cleaning:
    """Removes leading files. Used by the thread that dispatches."""

    def __init__(
        self,
        positions: Positions,
        log: CommitLogReader,
        queues: QueueWriter,
        index: IndexWriter,
        mark: DispatchedMark,
    ) -> None:
        self._positions = positions
        self._log = log
        self._queues = queues
        self._index = index
        self._mark = mark
        self._round_for = -1
        self._keys: deque[QueueKey] = deque()
        self._not_yet: list[QueueKey] = []
        self._settled = NOTHING
        self._base = NOTHING

    def begin(self) -> None:
        """Start a new round after dispatch resumed; the published difference may be from an earlier
        run."""
        get = self._positions.get
        self._base = Removed(get(Slot.REMOVING_FIRSTS), get(Slot.REMOVING_ENTRIES))
        self._settled = self._mark.removed
        self._round_for = -1

    @property
    def is_due(self) -> bool:
        """Whether the log's start has moved since all files below it were removed."""
        return self._log.min_offset != self._positions.get(Slot.CLEANED_MIN)

    def step(self) -> int:
        """Remove a few files; return their number. Raises OSError or StoreError on failure: call
        again. Do not call it while queues or index are compared with the log or rebuilt."""
        log_min = int(self._log.min_offset)
        if log_min != self._round_for:
            self._round_for = log_min
            self._keys = deque(self._queues.with_several_files())
            self._not_yet = []
        queue_files = self._expired_queue_files(log_min)
        index_files = self._index.expired_entries(log_min)[: FILES_AT_ONCE - len(queue_files)]
        if queue_files or index_files:
            firsts = len(queue_files) * self._queues.units_per_file
            self._announce(Removed(firsts, sum(index_files)))
        for key in queue_files:
            self._mark.note_removed(Removed(self._queues.remove_first_file(key), 0))
        for _ in index_files:
            self._mark.note_removed(Removed(0, self._index.remove_first_file()))
        if not (self._keys or self._not_yet or queue_files or index_files):
            self._end_round(log_min)
        elif not self._keys:
            self._keys, self._not_yet = deque(self._not_yet), []
        return len(queue_files) + len(index_files)

    def _expired_queue_files(self, log_min: int) -> list[QueueKey]:
        """Return the queues whose first file is to be removed, one entry per file."""
        found: list[QueueKey] = []
        for _ in range(min(QUEUES_AT_ONCE, len(self._keys))):
            key = self._keys[0]
            room = FILES_AT_ONCE - len(found)
            expired = self._queues.expired_files(
                key, log_min=log_min, durable=self._mark.offset, files_max=room
            )
            found += [key] * expired.now
            if expired.now == room:
                break  # the queue may have more expired files and is checked again
            self._keys.popleft()
            if expired.later:
                self._not_yet.append(key)
        return found

    def _announce(self, more: Removed) -> None:
        """Publish the possible difference of the totals before removing files."""
        now, settled, base = self._mark.removed, self._settled, self._base
        publish = self._positions.publish
        publish(Slot.REMOVING_FIRSTS, base.firsts + now.firsts - settled.firsts + more.firsts)
        publish(Slot.REMOVING_ENTRIES, base.entries + now.entries - settled.entries + more.entries)
        self._positions.sync()

    def totals_published(self, removed: Removed) -> None:
        """Update the published difference: the published totals now include removed."""
        now = self._mark.removed
        self._settled, self._base = removed, NOTHING
        self._positions.publish(Slot.REMOVING_FIRSTS, now.firsts - removed.firsts)
        self._positions.publish(Slot.REMOVING_ENTRIES, now.entries - removed.entries)

    def _end_round(self, log_min: int) -> None:
        """Publish that all files below log_min are removed."""
        self._positions.publish(Slot.CLEANED_MIN, log_min)

    def release(self) -> None:
        """Close removed log files and publish RELEASED_MIN. Cheap. The broker removes a file a
        moment after it has published MIN, and rings the doorbell both times."""
        log_min = self._positions.get(Slot.MIN)
        if log_min == self._positions.get(Slot.RELEASED_MIN):
            return
        files = self._log.files
        files.refresh()
        if files.min_offset is None or files.min_offset >= log_min:
            self._positions.publish(Slot.RELEASED_MIN, log_min)
