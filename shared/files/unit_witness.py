"""Evidence of queue units about a log that ends before the records they point to.

A unit is created for a record that is on disk, so a unit that points beyond the log's end means
that the log lost something. But a unit is derived data, and a flipped bit has the same effect. So a
unit counts only if the log agrees: the record that it points to is there and is the correct one, or
it begins exactly at the log's end, as the first lost record did. A unit whose queue offset the log
has at another place is damaged, and is ignored.

Used by ``recovery`` and by the offline tools if a unit points beyond the log's end. That is rare,
so reading every unit after the end is acceptable. ``names_another`` is used at every start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import NamedTuple

from shared.files.log_walk import LogFiles
from shared.files.queue_files import QueueFiles
from tidemark.formats import record
from tidemark.formats.inner_batch import message_count
from tidemark.formats.queue_unit import UNIT, Unit
from tidemark.formats.record import Checks, Kind
from tidemark.offsets import Queue

CHECKS = Checks(record_crc=False)
"""RocketMQ copies the record CRC property like any other, so it is not checked."""


def proven_end(
    files: LogFiles,
    end: int,
    queues: Iterable[tuple[Queue, Callable[[], QueueFiles]]],
    next_offsets: Mapping[Queue, int],
) -> int:
    """Return the farthest record end of trusted units; 0 if no unit points beyond end.
    end: end of the record chain. queues: each with a function that opens its files. next_offsets:
    queue offset after the last record of a queue that was read in the log."""
    farthest, is_proven = 0, False
    for key, opened in queues:
        with closing(opened()) as units:
            for number, unit in _units_after(units, end):
                if number < next_offsets.get(key, 0) or not _is_in_a_file(files, unit):
                    continue
                farthest = max(farthest, unit.end)
                is_proven = is_proven or _is_believable(files, end, key, number, unit)
    return farthest if is_proven else 0


class LastUnit(NamedTuple):
    """The last unit of a queue."""

    key: Queue
    numbers: tuple[int, int]
    """Queue offsets [first, after last) of its messages, as the queue's files show them."""
    unit: Unit


def names_another(files: LogFiles, last_units: Iterable[LastUnit]) -> bool:
    """Return whether one of these units points to a valid record with other messages, as after an
    exchange of two queues' files, or if a batch's unit has wrong numbers.

    A damaged record proves nothing about a unit, so it does not count.
    """
    for key, numbers, unit in sorted(last_units, key=lambda each: each.unit.physical_offset):
        at = unit.physical_offset
        start = files.start_of(at)
        if start not in files.starts or not _is_in_a_file(files, unit):
            continue
        view = files.view(start)
        if record.validate(view, at - start, at=at, checks=Checks()).kind is not Kind.VALID:
            continue
        found = record.decode(view, at - start)
        count = message_count(found.sys_flag, found.properties, found.queue_offset) or 1
        first = found.queue_offset
        if (found.topic, found.queue_id, first, first + count) != (*key, *numbers):
            return True
    return False


def _units_after(units: QueueFiles, end: int) -> Iterable[tuple[int, Unit]]:
    """Yield all units that point to end or after it, with the queue offsets of their messages: of
    the first one for a batch."""
    low, unit_size = units.count(end), units.unit_size
    for start in list(units.starts):
        view = units.region(start, need=units.file_size)
        if view is None:
            continue
        for at in range(max(0, low * unit_size - start), len(view), unit_size):
            unit = Unit._make(UNIT.unpack_from(view, at))
            if unit.physical_offset >= end and unit.size > 0:
                number = units.offset_of((start + at) // unit_size)
                if number is not None:
                    yield number, unit


def _is_in_a_file(files: LogFiles, unit: Unit) -> bool:
    """Whether the record lies within one log file: an existing one, or the one that would come
    next."""
    start = files.start_of(unit.physical_offset)
    return unit.end <= start + files.file_size and start < files.end + files.file_size


def _is_believable(files: LogFiles, end: int, key: Queue, number: int, unit: Unit) -> bool:
    at = unit.physical_offset
    if at in (end, files.start_of(end) + files.file_size):  # the next file follows a filler at end
        return True
    start = files.start_of(at)
    if start not in files.starts:
        return False
    view = files.view(start)
    if record.validate(view, at - start, at=at, checks=CHECKS).kind is not Kind.VALID:
        return False
    found = record.decode(view, at - start)
    return (found.topic, found.queue_id, found.queue_offset) == (*key, number)
