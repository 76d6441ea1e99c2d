"""Sends to topics with batch queues: each run becomes an inner batch, in every form of send."""

from __future__ import annotations

from typing import cast

import msgpack
import pytest
from msgspec.structs import replace

from services.broker.log.ack_levels import AckLevel
from services.broker.log.append import Append
from services.broker.metrics import BrokerMetrics
from services.broker.send.batches import Batches, batch_id
from services.broker.send.deduplicator import Deduplicator
from services.broker.send.request import Pick, ProduceRequest
from services.broker.send.sender import Sender
from services.broker.send.wanted_delay import Delay
from services.broker.state.topics import Topics
from shared.metrics.registry import Registry
from shared.state.values import TopicConfig
from tests.support.metrics import sample
from tests.unit.broker.send.test_sender import BORN, HOST, Log, ground_of
from tidemark.errors import AckTimeout, NotPermitted, UnknownQueue, WriteFailed
from tidemark.formats import batch, ids, inner_batch, properties
from tidemark.formats.batch import WireMessage
from tidemark.formats.runs import Run
from tidemark.offsets import PhysicalOffset


class TwoTopics:
    """The topic "batches" has two batch queues; any other has two simple ones."""

    def __init__(self, *, is_missing: bool = False) -> None:
        self.is_missing = is_missing
        self.created: list[tuple[str, bool]] = []

    def find(self, name: str) -> TopicConfig:
        attributes = {"queue.type": "BatchCQ"} if name == "batches" else {}
        return TopicConfig(name, 2, 2, attributes=attributes)

    def ready_for_sending(self, name: str) -> TopicConfig | None:
        return None if self.is_missing else self.find(name)

    def is_batch(self, name: str) -> bool:
        return self.find(name).is_batch

    async def for_sending(self, name: str, *, is_batch: bool = False) -> TopicConfig:
        self.created.append((name, is_batch))
        return self.find(name)


def sends_to(log: Log, metrics: BrokerMetrics | None = None) -> Deduplicator:
    log_context = ground_of(log, metrics, delay_levels_ms=(1000,))
    return Deduplicator(Sender(log_context, cast(Append, log), cast(Topics, TwoTopics())))


def batches() -> Batches:
    return Batches(ground_of(None), cast(Topics, TwoTopics()))


def entries_of(*raws: bytes) -> bytes:
    return batch.encode(WireMessage(b"body", raw) for raw in raws)


def request(*raws: bytes, picks: int | list[Pick] | None = 0) -> ProduceRequest:
    return ProduceRequest(entries_of(*raws), len(raws), picks, AckLevel.DISK, 3000)


def batch_request(*raws: bytes, picks: int | None = 0, unique_id: str = "B") -> ProduceRequest:
    raw = inner_batch.encode_properties(unique_id, len(raws), tags=None, keys=None)
    return replace(request(*raws, picks=picks), batch_properties=raw)


A, B, PLAIN = b"UNIQ_KEY\x01A\x02KEYS\x01k\x02", b"UNIQ_KEY\x01B\x02", b"TAGS\x01t\x02"


async def test_the_messages_for_one_queue_are_one_batch() -> None:
    log = Log()
    await sends_to(log).send("batches", request(A, PLAIN, B), BORN)
    (run,) = log.requests[-1]
    assert (run.record_count, run.message_count, run.queue_id) == (1, 3, 0)
    pairs = properties.parse(run.batch_properties)
    assert (pairs["UNIQ_KEY"], pairs["INNER_NUM"], pairs["KEYS"]) == ("A", "3", "k")
    assert "TAGS" not in pairs


async def test_a_single_message_is_a_batch_of_one_and_a_simple_topic_has_none() -> None:
    log = Log()
    sends = sends_to(log)
    await sends.send("batches", request(PLAIN), BORN)
    (run,) = log.requests[-1]
    assert properties.parse(run.batch_properties)["TAGS"] == "t"
    await sends.send("simple", request(PLAIN, PLAIN), BORN)
    assert [run.batch_properties for run in log.requests[-1]] == [b""]


@pytest.mark.parametrize("picks", [0, [0, 1, 0, None]])
async def test_each_message_has_its_own_offset_and_the_place_of_its_batch(
    picks: int | list[Pick],
) -> None:
    log = Log()
    sends = sends_to(log)
    await sends.send("batches", request(A, B), BORN)
    start = log.end
    sent = await sends.send("batches", request(PLAIN, A, B, PLAIN, picks=picks), BORN)
    found = sent.results()
    assert msgpack.unpackb(sent.packed()) == sent.as_dict()
    runs = log.requests[-1]
    assert len(runs) == (1 if picks == 0 else 2)
    if picks == 0:
        assert [each["queue_offset"] for each in found] == [2, 3, 4, 5]
        made = batch_id(runs[0].batch_properties)
        assert [each["unique_id"] for each in found] == [made, "A", "B", made]
        assert {each["physical_offset"] for each in found} == {start}
    else:
        assert [(each["queue"], each["queue_offset"]) for each in found] == [
            *((0, 2), (1, 0), (0, 3), (0, 4)),
        ]
        assert found[1]["unique_id"] == "A"
        assert found[0]["unique_id"] == found[3]["unique_id"] == batch_id(runs[0].batch_properties)
        assert len({each["physical_offset"] for each in found}) == 2
    for each in found:
        offset = PhysicalOffset(each["physical_offset"])
        assert each["message_id"] == ids.offset_id(HOST, offset)


