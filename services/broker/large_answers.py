"""Large answers that clients have not taken yet: their bytes are bounded, in all and for one peer.

A client that asks and does not read keeps each answer in memory until the server gives it up
(``write_timeout_s``). Raw records are no matter of this: they leave from the log's mapping. Before:
``http_api`` has an answer. After: aiohttp writes it.
"""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

from services.broker.http_requests import peer_of
from tidemark.errors import Overloaded

LARGE: Final = 1 << 16
"""Bytes: smaller answers are not counted; a connection has one of them at a time."""


class LargeAnswers:
    """Counts the bytes of large answers. For one loop."""

    def __init__(self, limit: int) -> None:
        """limit: bytes in all; one peer may have half of them."""
        self._limit = limit
        self._used = 0
        self._of_peer: dict[str, int] = {}

    def bounded(self, request: web.Request, answer: web.StreamResponse) -> web.StreamResponse:
        """The answer, counted until it is taken if it is large. Raises Overloaded."""
        if type(answer) is not web.Response or not isinstance(answer.body, bytes):
            return answer
        size = len(answer.body)
        if size <= LARGE:
            return answer
        self.check(request, size)
        return _LargeAnswer(self, peer_of(request), answer, answer.body)

    def check(self, request: web.Request, size: int) -> None:
        """Raise Overloaded if an answer of so many bytes is too much. To be asked before one is
        made, too: that takes the loop for as long as the answer is large."""
        peer = peer_of(request)
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


class _LargeAnswer(web.Response):
    """Counts while it is being written, and is written when the client has taken nearly all."""

    def __init__(self, answers: LargeAnswers, peer: str, answer: web.Response, body: bytes) -> None:
        super().__init__(body=body, status=answer.status, headers=answer.headers)
        self._answers, self._peer, self._size = answers, peer, len(body)

    async def write_eof(self, data: bytes = b"") -> None:
        """Write it and wait until the client has taken nearly all of it."""
        writer: Any = self._payload_writer
        self._answers.count(self._peer, self._size)
        try:
            await super().write_eof(data)
            if writer is not None:
                await writer.drain()
        finally:
            self._answers.count(self._peer, -self._size)
