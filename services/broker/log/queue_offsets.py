"""Next queue offset of every queue: the number its next message gets. Pure.

A queue offset is assigned when a message is appended, long before its queue unit exists, and the
table moves only after the bytes are in the log: a refused append leaves no gap. Rebuilt at start
from the log, the queues and the newest snapshot, whichever knows the largest (design 4). Offsets of
a queue are dense, ascending and never used twice (promise P5).

It also knows which queues got messages of late, and where in the log those end: once that is
dispatched the queue's max offset is its next queue offset, and nobody has to look at its files.
Before: ``messages``. After: ``append`` encodes with these numbers (write path, step 4).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from tidemark.formats.runs import Run
from tidemark.offsets import PhysicalOffset, QueueOffset

Queue = tuple[str, int]
"""(topic, queue)."""


FIRST: Final = QueueOffset(0)


class QueueBehind(Exception):
    """The table would step back: an offset that somebody was told would be given out again."""


class Numbered(NamedTuple):
    """Numbers for one append, not yet in force."""

    firsts: list[QueueOffset]
    """Of each run's first message; those behind it follow without a gap."""
    after: dict[Queue, QueueOffset]
    """What the table says once the append succeeded."""


class QueueOffsets:
    """(topic, queue) → next queue offset; a queue that never had a message starts at 0."""

    __slots__ = ("_next", "ends")

    def __init__(self, known: Mapping[Queue, QueueOffset]) -> None:
        self._next: dict[Queue, QueueOffset] = dict(known)
        self.ends: dict[Queue, PhysicalOffset] = {}
        """Queues that got messages since somebody took them out of here, with the end of the log
        when the last of these was appended."""

    def __len__(self) -> int:
        return len(self._next)

    def next_of(self, queue: Queue) -> QueueOffset:
        """The number that the next message of this queue gets."""
        return self._next.get(queue, FIRST)

    def number(self, runs: Sequence[Run]) -> Numbered:
        """Number the runs, one after the other: a later one of the same queue goes on behind."""
        after: dict[Queue, QueueOffset] = {}
        firsts: list[QueueOffset] = []
        for run in runs:
            queue = (run.topic, run.queue_id)
            first = after.get(queue)
            if first is None:
                first = self._next.get(queue, FIRST)
            firsts.append(first)
            after[queue] = QueueOffset(first + run.message_count)
        return Numbered(firsts, after)

    def commit(self, numbered: Numbered, end: PhysicalOffset) -> None:
        """The append succeeded: these numbers are given out, and the log ends at end now."""
        ends = self.ends
        for queue, offset in numbered.after.items():
            known = self._next.get(queue, FIRST)
            if offset <= known:
                raise QueueBehind(f"{queue}: next is {known}, the append would make it {offset}")
            ends[queue] = end
        self._next.update(numbered.after)

    def raise_to(self, queue: Queue, offset: QueueOffset) -> None:
        """Learn of offsets given out by somebody else; never lowers."""
        if offset > self._next.get(queue, FIRST):
            self._next[queue] = offset

    def items(self) -> Iterator[tuple[Queue, QueueOffset]]:
        """Every queue that ever had a message, with its next offset (for snapshots)."""
        return iter(self._next.items())
