"""Queues that members from before the broker's start may still be working on. Pure.

After a start the broker knows what is committed, but not who the members were. They are still
alive: each has messages in hand and goes on with them until it learns that it must join again.
1. The broker is killed and starts; 2. the first member that joins gets all queues; 3. the others
still handle theirs for a moment: two members handle one queue, even in an ordered group.

So a queue that had an offset at the start has no owner until a joining member claims it as one that
it holds, or until the wait is over: by then the former holder has learned of the restart, or its
session has expired.
Step before: ``active_groups`` knows which groups there were. Step after: ``membership`` assigns the
queues.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidemark.offsets import Queue

WAIT_MS: Final = 1000
"""Wait of a group that is not ordered: most members are back by then, and a later one only costs
messages handled twice. An ordered group waits for the longest session of those that have joined,
because no session can have been prolonged after the start."""


class RestoredClaims:
    """Queues of one group that members from before the start may hold."""

    def __init__(self, queues: Iterable[Queue], since_ms: int, *, ordered: bool) -> None:
        """queues: those with a committed offset. since_ms: when the broker began to accept
        joins."""
        self.queues = set(queues)
        """Queues that were neither claimed nor assigned yet."""
        self._moved: set[Queue] = set()
        self.since_ms = since_ms
        self._wait_ms = 0 if ordered else WAIT_MS
        self._ordered = ordered

    def joins(self, session_ms: int) -> None:
        """Note the session of a member that joined: the former members will have had similar
        ones."""
        if self._ordered:
            self._wait_ms = max(self._wait_ms, session_ms)

    @property
    def until_ms(self) -> int:
        """Return when the wait is over: in the past if there is nothing left to wait for."""
        return self.since_ms + self._wait_ms if self.queues else self.since_ms

    def claim(self, queue: Queue) -> bool:
        """Give a queue to a joining member that holds it; return whether it continues where it was.

        It does if the queue was waited for and its offset was not reset: the committed offset can
        then only be lower than the member's position, because the last commits were lost.
        """
        if queue not in self.queues:
            return False
        self.queues.remove(queue)
        return queue not in self._moved

    def moved(self, queues: Iterable[Queue]) -> None:
        """Note that an operator has moved the offsets of these queues."""
        self._moved.update(queues)

    def give_up(self) -> None:
        """End the wait: unclaimed queues are free."""
        self.queues.clear()
