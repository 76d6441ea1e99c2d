"""Bounds of sends: bytes held, requests in flight, time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

import tidemark
from tests.unit.client.fake_broker import FakeBroker
from tidemark import errors
from tidemark.client.batching import Limits
from tidemark.client.turns import Turns

HANGS_S = 60.0
"""Far beyond every time-out below: a call that takes so long has none."""


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker(queues={"orders": [[]]}).serve() as serving:
        yield serving


# -- bytes -----------------------------------------------------------------------------------------


async def test_a_cancelled_send_counts_as_long_as_its_bytes_are_held(broker: FakeBroker) -> None:
    """1. A broker is slow. 2. A web service cancels its sends and goes on. 3. The bytes of the
    cancelled ones piled up behind the request in flight, beyond any bound."""
    broker.hold.clear()
    limits = Limits(waiting_size_max=10_000)
    async with tidemark.connect(broker.url, limits=limits) as mq:
        first = asyncio.create_task(mq.send("orders", bytes(8000)))
        await broker.until(lambda: len(broker.requests) == 1)
        in_flight = mq.producer.unanswered_size
        assert in_flight >= 8000
        first.cancel()
        await asyncio.wait([first])
        assert mq.producer.unanswered_size == in_flight  # its request is still on its way
        for _ in range(50):
            sends = [asyncio.create_task(mq.send("orders", bytes(1000))) for _ in range(20)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert mq.producer.unanswered_size <= limits.waiting_size_max
            for send in sends:
                send.cancel()
            await asyncio.wait(sends)
            assert mq.producer.unanswered_size == in_flight  # those that had not left are dropped
        broker.hold.set()
        assert (await mq.send("orders", bytes(9000))).queue_offset == 1
        assert mq.producer.unanswered_size == 0
    assert [len(request["messages"]) for request in broker.requests] == [1, 1]


async def test_send_many_counts_toward_the_bytes_held(broker: FakeBroker) -> None:
    broker.hold.clear()
    limits = Limits(count_max=10, waiting_size_max=27_000)
    async with tidemark.connect(broker.url, limits=limits) as mq:
        sends = [asyncio.create_task(mq.send_many("orders", [bytes(1000)] * 20)) for _ in range(8)]
        await broker.until(lambda: broker.in_flight == 2)
        assert 0 < mq.producer.unanswered_size <= limits.waiting_size_max
        broker.hold.set()
        assert [len(results) for results in await asyncio.gather(*sends)] == [20] * 8
        assert mq.producer.unanswered_size == 0
    assert broker.in_flight_most == 2


# -- requests --------------------------------------------------------------------------------------


async def test_a_thousand_concurrent_send_many_all_succeed_over_few_connections(
    broker: FakeBroker,
) -> None:
    async with tidemark.connect(broker.url, limits=Limits(requests_max=8)) as mq:
        results = await asyncio.gather(
            *(mq.send_many("orders", [b"%d" % n], queue=0) for n in range(1000))
        )
    assert broker.in_flight_most <= 8
    assert len(results) == 1000
    # In the order of their calls: none was overtaken by more than those in flight with it.
    assert all(abs(each[0].queue_offset - n) <= 16 for n, each in enumerate(results))


async def test_lanes_share_the_bound_of_requests(broker: FakeBroker) -> None:
    broker.hold.clear()
    broker.auto_create = 1
    async with tidemark.connect(broker.url, limits=Limits(requests_max=4)) as mq:
        sends = [asyncio.create_task(mq.send(f"topic-{n}", b"x")) for n in range(50)]
        await broker.until(lambda: broker.in_flight == 4)
        # Heartbeats and commits are not kept from leaving by sends that wait.
        assert [topic.name for topic in await mq.topics()] == ["orders"]
        broker.hold.set()
        await asyncio.gather(*sends)
    assert broker.in_flight_most == 4


# -- time ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("retry_for_s", [0.0, 15.0])
async def test_a_send_to_a_broker_that_says_nothing_ends_by_its_time_out(
    broker: FakeBroker, retry_for_s: float
) -> None:
    broker.hold.clear()
    async with tidemark.connect(broker.url, retry_for_s=retry_for_s) as mq:
        started = time.monotonic()
        with pytest.raises(errors.Unreachable) as raised:
            await mq.send("orders", b"x", timeout_ms=300)
        with pytest.raises(errors.Unreachable):
            await mq.send_many("orders", [b"x"] * 5000, timeout_ms=300)
        assert time.monotonic() - started < HANGS_S / 4
        assert raised.value.facts["sent"] is True
        broker.hold.set()
        assert (await mq.send("orders", b"x")).level == "disk"


async def test_a_send_that_waits_behind_others_ends_by_its_time_out_and_is_not_sent(
    broker: FakeBroker,
) -> None:
    broker.hold.clear()
    limits = Limits(count_max=1, waiting_size_max=2000, requests_max=1)
    async with tidemark.connect(broker.url, limits=limits) as mq:
        ahead = asyncio.create_task(mq.send("orders", bytes(900)))
        await broker.until(lambda: broker.in_flight == 1)
        behind_it, for_room, for_its_turn = await asyncio.gather(
            mq.send("orders", bytes(800), timeout_ms=100),
            mq.send("orders", bytes(1500), timeout_ms=100),
            mq.send_many("orders", [b"x"], timeout_ms=100),
            return_exceptions=True,
        )
        for outcome in (behind_it, for_room, for_its_turn):
            assert isinstance(outcome, errors.Unreachable)
            assert outcome.facts["sent"] is False
        broker.hold.set()
        await ahead
        assert mq.producer.unanswered_size == 0
    assert len(broker.requests) == 1


async def test_all_waiting_sends_end_when_the_broker_is_silent_for_the_clients_time_out(
    broker: FakeBroker,
) -> None:
    broker.hold.clear()
    limits = Limits(count_max=1, waiting_size_max=5000, requests_max=2)
    async with tidemark.connect(broker.url, limits=limits, request_timeout_s=0.5) as mq:
        async with asyncio.timeout(HANGS_S):
            outcomes = await asyncio.gather(
                *(mq.send("orders", bytes(1000)) for _ in range(100)),
                *(mq.send_many("orders", [bytes(1000)]) for _ in range(100)),
                mq.topics(),
                return_exceptions=True,
            )
        topics = outcomes.pop()
        assert isinstance(topics, list)
        assert [topic.name for topic in topics] == ["orders"]
        assert {type(outcome) for outcome in outcomes} == {errors.Unreachable}
        assert len(broker.requests) < 20
        broker.hold.set()


async def test_a_moving_queue_of_sends_does_not_time_out(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer takes two thirds of the time-out, the whole row many times of it."""
    loop = asyncio.get_running_loop()
    real, ahead_s = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: real() + ahead_s)
    limits = Limits(count_max=1, requests_max=1)
    async with tidemark.connect(broker.url, limits=limits, request_timeout_s=300.0) as mq:
        broker.hold.clear()
        row = asyncio.gather(
            *(mq.send("orders", b"x") for _ in range(6)),
            *(mq.send_many("orders", [b"x"]) for _ in range(6)),
        )
        for number in range(1, 13):
            await broker.until(lambda number=number: len(broker.requests) == number)  # type: ignore[misc]
            ahead_s += 200.0
            broker.hold.set()
            await asyncio.sleep(0)
            broker.hold.clear()
        assert len(await row) == 12


