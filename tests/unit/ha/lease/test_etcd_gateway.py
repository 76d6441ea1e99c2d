"""Calls of etcd's gateway against servers that answer as scripted; real ones are in processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from services.ha.lease.etcd_gateway import MORE_ATTEMPTS, EtcdFailed, EtcdGateway, Login

OK = (200, {"header": {"cluster_id": "7"}, "kvs": []})
NO_LEADER = (503, {"error": "etcdserver: no leader", "message": "…", "code": 14})
INVALID_TOKEN = (401, {"message": "etcdserver: invalid auth token", "code": 16, "details": []})
OLD_TOKEN = (400, {"error": "etcdserver: revision of auth store is old", "code": 3})
AUTH_OFF = (412, {"error": "etcdserver: authentication is not enabled", "code": 9})
DENIED = (403, {"error": "etcdserver: permission denied", "code": 7})


class Member:
    """A server whose answers are given in advance; the last one is repeated."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[Any] = [OK]
        self.requests: list[tuple[str, str]] = []
        """Path and token of each request."""
        self.silent = False

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/v3/{path:.+}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def close(self) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        path = request.match_info["path"]
        self.requests.append((path, request.headers.get("Authorization", "")))
        assert request.headers["Grpc-Metadata-hasleader"] == "true"
        if self.silent:
            await asyncio.sleep(60)
        if path == "auth/authenticate" and self.answers[0] is not AUTH_OFF:
            token = f"token{len(self.requests)}"
            return web.json_response({"header": {"cluster_id": "7"}, "token": token})
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(found, str):
            return web.Response(text=found)
        return web.json_response(found[1], status=found[0])


@pytest.fixture
async def members() -> AsyncIterator[list[Member]]:
    made = [Member(), Member()]
    for member in made:
        await member.start()
    yield made
    for member in made:
        await member.close()


@pytest.fixture
async def gateway(members: list[Member]) -> AsyncIterator[EtcdGateway]:
    made = EtcdGateway(tuple(member.url for member in members), timeout_ms=5000)
    yield made
    await made.close()


async def ask(gateway: EtcdGateway) -> dict[str, Any]:
    return await gateway.call("kv/range", {"key": ""})


async def reason(gateway: EtcdGateway) -> str:
    with pytest.raises(EtcdFailed) as failed:
        await ask(gateway)
    return str(failed.value)


async def test_calls_go_to_the_endpoint_that_answered_last(
    members: list[Member], gateway: EtcdGateway
) -> None:
    await ask(gateway)
    await ask(gateway)
    assert [len(member.requests) for member in members] == [2, 0]
    members[0].answers = [NO_LEADER]
    await ask(gateway)
    await ask(gateway)
    assert [len(member.requests) for member in members] == [3, 2]


async def test_a_silent_endpoint_is_left_by_the_call_that_follows(
    members: list[Member], gateway: EtcdGateway
) -> None:
    members[0].silent = True
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await ask(gateway)
    await ask(gateway)
    assert [len(member.requests) for member in members] == [1, 1]


async def test_each_endpoint_is_tried_and_the_last_reason_is_given(
    members: list[Member], gateway: EtcdGateway
) -> None:
    for member in members:
        member.answers = [NO_LEADER]
    assert "no leader; start its members" in await reason(gateway)
    assert sum(len(member.requests) for member in members) == len(members) + MORE_ATTEMPTS


async def test_a_refusal_that_all_members_would_repeat_is_final(
    members: list[Member], gateway: EtcdGateway
) -> None:
    members[0].answers = [DENIED]
    assert await reason(gateway) == (
        f"etcd at {members[0].url} answered 403: permission denied; grant the user a role that "
        "may read and write `cluster.etcd_prefix`"
    )
    assert [len(member.requests) for member in members] == [1, 0]


@pytest.mark.parametrize("refusal", [INVALID_TOKEN, OLD_TOKEN])
async def test_a_token_that_is_refused_is_requested_again_from_the_same_member(
    members: list[Member], tmp_path: Path, refusal: Any
) -> None:
    (tmp_path / "password").write_text("word")
    login = Login("ha", tmp_path / "password")
    gateway = EtcdGateway(tuple(each.url for each in members), timeout_ms=5000, login=login)
    await ask(gateway)
    members[0].answers = [refusal, OK]
    await ask(gateway)
    assert members[0].requests == [
        ("auth/authenticate", ""),
        ("kv/range", "token1"),
        ("kv/range", "token1"),
        ("auth/authenticate", ""),
        ("kv/range", "token4"),
    ]
    assert not members[1].requests
    await gateway.close()


async def test_an_etcd_of_another_cluster_is_not_believed(
    members: list[Member], gateway: EtcdGateway
) -> None:
    await ask(gateway)
    members[0].answers = [NO_LEADER]
    members[1].answers = [(200, {"header": {"cluster_id": "8"}})]
    assert f"{members[1].url} belongs to another etcd cluster" in await reason(gateway)


@pytest.mark.parametrize("answer", ["<html>", "[]", "{}", '{"header": {}}', '{"header": 1}'])
async def test_an_answer_that_is_not_of_etcd_is_no_outcome(
    members: list[Member], gateway: EtcdGateway, answer: str
) -> None:
    members[0].answers = [answer]
    assert await reason(gateway) == f"the answer of {members[0].url} is not that of etcd"


async def test_a_server_without_the_gateway_is_named(members: list[Member]) -> None:
    gateway = EtcdGateway((f"{members[0].url}/elsewhere",), timeout_ms=5000)
    assert "has no JSON gateway of etcd: start etcd with --enable-grpc-gateway" in await reason(
        gateway
    )
    await gateway.close()


async def test_a_server_that_is_gone_is_named(members: list[Member]) -> None:
    await members[0].close()
    gateway = EtcdGateway((members[0].url,), timeout_ms=5000)
    assert await reason(gateway) == (
        f"etcd at {members[0].url}: nothing accepts connections at its address"
    )
    await gateway.close()
