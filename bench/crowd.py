"""Creates very many topics and groups on a running node, each with messages and a commit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import aiohttp

from bench.servers import Node

AT_ONCE: Final = 64
TIMEOUT_S: Final = 120.0
MESSAGES: Final = 2
COMMITTED: Final = 1
"""Committed offset of each group in its topic, so that one message is lag."""


def topic_name(number: int) -> str:
    return f"crowd-{number:05d}"


def make(node: Node, count: int) -> None:
    """Create ``count`` topics, each with a group that lags by one message. Raises OSError."""
    asyncio.run(_make(node, count))


async def _make(node: Node, count: int) -> None:
    numbers = iter(range(count))
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=AT_ONCE)
    async with (
        aiohttp.ClientSession(node.url, connector=connector, timeout=timeout) as session,
        asyncio.TaskGroup() as makers,
    ):
        for _ in range(AT_ONCE):
            makers.create_task(_make_each(session, numbers))


async def _make_each(session: aiohttp.ClientSession, numbers: Iterator[int]) -> None:
    for number in numbers:
        topic, group = topic_name(number), f"readers-of-{number:05d}"
        messages = [{"body_text": "x", "queue": 0}] * MESSAGES
        await _ask(session, "PUT", f"/v1/topics/{topic}", {"queues": 1})
        await _ask(session, "POST", f"/v1/topics/{topic}/messages", {"messages": messages})
        await _ask(session, "PUT", f"/v1/groups/{group}", {})
        offsets = [{"topic": topic, "queue": 0, "offset": COMMITTED}]
        while not await _ask(  # noqa: ASYNC110 - dispatch has no event
            session,
            "POST",
            f"/v1/groups/{group}/offsets",
            {"offsets": offsets},
            "offset-beyond-end",
        ):
            await asyncio.sleep(0.02)  # not dispatched yet


async def _ask(
    session: aiohttp.ClientSession, method: str, path: str, body: object, allowed: str = ""
) -> bool:
    """Make a request; return False if it was rejected with the allowed code."""
    async with session.request(method, path, json=body) as answered:
        if answered.status == 200:
            return True
        answer: dict[str, Any] = await answered.json()
        if answer.get("code") != allowed:
            raise OSError(f"{method} {path}: {answer}")
        return False
