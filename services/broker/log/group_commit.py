"""Group commit: decides which waiting sends an offset releases and which time out. Pure.

One ``fdatasync`` completes all sends whose bytes lie below the flushed offset. Each send joins the
queue with the end of its bytes. Appends come in physical order, so the queue is sorted and sends
are released from its front. A send that joins late (in a pooled log, after its timeout) waits for
slightly more than its own bytes. The commit of a pooled log uses a second queue of the same kind.
``flusher`` and ``committer`` come before this step; after it ``waiting`` completes the futures of
the senders (write path, step 6).
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final, Generic, TypeVar

from tidemark.offsets import PhysicalOffset

NO_DEADLINE: Final = math.inf
Waiter = TypeVar("Waiter")


class GroupCommit(Generic[Waiter]):
    """The queue of sends that wait for their bytes to be durable."""

    __slots__ = ("durable", "next_deadline", "places")

    def __init__(self, durable: PhysicalOffset) -> None:
        self.durable = durable
        """All bytes below this offset are on disk."""
        self.next_deadline = NO_DEADLINE
        """The earliest deadline in the queue, or an earlier one whose waiter was released."""
        self.places: Final[deque[tuple[PhysicalOffset, float, Waiter]]] = deque()
        """End of the bytes, deadline and waiter of each entry, sorted by end."""

    def join(self, end: PhysicalOffset, waiter: Waiter, deadline: float = NO_DEADLINE) -> bool:
        """Queue a waiter until bytes below end are durable; return False if they already are.

        end: end of the waiter's bytes. If the last waiter in the queue has a larger end, that one
        is used. deadline: on the clock that ``expire`` uses.
        """
        if end <= self.durable:
            return False
        line = self.places
        if line and line[-1][0] > end:
            end = line[-1][0]
        line.append((end, deadline, waiter))
        if deadline < self.next_deadline:
            self.next_deadline = deadline
        return True

    def advance(self, durable: PhysicalOffset) -> list[Waiter]:
        """Record that bytes below durable are on disk; return the released waiters, oldest first.

        A smaller offset than the current one is ignored: two flushes may report out of order.
        """
        if durable <= self.durable:
            return []
        self.durable = durable
        released: list[Waiter] = []
        line = self.places
        while line and line[0][0] <= durable:
            released.append(line.popleft()[2])
        return released

    def expire(self, now: float) -> list[Waiter]:
        """Remove the waiters whose deadline has passed, and return them, oldest first."""
        expired = [waiter for _, deadline, waiter in self.places if deadline <= now]
        if expired:
            left = [place for place in self.places if place[1] > now]
            self.places.clear()
            self.places.extend(left)
        self.next_deadline = min((place[1] for place in self.places), default=NO_DEADLINE)
        return expired

    def dissolve(self) -> list[Waiter]:
        """Empty the queue and return its waiters, whose bytes are not durable: the process stops
        or no longer appends."""
        waiters = [waiter for _, _, waiter in self.places]
        self.places.clear()
        self.next_deadline = NO_DEADLINE
        return waiters
