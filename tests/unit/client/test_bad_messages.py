"""A message that cannot be sent fails alone: at once if the client detects it, otherwise without
the other messages of its request."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

import tidemark
from tests.unit.client.fake_broker import FakeBroker, error
from tidemark import NewMessage, errors
from tidemark.formats.delay import DELAY_MS_MAX


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker(queues={"orders": [[], []]}).serve() as serving:
        yield serving


WRONG_TYPES: list[dict[str, Any]] = [
    {"sharding_key": uuid.UUID(int=7)},
    {"sharding_key": 7},
    {"tags": b"new"},
    {"keys": [uuid.UUID(int=7)]},
    {"keys": 7},
    {"properties": {"a": 1}},
    {"properties": [("a", "b")]},
    {"flag": 1.5},
    {"flag": True},
    {"queue": "0"},
    {"delay_level": "1"},
    {"delay_ms": 1.5},
]
WRONG_VALUES: list[tuple[dict[str, Any], type[errors.TidemarkError]]] = [
    ({"flag": 2**70}, errors.BadRequest),
    ({"flag": 10**5000}, errors.BadRequest),
    ({"flag": -(2**31) - 1}, errors.BadRequest),
    ({"queue": -1}, errors.BadRequest),
    ({"queue": 2**31}, errors.BadRequest),
    ({"queue": 0, "sharding_key": "a"}, errors.BadRequest),
    ({"tags": "\ud800"}, errors.BadRequest),
    ({"tags": "a\x02b"}, errors.BadProperty),
    ({"sharding_key": ""}, errors.BadProperty),
    ({"keys": ["two words"]}, errors.BadProperty),
    ({"properties": {"__CRC32#": "1"}}, errors.BadProperty),
    ({"properties": {"": "1"}}, errors.BadProperty),
    ({"properties": {"a": "x" * 40_000}}, errors.BadProperty),
    ({"delay_ms": DELAY_MS_MAX + 1}, errors.DelayOutOfRange),
    ({"delay_ms": -1}, errors.DelayOutOfRange),
    ({"delay_level": 0}, errors.DelayOutOfRange),
    ({"deliver_at": 2**64}, errors.DelayOutOfRange),
    ({"delay_level": 1, "delay_ms": 1}, errors.BadRequest),
]


@pytest.mark.parametrize("wrong", WRONG_TYPES, ids=str)
async def test_a_value_of_a_wrong_type_fails_alone_and_nothing_of_it_is_sent(
    broker: FakeBroker, wrong: dict[str, Any]
) -> None:
    async with tidemark.connect(broker.url) as mq:
        good = [asyncio.create_task(mq.send("orders", b"%d" % n)) for n in range(3)]
        with pytest.raises(TypeError, match=next(iter(wrong))[:3]):
            await mq.send("orders", b"wrong", **wrong)
        assert [result.queue_offset for result in await asyncio.gather(*good)] == [0, 1, 2]
        assert mq.producer.unanswered_size == 0
    assert len(broker.requests) == 1


@pytest.mark.parametrize(("wrong", "kind"), WRONG_VALUES, ids=range(len(WRONG_VALUES)))
async def test_a_wrong_value_fails_alone_with_the_error_that_the_broker_would_answer(
    broker: FakeBroker, wrong: dict[str, Any], kind: type[errors.TidemarkError]
) -> None:
    async with tidemark.connect(broker.url) as mq:
        good = [asyncio.create_task(mq.send("orders", b"%d" % n)) for n in range(3)]
        with pytest.raises(kind, match=r"Nothing was sent\.") as raised:
            await mq.send("orders", b"wrong", **wrong)
        assert len(await asyncio.gather(*good)) == 3
    assert len(str(raised.value)) < 500
    assert len(broker.requests) == 1


@pytest.mark.parametrize(
    ("topic", "ack", "timeout_ms", "kind"),
    [
        (7, None, None, TypeError),
        ([], None, None, TypeError),
        ("orders", [], None, TypeError),
        ("orders", None, "3", TypeError),
        ("orders", None, 0, errors.BadRequest),
        ("orders", None, 60_001, errors.BadRequest),
    ],
)
async def test_a_wrong_argument_beside_the_message_leaves_no_bytes_behind(
    broker: FakeBroker, topic: Any, ack: Any, timeout_ms: Any, kind: type[Exception]
) -> None:
    async with tidemark.connect(broker.url) as mq:
        with pytest.raises(kind):
            await mq.send(topic, b"x", ack=ack, timeout_ms=timeout_ms)
        with pytest.raises(kind):
            await mq.send_many(topic, [b"x"], ack=ack, timeout_ms=timeout_ms)
        assert mq.producer.unanswered_size == 0
    assert broker.requests == []


async def test_a_body_that_is_changed_after_the_call_is_sent_as_it_was(broker: FakeBroker) -> None:
    async with tidemark.connect(broker.url, linger_ms=20) as mq:
        body = bytearray(b"before")
        sending = asyncio.create_task(mq.send("orders", body))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        body[:] = b"after!"
        await sending
    assert broker.requests[0]["messages"][0]["body"] == b"before"


async def test_the_broker_names_the_bad_message_and_the_rest_is_sent_again_in_one_request(
    broker: FakeBroker,
) -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        messages = broker.requests[-1]["messages"]
        bad = [n for n, wire in enumerate(messages) if wire["body"].startswith(b"late")]
        if not bad:
            return await broker.produce_now(request)
        broker.faults.append(refuse)
        return error(400, "delay-out-of-range", index=bad[0], field=f"messages[{bad[0]}]")

    broker.faults = [refuse]
    async with tidemark.connect(broker.url) as mq:
        bodies = [b"late" if n % 10 == 3 else b"%d" % n for n in range(40)]
        outcomes = await asyncio.gather(
            *(mq.send("orders", body) for body in bodies), return_exceptions=True
        )
    for body, outcome in zip(bodies, outcomes, strict=True):
        assert isinstance(outcome, errors.DelayOutOfRange) == (body == b"late"), outcome
    stored = [wire["body"] for wire in broker.requests[-1]["messages"]]
    assert stored == [body for body in bodies if body != b"late"]  # in order, all at once
    assert len(broker.requests) == 5


async def test_if_the_broker_names_no_message_halves_are_sent_and_order_is_kept(
    broker: FakeBroker,
) -> None:
    async with tidemark.connect(broker.url) as mq:
        bodies = [b"bad" if n in (100, 101, 300) else b"%d" % n for n in range(512)]
        outcomes = await asyncio.gather(
            *(mq.send("orders", body, queue=0) for body in bodies), return_exceptions=True
        )
    failed = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, BaseException)]
    assert failed == [100, 101, 300]
    offsets = [each.queue_offset for each in outcomes if not isinstance(each, BaseException)]
    assert offsets == list(range(509))
    assert len(broker.requests) < 60


async def test_each_sender_of_a_request_that_failed_gets_an_error_of_its_own(
    broker: FakeBroker,
) -> None:
    results = [
        {"message_id": f"{n}", "queue": 0, "queue_offset": n, "physical_offset": n,
         "store_timestamp_ms": 1}
        for n in range(3)
    ]  # fmt: skip

    async def late(_request: web.Request) -> web.Response:
        return error(504, "ack-timeout", ack={"level": "memory", "copies": 1}, results=results)

    broker.faults = [late]
    async with tidemark.connect(broker.url, retry_for_s=0) as mq:
        outcomes = await asyncio.gather(
            *(mq.send("orders", b"x") for _ in range(3)), return_exceptions=True
        )
    assert len({id(outcome) for outcome in outcomes}) == 3
    for number, outcome in enumerate(outcomes):
        assert isinstance(outcome, errors.AckTimeout)
        assert outcome.facts["results"] == [results[number]]


async def test_send_many_names_the_bad_message_before_anything_is_sent(broker: FakeBroker) -> None:
    many: list[NewMessage | bytes] = [b"x"] * 2500
    many[2000] = NewMessage(b"x", flag=2**31)
    async with tidemark.connect(broker.url) as mq:
        with pytest.raises(errors.BadRequest, match="flag") as raised:
            await mq.send_many("orders", many)
        many[2000] = NewMessage(b"x", sharding_key=uuid.UUID(int=1))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="sharding_key") as noted:
            await mq.send_many("orders", many)
    assert raised.value.facts["index"] == 2000
    assert "index 2000" in noted.value.__notes__[0]
    assert broker.requests == []


async def test_send_many_names_the_bad_message_of_the_whole_list(broker: FakeBroker) -> None:
    async def refuse(_request: web.Request) -> web.Response:
        return error(413, "too-large", index=7)

    async with tidemark.connect(broker.url) as mq:
        broker.faults = [broker.produce_now, refuse]
        with pytest.raises(errors.MessageTooLarge) as raised:
            await mq.send_many("orders", [b"x"] * 1500)
    assert raised.value.facts["index"] == 1007
    assert len(raised.value.facts["results"]) == 1000
    assert re.search(r"index 1007", raised.value.__notes__[0])


def test_the_limit_of_a_due_time_is_left_to_the_brokers_clock() -> None:
    far = NewMessage(b"x", deliver_at_ms=10 * DELAY_MS_MAX + 2**42)
    assert "deliver_at_ms" in far.outgoing().wire


# It failed when its request was packed, behind requests that were stored.
async def test_a_body_that_cannot_be_packed_is_refused_before_anything_leaves(
    broker: FakeBroker,
) -> None:
    gaps: Any = memoryview(b"abcdef")[::2]
    async with tidemark.connect(broker.url) as mq:
        for call in (
            mq.send("orders", gaps),
            mq.send_many("orders", [b"x"] * 1500 + [gaps]),
        ):
            with pytest.raises(TypeError, match="memoryview with gaps"):
                await call
    assert broker.queues == {"orders": [[], []]}
