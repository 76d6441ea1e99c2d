"""A clustering group: its members share the queues, and a queue changes its owner safely. Pure.

Target (``assignment``) and present owners differ for a while: a queue that was taken from a living
member is *in transit*. No member gets messages of it until the former owner has confirmed that it
is done with what it received, has left, has died, or one session length has passed. Otherwise:
1. member A works on messages of a queue; 2. B joins and gets the queue, from the last commit on;
3. both handle the same messages, and in an ordered group B handles a later one before A has
finished an earlier one.

After a restart the former members are unknown: their queues are in transit too, until one of them
claims them or can no longer hold them (``restored_claims``). During that wait no queue is taken
from an owner: a member that joins late would take queues from the others for the ones that it is
about to claim, and a member whose claim is refused loses the messages in its hands.

Invariants, checked by tests over random histories:

- a queue has at most one owner, and the same one throughout a generation;
- a queue that is in transit, or is waited for, has no owner;
- every queue with a subscriber has an owner, is in transit or is waited for.

Step before: ``coordinator`` takes a call, or time has passed. Step after: it gives the places in
the queues to the sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from services.broker.groups.assignment import assign
from services.broker.groups.group_membership import NOTHING, Change, GroupMembership, together
from services.broker.groups.restored_claims import RestoredClaims
from tidemark.offsets import Queue


class Transit(NamedTuple):
    """A queue that was taken from a living member."""

    holder: str
    generation: int
    """Last generation in which the holder was the owner: a member that reports this or an earlier
    one does not know of the change yet."""
    deadline_ms: int


class Membership(GroupMembership):
    """The members of one clustering group."""

    def __init__(
        self,
        next_generation: Callable[[], int],
        inherited: RestoredClaims | None = None,
        *,
        rotation: str = "",
    ) -> None:
        """inherited: queues that members from before the broker's start may hold; None: there are
        none. rotation: see ``assign``."""
        super().__init__(next_generation)
        self._rotation = rotation
        self._inherited = inherited
        self._target: dict[Queue, str] = {}
        self._owners: dict[Queue, str] = {}
        self._owned: dict[str, set[Queue]] = {}
        self._transit: dict[Queue, Transit] = {}

    def assignment(self, name: str) -> list[Queue]:
        """Return the member's queues, sorted."""
        return sorted(self._owned.get(name, ()))

    def owner(self, queue: Queue) -> str | None:
        """Owner of the queue; None if it has none."""
        return self._owners.get(queue)

    def holder(self, queue: Queue) -> str | None:
        """Return the member that a queue in transit was taken from; None if it is not in
        transit."""
        transit = self._transit.get(queue)
        return None if transit is None else transit.holder

    def holds(self, name: str, queue: Queue) -> bool:
        """Return whether the member owns the queue, or owned it last and is not done yet."""
        return self._owners.get(queue) == name or self.holder(queue) == name

    def holder_number(self, queue: Queue) -> int | None:
        """See ``GroupMembership``. None: a member from before the broker's start may hold the
        queue."""
        name = self._owners.get(queue)
        if name is None:
            transit = self._transit.get(queue)
            if transit is None:
                return None if self.is_awaited(queue) else 0
            name = transit.holder
        return self.members[name].number

    def is_awaited(self, queue: Queue) -> bool:
        """Return whether a member from before the broker's start may hold the queue."""
        return self._inherited is not None and queue in self._inherited.queues

    @property
    def in_transit(self) -> int:
        """Return the number of queues held back for a member that holds them, or may do so."""
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
            self._preferred_owners(claims, claimant),
            may_move=self._inherited is None,
            rotation=self._rotation,
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

    def _preferred_owners(self, claims: Iterable[Queue], claimant: str) -> dict[Queue, str]:
        """Return the preferred member of each queue: its owner or the intended one."""
        leanings = dict.fromkeys(claims, claimant)
        for queue, transit in self._transit.items():
            leanings[queue] = transit.holder
        for queue, name in self._target.items():
            if self.is_awaited(queue):
                continue  # the intended owner does not have it yet, so a claim takes precedence
            # If the intended owner left, the queue goes back to its holder, who never lost it.
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
                # A heartbeat without a list may have been sent before the member learned of it.
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
        """End the wait for former members if it is over; return whether it ended now."""
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
        """Give each of the queues that has no holder to its intended owner."""
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
