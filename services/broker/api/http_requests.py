"""Reads the parts of a request: topic, parameters, body and sender, all of them checked.

A body is limited before it is decoded: by its announced size, by the bytes that arrive, and by the
time that it takes, in total and between two parts. Only bytes that have arrived count against the
budget for all bodies. If a body does not arrive with its head, they also count against a budget of
its peer. A body that is announced and does not arrive therefore does not affect other clients. One
that stops arriving is given up as soon as others need its memory.
``send`` asks ``gate`` and this module before it reads the body (write path, step 2).
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, TypeVar
from urllib.parse import unquote_to_bytes

from aiohttp import hdrs, web

from services.broker.api import encodings
from services.broker.api.encodings import Encoding
from services.broker.fields import NAME_RULE, SHOWN_MAX, check_name, shown
from services.broker.limits import BODY_SILENCE_S, BODY_STALL_S, BODY_STEP
from services.broker.request_classes import RequestClasses
from services.broker.schema.parsing import query
from services.broker.schema.values import Query
from shared.runtime.budget import Budget
from shared.runtime.pauses import Pauses
from tidemark.errors import (
    BadName,
    BadRequest,
    MessageTooLarge,
    Overloaded,
    SlowRequest,
    UnsupportedMediaType,
)
from tidemark.formats.hosts import Host

T = TypeVar("T")
Q = TypeVar("Q", bound=Query)

SMALL: Final = 1 << 16
"""Bodies up to this announced size [bytes] do not count against their peer's budget."""
LONG: Final = 1 << 20
"""Bodies above this size [bytes] are read with pauses while other sends are in progress. Their
parts are joined in a thread, without the interpreter lock. A single growing buffer would be copied
on the event loop each time it grows."""
ANNOUNCED: Final = 1 << 8
"""Number of first bytes that are checked for msgpack lists and maps with too large an announced
size, so that the body is refused before the rest of it is in memory."""
_ADVICE: Final = "Send less at a time, or try again."


class Body:
    """Memory used by one request's body."""

    __slots__ = ("peer", "size")

    def __init__(self) -> None:
        self.size = 0
        """Bytes that have arrived."""
        self.peer: str | None = None
        """Address of the peer whose budget is charged; None: no bytes have arrived, the body is
        small, or it arrived with its head."""


class Arrival:
    """A body that has not arrived completely."""

    __slots__ = ("is_given_up", "limit", "moved_at", "moved_size", "size")

    def __init__(self, limit: asyncio.Timeout, now: float) -> None:
        self.limit = limit
        self.size = 0
        self.moved_at, self.moved_size = now, 0
        """When the body had last grown by BODY_STEP, and its size then."""
        self.is_given_up = False

    def take(self, size: int, now: float) -> None:
        """Record that size more bytes have arrived."""
        self.size += size
        if self.size - self.moved_size >= BODY_STEP:
            self.moved_at, self.moved_size = now, self.size


class BodyBounds(NamedTuple):
    """Limits of request bodies."""

    size_max: int
    """Bytes of one body."""
    waiting_max: int
    """Bytes of all bodies in memory; one peer may use half of it for bodies that arrive in
    parts."""
    timeout_s: float
    """Time in which a body has to arrive."""