async def test_leaving_the_client_ends_too_when_the_broker_says_nothing(
    broker: FakeBroker,
) -> None:
    broker.hold.clear()
    async with asyncio.timeout(HANGS_S):
        async with tidemark.connect(broker.url, request_timeout_s=0.3) as mq:
            sends = [asyncio.create_task(mq.send("orders", b"x")) for _ in range(3)]
            await broker.until(lambda: broker.in_flight == 1)
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
    assert all(isinstance(outcome, errors.Unreachable) for outcome in outcomes)
    broker.hold.set()


def test_an_invalid_time_out_is_refused() -> None:
    for wrong in (0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="request_timeout_s"):
            tidemark.connect("http://localhost:1", request_timeout_s=wrong)


# -- turns -----------------------------------------------------------------------------------------


async def test_turns_come_in_order_and_a_cancelled_one_is_skipped() -> None:
    turns, order = Turns(10), list[str]()

    async def take(name: str, amount: int, ends_in_s: float = 3600.0) -> None:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + ends_in_s
        order.append(name if await turns.take(amount, lambda: ends_at) else f"{name} late")

    assert turns.take_now(8)
    tasks = [
        asyncio.create_task(take(name, amount, ends_in_s))
        for name, amount, ends_in_s in (
            ("large", 9, 3600.0), ("late", 9, 0.0), ("small", 2, 3600.0), ("smaller", 1, 3600.0),
        )
    ]  # fmt: skip
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert order == ["late late"]  # no other send overtakes the large one
    assert not turns.take_now(1)
    tasks[0].cancel()
    await asyncio.wait(tasks[:3])
    assert (order, turns.taken) == (["late late", "small"], 10)
    turns.give(8)
    await asyncio.wait(tasks)
    assert (order, turns.taken) == (["late late", "small", "smaller"], 3)
    empty = asyncio.create_task(turns.empty())
    turns.give(3)
    await empty


async def test_one_taker_alone_always_fits() -> None:
    turns = Turns(10)
    assert turns.take_now(1000)
    assert not turns.take_now(1)
    turns.give(1000)
    assert turns.take_now(1)
