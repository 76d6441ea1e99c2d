"""A whole cluster in one terminal: whatever is killed, sends and consumers go on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

import tidemark as sdk
from tests.support.command import tidemark
from tests.support.dev import Dev
from tidemark.testing.ports import free_ports

GROUPS = ("g0", "g1", "g2")
SERVICES = ("broker", "reput", "ha")
PROCESSES = len(GROUPS) * 2 * len(SERVICES) + 2
PATIENCE_S = 90.0
KEYS = [f"customer-{n}" for n in range(12)]


class Load:
    """Sends with and without keys, and one member of a consumer group."""

    def __init__(self, mq: sdk.Client) -> None:
        self._mq = mq
        self.acked: list[tuple[float, bytes]] = []
        self.seen: set[bytes] = set()

    async def send(self, keys: Sequence[str]) -> None:
        """Send one message after another. An error ends it."""
        number = 0
        while True:
            key = keys[number % len(keys)] if keys else None
            body = b"%d of %s" % (number, "-".join(keys).encode())
            await self._mq.send("orders", body, sharding_key=key, timeout_ms=60_000)
            self.acked.append((time.monotonic(), body))
            number += 1
            await asyncio.sleep(0.005)

    async def consume(self) -> None:
        async with self._mq.subscribe("orders", group="billing", start="first") as messages:
            async for message in messages:
                self.seen.add(message.body)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[list[asyncio.Task[None]]]:
        tasks = [
            asyncio.create_task(self.send([])),
            *(asyncio.create_task(self.send([key])) for key in KEYS),
            asyncio.create_task(self.consume()),
        ]
        try:
            yield tasks
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def since(self, began: float) -> dict[bytes, int]:
        """Number of acknowledged messages of each sender since a time."""
        found: dict[bytes, int] = {}
        for at, body in self.acked:
            sender = body.partition(b" of ")[2]
            found[sender] = found.get(sender, 0) + (at > began)
        return found

    def longest_gap_s(self, began: float) -> float:
        """Longest time in which no message without key was acknowledged."""
        times = [began, *(at for at, body in self.acked if at > began and body.endswith(b" of "))]
        return max(later - earlier for earlier, later in pairwise(times))


@pytest.fixture
async def dev(tmp_path: Path) -> AsyncIterator[Dev]:
    made = Dev(tmp_path / "dev", free_ports(130)[0], "--groups", "3", "--names", "2", nodes=2)
    try:
        await asyncio.to_thread(made.wait_for, "Stop with Ctrl-C")
        yield made
    finally:
        await asyncio.to_thread(made.close)


async def test_sends_and_consumers_go_on_whatever_is_killed(dev: Dev) -> None:
    names = re.findall(r"(http://\S+)/v1/route  metrics", dev.said)
    assert (len(names), len(dev.children)) == (2, PROCESSES)
    async with sdk.connect(names) as mq:
        await first_message(mq, names)
        load, gaps = Load(mq), dict[str, float]()
        async with load.running() as tasks:
            await all_sent(load, tasks, time.monotonic())
            masters = {each.broker_group: each.master for each in (await mq.routes()).groups}
            at_g0, at_g1 = (
                [dev.child(service, f"{group}/{masters[group]}") for service in SERVICES]
                for group in ("g0", "g1")
            )
            steps: dict[str, Sequence[int | None]] = {
                **{f"the master's {SERVICES[n]}": [pid] for n, pid in enumerate(at_g0)},
                "a master's node": at_g1,
                "a name service": name_services(dev)[:1],
                "all name services": (),
            }
            for what, killed in steps.items():
                began = time.monotonic()
                for pid in killed or name_services(dev):
                    assert pid is not None
                    os.kill(pid, signal.SIGKILL)
                await all_sent(load, tasks, began)
                gaps[what] = load.longest_gap_s(began)
                async with asyncio.timeout(PATIENCE_S):
                    while len(dev.children) < PROCESSES:  # noqa: ASYNC110 - dev restarts them
                        await asyncio.sleep(0.1)
            for sending in tasks[:-1]:
                sending.cancel()
            await asyncio.wait(tasks[:-1])
            acked = {body for _, body in load.acked}
            async with asyncio.timeout(PATIENCE_S):
                while not load.seen >= acked:  # noqa: ASYNC110 - what is waited for has no event
                    await asyncio.sleep(0.1)
        shown = {what: round(gap_s, 2) for what, gap_s in gaps.items()}
        print(f"\n{len(acked)} sent and consumed; longest time without an ack [s]: {shown}")
        # Two of three broker groups serve all the time.
        assert max(gaps.values()) < 10.0


def name_services(dev: Dev) -> list[int]:
    return [pid for pid, text in dev.children.items() if "services.names " in text]


async def first_message(mq: sdk.Client, names: Sequence[str]) -> None:
    """The first steps of the README, and what shows groups and lag."""
    async with asyncio.timeout(PATIENCE_S):
        while not (await mq.routes()).complete:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.1)
    await mq.create_topic("orders", queues=2)
    await mq.send("orders", b"hello", tags="new", keys=["order-1"])
    async with mq.subscribe("orders", group="billing", start="first") as messages:
        first = await messages.getone(PATIENCE_S)
        assert first is not None
        await messages.ack(first)
    (found,) = await mq.messages_by_key("orders", "order-1")
    assert found.body == b"hello"
    url = ("-o", "json", "--url", ",".join(names))
    listed = json.loads(await asyncio.to_thread(tidemark, "cluster", "groups", *url))
    assert [each["broker_group"] for each in listed] == list(GROUPS)
    lag = json.loads(await asyncio.to_thread(tidemark, "lag", "billing", "--topic", "orders", *url))
    assert {row["queue"] for row in lag} == {f"{group}/{n}" for group in GROUPS for n in range(2)}
    assert {row["messages"] for row in lag} == {0}


async def all_sent(load: Load, tasks: Sequence[asyncio.Task[None]], began: float) -> None:
    """Wait until every sender has sent since then, and the consumer has it. An error of a task is
    raised."""

    def is_over() -> bool:
        counts = load.since(began)
        acked = [body for at, body in load.acked if at > began]
        return (
            len(counts) == len(KEYS) + 1
            and min(counts.values()) >= 3
            and load.seen.issuperset(acked[: len(acked) // 2])
        )

    async with asyncio.timeout(PATIENCE_S):
        while not is_over():
            for task in tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.1)
