"""Programs as their authors write them, with the public client, against a running node."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter, defaultdict
from pathlib import Path

import tidemark
from tidemark import Message, NewMessage
from tidemark.testing import LocalNode

WITHIN_S = 200.0
SEED = random.randrange(1 << 32)


class Orders:
    """What a shop keeps: each order paid once, however often its message comes."""

    def __init__(self, declined: set[int], flaky: set[int]) -> None:
        """declined: fail until they are let through; flaky: fail at the first try."""
        self.declined, self.flaky = declined, flaky
        self.tries: Counter[int] = Counter()
        self.paid: Counter[int] = Counter()
        self.changed = asyncio.Event()

    async def pay(self, message: Message) -> None:
        number = json.loads(message.body)["number"]
        self.tries[number] += 1
        await asyncio.sleep(0)
        if number in self.declined:
            raise RuntimeError("declined")
        if number in self.flaky and self.tries[number] == 1:
            raise TimeoutError("the bank did not answer")
        if number % 10 == 7 and self.tries[number] == 1:
            gone = asyncio.get_running_loop().create_future()
            gone.cancel()
            await gone  # as of a connection pool that was closed
        self.paid[number] += 1
        self.changed.set()

    async def until_paid(self, numbers: set[int]) -> None:
        while not numbers <= self.paid.keys():
            self.changed.clear()
            await self.changed.wait()


async def test_an_order_pipeline_with_retries_dead_letters_and_redrive(tmp_path: Path) -> None:
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    numbers = set(range(120))
    declined = set(rng.sample(sorted(numbers), 9))
    orders = Orders(declined, set(rng.sample(sorted(numbers - declined), 20)))
    with LocalNode(tmp_path / "node") as node:
        async with tidemark.connect(node.url) as mq, asyncio.timeout(WITHIN_S):
            await mq.create_topic("orders", queues=4)
            await mq.groups.create("billing", retry_max=1, start="first")
            await mq.send_many(
                "orders",
                [
                    NewMessage(
                        json.dumps({"number": number}).encode(),
                        keys=[f"order-{number}"],
                        # As large as a sender may make them: they come back all the same.
                        properties={"note": "x" * (31_000 if number % 40 == 7 else 10)},
                    )
                    for number in sorted(numbers)
                ],
            )
            workers = [await mq.subscribe("orders", group="billing").start() for _ in range(2)]
            running = [
                asyncio.create_task(worker.run(orders.pay, concurrency=8)) for worker in workers
            ]
            await orders.until_paid(numbers - declined)
            letters: dict[str, str] = {}
            while len(letters) < len(declined):
                await asyncio.sleep(0.1)
                letters = {
                    letter.facts["keys"][0]: letter.original_topic
                    for letter in (await mq.dead_letters.list("billing")).messages
                }
            assert letters == {f"order-{number}": "orders" for number in declined}
            assert {orders.tries[number] for number in declined} == {2}
            # The bank takes them again: an operator sends them once more, to this group only.
            orders.declined = set()
            assert (await mq.dead_letters.redrive("billing", to="group")).redriven == len(declined)
            assert (await mq.dead_letters.redrive("billing", to="group")).redriven == 0
            await orders.until_paid(numbers)
            for worker in workers:
                worker.stop()
            await asyncio.gather(*running)
            for worker in workers:
                await worker.close()
            assert orders.paid == dict.fromkeys(numbers, 1)
            detail = await mq.groups.get("billing")
            assert detail.members == []
            assert detail.lag.messages == 0


async def test_an_ordered_group_keeps_each_accounts_order_through_a_kill(tmp_path: Path) -> None:
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    accounts, steps = [f"account-{n}" for n in range(12)], 40
    seen: defaultdict[str, list[int]] = defaultdict(list)
    changed = asyncio.Event()

    async def book(message: Message) -> None:
        booking = json.loads(message.body)
        account, step = booking["account"], booking["step"]
        last = seen[account][-1] if seen[account] else -1
        # At least once: what comes again is known by its number; what is skipped never comes.
        assert step <= last + 1, f"{account}: {step} after {last}"
        if step == last + 1:
            if rng.random() < 0.05:
                raise ConnectionError("the database is busy")
            seen[account].append(step)
        changed.set()

    async def until(count: int) -> None:
        while sum(map(len, seen.values())) < count:
            changed.clear()
            await changed.wait()

    with LocalNode(tmp_path / "node") as node:
        async with tidemark.connect(node.url, retry_for_s=60.0) as mq, asyncio.timeout(WITHIN_S):
            await mq.create_topic("bookings", queues=4)

            async def send(first: int, end: int) -> None:
                for step in range(first, end):
                    for account in accounts:
                        body = json.dumps({"account": account, "step": step}).encode()
                        await mq.send("bookings", body, sharding_key=account)

            async with (
                mq.subscribe("bookings", group="ledger", order=True, start="first") as one,
                mq.subscribe("bookings", group="ledger") as other,
            ):
                running = [
                    asyncio.create_task(each.run(book, concurrency=4, retry_pause_ms=5))
                    for each in (one, other)
                ]
                await send(0, steps // 2)
                await until(len(accounts) * steps // 4)
                await asyncio.to_thread(node.kill)
                await asyncio.to_thread(node.start)
                await send(steps // 2, steps)
                await until(len(accounts) * steps)
                for each in (one, other):
                    each.stop()
                await asyncio.gather(*running)
            assert dict(seen) == {account: list(range(steps)) for account in accounts}
            dead = await mq.dead_letters.list("ledger")
            assert dead.messages == []
