"""A fake broker with canned answers, which keeps the requests.

It serves commands that only ask and print. Their requests are checked here; that a real broker
answers so is checked with real processes (tests/processes/test_delivery_verbs.py).
"""

from __future__ import annotations

import threading
from asyncio import AbstractEventLoop, Event, get_running_loop, run
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgpack
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.unit.client.fake_broker import answer, error

Answer = dict[str, Any] | Callable[["Asked"], dict[str, Any]] | None
"""A map, a function that makes one of the call, or None for 204."""


class Asked(NamedTuple):
    """One call."""

    method: str
    path: str
    """Without ``/v1/``, names as they are."""
    query: dict[str, str]
    body: dict[str, Any]


class CannedBroker:
    """Answers by (method, path); any other request gets unknown-group, or ``otherwise`` if set."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], Answer] = {}
        self.otherwise = "unknown-group"
        self.asked: list[Asked] = []
        self.url = ""

    def calls(self, method: str, path: str) -> list[Asked]:
        """Return the requests with this method and path."""
        return [one for one in self.asked if (one.method, one.path) == (method, path)]

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        path = request.path.removeprefix("/v1/")
        if path in ("cluster", "route"):  # every client asks whether there are others
            return error(404, "unknown-call")
        asked = Asked(
            request.method, path, dict(request.query), msgpack.unpackb(raw) if raw else {}
        )
        self.asked.append(asked)
        if (asked.method, path) not in self.answers:
            return error(404, self.otherwise)
        found = self.answers[asked.method, path]
        if found is None:
            return web.Response(status=204)
        return answer(found(asked) if callable(found) else found)

    @contextmanager
    def serve(self) -> Iterator[CannedBroker]:
        """In a thread of its own: the command line blocks."""
        ready, stop, loops = threading.Event(), Event(), list[AbstractEventLoop]()
        # ``run`` ends what a late connection has begun; a loop that is only closed leaves its
        # socket open.
        thread = threading.Thread(target=run, args=[self._serve(ready, stop, loops)], daemon=True)
        thread.start()
        try:
            assert ready.wait(300)
            yield self
        finally:
            for loop in loops:
                loop.call_soon_threadsafe(stop.set)
            thread.join()

    async def _serve(
        self, ready: threading.Event, stop: Event, loops: list[AbstractEventLoop]
    ) -> None:
        loops.append(get_running_loop())
        app = web.Application()
        app.router.add_route("*", "/{rest:.*}", self._answer)
        server = TestServer(app)
        await server.start_server()
        self.url = str(server.make_url("")).rstrip("/")
        ready.set()
        await stop.wait()
        await server.close()
