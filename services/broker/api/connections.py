"""The API port's connections: plain sends, the role of the last request, and recent activity.

The limits are those of ``shared.runtime.connections``. The write path begins here. After this step
``direct_sends`` answers a plain send (write path, steps 1 and 6), and ``http_api`` any other
request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from aiohttp import web
from aiohttp.web_request import BaseRequest

from services.broker.api.http_requests import SMALL, Body, host_of, peer_of
from services.broker.api.request_head import (
    BATCHES,
    HEAD_END,
    HEAD_SIZE_MAX,
    SendHead,
    batch_head,
    missing_bytes,
    send_head,
)
from services.broker.request_classes import ClientRole
from services.broker.traffic_metrics import TrafficMetrics
from shared.runtime.connections import BoundedHandler, BoundedServer, Bounds, CallHandler
from shared.runtime.pauses import Pauses

if TYPE_CHECKING:  # these modules import this one
    from services.broker.api.direct_sends import DirectSends, WaitingSend
    from services.broker.send.deduplicator import RepeatCount
    from tidemark.formats.hosts import Host

RECENT_INPUT_S: Final = 0.002
"""Bytes received within this time may belong to a request whose handler has not started yet."""
HELD_SIZE_MAX: Final = 1 << 17
"""Bytes of a plain send, head included, that is held while it arrives; aiohttp buffers as many."""
TURNS_MAX: Final = 3
"""Turns of the event loop that aiohttp takes from the end of a request until it waits for one."""
HELD_S: Final = 0.05
"""Time in which the rest of a plain send should follow its begin. After it, aiohttp has the begin:
the time-outs and budgets of slow bodies are those of ``http_requests``."""


class PlainSend(msgspec.Struct, frozen=True):
    """A plain send that has arrived."""

    connection: ApiHandler
    head: SendHead
    request: bytes
    """Head and body."""
    body_start: int
    """Index of the body's first byte in the request."""
    born_host: Host
    held: Body | None
    """The memory that is counted for the begin of the request."""


