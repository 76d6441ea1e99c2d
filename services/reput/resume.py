"""Decide where dispatch continues after a restart, and what must be cut or rebuilt first. Pure.

Three marks record the progress of queues and index: DISPATCHED (in the page cache),
DISPATCHED_DURABLE (on disk) and the totals counted at the latter. They are evaluated in two steps:
``bounds`` before anything is counted, ``decide`` with the counts.

1. Same boot and same generation: the page cache still has every published unit, so queues keep the
   units of records that end at or below DISPATCHED, and consumers never see a queue shrink.
2. Otherwise only synced data counts: everything above DISPATCHED_DURABLE is cut. Unsynced pages
   reach the disk in any order, so an index file that could receive entries since then is not
   trusted and is rebuilt.
3. The totals differ from the published ones: a file is missing or too short. Dispatch starts again
   at the log's min offset; existing units that are correct are left unchanged.
4. Nothing was ever synced: the store was written by RocketMQ, is new, or lost its checkpoint. Each
   queue is trusted up to its last valid unit, as in RocketMQ, and the log is read from its min
   offset; the index is compared with it on the way. If RocketMQ kept tags codes in
   consumequeue_ext, every unit is rebuilt from its record instead, because the units contain
   addresses of that file.

The step before is ``shared.files.positions``; afterwards ``dispatcher`` carries out the decision.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from tidemark.formats.checkpoint import resume_check

REBUILDING: Final = (1 << 64) - 1
"""RESUME_UNITS while queues are rebuilt: none of their content is known to be synced."""


class Marks(NamedTuple):
    """Values of the checkpoint page, and the bounds of the log."""

    log_min: int
    log_end: int
    """End of what may be dispatched."""
    dispatched: int = 0
    dispatched_durable: int = 0
    generation_is_ours: bool = False
    """REPUT_GENERATION equals GENERATION: no recovery in between, so also the same boot."""
    boot_is_ours: bool = False
    """Whether the index was complete in this boot of the machine."""
    units: int = 0
    """RESUME_UNITS."""
    firsts: int = 0
    """RESUME_FIRSTS."""
    index_entries: int = 0
    """RESUME_INDEX_ENTRIES."""
    check: int = 0
    """RESUME_CHECK."""
    removing_firsts: int = 0
    """REMOVING_FIRSTS: leading files may have been removed since."""
    removing_entries: int = 0
    """REMOVING_ENTRIES."""
    has_extensions: bool = False
    """RocketMQ had ``enableConsumeQueueExt``: units may hold an address instead of a tags code."""


class Bounds(NamedTuple):
    """Offsets up to which units and entries are counted and kept, decided before they are read."""

    durable: int
    """Units and entries of records that end at or below are counted, to compare the totals."""
    keep: int
    """Units and entries of records that end above this offset are removed."""
    never_ran: bool
    totals_are_sound: bool
    was_rebuilding: bool


class QueueMode(Enum):
    """How the queues are brought up to date."""

    CONTINUE = "continue"
    """They are complete up to ``start``; later records are appended."""
    ADOPT = "adopt"
    """Each queue is trusted up to its last valid unit."""
    REBUILD = "rebuild"
    """Every unit is compared with the log and corrected."""


class IndexMode(Enum):
    """How the index is brought up to date."""

    CONTINUE = "continue"
    REOPEN = "reopen"
    """Files that were open at DISPATCHED_DURABLE, or filled since, are rebuilt."""
    COMPARE = "compare"
    """Keys in the range of the files are looked up; a missing one means REBUILD."""
    REBUILD = "rebuild"
    """All files are rebuilt."""


class Counted(NamedTuple):
    """Counts for records that end at or below ``Bounds.durable``."""

    units: int
    """Sum of the numbers after the last units of all queues."""
    firsts: int
    """Sum of the numbers at which their first files start."""
    index_entries: int
    is_whole: bool
    """Whether all queue files have the right size and all checked units are valid."""


class Decision(NamedTuple):
    """How to resume."""

    queue_mode: QueueMode
    index_mode: IndexMode
    start: int
    """The queues are complete below; units are written for records from here on."""
    dispatched: int
    """Value of DISPATCHED that may be published at once."""
    reason: str
    """Reason for the log line."""


def bounds(marks: Marks) -> Bounds:
    """Decide where to count and what may be kept."""
    durable = marks.dispatched_durable
    was_rebuilding = marks.units == REBUILDING
    sound = marks.check == resume_check(durable, marks.units, marks.index_entries)
    never_ran = durable == 0 and not sound and not was_rebuilding
    if marks.generation_is_ours:
        keep = max(durable, marks.dispatched)
    elif never_ran or was_rebuilding:
        keep = marks.log_end
    else:
        keep = durable
    return Bounds(durable, min(keep, marks.log_end), never_ran, sound, was_rebuilding)


def decide(marks: Marks, limits: Bounds, counted: Counted) -> Decision:
    """Decide how queues and index are brought up to date."""
    index = _index_mode(marks, limits, counted)
    # In the same generation, what was published is complete, even if it was not synced.
    known = max(marks.log_min, limits.keep if marks.generation_is_ours else 0)
    if limits.never_ran and marks.has_extensions:
        reason = "RocketMQ keeps the tags of these queues in consumequeue_ext"
        return Decision(QueueMode.REBUILD, index, marks.log_min, marks.log_min, reason)
    if limits.never_ran:
        reason = "nothing was synced here before"
        return Decision(QueueMode.ADOPT, index, marks.log_min, known, reason)
    if limits.was_rebuilding:
        reason = "the queues were being rebuilt"
        return Decision(QueueMode.REBUILD, index, marks.log_min, known, reason)
    fault = _queue_fault(marks, limits, counted)
    if fault:
        return Decision(QueueMode.REBUILD, index, marks.log_min, marks.log_min, fault)
    start = min(limits.durable, marks.log_end)
    reason = "the queues are whole"
    return Decision(QueueMode.CONTINUE, index, start, max(start, limits.keep), reason)


def _queue_fault(marks: Marks, limits: Bounds, counted: Counted) -> str:
    """Return why the queues cannot be continued; empty if they can."""
    if not limits.totals_are_sound:
        return "the totals of the queues were not published whole"
    if limits.durable < marks.log_min:
        return f"the log starts at {marks.log_min}, after the end of what was dispatched"
    if not counted.is_whole:
        return "a queue file has another size, or a unit in it is damaged"
    if counted.units != marks.units:
        return f"the queues hold {counted.units} units where {marks.units} were synced"
    if not marks.firsts <= counted.firsts <= marks.firsts + marks.removing_firsts:
        return f"first queue offsets add up to {counted.firsts}, they were {marks.firsts}"
    return ""


def _index_mode(marks: Marks, limits: Bounds, counted: Counted) -> IndexMode:
    if not limits.totals_are_sound:
        return IndexMode.COMPARE
    if not marks.boot_is_ours:
        return IndexMode.REOPEN
    if not are_all(counted.index_entries, marks):
        return IndexMode.REBUILD
    return IndexMode.CONTINUE


def are_all(index_entries: int, marks: Marks) -> bool:
    """Return whether index_entries is the synced count, apart from files being removed."""
    return marks.index_entries - marks.removing_entries <= index_entries <= marks.index_entries
