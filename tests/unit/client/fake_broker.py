"""A fake broker for the client's tests: the API of one node over lists in memory, with faults.

It stores nothing and checks little. tests/processes test the client with the real broker.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import msgpack
from aiohttp import web
from aiohttp.test_utils import TestServer

from tidemark.formats import properties, record
from tidemark.formats.hosts import Host
from tidemark.formats.record import Message

HOST = Host(b"\x7f\x00\x00\x01", 10911)
Fault = Callable[[web.Request], Awaitable[web.StreamResponse]]


def error(status: int, code: str, *, retriable: bool = False, **more: object) -> web.Response:
    wire = {
        "code": code,
        "title": "A title",
        "detail": "What happened. What is safe.",
        "advice": "What to do.",
        "retriable": retriable,
        **more,
    }
    return web.Response(status=status, body=msgpack.packb(wire), content_type="application/msgpack")


def answer(wire: dict[str, Any]) -> web.Response:
    return web.Response(body=msgpack.packb(wire), content_type="application/msgpack")


@dataclass
class FakeBroker:
    queues: dict[str, list[list[bytes]]] = field(default_factory=dict)
    """Topic to queues to encoded records."""
    faults: list[Fault] = field(default_factory=list)
    """Each replaces the answer to one produce or pull request, oldest first."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of produce requests, as they came."""
    pulls: int = 0
    """Pull requests that have come."""
    auto_create: int | None = None
    page_size: int | None = None
    """Topics in one answer; None: all of them, as older brokers answered."""
    in_flight: int = 0
    in_flight_most: int = 0
    physical_offset: int = 0
    hold: asyncio.Event = field(default_factory=asyncio.Event)
    came: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by every request."""
    url: str = ""
    cluster: list[str] | None = None
    """Addresses of the nodes of its group; None: it is alone."""
    cluster_master: str | None = None
    """The node that it names as the master."""
    views: int = 0
    """Number of requests for the state of its group."""
    read_from: list[str] = field(default_factory=list)
    """Values of the header ``Prefer`` of pull requests."""
    authorized: list[str | None] = field(default_factory=list)
    """Values of the header Authorization of produce requests."""
    traced: list[str | None] = field(default_factory=list)
    """Trace ids of sends and pulls."""
    is_damaged: bool = False
    """Whether the broker's own log is damaged, and not only an answer."""
    checked: list[int] = field(default_factory=list)
    """Offsets of the pulls of decoded messages, whose records a broker checks."""

    def __post_init__(self) -> None:
        self.hold.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for requests until something holds."""
        while not holds():
            self.came.clear()
            await self.came.wait()

    def add(self, topic: str, queue: int, wire: dict[str, Any]) -> dict[str, Any]:
        pairs = dict(wire.get("properties", {}))
        if "tags" in wire:
            pairs[properties.TAGS] = wire["tags"]
        if "keys" in wire:
            pairs[properties.KEYS] = " ".join(wire["keys"])
        pairs[properties.UNIQ_KEY] = f"{self.physical_offset:032X}"
        records = self.queues[topic][queue]
        stored = record.encode(
            Message(topic, queue, wire["body"], HOST, HOST, properties.encode(pairs)),
            queue_offset=len(records),
            physical_offset=self.physical_offset,
            store_timestamp_ms=1_700_000_000_000,
            record_crc=True,
        )
        result = {
            "message_id": record.decode(stored).message_id,
            "queue": queue,
            "queue_offset": len(records),
            "physical_offset": self.physical_offset,
            "store_timestamp_ms": 1_700_000_000_000,
        }
        records.append(stored)
        self.physical_offset += len(stored)
        return result

    async def produce(self, request: web.Request) -> web.StreamResponse:
        body = msgpack.unpackb(await request.read())
        self.requests.append(body)
        self.authorized.append(request.headers.get("Authorization"))
        self.traced.append(request.headers.get("Tidemark-Trace"))
        self.in_flight += 1
        self.came.set()
        self.in_flight_most = max(self.in_flight, self.in_flight_most)
        try:
            await self.hold.wait()
            if self.faults:
                return await self.faults.pop(0)(request)
            return await self.produce_now(request)
        finally:
            self.in_flight -= 1

    async def produce_now(self, request: web.Request) -> web.StreamResponse:
        """The answer to a produce request; None as a fault: no answer."""
        body = msgpack.unpackb(await request.read())
        topic = request.match_info["topic"]
        if topic not in self.queues:
            if self.auto_create is None:
                return error(404, "unknown-topic")
            self.queues[topic] = [[] for _ in range(self.auto_create)]
        if any(wire["body"] == b"bad" for wire in body["messages"]):
            return error(400, "bad-property")
        results = [self.add(topic, wire.get("queue", 0), wire) for wire in body["messages"]]
        level = body.get("ack", "disk")
        return answer(
            {"status": "PUT_OK", "ack": {"level": level, "copies": 1}, "results": results}
        )

    async def pull(self, request: web.Request) -> web.StreamResponse:
        self.pulls += 1
        self.traced.append(request.headers.get("Tidemark-Trace"))
        if "Tidemark-Read-From" in request.headers:
            self.read_from.append(request.headers["Tidemark-Read-From"])
        self.came.set()
        if self.faults:
            return await self.faults.pop(0)(request)
        return await self.found(request)

    async def found(self, request: web.Request) -> web.StreamResponse:
        """The answer to a pull."""
        topic = request.match_info["topic"]
        if topic not in self.queues:
            return error(404, "unknown-topic")
        records = self.queues[topic][int(request.match_info["queue"])]
        offset = int(request.query["offset"])
        if request.headers["Accept"] != "application/vnd.tidemark.records":
            self.checked.append(offset)
            if self.is_damaged:
                return error(503, "corrupt-record", at=0, reason="the body crc")
            return answer({"next_offset": offset + 1})
        count = int(request.query["max"])
        found = records[offset : offset + count] if offset >= 0 else []
        headers = {
            "Tidemark-Status": "FOUND" if found else "OFFSET_OVERFLOW_ONE",
            "Tidemark-Next-Offset": str(offset + len(found)),
            "Tidemark-Min-Offset": "0",
            "Tidemark-Max-Offset": str(len(records)),
        }
        return web.Response(
            body=b"".join(found),
            headers=headers,
            content_type="application/vnd.tidemark.records",
        )

    async def topic(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["topic"]
        if request.method == "PUT":
            count = msgpack.unpackb(await request.read()).get("queues", 4)
            self.queues.setdefault(name, [[] for _ in range(count)])
        if name not in self.queues:
            return error(404, "unknown-topic")
        if request.method == "DELETE":
            del self.queues[name]
            return web.Response(status=204)
        return answer(self._described(name))

    async def topics(self, request: web.Request) -> web.StreamResponse:
        if self.page_size is None:
            return answer({"topics": [self._described(name) for name in self.queues]})
        after = request.query.get("after", "")
        names = sorted(name for name in self.queues if name > after)
        page = names[: self.page_size]
        following = page[-1] if len(names) > len(page) else None
        return answer({"topics": [self._described(name) for name in page], "next": following})

    def _described(self, name: str) -> dict[str, Any]:
        ranges = [
            {"queue": queue, "min_offset": 0, "max_offset": len(records)}
            for queue, records in enumerate(self.queues[name])
        ]
        return {"topic": name, "queues": ranges}

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/v1/topics", self.topics)
        app.router.add_route("*", "/v1/topics/{topic}", self.topic)
        app.router.add_post("/v1/topics/{topic}/messages", self.produce)
        app.router.add_get("/v1/topics/{topic}/queues/{queue}/messages", self.pull)

    async def tell_cluster(self, _request: web.Request) -> web.Response:
        self.views += 1
        self.came.set()
        if self.cluster is None:
            return error(404, "unknown-call")
        nodes = [{"node": url, "api": url} for url in self.cluster]
        return answer({"epoch": 1, "master": self.cluster_master, "nodes": nodes})

    async def tell_route(self, _request: web.Request) -> web.Response:
        return error(404, "unknown-call")

    @asynccontextmanager
    async def serve(
        self, port: int | None = None, context: ssl.SSLContext | None = None
    ) -> AsyncIterator[Self]:
        app = web.Application()
        app.router.add_get("/v1/cluster", self.tell_cluster)
        app.router.add_get("/v1/route", self.tell_route)
        self.add_routes(app)
        server = TestServer(app, port=port)
        await server.start_server(ssl=context)
        self.url = str(server.make_url("")).rstrip("/")
        try:
            yield self
        finally:
            await server.close()


@contextmanager
def in_a_thread(broker: FakeBroker) -> Iterator[FakeBroker]:
    """Serve in a thread of its own, for callers that block: the sync façade, the command line."""
    ready, stop = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        async with broker.serve():
            loops.append(asyncio.get_running_loop())
            ready.set()
            await stop.wait()

    # ``asyncio.run`` ends what a late connection has begun; a loop that is only closed leaves its
    # socket open.
    thread = threading.Thread(target=asyncio.run, args=[serve()])
    thread.start()
    try:
        assert ready.wait(300)
        yield broker
    finally:
        for loop in loops:
            loop.call_soon_threadsafe(stop.set)
        thread.join()
