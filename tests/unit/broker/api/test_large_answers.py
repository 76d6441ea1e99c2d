"""Large answers are made while they are written, a slice of all of them at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from aiohttp import web
from aiohttp.test_utils import TestServer

from services.broker.api.encodings import Items
from services.broker.api.large_answers import LARGE, MESSAGE_SIZE, LargeAnswers
from services.broker.request_classes import RequestClasses
from shared.runtime.clock import SystemClock
from tests.support.still_clock import StillClock

MESSAGE = {"body_text": "x" * 10_000}


async def test_an_answer_is_made_no_faster_than_its_client_reads() -> None:
    answers, made, ended = (
        LargeAnswers(1 << 30, SystemClock(), RequestClasses(SystemClock())),
        list[int](),
        asyncio.Event(),
    )
    count = 20_000

    def messages() -> Iterator[object]:
        for number in range(count):
            made.append(number)
            yield MESSAGE

    async def handle(request: web.Request) -> web.StreamResponse:
        size = count * 10_000
        reserved = answers.reserve(request, size=size, count=count)
        given = answers.answer(request, {"messages": Items(count, messages())}, reserved)
        try:
            await given.prepare(request)
            await given.write_eof()
        finally:
            ended.set()
        return given

    app = web.Application()
    app.router.add_get("/", handle)
    async with TestServer(app) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 10)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Transfer-Encoding: chunked" in head
        before = -1
        while len(made) > before:  # until the sockets' buffers are full
            before = len(made)
            await asyncio.sleep(0.1)
        assert 0 < len(made) < count / 2
        assert answers._used == count * (10_000 + MESSAGE_SIZE)
        writer.transport.abort()
        await ended.wait()
        assert answers._used == 0


async def test_one_slice_of_all_large_answers_is_taken_at_a_time() -> None:
    answers, order = LargeAnswers(LARGE, StillClock(), RequestClasses(StillClock())), list[str]()

    def steps(name: str) -> Iterator[str]:
        for _ in range(3000):
            yield name

    async def take(name: str) -> int:
        mine, count = steps(name), 0
        while taken := await answers.take(mine):
            order.append(name)
            count += len(taken)
        return count

    assert list(await asyncio.gather(take("a"), take("b"))) == [3000, 3000]
    assert order == ["a", "b"] * 3
