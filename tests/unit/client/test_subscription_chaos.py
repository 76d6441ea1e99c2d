"""Whatever goes wrong between member and broker, no message is committed that was not handled.

Two members of one group, with different ways to read, run against a broker that loses requests and
responses, refuses, restarts without its members and reassigns queues, all by one seed.
"""

from __future__ import annotations

import asyncio
import random

import pytest
from aiohttp import web

import tidemark
from tests.unit.client.fake_broker import error
from tests.unit.client.group_broker import GroupBroker
from tidemark import Message
from tidemark.client.subscription import Subscription

QUEUES = 3
MESSAGES = 60
"""Per queue."""
FAULTS = 60
"""After so many the broker behaves, so that the run comes to an end."""
WITHIN_S = 60.0


class Chaos(GroupBroker):
    """Every request may be the one that goes wrong."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.chance = random.Random(seed)
        self.faults_left = FAULTS
        self.handled: dict[tuple[str, int], set[int]] = {
            ("orders", n): set() for n in range(QUEUES)
        }
        self.violations: list[str] = []
        self.happened: dict[str, int] = {}

    async def _fault(self, call: str, request: web.Request) -> web.StreamResponse | None:
        if self.faults_left > 0 and self.chance.random() < 0.4:
            self.faults_left -= 1
            kind = self.chance.choice(
                ("refused", "request lost", "answer lost", "reassigned", "forgotten")
            )
            self.happened[kind] = self.happened.get(kind, 0) + 1
            match kind:
                case "refused":
                    return error(503, "not-serving", retriable=True)
                case "request lost":
                    assert request.transport is not None
                    request.transport.abort()
                    return error(503, "not-serving", retriable=True)
                case "answer lost":
                    self.lost_answers[call] = 1
                case "reassigned":
                    self._reassign()
                case _:
                    self.forget()
        return await super()._fault(call, request)

    def _reassign(self) -> None:
        names = sorted(self.members)
        if names:
            queues = [queue for queue in self.handled if self.chance.random() < 0.5]
            self.assign(self.chance.choice(names), queues)

    async def member(self, request: web.Request) -> web.StreamResponse:
        answer = await super().member(request)
        if request.method == "POST":
            # Queues that a reassignment has left without an owner get one again.
            taken = {queue for has in self.members.values() for queue in has}
            free = [queue for queue in self.handled if queue not in taken]
            name = request.match_info["member"]
            if free and name in self.members:
                self.assign(name, [*self.members[name], *free])
            self._said("heartbeat", request)
        return answer

    async def offsets(self, request: web.Request) -> web.StreamResponse:
        answer = await super().offsets(request)
        for queue, offset in self.committed.items():
            missing = set(range(offset)) - self.handled.get(queue, set())
            if missing:
                self.violations.append(f"{queue} committed at {offset} without {sorted(missing)}")
        return answer

    @property
    def is_done(self) -> bool:
        return all(self.committed.get(queue) == MESSAGES for queue in self.handled)


async def consume_each(messages: Subscription, broker: Chaos) -> None:
    async for message in messages:
        await asyncio.sleep(0)
        broker.handled["orders", int(message.queue)].add(message.queue_offset)


async def consume_batches(messages: Subscription, broker: Chaos) -> None:
    async for batch in messages.batches(max=7):
        await asyncio.sleep(0)
        for message in batch:
            broker.handled["orders", int(message.queue)].add(message.queue_offset)


async def consume_several(messages: Subscription, broker: Chaos) -> None:
    async def handle(message: Message) -> None:
        for _ in range(message.queue_offset % 3):
            await asyncio.sleep(0)
        broker.handled["orders", int(message.queue)].add(message.queue_offset)

    await messages.run(handle, concurrency=3, by_key=False)


WAYS = (consume_each, consume_batches, consume_several)


@pytest.mark.parametrize("order", [False, True], ids=["shared", "ordered"])
@pytest.mark.parametrize("seed", range(len(WAYS)))
async def test_no_unhandled_message_is_committed(seed: int, order: bool) -> None:
    broker = Chaos(seed)
    broker.config["order"] = order
    for queue in range(QUEUES):
        broker.put("orders", queue, *(b"%d" % n for n in range(MESSAGES)))
    async with broker.serve(), tidemark.connect(broker.url) as mq, asyncio.timeout(WITHIN_S):
        subscriptions = [
            mq.subscribe(
                "orders",
                group="billing",
                member=f"m{number}",
                max_in_flight=broker.chance.choice((1, 10, 8192)),
                session_ms=2000,
                commit_interval_ms=broker.chance.choice((0, 5, 20)),
            )
            for number in range(2)
        ]

        async def take_part(number: int) -> None:
            async with subscriptions[number] as messages:
                await WAYS[(seed + number) % len(WAYS)](messages, broker)

        async def see_it_done() -> None:
            await broker.until(lambda: broker.is_done)
            for subscription in subscriptions:
                subscription.stop()

        # A member that dies of an error ends the group of tasks, and the test with it.
        async with asyncio.TaskGroup() as tasks:
            for number in range(2):
                tasks.create_task(take_part(number))
            tasks.create_task(see_it_done())
    print(f"seed {seed}: {broker.happened}")
    assert broker.violations == []
    assert all(len(handled) == MESSAGES for handled in broker.handled.values())