class ApiHandler(BoundedHandler):
    """One connection of the API port: plain sends are served directly, other requests by aiohttp.

    aiohttp's parser keeps the part of a request that it has got. A send is therefore served
    directly only where a request begins and aiohttp waits for one. If it cannot be known where
    requests begin, aiohttp serves the connection from then on.
    """

    __slots__ = (
        "_answering",
        "_born_host",
        "_direct_sends",
        "_hand_over_timer",
        "_held",
        "_held_body",
        "_is_full",
        "_missing",
        "_note_input",
        "_part_since",
        "repeats_before",
        "role",
    )

    def __init__(self, manager: web.Server, server: ApiServer, **settings: Any) -> None:
        super().__init__(manager, server, **settings)
        self._note_input = server.note_input
        self._direct_sends = server.direct_sends
        self._born_host: Host | None = None
        """Address of the client; looked up with the first plain send."""
        self._missing: int | None = 0
        """Bytes that aiohttp's last request lacks; None: unknown from now on."""
        self._part_since: RepeatCount | None = None
        """Count of repeated sends when the begin of a request arrived that aiohttp may hold; None:
        it holds none."""
        self._held = b""
        """The begin of a plain send whose rest has not arrived, or what follows a send."""
        self._is_full = False
        """Whether nothing is read because too much follows a send."""
        self._held_body: Body | None = None
        """Memory that is counted for the begin of a send."""
        self._hand_over_timer: asyncio.TimerHandle | None = None
        self._answering: asyncio.Future[Any] | None = None
        """Waits for the level of a plain send; later requests of the connection wait for it."""
        self.repeats_before: RepeatCount | None = None
        """Count of repeated sends when the oldest bytes that are not answered arrived; None: all
        that arrived was answered at once."""
        self.role = ClientRole.NEW

    def data_received(self, data: bytes) -> None:
        """Record the activity and process the bytes."""
        self._note_input()
        if not data:  # aiohttp resumes reading: it has a part of a request
            super().data_received(data)
        elif self._answering is not None:
            self._keep(self._held + data)
        elif self._held:
            self._serve(self._held + data)
        else:
            if self.repeats_before is not None and self._is_idle:
                self.repeats_before = self._part_since
            self._serve(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Handle the end of the connection. A send that was appended still reaches its level."""
        self._held = b""
        self._stop_holding()
        super().connection_lost(exc)

    async def shutdown(self, timeout: float | None = 15.0) -> None:  # noqa: ASYNC109 - aiohttp's
        """Close the connection; a send in progress has timeout seconds to be answered."""
        while self._answering is not None:
            if not (await asyncio.wait({self._answering}, timeout=timeout))[0]:
                break
        await super().shutdown(timeout)

    @property
    def has_spoken(self) -> bool:
        """Whether the connection ever sent a whole request head."""
        return super().has_spoken or self._is_in_use

    def is_dispensable(self, now: float) -> bool:
        """Whether the connection can be closed without loss."""
        return not self._is_in_use and super().is_dispensable(now)

    def _process_keepalive(self) -> None:
        if self._is_in_use:
            self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        super()._process_keepalive()

    @property
    def _is_in_use(self) -> bool:
        """Whether a send arrives, waits for its level, or was answered and the answer not read."""
        return self._answering is not None or bool(self._held) or self._paused

    @property
    def _is_idle(self) -> bool:
        """Whether aiohttp waits for a request."""
        waiter = self._waiter
        return waiter is not None and not waiter.done()

    def _serve(self, data: bytes, turns: int = TURNS_MAX) -> None:
        """Serve the send that data begins with, or pass data on to aiohttp.

        turns: how many turns of the loop data may wait until aiohttp has finished its last request.
        """
        self._held, direct_sends = b"", self._direct_sends
        if direct_sends is None or self._missing != 0 or self._close or self._paused:
            self._pass_on(data)
            return
        if not self._is_idle:
            if turns and not self._messages and not self._request_in_progress:
                self._keep(data)
                self._loop.call_soon(self._go_on, turns - 1)
            else:
                self._pass_on(data)
            return
        end = data.find(HEAD_END, 0, HEAD_SIZE_MAX)
        head = None
        if end >= 0:
            raw = data[:end]
            head = (batch_head(raw) if BATCHES in raw else None) or send_head(raw)
        if head is None or head.body_size > direct_sends.body_size_max:
            self._pass_on(data)
            return
        start = end + len(HEAD_END)
        stop = start + head.body_size
        if len(data) < stop:
            self._wait_for_rest(data, stop, direct_sends)
            return
        repeats = self.repeats_before
        if repeats is not None and repeats != direct_sends.repeats_so_far():
            self._pass_on(data)
            return
        if self._born_host is None:
            self._born_host = host_of(self.transport)
        held = None if self._hand_over_timer is None else self._stop_waiting()
        send = PlainSend(self, head, data[:stop], start, self._born_host, held)
        if len(data) == stop:
            self.repeats_before = None
        else:
            self._keep(data[stop:])
        end_of_turn = direct_sends.take(send)
        if end_of_turn is not None:
            self._answering = end_of_turn

    def finish(self, answer: bytes | WaitingSend) -> None:
        """Write the answer of a send, or wait for its level."""
        self._answering = None
        self.role = ClientRole.PRODUCER
        self._request_count += 1
        if isinstance(answer, bytes):
            self._write(answer)
            if self._held:
                self._loop.call_soon(self._go_on)
        else:
            self._answering = answer.level
            answer.level.add_done_callback(partial(self._answer, answer))

    def pass_on(self, send: PlainSend, repeats: RepeatCount) -> None:
        """Let aiohttp serve a send; repeats: count of repeated sends when it arrived or earlier."""
        self._answering = None
        self.repeats_before = repeats
        self._read_on()
        data, self._held = send.request + self._held, b""
        transport = self.transport
        if transport is not None and not transport.is_closing():
            self._pass_on(data)

    def _answer(self, send: WaitingSend, _: asyncio.Future[bool]) -> None:
        """Answer a send whose wait has ended, and process what follows it.

        This is a callback: a task per send would cost a tenth of the send."""
        assert self._direct_sends is not None, "it began the send"
        answer = self._direct_sends.answer(send)
        if isinstance(answer, bytes):
            self._answering = None
            self._write(answer)
            self._go_on()
        else:
            self._answering = self._loop.create_task(self._answer_later(answer))

    async def _answer_later(self, answer: Awaitable[bytes]) -> None:
        try:
            data = await answer
        finally:
            self._answering = None
        self._write(data)
        self._go_on()

    def _write(self, answer: bytes) -> None:
        """Send an answer; the connection is idle from now on."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        transport.write(answer)
        self._keepalive = True
        close_at = self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        if self._keepalive_handle is None:
            self._keepalive_handle = self._loop.call_at(close_at, self._process_keepalive)

    def _keep(self, data: bytes) -> None:
        """Keep what follows a send. Reading goes on up to HELD_SIZE_MAX, so that it is seen if the
        client closes the connection: it may repeat what was kept on another one."""
        self._note_repeats()
        self._held = data
        if len(data) > HELD_SIZE_MAX and not self._is_full:
            self._is_full = True
            self._pause_reading_for_buffer()

    def _note_repeats(self) -> None:
        """Remember the count of repeats, unless there are older bytes that are not answered."""
        if self.repeats_before is None:
            self.repeats_before = self._repeats_so_far()

    def _repeats_so_far(self) -> RepeatCount | None:
        return None if self._direct_sends is None else self._direct_sends.repeats_so_far()

    def _go_on(self, turns: int = TURNS_MAX) -> None:
        """Process what was kept, unless an answer has to come before it."""
        if self._answering is not None:
            return
        self._read_on()
        transport = self.transport
        if self._held and transport is not None and not transport.is_closing():
            self._serve(self._held, turns)

    def _read_on(self) -> None:
        """Resume reading if too much followed a send."""
        if self._is_full:
            # Not by aiohttp's own flag: aiohttp pauses reading as well, for its queue of requests.
            self._is_full = False
            self._resume_reading_for_buffer()

    def _wait_for_rest(self, data: bytes, size: int, direct_sends: DirectSends) -> None:
        """Hold the begin of a send of size bytes; aiohttp gets it if the rest takes too long."""
        if self._hand_over_timer is None:
            self._note_repeats()
            self._hand_over_timer = self._loop.call_later(HELD_S, self._hand_over)
        peer = peer_of(self.transport) if size > SMALL else None
        held = None if size > HELD_SIZE_MAX else direct_sends.hold(self._held_body, data, peer)
        if held is None:
            self._pass_on(data)
        else:
            self._held, self._held_body = data, held

    def _hand_over(self) -> None:
        data, self._held = self._held, b""
        self._pass_on(data)

    def _stop_waiting(self) -> Body | None:
        """Wait for no rest any more; return what is counted for the begin of the send."""
        if self._hand_over_timer is not None:
            self._hand_over_timer.cancel()
            self._hand_over_timer = None
        body, self._held_body = self._held_body, None
        return body

    def _stop_holding(self) -> None:
        if (body := self._stop_waiting()) is not None and self._direct_sends is not None:
            self._direct_sends.release(body)

    def _pass_on(self, data: bytes) -> None:
        """Let aiohttp process the bytes."""
        self._stop_holding()
        was_known = self._missing is not None
        if self._missing is not None:
            self._missing = missing_bytes(self._missing, data)
        if self._missing != 0 or not data.startswith(b"GET "):  # else it is one read
            self._note_repeats()
        request_count = self._request_count
        super().data_received(data)
        if self._missing == 0:
            self._part_since = None
        elif self._part_since is None or self._request_count != request_count:
            # A part that aiohttp holds now began in these bytes. They may have been kept before.
            self._part_since = self.repeats_before if was_known else self._repeats_so_far()


def repeats_before(request: BaseRequest) -> RepeatCount | None:
    """Return the count of repeated sends when a request began to arrive; None: it is unknown."""
    connection = request.protocol
    return connection.repeats_before if isinstance(connection, ApiHandler) else None


def note_role(request: BaseRequest, role: ClientRole) -> None:
    """Set the role of the request's connection."""
    connection = request.protocol
    if isinstance(connection, ApiHandler):
        connection.role = role


class ApiServer(BoundedServer):
    """The server of the API port: counts refusals, and connections by role."""

    def __init__(
        self,
        app: web.Application,
        metrics: TrafficMetrics,
        bounds: Bounds,
        wrap: Callable[[CallHandler], CallHandler] = lambda handler: handler,
        pauses: Pauses | None = None,
        direct_sends: DirectSends | None = None,
    ) -> None:
        """direct_sends: serves plain sends; None: aiohttp serves all requests."""
        super().__init__(app, bounds, wrap, pauses)
        self.direct_sends = direct_sends
        self._metrics = metrics
        self._input_at = float("-inf")

    def note_refused(self, reason: str) -> None:
        """Count a refused or closed connection under its reason."""
        self._metrics.connections_refused.labels(reason).inc()

    def make_handler(self, manager: web.Server, **settings: Any) -> ApiHandler:
        """Create the protocol of a new connection."""
        return ApiHandler(manager, self, **settings)

    def roles(self) -> dict[str, int]:
        """Return the number of open connections by the role of their last request."""
        found = dict.fromkeys((role.value for role in ClientRole), 0)
        handlers = () if self._manager is None else self._manager.connections
        for handler in handlers:
            if isinstance(handler, ApiHandler):
                found[handler.role.value] += 1
        # A connection counts from its acceptance on, but aiohttp registers it slightly later.
        rest = self.connections - (sum(found.values()) - found[ClientRole.NEW.value])
        found[ClientRole.NEW.value] = max(0, rest)
        return found

    @property
    def has_recent_input(self) -> bool:
        """Whether bytes arrived within the last RECENT_INPUT_S.

        Several iterations of the event loop pass between the arrival of a request and the start of
        its handler."""
        return time.monotonic() < self._input_at + RECENT_INPUT_S

    def note_input(self) -> None:
        """Record that bytes arrived on a connection."""
        self._input_at = time.monotonic()
