"""Large answers: built and written in slices, with limits in total and per peer.

Encoding an answer of a megabyte as JSON occupies the event loop longer than the rest of the
request. Therefore values are built and encoded while the answer is written. All large answers
together use one slice at a time, then other requests are served. The next piece is encoded only
when the client has received most of the previous ones. An answer that a client does not read keeps
the log's mapping and one message in memory until ``write_timeout_s`` ends it. Raw records are sent
from the mapping. ``http_api`` has the answer's values before this step; after it aiohttp writes
the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

from services.broker.api import encodings
from services.broker.api.calls import answer, encoding_of
from services.broker.api.http_requests import peer_of
from services.broker.request_classes import RequestClasses
from shared.runtime.time_slicer import TimeSlicer
from tidemark.clock import Clock
from tidemark.errors import Overloaded

T = TypeVar("T")

LARGE: Final = 1 << 16
"""Answers up to this size [bytes] are not counted; a connection has only one at a time."""
MANY: Final = 64
"""Up to this number of messages are built and encoded without yielding, if they are not large."""
MESSAGE_SIZE: Final = 1 << 10
"""Memory [bytes] of a decoded message in addition to its stored size: 850 were measured."""


class LargeAnswers:
    """Builds large answers, and counts their bytes. For one loop."""

    def __init__(self, limit: int, clock: Clock, request_classes: RequestClasses) -> None:
        """limit: total bytes; one peer may use half. request_classes: the requests in progress."""
        self._limit = limit
        self._clock = clock
        self._request_classes = request_classes
        self._used = 0
        self._of_peer: dict[str, int] = {}
        self._slice = asyncio.Lock()

    def answer(
        self, request: web.Request, value: Mapping[str, Any], reserved: Reserved
    ) -> web.Response:
        """Return the answer in the caller's encoding; a large one is encoded while it is written.

        reserved: the reservation of this answer; the returned answer releases it.
        """
        if not reserved.size:
            return answer(request, value)
        encoding = encoding_of(request)
        body = _Pieces(self, encodings.pieces(value, encoding), encoding.value)
        return _LargeAnswer(reserved, body)

    def bounded(self, request: web.Request, answer: web.StreamResponse) -> web.StreamResponse:
        """Return the answer; if it is large and complete, count it until the client has it.

        Raises Overloaded, but only for GET: if the answer of a completed send or fetch were
        refused, the client would assume that the call had no effect.
        """
        if type(answer) is not web.Response or not isinstance(answer.body, bytes):
            return answer
        size = len(answer.body)
        if size <= LARGE:
            return answer
        peer = peer_of(request.transport)
        if request.method == "GET":
            self.check(peer, size)
        return _LargeAnswer(Reserved(self, peer, size), answer.body, answer.status, answer.headers)

    def reserve(self, request: web.Request, *, size: int, count: int) -> Reserved:
        """Count an answer before it is built, until it is released. Raises Overloaded.

        size: stored bytes of its ``count`` messages. Small answers are not counted.
        """
        peer = peer_of(request.transport)
        size = 0 if size <= LARGE and count <= MANY else size + count * MESSAGE_SIZE
        if size:
            self.check(peer, size)
        return Reserved(self, peer, size)

    def check(self, peer: str, size: int) -> None:
        """Raise Overloaded if an answer of this size exceeds a limit."""
        for used, limit, whose in (
            (self._of_peer.get(peer, 0), self._limit // 2, f"of {peer}"),
            (self._used, self._limit, "of all clients"),
        ):
            if used and used + size > limit:
                raise Overloaded(
                    f"{used} bytes of answers {whose} have not been read yet; {limit} are allowed, "
                    f"and this answer has {size}.",
                    "Read the earlier answers first, or request less at a time.",
                    limit=limit,
                    used=used,
                )

    def count(self, peer: str, size: int) -> None:
        """Add size bytes to the counts; a negative size subtracts."""
        self._used += size
        self._of_peer[peer] = self._of_peer.get(peer, 0) + size
        if not self._of_peer[peer]:
            del self._of_peer[peer]

    async def take(self, steps: Iterator[T]) -> list[T]:
        """Return the next values of the iterator, as many as fit a slice; empty at its end.

        All large answers share one slice at a time: if thirty answers used a slice each, an
        iteration of the event loop would take as long as a whole answer.
        """
        async with self._slice:
            slicer = TimeSlicer(self._clock, self._request_classes.behind_sends())
            taken: list[T] = []
            for step in steps:
                taken.append(step)
                if slicer.over:
                    break
            if taken:
                await slicer.pass_on()
        return taken


class Reserved:
    """The reserved bytes of one answer; they count until they are released."""

    def __init__(self, answers: LargeAnswers, peer: str, size: int) -> None:
        self._answers, self._peer, self.size = answers, peer, size
        if size:
            answers.count(peer, size)

    def release(self) -> None:
        """Stop counting the bytes; no effect if they were released before."""
        size, self.size = self.size, 0
        if size:
            self._answers.count(self._peer, -size)


class _Pieces(Payload):
    """An answer that is encoded while it is written."""

    def __init__(self, answers: LargeAnswers, pieces: Iterator[bytes], kind: str) -> None:
        super().__init__(pieces, content_type=kind)
        self._answers, self._pieces = answers, pieces

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Raise TypeError, because the body can be built only once, while it is written."""
        raise TypeError("the body is encoded while it is written; it is not available as text")

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Encode and write at the speed at which the client reads."""
        while taken := await self._answers.take(self._pieces):
            await writer.write(b"".join(taken))


class _LargeAnswer(web.Response):
    """An answer that counts until the client has received nearly all of it, or it has failed."""

    def __init__(
        self,
        reserved: Reserved,
        body: bytes | _Pieces,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(body=body, status=status, headers=headers)
        self._reserved = reserved

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Write the head; release the reservation if that fails, as no body follows then."""
        try:
            return await super().prepare(request)
        except BaseException:
            self._reserved.release()
            raise

    async def write_eof(self, data: bytes = b"") -> None:
        """Write the body and wait until the client has received nearly all of it."""
        writer: Any = self._payload_writer
        try:
            await super().write_eof(data)
            if writer is not None:
                await writer.drain()
        finally:
            self._reserved.release()
