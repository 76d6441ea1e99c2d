"""Next queue offset of every queue: the offset that its next message gets. Pure.

A queue offset is assigned when a message is appended, before its consume queue unit exists. The
table is updated only after the bytes are in the log, so a refused append leaves no gap. At start it
is rebuilt from the log, the queues and the newest snapshot; the largest offset wins.
Offsets of a queue are dense, ascending and never used twice.

The module also records which queues recently got messages, and where these end in the log.
Once the log is dispatched up to there, the queue's max offset equals its next queue offset, and the
queue's files need not be read. Before this step ``sender`` has made the runs; after it ``append``
encodes the records with these offsets (write path, step 4).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from tidemark.formats.runs import Run
from tidemark.offsets import PhysicalOffset, Queue, QueueOffset

FIRST: Final = QueueOffset(0)


class QueueBehind(Exception):
    """An update would lower a next queue offset, so an offset would be assigned twice."""


class Numbered(msgspec.Struct, frozen=True):
    """Queue offsets of one append, not yet committed to the table."""

    firsts: list[QueueOffset]
    """Queue offset of each run's first message; the others of the run follow without a gap."""
    after: dict[Queue, QueueOffset]
    """Next queue offsets after the append succeeded."""


class QueueOffsets:
    """(topic, queue) → next queue offset; a queue that never had a message starts at 0."""

    __slots__ = ("_next", "ends")

    def __init__(self, known: Mapping[Queue, QueueOffset]) -> None:
        self._next: dict[Queue, QueueOffset] = dict(known)
        self.ends: dict[Queue, PhysicalOffset] = {}
        """Queues that got messages since their entry was last removed, each with the end of the log
        when its newest message was appended."""

    def __len__(self) -> int:
        return len(self._next)

    def next_of(self, queue: Queue) -> QueueOffset:
        """Return the queue offset that the next message of this queue gets."""
        return self._next.get(queue, FIRST)

    def number(self, runs: Sequence[Run]) -> Numbered:
        """Assign queue offsets to the runs in order; a later run of the same queue continues."""
        after: dict[Queue, QueueOffset] = {}
        firsts: list[QueueOffset] = []
        for run in runs:
            queue = (run.topic, run.queue_id)
            first = after.get(queue) or self._next.get(queue, FIRST)
            firsts.append(first)
            after[queue] = QueueOffset(first + run.message_count)
        return Numbered(firsts, after)

    def commit(self, numbered: Numbered, end: PhysicalOffset) -> None:
        """Update the table after a successful append; end: the new end of the log."""
        after = numbered.after
        for queue, offset in after.items():
            known = self._next.get(queue, FIRST)
            if offset <= known:
                raise QueueBehind(f"{queue}: next is {known}, the append would make it {offset}")
        self.ends.update(dict.fromkeys(after, end))
        self._next.update(after)

    def raise_to(self, queue: Queue, offset: QueueOffset) -> None:
        """Raise the next offset to one found elsewhere (log, queue or snapshot); never lower it."""
        if offset > self._next.get(queue, FIRST):
            self._next[queue] = offset

    def items(self) -> Iterator[tuple[Queue, QueueOffset]]:
        """Return every queue that ever had a message, with its next offset (for snapshots)."""
        return iter(self._next.items())