async def test_too_many_keys_make_several_batches_and_results_in_order() -> None:
    log = Log()
    raws = [b"KEYS\x01" + b"%d" % n * 15_000 + b"\x02" for n in range(5)]
    sent = await sends_to(log).send("batches", request(*raws), BORN)
    assert [run.message_count for run in log.requests[-1]] == [2, 2, 1]
    found = sent.results()
    assert [each["queue_offset"] for each in found] == [0, 1, 2, 3, 4]
    offsets = [each["physical_offset"] for each in found]
    assert offsets[0] == offsets[1] < offsets[2] == offsets[3] < offsets[4]
    assert msgpack.unpackb(sent.packed()) == sent.as_dict()


async def test_delayed_messages_wait_as_records_and_the_others_are_a_batch() -> None:
    log = Log()
    asked = replace(request(A, B, PLAIN), delays=[None, Delay(level=1), None])
    sent = await sends_to(log).send("batches", asked, BORN)
    by_topic = {run.topic: run for run in log.requests[-1]}
    assert by_topic["batches"].batch_properties
    assert not by_topic["SCHEDULE_TOPIC_XXXX"].batch_properties
    now, later, last = sent.results()
    assert now["physical_offset"] == last["physical_offset"] != later["physical_offset"]
    assert later["topic"] == "SCHEDULE_TOPIC_XXXX"


async def test_messages_and_sizes_are_counted_as_in_other_topics() -> None:
    log, registry = Log(), Registry("broker")
    sends = sends_to(log, BrokerMetrics(registry))
    await sends.send("batches", request(A, B), BORN)
    await sends.send("batches", batch_request(A, B), BORN)
    labels = {"topic": "batches", "kind": "normal"}
    assert sample(registry, "tidemark_broker_messages_in_total", labels) == 4
    assert sample(registry, "tidemark_broker_message_size_bytes_count", {}) == 4


# -- batch requests --------------------------------------------------------------------------------


async def test_a_batch_request_is_stored_as_its_bytes_and_answered_as_one() -> None:
    log = Log()
    sends = sends_to(log)
    await sends.send("batches", request(A, B), BORN)
    start = log.end
    asked = batch_request(PLAIN, A, unique_id="mine")
    sent = await sends.send("batches", asked, BORN)
    (run,) = log.requests[-1]
    assert run.entries is asked.entries
    assert run.batch_properties is asked.batch_properties
    assert sent.as_dict() == {
        "status": "PUT_OK",
        "ack": {"level": "disk", "copies": 1},
        "batch": {
            "message_id": ids.offset_id(HOST, start),
            "unique_id": "mine",
            "queue": 0,
            "queue_offset": 2,
            "message_count": 2,
            "physical_offset": start,
            "store_timestamp_ms": 5,
        },
    }
    assert msgpack.unpackb(sent.packed()) == sent.as_dict()


async def test_a_batch_creates_its_topic_with_batch_queues() -> None:
    topics = TwoTopics(is_missing=True)
    sender = Sender(ground_of(Log()), cast(Append, Log()), cast(Topics, topics))
    sends = Deduplicator(sender)
    await sends.send("batches", batch_request(A), BORN)
    await sends.send("simple", request(A), BORN)
    assert topics.created == [("batches", True), ("simple", False)]


async def test_batches_without_a_queue_take_turns() -> None:
    log = Log()
    sends = sends_to(log)
    for turn in range(4):
        await sends.send("batches", batch_request(A, picks=None), BORN)
        assert log.requests[-1][0].queue_id == turn % 2


async def test_a_queue_out_of_range_is_named_as_a_parameter() -> None:
    log = Log()
    with pytest.raises(UnknownQueue, match="] queue is 2;") as caught:
        await sends_to(log).send("batches", batch_request(A, picks=2), BORN)
    assert caught.value.facts["field"] == "queue"
    assert log.requests == []


async def test_a_simple_topic_takes_no_batch() -> None:
    log = Log()
    with pytest.raises(NotPermitted, match="simple queues") as caught:
        await sends_to(log).send("simple", batch_request(A), BORN)
    assert caught.value.facts == {"topic": "simple", "queue_type": "simple"}
    assert log.requests == []


async def test_an_error_has_the_place_of_the_batch() -> None:
    log = Log()
    log.is_durable = False
    with pytest.raises(AckTimeout) as caught:
        await sends_to(log).send("batches", batch_request(A, B), BORN)
    (result,) = caught.value.facts["results"]
    assert (result["unique_id"], result["message_count"]) == ("B", 2)
    log.write_fault = WriteFailed("the disk failed.", "Look at it.")
    with pytest.raises(WriteFailed) as failed:
        await sends_to(log).send("batches", request(A, B), BORN)
    assert [each["queue_offset"] for each in failed.value.facts["results"]] == [2, 3]


# -- runs of other paths ---------------------------------------------------------------------------


def run_to(topic: str, sys_flag: int = 0) -> Run:
    return Run(topic, 0, entries_of(B, A), 2, BORN, HOST, 7, sys_flag, 3)


def test_runs_of_batch_topics_become_batches_and_others_stay() -> None:
    simple = run_to("simple")
    kept, made = batches().of([simple, run_to("batches")])
    assert kept is simple
    assert (made.message_count, made.reconsume_times, made.born_timestamp_ms) == (2, 3, 7)
    assert batch_id(made.batch_properties) == "B"


def test_a_batch_is_not_compressed_if_its_messages_are() -> None:
    (made,) = batches().of([run_to("batches", sys_flag=0x303)])
    assert made.sys_flag == 0


def test_each_batch_without_an_id_gets_another_one() -> None:
    made = batches().of([run_to("batches")._replace(entries=entries_of(PLAIN, A))] * 2)
    first, second = (batch_id(run.batch_properties) for run in made)
    assert first != second
    assert len(first) == 32
