"""Decides where valid data ends, and why (docs/formats.md, section 8). Pure.

It makes two decisions of recovery: the byte from which the log is read, and the meaning of the
first byte that is not a record. A bad byte below a *durable mark*, which is any evidence that the
log was on disk up to there, is corruption: a sender may rely on it, so nothing may be cut. Above
all marks it is a torn tail, whatever lies after it: unsynced pages reach the disk in any order.

Step before: ``recovery`` collected the facts. Step after: it acts on the decision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from tidemark.offsets import PhysicalOffset


class Marks(NamedTuple):
    """Ends up to which the log was on disk according to different sources; 0 = unknown."""

    flushed: int = 0
    """The published flushed offset."""
    written_same_boot: int = 0
    """The published written offset, if the page cache has not been lost since."""
    queue_end: int = 0
    """The farthest record end that a trusted queue unit points to (``unit_witness``): units are
    created for flushed records."""
    state_flushed: int = 0
    """The largest flushed offset in a state record after the bad byte."""
    confirm: int = 0
    """The confirm offset of replication."""

    @property
    def durable(self) -> int:
        """The largest end that was on disk, not only in the page cache."""
        return max(self.flushed, self.queue_end, self.state_flushed, self.confirm)

    def farthest(self) -> tuple[str, int]:
        """Return the name and value of the farthest mark."""
        name = max(self._fields, key=lambda field: getattr(self, field))
        return name, getattr(self, name)


MARK_TEXTS = {
    "flushed": "the published flushed offset",
    "written_same_boot": "the offset written in this boot of the machine",
    "queue_end": "the end of a record that a consume queue points to",
    "state_flushed": "the flushed offset that a later state record carries",
    "confirm": "the confirm offset",
}


class AfterEnd(Enum):
    """Contents at and after the end of the record chain."""

    NOTHING = "nothing"
    """Zeros, or no file."""
    BYTES = "bytes"
    """Non-zero bytes that are not a record."""
    LATER_RECORDS = "later-records"
    """The file is missing, and a later one begins with a record."""


class Witness(Enum):
    """Evidence that the bytes after the end were on disk."""

    MARK = "mark"
    """A durable mark lies after the end."""
    CLEAN_STOP = "clean-stop"
    """The store was closed in order, and only we wrote: nothing was partially written."""
    ROCKETMQ = "rocketmq"
    """There is no mark. RocketMQ wrote last, and its marks do not cover missing files."""
    NONE = "none"


class Verdict(Enum):
    """Meaning of the first byte that is not a record."""

    CLEAN = "clean"
    """The log ends here, with nothing after it."""
    TORN_TAIL = "torn-tail"
    """The following bytes were never acknowledged: copy them aside and cut them."""
    CORRUPTION = "corruption"
    """They may have been acknowledged. Cut nothing, write nothing, report the place."""


class Decision(NamedTuple):
    """A verdict and its reason."""

    verdict: Verdict
    reason: str
    """Text for people; names the evidence in case of corruption."""
    joint: str = "; "

    def sentence(self, found: str) -> str:
        """Return a sentence of what was found instead of a record, and the reason."""
        return f"{found}{self.joint}{self.reason}"


def verdict(after_end: AfterEnd, witness: Witness) -> Verdict:
    """Return the verdict; the match covers every combination."""
    match after_end, witness:
        case _, Witness.MARK:
            return Verdict.CORRUPTION
        case AfterEnd.NOTHING, Witness.CLEAN_STOP | Witness.ROCKETMQ | Witness.NONE:
            return Verdict.CLEAN
        case AfterEnd.BYTES | AfterEnd.LATER_RECORDS, Witness.CLEAN_STOP:
            return Verdict.CORRUPTION
        case AfterEnd.LATER_RECORDS, Witness.ROCKETMQ:
            # A crash does not remove a file while a later one, created after it, holds records.
            return Verdict.CORRUPTION
        case AfterEnd.BYTES, Witness.ROCKETMQ:
            return Verdict.TORN_TAIL
        case AfterEnd.BYTES | AfterEnd.LATER_RECORDS, Witness.NONE:
            return Verdict.TORN_TAIL
    raise AssertionError(f"{after_end} and {witness} are not in the table")


def decide(bad_at: int, marks: Marks, after_end: AfterEnd, unmarked: Witness) -> Decision:
    """Decide what it means that the record chain ends at bad_at.
    unmarked: the evidence if no mark lies after bad_at; it may be better than an old or a lost
    checkpoint."""
    name, mark = marks.farthest()
    witness = Witness.MARK if bad_at < mark else unmarked
    found = verdict(after_end, witness)
    if found is Verdict.CLEAN:
        return Decision(found, "")
    if found is Verdict.TORN_TAIL:
        return Decision(found, "no mark says that these bytes were on disk")
    if witness is Witness.MARK:
        return Decision(found, f"{MARK_TEXTS[name]} is {mark}, so these bytes were on disk")
    if witness is Witness.CLEAN_STOP:
        return Decision(found, "the store was closed in order, so the bytes after it were on disk")
    return Decision(found, "later files hold records", joint=", and ")


class FirstRecord(NamedTuple):
    """The record at the start of a commit log file."""

    physical_offset: int
    store_timestamp_ms: int


class Origin(Enum):
    """The last writer and how it ended; determines from where the log is read."""

    OURS = "ours"
    FOREIGN_CLEAN = "foreign-clean"
    """RocketMQ, stopped in order (section 8.2)."""
    FOREIGN_UNCLEAN = "foreign-unclean"
    """RocketMQ, killed (section 8.3)."""


class Evidence(NamedTuple):
    """The facts that determine the start of the walk."""

    origin: Origin
    log_min: int
    """Start of the oldest file."""
    flushed: int
    """The published flushed offset; 0 if it was never published."""
    dispatched_durable: int | None
    """End of what queues and index cover on disk; None if unknown or if they are incomplete."""
    queues_end: int
    """RocketMQ's store: farthest record end of all queues, −1 without (D of section 8.2)."""
    min_timestamp_ms: int
    """RocketMQ's store: the checkpoint's minTimestamp (section 6)."""


def start_of_walk(
    evidence: Evidence,
    file_starts: Sequence[int],
    first_record: Callable[[int], FirstRecord | None],
) -> PhysicalOffset:
    """Return the byte from which every record must be read; always a record's start.
    file_starts: starts of all commit log files, ascending, at least one. first_record: file start →
    its first record if that is valid, else None."""
    if evidence.origin is Origin.OURS:
        # With visible_after="written" queues may cover more than is on disk of the log: after a
        # power cut no record may end at dispatched_durable, but one ends at flushed.
        durable = min(evidence.dispatched_durable or 0, evidence.flushed)
        return PhysicalOffset(max(durable, evidence.log_min))
    for start in reversed(file_starts):
        first = first_record(start)
        if first is not None and _is_suitable(first, evidence):
            return PhysicalOffset(start)
    return PhysicalOffset(file_starts[0])


def _is_suitable(first: FirstRecord, evidence: Evidence) -> bool:
    """Whether records before this one need not be read (8.2, 8.3)."""
    if first.store_timestamp_ms == 0:
        return False
    if evidence.origin is Origin.FOREIGN_CLEAN:
        return first.physical_offset <= evidence.queues_end
    return first.store_timestamp_ms <= evidence.min_timestamp_ms
