"""Bounds on HTTP connections: how many, how long a request's head and an answer may take.

A client that sends nothing, sends its request byte by byte, or does not take its answer costs one
connection for a bounded time. At the limit a new connection replaces the oldest one that has never
sent a whole request, or one that is refused already, or idle; if there is none it is answered 503.
The API port of the broker and the admin ports of all services are served by this. The broker bounds
request bodies in ``http_requests``.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, cast

from aiohttp import web
from aiohttp.http import RawRequestMessage
from aiohttp.web_request import BaseRequest

from shared.runtime.give_way import GiveWay, Pace
from shared.runtime.listening import listening_on
from shared.runtime.paced_log import PacedLog
from tidemark.errors import BadRequest, Overloaded, TidemarkError

CallHandler = Callable[[BaseRequest], Awaitable[web.StreamResponse]]

SWEEP_S: Final = 1.0
HEADERS_MAX: Final = 64
HEADER_SIZE_MAX: Final = 8190
FINISH_S: Final = 5.0
"""How long a stop waits for requests in hand, a body that never arrives among them."""
IDLE_MIN_S: Final = 1.0
"""A connection whose last answer is younger is not idle: its client may just be sending the next
request, and would not learn what became of it."""
TRIED_MAX: Final = 64
LINGER_S: Final = 5.0
"""How long the rest of a refused body is read and thrown away, so that its sender sees the answer
instead of a reset connection."""
BACKLOG: Final = 1024
"""Connections that the kernel keeps until they are accepted."""
ACCEPT_AGAIN_S: Final = 1.0
"""After a failure to accept, of which the likely one is that the descriptors have run out."""
READ_SIZE: Final = 1 << 16
"""Bytes of a body that are read ahead; one read may bring more."""


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


class Bounds(NamedTuple):
    """Bounds of one port."""

    connections_max: int
    read_timeout_s: float
    """For the first whole request head of a connection."""
    idle_timeout_s: float
    """Between two requests of a connection."""
    write_timeout_s: float
    """For a client to take any byte of an answer."""
    finish_s: float = FINISH_S
    """How long ``close`` waits for requests in hand."""


class BoundedHandler(web.RequestHandler):
    """One connection; answers what is not HTTP in the words of our errors."""

    __slots__ = ("_is_dropped", "_refused", "_server")

    def __init__(self, manager: web.Server, server: BoundedServer, **settings: Any) -> None:
        super().__init__(manager, **settings)
        self._server = server
        self._is_dropped = False
        self._refused: BaseRequest | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open; it may have been dropped since it was accepted."""
        super().connection_made(transport)
        if self._is_dropped:
            self.drop()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is gone."""
        self._server.lost(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes have come. What comes of refused bodies is read in turn, one part in each REST_S:
        their senders set the pace of the loop otherwise."""
        super().data_received(data)
        self._end_broken_body()
        if self._refused is not None and data:
            self._pause_reading_for_buffer()
            rest_s = self._server.pace_of_refused.rest_s(self._loop.time())
            self._loop.call_later(rest_s, self._resume_reading_for_buffer)

    def _end_broken_body(self) -> None:
        """Fail a request in hand whose body turned out not to be HTTP, and read no other.

        aiohttp queues what it cannot parse as another request, behind the one whose body it
        belongs to; that one would wait for the rest of its body until its time-out.
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
            self.close()  # once the requests in hand are answered

    def drop(self) -> None:
        """Close the connection at once."""
        self._is_dropped = True
        if self.transport is not None:
            self.transport.abort()

    @property
    def has_spoken(self) -> bool:
        """Whether it has ever sent a whole request head."""
        return self._request_count > 0

    def note_refused(self, request: BaseRequest) -> None:
        """The request is answered before its body has come: what comes of it is thrown away."""
        self._refused = request

    def is_dispensable(self, now: float) -> bool:
        """Whether nothing is lost with it: its request was refused and has its answer, or its last
        answer is IDLE_MIN_S old."""
        if (refused := self._refused) is not None:
            is_answered = refused.writer.output_size > 0  # it is noted before the answer is written
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
            self._server.paced.defect(
                exc or RuntimeError(message or "no reason given"),
                "a request failed outside of its call",
                path=request.path,
            )
            error = TidemarkError("the request failed for a reason of our own; it is in the log.")
        answer = web.Response(body=_json(error), status=status, content_type="application/json")
        answer.force_close()
        return answer


def _json(error: TidemarkError) -> bytes:
    text = json.dumps(error_fields(error), ensure_ascii=False, default=str)
    return text.encode("utf-8", "backslashreplace") + b"\n"


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
        body = _json(error)
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
        bounds: Bounds,
        handler: Callable[[CallHandler], CallHandler] = lambda handler: handler,
        way: GiveWay | None = None,
    ) -> None:
        """handler: wraps the application's, to answer some requests before it. way: the rests
        between two connections that are accepted."""
        self._wrap = handler
        self._way = way or GiveWay()
        self._bounds = bounds
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=bounds.finish_s
        )
        self._silent: OrderedDict[BoundedHandler, None] = OrderedDict()
        """Open connections, oldest first; those that have spoken are moved to the other ones when
        the limit is reached."""
        self._spoken: OrderedDict[BoundedHandler, None] = OrderedDict()
        self.pace_of_refused = Pace()
        """Of what comes of bodies that are thrown away."""
        self.paced = PacedLog(lambda: asyncio.get_running_loop().time())
        self._watched: dict[web.RequestHandler, _Watch] = {}
        self._manager: web.Server | None = None
        self._listeners: list[socket.socket] = []
        self._tasks: list[asyncio.Task[None]] = []
        """The sweep, and one that accepts connections for each listener."""
        self.port = 0
        """Port listened on, once started."""

    @property
    def connections(self) -> int:
        """Connections open now."""
        return len(self._silent) + len(self._spoken)

    def note_refused(self, reason: str) -> None:
        """Count a connection that was refused or closed: limit, no-request, answer-not-taken."""

    def make_handler(self, manager: web.Server, **settings: Any) -> BoundedHandler:
        """The protocol of a new connection."""
        return BoundedHandler(manager, self, **settings)

    def lost(self, handler: BoundedHandler) -> None:
        """The connection is gone."""
        self._silent.pop(handler, None)
        self._spoken.pop(handler, None)

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises CannotListen if the port is taken."""
        await self._runner.setup()
        manager = self._manager = self._runner.server
        assert manager is not None
        manager.request_handler = self._wrap(manager.request_handler)
        loop = asyncio.get_running_loop()
        with listening_on(host, port):
            bound = await loop.create_server(
                asyncio.Protocol, host, port, reuse_address=True, start_serving=False
            )
            try:
                for each in bound.sockets:
                    listener = socket.socket(fileno=os.dup(each.fileno()))
                    self._listeners.append(listener)
                    listener.setblocking(False)
                    listener.listen(BACKLOG)
            finally:
                bound.close()
        self.port = int(self._listeners[0].getsockname()[1])
        self._tasks = [
            asyncio.create_task(self._sweep(), name="connection-sweep"),
            *(
                asyncio.create_task(self._accept_all(listener), name="connection-accept")
                for listener in self._listeners
            ),
        ]

    async def close(self) -> None:
        """Stop listening, let requests in hand finish, close all connections."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        await self._runner.cleanup()

    async def _accept_all(self, listener: socket.socket) -> None:
        """Accept one connection after another, with rests in between: the loop's own server accepts
        all that wait at once, and each takes 0.3 ms."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                self.paced.say(
                    f"accept {error.errno}",
                    "accept-failed",
                    f"a connection could not be accepted: {error.strerror}; others wait "
                    f"{ACCEPT_AGAIN_S} s",
                    error=error,
                )
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            await self._take(connection)
            await self._way.rest()

    async def _take(self, connection: socket.socket) -> None:
        """Serve a connection that has just been accepted. Never fails: others would not be
        accepted any more."""
        protocol: asyncio.BaseProtocol | None = None
        try:
            protocol = self._protocol()
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(lambda: protocol, connection)
        except OSError:  # its client has closed it already
            self._give_up(connection, protocol)
        except Exception as error:  # noqa: BLE001 - a defect is said; the next one is served
            self._give_up(connection, protocol)
            self.paced.defect(error, "a connection could not be served")

    def _give_up(self, connection: socket.socket, protocol: asyncio.BaseProtocol | None) -> None:
        connection.close()
        if isinstance(protocol, BoundedHandler):
            self.lost(protocol)

    def _protocol(self) -> asyncio.BaseProtocol:
        """The protocol of one more connection."""
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
        """The connection to close for a new one, no longer counted; None if all are in use.

        First the oldest that never sent a whole request, then a dispensable one. It looks at
        TRIED_MAX of those that have spoken, others the next time.
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
        """Why this connection is to be closed, if it is."""
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
