"""Connections are counted by their last request, refusals by kind of work; over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web

from services.broker.api.connections import ApiServer
from services.broker.api.gate import Gate
from services.broker.api.http_api import Api
from services.broker.api.http_requests import BodyBounds
from services.broker.api.messages import Rules
from services.broker.metrics import BrokerMetrics
from services.broker.send.unique_ids import UniqueIds
from shared.metrics.registry import Registry
from shared.runtime import connections, pauses
from shared.runtime.clock import SystemClock
from shared.runtime.connections import BoundedHandler, BoundedServer, Bounds
from shared.runtime.health import Health
from shared.runtime.pauses import Pace, Pauses
from tests.support.metrics import samples
from tests.support.own_routes import own_route
from tidemark.formats.hosts import Host


class Served:
    """An API whose gate is shut: every call is refused, and counted."""

    def __init__(self, connections_max: int = 100) -> None:
        clock = SystemClock()
        self.registry = Registry("broker")
        metrics = BrokerMetrics(self.registry)
        api = Api(
            Gate(Health(clock)),
            Rules(message_size_max=1000, record_crc=True),
            clock,
            metrics,
            UniqueIds(clock, Host(b"\x7f\x00\x00\x01", 1)),
            BodyBounds(1000, 1000, 5.0),
            own_route(),
            version="1",
        )
        self.server = ApiServer(
            api.app, metrics, Bounds(connections_max, 5.0, 5.0, 5.0), api.fast_path
        )
        metrics.show_requests(api.request_classes, self.server.roles)

    def shown(self, name: str) -> dict[str, float]:
        """Samples of a family by the text of their labels."""
        return {
            key.removeprefix(f"tidemark_broker_{name}"): value
            for key, value in samples(self.registry).items()
            if key.startswith(f"tidemark_broker_{name}{{")
        }


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    served = Served()
    await served.server.start("127.0.0.1", 0)
    yield served
    await served.server.close()


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until the condition holds."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it does not come about")


async def test_a_connection_is_counted_by_its_last_request(served: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.server.port)

    async def ask(line: bytes) -> None:
        writer.write(line + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(size)

    def roles() -> dict[str, float]:
        return {key: value for key, value in served.shown("connections").items() if value}

    await until(lambda: roles() == {'{role="new"}': 1})
    for line, role in (
        (b"POST /v1/topics/t/messages", "producer"),
        (b"GET /v1/topics/t/queues/0/messages?offset=0", "consumer"),
        (b"POST /v1/groups/g/nack", "consumer"),
        (b"GET /v1/topics", "admin"),
        (b"POST /v1/topics/%74/messages", "producer"),
        (b"POST /v1/groups/g/members/m/fetch", "consumer"),
        (b"PUT /v1/topics/t", "admin"),
    ):
        await ask(line)
        assert roles() == {f'{{role="{role}"}}': 1}, line
    writer.close()
    await writer.wait_closed()
    await until(lambda: roles() == {})


async def test_a_refusal_is_counted_by_kind_of_work_and_code(served: Served) -> None:
    base = f"http://127.0.0.1:{served.server.port}"
    async with aiohttp.ClientSession(base) as session:
        for method, path in (
            ("POST", "/v1/topics/t/messages"),
            ("POST", "/v1/topics/%74/messages"),
            ("POST", "/v1/groups/g/nack"),
            ("GET", "/v1/topics/t/queues/0/messages?offset=0"),
            ("GET", "/v1/topics/t"),
            ("PUT", "/v1/topics/t"),
            ("POST", "/v1/groups/g/offsets"),
            ("GET", "/nothing"),
            ("PATCH", "/v1/topics/t"),
        ):
            async with session.request(method, path) as answer:
                assert answer.status >= 400, (method, path)
    codes = served.shown("requests_rejected_total")
    assert codes == {
        '{pool="put",code="not-serving"}': 3,
        '{pool="pull",code="not-serving"}': 1,
        '{pool="query",code="not-serving"}': 1,
        '{pool="admin",code="not-serving"}': 1,
        '{pool="heartbeat",code="not-serving"}': 1,
        '{pool="query",code="unknown-call"}': 1,
        '{pool="query",code="unknown-method"}': 1,
    }
    assert set(served.shown("requests_queued").values()) == {0}
    assert len(served.shown("oldest_queued_request_seconds")) == 5


class Connection:
    """A connection of a client: what it sends, and the status of each answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, size: int = 0) -> int:
        """Send a request that announces a body and never sends it; return the status, 0 if the
        connection is closed."""
        head = f"POST /v1/topics/t/messages HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n"
        self._writer.write(head.encode())
        return await self.status()

    async def status(self) -> int:
        try:
            answer = await self._reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return 0
        body = int(answer.split(b"Content-Length: ")[1].split(b"\r\n")[0])
        await self._reader.readexactly(body)
        return int(answer.split()[1])

    def close(self) -> None:
        self._writer.close()

    async def is_closed(self) -> bool:
        try:
            return await self._reader.read(1) == b""
        except ConnectionError:
            return True


@pytest.fixture
async def two() -> AsyncIterator[Callable[[], Awaitable[Connection]]]:
    """Makes connections to a server that takes two."""
    served = Served(connections_max=2)
    await served.server.start("127.0.0.1", 0)
    made: list[asyncio.StreamWriter] = []

    async def connect() -> Connection:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.server.port)
        made.append(writer)
        return Connection(reader, writer)

    yield connect
    for writer in made:
        writer.close()
    await served.server.close()


