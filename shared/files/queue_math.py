"""Arithmetic of consume queues: positions and searches (docs/formats.md, section 4). Pure.

All functions work on a view of one file's units and on numbers; reader, writer and recovery use
them. Units are numbered in the order of the files: in an ordinary queue the number of a unit is its
queue offset, in a batch queue (``unit_size`` is BATCH_UNIT_SIZE) it is not. A unit *counts* if it
was written and its record ends at or below an end. Record ends increase along a queue, so the
number of units that count is found by a search. Pre-blank units always count: they hold the numbers
before a queue's first message.

``queue_files`` provides the views, ``consume_queue`` uses the results.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from tidemark.formats.queue_unit import PRE_BLANK_SIZE, UNIT
from tidemark.offsets import UNIT_SIZE, PhysicalOffset, QueueOffset

EVERYTHING: Final = PhysicalOffset(2**63 - 1)
"""An end beyond all records: all units that were ever written count."""


class Boundary(Enum):
    """Selects the queue offset for a time between two messages, or equal to several."""

    LOWER = "lower"
    """The first message at or after the time."""
    UPPER = "upper"
    """The last message at or before the time."""


class Place(NamedTuple):
    """Location of a unit: the file's start and the position in the file, both in bytes."""

    file_start: int
    position: int


def place(number: int, file_size: int, unit_size: int = UNIT_SIZE) -> Place:
    """Return the location of the unit with this number (section 4.1)."""
    logic_offset = number * unit_size
    position = logic_offset % file_size
    return Place(logic_offset - position, position)


def roll_next(queue_offset: int, file_size: int) -> QueueOffset:
    """Return the first queue offset of the file after the one with queue_offset (section 4.9)."""
    units = file_size // UNIT_SIZE
    return QueueOffset(queue_offset + units - queue_offset % units)


def is_filler(physical_offset: int, size: int) -> bool:
    """Whether a unit's first two fields are those of a pre-blank unit (section 4.4)."""
    return size == PRE_BLANK_SIZE and physical_offset == 0


def count_visible(
    view: memoryview, count: int, end: int, low: int = 0, unit_size: int = UNIT_SIZE
) -> int:
    """Return how many of view's first count units count below end.

    Units before low are known to count. The search doubles its steps from low, then halves: an
    unchanged queue costs one comparison.
    """
    high, step = count, 1
    while low < high:
        middle = low + step - 1 if low + step - 1 < high else (low + high) // 2
        offset, size, _ = UNIT.unpack_from(view, middle * unit_size)
        if size > 0 and offset >= 0 and (offset + size <= end or is_filler(offset, size)):
            low, step = middle + 1, step * 2 if high == count else high
        else:
            high, step = middle, count
    return low


def first_kept(
    view: memoryview, count: int, min_physical: int, low: int = 0, unit_size: int = UNIT_SIZE
) -> int:
    """Return the first unit at or after low whose record starts at or above min_physical.

    The result is count if there is none. This is the search of section 4.8 with one difference:
    while min_physical is 0, all pre-blank units are "equal" to it, and RocketMQ stops at the first
    one that the search meets. This function skips them.
    """
    high = count
    while low < high:
        middle = (low + high) // 2
        offset, size, _ = UNIT.unpack_from(view, middle * unit_size)
        if offset >= min_physical and not is_filler(offset, size):
            high = middle
        else:
            low = middle + 1
    return low


def recovered_units(view: memoryview, count: int, unit_size: int = UNIT_SIZE) -> int:
    """Return the number of view's leading units that were ever written, as for recovery (4.6)."""
    return count_visible(view, count, EVERYTHING, unit_size=unit_size)


def search_by_time(
    *,
    file_offset: int,
    floor: int,
    ceiling: int,
    timestamp_ms: int,
    boundary: Boundary,
    min_physical: int,
    unit_at: Callable[[int], tuple[int, int]],
    store_time: Callable[[int, int], int],
) -> int:
    """Return the number of the unit for a time inside one file, by the table of section 4.10.

    file_offset: number of the file's first unit. floor, ceiling: indexes in the file of the
    first and last unit to search. unit_at: index → (physical offset, size). store_time:
    (physical offset, size) → ms, −1 if the record cannot be read.
    """
    if store_time(*unit_at(ceiling)) < timestamp_ms:
        return file_offset + ceiling + (1 if boundary is Boundary.LOWER else 0)
    if store_time(*unit_at(floor)) > timestamp_ms:
        return file_offset if boundary is Boundary.LOWER else 0
    low, high = floor, ceiling
    earlier = later = -1
    while low <= high:
        middle = (low + high) // 2
        offset, size = unit_at(middle)
        if offset < min_physical:
            low, earlier = middle + 1, middle
            continue
        time = store_time(offset, size)
        if time < 0:
            return 0  # unreadable between readable records: do not guess
        if time == timestamp_ms:
            # The edge of the run of equal times is found by a search too: it may have thousands.
            inside = middle
            outside = low - 1 if boundary is Boundary.LOWER else high + 1
            while abs(outside - inside) > 1:
                middle = (outside + inside) // 2
                offset, size = unit_at(middle)
                if offset >= min_physical and store_time(offset, size) == timestamp_ms:
                    inside = middle
                else:
                    outside = middle
            return file_offset + inside
        if time > timestamp_ms:
            high, later = middle - 1, middle
        else:
            low, earlier = middle + 1, middle
    return file_offset + (later if boundary is Boundary.LOWER else earlier)
