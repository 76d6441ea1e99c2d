"""The queues that a member holds and their states. Pure.

The broker assigns queues to a member; the member reports which ones it still holds. A revoked queue
becomes LEAVING: no more of its messages are delivered, those in progress are finished, the program
is notified, and the last position is committed. Only then does a heartbeat omit the queue, so that
another member may get it. If it is assigned again meanwhile, it is taken over afterwards from the
committed offset, like any other. Invariants: messages are delivered from OWNED queues only; a queue
stays in ``holding`` until it is released; a LOST queue is never delivered from again. The shells
are ``member`` and ``changes``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from tidemark.client.progress import QueueProgress
from tidemark.client.queue_names import Queue

if TYPE_CHECKING:
    from tidemark.client.consumer_engine import ConsumerEngine


class Hold(Enum):
    """State of a queue that a member holds."""

    ARRIVING = "assigned; the program is not notified yet, nothing is fetched"
    OWNED = "fetched and delivered"
    LEAVING = "revoked; messages in progress are finished and committed"
    LOST = "lost without notice: another member may own it already, nothing is committed"


class HeldQueue:
    """One queue from assignment to release. A queue assigned again is another HeldQueue."""

    __slots__ = (
        "damaged_at",
        "engine",
        "fetched_to",
        "hold",
        "is_notified",
        "is_paused",
        "is_placed",
        "nack_ids",
        "nacked",
        "progress",
        "queue",
    )

    def __init__(self, queue: Queue, engine: ConsumerEngine) -> None:
        """engine: delivers the queue's messages; it is not used here."""
        self.queue, self.engine = queue, engine
        self.hold = Hold.ARRIVING
        self.progress = QueueProgress()
        self.fetched_to: int | None = None
        """Offset of the next fetch; None: the broker decides."""
        self.is_placed = False
        """Whether the broker's cursor is at ``fetched_to``; if not, the next fetch sends it."""
        self.damaged_at: int | None = None
        """Offset of a damaged record that follows sound ones in an answer."""
        self.is_notified = False
        """Whether the program was notified of the queue, or is being notified."""
        self.is_paused = False
        """Whether the program has paused the queue."""
        self.nack_ids: dict[int, str] = {}
        """Ids of nacks that may have been carried out, by the offset of the message in progress."""
        self.nacked: set[int] = set()
        """Offsets of messages in progress that were nacked: they count as done in any case."""

    @property
    def is_idle(self) -> bool:
        """Whether no message of the queue is in progress."""
        return self.progress.is_idle

    def start_at(self, offset: int) -> None:
        """Record that everything below ``offset`` is done, by this member or by others."""
        self.progress.cover(offset)
        self.go_on_at(offset)

    def go_on_at(self, offset: int) -> None:
        """Make the next fetch start at ``offset``."""
        self.fetched_to, self.is_placed, self.damaged_at = offset, False, None


class Change(NamedTuple):
    """The changes that a new assignment made."""

    arriving: list[HeldQueue]
    leaving: list[HeldQueue]
    """Revoked queues: no more of their messages are delivered from now on."""
    lost: list[HeldQueue]


class Holdings:
    """The queues that a member holds. Bounded by the number that the broker assigns."""

    def __init__(self, engine: ConsumerEngine) -> None:
        """engine: the one of the member."""
        self._engine = engine
        self._held: dict[Queue, HeldQueue] = {}

    def __iter__(self) -> Iterator[HeldQueue]:
        return iter(list(self._held.values()))

    def __len__(self) -> int:
        return len(self._held)

    def get(self, queue: Queue) -> HeldQueue | None:
        """Return the queue if it is held."""
        return self._held.get(queue)

    def of(self, *holds: Hold) -> list[HeldQueue]:
        """Return the queues in one of these states."""
        return [held for held in self._held.values() if held.hold in holds]

    def holding(self) -> list[Queue]:
        """Return the queues that a heartbeat reports: all that are not released."""
        return list(self._held)

    def assign(self, assignment: Iterable[Queue]) -> Change:
        """Apply the assignment of a heartbeat's answer."""
        change = Change([], [], [])
        assigned = list(dict.fromkeys(assignment))
        wanted = set(assigned)
        for held in list(self._held.values()):
            if held.queue in wanted or held.hold is Hold.LEAVING:
                continue
            if not held.is_notified:
                # The program was not notified and nothing was fetched, so it can be dropped.
                self._drop(held)
            else:
                held.hold = Hold.LEAVING
                change.leaving.append(held)
        for queue in assigned:
            if queue not in self._held:
                held = self._held[queue] = HeldQueue(queue, self._engine)
                change.arriving.append(held)
        return change

    def rejoined(self, assignment: Iterable[Queue], untouched: Collection[Queue]) -> Change:
        """Apply the assignment after a new join: the broker had restarted, or expired this member.

        untouched: queues whose committed offset is still the one that this member committed last.
        If such a queue is assigned again, it continues with its messages in progress, or is still
        being released. Any other queue had or may have had another owner: it is lost, and if it is
        assigned again it starts at the committed offset.
        """
        assigned = list(dict.fromkeys(assignment))
        kept = set(assigned) & set(untouched)
        lost: list[HeldQueue] = []
        for held in list(self._held.values()):
            if held.queue not in kept:
                self._drop(held)
                lost.append(held)
            else:
                held.is_placed = False  # the broker's cursors start anew with the membership
        change = self.assign(assigned)
        return Change(change.arriving, change.leaving, lost)

    def lose(self, gone: Iterable[HeldQueue]) -> list[HeldQueue]:
        """Mark queues as not owned any more; returns those that were not lost before."""
        lost = [held for held in gone if held.hold is not Hold.LOST]
        for held in lost:
            self._drop(held)
        return lost

    def restart(self, held: HeldQueue, offset: int) -> None:
        """Continue a queue at ``offset``; messages in progress no longer affect its position."""
        again = self._held[held.queue] = HeldQueue(held.queue, self._engine)
        again.hold, again.is_notified, again.is_paused = held.hold, held.is_notified, held.is_paused
        again.start_at(offset)
        held.hold = Hold.LOST

    def own(self, arrived: Iterable[HeldQueue]) -> None:
        """Own these queues: the program was notified of them, so they may be fetched and delivered.

        A queue that was revoked during the notification stays LEAVING.
        """
        for held in arrived:
            if held.hold is Hold.ARRIVING:
                held.hold = Hold.OWNED

    def release(self, left: Iterable[HeldQueue]) -> None:
        """Release finished and committed queues: the next heartbeat omits them."""
        for held in left:
            if held.hold is Hold.LEAVING and held.is_idle:
                self._drop(held)

    def _drop(self, held: HeldQueue) -> None:
        held.hold = Hold.LOST
        if self._held.get(held.queue) is held:
            del self._held[held.queue]
