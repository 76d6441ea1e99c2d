"""Chooses the broker group and the queue of a message, in a cluster of several. Pure.

Messages without a key go round all writable queues of all broker groups. A sharding key always
belongs to the same queue as long as the topic's queues are the same, whether their broker groups
answer or not: queue number ``abs(hash(key)) % count`` of all writable queues, sorted by broker
group and queue. ``hash`` is Java's ``String.hashCode``, with which a broker chooses too
(docs/client.md has test vectors). Broker groups that failed are left out for a while (``Outages``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tidemark.client.routes import Routes
from tidemark.formats import hashing

OUTAGE_FIRST_S: Final = 0.5
"""How long a broker group is left out after a failed call."""
OUTAGE_MAX_S: Final = 8.0
"""Maximum of that time, which doubles with every failure in a row."""


class GroupQueue(NamedTuple):
    """One queue of a topic in a cluster."""

    broker_group: str
    queue: int


def writable_queues(routes: Routes) -> tuple[GroupQueue, ...]:
    """All queues of a topic that accept messages, sorted by broker group and queue."""
    return tuple(
        GroupQueue(each.broker_group, queue)
        for each in routes.groups
        if each.writable
        for queue in range(each.queues)
    )


def queue_of_key(queues: Sequence[GroupQueue], key: str) -> GroupQueue:
    """Return the queue of a sharding key. queues: those of ``writable_queues``, at least one."""
    return queues[abs(hashing.string_hash(key)) % len(queues)]


def alternating(queues: Sequence[GroupQueue]) -> tuple[str, ...]:
    """Broker groups in the order in which messages without a key go to them.

    Each occurs as often as it has queues, and its turns are spread: its broker chooses the queue.
    """
    return tuple(
        each.broker_group for each in sorted(queues, key=lambda at: (at.queue, at.broker_group))
    )


class Outages:
    """The broker groups that failed lately. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._failures: dict[str, int] = {}
        self._until_s: dict[str, float] = {}

    def failed(self, broker_group: str, now_s: float) -> None:
        """Leave a broker group out for a while. Failures during that time do not prolong it."""
        if self.is_out(broker_group, now_s):
            return
        count = self._failures[broker_group] = self._failures.get(broker_group, 0) + 1
        left_out_s = min(OUTAGE_MAX_S, OUTAGE_FIRST_S * 2.0 ** min(count - 1, 10))
        self._until_s[broker_group] = now_s + left_out_s

    def answered(self, broker_group: str) -> None:
        """Take a broker group in again."""
        if broker_group in self._failures:
            del self._failures[broker_group], self._until_s[broker_group]

    def is_out(self, broker_group: str, now_s: float) -> bool:
        """Whether the broker group is left out now."""
        return self._until_s.get(broker_group, now_s) > now_s


def in_turn(order: Sequence[str], turn: int, outages: Outages, now_s: float) -> list[str]:
    """Broker groups that a message without a key tries, one after another, each once.

    It begins with place ``turn`` of the order. Those that are left out come last, because all
    others may fail too.
    """
    start = turn % len(order)
    groups = list(dict.fromkeys([*order[start:], *order[:start]]))
    return sorted(groups, key=lambda each: outages.is_out(each, now_s))
