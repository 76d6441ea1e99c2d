"""Ways to ask a subscription for messages: one iteration at a time, or message by message."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator
from typing import NoReturn

import aiohttp
import numpy
import pytest
from aiohttp import web

import tidemark
from tests.support.subscribed import broker as broker
from tests.support.subscribed import mq as mq
from tests.unit.client.group_broker import GroupBroker
from tidemark import Message, errors
from tidemark.client import fetching

QUEUE = ("orders", 0)


def bodies(messages: list[Message]) -> list[bytes]:
    return [message.body for message in messages]


# Each committed the messages that the other had in hand.
async def test_a_second_iteration_does_not_commit_messages_of_the_first(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1", b"2", b"3")
    async with mq.subscribe("orders", group="billing") as messages:
        first = aiter(messages)
        assert (await anext(first)).body == b"1"

        async def other() -> None:
            async for _message in messages:
                break

        with pytest.raises(RuntimeError, match="another iteration"):
            await asyncio.create_task(other())
        with pytest.raises(RuntimeError, match="another iteration"):
            await anext(messages.batches())
        with pytest.raises(RuntimeError, match="another iteration"):
            await messages.run(messages.nack)
        await messages.commit()
        assert broker.committed[QUEUE] == 0
        assert (await anext(first)).body == b"2"
        del first
        await asyncio.create_task(other())  # an ended iteration does not block another
    assert broker.committed[QUEUE] == 3


async def test_one_iteration_is_asked_by_one_task_at_a_time(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    async with mq.subscribe("orders", group="billing") as messages:
        iteration = aiter(messages)
        waiting = asyncio.ensure_future(anext(iteration))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="at once"):
            await anext(iteration)
        broker.put("orders", 0, b"1")
        assert (await waiting).body == b"1"


# `wait_for(anext(messages), t)` ended the iteration: the next one raised StopAsyncIteration.
@pytest.mark.parametrize("batches", [False, True])
async def test_a_cancelled_anext_does_not_end_the_iteration(
    broker: GroupBroker, mq: tidemark.Client, batches: bool
) -> None:
    async with mq.subscribe("orders", group="billing") as messages:
        iteration = messages.batches() if batches else aiter(messages)
        for n in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(iteration), 0.01)
            broker.put("orders", 0, b"%d" % n)
            found = await asyncio.wait_for(anext(iteration), 30)
            got = found[0] if isinstance(found, list) else found
            assert isinstance(got, Message)
            assert got.body == b"%d" % n
    assert broker.committed[QUEUE] == 3


async def test_getone_waits_for_a_message_or_for_the_time(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    async with mq.subscribe("orders", group="billing") as messages:
        assert await messages.getone(0) is None
        assert await messages.getone(0.01) is None
        assert await messages.getmany(5, 0.01) == []
        waiting = asyncio.ensure_future(messages.getone())
        broker.put("orders", 0, b"1")
        got = await waiting
        assert got is not None
        assert got.body == b"1"
        stopped = asyncio.ensure_future(messages.getone())
        await asyncio.sleep(0)
        messages.stop()
        assert await stopped is None
        with pytest.raises(RuntimeError, match="stopped"):
            await messages.getone(0)


async def test_acknowledged_messages_are_committed_and_the_others_delivered_again(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1", b"2", b"3", b"4")
    async with mq.subscribe("orders", group="billing") as messages:
        one, two = [await messages.getone(), await messages.getone()]
        rest = await messages.getmany(10)
        assert one is not None
        assert two is not None
        assert bodies(rest) == [b"3", b"4"]
        assert await messages.ack(two, rest[0]) == 2
        await messages.commit()
        assert broker.committed[QUEUE] == 0
        assert await messages.ack(one) == 1
        await messages.commit(ack="disk")
        assert broker.committed[QUEUE] == 3
        with pytest.raises(ValueError, match="not in hand"):
            await messages.ack(one)
    assert broker.committed[QUEUE] == 3
    async with mq.subscribe("orders", group="billing") as messages:
        again = await messages.getone()
        assert again is not None
        assert again.body == b"4"
        await messages.nack(again)
        with pytest.raises(ValueError, match="not in hand"):
            await messages.ack(again)
    assert broker.committed[QUEUE] == 4
    assert len(broker.nacks) == 1


async def test_several_tasks_share_a_subscription_with_getone(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, *(b"%d" % n for n in range(40)))
    broker.put("orders", 1, *(b"%d" % n for n in range(40, 80)))
    seen: list[int] = []

    async def work(messages: tidemark.Subscription) -> None:
        while (message := await messages.getone()) is not None:
            await asyncio.sleep(0)
            seen.append(int(message.body))
            await messages.ack(message)
            if len(seen) == 80:
                messages.stop()

    async with mq.subscribe("orders", group="billing") as messages:
        workers = [asyncio.create_task(work(messages)) for _ in range(7)]
        done, _ = await asyncio.wait(workers)
        for task in done:
            with_error = task.exception()
            assert with_error is None or "stopped" in str(with_error)
    assert sorted(seen) == list(range(80))
    assert (broker.committed[QUEUE], broker.committed["orders", 1]) == (40, 40)


async def test_an_acknowledgement_of_a_queue_that_was_lost_says_so(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1")
    lost = asyncio.Event()

    async def revoked(_queues: list[tuple[str, int]]) -> None:
        lost.set()

    async with mq.subscribe("orders", group="billing", member="m", on_revoked=revoked) as messages:
        message = await messages.getone()
        assert message is not None
        broker.forget()
        broker.members["other"] = [QUEUE]
        messages._engine.engines[0].member.hurry()
        await lost.wait()
        assert await messages.ack(message) == 0
    assert broker.committed.get(QUEUE, 0) == 0


async def test_start_and_close_are_equal_to_async_with(broker: GroupBroker) -> None:
    broker.put("orders", 0, b"1", b"2")
    mq = await tidemark.connect(broker.url).start()
    messages = await mq.subscribe("orders", group="billing").start()
    async for message in messages:
        assert message.body == b"1"
        break
    await messages.close()
    await messages.close()
    assert broker.committed[QUEUE] == 1
    assert len(broker.left) == 1
    await mq.close()


# Its tasks went on forever, and its queues got other owners only when the session was over.
async def test_closing_the_client_leaves_the_groups_of_open_subscriptions(
    broker: GroupBroker,
) -> None:
    broker.put("orders", 0, b"1", b"2")
    before = asyncio.all_tasks()
    async with tidemark.connect(broker.url) as mq:
        messages = await mq.subscribe("orders", group="billing", member="m").start()
        unfinished = aiter(messages)
        assert (await anext(unfinished)).body == b"1"
        idle = await mq.subscribe("orders", group="other", member="n").start()
        waiting = asyncio.ensure_future(idle.getone())
        await asyncio.sleep(0)
    assert sorted(broker.left) == ["m", "n"]
    assert broker.committed.get(QUEUE, 0) == 0
    assert broker.nacks == []
    with pytest.raises(RuntimeError, match="client was closed"):
        await anext(unfinished)
    assert await waiting is None
    await messages.close()
    assert {task for task in asyncio.all_tasks() - before if "tidemark" in task.get_name()} == set()


async def test_closing_the_client_ends_loops_of_other_tasks_without_an_error(
    broker: GroupBroker,
) -> None:
    async def iterate(messages: tidemark.Subscription) -> str:
        async for message in messages:
            return f"there is no {message}"
        return "end"

    async def handle(message: tidemark.Message) -> None:
        raise AssertionError(f"there is no {message}")

    async with tidemark.connect(broker.url) as mq:
        looping = await mq.subscribe("orders", group="billing", member="m").start()
        running = await mq.subscribe("orders", group="other", member="n").start()
        iterating = asyncio.create_task(iterate(looping))
        handling = asyncio.create_task(running.run(handle, concurrency=2))
        await asyncio.sleep(0)
    assert await asyncio.wait_for(iterating, 10) == "end"
    await asyncio.wait_for(handling, 10)
    for again in (anext(aiter(looping)), looping.getone(), running.run(handle)):
        with pytest.raises(RuntimeError, match="client was closed"):
            await asyncio.wait_for(again, 10)


async def test_seek_goes_back_and_forward(broker: GroupBroker, mq: tidemark.Client) -> None:
    broker.put("orders", 0, *(b"%d" % n for n in range(10)))
    broker.assign("other", [("orders", 1)])
    async with mq.subscribe("orders", group="billing") as messages:
        assert bodies(await messages.getmany(4)) == [b"0", b"1", b"2", b"3"]
        assert messages.position(*QUEUE) == 4
        await messages.seek(*QUEUE, 1)
        again = await messages.getmany(2)
        assert bodies(again) == [b"1", b"2"]
        assert messages.position(*QUEUE) == 3
        await messages.seek(*QUEUE, numpy.int64(8))  # type: ignore[arg-type]
        last = await messages.getmany(9)
        assert bodies(last) == [b"8", b"9"]
        assert await messages.ack(*again) == 0
        await messages.commit()
        assert broker.committed[QUEUE] == 8
        assert await messages.ack(*last) == 2
        await messages.seek(*QUEUE, 10)
        assert await messages.getone(0.01) is None
        broker.put("orders", 0, b"10")
        found = await messages.getone()
        assert found is not None
        assert found.body == b"10"
        for offset, reason in ((-1, "an offset is at least 0"), (12, "12 is beyond it")):
            with pytest.raises(errors.OffsetBeyondEnd, match=f"at queue offset 11; {reason}"):
                await messages.seek(*QUEUE, offset)
        for wrong in (True, 1.0, "1", None):
            with pytest.raises(TypeError, match="offset must be a whole number, not"):
                await messages.seek(*QUEUE, wrong)  # type: ignore[arg-type]
        with pytest.raises(errors.NotAssigned):
            await messages.seek("orders", 1, 0)


# 1. A program reads, fails, and seeks back without an ack; 2. messages in hand still took capacity
# although they had come again; 3. after some rounds there was no capacity left, forever.
async def test_a_program_may_seek_back_from_unacknowledged_messages_any_number_of_times(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, *(b"%d" % n for n in range(4)))
    async with mq.subscribe("orders", group="billing", max_in_flight=16) as messages:
        rounds: list[Message] = []
        for _ in range(20):
            got = await messages.getmany(4, 30)
            assert bodies(got)[:1] == [b"0"]
            rounds.append(got[0])
            await messages.seek(*QUEUE, 0)
        last: list[Message] = []
        while len(last) < 4:
            last += await messages.getmany(4, 30)
        # An earlier delivery of a message is not the one in hand.
        assert await messages.ack(rounds[0]) == 0
        assert await messages.ack(*last) == 4
    assert broker.committed[QUEUE] == 4


# 1. A message is being sent back; 2. it comes again after a seek; 3. the answer took the second
# delivery out of the hands of the task that had it.
async def test_a_message_that_comes_again_while_it_is_sent_back_stays_in_hand(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    asked, goes_on = asyncio.Event(), asyncio.Event()

    async def slow(_request: web.Request) -> None:
        asked.set()
        await goes_on.wait()

    broker.put("orders", 0, b"1")
    broker.group_faults["nack"] = [slow]  # type: ignore[list-item]  # None: it is answered
    async with mq.subscribe("orders", group="billing") as messages:
        first = await messages.getone()
        assert first is not None
        sending_back = asyncio.create_task(messages.nack(first))
        await asked.wait()
        await messages.seek(*QUEUE, 0)
        second = await messages.getone()
        assert second is not None
        assert second.source == first.source
        goes_on.set()
        with contextlib.suppress(errors.NotAssigned):
            await sending_back
        assert await messages.ack(first) == 0
        assert await messages.ack(second) == 1
    assert broker.committed[QUEUE] == 1


async def test_seek_within_an_iteration(broker: GroupBroker, mq: tidemark.Client) -> None:
    broker.put("orders", 0, *(b"%d" % n for n in range(6)))
    got: list[bytes] = []
    async with mq.subscribe("orders", group="billing") as messages:
        async for message in messages:
            got.append(message.body)
            if got == [b"0", b"1"]:
                assert messages.position(*QUEUE) == 2
                await messages.seek(*QUEUE, 0)
            if len(got) == 5:
                break
    assert got == [b"0", b"1", b"0", b"1", b"2"]
    assert broker.committed[QUEUE] == 3


async def test_a_paused_queue_is_not_fetched_and_goes_on_where_it_stopped(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, *(b"a%d" % n for n in range(5)))
    async with mq.subscribe("orders", group="billing") as messages:
        got: list[bytes] = []
        async for message in messages:
            got.append(message.body)
            if message.body == b"a1":
                messages.pause(QUEUE)
                assert messages.paused == {QUEUE}
                broker.put("orders", 1, b"b0", b"b1")
            elif message.body == b"b1":
                break
        assert got == [b"a0", b"a1", b"b0", b"b1"]
        assert messages.position(*QUEUE) == 2
        await broker.until(lambda: broker.fetches[-1].get("paused") == [list(QUEUE)])
        assert await messages.getone(0.05) is None
        messages.resume(QUEUE)
        assert messages.paused == set()
        assert bodies(await messages.getmany(9)) == [b"a2", b"a3", b"a4"]
        with pytest.raises(errors.NotAssigned):
            messages.pause(("orders", 7))
    assert broker.committed[QUEUE] == 2


# 1. A running fetch asks for the queue; 2. it is paused and resumed, and what was fetched of it is
# dropped; 3. the fetch went on waiting for later messages, for up to 15 s; 4. the broker also took
# its position as that of the queue: the dropped messages came with the queue's next message, or
# never.
async def test_a_queue_that_is_resumed_at_once_delivers_dropped_messages_again(
    broker: GroupBroker, mq: tidemark.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "FETCH_WAIT_MS", 600_000)
    broker.put("orders", 0, *(b"%d" % n for n in range(4)))

    def has_fetched(times: int) -> bool:
        return len(broker.fetches) == times

    async with mq.subscribe("orders", group="billing", session_ms=1_200_000) as messages:
        for n in range(3):
            (taken,) = await messages.getmany(1, 30)
            assert taken.body == b"%d" % n
            # One fetch has brought all that there is, and the next one waits.
            await broker.until(functools.partial(has_fetched, 2 * (n + 1)))
            messages.pause(QUEUE)
            messages.resume(QUEUE)
        assert bodies(await messages.getmany(4, 30)) == [b"3"]


# Versions N and N+1 work together: the subscription ended with bad-request at its first call.
async def test_a_broker_that_does_not_know_the_new_fields_is_asked_without_them(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.unknown_fields = {"incarnation", "paused", "sequence"}
    broker.put("orders", 0, *(b"a%d" % n for n in range(4)))
    async with mq.subscribe("orders", group="billing", member="m") as messages:
        assert ["incarnation" in each for each in broker.heartbeats] == [True, False]
        first = await messages.getone()
        assert first is not None
        messages.pause(QUEUE)
        broker.put("orders", 1, b"b0", b"b1")
        others = [await messages.getone(), await messages.getone()]
        assert [each and each.body for each in others] == [b"b0", b"b1"]
        # It answers at once, forever, with what is paused: nothing of it is taken, and the client
        # asks less and less often.
        assert await messages.getone(0.05) is None
        await broker.until(lambda: sum("paused" in each for each in broker.fetches) == 1)
        await broker.until(lambda: messages._engine.engines[0].fetching._early > 2)
        messages.resume(QUEUE)
        assert bodies(await messages.getmany(9)) == [b"a1", b"a2", b"a3"]
        assert not any("incarnation" in each for each in broker.heartbeats[1:])
        assert ["sequence" in each for each in broker.fetches[:2]] == [True, False]
        # An upgraded broker gets the fields again.
        broker.unknown_fields.clear()
        broker.forget()
        messages._engine.engines[0].member.hurry()
        await broker.until(lambda: "incarnation" in broker.heartbeats[-1])
    assert broker.left == ["m"]


async def test_a_member_leaves_a_broker_that_does_not_know_the_new_fields(
    broker: GroupBroker, mq: tidemark.Client, caplog: pytest.LogCaptureFixture
) -> None:
    broker.unknown_fields = {"incarnation"}
    async with mq.subscribe("orders", group="billing", member="m"):
        pass
    assert broker.left == ["m"]
    assert caplog.records == []


async def test_a_refusal_of_another_field_ends_the_subscription(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.unknown_fields = {"session_ms"}
    with pytest.raises(errors.BadRequest):
        await mq.subscribe("orders", group="billing").start()
    assert len(broker.heartbeats) == 1


# A message taken by such a fetch came with the queue's next message, or never.
async def test_a_fetch_that_was_given_up_and_reaches_the_broker_late_takes_no_message_away(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    given_up: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def keep(request: web.Request) -> NoReturn:
        given_up.set_result(await request.read())
        await asyncio.Future()  # until its client has closed the connection
        raise AssertionError

    broker.put("orders", 0, b"0")
    async with mq.subscribe("orders", group="billing", member="m", max_in_flight=1) as messages:
        first = await messages.getone(30)
        assert first is not None
        broker.group_faults["fetch"] = [keep]
        await messages.ack(first)
        late = await given_up
        await messages.seek("orders", 1, 0)
        broker.put("orders", 0, b"1", b"2")
        first = await messages.getone(30)
        assert first is not None
        url = f"{broker.url}/v1/groups/billing/members/m/fetch"
        async with aiohttp.ClientSession() as session, session.post(url, data=late) as answered:
            assert answered.status == 200
        await messages.ack(first)
        second = await messages.getone(30)
        assert second is not None
        assert second.body == b"2"


async def test_all_queues_may_be_paused(broker: GroupBroker, mq: tidemark.Client) -> None:
    broker.put("orders", 0, b"1")
    async with mq.subscribe("orders", group="billing") as messages:
        first = await messages.getone()
        messages.pause(*messages.assignment)
        broker.put("orders", 1, b"2")
        assert await messages.getone(0.05) is None
        messages.resume(*messages.paused)
        second = await messages.getone()
        assert first is not None
        assert second is not None
        assert await messages.ack(first, second) == 2


# One handler hung, 199,999 messages behind it were handled, and 5 were committed: a crash would
# have repeated them all.
async def test_a_hung_handler_keeps_its_own_queue_back_and_no_other(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"hung", *(b"%d" % n for n in range(500)))
    broker.put("orders", 1, *(b"other" for _ in range(300)))
    let_go = asyncio.Event()
    handled: dict[int | str, int] = {0: 0, 1: 0}

    async def handle(message: Message) -> None:
        if message.body == b"hung":
            await let_go.wait()
        handled[message.queue] += 1

    async with mq.subscribe("orders", group="billing", max_span=50, max_in_flight=100) as messages:
        running = asyncio.create_task(messages.run(handle, concurrency=4, by_key=False))
        await broker.until(lambda: broker.committed.get(("orders", 1)) == 300)
        assert handled[0] == 49
        assert broker.committed[QUEUE] == 0
        let_go.set()
        await broker.until(lambda: broker.committed[QUEUE] == 501)
        messages.stop()
        await running
    assert handled == {0: 501, 1: 300}


async def test_a_span_of_1_hands_out_one_message_of_a_queue_at_a_time(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1", b"2", b"3")
    async with mq.subscribe("orders", group="billing", max_span=1) as messages:
        for body in (b"1", b"2", b"3"):
            (message,) = await messages.getmany(5)
            assert message.body == body
            assert await messages.getone(0.01) is None
            await messages.ack(message)
    with pytest.raises(ValueError, match="max_span"):
        mq.subscribe("orders", group="billing", max_span=0)


# Both handled the same messages, and committed over each other.
async def test_a_later_member_of_the_same_name_fences_the_earlier(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1", b"2")
    async with (
        mq.subscribe("orders", group="billing", member="m") as earlier,
        mq.subscribe("orders", group="billing", member="m") as later,
    ):
        with pytest.raises(errors.MemberFenced):
            await all_of(earlier)
        await earlier.close()
        assert broker.left == []
        assert bodies(await later.getmany(5)) == [b"1", b"2"]
    assert broker.left == ["m"]


async def all_of(messages: tidemark.Subscription) -> None:
    while await messages.getone() is not None:
        pass


# The second task committed the message that the first was working on.
async def test_two_tasks_that_share_one_iteration_do_not_commit_each_others_messages(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1", b"2", b"3", b"4")
    async with mq.subscribe("orders", group="billing") as messages:
        for shared in (aiter(messages), messages.batches(1)):
            taken, go_on = asyncio.Event(), asyncio.Event()

            async def work(
                shared: AsyncIterator[object], taken: asyncio.Event, go_on: asyncio.Event
            ) -> None:
                await anext(shared)
                taken.set()
                await go_on.wait()

            first = asyncio.create_task(work(shared, taken, go_on))
            await taken.wait()
            with pytest.raises(RuntimeError, match="another task has messages"):
                await anext(shared)
            go_on.set()
            await first
            done = await asyncio.wait_for(anext(shared), 30)  # its task has ended
            assert done is not None
            shared.is_over = True
        await messages.commit()
        assert broker.committed[QUEUE] == 3


# It was committed although it was not finished; after an error of the body it was sent back.
@pytest.mark.parametrize("error", [None, ZeroDivisionError()])
async def test_messages_in_hand_of_another_task_are_delivered_again_after_leaving(
    broker: GroupBroker, mq: tidemark.Client, error: Exception | None
) -> None:
    broker.put("orders", 0, b"1", b"2")
    taken, go_on = asyncio.Event(), asyncio.Event()

    async def work(messages: tidemark.Subscription) -> None:
        async for message in messages:
            if message.body == b"2":
                taken.set()
                await go_on.wait()

    with contextlib.suppress(ZeroDivisionError):
        async with mq.subscribe("orders", group="billing") as messages:
            working = asyncio.create_task(work(messages))
            await taken.wait()
            if error is not None:
                raise error
    go_on.set()
    await working
    assert broker.committed[QUEUE] == 1
    assert broker.nacks == []


# With messages buffered, each took the next one without a look at who had the last one.
async def test_two_tasks_that_share_one_iteration_are_told_apart_in_one_turn_of_the_loop(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, *[b"%d" % number for number in range(8)])
    async with mq.subscribe("orders", group="billing") as messages:
        iteration = aiter(messages)
        await anext(iteration)
        await anext(iteration)
        with pytest.raises(RuntimeError, match="another task"):
            await asyncio.create_task(anext(iteration))
        await messages.commit()
        assert broker.committed[QUEUE] == 1
