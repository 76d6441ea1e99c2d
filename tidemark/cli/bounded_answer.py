"""Reads the body of an HTTP answer up to a limit, because the server may be any program."""

from __future__ import annotations

from typing import Final

import aiohttp

CHUNK_SIZE: Final = 64 << 10


async def read_bounded(response: aiohttp.ClientResponse, size_max: int) -> bytes:
    """Return the first size_max bytes; ``content.read(n)`` may return fewer."""
    data = bytearray()
    async for chunk in response.content.iter_chunked(CHUNK_SIZE):
        data += chunk
        if len(data) >= size_max:
            break
    return bytes(data[:size_max])
