"""Zero-copy answers: records are sent directly from the memory mapping of the log.

Except for small answers, no bytes are copied between the page cache and the socket: the ranges are
passed to the transport as views, and uvloop passes them to the kernel in one ``writev``. Bytes that
the socket does not accept at once are kept as views, so a slow client uses no memory except the
mapping. ``pull`` chooses the ranges before this step (read path, step 2); after it the client
receives them.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import StreamWriter
from aiohttp.payload import Payload

from services.broker.api.encodings import RECORDS
from shared.files.pull import PullResult

PIECE_MIN: Final = 2048
"""Mean size [bytes] of a range below which joining all ranges costs less than sending each apart.
Measured with uvloop, per range, joined and apart: 360 B 0.28 and 0.44 µs, 2 KiB 0.74 and 0.63 µs,
64 KiB 17 and 13 µs. One ``write`` per range costs 5 µs at any size."""
COPIED_MAX: Final = 65_536
"""Answers up to this size [bytes] are copied and sent together with their headers: the copy costs
less than a second system call, and the client is woken only once."""


class Stretches(Payload):
    """Memory ranges that are sent one after another; held until the kernel has taken them."""

    def __init__(self, stretches: list[memoryview], size: int) -> None:
        """size: total bytes of all stretches."""
        super().__init__(stretches, content_type=RECORDS)
        self._stretches = stretches
        self._bytes = size

    @property
    def size(self) -> int:
        """Number of bytes sent: the answer's Content-Length."""
        return self._bytes

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Raise TypeError, because records are not text."""
        raise TypeError("commit log records are not text")

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Pass all ranges to the transport, then wait while its buffer is over the high-water mark.

        Raises ConnectionResetError if the client has disconnected.
        """
        if self._bytes <= COPIED_MAX:
            await writer.write(b"".join(self._stretches))
            return
        assert isinstance(writer, StreamWriter)
        writer.send_headers()
        transport = writer.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client is gone")
        if self._bytes < PIECE_MIN * len(self._stretches):
            transport.write(b"".join(self._stretches))
        else:
            transport.writelines(self._stretches)
        writer.output_size += self._bytes
        await writer.drain()


def records_answer(result: PullResult) -> web.Response:
    """Return a response with the stored records of a pull; all other results are in headers."""
    headers = {
        "Content-Type": RECORDS,
        "Tidemark-Status": result.status.value,
        "Tidemark-Next-Offset": str(result.next_offset),
        "Tidemark-Min-Offset": str(result.min_offset),
        "Tidemark-Max-Offset": str(result.max_offset),
        "Tidemark-Count": str(result.message_count),
    }
    if result.poll_after_ms is not None:
        headers["Tidemark-Poll-After-Ms"] = str(result.poll_after_ms)
    return web.Response(
        body=Stretches(result.stretches, result.bytes_total) if result.stretches else None,
        headers=headers,
    )
