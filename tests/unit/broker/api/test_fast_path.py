"""Plain sends and pulls have the same requests and answers as by the general path."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgpack
import pytest
from yarl import URL

from services.broker.api.messages import parse_produce
from services.broker.log.ack_levels import AckLevel
from tests.unit.broker.api.rig import MSGPACK, RULES, served
from tidemark.formats import batch, properties

PLAIN: list[dict[str, Any]] = [
    {"messages": [{"body": b"x", "unique_id": "A"}]},
    {
        "messages": [
            {"body": b"x", "unique_id": "A", "queue": 3},
            {"body": b"", "unique_id": "B", "queue": 3},
        ]
    },
    {
        "messages": [{"body_text": "größe", "unique_id": "A", "tags": "t", "keys": ["k", "l"]}],
        "ack": "memory",
    },
    {
        "messages": [{"body": b"x", "properties": {"b": "1", "a": "ü"}, "unique_id": "A"}],
        "timeout_ms": 9,
    },
    {"messages": [{"body": b"x", "flag": -7, "queue": None}], "make_unique_ids": False},
]


@pytest.mark.parametrize("value", PLAIN)
async def test_the_fast_path_parses_a_body_as_the_general_path_does(value: dict[str, Any]) -> None:
    async with served() as node:
        status, answer = await node.post("/v1/topics/orders/messages", msgpack.packb(value))
        assert (status, answer) == (200, {"status": "PUT_OK"})
        careful = parse_produce(value, rules=RULES, json_body=False, make_unique_id=lambda: "?")
        topic, request, born = node.sends.sent[-1]
        assert (topic, request, born.address) == ("orders", careful, b"\x7f\x00\x00\x01")


async def test_both_paths_number_generated_ids_in_sequence() -> None:
    async with served() as node:
        path = "/v1/topics/orders/messages"
        ids: list[str] = []
        for messages in (
            [{"body": b"x"}, {"body": b"x"}],
            [{"body": b"x", "sharding_key": "s"}],  # not of the common form
            [{"body": b"x"}],
        ):
            await node.post(path, msgpack.packb({"messages": messages}))
            for entry in batch.iterate(node.last.entries):
                found = properties.parse(bytes(entry.properties))[properties.UNIQ_KEY]
                ids.append(found)
    assert len(set(ids)) == 4
    assert [int(made[-4:], 16) for made in ids] == [0, 1, 2, 3]


async def test_the_count_of_repeats_is_taken_before_a_slow_body_is_read() -> None:
    # Otherwise a repeat that came while the rest of this body was under way is missed.
    async with served() as node:
        body = msgpack.packb({"messages": [{"body": bytes(900), "unique_id": "A"}] * 2})
        begun = node.sends.repeats = 7

        async def pieces() -> AsyncIterator[bytes]:
            yield body[:900]
            await asyncio.wait_for(node.sends.asked.wait(), 10)
            node.sends.repeats += 1
            yield body[900:]

        async with (
            aiohttp.ClientSession(headers=MSGPACK) as session,
            session.post(f"{node.url}/v1/topics/orders/messages", data=pieces()) as answer,
        ):
            assert answer.status == 200
        assert node.sends.since == begun


async def test_a_body_in_chunks_that_comes_with_its_head_is_bounded_all_the_same() -> None:
    async with served(request_size_max=2000) as node:
        body = msgpack.packb({"messages": [{"body": bytes(900), "unique_id": "A"}] * 3})
        reader, writer = await asyncio.open_connection(node.url.host, node.url.port)
        writer.write(
            b"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: node\r\nConnection: close\r\n"
            b"Content-Type: application/msgpack\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        )
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert not node.sends.sent


@pytest.mark.parametrize(
    ("path", "topic"),
    [("/v1/topics/%6Frders/messages", "orders"), ("/v1/topics/%25RETRY%25g/messages", "%RETRY%g")],
)
async def test_a_name_with_escapes_takes_the_general_path_to_the_same_topic(
    path: str, topic: str
) -> None:
    async with served() as node:
        status, _ = await node.post(path, msgpack.packb({"messages": [{"body": b"x"}]}))
        assert (status, node.sends.sent[-1][0]) == (200, topic)


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/v1/topics/missing/messages", {"messages": [{"body": b"x"}]}, 404, "unknown-topic"),
        ("/v1/topics/a%20b/messages", {"messages": [{"body": b"x"}]}, 400, "bad-name"),
        ("/v1/topics/a$b/messages", {"messages": [{"body": b"x"}]}, 400, "bad-name"),
        ("/v1/topics/a/b/messages", {"messages": [{"body": b"x"}]}, 404, "unknown-call"),
        ("/v1/topics/orders/messages?x=1", {"messages": [{"body": b"x"}]}, 400, "bad-request"),
        ("/v1/topics/orders/messages", {"messages": []}, 400, "bad-request"),
        ("/v1/topics/orders/messages", {"messages": [{"body": bytes(1001)}]}, 413, "too-large"),
        ("/v1/topics/orders/messages", [1], 400, "bad-request"),
    ],
)
async def test_both_paths_report_the_same_errors(
    path: str, body: object, status: int, code: str
) -> None:
    async with served() as node:
        found, answer = await node.post(path, msgpack.packb(body))
        assert (found, answer["code"]) == (status, code)
        assert not node.sends.sent
        again, _ = await node.post("/v1/topics/orders/messages", msgpack.packb(PLAIN[0]))
        assert again == 200


async def test_a_shut_gate_refuses_before_the_body_is_read() -> None:
    async with served(sends_open=False) as node:
        status, answer = await node.post("/v1/topics/orders/messages", msgpack.packb(PLAIN[0]))
        assert (status, answer["code"]) == (503, "not-serving")


async def test_a_body_that_is_too_large_is_refused_by_its_announced_size() -> None:
    async with served() as node:
        status, _ = await node.post(
            "/v1/topics/orders/messages", msgpack.packb(PLAIN[0]), Expect="100-continue"
        )
        assert status == 200
        status, answer = await node.post(
            "/v1/topics/orders/messages", bytes(200_000), Expect="100-continue"
        )
        assert (status, answer["code"]) == (413, "too-large")


async def test_ack_levels_and_defaults_are_those_of_the_general_path() -> None:
    async with served() as node:
        path = "/v1/topics/orders/messages"
        await node.post(path, msgpack.packb({"messages": [{"body": b"x"}]}))
        assert (node.last.ack, node.last.timeout_ms) == (AckLevel.DISK, 3000)
        await node.post(path, msgpack.packb({"messages": [{"body": b"x"}], "ack": "replicated"}))
        assert node.last.ack is AckLevel.REPLICATED


async def test_the_answer_is_in_the_encoding_that_was_asked_for() -> None:
    async with (
        served() as node,
        aiohttp.ClientSession() as session,
        session.post(
            f"{node.url}/v1/topics/orders/messages",
            data=msgpack.packb(PLAIN[0]),
            headers=MSGPACK | {"Accept": "application/json"},
        ) as answer,
    ):
        assert await answer.json() == {"status": "PUT_OK"}


@pytest.mark.parametrize(
    ("plain", "escaped"),
    [
        ("?offset=5", "?%6Fffset=5"),
        (
            "?offset=5&max=9&max_bytes=77&wait_ms=3&tags=a",
            "?offset=5&max=%39&max_bytes=77&wait_ms=3&tags=a",
        ),
        ("?offset=-1&tags=*", "?offset=-1&tags=%2A"),
        ("?max=0&offset=007", "?max=0&offset=%3007"),
    ],
)
async def test_a_plain_pull_asks_for_the_same_as_one_with_escapes(plain: str, escaped: str) -> None:
    async with served() as node:
        path = "/v1/topics/orders/queues/3/messages"
        first, second = await node.get(path + plain), await node.get(path + escaped)
        assert first == second
        assert first[0] == 200
        assert len(node.puller.asked) == 2
        assert node.puller.asked[0] == node.puller.asked[1]


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("orders/queues/3/messages", 400, "bad-request"),
        ("orders/queues/3/messages?", 400, "bad-request"),
        ("orders/queues/3/messages?max=1", 400, "bad-request"),
        ("orders/queues/3/messages?offset=", 400, "bad-request"),
        ("orders/queues/3/messages?offset=x", 400, "bad-request"),
        ("orders/queues/3/messages?offset=1&offset=1", 400, "bad-request"),
        ("orders/queues/3/messages?offset=1&colour=1", 400, "bad-request"),
        ("orders/queues/3/messages?offset=1=2", 400, "bad-request"),
        ("orders/queues/3/messages?offset=1&max=99999", 400, "bad-request"),
        ("orders/queues/99999999999/messages?offset=1", 400, "bad-request"),
        ("orders/queues/x/messages?offset=1", 400, "bad-request"),
        ("a$b/queues/0/messages?offset=1", 400, "bad-name"),
        ("missing/queues/0/messages?offset=1", 404, "unknown-topic"),
    ],
)
async def test_errors_of_a_pull_name_the_parameter(path: str, status: int, code: str) -> None:
    async with served() as node:
        found, answer = await node.get("/v1/topics/" + path)
        assert (found, answer["code"]) == (status, code)
        assert not node.puller.asked


async def test_head_and_other_methods_are_answered_as_by_the_general_path() -> None:
    async with served() as node, aiohttp.ClientSession() as session:
        url = f"{node.url}/v1/topics/orders/queues/0/messages?offset=0"
        async with session.delete(url) as answer:
            assert answer.status == 405


async def _talk(url: URL, request: bytes) -> tuple[bytes, bytes, bool]:
    """Head and body of the answer to a request as typed, and whether the connection was closed."""
    assert url.host is not None
    reader, writer = await asyncio.open_connection(url.host, url.port)
    try:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        found = re.search(rb"Content-Length: (\d+)", head)
        assert found is not None
        body = await reader.readexactly(int(found[1]))
        try:
            async with asyncio.timeout(0.2):
                closed = await reader.read(1) == b""
        except TimeoutError:
            closed = False
        return head, body, closed
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("version", "connection", "closes"),
    [
        ("1.1", None, False),
        ("1.1", "keep-alive", False),
        ("1.1", "close", True),
        ("1.0", None, True),
        ("1.0", "keep-alive", False),
    ],
)
async def test_a_connection_stays_open_as_the_sender_asks(
    version: str, connection: str | None, closes: bool
) -> None:
    body = msgpack.packb(PLAIN[0])
    head = f"POST /v1/topics/orders/messages HTTP/{version}\r\nHost: x\r\n"
    head += "" if connection is None else f"Connection: {connection}\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    async with served() as node:
        found, answer, closed = await _talk(node.url, head.encode() + body)
    assert found.startswith(b"HTTP/1.1 200 OK" if version == "1.1" else b"HTTP/1.0 200 OK")
    assert b"application/" in found
    assert b"\r\nDate: " in found
    assert answer
    assert closed is closes


async def test_a_client_that_does_not_take_its_answers_holds_up_only_its_own_requests() -> None:
    body = msgpack.packb({"messages": [{"body": b"x", "unique_id": "A"}]})
    request = b"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: x\r\n"
    request += b"Content-Length: %d\r\n\r\n" % len(body) + body
    async with served(answer_size=4 << 20) as node:
        assert node.url.host is not None
        _, writer = await asyncio.open_connection(node.url.host, node.url.port)
        writer.write(request * 50)
        status, _ = await node.post("/v1/topics/orders/messages", body)
        assert status == 200
        assert len(node.sends.sent) < 50, "the rest waits for the client to read"
        writer.transport.abort()
