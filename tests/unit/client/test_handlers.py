from __future__ import annotations

import asyncio
import logging

import pytest

import tidemark
from tests.support.subscribed import broker as broker
from tests.support.subscribed import mq as mq
from tests.support.subscribed import refusal, until_hold
from tests.unit.client.fake_broker import error
from tests.unit.client.group_broker import GroupBroker
from tidemark import Message, errors
from tidemark.client.handlers import message_key
from tidemark.client.holdings import Hold
from tidemark.client.subscription import Subscription


class Handling:
    """A handler whose messages wait until the test releases them."""

    def __init__(self) -> None:
        self.started: list[bytes] = []
        self.done: list[bytes] = []
        self.most = 0
        self._open: dict[bytes, asyncio.Event] = {}
        self._changed = asyncio.Event()

    async def __call__(self, message: Message) -> None:
        self.started.append(message.body)
        gate = self._open.setdefault(message.body, asyncio.Event())
        self.most = max(self.most, len(self.started) - len(self.done))
        self._changed.set()
        await gate.wait()
        self.done.append(message.body)
        self._changed.set()

    def let_go(self, *bodies: bytes) -> None:
        for body in bodies:
            self._open.setdefault(body, asyncio.Event()).set()

    async def until_started(self, *bodies: bytes) -> None:
        while not set(bodies) <= set(self.started):
            self._changed.clear()
            await self._changed.wait()

    async def until_done(self, *bodies: bytes) -> None:
        while not set(bodies) <= set(self.done):
            self._changed.clear()
            await self._changed.wait()


async def committed(broker: GroupBroker, queue: tuple[str, int], offset: int) -> None:
    await broker.until(lambda: broker.committed.get(queue) == offset)


