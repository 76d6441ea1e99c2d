"""What a request says: name, parameters, body, sender; everything checked before it is used.

Bodies are bounded three ways before they are decoded: by what they announce, by what arrives, and
by the time they take; and all of them together by a budget. Before: ``connections``. After:
``http_api`` makes the call (walk step 1).
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import unquote_to_bytes

from aiohttp import hdrs, web

from services.broker import encodings
from services.broker.fields import NAME_RULE, check_name, parameter_int, shown
from services.broker.limits import Budget
from tidemark.errors import (
    BadName,
    BadRequest,
    MessageTooLarge,
    SlowRequest,
    UnsupportedMediaType,
)
from tidemark.formats.hosts import Host


class Bodies:
    """Reads request bodies within the bounds."""

    def __init__(self, *, size_max: int, waiting_max: int, timeout_s: float) -> None:
        """size_max: bytes of one body. waiting_max: bytes of all that are in memory."""
        self._size_max = size_max
        self._timeout_s = timeout_s
        self._waiting = Budget(
            "bytes of requests in memory", waiting_max, "Send less at a time, or try again."
        )

    def begin(self, request: web.Request) -> int:
        """Make room for the request's body; the bytes to give back with ``end`` in any case.

        Raises UnsupportedMediaType, MessageTooLarge, Overloaded.
        """
        size = announced_size(request, self._size_max)
        self._waiting.take(size)
        return size

    def end(self, size: int) -> None:
        """The body that ``begin`` made room for is not in memory any more."""
        self._waiting.give_back(size)

    @asynccontextmanager
    async def read(self, request: web.Request) -> AsyncIterator[object]:
        """The decoded body; its bytes count as waiting until the block ends.

        Raises UnsupportedMediaType, MessageTooLarge, Overloaded, SlowRequest, BadRequest.
        """
        encoding = encodings.of_request(request.headers.get(hdrs.CONTENT_TYPE))
        size = self.begin(request)
        try:
            yield encodings.decode(await self.whole(request), encoding)
        finally:
            self.end(size)

    def check_announced(self, request: web.Request) -> None:
        """Judge a body that the client only announces, before it sends it."""
        if request.headers.get(hdrs.EXPECT, "").lower() != "100-continue":
            raise BadRequest("of Expect only 100-continue is known. Nothing was stored.")
        encodings.of_request(request.headers.get(hdrs.CONTENT_TYPE))
        announced_size(request, self._size_max)

    def arrived(self, request: web.Request) -> bytes | None:
        """The whole body if it came with the head, in one piece; None if there is more to come.

        Raises MessageTooLarge: of a body in chunks nobody has announced the size. Call it between
        ``begin`` and ``end``.
        """
        content = request.content
        if not content.is_eof():
            return None
        body = content.read_nowait()
        if len(body) > self._size_max:
            raise too_large(len(body), self._size_max)
        return body

    async def whole(self, request: web.Request) -> bytes:
        """The whole body, at most size_max bytes, within timeout_s.

        Raises MessageTooLarge, SlowRequest, BadRequest. Call it between ``begin`` and ``end``.
        """
        if (here := self.arrived(request)) is not None:
            return here
        content = request.content
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._timeout_s):
                while part := await content.readany():
                    size += len(part)
                    if size > self._size_max:
                        raise too_large(size, self._size_max)
                    parts.append(part)
        except TimeoutError:
            raise SlowRequest(
                f"after {self._timeout_s} s only {size} bytes of the body had arrived. "
                "Nothing was stored.",
                "Send smaller requests.",
                limit=self._timeout_s,
            ) from None
        except web.RequestPayloadError as error:
            raise BadRequest(f"the body is broken: {error}. Nothing was stored.") from None
        return b"".join(parts)


def topic_of(request: web.Request) -> str:
    """The topic's name in the path; a topic's name may hold a %, so escapes must be whole."""
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


def parameters(request: web.Request, known: frozenset[str]) -> dict[str, str]:
    """The query; refuses what we would ignore, and what is given twice."""
    if not request.query_string:
        return {}
    given: dict[str, str] = {}
    for name, value in request.query.items():
        if name not in known:
            raise BadRequest(
                f"{shown(name)} is not a parameter of this call.",
                f"It has: {', '.join(sorted(known)) or 'none'}.",
                field=name[:60],
            )
        if name in given:
            raise BadRequest(f"{name} is given twice.", field=name)
        given[name] = value
    return given


def required(given: Mapping[str, str], name: str) -> str:
    """A parameter that must be there."""
    if name not in given:
        raise BadRequest(f"{name} is missing.", field=name)
    return given[name]


def number(given: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    """A whole number in [low, high], or the default if it is not given."""
    return parameter_int(given[name], name, low, high) if name in given else default


def announced_size(request: web.Request, limit: int) -> int:
    """Bytes to reserve for the body; one too large, or packed, is refused before it is read."""
    packed = request.headers.get(hdrs.CONTENT_ENCODING)
    if packed is not None and packed.strip().lower() not in ("", "identity"):
        raise UnsupportedMediaType(
            f"content encoding {shown(packed)} is not understood. Nothing was stored.",
            "Send the body as it is.",
        )
    size = request.content_length
    if size is not None and size > limit:
        raise too_large(size, limit)
    # A body without a length may become as large as allowed: it is counted as that.
    return size if size is not None else (limit if request.body_exists else 0)


def too_large(size: int, limit: int) -> MessageTooLarge:
    """What a body over the limit is told."""
    return MessageTooLarge(
        f"the request body has {size} bytes or more, {limit} are allowed. Nothing was stored.",
        "Send fewer messages per request.",
        limit=limit,
    )


def born_host(request: web.Request) -> Host:
    """Where the request came from, as a record stores it."""
    peer = request.transport.get_extra_info("peername") if request.transport else None
    if not peer:
        return Host(b"\x7f\x00\x00\x01", 0)
    return Host(_address(peer[0]), peer[1])


@functools.lru_cache(maxsize=1024)
def _address(text: str) -> bytes:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.packed
    return address.packed
