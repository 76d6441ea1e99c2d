"""A topic with batch queues over the real store: sends, reads, look-ups and a group."""

from __future__ import annotations

import tidemark
from tidemark import NewMessage
from tidemark.testing import LocalStore

pytest_plugins = ["tidemark.testing.fixtures"]

COUNT = 11


async def filled(mq: tidemark.Client) -> None:
    """Store messages 0 to 10 as batches of 4, 6 and 1: the first as an ordinary request."""
    await mq.create_topic("orders", queues=1, queue_type="batch")
    messages = [
        NewMessage(b"%d" % number, tags="ab"[number % 2], keys=[f"k{number}"])
        for number in range(COUNT)
    ]
    results = await mq.send_many("orders", messages[:4])
    results += await mq.send_many("orders", messages[4:10])
    results += await mq.send_many("orders", messages[10:])
    assert [each.queue_offset for each in results] == list(range(COUNT))
    ids = [each.message_id for each in results]
    assert [ids.count(each) for each in dict.fromkeys(ids)] == [4, 6, 1]


async def test_messages_are_read_and_found_one_by_one(tidemark_store: LocalStore) -> None:
    async with tidemark.connect(tidemark_store.url) as mq:
        await filled(mq)
        last = await mq.pull("orders", 0, COUNT - 1, wait_ms=30_000)
        assert len(last.messages) == 1, "all are dispatched"
        found = [message async for message in mq.read("orders", 0)]
        assert [(each.queue_offset, each.body) for each in found] == [
            (number, b"%d" % number) for number in range(COUNT)
        ]
        assert [each.queue_offset async for each in mq.read("orders", 0, 6)] == [6, 7, 8, 9, 10]
        tagged = [each.queue_offset async for each in mq.read("orders", 0, tags="b")]
        assert tagged == [1, 3, 5, 7, 9]
        assert await mq.messages_by_key("orders", "k7") == [found[7]]
        by_id = await mq.message_by_id(found[7].message_id, queue_offset=7)
        assert by_id == found[7]
        newest = await mq.message_by_unique_id("orders", found[0].unique_id or "")
        assert newest == found[0]


async def test_a_group_sends_one_message_of_a_batch_back(tidemark_store: LocalStore) -> None:
    async with tidemark.connect(tidemark_store.url) as mq:
        await filled(mq)
        async with mq.subscribe("orders", group="billing", start="first") as messages:
            failed: tidemark.Message | None = None
            for _ in range(COUNT):
                message = await messages.getone(timeout=60)
                assert message is not None
                if message.queue_offset == 6:
                    failed = message
                    await messages.nack(message)
                else:
                    await messages.ack(message)
            tidemark_store.clock.advance(3600)
            again = await messages.getone(timeout=60)
            assert again is not None
            assert failed is not None
            assert (again.topic, again.body, again.keys) == ("orders", b"6", ("k6",))
            assert (again.reconsume_times, again.sys_flag) == (1, 0)
            assert again.unique_id == f"{failed.message_id}-6"
            await messages.ack(again)
        traced = await mq.trace(failed.message_id, queue_offset=6)
        steps = [event.what for event in traced.events]
        assert steps[:4] == ["produced", "flushed", "dispatched", "delivered"]
        assert {"retried", "released", "committed"} <= set(steps)
        lag = (await mq.groups.get("billing")).lag
        assert (lag.messages, lag.bytes) == (0, 0)
