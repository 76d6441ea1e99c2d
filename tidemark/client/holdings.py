"""Which queues a member holds, and how each comes and goes. Pure.

The broker says which queues are a member's; the member says which ones it still works on. A queue
taken from it goes through LEAVING: nothing more of it is handed out, what is under way is finished,
the program is told, its last position is committed, and only then does a heartbeat leave it out, so
that another may have it. One that comes back meanwhile is taken up again after that, from what is
committed, like any other. Invariants: messages are handed out of OWNED queues only; a queue stays
in ``holding`` until it was released; a queue that is LOST never is handed out again. The shells are
``member`` and ``changes``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from enum import Enum
from typing import NamedTuple

from tidemark.client.commits import Queue
from tidemark.client.progress import QueueProgress


class Hold(Enum):
    """What a member may do with a queue."""

    ARRIVING = "assigned; the program has not been told yet, nothing is fetched"
    OWNED = "fetched and handed out"
    LEAVING = "taken away; what is under way is finished and committed"
    LOST = "gone without a word: another may have it already, nothing is committed"


class HeldQueue:
    """One queue from assignment to release. A queue that comes again is another HeldQueue."""

    __slots__ = (
        "damaged_at",
        "fetched_to",
        "hold",
        "is_paused",
        "is_placed",
        "nacks",
        "progress",
        "queue",
        "sent_back",
        "told",
    )

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.hold = Hold.ARRIVING
        self.progress = QueueProgress()
        self.fetched_to: int | None = None
        """Where the next fetch goes on; None: where the broker says."""
        self.is_placed = False
        """Whether the broker's cursor is at ``fetched_to``; if not, the next fetch says it."""
        self.damaged_at: int | None = None
        """Where an answer met a damaged record behind sound ones."""
        self.told = False
        """Whether the program knows that it has the queue, or is just being told."""
        self.is_paused = False
        """Whether the program wants nothing of it for now."""
        self.nacks: dict[int, str] = {}
        """Ids of nacks that may have been carried out, by the offset of the message under way."""
        self.sent_back: set[int] = set()
        """Offsets of messages under way that were sent back: whatever follows, they are done."""

    @property
    def is_idle(self) -> bool:
        """Whether no message of it is under way."""
        return self.progress.is_idle

    def start_at(self, offset: int) -> None:
        """Everything below ``offset`` is done, by us or by others."""
        self.progress.cover(offset)
        self.go_on_at(offset)

    def go_on_at(self, offset: int) -> None:
        """The next fetch brings the messages from ``offset`` on."""
        self.fetched_to, self.is_placed, self.damaged_at = offset, False, None


class Change(NamedTuple):
    """What a new assignment did to the queues held."""

    arriving: list[HeldQueue]
    leaving: list[HeldQueue]
    """Taken away: no longer handed out from now on."""
    lost: list[HeldQueue]


class Holdings:
    """The queues that a member holds. Bounded by what its broker assigns."""

    def __init__(self) -> None:
        self._held: dict[Queue, HeldQueue] = {}

    def __iter__(self) -> Iterator[HeldQueue]:
        return iter(list(self._held.values()))

    def __len__(self) -> int:
        return len(self._held)

    def get(self, queue: Queue) -> HeldQueue | None:
        """The queue if it is held."""
        return self._held.get(queue)

    def of(self, *holds: Hold) -> list[HeldQueue]:
        """The queues in one of these states."""
        return [held for held in self._held.values() if held.hold in holds]

    def holding(self) -> list[Queue]:
        """What a heartbeat names: every queue that is not released."""
        return list(self._held)

    def assign(self, assignment: Iterable[Queue]) -> Change:
        """The broker answered a heartbeat: these queues are ours now."""
        change = Change([], [], [])
        assigned = list(dict.fromkeys(assignment))
        wanted = set(assigned)
        for held in list(self._held.values()):
            if held.queue in wanted or held.hold is Hold.LEAVING:
                continue
            if not held.told:
                # The program never heard of it, nothing was fetched: it goes as it came.
                self._drop(held)
            else:
                held.hold = Hold.LEAVING
                change.leaving.append(held)
        for queue in assigned:
            if queue not in self._held:
                held = self._held[queue] = HeldQueue(queue)
                change.arriving.append(held)
        return change

    def rejoined(self, assignment: Iterable[Queue], untouched: Collection[Queue]) -> Change:
        """The broker had forgotten us (it restarted, or we were silent too long): we joined anew.

        untouched: queues whose committed offset is still what we committed last. One of them that
        is ours again goes on where we are, with what is under way; any other was, or may have been,
        in other hands: it is lost, and if it is ours again it starts from what is committed.
        """
        assigned = list(dict.fromkeys(assignment))
        kept = set(assigned) & set(untouched)
        lost: list[HeldQueue] = []
        for held in list(self._held.values()):
            if held.queue not in kept or held.hold is Hold.LEAVING:
                self._drop(held)
                lost.append(held)
            else:
                held.is_placed = False  # the broker's cursors are as new as our membership
        change = self.assign(assigned)
        return Change(change.arriving, change.leaving, lost)

    def lose(self, gone: Iterable[HeldQueue]) -> list[HeldQueue]:
        """These are not ours any more, whatever is under way; returns those that were."""
        lost = [held for held in gone if held.hold is not Hold.LOST]
        for held in lost:
            self._drop(held)
        return lost

    def restart(self, held: HeldQueue, offset: int) -> None:
        """The queue goes on at ``offset``; what is under way of it moves nothing any more."""
        again = self._held[held.queue] = HeldQueue(held.queue)
        again.hold, again.told, again.is_paused = held.hold, held.told, held.is_paused
        again.start_at(offset)
        held.hold = Hold.LOST

    def own(self, arrived: Iterable[HeldQueue]) -> None:
        """The program has been told of these: they may be fetched and handed out.

        One that was taken away while it was told stays LEAVING.
        """
        for held in arrived:
            if held.hold is Hold.ARRIVING:
                held.hold = Hold.OWNED

    def release(self, left: Iterable[HeldQueue]) -> None:
        """These are finished and committed: the next heartbeat leaves them out."""
        for held in left:
            if held.hold is Hold.LEAVING and held.is_idle:
                self._drop(held)

    def _drop(self, held: HeldQueue) -> None:
        held.hold = Hold.LOST
        if self._held.get(held.queue) is held:
            del self._held[held.queue]
