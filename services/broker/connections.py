"""Bounds on connections: how many, how long one may take to speak, how long to listen.

A client that sends nothing, sends its request byte by byte, or does not take its answer costs one
connection for a bounded time and nobody else anything. Bodies are bounded in ``http_api``; here is
what happens before a request is whole and after its answer is written.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.web_request import BaseRequest

from services.broker.encodings import JSON, Encoding, encode
from services.broker.metrics import BrokerMetrics
from services.broker.pools import Role
from shared.runtime.listening import listening_on
from shared.runtime.paced_log import PacedLog
from tidemark.errors import BadRequest, Overloaded, TidemarkError

CallHandler = Callable[[BaseRequest], Awaitable[web.StreamResponse]]

SWEEP_S: Final = 1.0
HEADERS_MAX: Final = 64
HEADER_SIZE_MAX: Final = 8190
NEWS_S: Final = 0.002
"""Bytes that came so lately may be a request that is not in hand yet."""
FINISH_S: Final = 5.0
"""How long a stop waits for requests in hand, a body that never arrives among them."""
LINGER_S: Final = 5.0
"""How long the rest of a refused body is read and thrown away, so that its sender sees the answer
instead of a reset connection."""


def error_fields(error: TidemarkError) -> dict[str, Any]:
    """The body of an error's answer: the five fields of every error, then its own facts."""
    fixed: dict[str, Any] = {
        "code": error.code,
        "title": error.title,
        "detail": error.detail,
        "advice": error.advice,
        "retriable": error.retriable,
    }
    return {**{name: _plain(fact) for name, fact in error.facts.items()}, **fixed}


def _plain(fact: object) -> object:
    """A fact as JSON and msgpack can say it."""
    if fact is None or isinstance(fact, bool | float | str | list | dict):
        return fact
    if isinstance(fact, int):
        return fact if -(1 << 63) <= fact < 1 << 64 else str(fact)
    if isinstance(fact, tuple):
        return [_plain(part) for part in fact]
    return str(fact)


class BoundedHandler(web.RequestHandler):
    """One connection; answers what is not HTTP in the words of our errors."""

    __slots__ = ("_on_bytes", "_on_lost", "_paced", "role")

    def __init__(
        self,
        manager: web.Server,
        on_bytes: Callable[[], None],
        on_lost: Callable[[], None],
        paced: PacedLog,
        **settings: Any,
    ) -> None:
        super().__init__(manager, **settings)
        self._on_bytes, self._on_lost, self._paced = on_bytes, on_lost, paced
        self.role = Role.NEW

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        self._on_bytes()
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is gone."""
        self._on_lost()
        super().connection_lost(exc)

    @property
    def has_spoken(self) -> bool:
        """Whether it has ever sent a whole request head."""
        return self._request_count > 0

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that no handler saw, and close the connection."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun; another cannot be sent")
        if isinstance(exc, ConnectionError):
            raise exc  # the client went away in the middle of its request: nobody to tell
        error: TidemarkError
        if status < 500:
            reason = " ".join((message or "").split())[:200]
            error = BadRequest(f"this is not an HTTP request: {reason}. Nothing was stored.")
        else:
            self._paced.defect(
                exc or RuntimeError(message or "no reason given"),
                "a request failed outside of its call",
                path=request.path,
            )
            error = TidemarkError("the request failed for a reason of our own; it is in the log.")
        answer = web.Response(
            body=encode(error_fields(error), Encoding.JSON), status=status, content_type=JSON
        )
        answer.force_close()
        return answer


def note_role(request: BaseRequest, role: Role) -> None:
    """The request's connection asks for something of this role."""
    connection = request.protocol
    if isinstance(connection, BoundedHandler):
        connection.role = role


class _Refuser(asyncio.Protocol):
    """One connection too many: says so and closes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Write the whole answer; nothing is read."""
        writer = cast(asyncio.WriteTransport, transport)  # uvloop's is none by class
        error = Overloaded(
            f"{self._limit} connections are open, and that is the limit. Nothing was stored.",
            "Use fewer connections, or try again.",
            limit=self._limit,
        )
        body = encode(error_fields(error), Encoding.JSON)
        writer.write(
            b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
            b"Connection: close\r\nRetry-After: 1\r\n"
            b"Content-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body
        )
        writer.close()


class _Watch:
    """What the sweep remembers of one connection."""

    __slots__ = ("opened_at", "since", "unsent")

    def __init__(self, now: float) -> None:
        self.opened_at = now
        self.unsent = 0
        self.since = now


