from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

import tidemark
from tests.unit.client.fake_broker import error
from tests.unit.client.group_broker import GroupBroker
from tidemark import Message, errors
from tidemark.client.batching import Limits
from tidemark.client.client import Client
from tidemark.client.connection import Connection
from tidemark.client.group_calls import FetchedQueue
from tidemark.client.holdings import Hold
from tidemark.client.subscription import TURN_MS, Subscription

WITHIN_S = 20.0


@pytest.fixture
async def broker() -> AsyncIterator[GroupBroker]:
    broker = GroupBroker()
    broker.queues["orders"] = [[], []]
    async with broker.serve(), asyncio.timeout(WITHIN_S):
        yield broker


@pytest.fixture
async def mq(broker: GroupBroker) -> AsyncIterator[tidemark.Client]:
    async with tidemark.connect(broker.url) as client:
        yield client


async def take(messages: Subscription, count: int) -> list[bytes]:
    """Handle so many messages; the last is in hand when this returns."""
    taken: list[bytes] = []
    async for message in messages:
        taken.append(message.body)
        if len(taken) == count:
            break
    return taken


async def handle_all(subscription: Subscription, handle: Callable[[Message], None]) -> None:
    """The loop of a program whose handling may fail."""
    async with subscription as messages:
        async for message in messages:
            handle(message)


def fails_at(body: bytes) -> Callable[[Message], None]:
    """Handling that fails with ZeroDivisionError at one message."""

    def handle(message: Message) -> None:
        if message.body == body:
            raise ZeroDivisionError

    return handle


async def until_hold(messages: Subscription, queue: tuple[str, int], hold: Hold | None) -> None:
    """Wait until the member has a queue in this state; None: not at all."""
    member = messages._member
    while (None if (held := member.holdings.get(queue)) is None else held.hold) is not hold:
        await member.pulse.wait()


