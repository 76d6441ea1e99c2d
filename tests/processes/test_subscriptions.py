"""Subscriptions of the client against a running node: handing over, and a node that is killed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import tidemark
from tidemark import Message
from tidemark.testing import LocalNode

QUEUES = 8
WITHIN_S = 240.0
DUPLICATES_MAX = 0.05


@asynccontextmanager
async def running_node(directory: Path) -> AsyncIterator[LocalNode]:
    with LocalNode(directory) as node:
        async with tidemark.connect(node.url) as mq:
            await mq.create_topic("orders", queues=QUEUES)
        async with asyncio.timeout(WITHIN_S):
            yield node


class Members:
    """Members of one group in this process, and what they handled."""

    def __init__(
        self,
        mq: tidemark.Client,
        *,
        order: bool | None = None,
        session_ms: int = 30_000,
        work_s: float = 0.0,
    ) -> None:
        """session_ms: so long that no member on a busy machine seems dead. work_s: how long a
        message is in hand."""
        self.mq, self.order, self.session_ms, self.work_s = mq, order, session_ms, work_s
        self.handled: Counter[bytes] = Counter()
        self.owners: dict[tuple[str, int | str], str] = {}
        """The queues as the callbacks report them."""
        self.changed = asyncio.Event()
        self._running: dict[str, tuple[tidemark.Subscription, asyncio.Task[None]]] = {}

    async def join(self, name: str) -> None:
        async def on_assigned(queues: list[tuple[str, int]]) -> None:
            for queue in queues:
                assert queue not in self.owners, "a queue has two owners"
                self.owners[queue] = name
            self.changed.set()

        async def on_revoked(queues: list[tuple[str, int]]) -> None:
            for queue in queues:
                assert self.owners.pop(queue) == name
            self.changed.set()

        async def handle(message: Message) -> None:
            assert self.owners[message.source.topic, message.queue] == name
            await asyncio.sleep(self.work_s)
            assert self.owners[message.source.topic, message.queue] == name
            self.handled[message.body] += 1
            self.changed.set()

        subscription = self.mq.subscribe(
            "orders",
            group="billing",
            member=name,
            start="first",
            order=self.order,
            session_ms=self.session_ms,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
        )
        await subscription.__aenter__()

        async def run() -> None:
            await subscription.run(handle, concurrency=4)

        self._running[name] = subscription, asyncio.create_task(run())

    async def leave(self, name: str) -> None:
        subscription, running = self._running.pop(name)
        subscription.stop()
        await running
        await subscription.__aexit__(None, None, None)

    async def until(self, count: int) -> None:
        """Wait until that many messages have been handled."""
        while len(self.handled) < count:
            self.changed.clear()
            await self.changed.wait()

    async def until_shared(self) -> None:
        """Wait until every queue has an owner and no member has two more than another."""
        while True:
            counts = Counter(self.owners.values())
            shares = [counts[name] for name in self._running]
            if sum(shares) == QUEUES + 1 and max(shares) - min(shares) <= 1:  # one of retries
                return
            self.changed.clear()
            await self.changed.wait()

    @property
    def names(self) -> list[str]:
        return list(self._running)


async def test_members_that_come_and_go_in_order_handle_each_message_exactly_once(
    tmp_path: Path,
) -> None:
    """Queues change hands only after what was in hand is committed: nothing comes twice."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    async with running_node(tmp_path) as node, tidemark.connect(node.url) as mq:
        members = Members(mq)
        await members.join("m0")
        sent = 0
        for turn in range(12):
            bodies = [b"%d" % number for number in range(sent, sent + 400)]
            await asyncio.gather(
                *(
                    mq.send_many("orders", bodies[queue::QUEUES], queue=queue)
                    for queue in range(QUEUES)
                )
            )
            sent += len(bodies)
            if len(members.names) > 1 and chance.random() < 0.5:
                await members.leave(chance.choice(members.names))
            else:
                await members.join(f"m{turn + 1}")
        await members.until(sent)
        for name in members.names:
            await members.leave(name)
        assert members.handled.total() == sent, "messages were handled twice"
        assert members.owners == {}
        detail = await mq.groups.get("billing")
        assert (detail.lag.messages, detail.members) == (0, [])


