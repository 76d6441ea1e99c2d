"""Sends of the client to a running node: many at once, a node that is stopped, bad messages."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tidemark
from tidemark import errors
from tidemark.formats.delay import DELAY_MS_MAX
from tidemark.testing import LocalNode
from tidemark.testing.waiting import wait_until

CALLS = 4096
TIMEOUT_MS = 500
HANGS_S = 25.0
"""Below every time-out that a call had before it had its own, far above those requested here."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNode]:
    with LocalNode(tmp_path_factory.mktemp("node")) as running:
        yield running


def sockets() -> int:
    """Sockets of this process."""
    count = 0
    for each in Path("/proc/self/fd").iterdir():
        try:
            count += each.readlink().name.startswith("socket:")
        except FileNotFoundError:  # the directory's own descriptor
            continue
    return count


async def stored_in(mq: tidemark.Client, topic: str, count: int) -> int:
    """Messages in a topic's queues, once there are that many: the queues end at the dispatched
    one."""
    async with asyncio.timeout(60):
        while True:
            found = sum(each.max_offset for each in (await mq.topic(topic)).ranges)
            if found >= count:
                return found
            await asyncio.sleep(0.02)


async def test_4096_concurrent_send_many_all_succeed_over_a_hundred_connections(
    node: LocalNode,
) -> None:
    async with tidemark.connect(node.url) as mq:
        await mq.create_topic("many", queues=4)
        before, most = sockets(), 0
        calls = asyncio.gather(
            *(mq.send_many("many", [b"%d" % n, b"x"], ack="memory") for n in range(CALLS))
        )
        while not calls.done():
            most = max(most, sockets() - before)
            await asyncio.wait([calls], timeout=0.05)
        results = calls.result()
        stored = await stored_in(mq, "many", 2 * CALLS)
    assert [len(each) for each in results] == [2] * CALLS
    assert stored == 2 * CALLS
    assert most <= 110


@contextmanager
def stopped(node: LocalNode) -> Iterator[None]:
    """The broker answers nothing, and its sockets take connections."""
    pid = node.pid("broker")
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_every_call_to_a_stopped_broker_ends_by_its_time_out(node: LocalNode) -> None:
    async with tidemark.connect(node.url) as mq:
        await mq.create_topic("stopped", queues=1)
        await mq.groups.create("stopped")
    async with tidemark.connect(node.url, request_timeout_s=1.0) as mq:
        with stopped(node):
            for call in (
                mq.send("stopped", b"x", timeout_ms=TIMEOUT_MS),
                mq.send("stopped", b"x"),
                mq.send_many("stopped", [b"x"] * 3000, timeout_ms=TIMEOUT_MS),
                mq.pull("stopped", 0, 0),
                mq.pull("stopped", 0, 0, wait_ms=100),
                mq.topics(),
                mq.groups.get("stopped"),
                mq.groups.offsets("stopped"),
                mq.delayed.list(),
                mq.dead_letters.list("stopped"),
                mq.messages_by_key("stopped", "k"),
            ):
                started = time.monotonic()
                with pytest.raises(errors.Unreachable):
                    await call
                assert time.monotonic() - started < HANGS_S
        async with asyncio.timeout(60):  # a busy machine may be slower than the time-out
            while True:
                with contextlib.suppress(errors.Unreachable):
                    assert (await mq.send("stopped", b"after")).level == "disk"
                    break


def test_every_call_of_the_sync_facade_to_a_stopped_broker_ends_by_its_time_out(
    node: LocalNode,
) -> None:
    with tidemark.connect_sync(node.url) as mq:
        mq.create_topic("stopped", queues=1)
    with tidemark.connect_sync(node.url, request_timeout_s=1.0) as mq:
        calls: list[Callable[[], object]] = [
            lambda: mq.send("stopped", b"x", timeout_ms=TIMEOUT_MS),
            lambda: mq.send_many("stopped", [b"x"]),
            lambda: next(iter(mq.read("stopped", 0))),
            mq.groups.list,
        ]
        with stopped(node):
            for call in calls:
                started = time.monotonic()
                with pytest.raises(errors.Unreachable):
                    call()
                assert time.monotonic() - started < HANGS_S

        def is_stored() -> bool:
            with contextlib.suppress(errors.Unreachable):  # as above
                return mq.send("stopped", b"after").level == "disk"
            return False

        wait_until(is_stored, "a send that succeeds")


async def test_a_client_of_a_stopped_broker_can_be_left(node: LocalNode) -> None:
    with stopped(node):
        async with asyncio.timeout(HANGS_S):
            async with tidemark.connect(node.url, request_timeout_s=1.0) as mq:
                sends = [asyncio.create_task(mq.send("stopped", b"x")) for _ in range(10)]
                await asyncio.sleep(0)
            outcomes = await asyncio.gather(*sends, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {errors.Unreachable}


async def test_messages_that_the_broker_refuses_fail_alone_among_a_thousand(
    node: LocalNode,
) -> None:
    """A day too far ahead, an invalid level, a body too large: only the broker can detect these."""
    far_ms = time.time_ns() // 1_000_000 + DELAY_MS_MAX + 86_400_000
    bad: list[dict[str, Any]] = [{"deliver_at": far_ms}, {"delay_level": 999}]
    async with tidemark.connect(node.url) as mq:
        await mq.create_topic("mixed", queues=4)
        calls = []
        for n in range(1000):
            wrong: dict[str, Any] = bad[n // 50 % 2] if n % 50 == 7 else {}
            calls.append(mq.send("mixed", b"%d" % n, ack="memory", **wrong))
        calls.append(mq.send("mixed", bytes(5 << 20)))
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        stored = await stored_in(mq, "mixed", 980)
    assert isinstance(outcomes.pop(), errors.MessageTooLarge)
    for n, outcome in enumerate(outcomes):
        assert isinstance(outcome, errors.DelayOutOfRange) == (n % 50 == 7), outcome
    assert stored == 980


async def test_the_broker_names_the_refused_message_by_its_index(node: LocalNode) -> None:
    async with tidemark.connect(node.url) as mq:
        await mq.create_topic("named", queues=2)
        far_ms = time.time_ns() // 1_000_000 + DELAY_MS_MAX + 86_400_000
        for wrong, kind in (
            (tidemark.NewMessage(b"x", deliver_at_ms=far_ms), errors.DelayOutOfRange),
            (tidemark.NewMessage(b"x", delay_level=999), errors.DelayOutOfRange),
            (tidemark.NewMessage(b"x", queue=7), errors.UnknownQueue),
            (tidemark.NewMessage(bytes(5 << 20)), errors.MessageTooLarge),
        ):
            with pytest.raises(kind) as raised:
                await mq.send_many("named", [tidemark.NewMessage(b"x"), b"y", wrong])
            assert raised.value.facts["index"] == 2
