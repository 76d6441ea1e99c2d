"""Offsets of a topic's queues: the end of a batch, and its partitions. Pure.

An offset is a map from queue to the next queue offset to read; Spark stores queues as texts. All
ranges are half open, so adjacent batches neither overlap nor leave a gap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from analytics.sources.topic.options import Offsets, TopicOptions

Ranges = Mapping[int, tuple[int, int]]
"""Queue → (min offset, max offset): [min, max) can be read."""


class QueuePart(NamedTuple):
    """Work of one task: the messages [low, high) of one queue."""

    queue: int
    low: int
    high: int


def begin(options: TopicOptions, ranges: Ranges) -> dict[int, int]:
    """Offset at which a read begins."""
    match options.first:
        case "first":
            return {queue: low for queue, (low, _) in ranges.items()}
        case "last":
            return {queue: high for queue, (_, high) in ranges.items()}
        case given:
            return {queue: given.get(queue, low) for queue, (low, _) in ranges.items()}


def end_of(options: TopicOptions, ranges: Ranges) -> dict[int, int]:
    """Offset at which a batch ends."""
    given: Offsets = {} if options.end == "last" else options.end
    return {queue: given.get(queue, high) for queue, (_, high) in ranges.items()}


def advance(start: Offsets, ends: Offsets, max_messages: int | None) -> dict[int, int]:
    """Return the offsets to read up to: from start towards ends, max_messages in total.

    max_messages: None: no limit. Queues get equal shares; unused shares go to the others, so that a
    long queue delays no short one. An offset never decreases: a queue that ends before its start
    stays there.
    """
    waiting = {queue: max(0, ends.get(queue, 0) - start.get(queue, 0)) for queue in {*start, *ends}}
    left = sum(waiting.values()) if max_messages is None else max_messages
    reached = dict(start)
    shortest_first = sorted(waiting, key=lambda queue: (waiting[queue], queue))
    for number, queue in enumerate(shortest_first):
        step = min(waiting[queue], -(-left // (len(shortest_first) - number)))
        reached[queue] = start.get(queue, 0) + step
        left -= step
    return dict(sorted(reached.items()))


def cut(start: Offsets, end: Offsets, split_messages: int) -> Iterator[QueuePart]:
    """Cut [start, end) into ranges of at most split_messages offsets."""
    for queue, last in sorted(end.items()):
        for low in range(start.get(queue, 0), last, split_messages):
            yield QueuePart(queue, low, min(low + split_messages, last))


def to_wire(offsets: Offsets) -> dict[str, int]:
    """Offsets as Spark stores them."""
    return {str(queue): offset for queue, offset in sorted(offsets.items())}
