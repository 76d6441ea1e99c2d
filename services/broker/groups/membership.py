"""A clustering group: its members share the queues, and a queue changes hands safely. Pure.

What is to be (``assignment``) and what is differ for a while: a queue that is taken from a living
member is *in transit*. Nobody gets messages of it until that member has said that it is done with
what it got, has left, has died, or its session has passed once since. Otherwise: 1. member A works
on messages of a queue; 2. B joins and gets the queue, from the last commit on; 3. both handle the
same messages, and of an ordered queue B handles a later one before A has finished an earlier one.

Of members that were there before the broker started nothing is known: their queues are in transit,
too, until one of them claims them or cannot hold them any more (``inherited``). As long as that
lasts no queue is taken from whoever has one: who comes last would take from the others what it then
claims itself, and a claim that is not granted costs its member what it has in its hands.

Invariants, checked by tests over random histories:

- a queue has at most one owner, and its owner in one generation is the same throughout;
- a queue that somebody holds in transit, or that is waited for, has no owner;
- every queue with a subscriber has an owner, is in transit or is waited for.

Step before: ``coordinator`` takes a call, or time has passed. Step after: it gives the places in
the queues to the sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from services.broker.groups.assignment import assign
from services.broker.groups.inherited import Inherited
from services.broker.groups.roster import NOTHING, Change, Roster, together
from services.broker.log.queue_offsets import Queue


class Transit(NamedTuple):
    """A queue that was taken from a living member."""

    holder: str
    generation: int
    """The last one in which the holder was the owner: who knows no later one has not heard yet."""
    deadline_ms: int


class Membership(Roster):
    """One clustering group."""

    def __init__(
        self, next_generation: Callable[[], int], inherited: Inherited | None = None
    ) -> None:
        """inherited: what members of before the broker's start may hold; None: nothing."""
        super().__init__(next_generation)
        self._inherited = inherited
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

    def holder_number(self, queue: Queue) -> int | None:
        """See ``Roster``. None: a member of before the broker started may hold the queue."""
        name = self._owners.get(queue)
        if name is None:
            transit = self._transit.get(queue)
            if transit is None:
                return None if self.is_awaited(queue) else 0
            name = transit.holder
        return self.members[name].number

    def is_awaited(self, queue: Queue) -> bool:
        """Whether somebody may hold the queue since before the broker started."""
        return self._inherited is not None and queue in self._inherited.queues

    @property
    def in_transit(self) -> int:
        """Queues that nobody gets, because a living member still holds them, or may do so."""
        awaited = 0
        if self._inherited is not None:
            awaited = sum(
                number in self.queues.get(topic, ()) for topic, number in self._inherited.queues
            )
        return len(self._transit) + awaited

    def _plan(self, now_ms: int, claims: Iterable[Queue], claimant: str) -> Change:
        if self._inherited is not None and (member := self.members.get(claimant)) is not None:
            self._inherited.joins(member.session_ms)
        self._settle(now_ms)
        self._target = assign(
            self.queues,
            {member.name: member.topics for member in self.members.values()},
            self._leanings(claims, claimant),
            may_move=self._inherited is None,
        )
        kept: list[Queue] = []
        if self._inherited is not None:
            for queue in claims:
                if self._target.get(queue) == claimant and self._inherited.claim(queue):
                    kept.append(queue)
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
        return self._changed(self._grant(self._target), revoked)._replace(kept=tuple(kept))

    def _leanings(self, claims: Iterable[Queue], claimant: str) -> dict[Queue, str]:
        """Who is to be preferred for each queue: who has it, or is about to get it."""
        leanings = dict.fromkeys(claims, claimant)
        for queue, transit in self._transit.items():
            leanings[queue] = transit.holder
        for queue, name in self._target.items():
            if self.is_awaited(queue):
                continue  # who it was meant for has not got it: a claim goes first
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
        freed = self._free(
            [queue for queue, transit in self._transit.items() if transit.deadline_ms <= now_ms]
        )
        if not self._settle(now_ms):
            return freed
        return together(freed, self._plan(now_ms, (), ""))

    def _settle(self, now_ms: int) -> bool:
        """End the wait for members of before the start if it is over; whether it ends now."""
        if self._inherited is None or not self.members or now_ms < self._inherited.until_ms:
            return False
        self._inherited.give_up()
        self._inherited = None
        return True

    def _deadlines(self) -> Iterable[int]:
        if self._inherited is not None and self.members:
            yield self._inherited.until_ms
        for transit in self._transit.values():
            yield transit.deadline_ms

    def _free(self, queues: Collection[Queue]) -> Change:
        """End the transit of these queues."""
        for queue in queues:
            del self._transit[queue]
        return self._changed(self._grant(queues), [])

    def _grant(self, queues: Iterable[Queue]) -> list[tuple[Queue, str]]:
        """Give those of the queues that nobody holds to whom they are meant for."""
        granted: list[tuple[Queue, str]] = []
        for queue in queues:
            if queue in self._owners or queue in self._transit or self.is_awaited(queue):
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
