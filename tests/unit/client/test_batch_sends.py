"""Sends to topics with batch queues: one body of entries, and a result for each message."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.client.fake_broker import FakeBroker, answer, error
from tidemark import Client, NewMessage, connect, errors
from tidemark.client.batch_form import is_one_record, packed_batch, single_results
from tidemark.client.messages import SendResult, outgoing
from tidemark.formats import batch, properties

TWO = [b"0", b"1"]


class BatchBroker(FakeBroker):
    """A broker whose topics have batch queues. It keeps what batch requests say."""

    def __init__(self) -> None:
        super().__init__(queues={"orders": [[]]})
        self.batches: list[tuple[dict[str, str], bytes]] = []
        self.next_offset = 0
        self.loses_answers = 0
        self.rejected_index: int | None = None
        """Index of the message for which the next ordinary request is rejected."""
        self.refusal: web.Response | None = None
        """The answer to the next batch request."""

    def add_routes(self, app: web.Application) -> None:
        super().add_routes(app)
        app.router.add_post("/v1/topics/{topic}/batches", self.take_batch)

    def stored(self, count: int, unique_id: str) -> dict[str, Any]:
        first, self.next_offset = self.next_offset, self.next_offset + count
        return {
            "message_id": f"{first:032X}",
            "unique_id": unique_id,
            "queue": 3,
            "queue_offset": first,
            "physical_offset": 1000 * first,
            "store_timestamp_ms": 5,
        }

    async def produce_now(self, request: web.Request) -> web.StreamResponse:
        body = self.requests[-1]
        if (index := self.rejected_index) is not None:
            self.rejected_index = None
            return error(400, "bad-property", index=index)
        count = len(body["messages"])
        shared = self.stored(count, "B")
        first = shared["queue_offset"]
        results = [{**shared, "queue_offset": first + index} for index in range(count)]
        return answer(
            {"status": "PUT_OK", "ack": {"level": "disk", "copies": 1}, "results": results}
        )

    async def take_batch(self, request: web.Request) -> web.StreamResponse:
        assert request.headers["Content-Type"] == "application/octet-stream"
        body = await request.read()
        self.batches.append((dict(request.query), body))
        if self.loses_answers:
            self.loses_answers -= 1
            assert request.transport is not None
            request.transport.abort()
        if (refusal := self.refusal) is not None:
            self.refusal = None
            return refusal
        count = len(list(batch.iterate(body)))
        wire = {
            **self.stored(count, request.query.get("unique_id", "MADE")),
            "message_count": count,
        }
        return answer({"status": "PUT_OK", "ack": {"level": "memory", "copies": 2}, "batch": wire})


@pytest.fixture
def broker() -> BatchBroker:
    return BatchBroker()


async def learned(mq: Client) -> None:
    """Let the client see that the topic has batch queues."""
    await mq.send_many("orders", TWO)


async def test_once_the_topic_is_known_its_messages_are_sent_as_they_are_stored(
    broker: BatchBroker,
) -> None:
    async with broker.serve(), connect(broker.url) as mq:
        await mq.send_many("orders", [b"alone"])
        await mq.send_many("orders", TWO)
        assert broker.batches == [], "a single message does not tell"
        results = await mq.send_many(
            "orders",
            [NewMessage(b"a", tags="t", keys=["k1", "k2"], flag=4), NewMessage(b"b")],
            ack="memory",
            queue=3,
            timeout_ms=700,
        )
    ((query, body),) = broker.batches
    unique_id = query.pop("unique_id")
    assert query == {"queue": "3", "ack": "memory", "timeout_ms": "700"}
    assert [
        (bytes(each.body), properties.parse(each.properties), each.flag)
        for each in batch.iterate(body)
    ] == [(b"a", {"TAGS": "t", "KEYS": "k1 k2"}, 4), (b"b", {}, 0)]
    assert results == [
        SendResult(f"{3:032X}", 3, offset, 3000, 5, "memory", 2, None, unique_id)
        for offset in (3, 4)
    ]
    assert len(broker.requests) == 2


async def test_sends_that_start_together_share_a_batch(broker: BatchBroker) -> None:
    async with broker.serve(), connect(broker.url) as mq:
        await learned(mq)
        results = await asyncio.gather(*(mq.send("orders", b"%d" % each) for each in range(5)))
    assert [each.queue_offset for each in results] == list(range(2, 7))
    ((query, _),) = broker.batches
    assert "queue" not in query


async def test_messages_that_cannot_be_one_batch_are_sent_one_by_one(broker: BatchBroker) -> None:
    several = [NewMessage(b"0", queue=0), NewMessage(b"1", queue=1)]
    async with broker.serve(), connect(broker.url) as mq:
        await learned(mq)
        for messages in (
            several,
            [NewMessage(b"0", sharding_key="k"), NewMessage(b"1", sharding_key="k")],
            [NewMessage(b"0", delay_ms=5), NewMessage(b"1")],
        ):
            await mq.send_many("orders", messages)
    assert (broker.batches, len(broker.requests)) == ([], 4)
    ids = [wire["unique_id"] for request in broker.requests for wire in request["messages"]]
    assert len(set(ids)) == 8


async def test_messages_left_of_a_rejected_request_are_sent_as_a_batch_with_the_first_ones_id(
    broker: BatchBroker,
) -> None:
    async with broker.serve(), connect(broker.url) as mq:
        await learned(mq)
        broker.rejected_index = 1
        good, bad, better = await asyncio.gather(
            mq.send("orders", b"good"),
            mq.send("orders", b"bad", sharding_key="k"),
            mq.send("orders", b"better"),
            return_exceptions=True,
        )
    assert isinstance(bad, errors.BadProperty)
    ((query, body),) = broker.batches
    assert [bytes(each.body) for each in batch.iterate(body)] == [b"good", b"better"]
    first = next(batch.iterate(body))
    assert query["unique_id"] == properties.parse(first.properties)["UNIQ_KEY"]
    assert isinstance(good, SendResult)
    assert isinstance(better, SendResult)
    assert (good.queue_offset, better.queue_offset) == (2, 3)


async def test_a_batch_whose_answer_is_lost_is_repeated_with_its_id(broker: BatchBroker) -> None:
    async with broker.serve(), connect(broker.url) as mq:
        await learned(mq)
        broker.loses_answers = 1
        await mq.send_many("orders", TWO)
    (first, body), (again, same) = broker.batches
    assert again == {**first, "retry": "true"}
    assert body == same
    assert first["unique_id"]


async def test_without_repetitions_a_batch_needs_no_id(broker: BatchBroker) -> None:
    async with broker.serve(), connect(broker.url, retry_for_s=0) as mq:
        await learned(mq)
        (first, _) = await mq.send_many("orders", TWO)
        assert first.unique_id == "MADE"
        broker.loses_answers = 1
        with pytest.raises(errors.Unreachable):
            await mq.send_many("orders", TWO)
    assert len(broker.batches) == 2


async def test_another_topic_of_the_name_gets_ordinary_requests(broker: BatchBroker) -> None:
    async with broker.serve(), connect(broker.url) as mq:
        await learned(mq)
        broker.refusal = error(403, "not-permitted", queue_type="simple")
        for _ in range(2):
            await mq.send("orders", b"x")
        assert (len(broker.batches), len(broker.requests)) == (1, 3)
        await learned(mq)
        broker.refusal = error(403, "not-permitted")
        with pytest.raises(errors.NotPermitted):
            await mq.send("orders", b"x")


@pytest.mark.parametrize("code", ["too-large", "too-many-messages"])
async def test_what_is_too_much_for_one_batch_is_divided_by_the_broker(
    broker: BatchBroker, code: str
) -> None:
    async with broker.serve(), connect(broker.url) as mq:
        await learned(mq)
        broker.refusal = error(413, code)
        assert len(await mq.send_many("orders", TWO)) == 2
    assert (len(broker.batches), len(broker.requests)) == (1, 2)


async def test_an_error_about_a_stored_batch_names_the_result_of_each_message(
    broker: BatchBroker,
) -> None:
    async with broker.serve(), connect(broker.url, retry_for_s=0) as mq:
        await learned(mq)
        stored = {**broker.stored(2, "B"), "message_count": 2}
        ack = {"level": "memory", "copies": 1}
        broker.refusal = error(504, "ack-timeout", results=[stored], ack=ack)
        with pytest.raises(errors.AckTimeout) as caught:
            await mq.send_many("orders", TWO)
        assert [each.queue_offset for each in caught.value.facts["results"]] == [2, 3]
        broker.refusal = error(504, "ack-timeout", results=[stored], ack=ack)
        sends = [asyncio.create_task(mq.send("orders", b"x")) for _ in range(2)]
        await asyncio.wait(sends)
    found = [task.exception() for task in sends]
    assert [each.facts["results"][0]["queue_offset"] for each in found] == [2, 3]  # type: ignore[union-attr]


async def test_another_number_of_messages_in_the_answer_is_an_error(broker: BatchBroker) -> None:
    async with broker.serve(), connect(broker.url) as mq:
        await learned(mq)
        wire = {**broker.stored(1, "B"), "message_count": 1}
        broker.refusal = answer({"ack": {"level": "disk", "copies": 1}, "batch": wire})
        with pytest.raises(errors.BrokenAnswer, match="1 messages for 2"):
            await mq.send_many("orders", TWO)


TEXTS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02 "), min_size=1
)


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=50),
            st.none() | TEXTS,
            st.lists(TEXTS, max_size=3),
            st.dictionaries(st.from_regex("[a-z]{1,9}", fullmatch=True), TEXTS, max_size=3),
            st.integers(-(1 << 31), (1 << 31) - 1),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_entries_are_the_messages(made: list[tuple[Any, ...]]) -> None:
    wires = [
        outgoing(body, tags=tags, keys=keys, properties=pairs, flag=flag, queue=2).wire
        for body, tags, keys, pairs, flag in made
    ]
    found = packed_batch(wires)
    assert found is not None
    assert (found.message_count, found.queue) == (len(made), 2)
    entries = list(batch.iterate(found.entries))
    for entry, (body, tags, keys, pairs, flag) in zip(entries, made, strict=True):
        wanted = dict(pairs)
        if tags is not None:
            wanted["TAGS"] = tags
        if keys:
            wanted["KEYS"] = " ".join(keys)
        assert (bytes(entry.body), entry.flag) == (body, flag)
        assert properties.parse(entry.properties) == wanted


def test_only_messages_of_one_record_tell_that_the_topic_has_batch_queues() -> None:
    def result(physical_offset: int) -> SendResult:
        return SendResult("id", 0, 0, physical_offset, 5)

    assert is_one_record([result(7), result(7)])
    assert not is_one_record([result(7), result(90)])
    assert not is_one_record([result(7)])
    assert not is_one_record([])


def test_results_of_other_forms_stay_as_they_are() -> None:
    single = [{"queue_offset": 4}]
    assert single_results(single) is single
    assert single_results("broken") == "broken"
    assert single_results([{"queue_offset": 4, "message_count": 2, "queue": 1}]) == [
        {"queue_offset": 4, "queue": 1},
        {"queue_offset": 5, "queue": 1},
    ]
