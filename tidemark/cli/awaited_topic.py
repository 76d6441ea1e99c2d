"""Finds the topic that a reader asked for, and optionally waits until it is created."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from tidemark.cli.output import READER_RETRY_FOR_S, say
from tidemark.client.client import Client
from tidemark.client.messages import Topic
from tidemark.errors import UnknownTopic

TOPIC_POLL_S: Final = 0.5
QUIET_S: Final = 2.0
"""Time without an answer after which the command says what it is waiting for."""


class AwaitedTopic(NamedTuple):
    """A topic, and whether it was created during the wait."""

    topic: Topic
    is_new: bool


async def awaited_topic(client: Client, name: str, *, wait: bool) -> AwaitedTopic:
    """Return the topic; with ``wait``, after it was created. Otherwise raises UnknownTopic."""
    is_new = False
    limit = f"{READER_RETRY_FOR_S:g} s"
    waits = asyncio.get_running_loop().call_later(
        QUIET_S, say, f"the broker does not answer yet; trying again for up to {limit}"
    )
    try:
        while True:
            try:
                return AwaitedTopic(await client.topic(name), is_new)
            except UnknownTopic:
                if not wait:
                    raise
            waits.cancel()
            if not is_new:
                say(f"topic {name} does not exist yet; waiting for its first message")
                is_new = True
            await asyncio.sleep(TOPIC_POLL_S)
    finally:
        waits.cancel()
