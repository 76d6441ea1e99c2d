from __future__ import annotations

import asyncio
from typing import Any, cast

import msgpack
import pytest

from bench.exchange import Exchange, LoadFailed
from bench.latency import percentiles
from bench.load import HttpConnection, Place, Shape, Template


def parts(request: bytearray) -> tuple[bytes, dict[str, Any]]:
    """Head and decoded body; the length must be right."""
    head, _, body = bytes(request).partition(b"\r\n\r\n")
    assert b"\r\nContent-Length: %d" % len(body) in head
    return head, cast(dict[str, Any], msgpack.unpackb(body))


@pytest.mark.parametrize("messages", [1, 2, 256])
def test_given_ids_are_all_different_over_requests_and_connections(messages: int) -> None:
    shape = Shape(messages, 64, "disk", "given")
    templates = [Template(shape, "h:1", [("orders", None)]) for _ in range(2)]
    seen: set[str] = set()
    for number in range(40):
        head, body = parts(templates[number % 2].next(number))
        assert head.startswith(b"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: h:1\r\n")
        assert body["ack"] == "disk"
        assert {len(message["body"]) for message in body["messages"]} == {64}
        seen |= {message["unique_id"] for message in body["messages"]}
    assert len(seen) == 40 * messages
    assert {len(each) for each in seen} == {32}


def test_the_request_says_when_the_broker_makes_no_ids() -> None:
    _, none = parts(Template(Shape(2, 1, ids="none"), "h", [("t", None)]).next(0))
    assert none["make_unique_ids"] is False
    _, made = parts(Template(Shape(2, 1, ids="made"), "h", [("t", None)]).next(0))
    assert "make_unique_ids" not in made
    assert all(set(message) == {"body"} for message in none["messages"] + made["messages"])


def test_requests_go_to_their_places_in_turn() -> None:
    places: list[Place] = [("t0", 0), ("t1", 0), ("t0", 999), ("t1", 4095)]
    template = Template(Shape(3, 256, ids="given"), "h", places)
    for number in (0, 1, 2, 3, 4, 7, 6, 1_000_001):
        topic, queue = places[number % 4]
        head, body = parts(template.next(number))
        assert head.startswith(f"POST /v1/topics/{topic}/messages ".encode())
        assert {message["queue"] for message in body["messages"]} == {queue}


def answer(shape: Shape, *, status: bytes = b"200 OK", level: str | None = None) -> bytes:
    """What the broker says to a request of that shape."""
    results = [{"unique_id": f"{number:032X}"} for number in range(shape.messages)]
    whole = {"status": "PUT_OK", "ack": {"level": level or shape.ack}, "results": results}
    body = cast(bytes, msgpack.packb(whole))
    head = b"HTTP/1.1 %s\r\nContent-Type: application/msgpack\r\ncontent-length: %d\r\n\r\n"
    return head % (status, len(body)) + body


class Sent(asyncio.Transport):
    """A transport that only remembers."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Keep it."""
        self.requests.append(bytes(data))

    def is_closing(self) -> bool:
        """Never."""
        return False


def connected(exchange: Exchange, shape: Shape) -> tuple[HttpConnection, Sent]:
    connection = HttpConnection(exchange, Template(shape, "h", [("t", None)]))
    transport = Sent()
    connection.connection_made(transport)
    exchange.begin()
    connection.send_next()
    return connection, transport


def feed(connection: HttpConnection, data: bytes, step: int) -> None:
    for at in range(0, len(data), step):
        piece = data[at : at + step]
        connection.get_buffer(-1)[: len(piece)] = piece
        connection.buffer_updated(len(piece))


@pytest.mark.parametrize("step", [1, 7, 1 << 16])
async def test_answers_are_counted_however_they_arrive(step: int) -> None:
    shape = Shape(5, 16)
    exchange = Exchange(1, None, 3)
    connection, transport = connected(exchange, shape)
    for _ in range(3):
        feed(connection, answer(shape), step)
    assert await exchange.finished >= 0
    assert exchange.messages == 15
    assert len(transport.requests) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        answer(Shape(5, 16), status=b"503 Service Unavailable"),
        answer(Shape(5, 16), level="disk"),
        answer(Shape(4, 16)),
        answer(Shape(5, 16)).replace(b"PUT_OK", b"PUT_KO"),
    ],
)
async def test_an_answer_that_is_not_what_was_asked_fails_the_run(wrong: bytes) -> None:
    exchange = Exchange(1, None, 3)
    connection, _ = connected(exchange, Shape(5, 16))
    feed(connection, wrong, len(wrong))
    with pytest.raises(LoadFailed):
        await exchange.finished


async def test_a_connection_that_ends_fails_the_run() -> None:
    exchange = Exchange(1, None, 3)
    connection, _ = connected(exchange, Shape(5, 16))
    connection.connection_lost(None)
    with pytest.raises(LoadFailed):
        await exchange.finished


def test_percentiles_are_of_the_values_that_were_seen() -> None:
    assert percentiles([number / 1000 for number in range(1, 101)]) == (50.0, 99.0, 100.0)
    assert percentiles([0.002]) == (2.0, 2.0, 2.0)
