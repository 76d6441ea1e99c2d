"""Chooses the queue of each message of a request and splits the request by queue. Pure.

Most requests name no queue or one queue: such a request is one run, whatever its size. Messages are
processed one by one only if they name different queues or sharding keys. ``messages`` comes before
this step; after it ``append`` numbers the runs (write path, step 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from services.broker.send.request import Pick
from tidemark.errors import UnknownQueue
from tidemark.formats import batch, hashing


class Share(NamedTuple):
    """The messages of a request that go to one queue, in the request's order."""

    queue: int
    entries: bytes
    message_count: int


class Shares(NamedTuple):
    """A request split by queue."""

    shares: list[Share]
    """One share per queue, in the order in which the request names the queues."""
    positions: list[int]
    """For each message of the request, its index among all messages of the shares."""


def unknown_queue(
    topic: str, queue: int, count: int, index: int | None = None, *, field: str = ""
) -> UnknownQueue:
    """Return the error for a queue number that is too large.

    index: index of the message; None: all messages. field: where the number is; "": in the message.
    """
    field = field or f"messages[{0 if index is None else index}].queue"
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
    """Return the queue of every message; messages that name none go to the queue ``turn``.

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
    """Split a request's wire entries by queue; queues: one per entry."""
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
