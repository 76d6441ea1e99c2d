"""Large answers: made and written in slices, and bounded in all and for one peer.

An answer of a megabyte takes the loop for longer as JSON than all else that a request does. So its
values are made and encoded while it is written: a slice of all large answers, then others have
their turn, and the next piece only when the client has taken most of those before. What a client
does not read keeps the log's mapping alive and one message in memory, until the server gives it up
(``write_timeout_s``). Raw records leave from the mapping as they are. Before: ``http_api`` has what
is to be answered. After: aiohttp writes it.
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
from services.broker.api.pools import Pools
from shared.runtime.turns import Turns
from tidemark.clock import Clock
from tidemark.errors import Overloaded

T = TypeVar("T")

LARGE: Final = 1 << 16
"""Bytes: smaller answers are not counted; a connection has one of them at a time."""
MANY: Final = 64
"""Messages: fewer are made and encoded in one step of the loop, if they are not large."""
MESSAGE_SIZE: Final = 1 << 10
"""Bytes that a decoded message takes beside those that are stored of it: 850 were measured."""


class LargeAnswers:
    """Makes large answers, and counts their bytes. For one loop."""

    def __init__(self, limit: int, clock: Clock, pools: Pools) -> None:
        """limit: bytes in all; one peer may have half of them. pools: with the sends in hand."""
        self._limit = limit
        self._clock = clock
        self._pools = pools
        self._used = 0
        self._of_peer: dict[str, int] = {}
        self._slice = asyncio.Lock()

    def answer(
        self, request: web.Request, value: Mapping[str, Any], reserved: Reserved
    ) -> web.Response:
        """The answer in the caller's encoding; a large one is encoded while it is written.

        reserved: of this answer, which releases it from now on.
        """
        if not reserved.size:
            return answer(request, value)
        encoding = encoding_of(request)
        body = _Pieces(self, encodings.pieces(value, encoding), encoding.value)
        return _LargeAnswer(reserved, body)

    def bounded(self, request: web.Request, answer: web.StreamResponse) -> web.StreamResponse:
        """The answer, counted until it is taken if it is large and here.

        Raises Overloaded, but only to a call that has changed nothing: a send or a fetch that is
        refused behind its end would seem not to have happened.
        """
        if type(answer) is not web.Response or not isinstance(answer.body, bytes):
            return answer
        size = len(answer.body)
        if size <= LARGE:
            return answer
        peer = peer_of(request)
        if request.method == "GET":
            self.check(peer, size)
        return _LargeAnswer(Reserved(self, peer, size), answer.body, answer.status, answer.headers)

    def reserve(self, request: web.Request, *, size: int, count: int) -> Reserved:
        """Count an answer before it is made, until it is released. Raises Overloaded.

        size: bytes of its ``count`` messages as they are stored. A small one is not counted.
        """
        peer = peer_of(request)
        size = 0 if size <= LARGE and count <= MANY else size + count * MESSAGE_SIZE
        if size:
            self.check(peer, size)
        return Reserved(self, peer, size)

    def check(self, peer: str, size: int) -> None:
        """Raise Overloaded if an answer of so many bytes is too much."""
        for used, limit, whose in (
            (self._of_peer.get(peer, 0), self._limit // 2, f"of {peer}"),
            (self._used, self._limit, "of all clients"),
        ):
            if used and used + size > limit:
                raise Overloaded(
                    f"{used} bytes of answers {whose} are not taken yet, {limit} are allowed, and "
                    f"this one has {size}.",
                    "Read the answers that were asked for, or ask for less at a time.",
                    limit=limit,
                    used=used,
                )

    def count(self, peer: str, size: int) -> None:
        """Note size more bytes, or fewer if it is negative."""
        self._used += size
        self._of_peer[peer] = self._of_peer.get(peer, 0) + size
        if not self._of_peer[peer]:
            del self._of_peer[peer]

    async def take(self, steps: Iterator[T]) -> list[T]:
        """What the iterator gives next, for one slice; empty at its end.

        One slice of all large answers at a time: thirty of them, a slice each in every turn of the
        loop, would make each turn as long as one answer.
        """
        async with self._slice:
            turns = Turns(self._clock, self._pools.behind_sends())
            taken: list[T] = []
            for step in steps:
                taken.append(step)
                if turns.over:
                    break
            if taken:
                await turns.pass_on()
        return taken


class Reserved:
    """Bytes of one answer that count until they are released."""

    def __init__(self, answers: LargeAnswers, peer: str, size: int) -> None:
        self._answers, self._peer, self.size = answers, peer, size
        if size:
            answers.count(peer, size)

    def release(self) -> None:
        """They count no more; nothing if they were released before."""
        size, self.size = self.size, 0
        if size:
            self._answers.count(self._peer, -size)


class _Pieces(Payload):
    """An answer that is encoded while it is written."""

    def __init__(self, answers: LargeAnswers, pieces: Iterator[bytes], kind: str) -> None:
        super().__init__(pieces, content_type=kind)
        self._answers, self._pieces = answers, pieces

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Not possible: it can be made once. Raises TypeError."""
        raise TypeError("an answer that is made while it is written has no text")

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Encode and write, no faster than the client reads."""
        while taken := await self._answers.take(self._pieces):
            await writer.write(b"".join(taken))


class _LargeAnswer(web.Response):
    """Counts until the client has taken nearly all of it, or does not get it."""

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
        """Write the head. A client that is gone gets no body."""
        try:
            return await super().prepare(request)
        except BaseException:
            self._reserved.release()
            raise

    async def write_eof(self, data: bytes = b"") -> None:
        """Write it and wait until the client has taken nearly all of it."""
        writer: Any = self._payload_writer
        try:
            await super().write_eof(data)
            if writer is not None:
                await writer.drain()
        finally:
            self._reserved.release()
