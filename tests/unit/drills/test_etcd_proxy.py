"""The proxy before etcd passes calls on unchanged, and fails as told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from drills.etcd_proxy import EtcdProxy
from drills.faulty_server import Faults


class Etcd:
    """A member that records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, str]] = []
        """Path, body and token."""

    async def answer(self, request: web.Request) -> web.Response:
        token = request.headers.get("Authorization", "")
        self.calls.append((request.path, await request.text(), token))
        return web.json_response({"succeeded": True}, status=207)


@pytest.fixture
async def etcd() -> AsyncIterator[tuple[Etcd, EtcdProxy]]:
    member = Etcd()
    app = web.Application()
    app.router.add_post("/v3/{path:.+}", member.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    proxy = EtcdProxy(f"http://127.0.0.1:{runner.addresses[0][1]}", seed=1)
    await proxy.start()
    yield member, proxy
    await proxy.close()
    await runner.cleanup()


async def call(proxy: EtcdProxy, path: str) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{proxy.url}/v3/{path}", data="body", headers={"Authorization": "t"}) as got,
    ):
        return got.status, await got.json()


async def test_a_call_and_its_answer_pass_unchanged(etcd: tuple[Etcd, EtcdProxy]) -> None:
    member, proxy = etcd
    assert await call(proxy, "kv/range") == (207, {"succeeded": True})
    assert member.calls == [("/v3/kv/range", "body", "t")]


async def test_only_transactions_are_writes(etcd: tuple[Etcd, EtcdProxy]) -> None:
    member, proxy = etcd
    proxy.faults = Faults(error_rate=1, errors=(500,), only_methods=("PUT",))
    assert (await call(proxy, "kv/range"))[0] == 207
    assert (await call(proxy, "kv/txn"))[0] == 500
    assert [path for path, _, _ in member.calls] == ["/v3/kv/range"]
    assert proxy.answers == {"GET 207": 1, "PUT 500": 1}


async def test_a_member_that_is_gone_is_unavailable() -> None:
    proxy = EtcdProxy("http://127.0.0.1:1")
    await proxy.start()
    status, answer = await call(proxy, "kv/range")
    assert (status, answer["code"]) == (503, 14)
    await proxy.close()
