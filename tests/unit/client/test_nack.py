"""Nacks of messages: once, by the holder of their queue, whatever their handler raises."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import tidemark
from tests.support.subscribed import broker as broker
from tests.support.subscribed import mq as mq
from tests.support.subscribed import refusal, until_hold
from tests.unit.client.group_broker import GroupBroker
from tidemark import Message, errors

QUEUE = ("orders", 0)


async def until_committed(broker: GroupBroker, offset: int) -> None:
    await broker.until(lambda: broker.committed.get(QUEUE) == offset)


async def runs(
    broker: GroupBroker,
    mq: tidemark.Client,
    handle: Callable[[Message], Awaitable[object]],
    *,
    order: bool = False,
    until: int,
) -> None:
    """Run a handler until the queue is committed up to an offset."""
    async with mq.subscribe("orders", group="billing", order=order) as messages:
        running = asyncio.create_task(messages.run(handle, retry_pause_ms=1))
        await until_committed(broker, until)
        messages.stop()
        await running


# Two copies were stored, and twice as many at each further try: 2, 4, 8, …
@pytest.mark.parametrize("order", [False, True])
async def test_a_handler_that_sends_its_message_back_and_raises_sends_it_back_once(
    broker: GroupBroker, mq: tidemark.Client, order: bool
) -> None:
    broker.put("orders", 0, b"1", b"2")
    async with mq.subscribe("orders", group="billing", order=order) as messages:

        async def handle(message: Message) -> None:
            if message.body == b"1":
                await messages.nack(message, delay_level=2)
                await messages.nack(message)
                raise ZeroDivisionError

        running = asyncio.create_task(messages.run(handle, retry_pause_ms=1))
        await until_committed(broker, 2)
        messages.stop()
        await running
        assert not any(held.nacked for held in messages._engine.engines[0].member.holdings)
    assert broker.nacks == [{"topic": "orders", "queue": 0, "queue_offset": 0, "delay_level": 2}]


async def test_a_message_sent_back_is_done_also_if_its_handler_is_cancelled(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1")
    is_nacked = asyncio.Event()
    async with mq.subscribe("orders", group="billing") as messages:

        async def handle(message: Message) -> None:
            await messages.nack(message)
            is_nacked.set()
            await asyncio.Event().wait()

        running = asyncio.create_task(messages.run(handle))
        await is_nacked.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert broker.committed[QUEUE] == 1


async def awaits_what_was_cancelled(message: Message) -> None:
    if message.body == b"1":
        cancelled = asyncio.get_running_loop().create_future()
        cancelled.cancel()
        await cancelled


# The worker was gone, the run neither returned nor raised, and the queue's commit did not move.
async def test_a_cancellation_of_the_handlers_own_making_is_a_failure(
    broker: GroupBroker, mq: tidemark.Client, caplog: pytest.LogCaptureFixture
) -> None:
    broker.put("orders", 0, b"1", b"2")
    await runs(broker, mq, awaits_what_was_cancelled, until=2)
    assert broker.nacks == [{"topic": "orders", "queue": 0, "queue_offset": 0}]
    assert [
        vars(each)["then"] for each in caplog.records if "a handler failed" in each.message
    ] == ["SEND_BACK"]


async def test_a_cancellation_of_the_bodys_own_making_is_a_failure(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1", b"2")

    async def consume() -> None:
        async with mq.subscribe("orders", group="billing") as messages:
            async for message in messages:
                await awaits_what_was_cancelled(message)

    with pytest.raises(asyncio.CancelledError):
        await consume()
    assert len(broker.nacks) == 1
    assert broker.committed[QUEUE] == 1


async def test_a_handler_that_cancels_its_own_task_ends_the_run(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1")

    async def handle(_message: Message) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    async with mq.subscribe("orders", group="billing") as messages:
        with pytest.raises(RuntimeError, match="cancelled the task that it runs in"):
            await messages.run(handle, concurrency=2)
    assert broker.committed[QUEUE] == 0


async def test_a_callback_that_awaits_what_was_cancelled_ends_the_subscription(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    async def callback(_queues: list[tuple[str, int]]) -> None:
        cancelled = asyncio.get_running_loop().create_future()
        cancelled.cancel()
        await cancelled

    async def consume() -> None:
        async with mq.subscribe("orders", group="billing", on_assigned=callback) as messages:
            await anext(aiter(messages))

    with pytest.raises(RuntimeError, match="tidemark-changes was cancelled"):
        await consume()


def plain(_message: Message) -> None:
    """A handler that is not async."""


class Plain:
    """A handler whose call is not async, which shows only when it is called."""

    def __call__(self, _message: Message) -> None:
        """Do nothing."""


# Each message was handled and then sent back, until all were dead letters.
@pytest.mark.parametrize("handler", [plain, functools.partial(plain), print, 7, Plain])
async def test_a_plain_function_is_refused_at_the_start(
    broker: GroupBroker, mq: tidemark.Client, handler: object
) -> None:
    broker.put("orders", 0, b"1")
    async with mq.subscribe("orders", group="billing") as messages:
        with pytest.raises(TypeError, match="is not async"):
            await messages.run(handler)  # type: ignore[arg-type]
    assert broker.committed.get(QUEUE, 0) == 0


@pytest.mark.parametrize("handler", [Plain(), lambda message: None])
async def test_a_handler_error_found_at_the_first_message_ends_the_run(
    broker: GroupBroker, mq: tidemark.Client, handler: object
) -> None:
    broker.put("orders", 0, b"1")
    async with mq.subscribe("orders", group="billing") as messages:
        with pytest.raises(TypeError, match="is not async"):
            await messages.run(handler)  # type: ignore[arg-type]
    assert broker.nacks == []
    assert broker.committed[QUEUE] == 0


async def test_any_awaitable_handler_works(broker: GroupBroker, mq: tidemark.Client) -> None:
    broker.put("orders", 0, b"1", b"2")

    async def handle(message: Message, *, seen: list[bytes]) -> None:
        seen.append(message.body)

    @functools.wraps(handle)
    def wrapped(message: Message, *, seen: list[bytes]) -> Awaitable[None]:
        return handle(message, seen=seen)

    seen: list[bytes] = []
    await runs(broker, mq, functools.partial(wrapped, seen=seen), until=2)
    assert seen == [b"1", b"2"]
    broker.put("orders", 0, b"3")
    await runs(broker, mq, lambda message: handle(message, seen=seen), until=3)
    assert seen == [b"1", b"2", b"3"]


# Its message was handled by another member and retried here too: 524 letters for 223 messages.
async def test_a_fenced_member_sends_nothing_back(broker: GroupBroker, mq: tidemark.Client) -> None:
    broker.put("orders", 0, b"1", b"2")
    lost: list[tuple[str, int]] = []

    async def revoked(queues: list[tuple[str, int]]) -> None:
        lost.extend(queues)

    async with mq.subscribe("orders", group="billing", member="m", on_revoked=revoked) as messages:
        async for message in messages:
            broker.forget()
            broker.members["other"] = [QUEUE]
            with pytest.raises(errors.NotAssigned, match="its new owner"):
                await messages.nack(message)
            break
        await broker.until(lambda: QUEUE in lost)
    assert broker.nacks == []
    assert broker.committed.get(QUEUE, 0) == 0


async def test_a_fenced_members_failed_message_is_left_to_its_next_owner(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1")

    async def handle(_message: Message) -> None:
        broker.forget()
        broker.members["other"] = [QUEUE]
        broker.put("orders", 1, b"2")
        raise ZeroDivisionError

    async with mq.subscribe("orders", group="billing", member="m") as messages:
        running = asyncio.create_task(messages.run(handle))
        await until_hold(messages, QUEUE, None)
        messages.stop()
        await running
    assert broker.nacks == []


async def test_a_generation_that_is_over_is_waited_out_while_the_queue_is_held(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1")
    async with mq.subscribe("orders", group="billing", member="m") as messages:
        async for message in messages:
            broker.generation += 1
            await messages.nack(message)
            break
    assert len(broker.nacks) == 1
    assert broker.committed[QUEUE] == 1


async def test_the_programs_own_nack_waits_for_a_broker_that_is_away(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1")
    async with (
        tidemark.connect(broker.url, retry_for_s=0) as impatient,
        impatient.subscribe("orders", group="billing") as messages,
    ):
        async for message in messages:
            broker.group_faults["nack"] = [refusal(503, "not-serving", retriable=True)] * 3
            await messages.nack(message)
            break
    assert len(broker.nacks) == 1


async def test_a_permanent_refusal_of_a_nack_is_raised_to_its_caller(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1")
    async with mq.subscribe("orders", group="billing") as messages:
        async for message in messages:
            for status, code in ((404, "unknown-message"), (413, "too-large"), (400, "bad-delay")):
                broker.group_faults["nack"] = [refusal(status, code)]
                with pytest.raises(tidemark.TidemarkError) as refused:
                    await messages.nack(message)
                assert refused.value.code == code
            break
    assert broker.committed[QUEUE] == 1


# It stayed in hand: the commits of its queue stood still, and a revoked queue was never released.
@pytest.mark.parametrize("code", ["unknown-message", "unknown-topic", "unknown-queue"])
async def test_a_message_that_is_gone_is_done_after_its_nack(
    broker: GroupBroker, mq: tidemark.Client, code: str
) -> None:
    broker.put("orders", 0, b"1", b"2")
    async with mq.subscribe("orders", group="billing") as messages:
        gone, next_one = await messages.getone(), await messages.getone()
        assert gone is not None
        assert next_one is not None
        await messages.ack(next_one)
        broker.group_faults["nack"] = [refusal(404, code)]
        with pytest.raises(tidemark.TidemarkError) as refused:
            await messages.nack(gone)
        assert refused.value.code == code
        await messages.commit()
        assert broker.committed[QUEUE] == 2


async def test_two_tasks_that_send_one_message_back_at_once_send_it_back_once(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1", b"2", b"3")
    async with mq.subscribe("orders", group="billing") as messages:
        one = await messages.getone()
        assert one is not None
        await asyncio.gather(messages.nack(one), messages.nack(one))
        assert len(broker.nacks) == 1
        async for message in messages:
            broker.group_faults["nack"] = [refusal(404, "unknown-message")]
            outcomes = await asyncio.gather(
                *(messages.nack(message) for _ in range(3)), return_exceptions=True
            )
            # Who waited for the refused one tries by itself.
            assert [type(each) for each in outcomes].count(errors.UnknownMessage) == 1
            assert len(broker.nacks) == 2
            break


async def test_nack_and_commit_end_by_their_time_outs(broker: GroupBroker) -> None:
    broker.put("orders", 0, b"1", b"2")
    away = [refusal(503, "not-serving", retriable=True)] * 10_000
    async with (
        tidemark.connect(broker.url, request_timeout_s=0.05) as hasty,
        tidemark.connect(broker.url) as patient,
    ):
        for mq, timeout in (hasty, None), (patient, 0.05):
            async with mq.subscribe("orders", group="billing") as messages:
                one = await messages.getone()
                assert one is not None
                broker.group_faults = {"nack": [*away], "commit": [*away]}
                with pytest.raises(errors.Unreachable, match=r"stays in hand: .* 0\.05 s"):
                    await messages.nack(one, timeout=timeout)
                await messages.ack(one)
                with pytest.raises(errors.Unreachable, match="sent again"):
                    await messages.commit(timeout=timeout)
                broker.group_faults = {}
                await messages.commit(timeout=30)
    assert broker.committed["orders", 0] == 2
    assert broker.nacks == []


# A repetition was another nack to the broker, which stored a second copy.
async def test_every_repetition_of_a_nack_carries_its_id(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1", b"2")
    async with mq.subscribe("orders", group="billing") as messages:
        one, other = await messages.getone(), await messages.getone()
        assert one is not None
        assert other is not None
        broker.lost_answers["nack"] = 3
        await messages.nack(one)
        await messages.nack(other)
    assert [nack["queue_offset"] for nack in broker.nacks] == [0, 1]
    first, *repeats, last = broker.nack_ids
    assert repeats == [first] * 3
    assert last not in (first, None)
    assert broker.nack_repeats == 3


async def test_a_program_that_repeats_a_nack_of_unknown_outcome_repeats_the_same(
    broker: GroupBroker,
) -> None:
    broker.put("orders", 0, b"1")
    async with (
        tidemark.connect(broker.url, retry_for_s=0) as mq,
        mq.subscribe("orders", group="billing") as messages,
    ):
        message = await messages.getone()
        assert message is not None
        broker.lost_answers["nack"] = 1_000_000
        with pytest.raises(errors.Unreachable):
            await messages.nack(message, timeout=1)
        broker.lost_answers.clear()
        await messages.nack(message)
        # What comes again is nacked anew.
        await messages.seek("orders", 0, 0)
        message = await messages.getone()
        assert message is not None
        await messages.nack(message)
    assert len(broker.nacks) == 2
    assert len(set(broker.nack_ids)) == 2


@pytest.mark.parametrize("lost_count", [0, 1])
async def test_a_broker_of_the_version_before_takes_messages_back(
    broker: GroupBroker, mq: tidemark.Client, lost_count: int
) -> None:
    broker.put("orders", 0, b"1")
    broker.unknown_fields = {"nack_id", "retry"}
    broker.lost_answers["nack"] = lost_count
    async with mq.subscribe("orders", group="billing") as messages:
        message = await messages.getone()
        assert message is not None
        await messages.nack(message)
    assert len(broker.nacks) == 1 + lost_count


# `nack` waited for a broker that restarted; `commit` gave up at once.
async def test_a_commit_to_disk_waits_for_a_broker_that_is_away(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1")
    async with mq.subscribe("orders", group="billing") as messages:
        message = await messages.getone()
        assert message is not None
        await messages.ack(message)
        await messages.commit()
        broker.group_faults["commit"] = [refusal(503, "not-serving", retriable=True)] * 3
        await messages.commit(ack="disk")
        assert broker.group_faults["commit"] == []
        assert broker.commits[-1]["ack"] == "disk"
        broker.group_faults["commit"] = [refusal(409, "other")]
        with pytest.raises(errors.TidemarkError, match="other"):
            await messages.commit(ack="disk")


# Found out only when the first queue came: `object NoneType can't be used in 'await' expression`.
@pytest.mark.parametrize("name", ["on_assigned", "on_revoked"])
async def test_a_plain_function_is_refused_as_callback(
    broker: GroupBroker, mq: tidemark.Client, name: str
) -> None:
    refused: dict[str, Any] = {name: print}
    with pytest.raises(TypeError, match=rf"`await {name}\(queues\)`: .*print.* is not async"):
        mq.subscribe("orders", group="billing", **refused)


async def test_a_callback_error_found_at_the_first_queue_ends_the_subscription(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1")

    async def consume() -> None:
        callback: Any = lambda _queues: None  # noqa: E731 — what only its call can tell
        async with mq.subscribe("orders", group="billing", on_assigned=callback) as messages:
            await messages.getone()

    with pytest.raises(TypeError, match=r"must be async: .*lambda.* is not"):
        await consume()