async def test_a_client_between_two_requests_keeps_its_connection(
    two: Callable[[], Awaitable[Connection]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that sent one message after the other lost its connection, perhaps with a send
    under way, to a client that only opened more: between two requests it was idle."""
    monkeypatch.setattr(connections, "IDLE_MIN_S", 3600.0)
    first, second = await two(), await two()
    assert (await first.ask(), await second.ask()) == (503, 503)  # the gate is shut
    third = await two()
    assert await third.status() == 503
    assert await third.is_closed()
    assert (await first.ask(), await second.ask()) == (503, 503)


async def test_the_oldest_idle_connection_is_replaced(
    two: Callable[[], Awaitable[Connection]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "IDLE_MIN_S", 0.0)
    first, second = await two(), await two()
    assert (await first.ask(), await second.ask()) == (503, 503)
    third = await two()
    assert await third.ask() == 503
    assert await first.is_closed()
    assert await second.ask() == 503


async def test_a_connection_that_still_sends_a_refused_body_is_replaced(
    two: Callable[[], Awaitable[Connection]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections with bodies that were refused and did not end took all places for 5 s each."""
    monkeypatch.setattr(connections, "IDLE_MIN_S", 3600.0)
    first, second = await two(), await two()
    assert (await first.ask(), await second.ask(size=900)) == (503, 503)
    third = await two()
    assert await third.ask() == 503
    assert await second.is_closed()
    assert await first.ask() == 503


async def test_a_refused_connection_is_not_replaced_before_its_answer_is_written() -> None:
    noted, may_answer = asyncio.Event(), asyncio.Event()

    async def refuse(request: web.Request) -> web.Response:
        assert isinstance(request.protocol, BoundedHandler)
        request.protocol.note_refused(request)
        noted.set()
        await may_answer.wait()
        return web.Response(status=413)

    app = web.Application()
    app.router.add_post("/v1/topics/t/messages", refuse)
    server = BoundedServer(app, Bounds(1, 5.0, 5.0, 5.0))
    await server.start("127.0.0.1", 0)
    first = Connection(*await asyncio.open_connection("127.0.0.1", server.port))
    asked = asyncio.create_task(first.ask())
    await noted.wait()
    second = Connection(*await asyncio.open_connection("127.0.0.1", server.port))
    assert await second.status() == 503
    may_answer.set()
    assert await asked == 413
    for each in (first, second):
        each.close()
    await server.close()


# A refused body was read as fast as it came: other requests waited for it at each turn.
async def test_a_refused_body_is_discarded_in_parts_with_rests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pauses, "REST_S", 3600.0)
    handlers: list[BoundedHandler] = []

    async def refuse(request: web.Request) -> web.Response:
        assert isinstance(request.protocol, BoundedHandler)
        request.protocol.note_refused(request)
        handlers.append(request.protocol)
        return web.Response(status=413)

    app = web.Application()
    app.router.add_post("/v1/topics/t/messages", refuse)
    server = BoundedServer(app, Bounds(1, 5.0, 5.0, 5.0))
    await server.start("127.0.0.1", 0)
    sender = Connection(*await asyncio.open_connection("127.0.0.1", server.port))
    assert await sender.ask(size=1 << 20) == 413
    transport = handlers[0].transport
    assert isinstance(transport, asyncio.ReadTransport)
    assert transport.is_reading()
    sender._writer.write(bytes(1 << 16))
    await until(lambda: not transport.is_reading())
    handlers[0]._resume_reading_for_buffer()  # as the timer does
    assert transport.is_reading()
    sender.close()
    await server.close()


# A flood of connections was accepted at once, 0.3 ms each, and sends waited for all of it.
@pytest.mark.parametrize(("is_awaited", "accepted"), [(True, 1), (False, 20)])
async def test_connections_are_accepted_one_by_one_with_rests_while_a_request_is_in_hand(
    is_awaited: bool, accepted: int
) -> None:
    pace = Pace()
    pace.rest_s(asyncio.get_running_loop().time(), slices=3_600_000)  # the next rest: an hour
    pauses = Pauses(lambda: is_awaited, patience_s=0.0, pace=pace)
    server = BoundedServer(web.Application(), Bounds(100, 3600.0, 3600.0, 3600.0), pauses=pauses)
    await server.start("127.0.0.1", 0)
    opened = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(20)]
    await until(lambda: server.connections == accepted)
    for _ in range(100):
        await asyncio.sleep(0)
    assert server.connections == accepted
    for _, writer in opened:
        writer.close()
    await server.close()


# The task that accepts connections ended with the first one that failed, and all others waited.
async def test_a_connection_that_cannot_be_served_is_closed_and_others_are_accepted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = BoundedServer(web.Application(), Bounds(100, 3600.0, 3600.0, 3600.0))
    await server.start("127.0.0.1", 0)
    make = server.make_handler
    monkeypatch.setattr(server, "make_handler", lambda *_, **__: 1 / 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    assert await reader.read() == b""
    assert "a connection could not be served" in caplog.text
    monkeypatch.setattr(server, "make_handler", make)
    _, second = await asyncio.open_connection("127.0.0.1", server.port)
    await until(lambda: server.connections == 1)
    writer.close()
    second.close()
    await server.close()
