"""Sends in a cluster: one deadline, bounds of what waits for a route, another broker group."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import msgpack
import pytest
from aiohttp import web

import tidemark
from tests.unit.client.fake_broker import answer, error
from tests.unit.client.test_cluster_calls import HELD, NOWHERE, cluster_of, route, served
from tidemark import errors
from tidemark.client.batching import Limits
from tidemark.client.queue_choice import queue_of_key, writable_queues
from tidemark.client.routes import GroupRoute, Routes

HANGS_S = 60.0
"""Far beyond every timeout below."""
KEYS = [f"order-{n * 7}" for n in range(16)]


class Broker:
    """A broker group that stores what it gets until it refuses."""

    def __init__(self, stores_max: int | None = None, code: str = "drained") -> None:
        """stores_max: number of requests that it stores; None: all. code: of later refusals."""
        self.left, self.code = stores_max, code
        self.bodies: list[bytes] = []
        self.timeouts_ms: list[int] = []
        self.refused = asyncio.Event()

    async def answer(self, request: web.Request) -> web.Response:
        data = await request.read()
        if not request.path.endswith("/messages"):
            return error(404, "unknown-call")
        body = msgpack.unpackb(data)
        self.timeouts_ms.append(body["timeout_ms"])
        if self.left == 0:
            self.refused.set()
            return error(403 if self.code == "drained" else 503, self.code)
        if self.left is not None:
            self.left -= 1
        self.bodies += [each["body"] for each in body["messages"]]
        results = [
            {
                "queue": each.get("queue", 0),
                "queue_offset": 0,
                "physical_offset": 0,
                "message_id": "0" * 32,
                "unique_id": "u",
                "store_timestamp_ms": 0,
            }
            for each in body["messages"]
        ]
        level = {"level": "disk", "copies": 1}
        return answer({"status": "PUT_OK", "ack": level, "results": results})


@asynccontextmanager
async def cluster_that_changes(
    first: Broker, second: Broker, **settings: Any
) -> AsyncIterator[tidemark.Client]:
    """A client of g0 and g1. When g0 has refused a message, its route says so after a while."""
    async with served(first.answer) as g0, served(second.answer) as g1:
        at = {"g0": g0, "g1": g1}

        async def tell(request: web.Request) -> web.Response:
            if request.query.get(HELD) == "v2":
                await asyncio.sleep(HANGS_S)
            if HELD in request.query:
                await first.refused.wait()
                await asyncio.sleep(0.1)
                return route(at, version="v2", closed=["g0"])
            return route(at)

        async with served(tell) as url, tidemark.connect(url, **settings) as mq:
            await mq.routes("orders")
            yield mq


def keys_of(broker_group: str) -> list[str]:
    """The keys that belong to g0 or g1."""
    groups = tuple(GroupRoute(name, 1, None, (), queues=8) for name in ("g0", "g1"))
    queues = writable_queues(Routes("", "", True, frozenset(), (), groups))
    return [key for key in KEYS if queue_of_key(queues, key).broker_group == broker_group]


# -- one deadline ----------------------------------------------------------------------------------


@pytest.mark.parametrize("hangs_at", ["/v1/route", "/v1/route/orders"])
async def test_name_services_that_never_answer_hold_a_send_until_its_timeout_only(
    hangs_at: str,
) -> None:
    async def tell(request: web.Request) -> web.Response:
        if request.path == hangs_at or HELD in request.query:
            await asyncio.sleep(HANGS_S)
        return route({"g0": NOWHERE, "g1": NOWHERE})

    async with served(tell) as one, served(tell) as other, tidemark.connect([one, other]) as mq:
        for send in (
            mq.send("orders", b"x", timeout_ms=300),
            mq.send_many("orders", [b"x"], timeout_ms=300),
        ):
            began = time.monotonic()
            with pytest.raises(errors.Unreachable, match="Nothing was sent") as raised:
                await send
            assert time.monotonic() - began < HANGS_S / 20
            assert raised.value.sent is False


async def test_a_send_has_the_time_that_the_calls_for_routes_have_left() -> None:
    broker = Broker()

    async with served(broker.answer) as g0:

        async def tell(request: web.Request) -> web.Response:
            await asyncio.sleep(HANGS_S if HELD in request.query else 0.3)
            return route({"g0": g0, "g1": g0})

        async with served(tell) as url, tidemark.connect(url) as mq:
            await mq.send("orders", b"x", timeout_ms=2000)
            await mq.send("orders", b"x", timeout_ms=2000)
            await mq.send_many("orders", [b"x"], timeout_ms=2000)
    first_ms, *later_ms = broker.timeouts_ms
    assert first_ms <= 1400
    assert later_ms[0] == 2000  # messages of one timeout share a request
    assert later_ms[1] >= 1800


# -- bounds ----------------------------------------------------------------------------------------


async def test_messages_that_wait_for_a_route_are_bounded_and_the_error_says_so() -> None:
    async def tell(request: web.Request) -> web.Response:
        if HELD in request.query:
            await asyncio.sleep(HANGS_S)
        return route({"g0": NOWHERE}, complete=False, missing=["g1"])

    limits = Limits(waiting_size_max=10_000)
    async with served(tell) as url, tidemark.connect(url, limits=limits) as mq:
        await mq.routes("orders")
        sends = [
            asyncio.create_task(mq.send("orders", bytes(1000), sharding_key=f"{n}"))
            for n in range(50)
        ]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        held = mq.producer.unanswered_size
        assert 5000 < held <= limits.waiting_size_max
        with pytest.raises(errors.Unreachable) as raised:
            await mq.send("orders", bytes(2000), sharding_key="a", timeout_ms=100)
        text = str(raised.value)
        assert f"{held} bytes" in text
        assert "10000 (`Limits.waiting_size_max`)" in text
        assert "allow more" in text
        for each in sends:
            each.cancel()
        await asyncio.gather(*sends, return_exceptions=True)
        assert mq.producer.unanswered_size == 0


async def test_messages_that_had_no_room_to_wait_go_on_when_others_have_gone() -> None:
    broker = Broker()
    is_complete = asyncio.Event()
    async with served(broker.answer) as g0:

        async def tell(request: web.Request) -> web.Response:
            if request.query.get(HELD) == "v2":
                await asyncio.sleep(HANGS_S)
            if HELD in request.query:
                await is_complete.wait()
                return route({"g0": g0, "g1": g0}, version="v2")
            return route({"g0": g0}, complete=False, missing=["g1"])

        limits = Limits(waiting_size_max=3000)
        async with served(tell) as url, tidemark.connect(url, limits=limits) as mq:
            await mq.routes("orders")
            sends = [
                asyncio.create_task(mq.send("orders", b"%04d" % n * 250, sharding_key="a"))
                for n in range(20)
            ]
            await asyncio.sleep(0)
            is_complete.set()
            async with asyncio.timeout(10):
                await asyncio.gather(*sends)
    assert [body[:4] for body in broker.bodies] == [b"%04d" % n for n in range(20)]


# -- another choice --------------------------------------------------------------------------------


@pytest.mark.parametrize("keyed_when_down", ["wait", "reject"])
async def test_a_message_with_a_key_waits_for_the_new_route_during_a_drain(
    keyed_when_down: Literal["wait", "reject"],
) -> None:
    first, second = Broker(0), Broker()
    async with cluster_that_changes(first, second, keyed_when_down=keyed_when_down) as mq:
        sent = await mq.send("orders", b"x", sharding_key=keys_of("g0")[0], timeout_ms=5000)
    assert (sent.broker_group, second.bodies) == ("g1", [b"x"])


async def test_a_drain_is_reported_when_no_new_route_comes_within_the_timeout() -> None:
    async with cluster_of(Broker(0).answer, Broker(0).answer) as mq:
        began = time.monotonic()
        with pytest.raises(errors.Drained):
            await mq.send("orders", b"x", sharding_key="a", timeout_ms=200)
        with pytest.raises(errors.Drained):
            await mq.send_many("orders", [keyed("a")], timeout_ms=200)
        assert 0.4 <= time.monotonic() - began < HANGS_S / 20


def keyed(key: str) -> tidemark.NewMessage:
    return tidemark.NewMessage(key.encode(), sharding_key=key)


async def test_a_list_goes_to_other_broker_groups_where_one_is_drained_in_the_middle() -> None:
    """g0 stores one request and refuses the next. Every message is stored once."""
    first, second = Broker(1), Broker()
    limits = Limits(count_max=2)
    listed: Sequence[tidemark.NewMessage | bytes] = [b"free", b"free", *map(keyed, KEYS), b"free"]
    async with cluster_that_changes(first, second, limits=limits) as mq:
        sent = await mq.send_many("orders", listed, timeout_ms=5000)
    assert 1 <= len(first.bodies) <= 2  # its first request may have been the third free message
    assert Counter(first.bodies + second.bodies) == Counter(
        [b"free"] * 3 + [key.encode() for key in KEYS]
    )
    assert Counter(each.broker_group for each in sent) == {
        "g0": len(first.bodies), "g1": len(second.bodies),
    }  # fmt: skip


async def test_an_error_of_a_list_names_exactly_what_is_stored_wherever_it_went() -> None:
    """1. g0 stores a part of its keys and is drained; 2. g1 stores its own keys; 3. the rest goes
    to g1 by the new route, which refuses it."""
    of_first, of_second = keys_of("g0"), keys_of("g1")
    assert len(of_first) > 2
    first, second = Broker(1), Broker((len(of_second) + 1) // 2, code="invalid-state")
    limits = Limits(count_max=2)
    async with cluster_that_changes(first, second, limits=limits, retry_for_s=1.0) as mq:
        with pytest.raises(errors.TidemarkError) as raised:
            await mq.send_many("orders", list(map(keyed, KEYS)), timeout_ms=3000)
    facts = raised.value.facts
    stored = {KEYS[index].encode() for index in facts["indexes"]}
    assert stored == {*first.bodies, *second.bodies}
    assert len(facts["results"]) == len(stored) == 2 + len(of_second)
    groups = {
        KEYS[index]: result.broker_group
        for index, result in zip(facts["indexes"], facts["results"], strict=True)
    }
    assert groups == {
        **dict.fromkeys((body.decode() for body in first.bodies), "g0"),
        **dict.fromkeys(of_second, "g1"),
    }


async def test_a_broker_group_that_refuses_one_topic_is_not_left_out_for_others() -> None:
    async def broker(request: web.Request) -> web.Response:
        if request.path.startswith("/v1/topics/gone/"):
            return error(404, "unknown-topic")
        return await stores.answer(request)

    stores = Broker()
    async with cluster_of(broker, broker) as mq:
        with pytest.raises(errors.UnknownTopic):
            await mq.send("gone", b"x")
        now_s = asyncio.get_running_loop().time()
        assert not mq._cluster.outages.is_out("g0", now_s)


# -- a new master ----------------------------------------------------------------------------------


async def test_a_paused_send_goes_to_the_new_master_as_soon_as_a_route_names_it() -> None:
    """The old master refuses, and no node says which one is the new master."""
    has_changed = asyncio.Event()
    refused = asyncio.Event()
    stores = Broker()

    async def old(_: web.Request) -> web.Response:
        refused.set()
        return error(503, "not-serving", retriable=True)

    async with served(old) as n0, served(stores.answer) as n1:

        async def tell(request: web.Request) -> web.Response:
            if request.query.get(HELD) == "v2":
                await asyncio.sleep(HANGS_S)
            if HELD in request.query:
                await has_changed.wait()
                return of_nodes(n0, n1, master="n1", epoch=2, version="v2")
            return of_nodes(n0, n1, master="n0", epoch=1, version="v1")

        async with served(tell) as url, tidemark.connect(url) as mq:
            sending = asyncio.create_task(mq.send("orders", b"x", sharding_key="a"))
            await refused.wait()
            has_changed.set()
            async with asyncio.timeout(5):
                assert (await sending).broker_group == "g0"
    assert stores.bodies == [b"x"]


def of_nodes(*urls: str, master: str, epoch: int, version: str) -> web.Response:
    nodes = [{"node": f"n{n}", "role": "unknown", "api": url} for n, url in enumerate(urls)]
    group = {"group": "g0", "epoch": epoch, "master": master, "nodes": nodes, "queues": 4}
    head = {"cluster": "shop", "version": version, "changed": True, "complete": True}
    return answer({**head, "missing": [], "names": [NOWHERE], "groups": [group]})
