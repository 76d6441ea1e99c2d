"""A subscription: what its body receives, and what is committed or nacked at its end."""

from __future__ import annotations

import asyncio

import pytest

import tidemark
from tests.support.still_clock import until
from tests.support.subscribed import broker as broker
from tests.support.subscribed import fails_at, handle_all, refusal, take
from tests.support.subscribed import mq as mq
from tests.unit.client.group_broker import GroupBroker
from tidemark import Message, errors


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
    broker.group_faults["nack"] = [refusal(400, "bad-request")]
    with pytest.raises(ZeroDivisionError) as caught:
        await handle_all(mq.subscribe("orders", group="billing"), fails_at(b"2"))
    assert "bad-request" in caught.value.__notes__[0]
    assert broker.committed["orders", 0] == 1
    assert len(broker.left) == 1


async def test_a_failed_message_that_has_expired_counts_as_done(
    broker: GroupBroker, mq: tidemark.Client, caplog: pytest.LogCaptureFixture
) -> None:
    broker.put("orders", 0, b"1", b"2")
    broker.group_faults["nack"] = [refusal(404, "unknown-message")] * 2
    async with mq.subscribe("orders", group="billing", member="m") as messages:
        async for message in messages:
            with pytest.raises(errors.UnknownMessage):
                await messages.nack(message)
            break
    with pytest.raises(ZeroDivisionError):
        await handle_all(mq.subscribe("orders", group="billing"), fails_at(b"2"))
    (text,) = [each for each in caplog.messages if "was to be nacked has expired" in each]
    assert "of group 'billing'" in text
    assert broker.committed["orders", 0] == 2


async def test_in_an_ordered_group_a_failed_message_stays_in_its_place(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1", b"2", b"3")
    with pytest.raises(ZeroDivisionError):
        await handle_all(mq.subscribe("orders", group="billing", order=True), fails_at(b"2"))
    assert broker.nacks == []
    assert broker.committed["orders", 0] == 1
    async with mq.subscribe("orders", group="billing") as messages:
        assert await take(messages, 2) == [b"2", b"3"]


async def test_a_broadcast_member_that_fails_leaves_and_sends_nothing_back(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1", b"2")
    with pytest.raises(ZeroDivisionError):
        await handle_all(mq.subscribe("orders", group="billing", broadcast=True), fails_at(b"2"))
    assert broker.nacks == []
    assert broker.commits == []
    assert len(broker.left) == 1


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


async def test_stop_ends_the_loop_after_the_message_in_hand(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1", b"2", b"3")
    async with mq.subscribe("orders", group="billing") as messages:
        async for message in messages:
            if message.body == b"2":
                messages.stop()
    assert broker.committed["orders", 0] == 2


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


async def test_tags_are_compared_again_and_excluded_messages_are_committed(
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


async def test_expired_messages_are_skipped_and_logged(
    broker: GroupBroker, mq: tidemark.Client, caplog: pytest.LogCaptureFixture
) -> None:
    broker.put("orders", 0, *(b"%d" % n for n in range(5)))
    broker.min_offsets["orders", 0] = 3
    async with mq.subscribe("orders", group="billing") as messages:
        assert await take(messages, 2) == [b"3", b"4"]
    (record,) = [each for each in caplog.records if "expired" in each.message]
    assert record.messages == 3  # type: ignore[attr-defined]
    assert "of group 'billing'" in record.message
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


async def test_what_a_loop_has_passed_is_committed_while_it_works_on_the_next_message(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, *[b"%d" % number for number in range(100)])
    async with mq.subscribe("orders", group="billing", commit_interval_ms=1) as messages:
        async for message in messages:
            if message.queue_offset == 70:  # the body has awaited nothing until here
                await until(lambda: broker.committed.get(("orders", 0)) == 70)
                break
    assert broker.committed["orders", 0] == 71


async def test_what_a_loop_has_passed_is_done_when_its_body_fails(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, *[b"%d" % number for number in range(10)])
    with pytest.raises(ZeroDivisionError):
        await handle_all(mq.subscribe("orders", group="billing"), fails_at(b"6"))
    assert [nack["queue_offset"] for nack in broker.nacks] == [6]
    assert broker.committed["orders", 0] == 7


async def test_a_passed_message_cannot_be_nacked_into_a_redelivery_of_later_ones(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1", b"2", b"3")
    passed: list[Message] = []
    async with mq.subscribe("orders", group="billing") as messages:
        async for message in messages:
            passed.append(message)
            if len(passed) == 3:
                await messages.nack(passed[0])
                await messages.commit()
                assert broker.committed["orders", 0] == 2
                break
    assert [nack["queue_offset"] for nack in broker.nacks] == [0]
    assert broker.committed["orders", 0] == 3


async def test_a_loop_that_never_awaits_gets_nothing_more_after_a_stop_or_a_seek(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1", b"2", b"3", b"4")
    seen: list[bytes] = []
    async with mq.subscribe("orders", group="billing") as messages:
        async for message in messages:
            seen.append(message.body)
            if message.body == b"2":
                messages.stop()
    assert seen == [b"1", b"2"]
    assert broker.committed["orders", 0] == 2
