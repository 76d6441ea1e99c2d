"""Where two logs part: the newest common epoch, and bytes before it (docs/replication.md). Pure.

Equal (epoch, start) means equal history: an epoch has one master, which says in its table where
its first byte lies, and a slave takes the entry over before the first byte. So two logs are the
same up to the nearer end of their newest common entry. A checksum of the bytes before that point
finds what the tables cannot know: damage, and a foreign log.

Step before: HELLO. Step after: ``truncation`` decides what the slave does about it.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from operator import attrgetter
from typing import Final, NamedTuple

from services.ha.wire.payloads import ResyncReason
from tidemark.formats.epochs import EpochStart

CRC_WINDOW: Final = 64 * 1024
"""Bytes before the point that are compared."""

CrcBefore = Callable[[int, int], int | None]
"""CRC-32 of the ``size`` bytes that end at physical offset ``end``: called with (end, size); None
if they cannot be read (retention removed them)."""


class Extent(NamedTuple):
    """One log as its tables tell it."""

    table: tuple[EpochStart, ...]
    """Oldest first; an entry ends where the next begins, the last one where the log ends."""
    first_offset: int
    end: int


class Common(NamedTuple):
    """Up to where two logs are the same, as far as their tables tell."""

    entry: EpochStart | None
    """The newest common one; None: the slave holds nothing, its log just begins here."""
    point: int


def common_point(*, master: Extent, slave: Extent) -> Common | ResyncReason:
    """The point from which the master may go on; else why the slave must copy everything."""
    theirs = {entry: index for index, entry in enumerate(master.table)}
    for index in reversed(range(len(slave.table))):
        entry = slave.table[index]
        if entry in theirs:
            point = min(_end_of(slave, index), _end_of(master, theirs[entry]))
            # Below the first offset of the master there is nothing left to go on from.
            return Common(entry, point) if point >= master.first_offset else _BELOW
    if slave.end > slave.first_offset:
        return ResyncReason.NO_COMMON_EPOCH
    if not master.first_offset <= slave.first_offset <= master.end:
        return _BELOW
    return Common(None, slave.first_offset)


def crc_size(point: int, *, master_first: int, slave_first: int) -> int:
    """How many bytes before point both logs have, at most CRC_WINDOW."""
    return max(0, min(CRC_WINDOW, point - max(master_first, slave_first)))


def entry_of(table: tuple[EpochStart, ...], offset: int) -> int | None:
    """Index of the entry whose epoch the byte at offset belongs to; None: older than the table."""
    index = bisect.bisect_right(table, offset, key=attrgetter("start")) - 1
    return index if index >= 0 else None


def _end_of(extent: Extent, index: int) -> int:
    """Where that entry's epoch ends in this log; never behind the log's end."""
    if index + 1 < len(extent.table):
        return min(extent.table[index + 1].start, extent.end)
    return extent.end


_BELOW: Final = ResyncReason.BELOW_FIRST_OFFSET
