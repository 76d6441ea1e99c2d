"""Sends: which queue, what is promised, what is said when the promise cannot be kept in time."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from services.broker.append import Append, Appended, Place
from services.broker.flusher import Flusher
from services.broker.messages import AckLevel, Draft, ProduceRequest
from services.broker.metrics import BrokerMetrics
from services.broker.produce import Sends, result_of
from services.broker.topics import Topics
from shared.runtime.clock import SystemClock
from shared.state.records import TopicConfig
from tidemark.errors import (
    AckTimeout,
    BadRequest,
    DiskFull,
    NotEnoughReplicas,
    NotServing,
    Overloaded,
    TidemarkError,
    UnknownQueue,
)
from tidemark.formats import hashing
from tidemark.formats.hosts import Host
from tidemark.formats.record import Message
from tidemark.offsets import PhysicalOffset, QueueOffset

HOST = Host(b"\x7f\x00\x00\x01", 10911)
QUEUES = 4


class Log:
    """Takes everything; durable when told so."""

    def __init__(self) -> None:
        self.batches: list[list[Message]] = []
        self.is_durable = True

    async def append(self, messages: list[Message], *, own: bool = False) -> Appended:
        self.batches.append(messages)
        places = [
            Place(each.queue_id, QueueOffset(index), PhysicalOffset(100 * index), 100)
            for index, each in enumerate(messages)
        ]
        return Appended(places, 5, PhysicalOffset(100 * len(messages)))

    def durable(self, end: PhysicalOffset) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.is_durable:
            future.set_result(None)
        return future


class OneTopic:
    """Every name is a topic of four queues."""

    async def for_sending(self, name: str) -> TopicConfig:
        return TopicConfig(name, QUEUES, QUEUES)


def sends_to(log: Log) -> Sends:
    return Sends(
        cast(Append, log),
        cast(Flusher, log),
        cast(Topics, OneTopic()),
        SystemClock(),
        BrokerMetrics(CollectorRegistry()),
        HOST,
    )


def draft(queue: int | None = None, sharding_key: str | None = None) -> Draft:
    return Draft(b"x", b"", 0, queue, sharding_key, "ID")


def request(*drafts: Draft, ack: AckLevel = AckLevel.DISK, timeout_ms: int = 3000) -> Any:
    return ProduceRequest(list(drafts), ack, timeout_ms)


async def queues_of(sends: Sends, log: Log, *drafts: Draft, topic: str = "t") -> list[int]:
    await sends.send(topic, request(*drafts), HOST)
    return [message.queue_id for message in log.batches[-1]]


async def test_a_request_without_queues_goes_to_one_queue_and_the_next_to_the_next() -> None:
    log = Log()
    sends = sends_to(log)
    for turn in range(2 * QUEUES):
        assert await queues_of(sends, log, draft(), draft(), draft()) == [turn % QUEUES] * 3
    assert await queues_of(sends, log, draft(), topic="other") == [0], "turns are per topic"


async def test_equal_sharding_keys_share_a_queue_and_it_is_the_javas_choice() -> None:
    log = Log()
    keys = ["a", "user-7", "polygenelubricants", "größe", ""]
    found = await queues_of(sends_to(log), log, *(draft(sharding_key=key) for key in keys))
    assert found == [abs(hashing.string_hash(key)) % QUEUES for key in keys]


async def test_named_queues_are_kept_and_do_not_take_a_turn() -> None:
    log = Log()
    sends = sends_to(log)
    assert await queues_of(sends, log, draft(3), draft(), draft(1), draft()) == [3, 0, 1, 0]
    await queues_of(sends, log, draft(2))
    assert await queues_of(sends, log, draft()) == [1]


async def test_a_queue_out_of_range_stores_nothing() -> None:
    log = Log()
    with pytest.raises(UnknownQueue, match=r"messages\[1\].queue is 4"):
        await sends_to(log).send("t", request(draft(0), draft(QUEUES)), HOST)
    assert log.batches == []


async def test_replicated_is_refused_before_anything_is_stored() -> None:
    log = Log()
    with pytest.raises(NotEnoughReplicas, match="Nothing was stored"):
        await sends_to(log).send("t", request(draft(), ack=AckLevel.REPLICATED), HOST)
    assert log.batches == []


async def test_memory_does_not_wait_for_the_disk_and_says_so() -> None:
    log = Log()
    log.is_durable = False
    sent = await sends_to(log).send("t", request(draft(), ack=AckLevel.MEMORY), HOST)
    assert sent.as_dict()["ack"] == {"level": "memory", "copies": 1}


async def test_disk_is_answered_once_the_bytes_are_there() -> None:
    answer = (await sends_to(Log()).send("t", request(draft(), draft()), HOST)).as_dict()
    assert answer["status"] == "PUT_OK"
    assert answer["ack"] == {"level": "disk", "copies": 1}
    assert [result["queue_offset"] for result in answer["results"]] == [0, 1]
    assert answer["results"][1]["message_id"] == "7F00000100002A9F" + f"{100:016X}"


async def test_out_of_time_is_an_error_that_tells_where_the_messages_are() -> None:
    log = Log()
    log.is_durable = False
    with pytest.raises(AckTimeout, match="outcome is unknown") as caught:
        await sends_to(log).send("t", request(draft(), timeout_ms=1), HOST)
    facts = caught.value.facts
    assert facts["ack"] == {"level": "memory", "copies": 1}
    assert facts["results"][0]["physical_offset"] == 0


@pytest.mark.parametrize(
    ("error", "label"),
    [
        (AckTimeout(""), "flush_timeout"),
        (NotEnoughReplicas(""), "replica_unavailable"),
        (DiskFull(""), "disk_full"),
        (BadRequest(""), "invalid"),
        (Overloaded(""), "busy"),
        (NotServing(""), "busy"),
        (TidemarkError(""), "failed"),
    ],
)
def test_every_refusal_is_counted_under_one_of_few_labels(error: TidemarkError, label: str) -> None:
    assert result_of(error) == label
