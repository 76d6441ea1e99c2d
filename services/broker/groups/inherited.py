"""Queues whose owners of before the broker's start may still be at work on them. Pure.

A broker that starts knows what is committed, and not who the members were. They live on: each has
messages in its hands, and goes on handling them until it hears that it has to join again. 1. The
broker is killed and starts; 2. the first member that joins gets all queues; 3. the others go on
with theirs for a moment: two handle one queue, an ordered one too.

So a queue that had an offset at the start is nobody's until a member that joins claims it, as one
that it holds, or until the wait is over: then whoever held it has heard, or its lease has ended.
Before: ``live_groups`` knows which groups there were. After: ``membership`` gives the queues away.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from services.broker.log.queue_offsets import Queue

WAIT_MS: Final = 1000
"""Of a group that is not ordered: most members are back within that, and who is not costs messages
handled twice. An ordered group waits for the longest session of those that have joined: nobody's
lease began after the start."""


class Inherited:
    """What one group's members of before the start may hold."""

    def __init__(self, queues: Iterable[Queue], since_ms: int, *, ordered: bool) -> None:
        """queues: those that the group had an offset of. since_ms: when joins began to be taken."""
        self.queues = set(queues)
        """Those that nobody has claimed and nobody was given."""
        self._moved: set[Queue] = set()
        self.since_ms = since_ms
        self._wait_ms = 0 if ordered else WAIT_MS
        self._ordered = ordered

    def joins(self, session_ms: int) -> None:
        """A member has joined: those of before will have had sessions like its own."""
        if self._ordered:
            self._wait_ms = max(self._wait_ms, session_ms)

    @property
    def until_ms(self) -> int:
        """When the wait is over; in the past if there is nothing left to wait for."""
        return self.since_ms + self._wait_ms if self.queues else self.since_ms

    def claim(self, queue: Queue) -> bool:
        """A member that joins holds the queue: it is its own. Whether it goes on where it was.

        It does if the queue was waited for and nobody has moved its offset: that can only be lower
        than where the member is because the last commits were lost.
        """
        if queue not in self.queues:
            return False
        self.queues.remove(queue)
        return queue not in self._moved

    def moved(self, queues: Iterable[Queue]) -> None:
        """Somebody who is no member says where the group is to go on."""
        self._moved.update(queues)

    def give_up(self) -> None:
        """The wait is over: what nobody has claimed is free."""
        self.queues.clear()
