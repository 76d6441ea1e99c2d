"""The type of a topic's queues: chosen when it is created, and never changed for its messages."""

from __future__ import annotations

import pytest

from services.broker.state.topics import StoredQueues, Topics
from shared.state.json_tables import config_of, entry_of
from shared.state.records import TopicConfig, TopicRecord
from shared.state.state import BrokerState
from shared.state.values import QUEUE_TYPE
from tests.unit.broker.state.test_topics import Broker, FakeLog
from tidemark.errors import NotPermitted
from tidemark.formats.metadata_json import TopicEntry, TopicsTable, parse_topics, topics_text


async def test_a_batch_topic_has_the_attribute_of_rocketmq_and_a_simple_one_has_none() -> None:
    broker = Broker()
    batches = (await broker.topics.create("batches", 4, is_batch=True)).topic
    simple = (await broker.topics.create("simple", 4, is_batch=False)).topic
    assert batches.attributes == {"queue.type": "BatchCQ"}
    assert simple.attributes == {}
    assert (batches.queue_type, simple.queue_type) == ("batch", "simple")


async def test_the_type_is_known_after_a_restart() -> None:
    broker = Broker()
    await broker.topics.create("batches", 4, is_batch=True)
    assert broker.restarted().topics.get("batches").is_batch


@pytest.mark.parametrize("is_batch", [True, False])
async def test_the_type_of_an_existing_topic_cannot_be_changed(is_batch: bool) -> None:
    broker = Broker()
    await broker.topics.create("orders", 4, is_batch=is_batch)
    with pytest.raises(NotPermitted, match=r"has (batch|simple) queues") as caught:
        await broker.topics.create("orders", 8, is_batch=not is_batch)
    assert caught.value.facts["queue_type"] == ("batch" if is_batch else "simple")
    assert broker.topics.get("orders").queues == 4
    assert len(broker.log.bodies) == 1


async def test_a_change_without_a_type_keeps_it() -> None:
    broker = Broker()
    await broker.topics.create("orders", 4, is_batch=True)
    await broker.topics.create("orders", 8, attributes={"reserve.time": "5"})
    changed = await broker.topics.create("orders", 8, is_batch=True)
    assert changed.topic.attributes == {"queue.type": "BatchCQ", "reserve.time": "5"}


async def test_a_deleted_name_without_messages_may_have_another_type() -> None:
    broker = Broker()
    await broker.topics.create("orders", 4, is_batch=True)
    await broker.topics.delete("orders")
    assert not (await broker.topics.create("orders", 4)).topic.is_batch


async def test_a_deleted_name_with_messages_keeps_its_type() -> None:
    broker = Broker()
    await broker.topics.create("orders", 4, is_batch=True)
    broker.sent("orders", 3, 7)
    await broker.topics.delete("orders")
    with pytest.raises(NotPermitted, match="had, before its deletion, batch queues"):
        await broker.topics.create("orders", 4, is_batch=False)
    assert (await broker.topics.create("orders", 4)).topic.is_batch


async def test_a_send_creates_a_simple_topic_or_one_as_it_was() -> None:
    broker = Broker(auto_create_queues=4)
    await broker.topics.create("orders", 4, is_batch=True)
    broker.sent("orders", 0, 1)
    await broker.topics.delete("orders")
    assert (await broker.topics.for_sending("orders")).is_batch
    assert not (await broker.topics.for_sending("new")).is_batch


async def test_a_batch_creates_a_topic_with_batch_queues() -> None:
    broker = Broker(auto_create_queues=4)
    assert (await broker.topics.for_sending("new", is_batch=True)).is_batch
    await broker.topics.create("old", 4, is_batch=False)
    assert not (await broker.topics.for_sending("old", is_batch=True)).is_batch
    broker.sent("old", 0, 1)
    await broker.topics.delete("old")
    with pytest.raises(NotPermitted):
        await broker.topics.for_sending("old", is_batch=True)


async def test_topics_that_only_have_queues_in_the_store_have_their_type() -> None:
    stored = StoredQueues({("batches", 0), ("simple", 1)}, batch_topics={"batches"})
    broker = Broker()
    topics = Topics(BrokerState(), FakeLog(), broker.offsets, flushed=lambda: 0, stored=stored)
    assert topics.get("batches").is_batch
    assert not topics.get("simple").is_batch
    with pytest.raises(NotPermitted):
        await topics.create("batches", 4, is_batch=False)
    assert (await topics.create("batches", 4)).topic.is_batch


def test_only_existing_topics_of_users_take_batches() -> None:
    broker = Broker()
    attributes = {"queue.type": "BatchCQ"}
    for name in ("batches", "%RETRY%group"):
        broker.state.apply(TopicRecord(0, TopicConfig(name, 4, 4, attributes=attributes)))
    broker.state.apply(TopicRecord(0, TopicConfig("simple", 4, 4)))
    found = [broker.topics.is_batch(name) for name in ("batches", "simple", "none", "%RETRY%group")]
    assert found == [True, False, False, False]


@pytest.mark.parametrize(
    ("attributes", "queue_type"),
    [
        ({}, "simple"),
        ({"queue.type": "SimpleCQ"}, "simple"),
        ({"queue.type": "BatchCQ", "reserve.time": "5"}, "batch"),
    ],
)
def test_the_json_file_keeps_the_type(attributes: dict[str, str], queue_type: str) -> None:
    entry = TopicEntry("orders", attributes=attributes)
    table = TopicsTable(parse_topics("{}").version, {"orders": entry})
    read = config_of(parse_topics(topics_text(table)).topics["orders"])
    assert read.queue_type == queue_type
    assert entry_of(read).attributes == attributes


def test_a_topic_without_attributes_is_simple() -> None:
    assert not TopicConfig("orders", 4, 4).is_batch
    assert QUEUE_TYPE == "queue.type"
