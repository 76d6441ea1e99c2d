"""Consume queue reader: finds units by queue offset or time (docs/formats.md, section 4).

It reads one queue's files as an array of units, and computes positions in it. In a batch queue a
unit points to an inner batch and stands for all its messages. It checks no record and writes
nothing (reput is the writer). Invariants:

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
from pathlib import Path
from typing import Protocol

from shared.files.queue_files import COPIED_MAX, MAPPED_PER_QUEUE, QueueFiles
from shared.files.queue_math import (
    EVERYTHING,
    Boundary,
    Place,
    is_filler,
    place,
    roll_next,
    search_by_time,
)
from shared.files.store_dir import QueueDirectory, StoreDir
from tidemark.formats.filenames import offset_name
from tidemark.formats.queue_unit import UNIT, Unit, batch_range
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
        self._store = store
        self._log = log
        self._copied_max = copied_max
        self._files = self._open(store.queue_directory(topic, queue))
        self._min = QueueOffset(0)
        self._min_number = 0
        self._min_for = -1
        self._max = QueueOffset(0)
        self._max_number = 0
        """Number of the unit after the last that counts; in a batch queue it is not ``_max``."""
        self._max_for = -1
        self.has_shrunk = False
        """Units that existed before are missing, although ``dispatched`` has not gone back."""

    @property
    def directory_is_empty(self) -> bool:
        """Whether the queue has no file yet."""
        return not self._files.starts

    @property
    def unit_size(self) -> int:
        """BATCH_UNIT_SIZE for a batch queue, otherwise UNIT_SIZE."""
        return self._files.unit_size

    def close(self) -> None:
        """Unmap the files."""
        self._files.close()

    def roll_next(self, queue_offset: int) -> QueueOffset:
        """First queue offset of the next file; meaningless for a batch queue."""
        return roll_next(queue_offset, self._files.file_size)

    def _open(self, directory: QueueDirectory) -> QueueFiles:
        return QueueFiles(self._store.disk, directory, copied_max=self._copied_max)

    def _choose_kind(self) -> None:
        """Find out again whether it is a batch queue, as long as there are no files."""
        if not self._files.starts:
            directory = self._store.queue_directory(self.topic, self.queue)
            if directory.unit_size != self.unit_size:
                self._files = self._open(directory)

    # -- how far ------------------------------------------------------------------------------

    def max_offset(self, dispatched: int = EVERYTHING) -> QueueOffset:
        """Return the queue offset after the last unit whose record ends at or below dispatched."""
        if dispatched == self._max_for and dispatched != EVERYTHING:
            return self._max
        # A smaller value means that the log was cut; earlier results are then invalid.
        known = self._max_number if dispatched >= self._max_for >= 0 else 0
        self._choose_kind()
        self._max_number = self._files.count(dispatched, known)
        self._max = self._files.next_offset(self._max_number)
        self._max_for = dispatched
        self.has_shrunk = self.has_shrunk or self._max_number < known
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
        self._choose_kind()
        files = self._files
        files.refresh()  # retention deletes a queue's files after it deleted the log's
        if not files.starts:
            return self._min
        end = files.count(EVERYTHING)
        last = files.unit(end - 1)
        if last is None:
            return self._min
        if is_filler(last.physical_offset, last.size) or last.physical_offset < min_physical:
            self._min, self._min_number, self._min_for = files.next_offset(end), end, min_physical
            return self._min
        found = files.first_at(min_physical, self._min_number)
        first = None if found is None else files.sound_offset(found)
        if found is not None and first is not None:
            self._min, self._min_number, self._min_for = first, found, min_physical
        return self._min

    def last_record_end(self, dispatched: int = EVERYTHING) -> PhysicalOffset | None:
        """Return the physical end of the last record in the queue; None if there is none."""
        last = self._files.unit(self._max_number - 1) if self.max_offset(dispatched) else None
        if last is None or is_filler(last.physical_offset, last.size):
            return None
        return PhysicalOffset(last.end)

    # -- units --------------------------------------------------------------------------------

    def view(self, queue_offset: int, count: int, dispatched: int) -> memoryview | None:
        """Return the bytes of up to count visible units of one file, from queue_offset on.

        In a batch queue the first is the unit of the batch that has the message. None if the file
        is missing or ends before queue_offset (the next file may exist: ``roll_next``); empty at or
        after max_offset. The view is borrowed and valid until this reader is used for another file.
        """
        if queue_offset >= self.max_offset(dispatched) or queue_offset < 0:
            return memoryview(b"")
        unit_size = self.unit_size
        number = self._files.number_of(queue_offset, self._max_number)
        start, position = place(number, self._files.file_size, unit_size)
        end = position + min(count, self._max_number - number) * unit_size
        view = self._files.region(start, need=end)
        if view is None or position + unit_size > len(view):
            return None
        return view[position : min(end, len(view))]

    def begins_after(self, queue_offset: int, view: memoryview) -> bool:
        """Return whether the first unit of a ``view`` does not reach down to the message. Then the
        unit before it has expired with its file, or a unit of the batch queue is damaged."""
        return self.unit_size != UNIT_SIZE and bool(view) and batch_range(view)[0] > queue_offset

    def units(self, queue_offset: int, count: int, dispatched: int) -> list[Unit]:
        """Return up to count visible units from queue_offset on, all of one file."""
        view = self.view(queue_offset, count, dispatched)
        if view is None:
            return []
        whole = range(0, len(view) // self.unit_size * self.unit_size, self.unit_size)
        return [Unit._make(UNIT.unpack_from(view, at)) for at in whole]

    def unit(self, queue_offset: int) -> Unit | None:
        """Return the unit of the message, visible or not; None if its file is missing."""
        found = self.located_unit(queue_offset)
        return None if found is None else found[1]

    def located_unit(self, queue_offset: int) -> tuple[QueueOffset, Unit] | None:
        """Return the unit of the message with the queue offset of the unit's first message.

        The unit may be invisible, or not written: all zero. None if its file is missing, or if a
        batch queue has no such message.
        """
        number = self._number_of(queue_offset)
        unit, first = self._files.unit(number), self._files.offset_of(number)
        return None if unit is None or first is None else (first, unit)

    def stored_unit(self, queue_offset: int) -> bytes | None:
        """Return all bytes of the message's unit; None if there is none in a file."""
        start, position = self._place(queue_offset)
        view = self._files.region(start, need=position + self.unit_size)
        if view is None or position + self.unit_size > len(view):
            return None
        return bytes(view[position : position + self.unit_size])

    def location(self, queue_offset: int) -> tuple[Path, int]:
        """Return the file that has, or would have, the message's unit, and the position in it."""
        start, position = self._place(queue_offset)
        directory = self._store.queue_directory(self.topic, self.queue, self.unit_size)
        return directory.path / offset_name(start), position

    def _place(self, queue_offset: int) -> Place:
        return place(self._number_of(queue_offset), self._files.file_size, self.unit_size)

    def _number_of(self, queue_offset: int) -> int:
        """Return the number of the message's unit; in a batch queue, of the written units."""
        if self.unit_size == UNIT_SIZE:
            return queue_offset
        return self._files.number_of(queue_offset, self._files.count(EVERYTHING, self._max_number))

    # -- times --------------------------------------------------------------------------------

    def offset_by_time(
        self, timestamp_ms: int, boundary: Boundary = Boundary.LOWER, *, dispatched: int
    ) -> QueueOffset:
        """Find the queue offset for a time (section 4.10), within [min_offset, max_offset]."""
        end = self.max_offset(dispatched)
        first = min(self.min_offset(self._log.min_offset), end)
        low, high = min(self._min_number, self._max_number), self._max_number
        number = self._search_files(timestamp_ms, boundary, low, high, dispatched)
        numbers = self._files.range_of(number) if number < high else (end, end)
        if numbers is None:
            return QueueOffset(first)
        found = numbers[0]
        if boundary is Boundary.UPPER and self._time_at(number, dispatched) <= timestamp_ms:
            found = QueueOffset(numbers[1] - 1)  # the messages of a batch have the same store time
        return QueueOffset(min(max(found, first), end))

    def _search_files(
        self, timestamp_ms: int, boundary: Boundary, first: int, end: int, dispatched: int
    ) -> int:
        """Return the number of the unit for a time. first, end: numbers of the units to search."""
        unit_size, file_size = self.unit_size, self._files.file_size
        starts = [start for start in self._files.starts if start < end * unit_size]
        if not starts:
            return 0

        def start_time(start: int) -> int:
            return self._time_at(start // unit_size, dispatched)

        def stop_time(start: int) -> int:
            return self._time_at((start + file_size) // unit_size - 1, dispatched)

        if boundary is Boundary.LOWER:
            # The last file's stop time is unknown; it is chosen if no earlier file matches.
            index = bisect_left(starts[:-1], timestamp_ms, key=stop_time)
        else:
            index = bisect_right(starts, timestamp_ms, key=start_time) - 1
            if index < 0:
                return 0
        start = starts[index]
        view = self._files.region(start, need=end * unit_size - start)
        if view is None:
            return 0
        file_offset = start // unit_size
        ceiling = min(len(view) // unit_size, end - file_offset) - 1
        if ceiling < 0:
            return 0

        def unit_at(index: int) -> tuple[int, int]:
            offset, size, _ = UNIT.unpack_from(view, index * unit_size)
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

    def _time_at(self, number: int, dispatched: int) -> int:
        unit = self._files.unit(number)
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
