"""Where does trustworthy data end, and why (docs/formats.md, section 8). Pure.

Two decisions of recovery and nothing else: from which byte the log is walked, and what the first
byte that is no record means. A bad byte below a *durable mark* — anything that says "up to here it
was on disk" — is corruption: somebody was told so, nothing may be cut. Above all marks it is a torn
tail, whatever lies behind it: unsynced pages reach the disk in any order.

Step before: ``recovery`` collected the facts. Step after: it carries out what is said here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from tidemark.offsets import PhysicalOffset


class Marks(NamedTuple):
    """Ends up to which the log was on disk, as different witnesses know it; 0 = says nothing."""

    flushed: int = 0
    """The published flushed offset."""
    written_same_boot: int = 0
    """The published written offset, if the page cache it speaks of is still there."""
    queue_end: int = 0
    """The farthest record end that a believable queue unit points to (``unit_witness``): units are
    made of flushed records."""
    state_flushed: int = 0
    """The largest flushed offset that a state record behind the bad byte carries."""
    confirm: int = 0
    """The confirm offset of replication."""

    @property
    def durable(self) -> int:
        """The farthest of those that speak of the disk, not of the page cache."""
        return max(self.flushed, self.queue_end, self.state_flushed, self.confirm)

    def farthest(self) -> tuple[str, int]:
        """The name and value of the farthest witness."""
        name = max(self._fields, key=lambda field: getattr(self, field))
        return name, getattr(self, name)


MARK_TEXTS = {
    "flushed": "the published flushed offset",
    "written_same_boot": "the offset written in this boot of the machine",
    "queue_end": "the end of a record that a consume queue points to",
    "state_flushed": "the flushed offset that a later state record carries",
    "confirm": "the confirm offset",
}


class Verdict(Enum):
    """What the first byte that is no record means."""

    CLEAN = "clean"
    """The log ends here, with nothing behind it."""
    TORN_TAIL = "torn-tail"
    """What follows was never promised to anybody: copy it aside and cut it."""
    CORRUPTION = "corruption"
    """It was promised. Cut nothing, write nothing, say where."""


class Decision(NamedTuple):
    """A verdict and its reason."""

    verdict: Verdict
    reason: str
    """For people; names the witness if it is corruption."""


def decide(bad_at: int, marks: Marks, *, bytes_behind: bool, was_clean: bool = False) -> Decision:
    """Say what it means that the record chain ends at bad_at.

    bytes_behind: whether anything but zeros lies at or behind bad_at, in this or later files.
    was_clean: we closed the store in order, and nobody else has written since: then nothing was
    left half written, whatever an old or lost checkpoint says.
    """
    name, mark = marks.farthest()
    if bad_at < mark:
        return Decision(
            Verdict.CORRUPTION, f"{MARK_TEXTS[name]} is {mark}, so these bytes were on disk"
        )
    if bytes_behind and was_clean:
        return Decision(
            Verdict.CORRUPTION, "the store was closed in order, so the bytes behind were on disk"
        )
    if bytes_behind:
        return Decision(Verdict.TORN_TAIL, "no mark says that these bytes were on disk")
    return Decision(Verdict.CLEAN, "")


class FirstRecord(NamedTuple):
    """The record at the start of a commit log file."""

    physical_offset: int
    store_timestamp_ms: int


class Origin(Enum):
    """Who wrote last, and how it ended: decides from where the log is walked."""

    OURS = "ours"
    FOREIGN_CLEAN = "foreign-clean"
    """RocketMQ, stopped in order (section 8.2)."""
    FOREIGN_UNCLEAN = "foreign-unclean"
    """RocketMQ, killed (section 8.3)."""


class Evidence(NamedTuple):
    """What the choice of the start depends on."""

    origin: Origin
    log_min: int
    """Start of the oldest file."""
    flushed: int
    """The published flushed offset; 0 if it was never published."""
    dispatched_durable: int | None
    """End of what queues and index cover on disk; None if unknown, or if they do not cover it."""
    queues_end: int
    """Foreign: the farthest record end of all queues, −1 without (D of section 8.2)."""
    min_timestamp_ms: int
    """Foreign: the checkpoint's minTimestamp (section 6)."""


def start_of_walk(
    evidence: Evidence,
    file_starts: Sequence[int],
    first_record: Callable[[int], FirstRecord | None],
) -> PhysicalOffset:
    """The byte from which every record must be looked at; always a record's start.

    file_starts: of all commit log files, ascending, at least one. first_record: file start → its
    first record if that is valid, else None.
    """
    if evidence.origin is Origin.OURS:
        # With visible_after="written" queues may cover more than is on disk of the log itself: a
        # power cut then leaves no record at dispatched_durable, but one ends at flushed.
        durable = min(evidence.dispatched_durable or 0, evidence.flushed)
        return PhysicalOffset(max(durable, evidence.log_min))
    for start in reversed(file_starts):
        first = first_record(start)
        if first is not None and _is_suitable(first, evidence):
            return PhysicalOffset(start)
    return PhysicalOffset(file_starts[0])


def _is_suitable(first: FirstRecord, evidence: Evidence) -> bool:
    """Whether everything before this record needs no second look (8.2, 8.3)."""
    if first.store_timestamp_ms == 0:
        return False
    if evidence.origin is Origin.FOREIGN_CLEAN:
        return first.physical_offset <= evidence.queues_end
    return first.store_timestamp_ms <= evidence.min_timestamp_ms
