"""Which waiting sends does a flushed offset release. Pure.

One ``fdatasync`` answers for everybody whose bytes lie below it: senders append, stand in line with
the end of their bytes, and the flusher's result moves past them. Appends come in physical order, so
the line is sorted by itself and releasing is popping from its front. Before: ``flusher``. After:
``http_api`` answers the sender (walk step 9).
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from tidemark.offsets import PhysicalOffset

Waiter = TypeVar("Waiter")


class GroupCommit(Generic[Waiter]):
    """The line of sends that wait for their bytes to be durable."""

    __slots__ = ("_line", "durable")

    def __init__(self, durable: PhysicalOffset) -> None:
        self.durable = durable
        """Everything below is on disk."""
        self._line: deque[tuple[PhysicalOffset, Waiter]] = deque()

    def __len__(self) -> int:
        return len(self._line)

    def join(self, end: PhysicalOffset, waiter: Waiter) -> bool:
        """Stand in line until bytes below end are durable; False if they are already.

        end: end of the waiter's bytes, not below that of any who joined before.
        """
        if end <= self.durable:
            return False
        assert not self._line or end >= self._line[-1][0], "appends come in physical order"
        self._line.append((end, waiter))
        return True

    def advance(self, durable: PhysicalOffset) -> list[Waiter]:
        """Note that bytes below durable are on disk; return who is released, oldest first.

        An offset below the one known already changes nothing: two flushes may report out of order.
        """
        if durable <= self.durable:
            return []
        self.durable = durable
        released: list[Waiter] = []
        line = self._line
        while line and line[0][0] <= durable:
            released.append(line.popleft()[1])
        return released

    def dissolve(self) -> list[Waiter]:
        """Empty the line (the process stops, or appends no longer): nobody in it was released."""
        waiters = [waiter for _, waiter in self._line]
        self._line.clear()
        return waiters