class Bodies:
    """Reads request bodies within the limits."""

    def __init__(self, bounds: BodyBounds, request_classes: RequestClasses) -> None:
        self.size_max, waiting_max, self._timeout_s = bounds
        self._silence_s = min(BODY_SILENCE_S, self._timeout_s)
        self._waiting = Budget("bytes of requests in memory", waiting_max, _ADVICE)
        self._peers: dict[str, Budget] = {}
        """Budgets of the peers that have bytes in memory."""
        self._arriving: dict[Body, Arrival] = {}
        self._request_classes = request_classes
        self.pauses = request_classes.behind_sends()
        """The pauses for long bodies, on the event loop and in the thread."""
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="bodies")

    def check_room(self, size: int) -> None:
        """Raise Overloaded if size more bytes of bodies that have arrived would be too much."""
        waiting = self._waiting
        if waiting.used and waiting.used + size > waiting.limit:
            body = Body()
            self._take(body, size, None)
            self.end(body)

    def take(self, size: int) -> Body:
        """Count a body of size bytes for which ``check_room`` was called; pass it to ``end``.

        It is counted even if others have taken the room since: its messages may be stored."""
        body = Body()
        self._waiting.take(size, held=self._waiting.used)
        body.size = size
        return body

    def grow(self, body: Body, size: int, peer: str | None = None) -> None:
        """Count size more bytes of a body that have arrived; none if size is negative.

        peer: client whose budget is charged as well; None: as for the body's earlier bytes. Raises
        Overloaded."""
        if size > 0:
            self._take(body, size, peer or body.peer)

    def begin(self, request: web.Request) -> Body:
        """Return the request's body, with nothing read yet; it must be passed to ``end``.

        Raises UnsupportedMediaType, MessageTooLarge.
        """
        check_size(request, self.size_max)
        return Body()

    def end(self, body: Body) -> None:
        """Release the memory that the body is counted for."""
        self._waiting.give_back(body.size)
        if body.peer is not None:
            of_peer = self._peers[body.peer]
            of_peer.give_back(body.size)
            if not of_peer.used:
                del self._peers[body.peer]
        body.size, body.peer = 0, None

    def _take(self, body: Body, size: int, peer: str | None) -> None:
        """Count size more bytes of a body. If there is no room, bodies that have stopped arriving
        are given up. Raises Overloaded.

        peer: peer whose budget is charged as well, the same for all parts of a body; None: none.
        """
        try:
            self._count(body, size, peer)
        except Overloaded:
            if not self._give_up_stalled(body):
                raise
            self._count(body, size, peer)

    def _give_up_stalled(self, but: Body) -> bool:
        """End the requests, except one, whose bodies have stopped arriving. Returns whether there
        were any."""
        now = asyncio.get_running_loop().time()
        stalled = [
            (body, arrival)
            for body, arrival in self._arriving.items()
            if body is not but
            and body.size
            and now - arrival.moved_at > BODY_STALL_S
            and not arrival.limit.expired()
        ]
        for body, arrival in stalled:
            arrival.is_given_up = True
            arrival.limit.reschedule(now)
            self.end(body)
        return bool(stalled)

    def _count(self, body: Body, size: int, peer: str | None) -> None:
        if peer is None:
            self._waiting.take(size, body.size)
        else:
            of_peer = self._peers.get(peer) or Budget(
                f"bytes of requests of {peer} in memory", self._waiting.limit // 2, _ADVICE
            )
            of_peer.take(size, body.size)
            try:
                self._waiting.take(size, body.size)
            except Overloaded:
                of_peer.give_back(size)
                raise
            self._peers[peer] = of_peer
            body.peer = peer
        body.size += size

    @asynccontextmanager
    async def read(self, request: web.Request) -> AsyncIterator[object]:
        """Provide the decoded body; its bytes count until the block ends.

        Raises UnsupportedMediaType, MessageTooLarge, Overloaded, SlowRequest, BadRequest.
        """
        encoding = encodings.of_request(request.headers.get(hdrs.CONTENT_TYPE))
        body = self.begin(request)
        try:
            data = await self.whole(request, body, encoding)
            if encodings.is_long(data, encoding):
                yield await self.in_thread(
                    functools.partial(encodings.decode, data, encoding, self.pauses.rest_in_thread)
                )
            else:
                yield encodings.decode(data, encoding)
        finally:
            self.end(body)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Decode or check a long body in a thread, one body at a time.

        The event loop gets the interpreter lock back within ``lifecycle.SWITCH_S``, and the work
        makes the pauses of ``self.pauses`` while others send. It must not share objects with the
        loop."""
        with self._request_classes.long_send():
            return await self._in_worker(work)

    async def _in_worker(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)

    def check_announced(self, request: web.Request, *, is_octets: bool = False) -> None:
        """Check an announced body (Expect: 100-continue) before the client sends it.

        is_octets: whether the call takes bytes, and no map."""
        if request.headers.get(hdrs.EXPECT, "").lower() != "100-continue":
            raise BadRequest("of Expect only 100-continue is known. Nothing was stored.")
        content_type = request.headers.get(hdrs.CONTENT_TYPE)
        if is_octets:
            encodings.check_octets(content_type)
        else:
            encodings.of_request(content_type)
        check_size(request, self.size_max)

    def arrived(self, request: web.Request, body: Body) -> bytes | None:
        """Return the whole body if it has arrived with the head; None if it is incomplete.

        Raises MessageTooLarge (a chunked body does not announce its size), BadRequest or
        Overloaded. Call it between ``begin`` and ``end``.
        """
        content = request.content
        if not content.is_eof():
            return None
        try:
            data = content.read_nowait()
        except web.RequestPayloadError as error:
            raise _broken(error) from None
        size = len(data)
        if size > self.size_max:
            raise too_large(size, self.size_max)
        self._take(body, size, None)
        return data

    async def whole(self, request: web.Request, body: Body, encoding: Encoding | None) -> bytes:
        """Read and return the whole body, at most size_max bytes, within timeout_s.

        encoding: that of the body; None: it is not decoded.
        Raises MessageTooLarge, TooManyValues, SlowRequest, BadRequest or Overloaded. Call it
        between ``begin`` and ``end``.
        """
        if (here := self.arrived(request, body)) is not None:
            return here
        length = request.content_length
        peer = peer_of(request.transport) if length is None or length > SMALL else None
        with self._request_classes.long_send():
            parts = await self._parts(request, body, peer, encoding)
            if body.size <= LONG:
                return b"".join(parts)
            return await self._in_worker(functools.partial(_joined, parts, self.pauses))

    async def _parts(
        self, request: web.Request, body: Body, peer: str | None, encoding: Encoding | None
    ) -> list[bytes]:
        """Read a body until its end; return its parts."""
        content = request.content
        parts: list[bytes] = []
        loop = asyncio.get_running_loop()
        started = loop.time()
        limit = asyncio.timeout(None)
        arrival = self._arriving[body] = Arrival(limit, started)
        try:
            async with limit:
                while True:
                    now = loop.time()
                    if not arrival.is_given_up:
                        limit.reschedule(min(started + self._timeout_s, now + self._silence_s))
                    if not (part := await content.readany()):
                        return parts
                    arrival.take(len(part), loop.time())
                    if body.size + len(part) > self.size_max:
                        raise too_large(body.size + len(part), self.size_max)
                    self._take(body, len(part), peer)
                    if not parts and encoding is not None:
                        encodings.check_count(part[:ANNOUNCED], encoding)
                    parts.append(part)
                    if body.size > LONG:
                        await self.pauses.rest()
        except TimeoutError:
            if arrival.is_given_up:
                raise Overloaded(
                    f"after {arrival.size} bytes the body stopped arriving for more than "
                    f"{BODY_STALL_S} s, and other requests needed its memory. "
                    "Nothing was stored.",
                    _ADVICE,
                ) from None
            raise SlowRequest(
                f"after {loop.time() - started:.1f} s only {arrival.size} bytes of the body had "
                f"arrived; {self._timeout_s} s are allowed, and {self._silence_s} s between two "
                "parts. Nothing was stored.",
                "Send smaller requests.",
                limit=self._timeout_s,
            ) from None
        except web.RequestPayloadError as error:
            raise _broken(error) from None
        except RuntimeError as error:
            if request.transport is not None:
                raise
            # aiohttp raises RuntimeError for a read on a closed connection.
            raise ConnectionResetError("the client has closed the connection") from error
        finally:
            del self._arriving[body]


def _broken(error: web.RequestPayloadError) -> BadRequest:
    return BadRequest(f"the body is broken: {error}. Nothing was stored.")


def _joined(parts: list[bytes], pauses: Pauses) -> bytes:
    """Join the parts in a thread; the copy does not hold the interpreter lock.

    The parts are freed one by one, so that the lock is held only for one part at a time."""
    data = b"".join(parts)
    while parts:
        parts.pop()
        pauses.rest_in_thread()
    return data


def topic_of(request: web.Request) -> str:
    """Return the topic's name in the path. Names may contain %, so escapes must be valid."""
    raw = request.rel_url.raw_path
    if "%" in raw:
        try:
            unquote_to_bytes(raw).decode()
        except UnicodeDecodeError:
            raise BadName(
                f"topic in {shown(raw)} is not a name: {NAME_RULE}.",
                "Write a % in a name as %25.",
                field="topic",
            ) from None
    return check_name(request.match_info["topic"])