async def test_messages_of_other_keys_overtake_and_the_lowest_unfinished_is_committed(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    handling = Handling()
    for body, key in ((b"a1", "a"), (b"b1", "b"), (b"a2", "a"), (b"c1", "c")):
        broker.put("orders", 0, body, keys=[key])
    async with mq.subscribe("orders", group="billing") as messages:
        running = asyncio.create_task(messages.run(handling, concurrency=3))
        await handling.until_started(b"a1", b"b1", b"c1")
        assert b"a2" not in handling.started  # its key is busy, though a worker is free
        handling.let_go(b"b1", b"c1")
        await handling.until_done(b"b1", b"c1")
        await messages.commit()
        assert broker.committed["orders", 0] == 0
        handling.let_go(b"a1")
        await handling.until_started(b"a2")
        await committed(broker, ("orders", 0), 2)
        handling.let_go(b"a2")
        await committed(broker, ("orders", 0), 4)
        messages.stop()
        await running
    assert handling.most == 3


async def test_no_more_than_concurrency_run_at_once_and_without_keys_in_any_order(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    handling = Handling()
    bodies = [b"%d" % n for n in range(20)]
    for body in bodies:
        broker.put("orders", 0, body, keys=["same"])
    async with mq.subscribe("orders", group="billing") as messages:
        running = asyncio.create_task(messages.run(handling, concurrency=4, by_key=False))
        await handling.until_started(*bodies[:4])
        handling.let_go(*bodies)
        await handling.until_done(*bodies)
        messages.stop()
        await running
    assert handling.most == 4
    assert broker.committed["orders", 0] == 20


async def test_a_program_may_name_the_key_itself(broker: GroupBroker, mq: tidemark.Client) -> None:
    handling = Handling()
    broker.put("orders", 0, b"1", b"2", b"x")
    async with mq.subscribe("orders", group="billing") as messages:
        running = asyncio.create_task(
            messages.run(handling, concurrency=3, by_key=lambda message: message.body.isdigit())
        )
        await handling.until_started(b"1", b"x")
        assert b"2" not in handling.started
        handling.let_go(b"1", b"2", b"x")
        await handling.until_done(b"2")
        messages.stop()
        await running


async def test_a_failed_message_is_sent_back_and_the_others_go_on(
    broker: GroupBroker, mq: tidemark.Client, caplog: pytest.LogCaptureFixture
) -> None:
    broker.put("orders", 0, b"1", b"2", b"3")

    async def handle(message: Message) -> None:
        if message.body == b"2":
            raise ZeroDivisionError

    async with mq.subscribe("orders", group="billing") as messages:
        running = asyncio.create_task(messages.run(handle))
        await committed(broker, ("orders", 0), 3)
        messages.stop()
        await running
    assert broker.nacks == [{"topic": "orders", "queue": 0, "queue_offset": 1}]
    (record,) = [each for each in caplog.records if "a handler failed" in each.message]
    assert record.levelno == logging.WARNING
    assert record.exc_info is not None


# It ended the member, then the next one that got the queue, and so on.
async def test_a_message_that_cannot_be_stored_again_is_named_and_passed_over(
    broker: GroupBroker, mq: tidemark.Client, caplog: pytest.LogCaptureFixture
) -> None:
    broker.put("orders", 0, b"1", b"2")
    broker.group_faults["nack"] = [refusal(413, "too-large")]

    async def handle(message: Message) -> None:
        if message.body == b"1":
            raise ZeroDivisionError

    async with mq.subscribe("orders", group="billing") as messages:
        running = asyncio.create_task(messages.run(handle))
        await committed(broker, ("orders", 0), 2)
        messages.stop()
        await running
    (named,) = [each for each in caplog.records if vars(each).get("event") == "nack-refused"]
    assert vars(named)["queue_offset"] == 0
    assert vars(named)["group"] == "billing"


async def test_in_an_ordered_group_a_queue_waits_for_its_failed_message(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1", b"2", b"3")
    handled: list[bytes] = []

    async def handle(message: Message) -> None:
        handled.append(message.body)
        if message.body == b"2" and handled.count(b"2") < 3:
            raise ZeroDivisionError

    async with mq.subscribe("orders", group="billing", order=True) as messages:
        running = asyncio.create_task(messages.run(handle, concurrency=4, retry_pause_ms=1))
        await committed(broker, ("orders", 0), 3)
        messages.stop()
        await running
    assert handled == [b"1", b"2", b"2", b"2", b"3"]
    assert broker.nacks == []


async def test_an_ordered_message_that_fails_for_ever_goes_to_the_dead_letters(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.config["retry_max"] = 2
    broker.put("orders", 0, b"1", b"2")
    handled: list[bytes] = []

    async def handle(message: Message) -> None:
        handled.append(message.body)
        if message.body == b"1":
            raise ZeroDivisionError

    async with mq.subscribe("orders", group="billing", order=True) as messages:
        running = asyncio.create_task(messages.run(handle, retry_pause_ms=1))
        await committed(broker, ("orders", 0), 2)
        messages.stop()
        await running
    assert handled == [b"1"] * 3 + [b"2"]
    assert broker.nacks == [{"topic": "orders", "queue": 0, "queue_offset": 0, "delay_level": -1}]


async def test_waiting_messages_of_a_lost_queue_are_left_to_its_next_member(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    handling = Handling()
    broker.put("orders", 0, b"1", b"2", b"3")
    async with mq.subscribe("orders", group="billing", member="m") as messages:
        running = asyncio.create_task(messages.run(handling, concurrency=1))
        await handling.until_started(b"1")
        broker.assign("other", [("orders", 0)])
        await until_leaving(messages, ("orders", 0))
        assert ("orders", 0) in broker.holding["m"]
        handling.let_go(b"1", b"2", b"3")
        await broker.until(lambda: ("orders", 0) not in broker.holding["m"])
        assert handling.started == [b"1"]
        assert broker.committed["orders", 0] == 1
        messages.stop()
        await running


async def until_leaving(messages: Subscription, queue: tuple[str, int]) -> None:
    member = messages._engine.engines[0].member
    while (held := member.holdings.get(queue)) is None or held.hold is not Hold.LEAVING:
        await member.pulse.wait()


async def test_stop_lets_running_handlers_finish_and_leaves_the_rest(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    handling = Handling()
    broker.put("orders", 0, b"1", b"2", b"3")
    async with mq.subscribe("orders", group="billing") as messages:
        running = asyncio.create_task(messages.run(handling, concurrency=2))
        await handling.until_started(b"1", b"2")
        messages.stop()
        handling.let_go(b"1", b"2", b"3")
        await running
    assert handling.done == [b"1", b"2"]
    assert broker.committed["orders", 0] == 2


async def test_cancelling_leaves_running_handlers_unfinished(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    handling = Handling()
    broker.put("orders", 0, b"1", b"2", b"3")
    async with mq.subscribe("orders", group="billing") as messages:
        running = asyncio.create_task(messages.run(handling, concurrency=2, by_key=False))
        await handling.until_started(b"1", b"2")
        handling.let_go(b"1")
        await handling.until_done(b"1")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert broker.committed["orders", 0] == 1
    assert broker.nacks == []


async def test_a_part_that_dies_ends_the_run(broker: GroupBroker, mq: tidemark.Client) -> None:
    async def gone(_request: object) -> object:
        return error(404, "unknown-topic")

    broker.group_faults["fetch"] = [gone]  # type: ignore[list-item]

    async def consume() -> None:
        async with mq.subscribe("orders", group="billing") as messages:
            await messages.run(Handling())

    with pytest.raises(errors.UnknownTopic):
        await consume()


async def test_a_message_in_hand_counts_as_done_when_run_takes_over(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    handling = Handling()
    broker.put("orders", 0, b"1", b"2", b"3")
    async with mq.subscribe("orders", group="billing") as messages:
        async for _message in messages:
            break
        handling.let_go(b"2", b"3")
        running = asyncio.create_task(messages.run(handling))
        await handling.until_done(b"2", b"3")
        messages.stop()
        await running
    assert broker.committed["orders", 0] == 3


async def test_a_concurrency_of_0_is_refused(mq: tidemark.Client) -> None:
    async with mq.subscribe("orders", group="billing") as messages:
        with pytest.raises(ValueError, match="concurrency"):
            await messages.run(Handling(), concurrency=0)


async def test_the_sharding_key_orders_before_the_first_key(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1", keys=["k", "l"])
    broker.put("orders", 0, b"2", keys=["k"], properties={"__SHARDINGKEY": "s"})
    broker.put("orders", 0, b"3")
    pulled = (await mq.pull("orders", 0, 0)).messages
    assert [message_key(message) for message in pulled] == ["k", "s", None]


# Messages of the cancelled run were not handed out any more, and the queue's commit did not move.
async def test_a_run_after_a_cancelled_one_gets_its_remaining_messages(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, *(b"%d" % n for n in range(6)))
    async with mq.subscribe("orders", group="billing") as messages:
        first, second = Handling(), Handling()
        running = asyncio.create_task(messages.run(first, concurrency=2))
        first.let_go(b"0", b"2")
        await first.until_done(b"0", b"2")
        await first.until_started(b"1", b"3")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        second.let_go(*(b"%d" % n for n in range(7)))
        running = asyncio.create_task(messages.run(second))
        broker.put("orders", 0, b"6")
        await second.until_done(b"6")
        assert second.done == [b"%d" % n for n in range(1, 7)]
        await committed(broker, ("orders", 0), 7)
        messages.stop()
        await running


# Everything fetched before was handled all the same: up to ``max_span`` messages.
async def test_a_handler_may_pause_its_queue_and_others_go_on(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    queue = ("orders", 0)
    for n in range(6):  # the second waits for the first, of its key, and the others overtake it
        broker.put("orders", 0, b"%d" % n, keys=["a" if n < 2 else str(n)])
    seen: list[bytes] = []
    handling = Handling()

    async def handle(message: Message) -> None:
        seen.append(message.body)
        if message.body == b"2":
            messages.pause(queue)
        if message.body in (b"0", b"other"):
            await handling(message)

    async with mq.subscribe("orders", group="billing", max_in_flight=8) as messages:
        running = asyncio.create_task(messages.run(handle, concurrency=2))
        await handling.until_started(b"0")
        await broker.until(lambda: b"2" in seen)
        assert messages.position(*queue) == 3  # what can be fetched again takes no room
        handling.let_go(b"0", b"other")
        broker.put("orders", 1, b"other")
        await handling.until_done(b"0", b"other")
        await committed(broker, ("orders", 1), 1)
        assert seen == [b"0", b"2", b"other"]
        assert broker.committed[queue] == 1
        messages.resume(queue)
        await committed(broker, queue, 6)
        assert seen == [b"0", b"2", b"other", b"1", b"3", b"4", b"5"]
        messages.stop()
        await running


async def test_waiting_messages_of_a_paused_queue_are_left_to_its_next_member(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"0", b"1", b"2", keys=["a"])
    broker.put("orders", 0, b"3")
    handling = Handling()
    async with mq.subscribe("orders", group="billing") as messages:
        running = asyncio.create_task(messages.run(handling, concurrency=2))
        handling.let_go(b"0", b"3")
        await handling.until_done(b"0", b"3")
        await handling.until_started(b"1")
        messages.pause(("orders", 0))
        broker.assign("other", [("orders", 0)])
        await until_hold(messages, ("orders", 0), Hold.LEAVING)
        handling.let_go(b"1")
        await until_hold(messages, ("orders", 0), None)
        assert handling.started == [b"0", b"3", b"1"]
        assert broker.committed["orders", 0] == 2
        messages.stop()
        await running
