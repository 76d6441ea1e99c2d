"""Resolves where a member of a broadcast group starts. The member resolves it once, when it joins.

A broadcast member does not commit, and the broker forgets its positions at a restart. If the broker
resolved ``last`` again after a restart, the member would skip the messages that arrived meanwhile.
Therefore the member resolves its start offsets before ``subscribe`` is entered and sends its
positions itself from then on.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.client.admin import Admin
from tidemark.client.commits import Queue
from tidemark.client.connection import Connection
from tidemark.client.consumer import Consumer
from tidemark.client.groups import Groups


async def broadcast_starts(
    connection: Connection, group: str, queues: Iterable[Queue]
) -> dict[Queue, int]:
    """Resolve the group's ``start`` setting to the current queue offset of each queue.

    Raises what the calls raise, for example UnknownTopic.
    """
    start = (await Groups(connection).get(group)).group.start
    wanted = set(queues)
    found: dict[Queue, int] = {}
    for topic in sorted({topic for topic, _ in wanted}):
        for each in (await Admin(connection).topic(topic)).ranges:
            queue = topic, each.queue
            if queue not in wanted:
                continue
            if isinstance(start, int):
                found[queue] = await Consumer(connection).offset_by_time(topic, each.queue, start)
            else:
                found[queue] = each.max_offset if start == "last" else each.min_offset
    return found