class BoundedServer:
    """Accepts connections for one aiohttp application within the bounds."""

    def __init__(
        self,
        app: web.Application,
        metrics: BrokerMetrics,
        *,
        connections_max: int,
        read_timeout_s: float,
        idle_timeout_s: float,
        write_timeout_s: float,
        handler: Callable[[CallHandler], CallHandler] = lambda handler: handler,
    ) -> None:
        """handler: wraps the application's, to answer some requests before it."""
        self._wrap = handler
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=FINISH_S
        )
        self._metrics = metrics
        self._connections_max = connections_max
        self._read_timeout_s = read_timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._write_timeout_s = write_timeout_s
        self._open = 0
        self._heard_at = float("-inf")
        self._paced = PacedLog(lambda: asyncio.get_running_loop().time())
        self._watched: dict[web.RequestHandler, _Watch] = {}
        self._manager: web.Server | None = None
        self._listener: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self.port = 0
        """Port listened on, once started."""

    @property
    def connections(self) -> int:
        """Connections open now."""
        return self._open

    def roles(self) -> dict[str, int]:
        """Connections open now by what they last asked."""
        found = dict.fromkeys((role.value for role in Role), 0)
        handlers = () if self._manager is None else self._manager.connections
        for handler in handlers:
            if isinstance(handler, BoundedHandler):
                found[handler.role.value] += 1
        # One is open from its acceptance on, and aiohttp hears of it a moment later.
        found[Role.NEW.value] = self._open - (sum(found.values()) - found[Role.NEW.value])
        return found

    @property
    def has_news(self) -> bool:
        """Whether bytes have come in the last NEWS_S: several turns of the loop lie between the
        bytes of a request and its call."""
        return time.monotonic() < self._heard_at + NEWS_S

    def _heard(self) -> None:
        self._heard_at = time.monotonic()

    def _lost(self) -> None:
        self._open -= 1

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises CannotListen if the port is taken."""
        await self._runner.setup()
        manager = self._manager = self._runner.server
        assert manager is not None
        manager.request_handler = self._wrap(manager.request_handler)
        loop = asyncio.get_running_loop()
        with listening_on(host, port):
            self._listener = await loop.create_server(
                self._accept, host, port, backlog=1024, reuse_address=True
            )
        self.port = int(self._listener.sockets[0].getsockname()[1])
        self._sweeper = asyncio.create_task(self._sweep(), name="connection-sweep")

    async def close(self) -> None:
        """Stop listening, let requests in hand finish, close all connections."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
            self._sweeper = None
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        await self._runner.cleanup()

    def _accept(self) -> asyncio.BaseProtocol:
        assert self._manager is not None
        # Counted here and not when aiohttp hears of it: the loop accepts a whole flood before.
        if self._open >= self._connections_max:
            self._metrics.connections_refused.labels("limit").inc()
            return _Refuser(self._connections_max)
        self._open += 1
        return BoundedHandler(
            self._manager,
            self._heard,
            self._lost,
            self._paced,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=self._idle_timeout_s,
            access_log=None,
            max_headers=HEADERS_MAX,
            max_line_size=HEADER_SIZE_MAX,
            max_field_size=HEADER_SIZE_MAX,
            lingering_time=LINGER_S,
            # A few bytes may unpack to gigabytes; compressed bodies are refused by http_api.
            auto_decompress=False,
        )

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(SWEEP_S, self._read_timeout_s / 2, self._write_timeout_s / 2))
            assert self._manager is not None
            now = loop.time()
            known, self._watched = self._watched, {}
            for handler in self._manager.connections:
                watch = self._watched[handler] = known.get(handler) or _Watch(now)
                if (reason := self._stalled(handler, watch, now)) is not None:
                    self._metrics.connections_refused.labels(reason).inc()
                    if handler.transport is not None:
                        handler.transport.abort()

    def _stalled(self, handler: web.RequestHandler, watch: _Watch, now: float) -> str | None:
        """Why this connection is to be closed, if it is."""
        transport = handler.transport
        if transport is None:
            return None
        spoken = isinstance(handler, BoundedHandler) and handler.has_spoken
        if not spoken and now - watch.opened_at > self._read_timeout_s:
            return "no-request"
        unsent = transport.get_write_buffer_size()
        if unsent == 0 or unsent != watch.unsent:
            watch.unsent, watch.since = unsent, now
        elif now - watch.since > self._write_timeout_s:
            return "answer-not-taken"
        return None
