"""Connections by what they last asked, and refusals by kind of work, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest

from services.broker.connections import ApiServer
from services.broker.gate import Gate
from services.broker.http_api import Api
from services.broker.messages import Rules
from services.broker.metrics import BrokerMetrics
from services.broker.unique_ids import UniqueIds
from shared.metrics.registry import Registry
from shared.runtime.clock import SystemClock
from shared.runtime.connections import Bounds
from shared.runtime.health import Health
from tests.support.metrics import samples
from tidemark.formats.hosts import Host


class Served:
    """An API whose gate is shut: every call is refused, and counted."""

    def __init__(self) -> None:
        clock = SystemClock()
        self.registry = Registry("broker")
        metrics = BrokerMetrics(self.registry)
        api = Api(
            Gate(Health(clock)),
            Rules(message_size_max=1000, record_crc=True),
            clock,
            metrics,
            UniqueIds(clock, Host(b"\x7f\x00\x00\x01", 1)),
            request_size_max=1000,
            waiting_bytes_max=1000,
            read_timeout_s=5.0,
            delay_levels_ms=(1000,),
            version="1",
        )
        self.server = ApiServer(api.app, metrics, Bounds(100, 5.0, 5.0, 5.0), api.short_way)
        metrics.show_requests(api.pools, self.server.roles)

    def shown(self, name: str) -> dict[str, float]:
        """Samples of a family by the text of their labels."""
        return {
            key.removeprefix(f"tidemark_broker_{name}"): value
            for key, value in samples(self.registry).items()
            if key.startswith(f"tidemark_broker_{name}{{")
        }


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    served = Served()
    await served.server.start("127.0.0.1", 0)
    yield served
    await served.server.close()


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until the condition holds."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it does not come about")


async def test_a_connection_counts_by_what_it_last_asked(served: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.server.port)

    async def ask(line: bytes) -> None:
        writer.write(line + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(size)

    def roles() -> dict[str, float]:
        return {key: value for key, value in served.shown("connections").items() if value}

    await until(lambda: roles() == {'{role="new"}': 1})
    for line, role in (
        (b"POST /v1/topics/t/messages", "producer"),
        (b"GET /v1/topics/t/queues/0/messages?offset=0", "consumer"),
        (b"POST /v1/groups/g/nack", "consumer"),
        (b"GET /v1/topics", "admin"),
        (b"POST /v1/topics/%74/messages", "producer"),
        (b"POST /v1/groups/g/members/m/fetch", "consumer"),
        (b"PUT /v1/topics/t", "admin"),
    ):
        await ask(line)
        assert roles() == {f'{{role="{role}"}}': 1}, line
    writer.close()
    await writer.wait_closed()
    await until(lambda: roles() == {})


async def test_a_refusal_is_counted_by_kind_of_work_and_code(served: Served) -> None:
    base = f"http://127.0.0.1:{served.server.port}"
    async with aiohttp.ClientSession(base) as session:
        for method, path in (
            ("POST", "/v1/topics/t/messages"),
            ("POST", "/v1/topics/%74/messages"),
            ("POST", "/v1/groups/g/nack"),
            ("GET", "/v1/topics/t/queues/0/messages?offset=0"),
            ("GET", "/v1/topics/t"),
            ("PUT", "/v1/topics/t"),
            ("POST", "/v1/groups/g/offsets"),
            ("GET", "/nothing"),
            ("PATCH", "/v1/topics/t"),
        ):
            async with session.request(method, path) as answer:
                assert answer.status >= 400, (method, path)
    codes = served.shown("requests_rejected_total")
    assert codes == {
        '{pool="put",code="not-serving"}': 3,
        '{pool="pull",code="not-serving"}': 1,
        '{pool="query",code="not-serving"}': 1,
        '{pool="admin",code="not-serving"}': 1,
        '{pool="heartbeat",code="not-serving"}': 1,
        '{pool="query",code="unknown-call"}': 1,
        '{pool="query",code="unknown-method"}': 1,
    }
    assert set(served.shown("requests_queued").values()) == {0}
    assert len(served.shown("oldest_queued_request_seconds")) == 5
