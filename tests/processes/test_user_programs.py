"""Programs as users write them, with the public client, against a running node."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import sys
import textwrap
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

import tidemark
from tidemark import Message, NewMessage, errors
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


class Shop:
    """A web service: each request sends one message, and is answered when that is stored."""

    def __init__(self, broker_url: str) -> None:
        self._broker_url = broker_url
        self.began: dict[int, asyncio.Event] = defaultdict(asyncio.Event)
        """Requests whose handler runs, by order number."""
        self.hung_up: set[int] = set()
        """Requests whose caller disconnected before the answer."""

    async def order(self, request: web.Request) -> web.Response:
        wanted: dict[str, Any] = await request.json()
        number = wanted.pop("number")
        if "account" in wanted:
            wanted["sharding_key"] = uuid.UUID(wanted.pop("account"))  # forgets str()
        self.began[number].set()
        try:
            sent = await self.mq.send("orders", b"%d" % number, **wanted)
        except asyncio.CancelledError:
            self.hung_up.add(number)
            raise
        except (TypeError, errors.RequestError) as error:
            return web.json_response(
                {"error": getattr(error, "code", "type"), "text": str(error)}, status=422
            )
        return web.json_response({"queue": sent.queue, "queue_offset": sent.queue_offset})

    async def connected(self, _app: web.Application) -> AsyncIterator[None]:
        # Sends wait for others a little: those of disconnected callers are still in the queue.
        async with tidemark.connect(self._broker_url, linger_ms=20.0) as self.mq:
            yield

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_post("/orders", self.order)
        app.cleanup_ctx.append(self.connected)
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            host, port = runner.addresses[0][:2]
            yield f"http://{host}:{port}/orders"
        finally:
            await runner.cleanup()


BAD: list[tuple[dict[str, object], str, str]] = [
    ({"delay_ms": 41 * 86_400_000}, "delay-out-of-range", "40 days"),
    ({"account": str(uuid.UUID(int=7))}, "type", "sharding_key must be a string, not UUID"),
    ({"flag": 2**70}, "bad-request", "flag must be from"),
    # Only the broker knows how many levels there are: it refuses a request that others share.
    ({"delay_level": 9999}, "delay-out-of-range", "9999"),
]


async def test_a_web_service_stores_good_orders_once_despite_lost_callers_and_bad_requests(
    tmp_path: Path,
) -> None:
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    good, bad = set(range(300)), set(range(1000, 1100))
    with LocalNode(tmp_path / "node") as node:
        async with (
            asyncio.timeout(WITHIN_S),
            tidemark.connect(node.url) as mq,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=50)) as web_client,
        ):
            await mq.create_topic("orders", queues=4)
            shop = Shop(node.url)

            async def post(url: str, number: int) -> None:
                fields, code, text = BAD[number % len(BAD)] if number in bad else ({}, "", "")
                async with web_client.post(url, json={"number": number, **fields}) as answer:
                    found = await answer.json()
                    if number in bad:
                        assert answer.status == 422, found
                        assert found["error"] == code
                        assert text in found["text"]
                    else:
                        assert answer.status == 200, found

            async def hang_up(url: str, number: int) -> None:
                asked = asyncio.create_task(post(url, number))
                await shop.began[number].wait()
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)

            async def hang_up_often(url: str) -> None:
                number = 10_000
                while len(shop.hung_up) < 25:
                    await asyncio.gather(*(hang_up(url, number + n) for n in range(5)))
                    number += 5

            async with shop.running() as url:
                numbers = sorted(good | bad)
                rng.shuffle(numbers)
                async with asyncio.TaskGroup() as callers:
                    callers.create_task(hang_up_often(url))
                    for number in numbers:
                        callers.create_task(post(url, number))
            stored: Counter[int] = Counter()
            for queue in range(4):
                # What was stored a moment ago is readable once it is dispatched, in its order.
                last = (await mq.send("orders", b"last", queue=queue)).queue_offset
                async for message in mq.read("orders", queue, follow=True):
                    if message.queue_offset == last:
                        break
                    stored[int(message.body)] += 1
    assert {number: stored[number] for number in good} == dict.fromkeys(good, 1)
    assert stored.keys() & bad == set()
    # A message whose caller disconnected may have been sent, but never twice.
    assert max(stored.values()) == 1


async def test_cancelled_reminders_never_come_and_the_others_once_through_a_kill(
    tmp_path: Path,
) -> None:
    wanted: set[int] = set()
    cancelled: set[int] = set()
    with LocalNode(tmp_path / "node") as node:
        async with tidemark.connect(node.url, retry_for_s=60.0) as mq, asyncio.timeout(WITHIN_S):
            await mq.create_topic("reminders", queues=2)

            async def remind(number: int, delay_ms: int) -> str:
                sent = await mq.send("reminders", b"%d" % number, delay_ms=delay_ms)
                assert sent.unique_id is not None
                wanted.add(number)
                return sent.unique_id

            async def cancel(number: int, unique_id: str) -> None:
                try:
                    assert await mq.delayed.cancel("reminders", unique_id) == 1
                except errors.UnknownDelayed:
                    return  # its time has come: it is delivered
                wanted.remove(number)
                cancelled.add(number)

            # Some come before the kill, some while the node is away, some after it.
            number, later = 0, {}
            while len(cancelled) < 10:
                for delay_ms in (0, 500, 2500, 5000):
                    unique_id = await remind(number, delay_ms)
                    if number % 3 == 1:
                        await cancel(number, unique_id)
                    elif delay_ms == 5000:
                        later[number] = unique_id
                    number += 1
            await asyncio.to_thread(node.kill)
            await asyncio.to_thread(node.start)
            for each, unique_id in list(later.items())[::2]:
                await cancel(each, unique_id)
            await mq.send("reminders", b"-1", delay_ms=6000)  # after all that were cancelled
            pending: int | None = None
            while pending != 0:
                await asyncio.sleep(0.1)
                pending = (await mq.delayed.list("reminders")).pending
            came: Counter[int] = Counter()
            async with mq.subscribe("reminders", group="bell", start="first") as messages:
                while not (wanted | {-1}) <= came.keys():
                    batch = await messages.getmany()
                    came.update(int(message.body) for message in batch)
                    await messages.ack(*batch)
            assert (await mq.groups.get("bell")).lag.messages == 0
    assert came == dict.fromkeys(wanted | {-1}, 1)
    assert cancelled


SCRIPT = textwrap.dedent(
    """
    import sys, tidemark
    mq = tidemark.connect_sync(sys.argv[1]).start()
    mq.create_topic("jobs", queues=2)
    mq.send_many("jobs", [b"%d" % n for n in range(100)])
    for n in range(100, 110):
        mq.send("jobs", b"%d" % n, sharding_key="one")
    messages = mq.subscribe("jobs", group="workers", start="first").start()
    done = 0
    for message in messages:
        print(int(message.body))
        done += 1
        if done == 60:
            break
    while done < 110:
        for message in messages.getmany(20):
            print(int(message.body))
            done += messages.ack(message)
    messages.commit(ack="disk")
    if sys.argv[2] == "closes":
        messages.close()
        mq.close()
    """
)


@pytest.mark.parametrize("end", ["closes", "forgets"])
def test_a_synchronous_script_sends_consumes_and_ends_by_itself(tmp_path: Path, end: str) -> None:
    script = tmp_path / "jobs.py"
    script.write_text(SCRIPT)
    with LocalNode(tmp_path / "node") as node:
        ran = subprocess.run(
            [sys.executable, script, node.url, end],
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        assert sorted(map(int, ran.stdout.split())) == list(range(110))
        with tidemark.connect_sync(node.url) as mq:
            detail = mq.groups.get("workers")
    if end == "closes":  # else the 60th, in hand since the loop ended, and those behind it are not
        assert detail.lag.messages == 0
        assert detail.members == []
