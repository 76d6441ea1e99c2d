"""A subscription refuses invalid settings at its start, and raises later errors in its body."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

import tidemark
from tests.support.subscribed import broker as broker
from tests.support.subscribed import fails_at, handle_all, refusal, take
from tests.support.subscribed import mq as mq
from tests.unit.client.group_broker import GroupBroker
from tidemark import errors
from tidemark.client.holdings import Hold


async def test_a_subscription_is_entered_before_it_is_asked_and_once(mq: tidemark.Client) -> None:
    # `async for message in mq.subscribe(...)` once waited forever, without an error.
    messages = mq.subscribe("orders", group="billing")
    for ask in (lambda: take(messages, 1), lambda: anext(messages.batches()), messages.commit):
        with pytest.raises(RuntimeError, match="async with"):
            await ask()
    with pytest.raises(RuntimeError, match="async with"):
        await messages.run(messages.nack)
    async with messages:
        pass
    with pytest.raises(RuntimeError, match="subscribe"):
        await messages.__aenter__()


async def test_invalid_settings_are_refused(mq: tidemark.Client) -> None:
    with pytest.raises(ValueError, match="max_in_flight"):
        mq.subscribe("orders", group="billing", max_in_flight=0)
    with pytest.raises(ValueError, match="commit_interval_ms"):
        mq.subscribe("orders", group="billing", commit_interval_ms=-1)
    with pytest.raises(ValueError, match="at least one topic"):
        mq.subscribe({}, group="billing")
    # They were once ignored, and messages of all tags came.
    with pytest.raises(ValueError, match="its expression"):
        mq.subscribe({"orders": "*"}, group="billing", tags="new")


# The broker kept a member that its program did not know: its queues stalled for a session.
async def test_a_start_that_is_cancelled_leaves_the_group(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    came = asyncio.Event()

    async def hold(_request: web.Request) -> None:
        came.set()

    broker.answers_heartbeats.clear()
    broker.group_faults["heartbeat"] = [hold]  # type: ignore[list-item]  # None: it is answered
    starting = asyncio.create_task(mq.subscribe("orders", group="billing", member="m").start())
    await came.wait()
    starting.cancel()
    await asyncio.sleep(0)
    assert not starting.done(), "the broker may be making the member: a leave now is too early"
    broker.answers_heartbeats.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert broker.left == ["m"]
    assert broker.members == {}


# The join was answered after the client had closed: the member stayed in the group.
async def test_closing_the_client_ends_a_start_and_leaves_the_group(broker: GroupBroker) -> None:
    came = asyncio.Event()

    async def hold(_request: web.Request) -> None:
        came.set()

    broker.answers_heartbeats.clear()
    broker.group_faults["heartbeat"] = [hold]  # type: ignore[list-item]  # None: it is answered
    mq = await tidemark.connect(broker.url).start()
    starting = asyncio.create_task(mq.subscribe("orders", group="billing", member="m").start())
    await came.wait()
    closing = asyncio.create_task(mq.close())
    await asyncio.sleep(0)
    broker.answers_heartbeats.set()
    await closing
    with pytest.raises(RuntimeError, match="the client was closed"):
        await starting
    assert broker.left == ["m"]
    assert broker.members == {}


async def test_a_member_that_cannot_leave_is_named_in_the_log(
    broker: GroupBroker, mq: tidemark.Client, caplog: pytest.LogCaptureFixture
) -> None:
    async with mq.subscribe("orders", group="billing", member="m"):
        broker.group_faults["leave"] = [refusal(400, "bad-request", field="other")]
    (record,) = [each for each in caplog.records if vars(each).get("event") == "leave-failed"]
    assert "member 'm' of group 'billing'" in record.message


async def test_settings_of_the_group_are_made_before_it_is_joined(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    async with mq.subscribe("orders", group="billing", start="last", broadcast=False):
        assert broker.config["start"] == "last"


# 1. A record is damaged; 2. the messages before it came in the same answer, and were thrown away;
# 3. each member that got the queue met the same, and none of them handled any.
@pytest.mark.parametrize("is_damaged", [False, True], ids=["answer", "log"])
async def test_messages_before_a_damaged_record_are_handled_and_then_it_is_named(
    broker: GroupBroker, mq: tidemark.Client, is_damaged: bool
) -> None:
    broker.is_damaged = is_damaged
    broker.put("orders", 0, b"1", b"2", b"hello", b"3")
    stored = bytearray(broker.queues["orders"][0][2])
    stored[stored.index(b"hello")] ^= 1
    broker.queues["orders"][0][2] = bytes(stored)
    handled: list[bytes] = []

    async def handle_them() -> None:
        async with mq.subscribe("orders", group="billing") as messages:
            async for message in messages:
                await asyncio.sleep(0.01)  # what is fetched meanwhile does not end it
                handled.append(message.body)

    answer_is_damaged = pytest.raises(errors.BrokenAnswer, match=r"\('orders', 0\) at 2: .*CRC")
    with pytest.raises(errors.CorruptRecord) if is_damaged else answer_is_damaged:
        await handle_them()
    assert broker.checked[0] == 2, "the broker has learned of it"
    assert handled == [b"1", b"2"]
    assert broker.committed["orders", 0] == 2


async def test_members_that_start_together_set_the_group_one_after_another(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    being_changed = refusal(409, "group-in-use")
    has_members = refusal(409, "group-in-use", members=2)
    broker.group_faults["group"] = [being_changed, being_changed]
    async with mq.subscribe("orders", group="billing", order=True):
        assert broker.config["order"] is True
    broker.group_faults["group"] = [has_members]
    with pytest.raises(errors.GroupInUse):
        await mq.subscribe("orders", group="billing", order=False).__aenter__()


async def test_a_missing_topic_is_an_error_at_the_start(mq: tidemark.Client) -> None:
    with pytest.raises(errors.UnknownTopic):
        async with mq.subscribe("missing", group="billing"):
            pytest.fail("it let us in")


async def test_a_broadcast_member_that_cannot_find_its_start_fails(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.group_faults["group"] = [refusal(403, "not-permitted")]
    broker.config["broadcast"] = True
    with pytest.raises(errors.NotPermitted):
        await mq.subscribe("orders", group="billing").__aenter__()
    assert len(broker.left) == 1


async def test_the_error_of_a_background_part_is_raised_where_messages_are_requested(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.group_faults["fetch"] = [refusal(404, "unknown-topic")]
    with pytest.raises(errors.UnknownTopic):
        await handle_all(mq.subscribe("orders", group="billing"), fails_at(b""))


async def test_asking_again_after_an_error_raises_it_again(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.group_faults["fetch"] = [refusal(404, "unknown-topic")]
    async with mq.subscribe("orders", group="billing") as messages:
        for _ in range(2):
            with pytest.raises(errors.UnknownTopic):
                await take(messages, 1)


async def test_the_error_of_a_background_part_is_raised_at_the_end_of_the_body(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    async def idle() -> None:
        async with mq.subscribe("orders", group="billing") as messages:
            broker.group_faults["heartbeat"] = [refusal(404, "unknown-topic")]
            messages._engine.engines[0].member.hurry()
            while not messages._engine.is_interrupted:
                await messages._engine.engines[0].member.pulse.wait()

    with pytest.raises(errors.UnknownTopic):
        await idle()


async def test_a_commit_that_cannot_be_made_any_more_says_so(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    """1. A commit is refused for good, and the part that commits dies of it; 2. the program asks
    for a commit of its own, which that part should make; 3. it waited forever."""
    broker.put("orders", 0, b"1", b"2")
    broker.group_faults["commit"] = [refusal(400, "bad-request")]
    async with mq.subscribe("orders", group="billing") as messages:
        assert await take(messages, 1) == [b"1"]
        # What was in hand is done by asking on; the commit that follows of it is refused.
        assert await take(messages, 1) == [b"2"]
        with pytest.raises(errors.BadRequest):
            await asyncio.wait_for(messages.commit(), 10)


async def silence(_request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError("it is never set")


# Each request had ten seconds of its own, whatever the client's time-out was.
@pytest.mark.parametrize("end", ["ends", "fails", "closes the client"])
async def test_leaving_ends_by_the_clients_time_out(broker: GroupBroker, end: str) -> None:
    broker.put("orders", 0, b"1", b"2", b"3")
    mq = await tidemark.connect(broker.url, request_timeout_s=0.1).start()
    messages = await mq.subscribe("orders", group="billing").start()
    iteration = aiter(messages)
    await anext(iteration)
    await anext(iteration)
    for call in ("nack", "commit", "leave", "heartbeat"):
        broker.group_faults[call] = [silence] * 1000
    async with asyncio.timeout(5):
        if end == "closes the client":
            await mq.close()
            with pytest.raises(RuntimeError, match="client was closed") as raised:
                await anext(iteration)
            assert "On leaving the group" in raised.value.__notes__[0]
        elif end == "ends":
            with pytest.raises(errors.Unreachable, match="last commits"):
                await messages.close()
        else:
            failure = ZeroDivisionError()
            await messages.__aexit__(ZeroDivisionError, failure, None)
            assert "On leaving the group" in failure.__notes__[0]
        await mq.close()


async def test_a_cancelled_start_ends_by_the_clients_time_out(broker: GroupBroker) -> None:
    came = asyncio.Event()

    async def hold(request: web.Request) -> web.StreamResponse:
        came.set()
        return await silence(request)

    broker.group_faults = {"heartbeat": [hold] * 100, "leave": [silence] * 100}
    async with (
        asyncio.timeout(5),
        tidemark.connect(broker.url, request_timeout_s=0.2) as mq,
    ):
        starting = asyncio.create_task(mq.subscribe("orders", group="billing").start())
        await came.wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting


# A callback that hangs took all of the time: the queues went to others when the session was over.
async def test_a_member_whose_callback_hangs_leaves_all_the_same(broker: GroupBroker) -> None:
    async def hang(_queues: list[tuple[str, int]]) -> None:
        await asyncio.Event().wait()

    async with tidemark.connect(broker.url, request_timeout_s=2.0) as mq:
        messages = await mq.subscribe("orders", group="g", member="m", on_revoked=hang).start()
        while not messages._engine.engines[0].member.holdings.of(Hold.OWNED):
            await messages._engine.engines[0].member.pulse.wait()
        with pytest.raises(errors.Unreachable):
            await messages.close()
    assert broker.left == ["m"]
