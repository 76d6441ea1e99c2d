"""A clustering group: its members share the queues, and a queue changes hands safely. Pure.

What is to be (``assignment``) and what is differ for a while: a queue that is taken from a living
member is *in transit*. Nobody gets messages of it until that member has said that it is done with
what it got, has left, has died, or its session has passed once since. Otherwise: 1. member A works
on messages of a queue; 2. B joins and gets the queue, from the last commit on; 3. both handle the
same messages, and of an ordered queue B handles a later one before A has finished an earlier one.

Invariants, checked by tests over random histories:

- a queue has at most one owner, and its owner in one generation is the same throughout;
- a queue that somebody holds in transit has no owner;
- every queue with a subscriber has an owner or is in transit.

Step before: ``coordinator`` takes a call, or time has passed. Step after: it gives the places in
the queues to the sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from services.broker.groups.assignment import assign
from services.broker.groups.roster import NOTHING, Change, Roster
from services.broker.queue_offsets import Queue


class Transit(NamedTuple):
    """A queue that was taken from a living member."""

    holder: str
    generation: int
    """The last one in which the holder was the owner: who knows no later one has not heard yet."""
    deadline_ms: int


class Membership(Roster):
    """One clustering group."""

    def __init__(self, next_generation: Callable[[], int]) -> None:
        super().__init__(next_generation)
        self._target: dict[Queue, str] = {}
        self._owners: dict[Queue, str] = {}
        self._owned: dict[str, set[Queue]] = {}
        self._transit: dict[Queue, Transit] = {}

    def assignment(self, name: str) -> list[Queue]:
        """What the member has, sorted."""
        return sorted(self._owned.get(name, ()))

    def owner(self, queue: Queue) -> str | None:
        """The member that has the queue; None if none has."""
        return self._owners.get(queue)

    def holder(self, queue: Queue) -> str | None:
        """The member that a queue in transit was taken from; None if it is not in transit."""
        transit = self._transit.get(queue)
        return None if transit is None else transit.holder

    def holds(self, name: str, queue: Queue) -> bool:
        """Whether the member has the queue, or had it last and is not done yet."""
        return self._owners.get(queue) == name or self.holder(queue) == name

    @property
    def in_transit(self) -> int:
        """Queues that nobody gets, because a living member still holds them."""
        return len(self._transit)

    def _plan(self, now_ms: int, claims: Iterable[Queue], claimant: str) -> Change:
        self._target = assign(
            self.queues,
            {member.name: member.topics for member in self.members.values()},
            self._leanings(claims, claimant),
        )
        revoked: list[tuple[Queue, str]] = []
        for queue, owner in list(self._owners.items()):
            if self._target.get(queue) != owner:
                revoked.append((queue, owner))
                del self._owners[queue]
                self._owned[owner].discard(queue)
                if (member := self.members.get(owner)) is not None:
                    deadline_ms = now_ms + member.session_ms
                    self._transit[queue] = Transit(owner, self.generation, deadline_ms)
        for name in self._owned.keys() - self.members.keys():
            del self._owned[name]
        for queue, transit in list(self._transit.items()):
            if transit.holder not in self.members or self._target.get(queue) == transit.holder:
                del self._transit[queue]
        return self._changed(self._grant(self._target), revoked)

    def _leanings(self, claims: Iterable[Queue], claimant: str) -> dict[Queue, str]:
        """Who is to be preferred for each queue: who has it, or is about to get it."""
        leanings = dict.fromkeys(claims, claimant)
        for queue, transit in self._transit.items():
            leanings[queue] = transit.holder
        for queue, name in self._target.items():
            # One that has gone leaves a queue in transit to its holder, who then never lost it.
            if (member := self.members.get(name)) is not None and queue[0] in member.topics:
                leanings[queue] = name
        return leanings

    def _release(
        self, now_ms: int, name: str, holding: Collection[Queue] | None, knows: int | None
    ) -> Change:
        if not self._transit:
            return NOTHING
        free: list[Queue] = []
        for queue, transit in self._transit.items():
            if transit.holder == name and (
                # Without a list, a heartbeat that was sent before the member heard says nothing.
                (knows is None or knows > transit.generation)
                if holding is None
                else queue not in holding
            ):
                free.append(queue)
        return self._free(free)

    def _overdue(self, now_ms: int) -> Change:
        return self._free(
            [queue for queue, transit in self._transit.items() if transit.deadline_ms <= now_ms]
        )

    def _deadlines(self) -> Iterable[int]:
        return (transit.deadline_ms for transit in self._transit.values())

    def _free(self, queues: Collection[Queue]) -> Change:
        """End the transit of these queues."""
        for queue in queues:
            del self._transit[queue]
        return self._changed(self._grant(queues), [])

    def _grant(self, queues: Iterable[Queue]) -> list[tuple[Queue, str]]:
        """Give those of the queues that nobody holds to whom they are meant for."""
        granted: list[tuple[Queue, str]] = []
        for queue in queues:
            if queue in self._owners or queue in self._transit:
                continue
            name = self._target.get(queue)
            if name is not None and name in self.members:
                self._owners[queue] = name
                self._owned.setdefault(name, set()).add(queue)
                granted.append((queue, name))
        return granted

    def _changed(
        self, granted: list[tuple[Queue, str]], revoked: list[tuple[Queue, str]]
    ) -> Change:
        if not granted and not revoked:
            return NOTHING
        self.generation = self._next_generation()
        return Change(granted, revoked)
