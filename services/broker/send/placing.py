"""Assigns the messages of a request to topics and queues if some of them are delayed. Pure.

Each message gets its queue like any other; a delayed one is then stored in a delay topic, with that
queue in its properties. The request is still one append, all or none. Step before: ``messages`` has
checked the request, ``queue_choice`` has chosen the queues. Step after: ``append`` numbers the
runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from services.broker.send.wanted_delay import Delay, out_of_range
from tidemark.formats import batch, delay
from tidemark.formats.batch import WireMessage
from tidemark.formats.delay import Delayed


class Share(NamedTuple):
    """The messages of a request that go to one queue of one topic, in the request's order."""

    topic: str
    queue: int
    entries: bytes
    message_count: int


class Wait(NamedTuple):
    """The delay of one message: exactly one of the two fields is given."""

    topic: str
    """Due time."""
    after_ms: int | None = None
    """Delay of a level, after the store time."""
    at_ms: int | None = None

    def due_ms(self, store_timestamp_ms: int) -> int:
        """Return when it is due."""
        if self.at_ms is not None:
            return self.at_ms
        assert self.after_ms is not None
        return store_timestamp_ms + self.after_ms


class Placed(NamedTuple):
    """A request divided by topic and queue."""

    shares: list[Share]
    positions: list[int]
    """For each message of the request: its index among all messages of the shares."""
    waits: list[Wait | None]
    """For each message: its delay; None: it is not delayed."""


def place(
    topic: str,
    entries: bytes,
    queues: Sequence[int],
    delays: Sequence[Delay | None],
    *,
    levels_ms: Sequence[int],
    now_ms: int,
) -> Placed:
    """Assign every message to a queue of its own topic or of a delay topic.

    entries: the request's wire entries. queues, delays: one per entry. levels_ms: [0] is the delay
    of level 1. Raises DelayOutOfRange for a time too far ahead.
    """
    parts: dict[tuple[str, int], list[WireMessage]] = {}
    placed: list[tuple[tuple[str, int], int]] = []
    waits: list[Wait | None] = []
    messages = zip(batch.iterate(entries), queues, delays, strict=True)
    for index, (entry, queue, wanted) in enumerate(messages):
        goes, wait = _one(topic, queue, bytes(entry.properties), wanted, levels_ms, now_ms, index)
        key = (goes.topic, goes.queue_id)
        part = parts.setdefault(key, [])
        placed.append((key, len(part)))
        part.append(entry._replace(properties=goes.properties))
        waits.append(wait)
    begins: dict[tuple[str, int], int] = {}
    count = 0
    for key, part in parts.items():
        begins[key] = count
        count += len(part)
    return Placed(
        [Share(*key, batch.encode(part), len(part)) for key, part in parts.items()],
        [begins[key] + number for key, number in placed],
        waits,
    )


def _one(
    topic: str,
    queue: int,
    raw: bytes,
    wanted: Delay | None,
    levels_ms: Sequence[int],
    now_ms: int,
    index: int,
) -> tuple[Delayed, Wait | None]:
    """Return the place of one message, and its delay."""
    if wanted is None:
        return Delayed(topic, queue, raw), None
    if wanted.level is not None:
        goes = delay.by_level(topic, queue, raw, wanted.level, len(levels_ms))
        return goes, Wait(goes.topic, after_ms=levels_ms[goes.queue_id])
    if wanted.at_ms is not None:
        at_ms = wanted.at_ms
        if at_ms - now_ms > delay.DELAY_MS_MAX:
            raise out_of_range(f"messages[{index}].deliver_at_ms", at_ms, index=index)
    else:
        assert wanted.after_ms is not None
        at_ms = now_ms + wanted.after_ms
    goes = delay.by_time(topic, queue, raw, at_ms, now_ms)
    return goes, Wait(goes.topic, at_ms=at_ms) if at_ms > now_ms else None
