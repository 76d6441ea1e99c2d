"""Where two logs diverge: the newest common epoch, and a checksum (docs/replication.md). Pure.

Equal (epoch, start) means equal history: an epoch has one master, which records in its table where
the epoch begins, and a slave copies the entry before the first byte. So two logs are equal up to
the nearer end of their newest common entry. A checksum of the bytes before that point finds what
the tables cannot show: damage, and a log of another group.

Step before: HELLO. Step after: ``truncation`` decides what the slave does.
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
"""Returns the CRC-32 of the ``size`` bytes that end at physical offset ``end``, called with (end,
size); None if they cannot be read because retention removed them."""


class Extent(NamedTuple):
    """One log as its table describes it."""

    table: tuple[EpochStart, ...]
    """Oldest first; an entry ends where the next one begins, the last one at the end of the log."""
    first_offset: int
    end: int


class Common(NamedTuple):
    """Where two logs diverge, according to their tables: their history is equal up to here."""

    entry: EpochStart | None
    """The newest common entry; None: the slave has no records, and its log begins at the point."""
    point: int


def divergence_point(*, master: Extent, slave: Extent) -> Common | ResyncReason:
    """Return the divergence point, from which the master may continue, or why a resync is
    needed."""
    theirs = {entry: index for index, entry in enumerate(master.table)}
    for index in reversed(range(len(slave.table))):
        entry = slave.table[index]
        if entry in theirs:
            point = min(_end_of(slave, index), _end_of(master, theirs[entry]))
            # The master no longer has the bytes below its first offset.
            return Common(entry, point) if point >= master.first_offset else _BELOW
    if slave.end > slave.first_offset:
        return ResyncReason.NO_COMMON_EPOCH
    if not master.first_offset <= slave.first_offset <= master.end:
        return _BELOW
    return Common(None, slave.first_offset)


def crc_size(point: int, *, master_first: int, slave_first: int) -> int:
    """Return how many bytes before the point both logs have, at most CRC_WINDOW."""
    return max(0, min(CRC_WINDOW, point - max(master_first, slave_first)))


def entry_of(table: tuple[EpochStart, ...], offset: int) -> int | None:
    """Return the index of the entry that the byte at offset belongs to; None: it is older than the
    table."""
    index = bisect.bisect_right(table, offset, key=attrgetter("start")) - 1
    return index if index >= 0 else None


def _end_of(extent: Extent, index: int) -> int:
    """Return where the entry's epoch ends in this log, at most at the end of the log."""
    if index + 1 < len(extent.table):
        return min(extent.table[index + 1].start, extent.end)
    return extent.end


_BELOW: Final = ResyncReason.BELOW_FIRST_OFFSET
