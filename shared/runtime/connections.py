"""Limits on HTTP connections: their number, and the time for a request head and for an answer.

A client that sends nothing, sends its request byte by byte, or does not read its answer occupies
one connection for a bounded time. At the limit a new connection replaces the oldest connection
that never sent a whole request, or else one whose request was refused or one that is idle. If
there is none, the new connection is answered 503. The API port of the broker and the admin ports of
all services use this module. The broker limits request bodies in ``http_requests``.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any, Final, NamedTuple, cast

from aiohttp import web
from aiohttp.http import RawRequestMessage
from aiohttp.web_request import BaseRequest

from shared.runtime.listening import listening_on
from shared.runtime.pauses import Pace, Pauses
from shared.runtime.rate_limited_logger import RateLimitedLogger
from tidemark.errors import BadRequest, Overloaded, TidemarkError

CallHandler = Callable[[BaseRequest], Awaitable[web.StreamResponse]]

SWEEP_S: Final = 1.0
HEADERS_MAX: Final = 64
HEADER_SIZE_MAX: Final = 8190
FINISH_S: Final = 5.0
"""Time that a stop waits for running requests, including those whose body never arrives."""
IDLE_MIN_S: Final = 1.0
"""A connection whose last answer is younger is not considered idle: its client may just be sending
the next request, and would not learn whether it was executed."""
TRIED_MAX: Final = 64
LINGER_S: Final = 5.0
"""Time for which the rest of a refused body is read and discarded, so that the client reads the
answer instead of getting a reset connection."""
BACKLOG: Final = 1024
"""Connections that the kernel queues until they are accepted."""
ACCEPT_AGAIN_S: Final = 1.0
"""Delay after a failed accept, usually because no file descriptor is left."""
READ_SIZE: Final = 1 << 16
"""Bytes of a body that are buffered ahead; one read may exceed this."""


def error_fields(error: TidemarkError) -> dict[str, Any]:
    """Return the body of an error answer: the five fields of every error, then its own facts."""
    fixed: dict[str, Any] = {
        "code": error.code,
        "title": error.title,
        "detail": error.detail,
        "advice": error.advice,
        "retriable": error.retriable,
    }
    return {**{name: _plain(fact) for name, fact in error.facts.items()}, **fixed}


def _plain(fact: object) -> object:
    """Convert a fact to a value that JSON and msgpack can represent."""
    if fact is None or isinstance(fact, bool | float | str | list | dict):
        return fact
    if isinstance(fact, int):
        return fact if -(1 << 63) <= fact < 1 << 64 else str(fact)
    if isinstance(fact, tuple):
        return [_plain(part) for part in fact]
    return str(fact)


class Bounds(NamedTuple):
    """Limits of one port."""

    connections_max: int
    read_timeout_s: float
    """Time for the first whole request head of a connection."""
    idle_timeout_s: float
    """Time between two requests of a connection."""
    write_timeout_s: float
    """Time in which a client must read at least one byte of an answer."""
    finish_s: float = FINISH_S
    """Time that ``close`` waits for running requests."""


class BoundedHandler(web.RequestHandler):
    """One connection; answers malformed HTTP with an error body of Tidemark's format."""

    __slots__ = ("_is_dropped", "_refused", "_server")

    def __init__(self, manager: web.Server, server: BoundedServer, **settings: Any) -> None:
        super().__init__(manager, **settings)
        self._server = server
        self._is_dropped = False
        self._refused: BaseRequest | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle the opened connection; it may have been dropped since it was accepted."""
        super().connection_made(transport)
        if self._is_dropped:
            self.drop()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Handle the end of the connection."""
        self._server.lost(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle received bytes. Refused bodies are read one part per REST_S over all connections,
        because otherwise their senders would determine the load of the loop."""
        super().data_received(data)
        self._end_broken_body()
        if self._refused is not None and data:
            self._pause_reading_for_buffer()
            rest_s = self._server.pace_of_refused.rest_s(self._loop.time())
            self._loop.call_later(rest_s, self._resume_reading_for_buffer)

    def _end_broken_body(self) -> None:
        """Fail a running request whose body is malformed HTTP, and read no further request.

        aiohttp queues data that it cannot parse as another request, after the one whose body
        contains it; that request would wait for the rest of its body until its time-out.
        """
        messages = self._messages
        if not messages or isinstance(messages[-1][0], RawRequestMessage):
            return
        if len(messages) > 1:
            body = messages[-2][1]
        elif self._current_request is not None:
            body = self._current_request.content
        else:
            return
        if not body.is_eof():
            messages.pop()
            body.set_exception(web.RequestPayloadError("a chunk is not as HTTP has it"))
            body.feed_eof()
            self.close()  # after the running requests are answered

    def drop(self) -> None:
        """Close the connection at once."""
        self._is_dropped = True
        if self.transport is not None:
            self.transport.abort()

    @property
    def has_spoken(self) -> bool:
        """Whether the connection ever sent a whole request head."""
        return self._request_count > 0

    def note_refused(self, request: BaseRequest) -> None:
        """Note that the request is answered before its body has arrived; the body is discarded."""
        self._refused = request

    def is_dispensable(self, now: float) -> bool:
        """Whether the connection can be closed without loss: its request was refused and the answer
        is sent, or its last answer is at least IDLE_MIN_S old."""
        if (refused := self._refused) is not None:
            is_answered = refused.writer.output_size > 0  # noted before the answer is written
            return self.transport is None or (
                is_answered and self.transport.get_write_buffer_size() == 0
            )
        if self._waiter is None or self._waiter.done():
            return False
        answered_at = self._next_keepalive_close_time - self._keepalive_timeout
        return now - answered_at >= IDLE_MIN_S

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that reached no handler, and close the connection."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun; another cannot be sent")
        if isinstance(exc, ConnectionError):
            raise exc  # the client disconnected in the middle of its request
        error: TidemarkError
        if status < 500:
            reason = " ".join((message or "").split())[:200]
            error = BadRequest(f"this is not an HTTP request: {reason}. Nothing was stored.")
        else:
            self._server.limited_log.defect(
                exc or RuntimeError(message or "no reason given"),
                "a request failed outside of its call",
                path=request.path,
            )
            error = TidemarkError("an internal error; the log of the service has the details.")
        answer = web.Response(body=_json(error), status=status, content_type="application/json")
        answer.force_close()
        return answer


def _json(error: TidemarkError) -> bytes:
    text = json.dumps(error_fields(error), ensure_ascii=False, default=str)
    return text.encode("utf-8", "backslashreplace") + b"\n"


class _Refuser(asyncio.Protocol):
    """Protocol of a connection above the limit: answers 503 and closes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Write the whole answer without reading anything."""
        writer = cast(asyncio.WriteTransport, transport)  # uvloop's class does not derive from it
        error = Overloaded(
            f"{self._limit} connections are open, and that is the limit. Nothing was stored.",
            "Use fewer connections, or try again.",
            limit=self._limit,
        )
        body = _json(error)
        writer.write(
            b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
            b"Connection: close\r\nRetry-After: 1\r\n"
            b"Content-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body
        )
        writer.close()


class _Watch:
    """The sweep's record of one connection."""

    __slots__ = ("opened_at", "since", "unsent")

    def __init__(self, now: float) -> None:
        self.opened_at = now
        self.unsent = 0
        self.since = now


class BoundedServer:
    """Accepts connections for one aiohttp application within the limits."""

    def __init__(
        self,
        app: web.Application,
        bounds: Bounds,
        wrap: Callable[[CallHandler], CallHandler] = lambda handler: handler,
        pauses: Pauses | None = None,
    ) -> None:
        """wrap: wraps the application's handler, to answer some requests before it (the broker:
        ``Api.fast_path``). pauses: the pauses between two accepted connections."""
        self._wrap = wrap
        self._pauses = pauses or Pauses()
        self._bounds = bounds
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=bounds.finish_s
        )
        self._silent: OrderedDict[BoundedHandler, None] = OrderedDict()
        """Open connections, oldest first. Those that have sent a request are moved to ``_spoken``
        when the limit is reached."""
        self._spoken: OrderedDict[BoundedHandler, None] = OrderedDict()
        self.pace_of_refused = Pace()
        """Paces the reading of discarded bodies."""
        self.limited_log = RateLimitedLogger(lambda: asyncio.get_running_loop().time())
        self._watched: dict[web.RequestHandler, _Watch] = {}
        self._manager: web.Server | None = None
        self._listeners: list[socket.socket] = []
        self._tasks: list[asyncio.Task[None]] = []
        """The sweep task, and one accepting task per listener."""
        self.port = 0
        """Port listened on; 0 until started."""

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._silent) + len(self._spoken)

    def note_refused(self, reason: str) -> None:
        """Count a connection that was refused or closed; reason: limit, no-request or
        answer-not-taken."""

    def make_handler(self, manager: web.Server, **settings: Any) -> BoundedHandler:
        """Create the protocol of a new connection."""
        return BoundedHandler(manager, self, **settings)

    def lost(self, handler: BoundedHandler) -> None:
        """Forget a closed connection."""
        self._silent.pop(handler, None)
        self._spoken.pop(handler, None)

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises CannotListen if the port is taken."""
        await self._runner.setup()
        manager = self._manager = self._runner.server
        assert manager is not None
        manager.request_handler = self._wrap(manager.request_handler)
        loop = asyncio.get_running_loop()
        with (
            listening_on(host, port),
            closing(
                await loop.create_server(
                    asyncio.Protocol, host, port, reuse_address=True, start_serving=False
                )
            ) as bound,
        ):
            for each in bound.sockets:
                listener = socket.socket(fileno=os.dup(each.fileno()))
                self._listeners.append(listener)
                listener.setblocking(False)
                listener.listen(BACKLOG)
        self.port = int(self._listeners[0].getsockname()[1])
        self._tasks = [
            asyncio.create_task(self._sweep(), name="connection-sweep"),
            *(
                asyncio.create_task(self._accept_all(listener), name="connection-accept")
                for listener in self._listeners
            ),
        ]

    async def close(self) -> None:
        """Stop listening, let running requests finish, close all connections."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        await self._runner.cleanup()

    async def _accept_all(self, listener: socket.socket) -> None:
        """Accept one connection at a time, with pauses: the loop's own server accepts all that are
        queued at once, and each takes 0.3 ms."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                self.limited_log.say(
                    f"accept {error.errno}",
                    "accept-failed",
                    f"a connection could not be accepted: {error.strerror}; others wait "
                    f"{ACCEPT_AGAIN_S} s",
                    error=error,
                )
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            await self._take(connection)
            await self._pauses.rest()

    async def _take(self, connection: socket.socket) -> None:
        """Serve an accepted connection. Never raises: otherwise accepting would stop."""
        protocol: asyncio.BaseProtocol | None = None
        try:
            protocol = self._protocol()
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(lambda: protocol, connection)
        except OSError:  # its client has closed it already
            self._give_up(connection, protocol)
        except Exception as error:  # noqa: BLE001 - logged as a defect; accepting goes on
            self._give_up(connection, protocol)
            self.limited_log.defect(error, "a connection could not be served")

    def _give_up(self, connection: socket.socket, protocol: asyncio.BaseProtocol | None) -> None:
        connection.close()
        if isinstance(protocol, BoundedHandler):
            self.lost(protocol)

    def _protocol(self) -> asyncio.BaseProtocol:
        """Create the protocol of one more connection; closes an idle one at the limit."""
        assert self._manager is not None
        if self.connections >= self._bounds.connections_max:
            self.note_refused("limit")
            if (idle := self._take_idle()) is None:
                return _Refuser(self._bounds.connections_max)
            idle.drop()
        handler = self.make_handler(
            self._manager,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=self._bounds.idle_timeout_s,
            access_log=None,
            max_headers=HEADERS_MAX,
            max_line_size=HEADER_SIZE_MAX,
            max_field_size=HEADER_SIZE_MAX,
            lingering_time=LINGER_S,
            read_bufsize=READ_SIZE,
            # A few bytes may unpack to gigabytes; compressed bodies are refused by http_api.
            auto_decompress=False,
        )
        self._silent[handler] = None
        return handler

    def _take_idle(self) -> BoundedHandler | None:
        """Remove and return the connection to close for a new one; None if all are in use.

        The first choice is the oldest that never sent a whole request, the second a dispensable
        one. At most TRIED_MAX of those that have sent requests are checked; the next call checks
        others.
        """
        while self._silent:
            handler, _ = self._silent.popitem(last=False)
            if not handler.has_spoken:
                return handler
            self._spoken[handler] = None
        now = asyncio.get_running_loop().time()
        for _ in range(min(len(self._spoken), TRIED_MAX)):
            handler, _ = self._spoken.popitem(last=False)
            if handler.is_dispensable(now):
                return handler
            self._spoken[handler] = None
        return None

    async def _sweep(self) -> None:
        loop, bounds = asyncio.get_running_loop(), self._bounds
        while True:
            await asyncio.sleep(min(SWEEP_S, bounds.read_timeout_s / 2, bounds.write_timeout_s / 2))
            assert self._manager is not None
            now = loop.time()
            known, self._watched = self._watched, {}
            for handler in self._manager.connections:
                watch = self._watched[handler] = known.get(handler) or _Watch(now)
                if (reason := self._stalled(handler, watch, now)) is not None:
                    self.note_refused(reason)
                    if handler.transport is not None:
                        handler.transport.abort()

    def _stalled(self, handler: web.RequestHandler, watch: _Watch, now: float) -> str | None:
        """Return the reason to close this connection, or None."""
        transport = handler.transport
        if transport is None:
            return None
        spoken = isinstance(handler, BoundedHandler) and handler.has_spoken
        if not spoken and now - watch.opened_at > self._bounds.read_timeout_s:
            return "no-request"
        unsent = transport.get_write_buffer_size()
        if unsent == 0 or unsent != watch.unsent:
            watch.unsent, watch.since = unsent, now
        elif now - watch.since > self._bounds.write_timeout_s:
            return "answer-not-taken"
        return None
