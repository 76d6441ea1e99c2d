"""A name service for the client's tests: answers routes of stores that the test sets.

It asks the stores for their topics with each answer, and polls them while it holds a call. The real
one gets registrations; what it answers is the same.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgpack
from aiohttp import ClientError, ClientSession, ClientTimeout, web
from aiohttp.test_utils import TestServer

POLL_S = 0.05
HELD_S_MAX = 60.0


@dataclass
class RouteServer:
    """Its fields may be changed at any time; held calls are answered then."""

    urls: dict[str, str] = field(default_factory=dict)
    """Address of the one node of each broker group."""
    cluster: str = "tidemark"
    drained: set[str] = field(default_factory=set)
    """Broker groups that accept no messages."""
    without_master: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)
    """Broker groups of which it has not heard yet."""
    names: list[str] = field(default_factory=list)
    url: str = ""
    asked: list[str] = field(default_factory=list)
    """Paths of the calls."""
    topics: dict[str, dict[str, int]] = field(default_factory=dict)
    """Last known topics of each broker group, with the numbers of their queues."""

    async def _learn(self, session: ClientSession) -> None:
        """Update the topics of all broker groups that answer; of others they stay."""
        for name, url in list(self.urls.items()):
            try:
                async with session.get(f"{url}/v1/topics") as response:
                    listed = await response.json()
            except (ClientError, TimeoutError):
                continue
            self.topics[name] = {
                each["topic"]: each["queues"] for each in listed["topics"] if not each.get("system")
            }

    def _route(self, topic: str | None) -> dict[str, Any] | None:
        """Return the answer; None if no broker group has the topic."""
        groups: list[dict[str, Any]] = []
        for name in sorted(self.urls.keys() - self.missing):
            topics = self.topics.get(name, {})
            node = {"node": "n0", "role": "master", "api": self.urls[name], "admin": None}
            group: dict[str, Any] = {
                "group": name,
                "epoch": 1,
                "master": None if name in self.without_master else "n0",
                "nodes": [node],
            }
            if topic is None:
                groups.append({**group, "topics": len(topics)})
            elif topic in topics:
                can_write = name not in self.drained
                of_topic = {"queues": topics[topic], "readable": True, "writable": can_write}
                groups.append({**group, **of_topic})
        if topic is not None and not groups:
            return None
        body: dict[str, Any] = {
            "cluster": self.cluster,
            "complete": not self.missing,
            "missing": sorted(self.missing),
            "names": self.names,
            "groups": groups,
        }
        if topic is not None:
            body["topic"] = topic
        return {**body, "version": hashlib.md5(json.dumps(body).encode()).hexdigest()}

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        topic, after = request.match_info.get("topic"), request.query.get("after")
        loop = asyncio.get_running_loop()
        held_until = loop.time() + int(request.query.get("wait_ms", 0)) / 1000
        async with ClientSession(timeout=ClientTimeout(total=1.0)) as session:
            while True:
                await self._learn(session)
                route = self._route(topic)
                if route is None:
                    code, status = ("route-incomplete", 503) if self.missing else (None, 404)
                    return _error(status, code or "unknown-topic")
                changed = route["version"] != after
                if changed or loop.time() >= held_until:
                    return _packed(200, {**route, "changed": changed})
                await asyncio.sleep(POLL_S)

    @asynccontextmanager
    async def serve(self, port: int | None = None) -> AsyncIterator[RouteServer]:
        app = web.Application()
        app.router.add_get("/v1/route", self.answer)
        app.router.add_get("/v1/route/{topic}", self.answer)
        server = TestServer(app, port=port)
        # Held calls are cut off when it stops.
        await server.start_server(shutdown_timeout=0.1)
        self.url = str(server.make_url("")).rstrip("/")
        try:
            yield self
        finally:
            await server.close()


def _packed(status: int, wire: dict[str, Any]) -> web.Response:
    body = msgpack.packb(wire)
    return web.Response(status=status, body=body, content_type="application/msgpack")


def _error(status: int, code: str) -> web.Response:
    wire = {"code": code, "title": "", "detail": "No route.", "advice": ""}
    return _packed(status, {**wire, "retriable": status == 503})


@contextmanager
def in_a_thread(server: RouteServer) -> Iterator[RouteServer]:
    """Serve in a thread of its own, for callers that block."""
    ready, loops, stop = threading.Event(), list[asyncio.AbstractEventLoop](), asyncio.Event()

    async def serve() -> None:
        async with server.serve():
            loops.append(asyncio.get_running_loop())
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=[serve()])
    thread.start()
    try:
        assert ready.wait(60)
        yield server
    finally:
        for loop in loops:
            loop.call_soon_threadsafe(stop.set)
        thread.join()
