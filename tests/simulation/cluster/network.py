"""The network of a world: latencies, refused connections, lost and late requests, lost answers.

A call is one HTTP exchange. A late request reaches its server although the caller has given up, as
one that was in a socket's buffer. The draws of a call depend on its caller alone, so that the order
in which callers are served does not change them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import Random
from typing import Final, NamedTuple, Protocol

import msgspec
from yarl import URL

from shared.runtime.connections import error_fields
from tests.simulation.cluster.loop import HOST, Host, Loop
from tidemark.errors import TidemarkError

MSGPACK: Final = "application/msgpack"
LATENCY_S: Final = 0.002
SLOW_FACTOR: Final = 60
LATE_S: Final = 6.0
"""Longest additional delay of a late request."""


class Refused(Exception):
    """There is no connection: the server never saw the request."""


class Broken(Exception):
    """The connection broke, or the time ran out, before the answer."""


class Reply(NamedTuple):
    """An HTTP answer."""

    status: int
    body: bytes = b""
    content_type: str = MSGPACK


class Request:
    """One request as its server sees it."""

    def __init__(self, method: str, url: URL, body: bytes, caller: str) -> None:
        self.method, self.path, self.query = method, url.path, url.query
        self.body, self.caller = body, caller
        self.parts = url.path.split("/")[2:]
        """The path after ``/v1``, split."""
        self.is_abandoned = False
        """Whether the caller has closed the connection."""
        self.replied: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def is_gone(self) -> bool:
        """Return whether the caller has closed the connection."""
        return self.is_abandoned

    def reply(self, reply: Reply) -> None:
        """Answer the caller, unless it has gone."""
        if not self.replied.done():
            self.replied.set_result(reply)

    def reset(self) -> None:
        """Break the connection."""
        if not self.replied.done():
            self.replied.set_exception(Broken("the server has closed the connection"))
            self.replied.exception()


class Server(Protocol):
    """A process that answers calls."""

    @property
    def host(self) -> Host:
        """The host of the present start."""

    async def handle(self, request: Request) -> Reply:
        """Answer a call. Raises TidemarkError, which is the answer then."""


class Weather(NamedTuple):
    """Probabilities of what the network does to a call."""

    loses_request: float = 0.0
    loses_answer: float = 0.0
    delays_request: float = 0.0
    repeats: float = 0.0
    """A request that is no POST is carried out twice, as an HTTP library may."""
    is_slow: float = 0.0


FAIR: Final = Weather()


class Network:
    """All connections of a world."""

    def __init__(self, loop: Loop, seed: int) -> None:
        self._loop, self._seed = loop, seed
        self._servers: dict[str, Server] = {}
        self._open: dict[Host, dict[Request, None]] = {}
        """Requests in progress at each host."""
        self._random: dict[str, Random] = {}
        self.weather = FAIR
        self.cuts: set[tuple[str, str]] = set()
        """Names of hosts that do not reach each other: caller and server."""
        self.call_count = 0

    def listen(self, origin: str, server: Server) -> None:
        """Let calls to this origin reach the server."""
        self._servers[origin] = server
        self._open[server.host] = {}

    def close(self, origin: str, host: Host) -> None:
        """Refuse calls to this origin, and break those in progress at the host."""
        self._servers.pop(origin, None)
        for request in self._open.pop(host, {}):
            request.reset()

    def randomness(self, caller: str) -> Random:
        """Return the random numbers of a caller."""
        found = self._random.get(caller)
        if found is None:
            found = self._random[caller] = Random(f"{self._seed}/{caller}")
        return found

    async def call(
        self,
        caller: str,
        method: str,
        url: URL,
        body: bytes,
        *,
        timeout_s: float,
        connect_timeout_s: float,
    ) -> Reply:
        """Make one call. Raises Refused, Broken."""
        self.call_count += 1
        random, weather = self.randomness(caller), self.weather
        latency_s = LATENCY_S * (0.5 + random.random())
        if weather.is_slow and random.random() < weather.is_slow:
            latency_s *= SLOW_FACTOR
        origin = str(url.origin())
        server = self._servers.get(origin)
        if server is None:
            await asyncio.sleep(latency_s)
            raise Refused("connection refused")
        if (caller, server.host.name) in self.cuts:
            is_connected = random.random() < 0.5  # from before the cut
            await asyncio.sleep(timeout_s if is_connected else min(connect_timeout_s, timeout_s))
            raise (Broken if is_connected else Refused)("no answer")
        request = Request(method, url, body, caller)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._exchange(request, origin, latency_s, random, weather)
        except TimeoutError:
            raise Broken("") from None
        finally:
            request.is_abandoned = True

    async def _exchange(
        self, request: Request, origin: str, latency_s: float, random: Random, weather: Weather
    ) -> Reply:
        fate = random.random()
        loses_answer = False
        delay_s, times = latency_s, 1
        if weather is not FAIR:
            if fate < weather.loses_request:
                await asyncio.sleep(latency_s)
                raise Broken("the connection broke")
            fate -= weather.loses_request
            loses_answer = fate < weather.loses_answer
            fate -= weather.loses_answer
            if 0 <= fate < weather.delays_request:
                delay_s += LATE_S * random.random()
            fate -= weather.delays_request
            if 0 <= fate < weather.repeats and request.method != "POST":
                times = 2
        for _ in range(times):
            self._loop.call_later(delay_s, self._deliver, request, origin, context=_NOWHERE.context)
        reply = await request.replied
        await asyncio.sleep(latency_s)
        if loses_answer:
            raise Broken("the connection broke")
        return reply

    def _deliver(self, request: Request, origin: str) -> None:
        """Start the server's work for a request that has arrived."""
        server = self._servers.get(origin)
        if server is None:
            request.reset()
            return
        host = server.host
        self._loop.start(self._serve(server, host, request), host)

    async def _serve(self, server: Server, host: Host, request: Request) -> None:
        requests = self._open.get(host)
        if requests is None:
            return
        requests[request] = None
        try:
            reply = await server.handle(request)
        except TidemarkError as error:
            reply = Reply(error.status, msgspec.msgpack.encode(error_fields(error)))
        except Broken:
            request.reset()
            return
        finally:
            requests.pop(request, None)
        request.reply(reply)


def caller_name() -> str:
    """Return the name of the host that makes a call."""
    return HOST.get().name


def headers_of(reply: Reply) -> Mapping[str, str]:
    """Return the headers of an answer."""
    return {"Content-Type": reply.content_type}


_NOWHERE: Final = Host("network")
"""The network never stops."""
