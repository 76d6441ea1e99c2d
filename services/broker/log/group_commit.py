"""Which waiting sends does an offset release, and which have run out of time. Pure.

One ``fdatasync`` answers all sends whose bytes lie below the offset that it reached. Each send
joins the line with the end of its bytes. Appends come in physical order, so the line is sorted and
releasing is popping from its front; a send that joins late (of a pooled log, after its time-out)
waits for a little more than its own bytes. The commit of a pooled log has a line of the same kind.
Before: ``flusher``, ``committer``. After: ``waiting`` completes the futures of the senders (write
path, step 6).
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final, Generic, TypeVar

from tidemark.offsets import PhysicalOffset

NO_DEADLINE: Final = math.inf
Waiter = TypeVar("Waiter")


class GroupCommit(Generic[Waiter]):
    """The line of sends that wait for their bytes to be durable."""

    __slots__ = ("durable", "next_deadline", "places")

    def __init__(self, durable: PhysicalOffset) -> None:
        self.durable = durable
        """Everything below is on disk."""
        self.next_deadline = NO_DEADLINE
        """The first deadline in line, or an earlier one whose waiter was released."""
        self.places: Final[deque[tuple[PhysicalOffset, float, Waiter]]] = deque()
        """End of the bytes, deadline and waiter of each in line, in the order of the ends."""

    def join(self, end: PhysicalOffset, waiter: Waiter, deadline: float = NO_DEADLINE) -> bool:
        """Add a waiter to the line until bytes below end are durable; False if they are already.

        end: end of the waiter's bytes; behind waiters with a later end it waits as long as the last
        of them. deadline: on the clock of ``expire``.
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
        """Note that bytes below durable are on disk; return the released waiters, oldest first.

        An offset below the one known already changes nothing: two flushes may report out of order.
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
        """Remove the waiters whose deadline has come, and return them, oldest first."""
        expired = [waiter for _, deadline, waiter in self.places if deadline <= now]
        if expired:
            left = [place for place in self.places if place[1] > now]
            self.places.clear()
            self.places.extend(left)
        self.next_deadline = min((place[1] for place in self.places), default=NO_DEADLINE)
        return expired

    def dissolve(self) -> list[Waiter]:
        """Empty the line and return its waiters, which are not released: the process stops, or
        appends no longer."""
        waiters = [waiter for _, _, waiter in self.places]
        self.places.clear()
        self.next_deadline = NO_DEADLINE
        return waiters
