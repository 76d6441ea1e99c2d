"""Who is in a group, until when, and what a change of that does to the queues. Pure.

A member is there as long as it says so: every heartbeat puts its deadline off by its session, and
who is silent for so long has died. What a change means for the queues is for the two kinds of group
to say: ``membership`` (clustering: the queues are shared) and ``broadcasting`` (everybody has all).
Times are milliseconds of a clock that never steps back, passed in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from services.broker.log.queue_offsets import Queue


class Member(NamedTuple):
    """One member, as of its last heartbeat."""

    name: str
    topics: frozenset[str]
    session_ms: int
    deadline_ms: int
    """When it has died unless it is heard of before."""
    number: int
    """From 1, in the order of joining: stands for the member in metrics, which show no names. No
    other member of these ever has it."""


class Change(NamedTuple):
    """Which queues changed hands; both empty: the generation is the same."""

    granted: Sequence[tuple[Queue, str]] = ()
    """Queue and the member that has it from now on."""
    revoked: Sequence[tuple[Queue, str]] = ()
    """Queue and the member that must not get more of it. It may still be at work on what it got."""
    kept: Sequence[Queue] = ()
    """Granted ones that the member had before the broker started, and nobody else since."""


NOTHING: Final = Change()


class Roster(ABC):
    """The members of one group and the queues of the topics that they subscribe to."""

    def __init__(self, next_generation: Callable[[], int]) -> None:
        """next_generation: a number that no generation of this group had before, and larger."""
        self._next_generation = next_generation
        self.generation = next_generation()
        """Which assignment this is: another one at each change of any assignment."""
        self.members: dict[str, Member] = {}
        self.queues: dict[str, tuple[int, ...]] = {}
        """Topic that somebody subscribes to → its queues."""
        self._joined_count = 0
        """Members that ever were."""

    # -- what each kind of group says of its own -----------------------------------------------

    @abstractmethod
    def assignment(self, name: str) -> list[Queue]:
        """What the member has, sorted."""

    @abstractmethod
    def owner(self, queue: Queue) -> str | None:
        """The member that alone has the queue; None if none has, or all."""

    @abstractmethod
    def holds(self, name: str, queue: Queue) -> bool:
        """Whether the member may say how far it is in the queue."""

    @abstractmethod
    def holder_number(self, queue: Queue) -> int | None:
        """Number of the member that alone has the queue, or had it last and is not done yet.

        0: nobody holds it; None: not known, or all have it.
        """

    @property
    @abstractmethod
    def in_transit(self) -> int:
        """Queues that nobody gets, because a living member still holds them, or may do so."""

    @abstractmethod
    def _plan(self, now_ms: int, claims: Iterable[Queue], claimant: str) -> Change:
        """Assign anew, for members, topics or queues have changed.

        claims: what the claimant says it holds; preferred where nobody else has it.
        """

    @abstractmethod
    def _release(
        self, now_ms: int, name: str, holding: Collection[Queue] | None, knows: int | None
    ) -> Change:
        """Give away what the member says that it holds no longer."""

    @abstractmethod
    def _overdue(self, now_ms: int) -> Change:
        """Give away what was held for too long."""

    @abstractmethod
    def _deadlines(self) -> Iterable[int]:
        """When ``_overdue`` would do something."""

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
        """A member joins, is still there, or wants other topics.

        topics: what it subscribes to, with the queues there are now. holding: what it is at work
        on; None: nothing but what is assigned to it. knows: the generation it has heard of.
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
        """Another program goes on under a member's name: what its earlier one says is void."""
        self.generation = self._next_generation()

    def leave(self, now_ms: int, name: str) -> Change:
        """A member goes; what it had is free at once. KeyError if there is none of that name."""
        del self.members[name]
        self._forget_topics()
        return self._plan(now_ms, (), name)

    def expire(self, now_ms: int) -> Change:
        """Members that were silent for too long have died."""
        dead = [each.name for each in self.members.values() if each.deadline_ms <= now_ms]
        if not dead:
            return self._overdue(now_ms)
        for name in dead:
            del self.members[name]
        self._forget_topics()
        return together(self._overdue(now_ms), self._plan(now_ms, (), ""))

    def set_queues(self, now_ms: int, queues: Mapping[str, Sequence[int]]) -> Change:
        """Topics have other queues than before; those that nobody subscribes to do not matter."""
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
        """When ``expire`` would do something; None if never."""
        return min(
            (*(each.deadline_ms for each in self.members.values()), *self._deadlines()),
            default=None,
        )

    def _forget_topics(self) -> None:
        wanted = frozenset().union(*(each.topics for each in self.members.values()))
        for topic in self.queues.keys() - wanted:
            del self.queues[topic]


def together(first: Change, second: Change) -> Change:
    """Two changes in one step of time.

    What the first granted and the second revoked is granted and revoked: in that order.
    """
    if not (first.granted or first.revoked):
        return second
    again = frozenset(second.revoked)
    granted = [each for each in first.granted if each not in again]
    revoked = [*first.revoked, *second.revoked]
    return Change([*granted, *second.granted], revoked, second.kept)
