"""The calls of a name service over HTTP: answers, long polls and every kind of bad input."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from services.names.config import NamesConfig
from services.names.core.directory import Directory
from services.names.metrics import NamesMetrics
from services.names.shell.http_api import NamesApi
from services.names.shell.registrations import Registrations
from services.names.shell.route_polls import RoutePolls
from shared.cluster import signature
from shared.metrics.registry import Registry
from shared.runtime.clock import SystemClock
from shared.runtime.rate_limited_logger import RateLimitedLogger
from tests.unit.names.registering import directory, said

SECRET = b"0123456789abcdef"
NODE = "/v1/groups/g0/nodes/n0"
JSON = {"Content-Type": "application/json"}


class Rig:
    """A name service without its process."""

    def __init__(self, secret: bytes | None = None, **settings: Any) -> None:
        clock, config = SystemClock(), NamesConfig(**settings)
        self.registry = Registry("names")
        metrics = NamesMetrics(self.registry)
        limited_log = RateLimitedLogger(clock.monotonic)
        self.directory: Directory = directory()
        registrations = Registrations(config, secret, self.directory, metrics, clock, limited_log)
        self.polls = RoutePolls(self.directory, config.held_polls_max)
        self.api = NamesApi(self.directory, registrations, metrics, limited_log, self.polls)
        self.client: TestClient[Any, Any] = TestClient(TestServer(self.api.app))

    async def __aenter__(self) -> Rig:
        await self.client.start_server()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.polls.release()
        await self.client.close()

    async def put(
        self, body: bytes | None = None, path: str = NODE, **headers: str
    ) -> ClientResponse:
        body = msgspec.json.encode(said("orders")) if body is None else body
        return await self.client.put(path, data=body, headers={**JSON, **headers})

    async def until_held(self) -> None:
        async with asyncio.timeout(10):
            while not self.polls.held:
                await self.get("/v1/route")

    async def get(self, path: str) -> dict[str, Any]:
        async with self.client.get(path) as response:
            found: dict[str, Any] = await response.json()
            return {**found, "status": response.status}


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with Rig() as made:
        yield made


async def test_a_registration_is_answered_to_clients_in_both_encodings(rig: Rig) -> None:
    assert (await rig.put()).status == 204
    route = await rig.get("/v1/route/orders")
    assert route["groups"] == [
        {
            "group": "g0", "epoch": 1, "master": "n0",
            "nodes": [{"node": "n0", "role": "master", "api": "http://n0:8080", "admin": None}],
            "queues": 8, "readable": True, "writable": True,
        }
    ]  # fmt: skip
    assert (route["topic"], route["complete"], route["changed"]) == ("orders", True, True)
    async with rig.client.get(
        "/v1/route/orders", headers={"Accept": "application/msgpack"}
    ) as response:
        packed = msgspec.msgpack.decode(await response.read())
    assert packed == {name: value for name, value in route.items() if name != "status"}


async def test_a_registration_in_msgpack_is_accepted(rig: Rig) -> None:
    body = msgspec.msgpack.encode(said("orders"))
    assert (await rig.put(body, **{"Content-Type": "application/msgpack"})).status == 204


async def test_members_of_a_later_version_are_ignored(rig: Rig) -> None:
    body = json.dumps({**msgspec.to_builtins(said("orders")), "later": 1}).encode()
    assert (await rig.put(body)).status == 204


async def test_a_long_poll_ends_when_its_topic_changes_and_not_for_another(rig: Rig) -> None:
    await rig.put()
    version = (await rig.get("/v1/route/orders"))["version"]
    held = asyncio.create_task(rig.get(f"/v1/route/orders?after={version}&wait_ms=20000"))
    await rig.until_held()
    await rig.put(msgspec.json.encode(said("orders", "other", counter=2)))
    await rig.get("/v1/route/other")
    assert not held.done()
    moved = said("orders", "other", counter=3, api="http://moved:1")
    await rig.put(msgspec.json.encode(moved))
    answer = await held
    assert answer["changed"]
    assert answer["groups"][0]["nodes"][0]["api"] == "http://moved:1"


async def test_a_long_poll_without_news_ends_with_its_time(rig: Rig) -> None:
    await rig.put()
    for path in ("/v1/route/orders", "/v1/route"):
        before = await rig.get(path)
        answer = await rig.get(f"{path}?after={before['version']}&wait_ms=30")
        assert answer == {**before, "changed": False}


async def test_a_long_poll_of_a_topic_that_is_deleted_gets_404(rig: Rig) -> None:
    await rig.put()
    version = (await rig.get("/v1/route/orders"))["version"]
    held = asyncio.create_task(rig.get(f"/v1/route/orders?after={version}&wait_ms=20000"))
    await rig.until_held()
    await rig.put(msgspec.json.encode(said(counter=2)))
    assert ((await held)["status"], (await held)["code"]) == (404, "unknown-topic")


async def test_long_polls_beyond_the_bound_are_answered_at_once() -> None:
    async with Rig(held_polls_max=0) as rig:
        await rig.put()
        version = (await rig.get("/v1/route"))["version"]
        assert not (await rig.get(f"/v1/route?after={version}&wait_ms=60000"))["changed"]


async def test_the_fast_path_answers_what_is_kept(rig: Rig) -> None:
    await rig.put()
    assert rig.directory.kept("orders") is None
    await rig.get("/v1/route/orders")
    assert rig.directory.kept("orders") is not None


BAD: dict[str, tuple[bytes | dict[str, Any], int, str]] = {
    "no map": (b"[]", 400, "bad-request"),
    "not JSON": (b"\xff\x00{", 400, "bad-request"),
    "nothing": (b"", 400, "bad-request"),
    "a field missing": (b'{"cluster": "tidemark"}', 400, "bad-request"),
    "a negative epoch": ({"epoch": -1}, 400, "bad-request"),
    "a huge counter": ({"counter": 1 << 63}, 400, "bad-request"),
    "a strange role": ({"role": "king"}, 400, "bad-request"),
    "no URL": ({"api": "n0:8080"}, 400, "bad-request"),
    "a URL with a path": ({"api": "http://a/b"}, 400, "bad-request"),
    "topics as a list": ({"topics": ["a"]}, 400, "bad-request"),
    "a topic without a name": ({"topics": {"": {"queues": 1, "readable": True, "writable": True}}},
                               400, "bad-request"),
    "a long topic name": ({"topics": {"x" * 256: {"queues": 1, "readable": True,
                                                  "writable": True}}}, 400, "bad-request"),
    "negative queues": ({"topics": {"a": {"queues": -1, "readable": True, "writable": True}}},
                        400, "bad-request"),
    "another cluster": ({"cluster": "other"}, 409, "wrong-cluster"),
    "an unknown base": ({"topics": None, "base": 5}, 409, "registration-base-unknown"),
    "a lower epoch": ({"epoch": 0}, 409, "stale-registration"),
    "another store": ({"identity": "b", "epoch": 9}, 409, "broker-group-conflict"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
async def test_bad_input_is_refused_with_its_code_and_changes_nothing(rig: Rig, case: str) -> None:
    body, status, code = BAD[case]
    await rig.put()
    before = await rig.get("/v1/route")
    if isinstance(body, dict):
        body = json.dumps({**msgspec.to_builtins(said("orders")), **body}).encode()
    response = await rig.put(body)
    answer = await response.json()
    assert (response.status, answer["code"]) == (status, code), answer["detail"]
    assert answer["detail"]
    assert await rig.get("/v1/route") == before


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/route/none", 404, "unknown-topic"),
        ("GET", "/v1/route?wait_ms=60001", 400, "bad-request"),
        ("GET", "/v1/route?wait_ms=x", 400, "bad-request"),
        ("GET", "/v1/route?before=x", 400, "bad-request"),
        ("GET", "/v1/routes", 404, "unknown-call"),
        ("DELETE", "/v1/route", 405, "unknown-method"),
        ("PUT", "/v1/groups/g%200/nodes/n0", 400, "bad-name"),
        ("PUT", f"/v1/groups/{'g' * 128}/nodes/n0", 400, "bad-name"),
    ],
)
async def test_a_bad_call_is_refused_with_its_code(
    rig: Rig, method: str, path: str, status: int, code: str
) -> None:
    async with rig.client.request(method, path, data=b"{}", headers=JSON) as response:
        assert (response.status, (await response.json())["code"]) == (status, code)


async def test_a_body_over_the_limit_is_refused_before_it_is_read() -> None:
    async with Rig(registration_size_max=4096) as rig:
        response = await rig.put(b"x" * 100_000)
        answer = await response.json()
        assert (response.status, answer["limit"]) == (413, 4096)


async def test_a_body_without_its_size_is_refused(rig: Rig) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"{}"

    async with rig.client.put(NODE, data=parts(), headers=JSON) as response:
        assert (response.status, (await response.json())["field"]) == (400, "Content-Length")


async def test_a_body_that_stops_arriving_is_given_up() -> None:
    async with Rig(read_timeout_s=0.1) as rig:
        assert rig.client.port is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.client.port)
        writer.write(f"PUT {NODE} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{{".encode())
        assert b"408" in await reader.readline()
        writer.close()


async def test_a_million_bogus_topics_are_refused_and_others_go_on(rig: Rig) -> None:
    topics = {f"t{number}": {"queues": 1, "readable": True, "writable": True}
              for number in range(1001)}  # fmt: skip
    body = json.dumps({**msgspec.to_builtins(said()), "topics": topics}).encode()
    response = await rig.put(body)
    answer = await response.json()
    assert (response.status, answer["code"], answer["limit"]) == (413, "names-limit", 1000)
    assert (await rig.put()).status == 204


async def test_a_flood_from_one_node_is_slowed_down_and_another_is_not(rig: Rig) -> None:
    topics = {f"t{number:0250}": {"queues": 1, "readable": True, "writable": True}
              for number in range(1000)}  # fmt: skip
    await rig.put()
    codes = []
    for counter in range(2, 80):
        made = {**msgspec.to_builtins(said(counter=counter)), "topics": topics}
        response = await rig.put(json.dumps(made).encode())
        codes.append(response.status)
    assert codes[0] == 204
    assert codes[-1] == 503
    assert response.headers["Retry-After"] == "1"
    other = msgspec.json.encode(said("x", identity="1"))
    assert (await rig.put(other, "/v1/groups/g1/nodes/n0")).status == 204


async def test_a_stranger_without_the_secret_does_not_use_up_the_allowance_of_a_node() -> None:
    async with Rig(SECRET) as rig:
        body = msgspec.json.encode(said("orders"))
        now_ms = time.time_ns() // 1_000_000
        header = {signature.HEADER: signature.sign(SECRET, now_ms, "PUT", NODE, body)}
        assert (await rig.put(body, **header)).status == 204
        for _ in range(20):  # more than a node may send at once, less than an address may
            assert (await rig.put(b"x" * (1 << 20))).status == 403
        assert (await rig.put(body, **header)).status == 204


async def test_a_small_registration_arrives_while_large_ones_fill_the_memory() -> None:
    async with Rig(waiting_bytes_max=1 << 20) as rig:
        await rig.put()
        assert rig.client.port is not None
        _, writer = await asyncio.open_connection("127.0.0.1", rig.client.port)
        with contextlib.closing(writer):
            head = f"PUT {NODE} HTTP/1.1\r\nHost: x\r\nContent-Length: {2 << 20}\r\n\r\n"
            writer.write(head.encode() + b"x" * (1 << 20))
            async with asyncio.timeout(10):
                while (await rig.put(b"x" * 5000)).status != 503:
                    pass  # what was written has not arrived yet
            assert (await rig.put()).status == 204


async def test_with_a_secret_only_signed_registrations_are_accepted() -> None:
    async with Rig(SECRET) as rig:
        body = msgspec.json.encode(said("orders"))
        now_ms = time.time_ns() // 1_000_000

        async def code(header: str | None) -> str:
            headers = {} if header is None else {signature.HEADER: header}
            response = await rig.put(body, **headers)
            return "" if response.status == 204 else (await response.json())["code"]

        def signed(at_ms: int, secret: bytes = SECRET) -> str:
            return signature.sign(secret, at_ms, "PUT", NODE, body)

        assert await code(None) == "bad-signature"
        assert await code(signed(now_ms, b"x" * 16)) == "bad-signature"
        assert await code(signed(now_ms - 86_400_000)) == "clock-skew"
        assert await code(signed(now_ms)) == ""
