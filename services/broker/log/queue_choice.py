"""Which queue each message of a request goes to, and the request cut into runs by it. Pure.

The usual request names no queue, or one: it is one run as it stands, whatever it holds. Only
messages that name different queues, or sharding keys, are looked at one by one. Before:
``messages``. After: ``append`` numbers the runs (write path, step 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from services.broker.api.messages import Pick
from tidemark.errors import UnknownQueue
from tidemark.formats import batch, hashing


class Share(NamedTuple):
    """The messages of a request that go to one queue, in the request's order."""

    queue: int
    entries: bytes
    message_count: int


class Shares(NamedTuple):
    """A request cut by queue."""

    shares: list[Share]
    """In the order in which the request names the queues."""
    positions: list[int]
    """Of each message of the request: its place among all messages of the shares."""


def unknown_queue(topic: str, queue: int, count: int, index: int | None = None) -> UnknownQueue:
    """The refusal of message ``index``, whose queue is none of count; None: of all messages."""
    field = f"messages[{0 if index is None else index}].queue"
    error = UnknownQueue(
        f"{field} is {queue}; topic {topic} has {count} "
        f"queues, 0 to {count - 1}. Nothing was stored.",
        field=field,
        queues=count,
    )
    if index is not None:
        error.facts["index"] = index
    return error


def choose(topic: str, count: int, picks: Sequence[Pick], turn: int) -> list[int]:
    """The queue of every message; those that name none share the one whose turn it is.

    Raises UnknownQueue.
    """
    queues: list[int] = []
    for index, pick in enumerate(picks):
        if isinstance(pick, int):
            if pick >= count:
                raise unknown_queue(topic, pick, count, index)
            queues.append(pick)
        elif pick is not None:
            queues.append(abs(hashing.string_hash(pick)) % count)
        else:
            queues.append(turn)
    return queues


def cut(entries: bytes, queues: Sequence[int]) -> Shares:
    """Cut a request's wire entries by queue; queues: one per entry."""
    parts: dict[int, list[bytes]] = {}
    at = 0
    placed: list[tuple[list[bytes], int]] = []
    for entry, queue in zip(batch.iterate(entries), queues, strict=True):
        end = at + batch.ENTRY_OVERHEAD + len(entry.body) + len(entry.properties)
        part = parts.setdefault(queue, [])
        placed.append((part, len(part)))
        part.append(entries[at:end])
        at = end
    begins: dict[int, int] = {}
    count = 0
    for part in parts.values():
        begins[id(part)] = count
        count += len(part)
    return Shares(
        [Share(queue, b"".join(part), len(part)) for queue, part in parts.items()],
        [begins[id(part)] + index for part, index in placed],
    )
