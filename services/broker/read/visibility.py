"""A topic's own retention: it limits what is shown, not what is stored.

A topic with a ``reserve.time`` shows no message older than that, whatever the log still has; its
records are deleted with the log's files like all others. The first visible message of a queue is
found by a binary search over store times, at most once a second, and never moves back while the
process lives: after a step back of the clock no hidden message reappears. After a restart a longer
retention does not show them either, because a change records where queues began before it
(``topic_views``).

Hidden messages are reported in the very step in which they are hidden, so that no read comes
between: groups that had not read them have lost them (``expiry``). Messages hidden by the first
check after a start are not reported, because the process before has reported them.

Step before: a pull, fetch or query asks. Step after: it serves from there on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from services.broker.limits import SHOWN_MS_MAX
from services.broker.state.topics import RESERVE_TIME
from shared.files.consume_queue import ConsumeQueueReader
from shared.files.queue_math import Boundary
from shared.state.records import TopicConfig
from tidemark.clock import Clock

UPDATE_INTERVAL_S: Final = 1.0
QUEUES_KEPT_MAX: Final = 100_000
"""Maximum number of cached queues; the least recently used are dropped; each takes 200 bytes."""


OnHidden = Callable[[str, int, int, int], None]
"""Takes topic, queue and the queue offsets [first, end) of messages that are no longer shown."""


class _Known(NamedTuple):
    at_s: float
    """Time of the last check."""
    first: int
    """Queue offset of the first visible message."""


class Visibility:
    """First visible messages of queues whose topics have a retention. Belongs to one loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: OrderedDict[tuple[str, int], _Known] = OrderedDict()
        self._on_hidden: OnHidden = lambda *_: None

    def report_hidden_to(self, on_hidden: OnHidden) -> None:
        """Call on_hidden when messages are no longer shown, in the same step of the loop."""
        self._on_hidden = on_hidden

    def is_due(self, topic: str, queue: int) -> bool:
        """Return whether the queue must be checked before ``first`` is used."""
        known = self._known.get((topic, queue))
        return known is None or self._clock.monotonic() - known.at_s >= UPDATE_INTERVAL_S

    def first(self, topic: str, queue: int) -> int:
        """Return the first visible queue offset as of the last check; 0 without one."""
        known = self._known.get((topic, queue))
        return 0 if known is None else known.first

    def begin(self, topic: str, queue: int, first: int) -> None:
        """Begin a retention for the topic; until now the queue was visible from first on."""
        self._note((topic, queue), _Known(float("-inf"), first))

    def update(
        self, reader: ConsumeQueueReader, retention_ms: int, *, log_min: int, dispatched: int
    ) -> None:
        """Find where the visible part of the queue begins now. log_min: start of the log."""
        key = (reader.topic, reader.queue)
        oldest_ms = self._clock.wall_ms() - retention_ms
        found = reader.offset_by_time(oldest_ms, Boundary.LOWER, dispatched=dispatched)
        known = self._known.get(key)
        first = int(found) if known is None else max(int(found), known.first)
        self._note(key, _Known(self._clock.monotonic(), first))
        if known is not None:
            before = max(known.first, reader.min_offset(log_min))
            if before < first:
                self._on_hidden(*key, before, first)

    def _note(self, key: tuple[str, int], known: _Known) -> None:
        self._known[key] = known
        self._known.move_to_end(key)
        while len(self._known) > QUEUES_KEPT_MAX:
            self._known.popitem(last=False)

    def forget(self, topic: str) -> None:
        """Forget a topic that has no retention of its own any more, or is deleted."""
        for key in [key for key in self._known if key[0] == topic]:
            del self._known[key]


def retention_of(topic: TopicConfig) -> int | None:
    """Return the topic's own retention [ms]; None without one, or for RocketMQ's other values."""
    text = topic.attributes.get(RESERVE_TIME)
    if text is None or not (text.isascii() and text.isdigit()):
        return None
    value = int(text)
    return value if 0 < value <= SHOWN_MS_MAX else None
