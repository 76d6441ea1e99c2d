"""Decides which member of a group gets which queue: sticky and balanced. Pure.

The members of a clustering group share the queues of the topics that they subscribe to. There are
three rules, in this order:

- a queue of a subscribed topic has exactly one owner, and the owner subscribes to that topic;
- the queue counts of members with equal subscriptions differ by one at most, and no member could
  take a queue from another that has two more;
- a queue moves only if the second rule requires it: a balanced assignment is returned unchanged.

The result is the target, not the present ownership: ``membership`` takes a queue from a living
member only with its consent. Step before: a member joined, left, or changed its topics. After:
``membership`` moves queues.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence

from tidemark.offsets import Queue


def assign(
    queues: Mapping[str, Sequence[int]],
    subscriptions: Mapping[str, Collection[str]],
    current: Mapping[Queue, str],
    *,
    may_move: bool = True,
    rotation: str = "",
) -> dict[Queue, str]:
    """Give every queue of a subscribed topic to one member.

    queues: topic → its queue numbers. subscriptions: member → topics; topics missing in ``queues``
    are ignored. current: present or intended owners; it may name members and queues that no longer
    exist. may_move: False keeps all present owners, balanced or not. rotation: a name whose hash
    decides which of several members with equally many queues is the first: the broker groups of a
    cluster assign their queues without knowing of each other, and otherwise the first member would
    get the only queue of each. The function is deterministic: equal arguments give an equal result.
    """
    plan = _Plan(queues, subscriptions, rotation)
    plan.keep(current)
    plan.fill()
    if may_move:
        plan.balance()
    return plan.owners


class _Plan:
    """The queues assigned so far, and how many each member has."""

    def __init__(
        self,
        queues: Mapping[str, Sequence[int]],
        subscriptions: Mapping[str, Collection[str]],
        rotation: str,
    ) -> None:
        self._queues = queues
        self._subscribers: dict[str, list[str]] = {}
        members = sorted(subscriptions)
        first = zlib.crc32(rotation.encode()) % len(members) if members else 0
        members = [*members[first:], *members[:first]]
        self._ranks = {member: rank for rank, member in enumerate(members)}
        """Rank of each member among those with equally many queues."""
        for member in members:
            for topic in subscriptions[member]:
                if topic in queues:
                    self._subscribers.setdefault(topic, []).append(member)
        self._topics = sorted(self._subscribers)
        self._counts = dict.fromkeys(subscriptions, 0)
        self.owners: dict[Queue, str] = {}

    def keep(self, current: Mapping[Queue, str]) -> None:
        """Keep each queue with its present owner if that member still subscribes to the topic."""
        for topic in self._topics:
            subscribers = frozenset(self._subscribers[topic])
            for number in self._queues[topic]:
                owner = current.get((topic, number))
                if owner in subscribers:
                    assert owner is not None
                    self._give((topic, number), owner)

    def fill(self) -> None:
        """Give each queue without an owner to the subscriber with the fewest queues."""
        for topic in self._topics:
            free = [(topic, n) for n in self._queues[topic] if (topic, n) not in self.owners]
            if not free:
                continue
            least = self._by_count(self._subscribers[topic])
            for queue in free:
                count, rank, member = least[0]
                self._give(queue, member)
                heapq.heapreplace(least, (count + 1, rank, member))

    def balance(self) -> None:
        """Move queues from the fullest to the emptiest member while they differ by two or more.

        The loop ends because every move decreases the sum of the squared counts.
        """
        moved = True
        while moved:
            moved = False
            for topic in self._topics:
                moved = self._balance_topic(topic) or moved

    def _balance_topic(self, topic: str) -> bool:
        """Move queues of one topic; return whether any moved.

        Within one topic a giver never becomes the member with the fewest queues, nor a taker the
        one with the most. So the two heaps can be updated independently of each other.
        """
        held: dict[str, list[Queue]] = {}
        for number in self._queues[topic]:
            held.setdefault(self.owners[topic, number], []).append((topic, number))
        most = [(-self._counts[member], member) for member in held]
        heapq.heapify(most)
        least = self._by_count(self._subscribers[topic])
        moved = False
        while most:
            (minus_count, giver), (count, rank, taker) = most[0], least[0]
            if -minus_count - count < 2:
                break
            self._counts[giver] -= 1
            self._give(held[giver].pop(), taker)
            heapq.heapreplace(least, (count + 1, rank, taker))
            if held[giver]:
                heapq.heapreplace(most, (minus_count + 1, giver))
            else:
                heapq.heappop(most)
            moved = True
        return moved

    def _give(self, queue: Queue, member: str) -> None:
        self.owners[queue] = member
        self._counts[member] += 1

    def _by_count(self, members: Iterable[str]) -> list[tuple[int, int, str]]:
        heap = [(self._counts[member], self._ranks[member], member) for member in members]
        heapq.heapify(heap)
        return heap
