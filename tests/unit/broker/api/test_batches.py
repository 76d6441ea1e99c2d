"""Batch requests: the body is stored as it is, or refused with the place of the mistake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgpack
import pytest

from services.broker.api import batches
from services.broker.api.messages import Rules
from services.broker.api.send import CHECKED_SIZE_MAX
from services.broker.limits import BATCH_SIZE_MAX
from services.broker.log.ack_levels import AckLevel
from tests.unit.broker.api.rig import Served, served
from tidemark.errors import RequestError
from tidemark.formats import batch, inner_batch, properties
from tidemark.formats.batch import WireMessage

PATH = "/v1/topics/batches/batches"
OCTETS = {"Content-Type": "application/octet-stream", "Accept": "application/msgpack"}
ENTRIES = batch.encode(
    [WireMessage(b"a", b"TAGS\x01t\x02KEYS\x01k\x02"), WireMessage(b"b", b"TAGS\x01t\x02")]
)
WITH_ID = batch.encode([WireMessage(b"a", b"UNIQ_KEY\x01A\x02"), WireMessage(b"b")])


async def post(node: Served, query: str = "", body: bytes = ENTRIES) -> tuple[int, Any]:
    return await node.post(PATH + query, body, **OCTETS)


async def parts(body: bytes) -> Any:
    """A body that does not arrive with its head."""
    yield body[:1]
    yield body[1:]


async def test_the_body_is_the_batch_and_its_properties_repeat_those_of_its_messages() -> None:
    async with served() as node:
        assert (await post(node))[0] == 200
        assert node.last.entries == ENTRIES
        assert node.last.message_count == 2
        assert properties.parse(node.last.batch_properties) == {
            "INNER_BASE": "0" * inner_batch.BASE_DIGITS,
            "INNER_NUM": "2",
            "UNIQ_KEY": "MADE",
            "TAGS": "t",
            "KEYS": "k",
        }


async def test_the_parameters_are_those_of_a_send() -> None:
    async with served() as node:
        await post(node, "?queue=3&unique_id=mine&ack=memory&timeout_ms=7")
        assert node.last.picks == 3
        assert node.last.ack is AckLevel.MEMORY
        assert node.last.timeout_ms == 7
        assert not node.last.retry
        assert properties.find(node.last.batch_properties, b"UNIQ_KEY") == b"mine"
        await post(node)
        assert node.last.picks is None
        assert (node.last.ack, node.last.timeout_ms) == (AckLevel.DISK, 3000)


async def test_a_batch_that_arrives_whole_bypasses_aiohttp_and_a_repeat_does_not() -> None:
    async with served() as node:
        await post(node)
        assert node.sends.direct_count == 1
        await post(node, "?unique_id=A%42")
        assert properties.find(node.last.batch_properties, b"UNIQ_KEY") == b"AB"
        assert node.sends.direct_count == 1


async def test_other_sends_to_a_topic_called_batches_bypass_aiohttp_too() -> None:
    async with served() as node:
        body: bytes = msgpack.packb({"messages": [{"body": b"x"}]})
        assert (await node.post("/v1/topics/batches/messages", body))[0] == 200
        assert node.sends.direct_count == 1


async def test_a_batch_that_arrives_in_parts_is_the_same() -> None:
    async with served(direct=False) as node, aiohttp.ClientSession(headers=OCTETS) as session:
        async with session.post(node.url.with_path(PATH), data=parts(ENTRIES)) as got:
            assert got.status == 200
        assert node.last.entries == ENTRIES


async def test_a_batch_that_begins_like_a_long_list_is_no_list() -> None:
    # The first field of an entry is not read; as msgpack these bytes announce 2**32 - 1 values.
    entries = b"\xdd\xff\xff\xff\xff".ljust(8, b"\0") + ENTRIES[8:]

    async def slowly() -> AsyncIterator[bytes]:
        yield entries[:30]
        await asyncio.sleep(0.01)
        yield entries[30:]

    async with served(direct=False) as node, aiohttp.ClientSession(headers=OCTETS) as session:
        async with session.post(node.url.with_path(PATH), data=slowly()) as got:
            assert got.status == 200
        assert node.last.entries == entries


async def test_messages_of_other_sends_to_batch_topics_get_no_ids() -> None:
    async with served() as node:
        body: bytes = msgpack.packb({"messages": [{"body": b"x"}]})
        for path, has_id in (("batches", False), ("orders", True)):
            for headers, sent in (
                ({}, body),
                ({"Content-Type": "application/json"}, b'{"messages": [{"body_text": "x"}]}'),
            ):
                await node.post(
                    f"/v1/topics/{path}/messages", sent, **headers, Accept=OCTETS["Accept"]
                )
                (entry,) = batch.iterate(node.last.entries)
                assert (b"UNIQ_KEY" in bytes(entry.properties)) is has_id


async def test_a_delayed_message_of_a_batch_topic_gets_an_id_because_it_waits_as_a_record() -> None:
    async with served() as node:
        sent = {"messages": [{"body": b"x"}, {"body": b"y", "delay_ms": 5000}]}
        await node.post("/v1/topics/batches/messages", msgpack.packb(sent))
        now, later = batch.iterate(node.last.entries)
        assert b"UNIQ_KEY" not in bytes(now.properties)
        assert b"UNIQ_KEY" in bytes(later.properties)


async def test_the_id_of_the_first_message_is_that_of_the_batch() -> None:
    async with served() as node:
        for query in ("", "?unique_id=A"):
            assert (await post(node, query, WITH_ID))[0] == 200
            assert properties.find(node.last.batch_properties, b"UNIQ_KEY") == b"A"
        status, error = await post(node, "?unique_id=B", WITH_ID)
        assert (status, error["code"], error["field"]) == (400, "bad-request", "unique_id")


async def test_a_repeat_needs_an_id() -> None:
    async with served() as node:
        status, error = await post(node, "?retry=true")
        assert (status, error["code"], error["field"]) == (400, "bad-request", "unique_id")
        assert node.sends.sent == []


@pytest.mark.parametrize(
    ("query", "body", "code", "facts"),
    [
        ("", b"", "bad-request", {}),
        ("", ENTRIES[:-1], "bad-request", {"index": 1}),
        ("", b"\xff" * CHECKED_SIZE_MAX * 2, "bad-request", {"index": 0}),
        ("", batch.encode([WireMessage(b"x" * 1001)]), "too-large", {"index": 0, "limit": 1000}),
        (
            "",
            batch.encode([WireMessage(b"x" * 1000)] * 40 + [WireMessage(b"x" * 1001)]),
            "too-large",
            {"index": 40},
        ),
        (
            "",
            ENTRIES + batch.encode([WireMessage(b"", b"WAIT\x01a\x02")]),
            "bad-property",
            {"index": 2},
        ),
        ("?queue=x", ENTRIES, "bad-request", {"field": "queue"}),
        ("?retry=yes", ENTRIES, "bad-request", {"field": "retry"}),
        ("?x=1", ENTRIES, "bad-request", {"field": "x"}),
    ],
)
async def test_a_mistake_is_named_and_nothing_is_stored(
    query: str, body: bytes, code: str, facts: dict[str, Any]
) -> None:
    async with served() as node:
        status, error = await post(node, query, body)
        assert status in (400, 413)
        assert error["code"] == code
        assert facts.items() <= error.items()
        assert node.sends.sent == []


async def test_a_body_of_another_type_is_refused() -> None:
    async with served() as node:
        status, error = await node.post(PATH, ENTRIES)
        assert (status, error["code"]) == (415, "unsupported-media-type")


def test_too_many_messages_and_bytes_are_refused_with_the_limit() -> None:
    rules = Rules(message_size_max=1 << 22, record_crc=True)
    for entries, code, limit in (
        ([WireMessage(b"")] * (inner_batch.COUNT_MAX + 1), "too-many-messages", 32_767),
        ([WireMessage(b"x" * (1 << 21))] * 2, "too-large", BATCH_SIZE_MAX),
    ):
        with pytest.raises(RequestError) as caught:
            batches.check(batch.encode(entries), rules)
        assert (caught.value.code, caught.value.facts["limit"]) == (code, limit)
