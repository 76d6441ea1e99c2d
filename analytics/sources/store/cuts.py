"""Splits a log file between tasks, at starts of records.

A unit of a consume queue points to the start of a record. From the nearest unit before the wanted
position, records are followed by their sizes. Without queues this begins at the first byte of the
file: slower, but as safe. A unit is used only if the record there has its own physical offset.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from analytics.sources.store.files import StoreFiles
from shared.files.disk import File
from shared.files.store_dir import QueueDirectory
from tidemark.formats import native
from tidemark.formats.filenames import offset_name
from tidemark.formats.queue_unit import UNIT
from tidemark.formats.record import peek_size
from tidemark.offsets import UNIT_SIZE

QUEUES_ASKED: Final = 16
"""A few queues suffice: records between their units are followed at a gigabyte in a third of a
second."""
WINDOW_SIZE: Final = 2 << 20
RECORD_SIZE_MAX: Final = 128 << 20
"""No broker accepts a larger message, so a larger size field is damage."""


class Cuts:
    """Finds starts of records in the files of one store."""

    def __init__(self, files: StoreFiles) -> None:
        self._files = files
        self._queues: list[tuple[QueueDirectory, list[int]]] | None = None

    def at_or_after(self, wanted: int, limit: int, known: int = -1) -> int | None:
        """Return the first start of a record at or after wanted, in wanted's file.

        limit: no byte from there on is read. known: a start of a record before wanted. If the
        file's records end before wanted, returns their end. None: bytes before wanted are damaged,
        or the file is gone.
        """
        file_start = wanted - wanted % self._files.file_size
        if wanted == file_start:
            return wanted
        try:
            file = self._files.disk.open(self._files.log_path(file_start), writable=False)
        except FileNotFoundError:
            return None
        try:
            for start in self._starts_before(wanted, max(file_start, known)):
                if start in (file_start, known) or _is_record(file, start, file_start):
                    return _walked(file, start, wanted, file_start, limit)
        finally:
            file.close()
        return None

    def _starts_before(self, wanted: int, sure: int) -> Iterator[int]:
        """Possible starts of records, the nearest first; the last one is certain."""
        found = {self._unit_before(*queue, wanted) for queue in self._asked()}
        yield from sorted((start for start in found if start > sure), reverse=True)
        yield sure

    def _asked(self) -> list[tuple[QueueDirectory, list[int]]]:
        """Some queues and the starts of their files, longest first: those have most units."""
        if self._queues is None:
            queues = [
                self._files.queue_files(topic, queue)
                for topic, queue in self._files.directory.queues()[: 64 * QUEUES_ASKED]
            ]
            queues.sort(key=lambda queue: len(queue[1]), reverse=True)
            self._queues = [queue for queue in queues if queue[1]][:QUEUES_ASKED]
        return self._queues

    def _unit_before(self, directory: QueueDirectory, starts: list[int], wanted: int) -> int:
        """Physical offset of the last unit at or before wanted; −1 if there is none."""
        best = -1
        low, high = 0, len(starts)
        while low < high:  # the last file whose first unit is not after wanted
            middle = (low + high) // 2
            first = self._search(directory, starts[middle], wanted, only_first=True)
            if first < 0:
                high = middle
            else:
                best, low = first, middle + 1
        return self._search(directory, starts[low - 1], wanted, only_first=False) if low else best

    def _search(
        self, directory: QueueDirectory, start: int, wanted: int, *, only_first: bool
    ) -> int:
        unit_size = directory.unit_size
        try:
            file = self._files.disk.open(directory.path / offset_name(start), writable=False)
        except FileNotFoundError:
            return -1
        try:
            best, low, high = -1, 0, 1 if only_first else file.size // unit_size
            while low < high:
                middle = (low + high) // 2
                raw = file.pread(UNIT_SIZE, middle * unit_size)
                offset, size, _ = UNIT.unpack(raw) if len(raw) == UNIT_SIZE else (0, 0, 0)
                if size <= 0 or offset > wanted:  # not written yet, or after wanted
                    high = middle
                else:
                    best, low = offset, middle + 1
            return best
        finally:
            file.close()


def _is_record(file: File, start: int, file_start: int) -> bool:
    head = file.pread(4096, start - file_start)
    size = peek_size(head, 0)
    if not 0 < size <= RECORD_SIZE_MAX:
        return False
    raw = head if size <= len(head) else file.pread(size, start - file_start)
    return native.outline_records(raw, at=start, until=1, records_max=1).seen == 1


def _walked(file: File, start: int, wanted: int, file_start: int, limit: int) -> int | None:
    """Follow the records until wanted is reached or they end."""
    at, size = start, WINDOW_SIZE
    room = min(limit, file_start + file.size)
    while at < wanted:
        raw = file.pread(min(size, room - at), at - file_start) if at < room else b""
        if not raw:
            return at
        found = native.outline_records(
            raw, at=at, until=wanted - at, records_max=len(raw), topics=frozenset()
        )
        at += found.end
        size = WINDOW_SIZE
        match found.stop.name:
            case "BLANK":
                return at
            case "BAD":
                return None
        if found.end == 0:
            size = peek_size(raw, 0)
            if not len(raw) < size <= min(RECORD_SIZE_MAX, room - at):
                return None
    return at
