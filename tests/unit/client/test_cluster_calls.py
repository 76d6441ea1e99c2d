"""A client meets answers of name services and broker groups that are broken, late or partial."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

import tidemark
from tests.unit.client.fake_broker import answer, error
from tests.unit.client.test_routes import wire
from tidemark import errors
from tidemark.client.cluster_producer import KeyedWhenDown

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


def route(at: dict[str, str], *, closed: Sequence[str] = (), **changes: Any) -> web.Response:
    """Answer with these broker groups and the addresses of their one node.

    closed: broker groups that accept no messages.
    """
    found = wire(*at, **{"names": [NOWHERE], **changes})
    for group in found["groups"]:
        group["nodes"] = [{"node": "n0", "role": "master", "api": at[group["group"]]}]
        group["writable"] = group["group"] not in closed
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


@asynccontextmanager
async def cluster_of(
    *brokers: Callable[[web.Request], Awaitable[web.Response]],
    retry_for_s: float = 0.3,
    **changes: Any,
) -> AsyncIterator[tidemark.Client]:
    """A client of broker groups g0, g1 …; changes: of the route, which does not change later."""
    async with AsyncExitStack() as servers:
        urls = [await servers.enter_async_context(served(each)) for each in brokers]
        at = {f"g{n}": url for n, url in enumerate(urls)}

        async def tell(request: web.Request) -> web.Response:
            if HELD in request.query:
                await asyncio.sleep(60)
            if not at and request.path != "/v1/route":
                return error(404, "unknown-topic")
            return route(at, **changes)

        url = await servers.enter_async_context(served(tell))
        async with tidemark.connect(url, retry_for_s=retry_for_s) as mq:
            yield mq


async def test_calls_fail_with_a_reason_while_no_broker_group_is_known() -> None:
    async with cluster_of() as mq:
        for call in (
            mq.send("orders", b"x", queue=1),
            mq.send("orders", b"x"),
            mq.create_topic("orders"),
            mq.groups.get("billing"),
            mq.topics(),
        ):
            with pytest.raises(errors.RouteIncomplete):
                await call


async def test_a_broker_does_not_say_for_others_that_a_topic_does_not_exist() -> None:
    # 1. The name services restarted, and answered 503 for a topic; 2. a new client asked the broker
    # that it was given, which is of another broker group and answered 404; 3. the client reported
    # to the program that no broker group has the topic.
    async def tell(request: web.Request) -> web.Response:
        if request.path == "/v1/route":
            return route({"g0": NOWHERE}, complete=False, missing=["g1"], names=[])
        return error(503, "route-incomplete", retriable=True)

    async with served(tell) as names:

        async def broker(request: web.Request) -> web.Response:
            if request.path == "/v1/route":
                return route({"g0": NOWHERE}, complete=False, names=[names])
            return error(404, "unknown-topic")

        async with served(broker) as url, tidemark.connect(url, retry_for_s=0.3) as mq:
            with pytest.raises(errors.RouteIncomplete):
                await mq.routes("orders")


@pytest.mark.parametrize("keyed_when_down", ["wait", "reject"])
async def test_a_message_with_a_key_waits_for_the_route_without_a_drained_broker_group(
    keyed_when_down: KeyedWhenDown,
) -> None:
    # A drained broker group refused messages with a key until the name services had informed the
    # client, and the program saw an error for a planned operation.
    stored = {
        "ack": {"level": "disk", "copies": 1},
        "results": [
            {
                "message_id": "",
                "queue": 0,
                "queue_offset": 0,
                "physical_offset": 0,
                "store_timestamp_ms": 0,
            }
        ],
    }
    is_refused = asyncio.Event()

    async def drained(_: web.Request) -> web.Response:
        is_refused.set()
        return error(403, "drained")

    async def open_one(_: web.Request) -> web.Response:
        return answer(stored)

    async with served(drained) as g0, served(open_one) as g1:
        at = {"g0": g0, "g1": g1}

        async def tell(request: web.Request) -> web.Response:
            if request.query.get(HELD) == "v2" or (
                HELD in request.query and request.path == "/v1/route"
            ):
                await asyncio.sleep(60)
            if HELD in request.query:
                await is_refused.wait()
            groups = ["g1"] if HELD in request.query else ["g0"]
            return route({name: at[name] for name in groups}, version=f"v{1 + is_refused.is_set()}")

        async with (
            served(tell) as url,
            tidemark.connect(url, retry_for_s=10.0, keyed_when_down=keyed_when_down) as mq,
        ):
            assert (await mq.send("orders", b"x", sharding_key="k")).broker_group == "g1"


async def test_changes_need_all_broker_groups_and_reads_do_not() -> None:
    asked: list[str] = []

    async def broker(request: web.Request) -> web.Response:
        asked.append(request.method)
        return answer({"topics": [], "groups": []})

    async with cluster_of(broker, complete=False, missing=["g1"]) as mq:
        for call in (
            mq.create_topic("orders"),
            mq.delete_topic("orders"),
            mq.groups.create("billing"),
            mq.groups.delete("billing"),
            mq.groups.reset("billing", "orders", to="first"),
            mq.delayed.cancel("orders", "id"),
            mq.dead_letters.redrive("billing"),
        ):
            with pytest.raises(errors.RouteIncomplete, match="g1"):
                await call
        assert await mq.topics() == []
    assert set(asked) == {"GET"}


async def test_dead_letters_end_although_the_last_broker_group_lacks_the_group() -> None:
    async def has_it(_: web.Request) -> web.Response:
        return answer({"messages": [], "next_offset": 0, "max_offset": 0, "done": True})

    async def lacks_it(_: web.Request) -> web.Response:
        return error(404, "unknown-group")

    async with cluster_of(has_it, lacks_it) as mq:
        assert [each async for each in mq.dead_letters.iterate("billing")] == []
    async with cluster_of(lacks_it, lacks_it) as mq:
        with pytest.raises(errors.UnknownGroup):
            await mq.dead_letters.list("billing")


async def test_a_name_service_that_names_an_unreachable_address_is_asked_again_itself() -> None:
    at = {"g0": NOWHERE}
    is_added = asyncio.Event()

    async def tell(request: web.Request) -> web.Response:
        if request.query.get(HELD) == "v2":
            await asyncio.sleep(60)
        if HELD in request.query:
            await is_added.wait()
            return route({**at, "g1": NOWHERE}, version="v2")
        return route(at)

    async with served(tell) as url, tidemark.connect(url) as mq:
        assert len((await mq.routes()).groups) == 1
        is_added.set()
        async with asyncio.timeout(10):
            await mq._cluster.changed.wait()
        assert len((await mq.routes()).groups) == 2


async def test_a_given_broker_without_a_topic_does_not_take_its_route_away() -> None:
    """No name service answers any more, and another broker group has the topic."""
    names: list[str] = []
    fell_back = asyncio.Event()

    async def broker(request: web.Request) -> web.Response:
        if HELD in request.query:
            fell_back.set()
        if request.path != "/v1/route":
            return error(404, "unknown-topic")
        return route({"g0": NOWHERE}, complete=False, names=names)

    async def tell(request: web.Request) -> web.Response:
        if HELD in request.query:
            return error(503, "stopping")
        return route({"g0": NOWHERE, "g1": NOWHERE}, names=names)

    async with served(tell) as url, served(broker) as given:
        names.append(url)
        async with tidemark.connect(given) as mq:
            await mq.routes("orders")
            async with asyncio.timeout(10):
                await fell_back.wait()
            assert len((await mq.routes("orders")).groups) == 2
            assert len((await mq.routes()).groups) == 2


async def test_a_delayed_message_that_falls_due_meanwhile_is_left() -> None:
    asked = 0

    async def broker(request: web.Request) -> web.Response:
        nonlocal asked
        if "delayed" in request.path:
            asked += 1
            return answer({"messages": [], "pending": 2 - asked, "next": None})
        return answer({"groups": [], "draining": True, "since_ms": 0})

    async with cluster_of(broker) as mq:
        left = await mq.left()
    assert (asked, left.delayed, left.is_empty) == (2, 1, False)


async def test_a_message_waits_for_a_busy_broker_group_although_another_is_drained() -> None:
    """Whichever of them it asks last: the drained one is refused for good, the busy one is not."""
    calls = 0

    async def busy_at_first(request: web.Request) -> web.Response:
        nonlocal calls
        calls += request.method == "POST"
        if calls % 2:
            return error(503, "switching-over", retriable=True)
        stored = {"message_id": "", "queue": 0, "queue_offset": 0, "physical_offset": 0}
        return answer(
            {
                "ack": {"level": "disk", "copies": 1},
                "results": [{**stored, "store_timestamp_ms": 0}],
            }
        )

    async def drained(_: web.Request) -> web.Response:
        return error(403, "drained")

    async with cluster_of(busy_at_first, drained, retry_for_s=30.0) as mq:
        sent = [await mq.send("orders", b"x") for _ in range(2)]
    assert ([each.broker_group for each in sent], calls) == (["g0", "g0"], 4)
