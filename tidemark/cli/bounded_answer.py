"""The body of an HTTP answer, up to a bound: whoever answers may be no node of ours."""

from __future__ import annotations

from typing import Final

import aiohttp

CHUNK_SIZE: Final = 64 << 10


async def read_bounded(response: aiohttp.ClientResponse, size_max: int) -> bytes:
    """The first size_max bytes, or all; ``content.read(n)`` would return what has come so far."""
    data = bytearray()
    async for chunk in response.content.iter_chunked(CHUNK_SIZE):
        data += chunk
        if len(data) >= size_max:
            break
    return bytes(data[:size_max])
