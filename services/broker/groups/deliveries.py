"""Recent deliveries: for the trace of a message, and to count redeliveries. Pure.

Each batch has one entry in a ring per queue. If there are too many queues, those that were idle
longest are dropped. Deliveries are kept in memory only: after a restart, and for old messages, they
are unknown (None). Step before: ``fetch`` delivered a batch. After: ``trace`` asks about one
message.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, NamedTuple

from tidemark.offsets import Queue

QUEUES_MAX: Final = 10_000
BATCHES_PER_QUEUE_MAX: Final = 64


class Delivery(NamedTuple):
    """A batch that a member received: the queue offsets [first, end)."""

    first: int
    end: int
    member: str
    generation: int
    at_ms: int
    """Wall clock time."""


class Deliveries:
    """The last batches of each group and queue."""

    def __init__(
        self,
        *,
        queues_max: int = QUEUES_MAX,
        batches_per_queue_max: int = BATCHES_PER_QUEUE_MAX,
    ) -> None:
        self._rings: OrderedDict[tuple[str, Queue], tuple[deque[Delivery], int]] = OrderedDict()
        self._queues_max = queues_max
        self._batches_max = batches_per_queue_max

    def note(self, group: str, queue: Queue, delivery: Delivery) -> int:
        """Remember a batch; return how many of its messages are known to have been handed out
        earlier."""
        key = (group, queue)
        ring, high = self._rings.pop(key, (None, delivery.first))
        if ring is None:
            ring = deque(maxlen=self._batches_max)
        ring.append(delivery)
        self._rings[key] = ring, max(high, delivery.end)
        while len(self._rings) > self._queues_max:
            self._rings.popitem(last=False)
        return max(0, min(high, delivery.end) - delivery.first)

    def find(self, group: str, queue: Queue, queue_offset: int) -> list[Delivery]:
        """Return the batches that held the message, oldest first, as far as they are remembered."""
        ring, _ = self._rings.get((group, queue), ((), 0))
        return [each for each in ring if each.first <= queue_offset < each.end]

    def forget(self, group: str) -> None:
        """Forget the deliveries of a deleted group."""
        for key in [key for key in self._rings if key[0] == group]:
            del self._rings[key]
