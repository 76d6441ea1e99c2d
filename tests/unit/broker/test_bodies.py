"""Request bodies: what they cost while they arrive, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import cast

import aiohttp
import pytest
from aiohttp import StreamReader, web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.test_utils import TestServer

from services.broker.api import encodings, http_requests
from services.broker.api.http_requests import Bodies, Body, BodyBounds
from services.broker.limits import MAPS_MAX
from services.broker.request_classes import RequestClass, RequestClasses
from shared.runtime.clock import SystemClock
from shared.runtime.connections import BoundedServer, Bounds
from shared.runtime.pauses import Pauses
from tidemark.errors import BadRequest, TidemarkError, TooManyValues

SIZE_MAX = 1 << 20


class Served:
    """Reads each request's body and answers its size, or the error's code."""

    def __init__(self, waiting_max: int, timeout_s: float) -> None:
        self.classes = RequestClasses(SystemClock())
        self.bodies = Bodies(BodyBounds(SIZE_MAX, waiting_max, timeout_s), self.classes)
        self.port = 0
        self.go = asyncio.Event()
        self.go.set()

    @property
    def used(self) -> int:
        return self.bodies._waiting.used

    async def handle(self, request: web.Request) -> web.Response:
        try:
            body = self.bodies.begin(request)
            try:
                data = await self.bodies.whole(request, body, encodings.Encoding.MSGPACK)
                await self.go.wait()
                return web.Response(text=str(len(data)))
            finally:
                self.bodies.end(body)
        except TidemarkError as error:
            return web.Response(status=error.status, text=error.code)


@contextlib.asynccontextmanager
async def serving(waiting_max: int, timeout_s: float = 60.0) -> AsyncIterator[Served]:
    served = Served(waiting_max, timeout_s)
    app = web.Application(client_max_size=0)
    app.add_routes([web.post("/", served.handle)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    served.port = runner.addresses[0][1]
    try:
        yield served
    finally:
        served.go.set()
        await runner.cleanup()


async def begin(
    served: Served, head: str, data: bytes = b""
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(f"POST / HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode() + data)
    await writer.drain()
    return reader, writer


async def answer(reader: asyncio.StreamReader) -> tuple[int, str]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    size = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
    return int(head.split()[1]), (await reader.readexactly(size)).decode()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("head", [f"Content-Length: {SIZE_MAX}", "Transfer-Encoding: chunked"])
async def test_bodies_that_are_announced_and_do_not_arrive_cost_nothing(head: str) -> None:
    """Sixteen connections that announced 16 MiB each, and sent nothing, gave all others 503."""
    async with serving(waiting_max=2 * SIZE_MAX) as served:
        silent = [await begin(served, head) for _ in range(32)]
        reader, writer = await begin(served, "Content-Length: 1000", bytes(1000))
        assert await answer(reader) == (200, "1000")
        assert served.used == 0
        for _, each in (*silent, (reader, writer)):
            each.close()


async def test_partial_bodies_of_one_peer_take_at_most_half_of_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_requests, "peer_of", lambda request: "10.0.0.1")
    part = 200_000
    async with serving(waiting_max=4 * part + 100) as served:
        head = f"Content-Length: {part + 1}"
        held = []
        for number in range(2):
            held.append(await begin(served, head, bytes(part)))
            await until(lambda number=number: served.used == part * (number + 1))  # type: ignore[misc]
        reader, writer = await begin(served, head, bytes(part))
        assert await answer(reader) == (503, "overloaded")
        writer.close()
        assert served.used == 2 * part
        # One that came whole is no matter of its peer.
        reader, writer = await begin(served, "Content-Length: 10", bytes(10))
        assert await answer(reader) == (200, "10")
        writer.close()
        held[0][1].write(b"x")
        assert await answer(held[0][0]) == (200, str(part + 1))
        await until(lambda: served.used == part)
        monkeypatch.setattr(http_requests, "peer_of", lambda request: "10.0.0.2")
        other, writer = await begin(served, f"Content-Length: {2 * part}", bytes(2 * part))
        assert await answer(other) == (200, str(2 * part))
        writer.close()
        held[1][1].close()
        await until(lambda: served.used == 0)
        held[0][1].close()
        assert served.bodies._peers == {}


async def test_a_body_larger_than_the_whole_budget_fits_alone() -> None:
    async with serving(waiting_max=1000) as served:
        reader, writer = await begin(served, "Content-Length: 300000", bytes(200_000))
        await until(lambda: served.used > 1000)
        writer.write(bytes(100_000))
        assert await answer(reader) == (200, "300000")
        writer.close()


async def test_a_body_of_which_nothing_more_arrives_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_requests, "BODY_SILENCE_S", 0.05)
    async with serving(waiting_max=1 << 20, timeout_s=3600.0) as served:
        reader, writer = await begin(served, "Content-Length: 100", b"x")
        assert await answer(reader) == (408, "slow-request")
        assert served.used == 0
        writer.close()


@pytest.mark.parametrize("is_one_peer", [False, True])
async def test_bodies_that_have_stopped_give_their_memory_to_others(
    monkeypatch: pytest.MonkeyPatch, *, is_one_peer: bool
) -> None:
    """48 connections that held half a body each gave everybody else 503 for ten seconds."""
    part = 200_000
    peers = itertools.repeat("10.0.0.1") if is_one_peer else map(str, itertools.count())
    monkeypatch.setattr(http_requests, "peer_of", lambda request: next(peers))
    monkeypatch.setattr(http_requests, "BODY_STALL_S", 3600.0)
    async with serving(waiting_max=part * (4 if is_one_peer else 2)) as served:
        held = []
        for number in range(2):
            held.append(await begin(served, f"Content-Length: {part + 1}", bytes(part)))
            await until(lambda number=number: served.used == part * (number + 1))  # type: ignore[misc]
        head = f"Content-Length: {part + 1}"
        refused, writer = await begin(served, head, bytes(part))
        assert await answer(refused) == (503, "overloaded")
        writer.close()
        monkeypatch.setattr(http_requests, "BODY_STALL_S", 0.0)
        reader, writer = await begin(served, head, bytes(part))
        await until(lambda: served.used == part)
        writer.write(b"x")
        assert await answer(reader) == (200, str(part + 1))
        writer.close()
        for stopped, its_writer in held:
            assert await answer(stopped) == (503, "overloaded")
            its_writer.close()
        await until(lambda: served.used == 0)
        assert served.bodies._peers == {}
        assert served.bodies._arriving == {}


async def test_a_chunked_body_that_becomes_too_large_is_refused_and_given_back() -> None:
    async with serving(waiting_max=4 * SIZE_MAX) as served:
        reader, writer = await begin(served, "Transfer-Encoding: chunked")
        for _ in range(5):
            writer.write(b"40000\r\n" + bytes(0x40000) + b"\r\n")
        assert await answer(reader) == (413, "too-large")
        assert served.used == 0
        writer.close()


# The refusal of a body of which no byte had been counted ended in a KeyError: 500, not 413 or 408.
async def test_a_body_is_refused_for_its_reason_although_no_byte_of_it_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_requests, "BODY_SILENCE_S", 0.05)
    async with serving(waiting_max=4 * SIZE_MAX, timeout_s=3600.0) as served:
        for head in (f"Content-Length: {SIZE_MAX}", "Transfer-Encoding: chunked"):
            reader, writer = await begin(served, head)
            assert await answer(reader) == (408, "slow-request")
            writer.close()
        served.bodies.size_max = 1000
        reader, writer = await begin(served, "Transfer-Encoding: chunked")
        writer.write(b"4e20\r\n" + bytes(20_000))  # one part, beyond the bound at once
        assert await answer(reader) == (413, "too-large")
        writer.close()
        assert served.used == 0
        assert served.bodies._peers == {}


async def test_a_list_that_is_too_long_by_its_own_head_is_refused_before_the_body_has_come() -> (
    None
):
    """16 million empty maps were all in memory before they were counted."""
    maps = b"\x81\xa8messages\xdd\x00\xff\xff\xff" + bytes(1000)
    async with serving(waiting_max=4 * SIZE_MAX) as served:
        head = f"Content-Type: application/msgpack\r\nContent-Length: {SIZE_MAX}"
        reader, writer = await begin(served, head, maps)
        assert await answer(reader) == (413, "too-many-values")
        assert served.used == 0
        writer.close()


# Bodies of 16 MiB one after the other made another client's sends take fourteen times as long.
async def test_a_long_body_is_read_with_rests_while_another_send_is_in_hand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_requests, "LONG", 1000)
    rests: list[bool] = []

    async def rest(pauses: Pauses) -> None:
        rests.append(pauses._is_awaited())

    monkeypatch.setattr(Pauses, "rest", rest)
    async with serving(waiting_max=4 * SIZE_MAX) as served:
        for in_hand in range(1, 3):  # the body's own, then another
            served.classes.of[RequestClass.PUT].begin(0.0)
            rests.clear()
            reader, writer = await begin(served, "Content-Length: 300000", bytes(200_000))
            await until(lambda: served.used == 200_000)
            writer.write(bytes(100_000))
            assert await answer(reader) == (200, "300000")
            writer.close()
            assert set(rests) == {in_hand == 2}
        rests.clear()
        reader, writer = await begin(served, "Content-Length: 900", bytes(900))
        assert await answer(reader) == (200, "900")
        writer.close()
        assert rests == []


# 4,096 messages in JSON took the loop for 0.5 s: another client's sends waited for it.
async def test_a_long_body_is_decoded_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, decoding = threading.Event(), asyncio.Event()
    loop, decode = asyncio.get_running_loop(), encodings.decode

    def slow(data: bytes, encoding: encodings.Encoding, rest: encodings.Rest) -> object:
        loop.call_soon_threadsafe(decoding.set)
        assert goes_on.wait(30), "the loop goes on meanwhile"
        return decode(data, encoding, rest)

    monkeypatch.setattr(encodings, "decode", slow)
    classes = RequestClasses(SystemClock())
    bodies = Bodies(BodyBounds(1 << 20, 1 << 20, 30), classes)

    async def handle(request: web.Request) -> web.Response:
        async with bodies.read(request) as value:
            assert isinstance(value, list)
            return web.Response(text=str(len(value)))

    app = web.Application()
    app.router.add_post("/", handle)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        asking = asyncio.create_task(session.post(server.make_url("/"), json=[0] * 1000))
        await decoding.wait()
        goes_on.set()
        async with await asking as answered:
            assert await answered.text() == "1000"


# Decoded in a thread, bodies kept the interpreter and the core busy: each step of another client's
# send waited for them.
@pytest.mark.parametrize("encoding", encodings.Encoding)
def test_work_in_the_thread_rests_again_and_again(encoding: encodings.Encoding) -> None:
    messages = [{"body": "x", "keys": ["k"] * 50} for _ in range(1000)]
    data = encodings.encode({"messages": messages}, encoding)
    pauses = CountedRests()
    decoded = encodings.decode(data, encoding, pauses.rest_in_thread)
    assert decoded == {"messages": messages}
    assert pauses.count > len(messages)
    counted = CountedRests()
    empty = encodings.encode([{}] * (MAPS_MAX + 1), encoding)
    with pytest.raises(TooManyValues):
        encodings.check_count(empty, encoding, counted.rest_in_thread)
    assert counted.count >= MAPS_MAX // encodings._WALKED


class CountedRests(Pauses):
    """Counts the checks whether to rest."""

    count = 0

    def rest_in_thread(self) -> None:
        self.count += 1


async def test_a_send_without_its_body_makes_no_reader_rest() -> None:
    async with serving(waiting_max=4 * SIZE_MAX) as served:
        served.classes.of[RequestClass.PUT].begin(0.0)
        assert served.classes.others_send()
        _, writer = await begin(served, f"Content-Length: {SIZE_MAX}", b"half")
        await until(lambda: served.used == len(b"half"))
        assert not served.classes.others_send()
        writer.close()
        await until(served.classes.others_send)


# After a broken chunk there is no body: the request waited for more of it until its time-out.
@pytest.mark.parametrize("whole", [b"", b"5\r\nhello\r\n"])
async def test_a_broken_chunk_is_refused_at_once(whole: bytes) -> None:
    served = Served(waiting_max=1 << 20, timeout_s=3600.0)
    begun = asyncio.Event()

    async def handle(request: web.Request) -> web.Response:
        begun.set()
        return await served.handle(request)

    app = web.Application(client_max_size=0)
    app.add_routes([web.post("/", handle)])
    server = BoundedServer(app, Bounds(8, 3600.0, 3600.0, 3600.0))
    await server.start("127.0.0.1", 0)
    served.port = server.port
    for _ in range(2):
        begun.clear()
        reader, writer = await begin(served, "Transfer-Encoding: chunked", whole)
        await begun.wait()
        await until(lambda: served.used == (5 if whole else 0))
        writer.write(b"zz\r\n" + bytes(100))
        assert await answer(reader) == (400, "bad-request")
        assert await reader.read() == b"", "no second answer, and the connection is closed"
        writer.close()
        assert served.used == 0
    await server.close()


async def test_a_body_that_broke_before_it_was_asked_for_is_refused() -> None:
    bodies = Served(waiting_max=100, timeout_s=1.0).bodies
    protocol = SimpleNamespace(resume_reading=lambda **_: None)
    content = StreamReader(cast(BaseProtocol, protocol), 1 << 16)
    content.set_exception(web.RequestPayloadError("cut"))
    content.feed_eof()
    request = cast(web.Request, SimpleNamespace(content=content))
    with pytest.raises(BadRequest, match="broken: cut"):
        bodies.arrived(request, Body())


@pytest.mark.parametrize("transport", [None, object()])
async def test_a_body_of_a_connection_that_is_closed_is_no_failure_of_ours(
    transport: object,
) -> None:
    class Content:
        def is_eof(self) -> bool:
            return False

        async def readany(self) -> bytes:
            raise RuntimeError("Connection closed.")  # as aiohttp's does

    bodies = Served(waiting_max=100, timeout_s=1.0).bodies
    given = SimpleNamespace(content=Content(), content_length=10, headers={}, transport=transport)
    with pytest.raises(ConnectionError if transport is None else RuntimeError):
        await bodies.whole(cast(web.Request, given), Body(), encodings.Encoding.MSGPACK)
