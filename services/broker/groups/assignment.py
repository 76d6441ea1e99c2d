"""Which member of a group is to have which queue: sticky and balanced. Pure.

The members of a clustering group share the queues of the topics that they subscribe to. Three
rules, in this order:

- a queue that somebody subscribes to has exactly one member, and one that subscribes to its topic;
- members with equal subscriptions differ by one queue at most, and nobody could take a queue from a
  member that has two more;
- no queue moves unless the second rule asks for it: what is balanced already comes back unchanged.

This is the aim, not yet who has what: ``membership`` takes a queue from a living member only with
its consent. Before: a member came, went, or changed its topics. After: ``membership`` moves queues.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence

from services.broker.log.queue_offsets import Queue


def assign(
    queues: Mapping[str, Sequence[int]],
    subscriptions: Mapping[str, Collection[str]],
    current: Mapping[Queue, str],
    *,
    may_move: bool = True,
) -> dict[Queue, str]:
    """Give every queue that has a subscriber to one member.

    queues: topic → its queues' numbers. subscriptions: member → topics; those that ``queues`` lacks
    have no queues. current: who has, or is about to get, what; members and queues that are gone may
    be in it. may_move: False leaves with everybody what it has, balanced or not. The answer depends
    on these alone: the same again changes nothing.
    """
    plan = _Plan(queues, subscriptions)
    plan.keep(current)
    plan.fill()
    if may_move:
        plan.balance()
    return plan.owners


class _Plan:
    """Queues given out so far, and how many each member has."""

    def __init__(
        self, queues: Mapping[str, Sequence[int]], subscriptions: Mapping[str, Collection[str]]
    ) -> None:
        self._queues = queues
        self._subscribers: dict[str, list[str]] = {}
        for member in sorted(subscriptions):
            for topic in subscriptions[member]:
                if topic in queues:
                    self._subscribers.setdefault(topic, []).append(member)
        self._topics = sorted(self._subscribers)
        self._counts = dict.fromkeys(subscriptions, 0)
        self.owners: dict[Queue, str] = {}

    def keep(self, current: Mapping[Queue, str]) -> None:
        """Leave everything where it is that may stay there."""
        for topic in self._topics:
            subscribers = frozenset(self._subscribers[topic])
            for number in self._queues[topic]:
                owner = current.get((topic, number))
                if owner in subscribers:
                    assert owner is not None
                    self._give((topic, number), owner)

    def fill(self) -> None:
        """Give what nobody has to whoever has least."""
        for topic in self._topics:
            free = [(topic, n) for n in self._queues[topic] if (topic, n) not in self.owners]
            if not free:
                continue
            least = self._by_count(self._subscribers[topic])
            for queue in free:
                count, member = least[0]
                self._give(queue, member)
                heapq.heapreplace(least, (count + 1, member))

    def balance(self) -> None:
        """Move queues from who has most to who has least, while they differ by two or more.

        Every move makes the counts' sum of squares smaller, so this ends.
        """
        moved = True
        while moved:
            moved = False
            for topic in self._topics:
                moved = self._balance_topic(topic) or moved

    def _balance_topic(self, topic: str) -> bool:
        """Move queues of one topic; whether any was.

        Within one topic nobody who gave becomes the one with least, and nobody who took the one
        with most: the two heaps need not hear of each other.
        """
        held: dict[str, list[Queue]] = {}
        for number in self._queues[topic]:
            held.setdefault(self.owners[topic, number], []).append((topic, number))
        most = [(-self._counts[member], member) for member in held]
        heapq.heapify(most)
        least = self._by_count(self._subscribers[topic])
        moved = False
        while most:
            (minus_count, giver), (count, taker) = most[0], least[0]
            if -minus_count - count < 2:
                break
            self._counts[giver] -= 1
            self._give(held[giver].pop(), taker)
            heapq.heapreplace(least, (count + 1, taker))
            if held[giver]:
                heapq.heapreplace(most, (minus_count + 1, giver))
            else:
                heapq.heappop(most)
            moved = True
        return moved

    def _give(self, queue: Queue, member: str) -> None:
        self.owners[queue] = member
        self._counts[member] += 1

    def _by_count(self, members: Iterable[str]) -> list[tuple[int, str]]:
        heap = [(self._counts[member], member) for member in members]
        heapq.heapify(heap)
        return heap
