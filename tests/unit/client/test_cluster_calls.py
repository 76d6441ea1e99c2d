"""A client meets answers of name services and broker groups that are broken, late or partial."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

import tidemark
from tests.unit.client.fake_broker import answer, error
from tests.unit.client.test_routes import wire

NOWHERE = "http://127.0.0.1:9"
HELD = "after"
"""Parameter of a call that is held until the route changes."""


@asynccontextmanager
async def served(handle: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncIterator[str]:
    """Serve every path; yield the address."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    server = TestServer(app)
    await server.start_server(shutdown_timeout=0.1)
    try:
        yield str(server.make_url("")).rstrip("/")
    finally:
        await server.close()


def route(at: dict[str, str], **changes: Any) -> web.Response:
    """Answer with these broker groups and the addresses of their one node."""
    found = wire(*at, **{"names": [NOWHERE], **changes})
    for group in found["groups"]:
        group["nodes"] = [{"node": "n0", "role": "master", "api": at[group["group"]]}]
    return answer(found)


@pytest.mark.parametrize(
    "refusal",
    [
        lambda: web.Response(status=502, text="<html>bad gateway</html>"),
        lambda: web.Response(text="<html>hello</html>"),
        lambda: error(403, "not-permitted"),
    ],
)
async def test_only_a_404_makes_a_broker_alone(refusal: Callable[[], web.Response]) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return refusal()

    async def tell(_: web.Request) -> web.Response:
        return route({"g0": NOWHERE, "g1": NOWHERE})

    async with (
        served(refuse) as broken,
        served(tell) as sound,
        tidemark.connect([broken, sound]) as mq,
    ):
        assert len((await mq.routes()).groups) == 2


async def test_a_broken_answer_is_asked_for_again() -> None:
    asked = 0

    async def tell(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(text="<html>") if asked < 3 else route({"g0": NOWHERE, "g1": NOWHERE})

    async with served(tell) as url, tidemark.connect(url) as mq:
        assert len((await mq.routes()).groups) == 2


async def test_a_broker_without_routes_is_alone() -> None:
    async def tell(_: web.Request) -> web.Response:
        return error(404, "unknown-call")

    async with served(tell) as url, tidemark.connect(url) as mq:
        await mq.routes()
        assert mq._cluster.alone is not None