async def test_a_killed_node_costs_a_subscription_no_message(tmp_path: Path) -> None:
    """SIGKILL to both processes, three times, under load and without a new subscription."""
    async with running_node(tmp_path) as node, tidemark.connect(node.url) as mq:
        members = Members(mq)
        await members.join("m0")
        sent = 0
        for _ in range(4):
            # A connection of its own: a send on one that the kill has cut is of unknown outcome.
            async with tidemark.connect(node.url) as sender:
                for queue in range(QUEUES):
                    bodies = [b"%d" % number for number in range(sent, sent + 100)]
                    await sender.send_many("orders", bodies, queue=queue)
                    sent += len(bodies)
            if sent < 4 * QUEUES * 100:
                await members.until(sent - QUEUES * 50)  # part of it is handled, part is not
                await asyncio.to_thread(node.kill)
                await asyncio.to_thread(node.start)
        await members.until(sent)
        await members.leave("m0")
        again = members.handled.total() - sent
        # Commits of the last tenth of a second before a kill may be gone with it.
        print(f"{sent} messages, {again} of them again")
        assert len(members.handled) == sent
        assert (await mq.groups.get("billing")).lag.messages == 0


async def test_a_killed_node_gives_no_ordered_queue_to_a_second_member(tmp_path: Path) -> None:
    """The first member that joins again gets the queues that it holds, and none of the other's.

    Callbacks and handlers assert that a queue has no second owner. Commits of the last tenth of a
    second before the kill are lost, but no message is handled twice.
    """
    async with running_node(tmp_path) as node, tidemark.connect(node.url) as mq:
        # Sessions outlast a start of the node: a member that is back in time may claim its queues.
        members = Members(mq, order=True, session_ms=30_000, work_s=0.002)
        for name in ("m0", "m1"):
            await members.join(name)
        await members.until_shared()
        owners = dict(members.owners)
        sent = 0
        for turn in range(3):
            async with tidemark.connect(node.url) as sender:
                for queue in range(QUEUES):
                    bodies = [b"%d" % number for number in range(sent, sent + 100)]
                    await sender.send_many("orders", bodies, queue=queue)
                    sent += len(bodies)
            if turn < 2:
                await members.until(sent - QUEUES * 50)
                await asyncio.to_thread(node.kill)
                await asyncio.to_thread(node.start)
        await members.until(sent)
        await members.until_shared()
        assert members.owners == owners
        for name in members.names:
            await members.leave(name)
        again = members.handled.total() - sent
        print(f"{sent} messages, {again} of them again")
        assert again <= sent * DUPLICATES_MAX


async def test_the_synchronous_subscription_nacks_failed_messages(tmp_path: Path) -> None:
    """A message that fails comes again from the retry topic, under its own topic."""

    def consume(url: str) -> list[tuple[str, int, str]]:
        seen: list[tuple[str, int, str]] = []

        def once() -> None:
            with (
                tidemark.connect_sync(url) as mq,
                mq.subscribe("orders", group="billing", start="first") as messages,
            ):
                for message in messages:
                    seen.append((message.topic, message.reconsume_times, message.source.topic))
                    if message.reconsume_times == 0:
                        messages.nack(message, delay_level=1)
                    else:
                        break

        once()
        return seen

    async with running_node(tmp_path) as node, tidemark.connect(node.url) as mq:
        await mq.send("orders", b"once more")
        seen = await asyncio.to_thread(consume, node.url)
        assert seen == [("orders", 0, "orders"), ("orders", 1, "%RETRY%billing")]
        assert (await mq.groups.get("billing")).lag.messages == 0


async def test_every_member_of_a_broadcast_group_gets_every_message(tmp_path: Path) -> None:
    """Also messages sent while the node is down, and none from before they joined."""
    async with running_node(tmp_path) as node, tidemark.connect(node.url) as mq:
        await mq.send("orders", b"before", queue=0)
        seen: dict[str, Counter[bytes]] = {"a": Counter(), "b": Counter()}
        changed = asyncio.Event()

        async def take_part(name: str, joined: asyncio.Event) -> None:
            async with mq.subscribe(
                "orders", group="news", broadcast=True, start="last", member=name
            ) as messages:
                joined.set()
                async for message in messages:
                    seen[name][message.body] += 1
                    changed.set()

        async def until(count: int) -> None:
            while min(each.total() for each in seen.values()) < count:
                changed.clear()
                await changed.wait()

        ready = [asyncio.Event(), asyncio.Event()]
        running = [
            asyncio.create_task(take_part(name, joined))
            for name, joined in zip(seen, ready, strict=True)
        ]
        await asyncio.gather(*(joined.wait() for joined in ready))
        await mq.send_many("orders", [b"1", b"2"], queue=0)
        await until(2)
        await asyncio.to_thread(node.kill)
        await asyncio.to_thread(node.start)
        async with tidemark.connect(node.url) as sender:
            await sender.send("orders", b"3", queue=0)
            await sender.send("orders", b"4", queue=1)  # no member has had a message of it
        await until(4)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        assert seen["a"] == seen["b"] == Counter([b"1", b"2", b"3", b"4"])
        assert await mq.groups.offsets("news") == {}
