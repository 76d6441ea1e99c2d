"""What a slave does about the divergence point: go on, cut, halt (docs/replication.md). Pure.

Nothing below the own confirm checkpoint is ever cut without an operator: a point below it means an
unclean failover, an exchanged volume, or a bug. The table is cut to the common entry even if no
byte is: an entry without bytes would make the slave refuse the right append for ever.

Step before: ``divergence``. Step after: the cut itself, crash-safe, or the stream.
"""

from __future__ import annotations

from typing import NamedTuple

from services.ha.core.divergence import Extent
from services.ha.wire.payloads import ResyncReason
from tidemark.formats.epochs import EpochStart


class InOrder(NamedTuple):
    """Nothing to cut: this log is the beginning of the master's."""

    end: int
    agrees: bool = True
    """False: bytes differ, and the master's are the damaged ones."""


class CutPlan(NamedTuple):
    """Cut log and table, then connect again."""

    point: int
    """A record border in both logs: the end of an epoch, or of whole records. The cutter checks
    it, and moves down to one if it is not."""
    table: tuple[EpochStart, ...]
    """After the cut: up to and including the common entry."""


class Halt(NamedTuple):
    """Confirmed bytes would be cut: an operator decides."""

    point: int
    confirm: int


class ResyncPlan(NamedTuple):
    """Nothing here can be kept: empty the store and copy from the master's first offset."""

    first_offset: int
    reason: str


class LogsDiffer(NamedTuple):
    """The tables agree and confirmed bytes do not: one of the two logs is damaged."""

    start: int
    end: int
    """The bytes that were compared; at least one of them differs."""


Outcome = InOrder | CutPlan | Halt | ResyncPlan | LogsDiffer


def plan(
    own: Extent, *, confirm: int, entry: EpochStart | None, point: int, master_first: int
) -> Outcome:
    """Decide, given the common entry (None: this log is empty) and the point.

    confirm: the own checkpoint. Raises ValueError if entry is not in the own table or point lies
    outside what it can mean: the master answered something that cannot be.
    """
    kept = 0 if entry is None else own.table.index(entry) + 1
    limit = own.table[kept].start if 0 < kept < len(own.table) else own.end
    if point > min(limit, own.end):
        raise ValueError(f"point {point} behind {min(limit, own.end)}, the end of {entry}")
    if point < confirm:
        return Halt(point, confirm)
    if point < own.first_offset:
        return ResyncPlan(master_first, ResyncReason.BELOW_FIRST_OFFSET.name.lower())
    if point < own.end or kept < len(own.table):
        return CutPlan(point, own.table[:kept])
    return InOrder(own.end)
