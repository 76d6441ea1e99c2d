"""MasterDiscovery queries no node while calls are answered, and then finds the new master."""

from __future__ import annotations

import asyncio
from collections import Counter

from tidemark.client.master_discovery import LATE_S, MasterDiscovery
from tidemark.client.nodes import Nodes, View

A, B = "http://a:1", "http://b:1"


class Group:
    """The answers of two nodes, if they answer at all."""

    def __init__(self) -> None:
        self.master, self.epoch = A, 1
        self.stopped: set[str] = set()
        self.asked: Counter[str] = Counter()
        self.nodes = Nodes([A, B])
        self.discovery = MasterDiscovery(self.nodes, self.ask)

    async def ask(self, url: str) -> View | None:
        self.asked[url] += 1
        if url in self.stopped:
            await asyncio.sleep(1.0)  # the time-out of a question
            return None
        return View((A, B), self.epoch, self.master, is_alone=False)

    async def call(self, url: str) -> None:
        """A call that is answered when its node runs."""
        async with asyncio.timeout(None) as deadline:
            with self.discovery.watching(url, deadline, is_held=False, is_read=False):
                if url in self.stopped:
                    await asyncio.Event().wait()


async def test_no_node_is_asked_while_calls_are_answered() -> None:
    group = Group()
    group.discovery.start()
    for _ in range(30):
        await group.call(A)
        await asyncio.sleep(0.01)
    assert not group.asked
    await group.discovery.close()


async def test_a_paused_call_goes_on_when_another_node_is_master() -> None:
    group = Group()
    group.discovery.start()
    group.stopped = {A}
    group.nodes.failed(A)
    pausing = asyncio.create_task(group.discovery.pause(20.0))
    await asyncio.sleep(0.3)
    assert not pausing.done()
    group.master, group.epoch = B, 2
    async with asyncio.timeout(30.0):
        await pausing
    assert group.nodes.current == B
    await group.discovery.close()


async def test_a_call_to_a_node_that_fell_silent_is_given_up_for_another_master() -> None:
    group = Group()
    group.discovery.start()
    group.stopped = {A}
    calling = asyncio.create_task(group.call(A))
    await asyncio.sleep(LATE_S + 0.5)
    assert not calling.done()  # there is no other node to use
    group.master, group.epoch = B, 2
    done, _ = await asyncio.wait({calling}, timeout=30.0)
    assert done
    assert isinstance(calling.exception(), TimeoutError)
    assert group.nodes.current == B
    await group.discovery.close()


async def test_a_slow_call_to_a_node_that_answers_questions_is_left_alone() -> None:
    group = Group()
    group.discovery.start()

    async def slow() -> None:
        async with asyncio.timeout(None) as deadline:
            with group.discovery.watching(A, deadline, is_held=False, is_read=False):
                await asyncio.sleep(LATE_S + 1.0)

    group.master, group.epoch = B, 2  # A answers so, and will refuse the call itself
    await slow()
    assert group.nodes.current == B
    await group.discovery.close()
