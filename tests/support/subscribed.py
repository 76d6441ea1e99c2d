"""A fake broker with one topic, a client of it, and bodies for its subscriptions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

import tidemark
from tests.unit.client.fake_broker import Fault, error
from tests.unit.client.group_broker import GroupBroker
from tidemark import Message
from tidemark.client.holdings import Hold
from tidemark.client.subscription import Subscription

WITHIN_S = 60.0


@pytest.fixture
async def broker() -> AsyncIterator[GroupBroker]:
    broker = GroupBroker()
    broker.queues["orders"] = [[], []]
    async with broker.serve(), asyncio.timeout(WITHIN_S):
        yield broker


@pytest.fixture
async def mq(broker: GroupBroker) -> AsyncIterator[tidemark.Client]:
    async with tidemark.connect(broker.url) as client:
        yield client


def refusal(status: int, code: str, **more: Any) -> Fault:
    """A fault for ``GroupBroker.group_faults``: the call is answered with this error."""

    async def refuse(_request: web.Request) -> web.Response:
        return error(status, code, **more)

    return refuse


async def take(messages: Subscription, count: int) -> list[bytes]:
    """Handle that many messages; the last is in hand when this returns."""
    taken: list[bytes] = []
    async for message in messages:
        taken.append(message.body)
        if len(taken) == count:
            break
    return taken


async def handle_all(subscription: Subscription, handle: Callable[[Message], None]) -> None:
    """The loop of a program whose handling may fail."""
    async with subscription as messages:
        async for message in messages:
            handle(message)


def fails_at(body: bytes) -> Callable[[Message], None]:
    """Handling that fails with ZeroDivisionError at one message."""

    def handle(message: Message) -> None:
        if message.body == body:
            raise ZeroDivisionError

    return handle


async def until_hold(messages: Subscription, queue: tuple[str, int], hold: Hold | None) -> None:
    """Wait until the member has a queue in this state; None: not at all."""
    (engine,) = messages._engine.engines
    member = engine.member
    while (None if (held := member.holdings.get(queue)) is None else held.hold) is not hold:
        await member.pulse.wait()
