"""Collects data of running nodes and name services: views, routes, readiness, metrics.

A node that does not answer is recorded, because that is information as well.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

from tidemark.cli.bounded_answer import read_bounded
from tidemark.cli.support import redact
from tidemark.cli.support.bundle import FILE_SIZE_MAX, Bundle
from tidemark.client.transport import reason_of

CALL_S: Final = 4.0
VIEW: Final = "/v1/cluster"
ROUTE: Final = "/v1/route"
ADMIN_PATHS: Final = {"/ready": "ready.json", "/live": "live.json", "/metrics": "metrics.txt"}


def nodes(
    bundle: Bundle, urls: Sequence[str], routed: Sequence[str], admins: Sequence[str]
) -> None:
    """Query nodes by their API addresses, and processes by their admin addresses.

    routed: name services and brokers that are asked for their routes alone.
    """
    asyncio.run(_nodes(bundle, urls, routed, admins))


async def _nodes(
    bundle: Bundle, urls: Sequence[str], routed: Sequence[str], admins: Sequence[str]
) -> None:
    timeout = aiohttp.ClientTimeout(total=CALL_S)
    headers = {"Accept": "application/json"}
    async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
        given = await asyncio.gather(*(_view(session, bundle, url, VIEW) for url in urls))
        reported = [node for view in given for node in _rows(view)]
        others = {str(node["api"]).rstrip("/") for node in reported if node.get("api")} - set(urls)
        await asyncio.gather(*(_view(session, bundle, url, VIEW) for url in sorted(others)))
        await _routes(session, bundle, {*urls, *others, *routed})
        ports = {
            *admins,
            *(str(node["admin"]).rstrip("/") for node in reported if node.get("admin")),
        }
        await asyncio.gather(
            *(_admin(session, bundle, url, path) for url in sorted(ports) for path in ADMIN_PATHS)
        )


async def _routes(session: aiohttp.ClientSession, bundle: Bundle, urls: Collection[str]) -> None:
    """Add the routes of nodes and name services, and of the name services that these list."""
    found = await asyncio.gather(*(_view(session, bundle, url, ROUTE) for url in sorted(urls)))
    lists = [route.get("names") for route in found if isinstance(route, dict)]
    listed = {str(url).rstrip("/") for each in lists if isinstance(each, list) for url in each}
    others = sorted(listed.difference(urls))
    await asyncio.gather(*(_view(session, bundle, url, ROUTE) for url in others))


def _rows(view: object) -> list[dict[str, Any]]:
    rows = view.get("nodes") if isinstance(view, dict) else None
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


async def _view(session: aiohttp.ClientSession, bundle: Bundle, url: str, path: str) -> object:
    """Add and return what an API address answers: a view of the group, or the routes."""
    name = f"nodes/{_name(url)}/{path.rpartition('/')[2]}.json"
    body = await _get(session, bundle, f"{url}{path}", name)
    if body is None:
        return None
    try:
        value: object = json.loads(body)
    except ValueError:
        bundle.leave_out(name, f"{url} answers something that is not JSON")
        return None
    bundle.add_json(name, redact.settings(value))
    return value


async def _admin(session: aiohttp.ClientSession, bundle: Bundle, url: str, path: str) -> None:
    name = f"nodes/{_name(url)}/{ADMIN_PATHS[path]}"
    body = await _get(session, bundle, f"{url}{path}", name)
    if body is not None:
        bundle.add_text(name, redact.text(body.decode("utf-8", "replace")))


async def _get(session: aiohttp.ClientSession, bundle: Bundle, url: str, name: str) -> bytes | None:
    """Return the body for any status, because /ready answers 503 with reasons; None without a
    body."""
    try:
        async with session.get(url) as response:
            return await read_bounded(response, FILE_SIZE_MAX)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        reason = (
            f"no answer within {CALL_S:.0f} s"
            if isinstance(error, TimeoutError)
            else reason_of(error)
        )
        bundle.leave_out(name, redact.text(f"{url}: {reason}"))
        return None


def _name(url: str) -> str:
    """Build a directory name from an address: host and port."""
    parts = urlsplit(url)
    return f"{parts.hostname or 'unknown'}_{parts.port or 80}".replace(":", "-")
