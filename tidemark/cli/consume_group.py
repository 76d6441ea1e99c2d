"""``tidemark consume --group``: consumes as a member of a group and shares the queues with others.

Messages are committed once they are written: asking for the next batch commits the last one, and
leaving releases the queues at once. Without ``--follow`` it ends when the group has committed
everything that the topic and the due retries contained at the start, whichever member did so. Later
retries are not waited for. The step before is ``consume``, which parses the options.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Final

from tidemark.cli.awaited_topic import awaited_topic
from tidemark.cli.message_writer import Writer
from tidemark.cli.output import READER_RETRY_FOR_S, client_for
from tidemark.client.client import Client
from tidemark.client.groups import Start
from tidemark.client.messages import Topic
from tidemark.client.queue_names import Queue
from tidemark.errors import BroadcastGroup, UnknownGroup, UnknownTopic
from tidemark.formats.nack import RETRY_PREFIX

if TYPE_CHECKING:
    from tidemark.client.subscription import Subscription

BATCH_MAX: Final = 1024
POLL_INTERVAL_S: Final = 0.2


async def consume_group(
    url: str,
    topic: str,
    group: str,
    start: Start | None,
    *,
    follow: bool,
    writer: Writer,
) -> None:
    """Write the messages of this member until the end, until enough are written, or forever.

    start: where a group without committed offsets starts: ``first``, ``last``, a time [ms], or None
    for the group's setting. Raises BroadcastGroup if the end could not be detected.
    """
    async with client_for(url, retry_for_s=READER_RETRY_FOR_S) as client:
        found, _ = await awaited_topic(client, topic, wait=follow)
        if not follow:
            await _check_commits(client, group)
        ends = None if follow else _ends(found) | await _ends_of_retries(client, group)
        subscription = client.subscribe(
            topic, group=group, tags=writer.tags or "*", start=start, max_in_flight=BATCH_MAX
        )
        async with subscription as messages, _stopped_at(ends, client, group, messages):
            # One at a time if the number is limited, because a batch is committed as a whole.
            async for batch in messages.batches(max=1 if writer.is_limited else BATCH_MAX):
                writer.write_messages(batch)
                if writer.full:
                    return  # leaving commits the last batch


async def _check_commits(client: Client, group: str) -> None:
    """Raise BroadcastGroup for a group that commits nothing, since commits show the end."""
    try:
        found = await client.groups.get(group)
    except UnknownGroup:
        return  # joining creates it
    if found.group.broadcast:
        raise BroadcastGroup(
            f"group {group!r} is a broadcast group: its members commit nothing, so there is no "
            "end to wait for. Nothing was read.",
            "Add --follow, or leave --group out.",
            group=group,
        )


def _ends(topic: Topic) -> dict[Queue, int]:
    """Return the current end of every queue of the topic that has messages."""
    return {
        (topic.name, queue.queue): queue.max_offset
        for queue in topic.ranges
        if queue.max_offset > queue.min_offset
    }


async def _ends_of_retries(client: Client, group: str) -> dict[Queue, int]:
    """Return the current ends of the group's retry topic, which members also receive."""
    try:
        return _ends(await client.topic(RETRY_PREFIX + group))
    except UnknownTopic:
        return {}


@contextlib.asynccontextmanager
async def _stopped_at(
    ends: Mapping[Queue, int] | None,
    client: Client,
    group: str,
    messages: Subscription,
) -> AsyncIterator[None]:
    """Stop the subscription once the group has committed everything below ``ends``, if given."""

    async def watch(ends: Mapping[Queue, int]) -> None:
        while True:
            committed = await client.groups.offsets(group)
            if all(committed.get(queue, 0) >= end for queue, end in ends.items()):
                return
            await asyncio.sleep(POLL_INTERVAL_S)

    if ends is None:
        yield
        return
    watching = asyncio.create_task(watch(ends))
    # Also if the watch fails: otherwise the subscription would never stop.
    watching.add_done_callback(lambda _: messages.stop())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait({watching})
    if not watching.cancelled():
        watching.result()
