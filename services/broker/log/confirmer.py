"""What waits until the group has confirmed it: the senders, and the broker's own records.

Has the face of ``flusher.Flusher.durable``: alone, what is on disk lasts; in a group, what ha has
confirmed, which is on the disks of the whole in-sync set. Looks at the page whenever a doorbell
rings and, while somebody waits, every millisecond. Before: ha published CONFIRM. After: ``sender``
answers (write path, step 6).
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from services.broker.log.group_commit import NO_DEADLINE
from services.broker.log.term import Term
from services.broker.log.waiting import Waiting
from tidemark.clock import Clock
from tidemark.offsets import PhysicalOffset


class Flushing(Protocol):
    """What makes the bytes durable here; the group cannot confirm them before."""

    def hurry(self) -> None:
        """Flush what is appended now at once: somebody waits for it."""
        ...


class Confirmer:
    """The line of those who wait for the confirm offset. Belongs to one loop and one term."""

    def __init__(self, term: Term, flushing: Flushing, clock: Clock) -> None:
        self._term = term
        self._flushing = flushing
        # Nothing of this term is confirmed yet: every record of it ends behind this.
        self._waiting = Waiting(PhysicalOffset(term.confirmed), clock)

    def durable(self, end: PhysicalOffset, deadline: float = NO_DEADLINE) -> asyncio.Future[bool]:
        """A future: True once bytes below end are confirmed, False if the deadline came first.

        Call it in the step in which they were appended. deadline: on the monotonic clock. The
        future raises NotServing if the term ends before: they are in the log, the outcome is
        unknown.
        """
        future = self._waiting.wait(end, deadline)
        if not future.done():
            self._flushing.hurry()
        return future

    def look(self) -> bool:
        """Wake whom the confirm offset has passed; whether somebody waits on.

        Nobody while this node may not answer: past the deadline of its lease another may be the
        master already. They wait for the next renewal, or for the end.
        """
        if self._term.may_answer:
            self._waiting.reach(PhysicalOffset(self._term.confirmed))
        return len(self._waiting.places) > 0

    def close(self) -> None:
        """The term is over: promise nobody anything any more."""
        self._waiting.close()
