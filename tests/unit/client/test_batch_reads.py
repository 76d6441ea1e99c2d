"""Reads of batch queues: batches come whole, and the program gets the messages it asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from aiohttp import web

from tests.unit.client.fake_broker import FakeBroker, Fault, answer
from tests.unit.client.group_broker import GroupBroker
from tests.unit.client.test_received import batch_record
from tidemark import connect, errors
from tidemark.formats.batch import WireMessage

BATCH = [WireMessage(b"%d" % each, b"TAGS\x01t%d\x02" % (each % 2)) for each in range(5)]


def pulled(records: bytes, next_offset: int) -> Fault:
    """The answer to a raw pull."""

    async def fault(_request: web.Request) -> web.StreamResponse:
        headers = {
            "Tidemark-Status": "FOUND",
            "Tidemark-Next-Offset": str(next_offset),
            "Tidemark-Min-Offset": "0",
            "Tidemark-Max-Offset": "100",
        }
        kind = "application/vnd.tidemark.records"
        return web.Response(body=records, headers=headers, content_type=kind)

    return fault


async def test_a_pull_inside_a_batch_begins_at_the_asked_message() -> None:
    broker = FakeBroker(queues={"orders": [[]]})
    records = batch_record(10, *BATCH) + batch_record(15, *BATCH)
    async with broker.serve(), connect(broker.url) as mq:
        broker.faults.append(pulled(records, 20))
        found = await mq.pull("orders", 0, 12, max=1)
        assert [each.queue_offset for each in found.messages] == list(range(12, 20))
        assert found.next_offset == 20
        broker.faults.append(pulled(records, 20))
        found = await mq.pull("orders", 0, 12, tags="t1")
        assert [each.queue_offset for each in found.messages] == [13, 16, 18]


# The messages before the offset would be taken for sound ones, and the damage never be reported.
async def test_damage_behind_messages_that_were_not_asked_for_is_reported() -> None:
    broker = FakeBroker(queues={"orders": [[]]}, is_damaged=True)
    damaged = bytearray(batch_record(10, *BATCH))
    damaged[damaged.index(b"t1")] ^= 1
    async with broker.serve(), connect(broker.url) as mq:
        broker.faults.append(pulled(batch_record(5, *BATCH) + damaged, 15))
        found = await mq.pull("orders", 0, 9)
        assert ([each.queue_offset for each in found.messages], found.next_offset) == ([9], 10)
        broker.faults.append(pulled(bytes(damaged), 15))
        with pytest.raises(errors.CorruptRecord):
            await mq.pull("orders", 0, 12)


class BatchBroker(GroupBroker):
    """A group broker whose queue 0 of topic ``orders`` is a batch queue."""

    def __init__(self, batches: Sequence[Sequence[WireMessage]]) -> None:
        super().__init__()
        self.queues["orders"] = [[]]
        self.ends: list[tuple[int, bytes]] = []
        """After each batch: its end, and its record."""
        end = 0
        for each in batches:
            record, end = batch_record(end, *each), end + len(each)
            self.ends.append((end, record))

    def _found(
        self, name: str, count: int, paused: object
    ) -> list[tuple[dict[str, Any], list[bytes]]]:
        queue = ("orders", 0)
        at = self.cursors.get((name, queue), 0)
        for end, record in self.ends:
            if at < end and queue in self.members.get(name, ()):
                self.cursors[name, queue] = end
                facts = {
                    "topic": "orders", "queue": 0, "status": "FOUND", "from_offset": at,
                    "next_offset": end, "min_offset": 0, "max_offset": self.ends[-1][0],
                    "size": len(record),
                }  # fmt: skip
                return [(facts, [record])]
        return []


async def test_a_member_goes_on_inside_a_batch() -> None:
    broker = BatchBroker([BATCH, BATCH])
    broker.committed["orders", 0] = 3
    async with (
        broker.serve(),
        connect(broker.url) as mq,
        mq.subscribe("orders", group="billing") as messages,
    ):
        found = [await messages.getone(timeout=10) for _ in range(7)]
        for message in found:
            assert message is not None
            await messages.ack(message)
    assert [each.queue_offset for each in found if each is not None] == list(range(3, 10))
    assert broker.committed["orders", 0] == 10


# Each message of a batch has the size of its record: 100 of them would count as 10 MB in flight,
# and nothing more be fetched until nearly all were done.
async def test_messages_of_a_batch_do_not_count_as_many_records() -> None:
    large = [WireMessage(bytes(1000))] * 100
    broker = BatchBroker([large, large, large])
    async with (
        broker.serve(),
        connect(broker.url) as mq,
        mq.subscribe("orders", group="billing", max_span=1000) as messages,
    ):
        first = await messages.getone(timeout=10)
        assert first is not None
        await broker.until(lambda: 300 in broker.cursors.values())
        await messages.ack(first)


async def test_a_message_of_a_batch_is_asked_for_by_id_and_queue_offset() -> None:
    asked: list[dict[str, str]] = []

    async def message(request: web.Request) -> web.StreamResponse:
        asked.append(dict(request.query))
        return answer({})

    class Broker(FakeBroker):
        def add_routes(self, app: web.Application) -> None:
            super().add_routes(app)
            app.router.add_get("/v1/messages/{id}", message)
            app.router.add_get("/v1/messages/{id}/trace", message)

    broker = Broker()
    async with broker.serve(), connect(broker.url) as mq:
        for queue_offset in (None, 4):
            with pytest.raises(errors.BrokenAnswer):
                await mq.message_by_id("A" * 32, queue_offset=queue_offset)
            with pytest.raises(errors.BrokenAnswer):
                await mq.trace("A" * 32, queue_offset=queue_offset)
    assert asked == [{}, {}, {"queue_offset": "4"}, {"queue_offset": "4"}]


async def test_of_more_messages_than_asked_for_the_newest_are_returned() -> None:
    wire = {
        "topic": "orders", "queue": 0, "body": b"", "message_id": "A", "unique_id": None,
        "physical_offset": 0, "size": 9, "tags": None, "keys": [], "properties": {},
        "born_timestamp_ms": 0, "store_timestamp_ms": 0, "born_host": "h", "store_host": "h",
        "reconsume_times": 0, "flag": 0, "sys_flag": 0, "body_crc": 0, "tags_code": 0,
        "prepared_transaction_offset": 0,
    }  # fmt: skip

    async def query(_request: web.Request) -> web.StreamResponse:
        batch = [{**wire, "queue_offset": offset} for offset in range(5)]
        return answer({"messages": batch, "next": "more"})

    class Broker(FakeBroker):
        def add_routes(self, app: web.Application) -> None:
            super().add_routes(app)
            app.router.add_get("/v1/topics/{topic}/messages", query)

    broker = Broker()
    async with broker.serve(), connect(broker.url) as mq:
        found = await mq.messages_by_key("orders", "k", max=2)
        newest = await mq.message_by_unique_id("orders", "U")
    assert [each.queue_offset for each in found] == [3, 4]
    assert newest.queue_offset == 4
