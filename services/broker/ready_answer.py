"""An answer whose bytes are all at hand, written as one piece: the one that every send gets.

aiohttp builds the head of an answer from a map of headers that anybody may still change; for an
answer that nobody changes that is a tenth of a small send's time. Other answers are aiohttp's own.
Step before: ``send_call`` packed the body. After: the client.
"""

from __future__ import annotations

import functools
import time
from email.utils import formatdate
from typing import Final

from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import SERVER_SOFTWARE

_HEAD: Final = (
    "HTTP/1.1 200 OK\r\nContent-Type: {}\r\nContent-Length: {}\r\nDate: {}\r\nServer: {}\r\n\r\n"
)


class ReadyAnswer(web.StreamResponse):
    """200 with a body, over a connection that stays open. Made by ``answer``."""

    def __init__(self, data: bytes) -> None:
        """data: head and body."""
        super().__init__()
        self._data = data

    @property
    def keep_alive(self) -> bool:
        """It was asked for, or this would be an answer of aiohttp's."""
        return True

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Hand everything to the transport, then wait while it holds more than it likes to.

        Raises ConnectionResetError if the client is gone.
        """
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client is gone")
        transport.write(self._data)
        writer = request.writer
        writer.output_size += len(self._data)  # told to whoever would answer once more
        await writer.drain()
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing is left to do."""
        assert not data


def answer(request: web.BaseRequest, body: bytes, content_type: str) -> web.StreamResponse:
    """The answer to a request that was carried out."""
    if request.keep_alive and request.version == HttpVersion11:
        return ReadyAnswer(_head(content_type, len(body), int(time.time())) + body)
    return web.Response(body=body, content_type=content_type)


@functools.lru_cache(maxsize=64)
def _head(content_type: str, size: int, now_s: int) -> bytes:
    """The head of an answer in that second; the answers of one second are of few sizes."""
    return _HEAD.format(
        content_type, size, formatdate(now_s, usegmt=True), SERVER_SOFTWARE
    ).encode()
