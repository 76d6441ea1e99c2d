"""A topic is deleted, and created again, while members of a group read it and others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import tidemark
from tests.support.command import dump
from tests.support.command import tidemark as command
from tests.support.node import Node
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


def test_its_queues_are_gone_after_an_orderly_stop_and_its_numbers_go_on(tmp_path: Path) -> None:
    """RocketMQ serves every queue that has a directory: a deleted topic reappeared."""
    with Node(tmp_path) as node:
        body = {"messages": [{"body_text": str(n), "queue": 0} for n in range(3)]}

        def put(path: str, queues: int) -> None:
            assert node.request_json("PUT", path, {"queues": queues})[0] in (200, 201)

        def send() -> list[int]:
            status, answer = node.request_json("POST", "/v1/topics/refunds/messages", body)
            assert status == 200, answer
            return [result["queue_offset"] for result in answer["results"]]

        node.start()
        node.wait_ready()
        put("/v1/topics/refunds", 2)
        put("/v1/topics/orders", 1)
        assert send() == [0, 1, 2]
        assert node.request_json("DELETE", "/v1/topics/refunds")[0] in (200, 204)
        assert node.stop("broker") == {"broker": 0}
        assert (node.store_dir / "consumequeue" / "refunds" / "0").is_dir()
        assert node.stop("reput") == {"reput": 0}
        assert not (node.store_dir / "abort").exists()
        assert not (node.store_dir / "consumequeue" / "refunds").exists()
        for again in (1, 2):
            node.start()
            node.wait_ready()
            assert node.log_text("reput").count('"queues": "continue"') == again, "nothing is lost"
            put("/v1/topics/refunds", 2)
            status, topic = node.request_json("GET", "/v1/topics/refunds")
            assert status == 200
            assert [topic["queues"][0][end] for end in ("min_offset", "max_offset")] == [
                3,
                3 * again,
            ]
            assert send() == [3 * again + n for n in range(3)]
            assert node.stop("broker") == {"broker": 0}
            assert node.stop("reput") == {"reput": 0}
        command("store", "verify", "--store", node.store_dir)
        (kept,) = (
            queue
            for queue in dump(node.store_dir, "--queues")
            if (queue["topic"], queue["queue"]) == ("refunds", 0)
        )
        assert (kept["min_offset"], kept["max_offset"]) == (3, 9)
