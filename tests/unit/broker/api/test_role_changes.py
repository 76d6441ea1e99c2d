"""The gate while a request is under way: a node that is no longer the master changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import MagicMock

import msgspec
import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer

from services.broker.api.components import Components
from services.broker.api.gate import Gate
from services.broker.api.http_api import Api
from services.broker.api.http_requests import BodyBounds
from services.broker.api.messages import Rules
from services.broker.log.term import GrantedTerm
from services.broker.metrics import BrokerMetrics
from services.broker.replication.role_policy import MasterPolicy, SlavePolicy
from services.broker.send.unique_ids import UniqueIds
from shared.metrics.registry import Registry
from shared.runtime.clock import SystemClock
from shared.runtime.health import Health
from tests.support.own_routes import own_route
from tests.support.still_clock import StillClock, until
from tests.unit.broker.groups.rig import GROUP, Rig
from tests.unit.broker.groups.test_counted_answers import api_of
from tests.unit.broker.replication.page import DEADLINE_MS, NONCE, Page
from tidemark.formats.hosts import Host

COMMIT = {"offsets": [{"topic": "orders", "queue": 0, "offset": 1}]}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "topic-put": ("/v1/topics/orders", {"queues": 4}),
    "group-put": ("/v1/groups/billing", {"order": True}),
    "member-join": ("/v1/groups/billing/members/m1", {"subscriptions": [{"topic": "orders"}]}),
    "fetch": ("/v1/groups/billing/members/m1/fetch", {"wait_ms": 0}),
    "commit": ("/v1/groups/billing/offsets", COMMIT),
    "group-reset": ("/v1/groups/billing/reset", {"topic": "orders", "to": "first"}),
    "nack": ("/v1/groups/billing/nack", {"topic": "orders", "queue": 0, "queue_offset": 1}),
    "redrive": ("/v1/groups/billing/redrive", {"to": "topic"}),
}
"""Path and body of each call with a body but sends, which have tests of their own."""


def make_api() -> Api:
    clock = SystemClock()
    gate = Gate(Health(clock))
    gate.reads_open = gate.sends_open = True
    return Api(
        gate,
        Rules(message_size_max=1 << 20, record_crc=True),
        clock,
        BrokerMetrics(Registry("broker")),
        UniqueIds(clock, Host(b"\x7f\x00\x00\x01", 1)),
        BodyBounds(1 << 20, 1 << 20, 10.0),
        own_route(),
        version="1",
    )


def test_every_call_with_a_body_is_named_here() -> None:
    routes = [route for route in make_api().app.router.routes() if route.method in ("POST", "PUT")]
    without = {"drain"}
    assert {route.name for route in routes} - without == {*BODIES, "send", "send-batch"}


# 1. A master admitted a commit, and its body was still arriving; 2. another node became the master,
# and this one followed it; 3. the commit was accepted into the followed state, answered, and never
# appended. A join made a session in the coordinator of a slave; a reset waited for a writer that
# does not run on a slave.
@pytest.mark.parametrize("name", BODIES)
async def test_a_call_whose_body_arrives_after_a_change_of_role_changes_nothing(name: str) -> None:
    api = make_api()
    as_master, as_slave = MagicMock(), MagicMock()
    api.serve(Components(*[as_master] * len(Components._fields)))
    path, fields = BODIES[name]
    body = msgspec.json.encode(fields)

    async def in_two_parts() -> AsyncIterator[bytes]:
        yield body[:5]
        await until(lambda: any(each.size for each in api._bodies._arriving.values()))
        api.serve(Components(*[as_slave] * len(Components._fields)))
        api._gate.take_role(SlavePolicy(lambda: None))
        yield body[5:]

    route = next(each for each in api.app.router.routes() if each.name == name)
    headers = {"Content-Type": "application/json"}
    async with TestServer(api.app) as server, ClientSession(headers=headers) as session:
        url = server.make_url(path)
        async with session.request(route.method, url, data=in_two_parts()) as answered:
            answer: dict[str, Any] = await answered.json()
    assert (answered.status, answer["code"]) == (421, "not-master")
    for components in (as_master, as_slave):
        assert not components.method_calls


# 1. A member's fetch was held by the master; 2. the master's lease ended, and another node may have
# begun to serve the group; 3. a message woke the fetch, which was answered, and moved the place.
@pytest.mark.parametrize("wakes", ["message", "close"])
async def test_a_held_fetch_is_refused_once_the_lease_is_over(rig: Rig, wakes: str) -> None:
    api, page, clock = api_of(rig), Page(), StillClock(0)
    page.grant(3)
    api._gate.take_role(MasterPolicy(GrantedTerm(page, clock, epoch=3, nonce=NONCE)))
    await rig.join()
    async with TestServer(api.app) as server, ClientSession() as session:
        url = server.make_url(f"/v1/groups/{GROUP}/members/m1/fetch")
        fetching = asyncio.create_task(session.post(url, json={"wait_ms": 10_000}))
        held = rig.coordinator.session_of(GROUP, ("orders", 0))
        assert held is not None
        await until(lambda: held.held_fetch is not None)
        clock.now_ms = DEADLINE_MS
        if wakes == "message":
            rig.put(1)
        else:
            rig.puller.long_polls.close()
        answered = await fetching
        answer: dict[str, Any] = await answered.json()
    assert (answered.status, answer.get("code")) == (503, "fenced")
    assert rig.coordinator.place_of(GROUP, ("orders", 0)) == (0, 0)
