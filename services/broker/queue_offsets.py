"""Next queue offset of every queue: the number its next message gets. Pure.

A queue offset is assigned when a message is appended, long before its queue unit exists, and the
table moves only after the bytes are in the log: a refused append leaves no gap. Rebuilt at start
from the log, the queues and the newest snapshot, whichever knows the largest (design 4). Offsets of
a queue are dense, ascending and never used twice (promise P5). Before: ``messages``. After:
``append`` encodes with these numbers (walk step 3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tidemark.offsets import QueueOffset

Queue = tuple[str, int]
"""(topic, queue)."""


class QueueBehind(Exception):
    """The table would step back: an offset that somebody was told would be given out again."""


class Numbered(NamedTuple):
    """Numbers for one append, not yet in force."""

    queue_offsets: list[QueueOffset]
    """One per message, in the order of the request's messages."""
    after: dict[Queue, QueueOffset]
    """What the table says once the append succeeded."""


class QueueOffsets:
    """(topic, queue) → next queue offset; a queue that never had a message starts at 0."""

    __slots__ = ("_next",)

    def __init__(self, known: Mapping[Queue, QueueOffset]) -> None:
        self._next: dict[Queue, QueueOffset] = dict(known)

    def __len__(self) -> int:
        return len(self._next)

    def next_of(self, queue: Queue) -> QueueOffset:
        """The number that the next message of this queue gets."""
        return self._next.get(queue, QueueOffset(0))

    def number(self, queues: Iterable[Queue]) -> Numbered:
        """Number messages, one per named queue; those of one queue get adjacent numbers."""
        after: dict[Queue, QueueOffset] = {}
        numbers: list[QueueOffset] = []
        for queue in queues:
            number = after.get(queue)
            if number is None:
                number = self._next.get(queue, QueueOffset(0))
            numbers.append(number)
            after[queue] = QueueOffset(number + 1)
        return Numbered(numbers, after)

    def commit(self, numbered: Numbered) -> None:
        """The append succeeded: these numbers are given out."""
        for queue, offset in numbered.after.items():
            known = self._next.get(queue, QueueOffset(0))
            if offset <= known:
                raise QueueBehind(f"{queue}: next is {known}, the append would make it {offset}")
        self._next.update(numbered.after)

    def raise_to(self, queue: Queue, offset: QueueOffset) -> None:
        """Learn of offsets given out by somebody else; never lowers."""
        if offset > self._next.get(queue, QueueOffset(0)):
            self._next[queue] = offset

    def items(self) -> Iterator[tuple[Queue, QueueOffset]]:
        """Every queue that ever had a message, with its next offset (for snapshots)."""
        return iter(self._next.items())
