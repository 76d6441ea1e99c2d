"""A topic is deleted, and made again, while members of a group read it and others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import tidemark
from tidemark import errors
from tidemark.testing import LocalNode

WITHIN_S = 120.0
TOPICS = {"orders": "*", "refunds": "*"}


# The subscription ended with UnknownTopic, for `orders` too.
async def test_a_member_goes_on_with_the_topics_that_are_left(tmp_path: Path) -> None:
    got: asyncio.Queue[bytes] = asyncio.Queue()

    async def handle(message: tidemark.Message) -> None:
        got.put_nowait(message.body)

    with LocalNode(tmp_path / "node") as node:
        async with tidemark.connect(node.url) as mq, asyncio.timeout(WITHIN_S):
            for topic in TOPICS:
                await mq.create_topic(topic, queues=2)
            async with mq.subscribe(TOPICS, group="billing", start="first") as messages:
                running = asyncio.create_task(messages.run(handle))
                for round_ in range(2):
                    bodies = {b"%s-%d" % (topic.encode(), round_) for topic in TOPICS}
                    for topic in TOPICS:
                        await mq.send(topic, b"%s-%d" % (topic.encode(), round_))
                    assert {await got.get(), await got.get()} == bodies
                    await mq.delete_topic("refunds")
                    await mq.send("orders", b"after-%d" % round_)
                    assert await got.get() == b"after-%d" % round_
                    await mq.create_topic("refunds", queues=3)
                await mq.delete_topic("orders")
                await mq.delete_topic("refunds")
                with pytest.raises(errors.UnknownTopic):
                    await running


async def test_a_message_in_hand_of_a_topic_that_is_deleted_ends_nothing(tmp_path: Path) -> None:
    with LocalNode(tmp_path / "node") as node:
        async with tidemark.connect(node.url) as mq, asyncio.timeout(WITHIN_S):
            for topic in TOPICS:
                await mq.create_topic(topic, queues=1)
            for fails in (False, True):
                for n in range(3):
                    await mq.send("refunds", b"%d" % n)
                seen: list[str] = []
                failed, done = asyncio.Event(), asyncio.Event()

                async def handle(
                    message: tidemark.Message,
                    fails: bool = fails,
                    seen: list[str] = seen,
                    failed: asyncio.Event = failed,
                    done: asyncio.Event = done,
                ) -> None:
                    seen.append(message.topic)
                    if message.topic == "orders":
                        done.set()
                    elif not failed.is_set():
                        await mq.delete_topic("refunds")
                        failed.set()
                        if fails:
                            raise ZeroDivisionError

                async with mq.subscribe(TOPICS, group="billing", start="first") as messages:
                    running = asyncio.create_task(messages.run(handle))
                    await failed.wait()
                    await mq.send("orders", b"on")
                    waiting = asyncio.create_task(done.wait())
                    await asyncio.wait({waiting, running}, return_when=asyncio.FIRST_COMPLETED)
                    assert not running.done(), running.exception()
                    messages.stop()
                    await running
                assert seen[-1] == "orders"
                await mq.create_topic("refunds", queues=1)


async def test_a_member_joins_a_broker_that_started_without_one_of_its_topics(
    tmp_path: Path,
) -> None:
    with LocalNode(tmp_path / "node") as node:
        async with tidemark.connect(node.url) as mq, asyncio.timeout(WITHIN_S):
            for topic in TOPICS:
                await mq.create_topic(topic, queues=1)
            async with mq.subscribe(TOPICS, group="billing", start="first") as messages:
                await mq.send("orders", b"1")
                message = await messages.getone()
                assert message is not None
                await messages.ack(message)
                await messages.commit(ack="disk")
                await mq.delete_topic("refunds")
                node.kill()
                node.start()
                await mq.send("orders", b"2")
                message = await messages.getone()
                assert message is not None
                assert message.body == b"2"
                await messages.ack(message)
                await mq.create_topic("refunds", queues=1)
                await mq.send("refunds", b"3")
                message = await messages.getone()
                assert message is not None
                assert message.body == b"3"
