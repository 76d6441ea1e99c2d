"""Where dispatch goes on after a restart, and what must be cut or made again first. Pure.

Three marks speak of how far queues and index had come: DISPATCHED (in the page cache),
DISPATCHED_DURABLE (on the disk) and the totals that were counted at the latter. They are judged
here in two steps: ``bounds`` before anything is counted, ``decide`` with what was counted.

1. Same boot and same generation: the page cache still holds every unit that was published, so
   queues keep what ends at or below DISPATCHED and consumers never see them shrink.
2. Otherwise only what was synced counts: everything above DISPATCHED_DURABLE is cut. Unsynced
   pages reach the disk in any order, so an index file that could take entries since then is no
   longer a whole one and is made again.
3. Totals that differ from those published: a file is missing or short. Dispatch starts again at
   the log's min; what is there already is recognised and left alone.
4. Nothing was ever synced: a store that RocketMQ wrote, a new one, or a lost checkpoint. Each
   queue is believed up to its last whole unit, as RocketMQ does, and the log is walked from its
   min; the index is compared with it on the way. If RocketMQ kept tags codes in consumequeue_ext,
   every unit is made again from its record instead: the units hold addresses of that file.

Step before: ``shared.files.positions``. Step after: ``dispatcher`` carries it out.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from tidemark.formats.checkpoint import resume_check

REBUILDING: Final = (1 << 64) - 1
"""RESUME_UNITS while queues are made again: nothing they hold was synced for sure."""


class Marks(NamedTuple):
    """What the checkpoint page says, and where the log lies."""

    log_min: int
    log_end: int
    """End of what may be dispatched."""
    dispatched: int = 0
    dispatched_durable: int = 0
    generation_is_ours: bool = False
    """REPUT_GENERATION equals GENERATION: no recovery in between, so also the same boot."""
    boot_is_ours: bool = False
    """The index was whole in this boot of the machine."""
    units: int = 0
    """RESUME_UNITS."""
    firsts: int = 0
    """RESUME_FIRSTS."""
    index_entries: int = 0
    """RESUME_INDEX_ENTRIES."""
    check: int = 0
    """RESUME_CHECK."""
    removing_firsts: int = 0
    """REMOVING_FIRSTS: leading files may have gone since."""
    removing_entries: int = 0
    """REMOVING_ENTRIES."""
    has_extensions: bool = False
    """RocketMQ had ``enableConsumeQueueExt``: units may hold an address in place of a tags code."""


class Bounds(NamedTuple):
    """Where to count and where to cut, before anything was looked at."""

    durable: int
    """Count units and entries of records that end at or below here, to compare the totals."""
    keep: int
    """What belongs to a record that ends above goes."""
    never_ran: bool
    totals_are_sound: bool
    was_rebuilding: bool


class QueueMode(Enum):
    """How the queues come up to date."""

    CONTINUE = "continue"
    """Whole up to ``start``: later records are appended."""
    ADOPT = "adopt"
    """Each queue is believed up to its last whole unit."""
    REBUILD = "rebuild"
    """The log is the truth: every unit is compared with it and corrected."""


class IndexMode(Enum):
    """How the index comes up to date."""

    CONTINUE = "continue"
    REOPEN = "reopen"
    """Files that were open at DISPATCHED_DURABLE, or filled since, are made again."""
    COMPARE = "compare"
    """Keys of the files' range are looked up; one that is missing means REBUILD."""
    REBUILD = "rebuild"
    """All files are made again."""


class Counted(NamedTuple):
    """What the files hold of records that end at or below ``Bounds.durable``."""

    units: int
    """Sum of the max queue offsets of all queues."""
    firsts: int
    """Sum of the first queue offsets of their first files."""
    index_entries: int
    is_whole: bool
    """No queue file has another size, and no unit that was looked at is damaged."""


class Decision(NamedTuple):
    """How to resume."""

    queue_mode: QueueMode
    index_mode: IndexMode
    start: int
    """The queues are complete below: units are written for records from here on."""
    dispatched: int
    """What may be published at once."""
    reason: str
    """For the log line."""


def bounds(marks: Marks) -> Bounds:
    """Say where to count and what may stay."""
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
    """Say how queues and index come up to date."""
    index = _index_mode(marks, limits, counted)
    # Of this generation: what was published was complete, though nobody had synced it.
    known = max(marks.log_min, limits.keep if marks.generation_is_ours else 0)
    if limits.never_ran and marks.has_extensions:
        reason = "RocketMQ keeps the tags of these queues in consumequeue_ext"
        return Decision(QueueMode.REBUILD, index, marks.log_min, marks.log_min, reason)
    if limits.never_ran:
        reason = "nothing was synced here before"
        return Decision(QueueMode.ADOPT, index, marks.log_min, known, reason)
    if limits.was_rebuilding:
        reason = "the queues were being made again"
        return Decision(QueueMode.REBUILD, index, marks.log_min, known, reason)
    fault = _queue_fault(marks, limits, counted)
    if fault:
        return Decision(QueueMode.REBUILD, index, marks.log_min, marks.log_min, fault)
    start = min(limits.durable, marks.log_end)
    reason = "the queues are whole"
    return Decision(QueueMode.CONTINUE, index, start, max(start, limits.keep), reason)


def _queue_fault(marks: Marks, limits: Bounds, counted: Counted) -> str:
    """Why the queues cannot be continued; empty if they can."""
    if not limits.totals_are_sound:
        return "the totals of the queues were not published whole"
    if limits.durable < marks.log_min:
        return f"the log starts at {marks.log_min}, behind what was dispatched"
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
    """Whether so many entries are those that were synced, but for files that were to go."""
    return marks.index_entries - marks.removing_entries <= index_entries <= marks.index_entries
