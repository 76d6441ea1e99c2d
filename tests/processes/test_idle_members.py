"""More idle members than can be held: none is lost, each gets its message."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import tidemark
from tests.support.node import Node

MEMBERS = 250
HELD_MAX = 20
WITHIN_S = 400.0
SESSION_MS = 60_000


async def test_each_of_many_idle_groups_keeps_its_member_and_gets_its_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """1. Members beyond the bound of held fetches asked again at once, thousands of times a second;
    2. all heartbeats were late; 3. members were removed, and joined again, and again."""
    caplog.set_level(logging.INFO, "tidemark.client")
    got: dict[str, bytes] = {}
    changed = asyncio.Event()

    async def consume(messages: tidemark.Subscription) -> None:
        async for message in messages:
            got[message.topic] = message.body
            changed.set()

    with Node(tmp_path, broker={"held_pulls_max": HELD_MAX}) as node:
        node.start()
        node.wait_ready()
        async with (
            asyncio.timeout(WITHIN_S),
            tidemark.connect(node.api_url) as mq,
            AsyncExitStack() as joined,
        ):
            topics = [f"topic-{number}" for number in range(MEMBERS)]
            for topic in topics:
                await mq.create_topic(topic, queues=1)
            entered = await asyncio.gather(
                *(
                    joined.enter_async_context(
                        mq.subscribe(
                            topic, group=f"group-{topic}", start="first", session_ms=SESSION_MS
                        )
                    )
                    for topic in topics
                )
            )
            consuming = [asyncio.create_task(consume(messages)) for messages in entered]
            for round_number in (b"1", b"2"):  # the second finds all of them waiting
                for topic in topics:
                    await mq.send(topic, round_number, ack="memory")
                while any(got.get(topic) != round_number for topic in topics):
                    changed.clear()
                    await changed.wait()
            polls = node.metric("broker", "tidemark_broker_long_polls")
            assert polls is not None
            assert polls <= HELD_MAX
            for messages in entered:
                messages.stop()
            await asyncio.gather(*consuming)
    events = [getattr(line, "event", None) for line in caplog.records]
    assert "member-forgotten" not in events
    assert "heartbeat-failed" not in events
