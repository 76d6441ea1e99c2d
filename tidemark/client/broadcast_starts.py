"""Where a member of a broadcast group begins, found out when it joins and kept by the member.

Nobody commits for such a member, and the broker forgets its places when it restarts: resolved anew
then, ``last`` would pass over what came while the member was away. So the member asks once, before
``subscribe`` is entered, and from then on says its places itself.
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
    """Queue offset of each queue that the group's ``start`` means now.

    Raises what the calls raise, UnknownTopic among them.
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
