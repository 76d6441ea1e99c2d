"""Waits for confirmation by the group: of senders, and of the broker's own records.

It has the interface of ``flusher.Flusher.durable``: on a standalone node a record is durable once
it is on its disk, in a group once ha has confirmed it, on the disks of the whole in-sync set.
``replication.master`` calls ``poll`` whenever a doorbell rings and, while a send waits, every
millisecond. Step before: ha published CONFIRM. Step after: ``sender`` answers (write path, step 6).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from services.broker.log.wait_queue import NO_DEADLINE
from services.broker.log.waiting import Waiting
from tidemark.clock import Clock
from tidemark.offsets import PhysicalOffset

if TYPE_CHECKING:
    from services.broker.log.term import GrantedTerm


class Flushing(Protocol):
    """Flushes the log; the group can confirm only flushed bytes."""

    def hurry(self) -> None:
        """Flush what is appended now at once, because a send waits for it."""
        ...


class Confirmer:
    """Senders that wait for the confirm offset. It belongs to one loop and one term."""

    def __init__(self, term: GrantedTerm, flushing: Flushing, clock: Clock) -> None:
        self._term = term
        self._flushing = flushing
        # Nothing of this term is confirmed yet: every record of it ends after this.
        self._waiting = Waiting(term.confirmed, clock)

    def durable(self, end: PhysicalOffset, deadline: float = NO_DEADLINE) -> asyncio.Future[bool]:
        """Return a future: True once bytes below end are confirmed, False after the deadline.

        Call it in the step in which they were appended. deadline: on the monotonic clock. The
        future raises NotServing if the term ends first: the bytes are in the log, and the outcome
        is unknown.
        """
        future = self._waiting.wait(end, deadline)
        if not future.done():
            self._flushing.hurry()
        return future

    def poll(self) -> bool:
        """Wake the senders up to the confirm offset; return whether others still wait.

        No sender is woken while this node may not answer: after its lease deadline another node
        may already be the master. They wait for the next renewal, or for the end.
        """
        if self._term.may_answer:
            self._waiting.reach(self._term.confirmed)
        return len(self._waiting.places) > 0

    def end_waits(self) -> None:
        """End all waits, because the term is over."""
        self._waiting.close()
