"""The queue of waiting sends: decides which of them an offset releases and which time out. Pure.

One ``fdatasync`` completes all sends whose bytes lie below the flushed offset (group commit). Each
send joins the queue with the end of its bytes. Appends come in physical order, so the queue is
sorted and sends are released from its front. A send that joins late (in a pooled log, after its
timeout) waits for slightly more than its own bytes. The commit of a pooled log uses a second queue
of the same kind.
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


class WaitQueue(Generic[Waiter]):
    """The queue of sends that wait until an offset reaches the end of their bytes: the flushed, the
    confirmed or, with a pool, the committed offset."""

    __slots__ = ("next_deadline", "places", "reached")

    def __init__(self, reached: PhysicalOffset) -> None:
        self.reached = reached
        """The offset: bytes below it need not be waited for."""
        self.next_deadline = NO_DEADLINE
        """The earliest deadline in the queue, or an earlier one whose waiter was released."""
        self.places: Final[deque[tuple[PhysicalOffset, float, Waiter]]] = deque()
        """End of the bytes, deadline and waiter of each entry, sorted by end."""

    def join(self, end: PhysicalOffset, waiter: Waiter, deadline: float = NO_DEADLINE) -> bool:
        """Queue a waiter until the offset reaches end; return False if it already has.

        end: end of the waiter's bytes. If the last waiter in the queue has a larger end, that one
        is used. deadline: on the clock that ``expire`` uses.
        """
        if end <= self.reached:
            return False
        line = self.places
        if line and line[-1][0] > end:
            end = line[-1][0]
        line.append((end, deadline, waiter))
        if deadline < self.next_deadline:
            self.next_deadline = deadline
        return True

    def advance(self, reached: PhysicalOffset) -> list[Waiter]:
        """Move the offset, and return the released waiters, oldest first.

        A smaller offset than the current one is ignored: two flushes may report out of order.
        """
        if reached <= self.reached:
            return []
        self.reached = reached
        released: list[Waiter] = []
        line = self.places
        while line and line[0][0] <= reached:
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
        """Empty the queue and return its waiters, which get no success: the process stops
        or no longer appends."""
        waiters = [waiter for _, _, waiter in self.places]
        self.places.clear()
        self.next_deadline = NO_DEADLINE
        return waiters
