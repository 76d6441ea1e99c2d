"""Lists in pages, and answers without a size: both have an end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgpack
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

import tidemark
from tests.unit.client.fake_broker import FakeBroker
from tidemark import errors
from tidemark.client import transport


@pytest.mark.parametrize("page_size", [None, 1, 3, 7, 8])
async def test_all_pages_of_a_list_are_asked_for(page_size: int | None) -> None:
    names = [f"t{number}" for number in range(7)]
    broker = FakeBroker(queues={name: [[]] for name in reversed(names)}, page_size=page_size)
    async with broker.serve() as serving, tidemark.connect(serving.url) as mq:
        assert [topic.name for topic in await mq.topics()] == names


async def answering(kind: str, pages: dict[str, dict[str, object]]) -> TestServer:
    """A server with one answer for each value of ``after``."""

    async def listed(request: web.Request) -> web.Response:
        page = pages[request.query.get("after", "")]
        return web.Response(body=msgpack.packb(page), content_type="application/msgpack")

    app = web.Application()
    app.router.add_get(f"/v1/{kind}", listed)
    server = TestServer(app)
    await server.start_server()
    return server


GROUP = {
    "order": False, "broadcast": False, "start": "last", "retry_max": 16, "lag_objective_ms": None,
}  # fmt: skip


async def test_all_pages_of_groups_are_asked_for() -> None:
    pages: dict[str, dict[str, object]] = {
        "": {"groups": [{"group": "a", **GROUP}], "next": "a"},
        "a": {"groups": [], "next": "b"},  # deleted while the page was made
        "b": {"groups": [{"group": "c", **GROUP}], "next": None},
    }
    server = await answering("groups", pages)
    async with tidemark.connect(str(server.make_url("/"))) as mq:
        assert [group.name for group in await mq.groups.list()] == ["a", "c"]
    await server.close()


@pytest.mark.parametrize("following", ["a", "", 7])
async def test_a_list_that_does_not_go_on_is_refused(following: object) -> None:
    pages: dict[str, dict[str, object]] = {
        "": {"groups": [], "next": "a"},
        "a": {"groups": [], "next": following},
    }
    server = await answering("groups", pages)
    async with tidemark.connect(str(server.make_url("/"))) as mq:
        with pytest.raises(errors.BrokenAnswer, match="the list would never end"):
            await mq.groups.list()
    await server.close()


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_an_answer_has_a_bound(is_chunked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        answer = web.StreamResponse()
        if not is_chunked:
            answer.content_length = 1 << 30
        await answer.prepare(request)
        while True:  # until the client is gone
            await answer.write(bytes(1 << 16))
            sent += 1 << 16

    monkeypatch.setattr(transport, "ANSWER_SIZE_MAX", 1 << 20)
    app = web.Application()
    app.router.add_get("/v1/topics", endless)
    async with TestServer(app) as server, tidemark.connect(str(server.make_url("/"))) as mq:
        with pytest.raises(errors.BrokenAnswer, match="over 1048576"):
            await mq.topics()
    assert sent < 1 << 27


async def test_an_answer_in_chunks_within_the_bound_is_whole() -> None:
    async def chunked(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "application/msgpack"})
        await answer.prepare(request)
        body = msgpack.packb({"topics": [{"topic": "a" * 1000, "queues": 1}] * 300, "next": None})
        for at in range(0, len(body), 1 << 14):
            await answer.write(body[at : at + (1 << 14)])
        return answer

    app = web.Application()
    app.router.add_get("/v1/topics", chunked)
    async with TestServer(app) as server, tidemark.connect(str(server.make_url("/"))) as mq:
        assert len(await mq.topics()) == 300


async def test_times_of_a_query_by_key_are_datetimes_or_milliseconds() -> None:
    asked: list[dict[str, str]] = []

    async def found(request: web.Request) -> web.Response:
        asked.append(dict(request.query))
        page: dict[str, object] = {"messages": [], "next": None}
        return web.Response(body=msgpack.packb(page), content_type="application/msgpack")

    app = web.Application()
    app.router.add_get("/v1/topics/orders/messages", found)
    server = TestServer(app)
    await server.start_server()
    at = datetime(2026, 3, 4, 10, tzinfo=UTC)
    ms = 1_772_618_400_000
    async with tidemark.connect(str(server.make_url("/"))) as mq:
        await mq.messages_by_key("orders", "k", begin=at, end=ms + 5)
        await mq.messages_by_key("orders", "k", begin=ms, end=at + timedelta(milliseconds=5))
        await mq.messages_by_key("orders", "k")
        with pytest.raises(ValueError, match="begin has no time zone"):
            await mq.messages_by_key("orders", "k", begin=datetime(2026, 3, 4))  # noqa: DTZ001
        with pytest.raises(TypeError, match="begin must be a datetime or whole milliseconds"):
            await mq.messages_by_key("orders", "k", begin="10:00")  # type: ignore[arg-type]
    await server.close()
    times = [(query.get("begin_ms"), query.get("end_ms")) for query in asked]
    assert times == [(str(ms), str(ms + 5))] * 2 + [(None, None)]
