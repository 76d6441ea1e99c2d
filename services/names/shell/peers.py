"""Asks the other instances for their broker groups, once at the start.

An instance that is down, slow or wrong is logged and left out: name services depend on no other.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import aiohttp
import msgspec

from services.names.shell.http_api import ROUTE
from shared.cluster.routes import Route

log = logging.getLogger(__name__)

ANSWER_SIZE_MAX: Final = 16 << 20
_DECODER: Final = msgspec.json.Decoder(Route)


async def groups_of_peers(cluster: str, urls: tuple[str, ...], timeout_s: float) -> set[str]:
    """Return the broker groups that any of the instances names. urls: of the instances."""
    if not urls:
        return set()
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(
        timeout=timeout, headers={"Accept": "application/json"}
    ) as session:
        return set().union(*await asyncio.gather(*(_ask(session, cluster, url) for url in urls)))


async def _ask(session: aiohttp.ClientSession, cluster: str, url: str) -> set[str]:
    try:
        async with session.get(url.rstrip("/") + ROUTE) as response:
            response.raise_for_status()
            body = bytearray()
            async for part in response.content.iter_any():
                body += part
                if len(body) > ANSWER_SIZE_MAX:
                    _left_out(url, f"its answer has more than {ANSWER_SIZE_MAX} bytes")
                    return set()
        route = _DECODER.decode(body)
    except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
        _left_out(url, str(error) or type(error).__name__)
        return set()
    if route.cluster != cluster:
        _left_out(url, f"it belongs to cluster {route.cluster!r}")
        return set()
    return {*(group.group for group in route.groups), *route.missing}


def _left_out(url: str, reason: str) -> None:
    log.warning(
        "another name service did not answer at the start; its broker groups are not awaited",
        extra={"event": "peer-left-out", "url": url, "reason": reason},
    )
