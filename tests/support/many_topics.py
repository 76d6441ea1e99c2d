"""Very many topics and groups on a running node, made by its API: for what grows with their number.

    made = await make_many(node.api_url, topics=10_000)

Each topic gets one group of its own (``group-00000`` reads ``topic-00000``), messages, and a commit
of the group; some hundred requests are on their way at a time, so that they share flushes: ten
thousand topics take about a minute on two cores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, Final, NamedTuple

import aiohttp

AT_ONCE: Final = 128
"""Requests on their way at a time."""
TIMEOUT_S: Final = 120.0


class Plan(NamedTuple):
    """What each topic gets."""

    queues: int = 1
    messages: int = 2
    """Sent to the topic, spread over its queues."""
    committed: int = 1
    """Messages that the group commits in each queue that has this many; the rest is lag."""


def topic_name(number: int) -> str:
    """Name of a topic."""
    return f"topic-{number:05}"


def group_name(number: int) -> str:
    """Name of the group that reads it."""
    return f"group-{number:05}"


async def make_many(api_url: str, topics: int, plan: Plan = Plan()) -> None:  # noqa: B008
    """Make topics 0 to ``topics`` − 1 with their groups. AssertionError if a request fails."""
    connector = aiohttp.TCPConnector(limit=AT_ONCE)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(api_url, connector=connector, timeout=timeout) as session:
        await _all(_make(session, number, plan) for number in range(topics))


async def _make(session: aiohttp.ClientSession, number: int, plan: Plan) -> None:
    topic, group = topic_name(number), group_name(number)
    await _call(session, "PUT", f"/v1/topics/{topic}", {"queues": plan.queues})
    if plan.messages:
        messages = [
            {"body_text": f"{topic} {place}", "queue": place % plan.queues}
            for place in range(plan.messages)
        ]
        await _call(session, "POST", f"/v1/topics/{topic}/messages", {"messages": messages})
    await _call(session, "PUT", f"/v1/groups/{group}", {})
    held = [
        sum(place % plan.queues == queue for place in range(plan.messages))
        for queue in range(plan.queues)
    ]
    offsets = [
        {"topic": topic, "queue": queue, "offset": min(plan.committed, held[queue])}
        for queue in range(plan.queues)
    ]
    await _commit(session, group, offsets)


async def _commit(
    session: aiohttp.ClientSession, group: str, offsets: list[dict[str, Any]]
) -> None:
    """Commit; a commit beyond what is dispatched so far is refused, and repeated."""
    while True:
        status, answer = await _ask(
            session, "POST", f"/v1/groups/{group}/offsets", {"offsets": offsets}
        )
        if status == 200:
            return
        assert answer["code"] == "offset-beyond-end", answer
        await asyncio.sleep(0.02)


async def _all(makings: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all of them, ``AT_ONCE`` at a time."""
    waiting = iter(makings)

    async def worker() -> None:
        for making in waiting:
            await making

    async with asyncio.TaskGroup() as workers:
        for _ in range(AT_ONCE):
            workers.create_task(worker())


async def _call(session: aiohttp.ClientSession, method: str, path: str, body: object) -> None:
    status, answer = await _ask(session, method, path, body)
    assert status == 200, (path, answer)


async def _ask(
    session: aiohttp.ClientSession, method: str, path: str, body: object
) -> tuple[int, dict[str, Any]]:
    async with session.request(method, path, json=body) as answered:
        return answered.status, await answered.json()