async def test_the_four_lines_of_the_readme_consume_and_commit(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1", b"2", b"3")
    async with mq.subscribe("orders", group="billing") as messages:
        assert await take(messages, 3) == [b"1", b"2", b"3"]
    assert broker.committed["orders", 0] == 3
    assert len(broker.left) == 1
    assert broker.nacks == []


async def test_asking_for_the_next_message_commits_this_one_and_no_more(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1", b"2", b"3")
    async with mq.subscribe("orders", group="billing") as messages:
        async for message in messages:
            if message.body == b"2":
                await messages.commit()
                assert broker.committed["orders", 0] == 1
            if message.body == b"3":
                await messages.commit(ack="disk")
                assert broker.committed["orders", 0] == 2
                assert broker.commits[-1]["ack"] == "disk"
                break
    assert broker.committed["orders", 0] == 3


async def test_an_exception_sends_the_message_back_and_leaves(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1", b"2", b"3")
    with pytest.raises(ZeroDivisionError):
        await handle_all(mq.subscribe("orders", group="billing"), fails_at(b"2"))
    assert broker.nacks == [{"topic": "orders", "queue": 0, "queue_offset": 1}]
    # The message is in the retry topic now; the one behind it was never handed out.
    assert broker.committed["orders", 0] == 2
    assert len(broker.left) == 1


async def test_a_message_that_cannot_be_sent_back_is_not_committed_either(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1", b"2")

    async def refused(_request: web.Request) -> web.Response:
        return error(400, "bad-request")

    broker.group_faults["nack"] = [refused]
    with pytest.raises(ZeroDivisionError) as caught:
        await handle_all(mq.subscribe("orders", group="billing"), fails_at(b"2"))
    assert "bad-request" in caught.value.__notes__[0]
    assert broker.committed["orders", 0] == 1
    assert len(broker.left) == 1


async def test_in_an_ordered_group_a_failed_message_stays_where_it_is(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1", b"2", b"3")
    with pytest.raises(ZeroDivisionError):
        await handle_all(mq.subscribe("orders", group="billing", order=True), fails_at(b"2"))
    assert broker.nacks == []
    assert broker.committed["orders", 0] == 1
    async with mq.subscribe("orders", group="billing") as messages:
        assert await take(messages, 2) == [b"2", b"3"]


async def test_a_cancelled_body_leaves_its_message_for_the_next_member(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1", b"2")
    in_hand = asyncio.Event()

    async def consume() -> None:
        async with mq.subscribe("orders", group="billing") as messages:
            async for message in messages:
                if message.body == b"2":
                    in_hand.set()
                    await asyncio.Event().wait()

    consumer = asyncio.create_task(consume())
    await in_hand.wait()
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    assert broker.nacks == []
    assert broker.committed["orders", 0] == 1


async def test_leaving_the_loop_and_coming_back_goes_on_behind_the_last_message(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, *(b"%d" % n for n in range(6)))
    async with mq.subscribe("orders", group="billing") as messages:
        assert await take(messages, 2) == [b"0", b"1"]
        async for batch in messages.batches(max=3):
            assert [message.body for message in batch] == [b"2", b"3", b"4"]
            break
        assert await take(messages, 1) == [b"5"]
    assert broker.committed["orders", 0] == 6


async def test_a_batch_is_committed_by_asking_for_the_next(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1", b"2", b"3")
    broker.put("orders", 1, b"4")
    async with mq.subscribe("orders", group="billing") as messages:
        seen: list[bytes] = []
        async for batch in messages.batches(max=2):
            assert 1 <= len(batch) <= 2
            await messages.commit()
            done = broker.committed.get(("orders", 0), 0) + broker.committed.get(("orders", 1), 0)
            assert done == len(seen)
            seen += [message.body for message in batch]
            if len(seen) == 4:
                break
    assert sorted(seen) == [b"1", b"2", b"3", b"4"]
    assert broker.committed == {("orders", 0): 3, ("orders", 1): 1}


async def test_a_failed_batch_is_sent_back_whole(broker: GroupBroker, mq: tidemark.Client) -> None:
    broker.put("orders", 0, b"1", b"2")

    async def consume() -> None:
        async with mq.subscribe("orders", group="billing") as messages:
            async for batch in messages.batches():
                await messages.nack(batch[0], delay_level=5)
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await consume()
    # The first was sent back by the program: it is not sent back twice.
    assert broker.nacks == [
        {"topic": "orders", "queue": 0, "queue_offset": 0, "delay_level": 5},
        {"topic": "orders", "queue": 0, "queue_offset": 1},
    ]
    assert broker.committed["orders", 0] == 2


async def test_a_retried_message_comes_under_its_own_topic_and_is_committed_where_it_was_read(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put_retry("billing", b"again", "orders")
    broker.members["m"] = [("%RETRY%billing", 0)]

    def handle(message: Message) -> None:
        assert (message.topic, message.body) == ("orders", b"again")
        assert message.source == ("%RETRY%billing", 0, 0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await handle_all(mq.subscribe("orders", group="billing", member="m"), handle)
    assert broker.nacks == [{"topic": "%RETRY%billing", "queue": 0, "queue_offset": 0}]
    assert broker.committed["%RETRY%billing", 0] == 1


async def test_tags_are_compared_again_and_what_does_not_pass_is_committed(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1", tags="new")
    broker.put("orders", 0, b"2", tags="old")
    broker.put("orders", 0, b"3", tags="paid")
    broker.put("orders", 0, b"4")
    async with mq.subscribe("orders", group="billing", tags="new || paid") as messages:
        async for message in messages:
            if message.body == b"3":
                break
            assert message.body == b"1"
    assert broker.heartbeats[0]["subscriptions"] == [{"topic": "orders", "tags": "new || paid"}]
    assert broker.committed["orders", 0] == 4


async def test_a_missing_topic_is_an_error_at_the_door(mq: tidemark.Client) -> None:
    with pytest.raises(errors.UnknownTopic):
        async with mq.subscribe("missing", group="billing"):
            pytest.fail("it let us in")


async def test_a_background_part_that_dies_is_heard_of_where_messages_are_asked_for(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    async def gone(_request: web.Request) -> web.Response:
        return error(404, "unknown-topic")

    broker.group_faults["fetch"] = [gone]
    with pytest.raises(errors.UnknownTopic):
        await handle_all(mq.subscribe("orders", group="billing"), fails_at(b""))


async def test_a_commit_that_cannot_be_made_any_more_says_so(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    """1. A commit is refused for good, and the part that commits dies of it; 2. the program asks
    for a commit of its own, which that part should make; 3. it waited for ever."""

    async def refused(_request: web.Request) -> web.Response:
        return error(400, "bad-request")

    broker.put("orders", 0, b"1", b"2")
    broker.group_faults["commit"] = [refused]
    async with mq.subscribe("orders", group="billing") as messages:
        assert await take(messages, 1) == [b"1"]
        # What was in hand is done by asking on; the commit that follows of it is refused.
        assert await take(messages, 1) == [b"2"]
        with pytest.raises(errors.BadRequest):
            await asyncio.wait_for(messages.commit(), 10)


async def test_asking_again_after_an_error_raises_it_again(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    async def gone(_request: web.Request) -> web.Response:
        return error(404, "unknown-topic")

    broker.group_faults["fetch"] = [gone]
    async with mq.subscribe("orders", group="billing") as messages:
        for _ in range(2):
            with pytest.raises(errors.UnknownTopic):
                await take(messages, 1)


async def test_a_failed_message_that_has_expired_counts_as_done(
    broker: GroupBroker, mq: tidemark.Client, caplog: pytest.LogCaptureFixture
) -> None:
    async def unknown(_request: web.Request) -> web.Response:
        return error(404, "unknown-message")

    broker.put("orders", 0, b"1", b"2")
    broker.group_faults["nack"] = [unknown, unknown]
    async with mq.subscribe("orders", group="billing", member="m") as messages:
        async for message in messages:
            with pytest.raises(errors.UnknownMessage):
                await messages.nack(message)
            break
    with pytest.raises(ZeroDivisionError):
        await handle_all(mq.subscribe("orders", group="billing"), fails_at(b"2"))
    assert "a message that was to be sent back has expired" in caplog.messages
    assert broker.committed["orders", 0] == 2


async def test_a_part_that_dies_while_the_body_does_not_ask_is_heard_of_at_its_end(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    async def gone(_request: web.Request) -> web.Response:
        return error(404, "unknown-topic")

    async def idle() -> None:
        async with mq.subscribe("orders", group="billing") as messages:
            broker.group_faults["heartbeat"] = [gone]
            messages._member.hurry()
            while not messages._feed.is_interrupted:
                await messages._member.pulse.wait()

    with pytest.raises(errors.UnknownTopic):
        await idle()


async def test_stop_ends_the_loop_after_the_message_in_hand(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1", b"2", b"3")
    async with mq.subscribe("orders", group="billing") as messages:
        async for message in messages:
            if message.body == b"2":
                messages.stop()
    assert broker.committed["orders", 0] == 2


async def test_a_lost_answer_to_a_fetch_loses_no_message(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    """The broker's cursor has moved behind messages that never arrived; the client says where."""
    broker.put("orders", 0, b"1", b"2")
    broker.lost_answers["fetch"] = 1
    async with mq.subscribe("orders", group="billing") as messages:
        assert await take(messages, 2) == [b"1", b"2"]
        broker.lost_answers["fetch"] = 2
        broker.put("orders", 0, b"3", b"4")
        assert await take(messages, 2) == [b"3", b"4"]
    assert broker.committed["orders", 0] == 4


async def test_a_commit_whose_answer_is_lost_is_made_again(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1")
    broker.lost_answers["commit"] = 2
    async with mq.subscribe("orders", group="billing") as messages:
        await take(messages, 1)
    assert [commit["offsets"] for commit in broker.commits] == [{("orders", 0): 1}] * 3


async def test_a_restarted_broker_costs_no_message_and_no_duplicate(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, *(b"%d" % n for n in range(4)))
    revoked: list[object] = []

    async def on_revoked(queues: object) -> None:
        revoked.append(queues)

    async with mq.subscribe("orders", group="billing", on_revoked=on_revoked) as messages:
        assert await take(messages, 2) == [b"0", b"1"]
        await messages.commit()
        before = messages.generation
        broker.forget()
        broker.put("orders", 0, b"4")
        assert await take(messages, 3) == [b"2", b"3", b"4"]
        assert messages.generation != before
        assert revoked == []
    assert broker.committed["orders", 0] == 5


# 1. Messages are handled and committed; 2. the broker is killed before it has written that; 3. it
# says that the queue is kept: to begin at what is committed would hand them out again.
async def test_commits_that_a_broker_lost_are_made_again_for_a_queue_that_is_kept(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, *(b"%d" % n for n in range(4)))
    async with mq.subscribe("orders", group="billing") as messages:
        assert await take(messages, 3) == [b"0", b"1", b"2"]
        await messages.commit()
        broker.keeps = True
        broker.committed["orders", 0] = 1
        broker.forget()
        broker.put("orders", 0, b"4")
        assert await take(messages, 2) == [b"3", b"4"]
        assert ["orders", 0] in broker.heartbeats[-1]["holding"]
        await broker.until(lambda: broker.committed["orders", 0] == 4)
    assert broker.committed["orders", 0] == 5


async def test_who_has_lost_its_lease_claims_nothing(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"0")
    async with mq.subscribe("orders", group="billing") as messages:
        assert await take(messages, 1) == [b"0"]
        messages._member.lease.ended()
        broker.forget()
        messages._member.hurry()
        await broker.until(lambda: bool(broker.members))
        assert broker.heartbeats[-1]["holding"] == []


async def test_what_others_committed_while_we_were_forgotten_is_not_handed_out_again(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, *(b"%d" % n for n in range(6)))
    revoked: list[object] = []

    async def on_revoked(queues: object) -> None:
        revoked.append(queues)

    async with mq.subscribe(
        "orders", group="billing", max_in_flight=2, on_revoked=on_revoked
    ) as messages:
        assert await take(messages, 1) == [b"0"]
        await messages.commit()
        broker.committed["orders", 0] = 4
        broker.forget()
        messages._member.hurry()
        await broker.until(lambda: bool(broker.members))
        while not revoked:
            await messages._member.pulse.wait()
        assert await take(messages, 2) == [b"4", b"5"]
    assert broker.committed["orders", 0] == 6
    assert revoked[0] == [("orders", 0)]  # nobody touched the other one


async def test_a_queue_that_is_taken_away_is_finished_told_and_committed_before_it_is_released(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1", b"2", b"3")
    events: list[tuple[str, object]] = []

    async def on_assigned(queues: list[tuple[str, int]]) -> None:
        events.append(("assigned", queues))

    async def on_revoked(queues: list[tuple[str, int]]) -> None:
        events.append(("revoked", queues))
        if queues == [("orders", 0)]:
            assert broker.committed["orders", 0] == 0
            assert ("orders", 0) in broker.holding["m"]

    async with mq.subscribe(
        "orders",
        group="billing",
        member="m",
        commit_interval_ms=60_000,
        on_assigned=on_assigned,
        on_revoked=on_revoked,
    ) as messages:
        assert await take(messages, 1) == [b"1"]
        broker.assign("other", [("orders", 0)])
        await until_hold(messages, ("orders", 0), Hold.LEAVING)
        # In hand, so still held: nobody else may have the queue yet.
        assert events == [("assigned", [("orders", 0), ("orders", 1)])]
        broker.put("orders", 1, b"4")
        assert await take(messages, 1) == [b"4"]  # 2 and 3 are for the other member
        await broker.until(lambda: ("orders", 0) not in broker.holding["m"])
        assert events[1:] == [("revoked", [("orders", 0)])]
        assert broker.committed["orders", 0] == 1
    assert broker.committed == {("orders", 0): 1, ("orders", 1): 1}
    assert events[2:] == [("revoked", [("orders", 1)])]


async def test_a_queue_that_comes_back_starts_from_what_is_committed(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1", b"2", b"3")
    async with mq.subscribe("orders", group="billing", member="m") as messages:
        assert await take(messages, 1) == [b"1"]
        broker.assign("other", [("orders", 0)])
        await until_hold(messages, ("orders", 0), Hold.LEAVING)
        broker.put("orders", 1, b"x")
        assert await take(messages, 1) == [b"x"]
        await broker.until(lambda: ("orders", 0) not in broker.holding["m"])
        broker.committed["orders", 0] = 2
        broker.assign("m", [("orders", 0), ("orders", 1)])
        broker.cursors["m", ("orders", 0)] = 3  # a broker that forgot to set it back
        assert await take(messages, 1) == [b"3"]


async def test_a_member_without_a_lease_hands_out_nothing(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1", b"2")
    async with mq.subscribe("orders", group="billing") as messages:
        assert await take(messages, 1) == [b"1"]
        broker.answers_heartbeats.clear()
        messages._member.lease.ended()
        asking = asyncio.ensure_future(take(messages, 1))
        await asyncio.wait({asking}, timeout=0.2)
        assert not asking.done()
        messages._member.hurry()
        broker.answers_heartbeats.set()
        assert await asking == [b"2"]


async def test_a_stale_commit_leaves_again_under_the_new_generation(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1")
    async with mq.subscribe("orders", group="billing") as messages:
        await take(messages, 1)
        broker.generation += 1
    assert broker.committed["orders", 0] == 1


async def test_a_commit_of_a_queue_that_is_not_ours_does_not_hold_up_the_others(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1")
    broker.put("orders", 1, b"2")
    async with mq.subscribe("orders", group="billing", commit_interval_ms=60_000) as messages:
        await take(messages, 2)
        (name,) = broker.members
        # As if its session had ended and another had it: without a new generation.
        broker.members[name] = [("orders", 1)]
        broker.holding[name] = set()
    assert broker.committed["orders", 1] == 1
    assert broker.committed["orders", 0] == 0


async def test_expired_messages_are_passed_over_and_said(
    broker: GroupBroker, mq: tidemark.Client, caplog: pytest.LogCaptureFixture
) -> None:
    broker.put("orders", 0, *(b"%d" % n for n in range(5)))
    broker.min_offsets["orders", 0] = 3
    async with mq.subscribe("orders", group="billing") as messages:
        assert await take(messages, 2) == [b"3", b"4"]
    (record,) = [each for each in caplog.records if "expired" in each.message]
    assert record.messages == 3  # type: ignore[attr-defined]
    assert broker.committed["orders", 0] == 5


async def test_no_more_is_fetched_than_may_be_in_flight(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, *(b"%d" % n for n in range(9)))
    async with mq.subscribe("orders", group="billing", max_in_flight=1) as messages:
        seen = 0
        async for _message in messages:
            seen += 1
            assert broker.cursors[messages.member, ("orders", 0)] == seen
            if seen == 9:
                break
    assert {fetch["max"] for fetch in broker.fetches} == {1}


async def test_settings_of_the_group_are_made_before_it_is_joined(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    async with mq.subscribe("orders", group="billing", start="last", broadcast=False):
        assert broker.config["start"] == "last"


async def test_a_subscription_is_entered_before_it_is_asked_and_once(mq: tidemark.Client) -> None:
    # `async for message in mq.subscribe(...)` once waited for ever, and said nothing.
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


async def test_settings_that_cannot_work_are_refused(mq: tidemark.Client) -> None:
    with pytest.raises(ValueError, match="max_in_flight"):
        mq.subscribe("orders", group="billing", max_in_flight=0)
    with pytest.raises(ValueError, match="commit_interval_ms"):
        mq.subscribe("orders", group="billing", commit_interval_ms=-1)
    with pytest.raises(ValueError, match="at least one topic"):
        mq.subscribe({}, group="billing")
    # They were once passed over, and messages of all tags came.
    with pytest.raises(ValueError, match="its own expression"):
        mq.subscribe({"orders": "*"}, group="billing", tags="new")


async def test_fetches_that_wait_take_no_place_from_other_calls(broker: GroupBroker) -> None:
    """A pool of one connection, and a held fetch: heartbeats and commits go on."""
    connection = Connection(broker.url, connections_max=1)
    async with Client(connection, Limits()) as mq, mq.subscribe("orders", group="billing") as ms:
        await broker.until(lambda: bool(broker.fetches))
        broker.put("orders", 0, b"1")
        assert await take(ms, 1) == [b"1"]
    assert broker.committed["orders", 0] == 1


async def test_a_body_that_never_waits_gives_way_to_heartbeats(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, *(b"%d" % n for n in range(50)))
    async with mq.subscribe("orders", group="billing") as messages:
        await broker.until(lambda: len(broker.fetches) > 1)  # all are here
        heartbeats, seen = len(broker.heartbeats), 0
        messages._member.hurry()
        async for _message in messages:
            seen += 1
            time.sleep(TURN_MS / 1000)  # noqa: ASYNC251 — a program that blocks
            if len(broker.heartbeats) > heartbeats:
                break
        assert seen < 50, "no heartbeat while there were messages"


@pytest.mark.parametrize(("start", "expected"), [("last", [b"2", b"3"]), ("first", [b"1", b"2"])])
async def test_a_broadcast_member_goes_on_where_it_was_after_a_restart(
    broker: GroupBroker, mq: tidemark.Client, start: str, expected: list[bytes]
) -> None:
    """It had no message yet: the broker, asked anew, would begin behind what came meanwhile."""
    broker.put("orders", 0, b"1")
    settings: dict[str, Any] = {"group": "billing", "broadcast": True, "start": start}
    async with mq.subscribe("orders", **settings) as messages:
        broker.forget()
        broker.put("orders", 0, b"2", b"3")
        broker.committed["orders", 0] = 3  # where our double puts the cursor of who joins
        assert await take(messages, 2) == expected
    assert broker.commits == []


async def test_a_broadcast_member_that_fails_leaves_and_sends_nothing_back(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1", b"2")
    with pytest.raises(ZeroDivisionError):
        await handle_all(mq.subscribe("orders", group="billing", broadcast=True), fails_at(b"2"))
    assert broker.nacks == []
    assert broker.commits == []
    assert len(broker.left) == 1


async def test_a_broadcast_member_that_cannot_find_where_to_begin_is_none(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    async def refused(_request: web.Request) -> web.Response:
        return error(403, "not-permitted")

    broker.group_faults["group"] = [refused]
    broker.config["broadcast"] = True
    with pytest.raises(errors.NotPermitted):
        await mq.subscribe("orders", group="billing").__aenter__()
    assert len(broker.left) == 1


async def test_members_that_start_together_set_the_group_one_after_another(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    async def being_changed(_request: web.Request) -> web.Response:
        return error(409, "group-in-use")

    async def has_members(_request: web.Request) -> web.Response:
        return error(409, "group-in-use", members=2)

    broker.group_faults["group"] = [being_changed, being_changed]
    async with mq.subscribe("orders", group="billing", order=True):
        assert broker.config["order"] is True
    broker.group_faults["group"] = [has_members]
    with pytest.raises(errors.GroupInUse):
        await mq.subscribe("orders", group="billing", order=False).__aenter__()


async def test_where_a_queue_begins_is_what_is_committed_and_not_what_came_too_early(
    mq: tidemark.Client,
) -> None:
    """1. a queue is assigned; 2. a fetch sent before brings it from offset 1 on, and is dropped;
    3. committed is 0: begun at 1, the message at 0 would be committed with those behind it.
    """
    messages = mq.subscribe("orders", group="billing")
    (held,) = messages._member.holdings.assign([("orders", 0)]).arriving
    early = FetchedQueue(("orders", 0), "FOUND", 1, 5, 0, memoryview(b""))
    messages._feed.fetching._accept(early)
    assert held.fetched_to is None
    held.start_at(0)
    assert held.progress.position == 0
