"""A topic that a reader was asked for: looked up, or waited for if nobody has made it yet."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from tidemark.cli.output import say
from tidemark.client.client import Client
from tidemark.client.messages import Topic
from tidemark.errors import UnknownTopic

TOPIC_POLL_S: Final = 0.5


class AwaitedTopic(NamedTuple):
    """A topic, and whether it was waited for."""

    topic: Topic
    is_new: bool


async def awaited_topic(client: Client, name: str, *, wait: bool) -> AwaitedTopic:
    """The topic of this name; wait: until there is one. Raises UnknownTopic if it does not."""
    is_new = False
    while True:
        try:
            return AwaitedTopic(await client.topic(name), is_new)
        except UnknownTopic:
            if not wait:
                raise
        if not is_new:
            say(f"topic {name} does not exist yet; waiting for its first message")
            is_new = True
        await asyncio.sleep(TOPIC_POLL_S)
