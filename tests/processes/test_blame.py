"""Whether a message waits for delivery or for processing, with real members that run until their
prefetch is full.

1. A handler hangs; 2. its member fetches up to ``max_in_flight`` messages and no more; 3. all later
messages stay in the broker, where they were once shown as waiting for delivery.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tidemark
from tests.processes.test_broker_figures import FIXED, QUEUES, Shown, scrape
from tests.support.node import Node
from tests.support.raw_member import RawMember

PAIR = " billing orders"
IN_FLIGHT = 10
SENT = 200
WITHIN_S = 120.0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path, store=FIXED) as node:
        node.start()
        node.wait_ready()
        assert node.request_json("PUT", "/v1/topics/orders", {"queues": QUEUES})[0] == 200
        yield node


def delays(shown: Shown) -> tuple[float, float] | None:
    """Seconds of delivery and of processing; None before the first sample."""
    names = ("awaiting_delivery", "oldest_uncommitted")
    awaiting, uncommitted = (shown.get(f"group_{name}_timestamp_seconds{PAIR}") for name in names)
    dispatched = shown.get("log_dispatched_message_timestamp_seconds")
    if awaiting is None or uncommitted is None or dispatched is None:
        return None
    assert uncommitted <= awaiting <= dispatched
    return dispatched - awaiting, awaiting - uncommitted


async def until(node: Node, holds: Callable[[Shown], bool], what: str) -> Shown:
    """Return the first scrape for which a condition holds; the client runs on meanwhile."""
    shown: Shown = {}
    try:
        async with asyncio.timeout(WITHIN_S):
            while True:
                shown = await asyncio.to_thread(scrape, node)
                if holds(shown):
                    return shown
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise AssertionError(f"{what}: {delays(shown)}") from None


async def send(mq: tidemark.Client, count: int = SENT) -> None:
    """Send this many messages, and one that is stored a second later: delays count from the
    newest."""
    first, last = 0, 0
    for number in range(count):
        last = (await mq.send("orders", b"x", queue=number % QUEUES)).store_timestamp_ms
        first = first or last
    while last - first <= 1000:
        await asyncio.sleep(0.2)
        last = (await mq.send("orders", b"x", queue=0)).store_timestamp_ms


def waits_in_the_broker(shown: Shown) -> bool:
    """More messages are unread than members have."""
    return shown[f"group_lag_messages{PAIR} main"] > shown[f"group_inflight_messages{PAIR}"] > 0


def is_processing(shown: Shown) -> bool:
    found = delays(shown)
    if found is None or not waits_in_the_broker(shown):
        return False
    delivery, processing = found
    return delivery == 0 and processing > 1


@pytest.mark.parametrize("hung_queues", [range(QUEUES), range(1)], ids=["all queues", "one queue"])
async def test_a_hung_handler_is_processing_however_much_waits_in_the_broker(
    node: Node, hung_queues: range
) -> None:
    never = asyncio.Event()

    async def handle(message: tidemark.Message) -> None:
        if message.queue in hung_queues:
            await never.wait()

    async with tidemark.connect(node.api_url) as mq:
        subscription = mq.subscribe(
            "orders", group="billing", start="first", max_in_flight=IN_FLIGHT
        )
        async with subscription:
            running = asyncio.create_task(subscription.run(handle, concurrency=IN_FLIGHT))
            await send(mq)
            shown = await until(node, is_processing, "processing")
            undelivered = shown[f"group_oldest_undelivered_timestamp_seconds{PAIR}"]
            assert undelivered < shown["log_dispatched_message_timestamp_seconds"]
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_a_slow_handler_with_a_backlog_is_processing(node: Node) -> None:
    async def handle(message: tidemark.Message) -> None:
        await asyncio.sleep(0.1)

    async with tidemark.connect(node.api_url) as mq:
        await send(mq, 1000)
        subscription = mq.subscribe(
            "orders", group="billing", start="first", max_in_flight=IN_FLIGHT
        )
        async with subscription:
            running = asyncio.create_task(subscription.run(handle))
            await until(node, is_processing, "processing")
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_a_member_that_does_not_fetch_leaves_all_to_delivery(node: Node) -> None:
    async with tidemark.connect(node.api_url) as mq:
        member = RawMember(node, "billing")
        await asyncio.to_thread(member.join)
        await send(mq)

    def is_delivery(shown: Shown) -> bool:
        found = delays(shown)
        return found is not None and found[0] > 1 and found[1] == 0

    await until(node, is_delivery, "delivery")
