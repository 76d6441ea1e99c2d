"""A member or reader retries after the given time if the broker could not hold its call."""

from __future__ import annotations

import asyncio
import gc
import struct
from collections.abc import AsyncIterator

import msgpack
import pytest
from aiohttp import web

import tidemark
from tests.unit.client.group_broker import GroupBroker
from tidemark import errors
from tidemark.client.connection import JOINS_MAX
from tidemark.client.fetching import Fetching

HOUR_MS = 3_600_000


@pytest.fixture
async def broker() -> AsyncIterator[GroupBroker]:
    async with GroupBroker().serve() as serving:
        serving.put("orders", 0)
        yield serving


class Early:
    """Answers fetches at once, empty, and counts them."""

    def __init__(self, broker: GroupBroker, poll_after_ms: int | None) -> None:
        self.broker, self.poll_after_ms, self.count = broker, poll_after_ms, 0

    async def __call__(self, _request: web.Request) -> web.StreamResponse:
        self.count += 1
        said: dict[str, object] = {"generation": self.broker.generation, "queues": []}
        if self.poll_after_ms is not None:
            said["poll_after_ms"] = self.poll_after_ms
        packed = msgpack.packb(said)
        return web.Response(body=struct.pack(">I", len(packed)) + packed)

    def stand_in(self, times: int) -> None:
        self.broker.group_faults["fetch"] = [self] * times


async def test_a_member_that_is_not_held_fetches_again_after_the_given_time(
    broker: GroupBroker,
) -> None:
    early = Early(broker, HOUR_MS)
    early.stand_in(1000)
    async with tidemark.connect(broker.url) as mq, mq.subscribe("orders", group="g") as messages:
        await broker.until(lambda: early.count == 1)
        for _ in range(20):  # neither heartbeats nor commits make it ask sooner
            messages._engine.engines[0].member.pulse.ring()
            await asyncio.sleep(0.005)
        assert early.count == 1
        # Another generation does: there may be other queues.
        broker.group_faults.clear()
        broker.put("orders", 0, b"1")
        broker.assign(messages.member, [("orders", 0)])
        messages._engine.engines[0].member.hurry()
        async with asyncio.timeout(60):
            assert (await anext(aiter(messages))).body == b"1"


async def test_a_short_time_to_wait_brings_the_message_after_it(broker: GroupBroker) -> None:
    early = Early(broker, 1)
    early.stand_in(20)
    async with tidemark.connect(broker.url) as mq, mq.subscribe("orders", group="g") as messages:
        await broker.until(lambda: early.count == 20)
        broker.put("orders", 0, b"1")
        assert (await anext(aiter(messages))).body == b"1"


async def test_a_member_that_gets_no_time_asks_less_and_less_often(
    broker: GroupBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[int] = []

    def delay_s(attempt: int, **_more: object) -> float:
        pauses.append(attempt)
        return 0.001

    monkeypatch.setattr("tidemark.client.fetching.delay_s", delay_s)
    early = Early(broker, None)
    early.stand_in(7)
    async with tidemark.connect(broker.url) as mq, mq.subscribe("orders", group="g") as messages:
        await broker.until(lambda: len(broker.fetches) == 1)
        broker.put("orders", 0, b"1")
        assert (await anext(aiter(messages))).body == b"1"
    assert pauses == list(range(1, 8))


async def test_a_reader_that_is_not_held_pulls_again_after_the_given_time(
    broker: GroupBroker,
) -> None:
    count = 0

    async def early(_request: web.Request) -> web.StreamResponse:
        nonlocal count
        count += 1
        names = ("Next-Offset", "Min-Offset", "Max-Offset")
        headers = {f"Tidemark-{name}": "0" for name in names}
        return web.Response(headers={**headers, "Tidemark-Poll-After-Ms": str(HOUR_MS)})

    broker.faults = [early] * 1000
    async with tidemark.connect(broker.url) as mq:
        pulled = await mq.pull("orders", 0, 0, wait_ms=100)
        assert pulled.poll_after_ms == HOUR_MS
        reading = mq.read("orders", 0, follow=True)
        first = asyncio.ensure_future(anext(reading))
        await broker.until(lambda: count == 2)
        await asyncio.wait([first], timeout=0.1)
        assert count == 2
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await reading.aclose()


async def test_few_members_of_a_client_join_at_once_and_heartbeats_pass_them(
    broker: GroupBroker,
) -> None:
    at_once = most = 0
    may_join = asyncio.Event()
    heartbeat = broker.member

    async def slow(request: web.Request) -> web.StreamResponse:
        nonlocal at_once, most
        body = msgpack.unpackb(await request.read())
        if request.method == "POST" and "generation" not in body:
            at_once += 1
            most = max(most, at_once)
            broker.came.set()
            await may_join.wait()
            at_once -= 1
        return await heartbeat(request)

    broker.member = slow  # type: ignore[method-assign]
    async with GroupBroker.serve(broker) as serving, tidemark.connect(serving.url) as mq:
        may_join.set()
        async with mq.subscribe("orders", group="g", member="first") as first:
            may_join.clear()
            most = 0
            others = [
                mq.subscribe("orders", group="g", member=f"m{n}") for n in range(2 * JOINS_MAX)
            ]
            joining = [asyncio.create_task(other.__aenter__()) for other in others]
            await broker.until(lambda: at_once == JOINS_MAX)
            before = len(broker.heartbeats)
            first._engine.engines[0].member.hurry()
            await broker.until(lambda: len(broker.heartbeats) > before)
            may_join.set()
            await asyncio.gather(*joining)
            assert most == JOINS_MAX
            for other in others:
                await other.__aexit__(None, None, None)


async def test_joins_that_wait_end_when_no_join_is_answered(broker: GroupBroker) -> None:
    broker.answers_heartbeats.clear()
    async with tidemark.connect(broker.url, request_timeout_s=0.3) as mq:
        others = [mq.subscribe("orders", group="g", member=f"m{n}") for n in range(100)]
        async with asyncio.timeout(60):
            outcomes = await asyncio.gather(
                *(other.__aenter__() for other in others), return_exceptions=True
            )
    assert {getattr(outcome, "code", None) for outcome in outcomes} == {"unreachable"}
    broker.answers_heartbeats.set()


async def test_a_fetch_that_fails_while_its_member_is_cancelled_is_not_reported() -> None:
    # 1,900 members of one client ended together: asyncio printed a traceback ("exception was never
    # retrieved") for each whose fetch had failed in the same turn of the loop.
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    fetching = object.__new__(Fetching)
    members: list[asyncio.Task[None]] = []

    async def fails() -> None:
        members[0].cancel()
        raise errors.UnknownMember("gone")

    members.append(asyncio.create_task(fetching._interruptible(fails())))
    await asyncio.wait(members)
    assert members.pop().cancelled()
    gc.collect()
    assert not reported
