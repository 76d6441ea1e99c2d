"""Consume queue reader: finds units by queue offset or time (docs/formats.md, section 4).

It reads one queue's files as an array of 20-byte units, and computes positions in it. It checks no
record and writes nothing (reput is the writer). Invariants:

- A unit counts if it is not zero and its record ends at or below ``dispatched``. Pre-blank units,
  which hold the numbers before a queue's first message, count as well. Units beyond are never
  returned: a crash may leave some that point beyond the log's end.
- Record ends increase along a queue, so the number of valid units is found by binary search.
- The files are derived data and may be missing, short or surrounded by unrelated files. That is
  treated as an empty queue, never as an exception. The writer refuses such files and rebuilds them.

Step before: reput appended the unit and published ``dispatched``. Step after: ``pull`` reads the
record (read path, step 2).
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import closing
from typing import Protocol

from shared.files.queue_files import COPIED_MAX, MAPPED_PER_QUEUE, QueueFiles
from shared.files.queue_math import (
    EVERYTHING,
    Boundary,
    is_filler,
    place,
    roll_next,
    search_by_time,
)
from shared.files.store_dir import StoreDir
from tidemark.formats.queue_unit import UNIT, Unit
from tidemark.offsets import UNIT_SIZE, PhysicalOffset, QueueOffset

__all__ = ["EVERYTHING", "Boundary", "ConsumeQueueReader", "ConsumeQueues", "LogTimes"]


class LogTimes(Protocol):
    """The commit log's methods that a queue needs."""

    @property
    def min_offset(self) -> PhysicalOffset:
        """Start of the oldest file."""

    def store_timestamp(self, offset: PhysicalOffset, size: int, end: PhysicalOffset) -> int | None:
        """Store time of the record, None if it cannot be read below end."""


