"""What members of a group handled, as recorded in one file, and the rules that it must obey.

Members append entries of 32 bytes to one file, opened with O_APPEND: the kernel puts them one
behind the other, so the file's order is the order of events, over all processes. An entry is a
message handled (or several adjacent ones), a queue taken or given up, or, by the process that
watches the group, the commit of a queue. 32 divides a page: a SIGKILL in the middle of a long write
ends it between two entries.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Final, NamedTuple

ENTRY: Final = struct.Struct("<BxHHHQQQ")
COUNT_MAX: Final = (1 << 16) - 1
READ_SIZE: Final = ENTRY.size << 15
SHOWN_MAX: Final = 5
assert ENTRY.size == 32


class What(IntEnum):
    """Kinds of entries."""

    HANDLED = 1
    ASSIGNED = 2
    REVOKED = 3
    COMMITTED = 4


class Violation(StrEnum):
    """Violations of the rules."""

    MISSING = "not handled"
    TWO_OWNERS = "two owners in a generation"
    NOT_ITS_OWN = "handled while it was another's"
    ORDER = "handled before an earlier one was done"
    NEVER_SENT = "never sent"
    AGAIN = "handled again by a member that had not lost the queue"
    REPLAYED = "handled again though it was committed when the owner before took the queue"


class Entry(NamedTuple):
    """One thing that a member did."""

    what: What
    queue: int
    member: int
    messages: int
    """Handled ones: those at queue_offset … queue_offset + messages − 1."""
    generation: int
    """Generation that the member knew then."""
    queue_offset: int
    """Of a commit: the next message to handle."""
    at_ns: int
    """The machine's monotonic clock; for people, no rule uses it."""

    def packed(self) -> bytes:
        """The entry's 32 bytes."""
        return ENTRY.pack(*self)


def read(path: Path) -> Iterator[Entry]:
    """All entries of a file, in the order in which they were written."""
    with path.open("rb") as file:
        while chunk := file.read(READ_SIZE):
            whole = chunk[: len(chunk) // ENTRY.size * ENTRY.size]
            for what, *rest in ENTRY.iter_unpack(whole):
                yield Entry(What(what), *rest)


@dataclass(slots=True)
class Verdict:
    """The result of the check."""

    handled: int = 0
    distinct: int = 0
    missing: int = 0
    moves: int = 0
    """Times a queue was taken."""
    generations: int = 0
    wrong: list[str] = field(default_factory=list)
    """Violations, the first few of each kind in words."""
    violations: Counter[Violation] = field(default_factory=Counter)

    @property
    def duplicates(self) -> int:
        """Number of times that a message was handled again."""
        return self.handled - self.distinct

    @property
    def duplicate_share(self) -> float:
        """Duplicates per distinct message."""
        return self.duplicates / self.distinct if self.distinct else 0.0

    def violated(self, kind: Violation, what: str) -> None:
        """Note a violation."""
        self.violations[kind] += 1
        if self.violations[kind] <= SHOWN_MAX:
            self.wrong.append(what)


def judge(entries: Iterable[Entry], ends: Mapping[int, int], *, ordered: bool) -> Verdict:
    """Compare handled messages with existing ones.

    ends: queue → its max offset; every message below it must be handled at least once. ordered:
    also, in each queue no message before all earlier ones are done; a repeated one is allowed,
    because a member may die between handling and committing.
    """
    verdict = Verdict()
    queues = {queue: _Queue(queue, end) for queue, end in ends.items()}
    generations: set[int] = set()
    for entry in entries:
        queue = queues.get(entry.queue)
        if queue is None:
            verdict.violated(Violation.NEVER_SENT, f"{entry} is of a queue that is not there")
            continue
        if entry.what is What.COMMITTED:
            queue.committed = max(queue.committed, entry.queue_offset)
            continue
        generations.add(entry.generation)
        match entry.what:
            case What.ASSIGNED:
                verdict.moves += 1
                queue.take(entry.member)
            case What.REVOKED:
                if queue.reader == entry.member:
                    queue.reader = None
            case What.HANDLED:
                queue.handle(entry, verdict, ordered=ordered)
    verdict.generations = len(generations)
    for queue in queues.values():
        verdict.distinct += queue.end - queue.seen.count(0)
        missing = queue.seen.count(0)
        if missing:
            verdict.missing += missing
            first = queue.seen.index(0)
            verdict.violated(
                Violation.MISSING, f"queue {queue.number}: {missing} not handled, from {first} on"
            )
    return verdict


class _Queue:
    """One queue as the entries pass."""

    def __init__(self, number: int, end: int) -> None:
        self.number = number
        self.end = end
        self.seen = bytearray(end)
        """One byte per message: 1 once it is handled."""
        self.since_taken = bytearray(end)
        """The same since a member last took the queue."""
        self.reader: int | None = None
        """Member that took it last and has not given it up."""
        self.owners: dict[int, int] = {}
        """Generation → the member that handled messages in it."""
        self.done = 0
        """Everything below is handled."""
        self.committed = 0
        self.committed_when_taken = 0
        self.committed_before = 0
        """What was committed when the owner before the present one took the queue. The present one
        may have read an older commit than that of its own take, but none older than this."""

    def take(self, member: int) -> None:
        """A member took the queue."""
        self.reader = member
        self.since_taken = bytearray(self.end)
        self.committed_before = self.committed_when_taken
        self.committed_when_taken = self.committed

    def handle(self, entry: Entry, verdict: Verdict, *, ordered: bool) -> None:
        """Messages were handled."""
        first, behind = entry.queue_offset, entry.queue_offset + entry.messages
        if behind > self.end:
            verdict.violated(
                Violation.NEVER_SENT, f"queue {self.number}: {entry} is behind the end {self.end}"
            )
            return
        owner = self.owners.setdefault(entry.generation, entry.member)
        if owner != entry.member:
            verdict.violated(
                Violation.TWO_OWNERS,
                f"queue {self.number}: members {owner} and {entry.member} both handled messages in "
                f"generation {entry.generation:#x}",
            )
        if self.reader != entry.member:
            verdict.violated(
                Violation.NOT_ITS_OWN,
                f"queue {self.number}: member {entry.member} handled {first} while it was "
                f"{'no member' if self.reader is None else f'member {self.reader}'}'s",
            )
        if ordered and first > self.done:
            verdict.violated(
                Violation.ORDER,
                f"queue {self.number}: {first} was handled by member {entry.member} before "
                f"{self.done} was done",
            )
        if first < self.committed_before:
            verdict.violated(
                Violation.REPLAYED,
                f"queue {self.number}: member {entry.member} handled {first}, though everything "
                f"below {self.committed_before} was committed when the owner before took the queue",
            )
        if again := sum(self.since_taken[first:behind]):
            verdict.violated(
                Violation.AGAIN,
                f"queue {self.number}: member {entry.member} handled {again} messages from {first} "
                "on again, and had not lost the queue",
            )
        verdict.handled += entry.messages
        self.since_taken[first:behind] = b"\1" * entry.messages
        self.seen[first:behind] = b"\1" * entry.messages
        if first <= self.done < behind:
            self.done = behind
