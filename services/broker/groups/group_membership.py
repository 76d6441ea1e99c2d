"""The members of a group, their deadlines, and what a change of members does to queues. Pure.

Every heartbeat postpones a member's deadline by its session; a member that is silent until then has
died. The two kinds of group decide what a change means for the queues: ``membership`` (clustering:
the queues are shared) and ``broadcasting`` (every member has all). Times are milliseconds of a
clock that never steps back, passed in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from tidemark.offsets import Queue


class Member(NamedTuple):
    """One member, as of its last heartbeat."""

    name: str
    topics: frozenset[str]
    session_ms: int
    deadline_ms: int
    """When it dies unless a heartbeat comes first."""
    number: int
    """Number from 1 in the order of joining. Metrics show it instead of the name; it is never used
    for another member of this group."""


class Change(NamedTuple):
    """Queues that changed their owner; both lists empty: the generation is the same."""

    granted: Sequence[tuple[Queue, str]] = ()
    """Queue and its new owner."""
    revoked: Sequence[tuple[Queue, str]] = ()
    """Queue and the member that gets no more of it, but may still work on what it received."""
    kept: Sequence[Queue] = ()
    """Granted queues that the member held before the broker started, without a break."""


NOTHING: Final = Change()


class GroupMembership(ABC):
    """The members of one group and the queues of the topics that they subscribe to."""

    def __init__(self, next_generation: Callable[[], int]) -> None:
        """next_generation: returns a larger number than any earlier generation of this group."""
        self._next_generation = next_generation
        self.generation = next_generation()
        """Number of the assignment; it changes with any assignment."""
        self.members: dict[str, Member] = {}
        self.queues: dict[str, tuple[int, ...]] = {}
        """Subscribed topic → its queues."""
        self._joined_count = 0
        """Count of all members that ever joined."""

    # -- what each kind of group implements ------------------------------------------------------

    @abstractmethod
    def assignment(self, name: str) -> list[Queue]:
        """Return the member's queues, sorted."""

    @abstractmethod
    def owner(self, queue: Queue) -> str | None:
        """The only owner of the queue; None if no member or every member has it."""

    @abstractmethod
    def holds(self, name: str, queue: Queue) -> bool:
        """Return whether the member may commit offsets of the queue."""

    @abstractmethod
    def holder_number(self, queue: Queue) -> int | None:
        """Number of the queue's only owner, or of the last one if it is not done yet.

        0: no member holds it; None: unknown, or all have it.
        """

    @property
    @abstractmethod
    def in_transit(self) -> int:
        """Return the number of queues held back for a member that holds them, or may do so."""

    @abstractmethod
    def _plan(self, now_ms: int, claims: Iterable[Queue], claimant: str) -> Change:
        """Assign anew after a change of members, topics or queues.

        claims: queues that the claimant says it holds; it gets those without another owner.
        """

    @abstractmethod
    def _release(
        self, now_ms: int, name: str, holding: Collection[Queue] | None, knows: int | None
    ) -> Change:
        """Free the queues that the member no longer reports as held."""

    @abstractmethod
    def _overdue(self, now_ms: int) -> Change:
        """Free the queues whose transit has lasted too long."""

    @abstractmethod
    def _deadlines(self) -> Iterable[int]:
        """Return the times at which ``_overdue`` has something to do."""

    # -- events --------------------------------------------------------------------------------

    def heartbeat(
        self,
        now_ms: int,
        name: str,
        topics: Mapping[str, Sequence[int]],
        session_ms: int,
        *,
        holding: Collection[Queue] | None = None,
        knows: int | None = None,
    ) -> Change:
        """Add a member, prolong its session, or change its topics.

        topics: its subscriptions, with their present queues. holding: queues that it is working on;
        None: only its assigned ones. knows: the latest generation that it has received.
        """
        before = self.members.get(name)
        if before is None:
            self._joined_count += 1
        number = self._joined_count if before is None else before.number
        member = Member(name, frozenset(topics), session_ms, now_ms + session_ms, number)
        self.members[name] = member
        queues = {topic: tuple(numbers) for topic, numbers in topics.items()}
        as_before = before is not None and before.topics == member.topics
        if as_before and queues.items() <= self.queues.items():
            return self._release(now_ms, name, holding, knows)
        self.queues.update(queues)
        self._forget_topics()
        first = self._release(now_ms, name, holding, knows)
        return together(first, self._plan(now_ms, holding or (), name))

    def fence(self) -> None:
        """Change the generation because another program took over a member's name."""
        self.generation = self._next_generation()

    def leave(self, now_ms: int, name: str) -> Change:
        """Remove a member and free its queues. KeyError if there is none of that name."""
        del self.members[name]
        self._forget_topics()
        return self._plan(now_ms, (), name)

    def expire(self, now_ms: int) -> Change:
        """Remove members that were silent for too long."""
        dead = [each.name for each in self.members.values() if each.deadline_ms <= now_ms]
        if not dead:
            return self._overdue(now_ms)
        for name in dead:
            del self.members[name]
        self._forget_topics()
        return together(self._overdue(now_ms), self._plan(now_ms, (), ""))

    def set_queues(self, now_ms: int, queues: Mapping[str, Sequence[int]]) -> Change:
        """Note that topics have other queues than before; topics without subscribers are
        ignored."""
        changed = {
            topic: tuple(numbers)
            for topic, numbers in queues.items()
            if topic in self.queues and self.queues[topic] != tuple(numbers)
        }
        if not changed:
            return NOTHING
        self.queues.update(changed)
        return self._plan(now_ms, (), "")

    @property
    def next_deadline_ms(self) -> int | None:
        """Return when ``expire`` has something to do; None if never."""
        return min(
            (*(each.deadline_ms for each in self.members.values()), *self._deadlines()),
            default=None,
        )

    def _forget_topics(self) -> None:
        wanted = frozenset().union(*(each.topics for each in self.members.values()))
        for topic in self.queues.keys() - wanted:
            del self.queues[topic]


def together(first: Change, second: Change) -> Change:
    """Combine two changes of one step.

    A queue that the first granted and the second revoked is in both lists: granted, then revoked.
    """
    if not (first.granted or first.revoked):
        return second
    again = frozenset(second.revoked)
    granted = [each for each in first.granted if each not in again]
    revoked = [*first.revoked, *second.revoked]
    return Change([*granted, *second.granted], revoked, second.kept)