def query_of(request: web.Request, kind: type[Q]) -> Q:
    """Return the checked query parameters. Raises BadRequest, BadName."""
    given: dict[str, str] = {}
    if request.query_string:
        for name, value in request.query.items():
            if name in given:
                raise BadRequest(f"{shown(name)} is given twice.", field=name[:SHOWN_MAX])
            given[name] = value
    return query(given, kind)


def check_size(request: web.Request, limit: int) -> None:
    """Raise if the announced size is too large or the body is compressed; nothing is read."""
    packed = request.headers.get(hdrs.CONTENT_ENCODING)
    if packed is not None and packed.strip().lower() not in ("", "identity"):
        raise UnsupportedMediaType(
            f"content encoding {shown(packed)} is not understood. Nothing was stored.",
            "Send the body as it is.",
        )
    size = request.content_length
    if size is not None and size > limit:
        raise too_large(size, limit)


def too_large(size: int, limit: int) -> MessageTooLarge:
    """Return the error for a body over the limit."""
    return MessageTooLarge(
        f"the request body has {size} bytes or more, {limit} are allowed. Nothing was stored.",
        "Send fewer messages per request.",
        limit=limit,
    )


def peer_of(transport: asyncio.BaseTransport | None) -> str:
    """Return the address of a connection's client."""
    peer = transport.get_extra_info("peername") if transport else None
    return str(peer[0]) if peer else "an unknown address"


def born_host(request: web.Request) -> Host:
    """Return the address and port of the request's client, as a record stores it."""
    return host_of(request.transport)


def host_of(transport: asyncio.BaseTransport | None) -> Host:
    """Return the address and port of a connection's client."""
    peer = transport.get_extra_info("peername") if transport else None
    if not peer:
        return Host(b"\x7f\x00\x00\x01", 0)
    return Host(_address(peer[0]), peer[1])


@functools.lru_cache(maxsize=1024)
def _address(text: str) -> bytes:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.packed
    return address.packed
