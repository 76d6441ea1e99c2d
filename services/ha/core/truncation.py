"""What a slave does at the divergence point: continue, cut, halt, resync or wait. Pure.

Nothing below the slave's own confirm checkpoint is cut without an operator: a point below it means
an unclean failover, an exchanged volume, or a bug. The table is cut to the common entry even if no
byte is: with an entry without bytes the slave would refuse the right append forever. If confirmed
bytes differ although the tables agree, the slave changes nothing and asks again later (alarm
``logs-differ``; docs/replication.md, rejoining).

Step before: ``divergence``. Step after: the cut, which is safe in a crash (``shell/cutting``), or
the stream.
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
    """False: bytes differ, and the damaged ones are the master's."""


class CutPlan(NamedTuple):
    """Cut log and table, then connect again."""

    point: int
    """A record border in both logs: the end of an epoch, or of whole records. The cutter checks it,
    and moves down to a border if it is not one."""
    table: tuple[EpochStart, ...]
    """The table after the cut: up to and including the common entry."""


class HaltPlan(NamedTuple):
    """Confirmed bytes would be cut: an operator decides."""

    point: int
    confirm: int


class ResyncPlan(NamedTuple):
    """Nothing here can be kept: empty the store and copy from the master's first offset."""

    first_offset: int
    reason: str


class LogsDiffer(NamedTuple):
    """The tables agree and confirmed bytes differ: one of the two logs is damaged.

    ``slave_protocol`` compares the bytes; the slave waits.
    """

    start: int
    end: int
    """End of the compared bytes; at least one of them differs."""


Outcome = InOrder | CutPlan | HaltPlan | ResyncPlan | LogsDiffer


def plan(
    own: Extent, *, confirm: int, entry: EpochStart | None, point: int, master_first: int
) -> Outcome:
    """Return the outcome for the common entry (None: this log is empty) and the point.

    confirm: this node's checkpoint. Raises ValueError if entry is not in this node's table or point
    is outside its range: the master's answer is invalid.
    """
    kept = 0 if entry is None else own.table.index(entry) + 1
    limit = own.table[kept].start if 0 < kept < len(own.table) else own.end
    if point > min(limit, own.end):
        raise ValueError(f"point {point} is after {min(limit, own.end)}, the end of {entry}")
    if point < confirm:
        return HaltPlan(point, confirm)
    if point < own.first_offset:
        return ResyncPlan(master_first, ResyncReason.BELOW_FIRST_OFFSET.name.lower())
    if point < own.end or kept < len(own.table):
        return CutPlan(point, own.table[:kept])
    return InOrder(own.end)