class ConsumeQueueReader:
    """One (topic, queue), read-only. Not thread-safe."""

    def __init__(
        self, store: StoreDir, topic: str, queue: int, log: LogTimes, *, copied_max: int = -1
    ) -> None:
        """copied_max: see ``QueueFiles``."""
        self.topic = topic
        self.queue = queue
        self.file_size = store.config.consume_queue_file_size
        self.units_per_file = self.file_size // UNIT_SIZE
        self._log = log
        self._files = QueueFiles(
            store.disk,
            store.consume_queue_dir(topic, queue),
            self.file_size,
            copied_max=copied_max,
        )
        self._min = QueueOffset(0)
        self._min_for = -1
        self._max = QueueOffset(0)
        self._max_for = -1
        self.has_shrunk = False
        """Units that existed before are missing, although ``dispatched`` has not gone back."""

    @property
    def directory_is_empty(self) -> bool:
        """Whether the queue has no file yet."""
        return not self._files.starts

    def close(self) -> None:
        """Unmap the files."""
        self._files.close()

    def roll_next(self, queue_offset: int) -> QueueOffset:
        """First queue offset of the next file."""
        return roll_next(queue_offset, self.file_size)

    # -- how far ------------------------------------------------------------------------------

    def max_offset(self, dispatched: int = EVERYTHING) -> QueueOffset:
        """Return the queue offset after the last unit whose record ends at or below dispatched."""
        if dispatched == self._max_for and dispatched != EVERYTHING:
            return self._max
        # A smaller value means that the log was cut; earlier results are then invalid.
        known = self._max if dispatched >= self._max_for >= 0 else QueueOffset(0)
        self._max = self._files.count(dispatched, known)
        self._max_for = dispatched
        self.has_shrunk = self.has_shrunk or self._max < known
        return self._max

    def min_offset(self, min_physical: int) -> QueueOffset:
        """Return the first queue offset whose record is in a log that starts at min_physical.

        Section 4.8: if all units are expired, the result is the max offset, so that the numbering
        continues. If the first file contains only expired units, RocketMQ keeps the old minimum
        until that file is deleted. This method searches the files after it, so that consumers get
        the correct minimum as soon as the log is shorter. For a queue that starts with pre-blank
        units it returns the first message (RocketMQ: a unit among them).
        """
        if min_physical == self._min_for:
            return self._min
        files = self._files
        files.refresh()  # retention deletes a queue's files after it deleted the log's
        if not files.starts:
            return self._min
        end = files.count(EVERYTHING)
        last = self.unit(QueueOffset(end - 1))
        if last is None:
            return self._min
        if is_filler(last.physical_offset, last.size) or last.physical_offset < min_physical:
            self._min, self._min_for = end, min_physical
            return end
        found = files.first_at(min_physical, self._min)
        if found is not None:
            self._min, self._min_for = found, min_physical
        return self._min

    def last_record_end(self, dispatched: int = EVERYTHING) -> PhysicalOffset | None:
        """Return the physical end of the last record in the queue; None if there is none."""
        end = self.max_offset(dispatched)
        last = self.unit(QueueOffset(end - 1)) if end else None
        if last is None or is_filler(last.physical_offset, last.size):
            return None
        return PhysicalOffset(last.end)

    # -- units --------------------------------------------------------------------------------

    def view(self, queue_offset: int, count: int, dispatched: int) -> memoryview | None:
        """Return the bytes of up to count visible units of one file, from queue_offset on.

        None if the file is missing or ends before queue_offset (the next file may exist:
        ``roll_next``); empty at or after max_offset. The view is borrowed and valid until this
        reader is used for another file.
        """
        visible = min(count, self.max_offset(dispatched) - queue_offset)
        if visible <= 0 or queue_offset < 0:
            return memoryview(b"")
        start, position = place(queue_offset, self.file_size)
        view = self._files.region(start, need=position + visible * UNIT_SIZE)
        if view is None or position + UNIT_SIZE > len(view):
            return None
        return view[position : min(position + visible * UNIT_SIZE, len(view))]

    def units(self, queue_offset: int, count: int, dispatched: int) -> list[Unit]:
        """Return up to count visible units from queue_offset on, all of one file."""
        view = self.view(queue_offset, count, dispatched)
        if view is None:
            return []
        whole = view[: len(view) // UNIT_SIZE * UNIT_SIZE]
        return [Unit._make(fields) for fields in UNIT.iter_unpack(whole)]

    def unit(self, queue_offset: int) -> Unit | None:
        """Return the unit at queue_offset, visible or not; None if its file is missing."""
        return self._files.unit(queue_offset)

    # -- times --------------------------------------------------------------------------------

    def offset_by_time(
        self, timestamp_ms: int, boundary: Boundary = Boundary.LOWER, *, dispatched: int
    ) -> QueueOffset:
        """Find the queue offset for a time (section 4.10), within [min_offset, max_offset]."""
        end = self.max_offset(dispatched)
        first = min(self.min_offset(self._log.min_offset), end)
        found = self._search_files(timestamp_ms, boundary, first, end, dispatched)
        return QueueOffset(min(max(found, first), end))

    def _search_files(
        self, timestamp_ms: int, boundary: Boundary, first: int, end: int, dispatched: int
    ) -> int:
        starts = [start for start in self._files.starts if start < end * UNIT_SIZE]
        if not starts:
            return 0

        def start_time(start: int) -> int:
            return self._time_at(start // UNIT_SIZE, dispatched)

        def stop_time(start: int) -> int:
            return self._time_at((start + self.file_size) // UNIT_SIZE - 1, dispatched)

        if boundary is Boundary.LOWER:
            # The last file's stop time is unknown; it is chosen if no earlier file matches.
            index = bisect_left(starts[:-1], timestamp_ms, key=stop_time)
        else:
            index = bisect_right(starts, timestamp_ms, key=start_time) - 1
            if index < 0:
                return 0
        start = starts[index]
        view = self._files.region(start, need=end * UNIT_SIZE - start)
        if view is None:
            return 0
        file_offset = start // UNIT_SIZE
        ceiling = min(len(view) // UNIT_SIZE, end - file_offset) - 1
        if ceiling < 0:
            return 0

        def unit_at(index: int) -> tuple[int, int]:
            offset, size, _ = UNIT.unpack_from(view, index * UNIT_SIZE)
            return offset, size

        return search_by_time(
            file_offset=file_offset,
            floor=min(max(0, first - file_offset), ceiling),
            ceiling=ceiling,
            timestamp_ms=timestamp_ms,
            boundary=boundary,
            min_physical=self._log.min_offset,
            unit_at=unit_at,
            store_time=lambda offset, size: self._store_time(offset, size, dispatched),
        )

    def _time_at(self, queue_offset: int, dispatched: int) -> int:
        unit = self.unit(queue_offset)
        if unit is None:
            return -1
        return self._store_time(unit.physical_offset, unit.size, dispatched)

    def _store_time(self, offset: int, size: int, dispatched: int) -> int:
        """Return the store time of a unit's record, −1 if it is not (or no longer) readable."""
        if offset < self._log.min_offset or offset + size > dispatched:
            return -1
        physical, end = PhysicalOffset(offset), PhysicalOffset(dispatched)
        time = self._log.store_timestamp(physical, size, end)
        return -1 if time is None else time


class ConsumeQueues:
    """Readers of many queues; at most half of ``queue_files_mapped_max`` are kept.

    A reader caches its files. Call ``forget`` when reput has restarted (its pid or generation
    changed) or a topic was deleted, because files may then have been replaced.
    """

    def __init__(self, store: StoreDir, log: LogTimes) -> None:
        self._store = store
        self._log = log
        self._readers: OrderedDict[tuple[str, int], ConsumeQueueReader] = OrderedDict()
        self._kept_max = max(1, store.config.queue_files_mapped_max // MAPPED_PER_QUEUE)

    def get(self, topic: str, queue: int) -> ConsumeQueueReader:
        """Return the queue's reader; valid until the next call that creates one."""
        key = (topic, queue)
        reader = self._readers.get(key)
        if reader is None:
            reader = ConsumeQueueReader(self._store, topic, queue, self._log)
            self._readers[key] = reader
            while len(self._readers) > self._kept_max:
                self._readers.popitem(last=False)[1].close()
        else:
            self._readers.move_to_end(key)
        return reader

    @contextlib.contextmanager
    def glance(self, topic: str, queue: int) -> Iterator[ConsumeQueueReader]:
        """Return the queue's reader for one use; a reader that is not cached is closed again. Code
        that visits every queue would otherwise evict the readers of active queues."""
        kept = self._readers.get((topic, queue))
        if kept is not None:
            yield kept
            return
        with closing(
            ConsumeQueueReader(self._store, topic, queue, self._log, copied_max=COPIED_MAX)
        ) as reader:
            yield reader

    def forget(self) -> None:
        """Close all readers; the next ``get`` lists the files again."""
        while self._readers:
            self._readers.popitem()[1].close()
