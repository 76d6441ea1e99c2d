"""Queues of a subscription that are kept, lost and gained: lost responses, restarts, new owners."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import tidemark
from tests.support.subscribed import broker as broker
from tests.support.subscribed import mq as mq
from tests.support.subscribed import take, until_hold
from tests.unit.client.group_broker import GroupBroker
from tidemark.client.batching import Limits
from tidemark.client.client import Client
from tidemark.client.cluster import Cluster
from tidemark.client.cluster_producer import ClusterProducer
from tidemark.client.connection import ConnectionSettings
from tidemark.client.group_calls import FetchedQueue
from tidemark.client.holdings import Hold
from tidemark.client.subscription import TURN_MS


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


async def test_messages_in_hand_that_the_broker_has_lost_do_not_disturb_the_new_ones(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    # The queue then has other messages at the offsets that are in hand and buffered.
    broker.put("orders", 0, *(b"%d" % n for n in range(9)))
    broker.keeps = True
    taken = []
    async with mq.subscribe("orders", group="billing", commit_interval_ms=60_000) as messages:
        async for message in messages:
            taken.append(message.body)
            if message.body == b"4":
                del broker.queues["orders"][0][3:]
                broker.forget()
                member = messages._engine.engines[0].member
                while (held := member.holdings.get(("orders", 0))) is None or held.fetched_to != 3:
                    await member.pulse.wait()
                broker.put("orders", 0, b"new 3", b"new 4")
            if message.body == b"new 4":
                break
    assert taken == [b"0", b"1", b"2", b"3", b"4", b"new 3", b"new 4"]
    assert broker.committed["orders", 0] == 5


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
# confirms that the queue is kept: to begin at the committed offset would deliver them again.
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


# 1. The broker restarts; 2. a member leaves before it has joined again; 3. what it had done since
# was not committed, and `close` raised nothing.
async def test_a_member_that_leaves_while_the_broker_restarts_commits_what_is_done(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, *(b"%d" % n for n in range(4)))
    revoked: list[tuple[str, int]] = []

    async def on_revoked(queues: list[tuple[str, int]]) -> None:
        revoked.extend(queues)

    messages = mq.subscribe("orders", group="billing", on_revoked=on_revoked)
    async with messages:
        taken = await messages.getmany(3)
        await messages.ack(taken[0])
        await messages.commit()
        broker.forget()
        await messages.ack(*taken[1:])
    assert broker.committed["orders", 0] == 3
    assert revoked.count(("orders", 0)) == 1


async def test_a_member_without_a_lease_claims_no_queue(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"0")
    async with mq.subscribe("orders", group="billing") as messages:
        assert await take(messages, 1) == [b"0"]
        messages._engine.engines[0].member.session_limit.ended()
        broker.forget()
        messages._engine.engines[0].member.hurry()
        await broker.until(lambda: bool(broker.members))
        assert broker.heartbeats[-1]["holding"] == []


async def test_messages_that_others_committed_after_a_restart_are_not_delivered_again(
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
        messages._engine.engines[0].member.hurry()
        await broker.until(lambda: bool(broker.members))
        while not revoked:
            await messages._engine.engines[0].member.pulse.wait()
        assert await take(messages, 2) == [b"4", b"5"]
    assert broker.committed["orders", 0] == 6
    assert revoked[0] == [("orders", 0)]  # the other queue was not touched


async def test_a_lost_queue_is_finished_reported_and_committed_before_its_release(
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
        # In hand, so still held: no other member may have the queue yet.
        assert events == [("assigned", [("orders", 0), ("orders", 1)])]
        broker.put("orders", 1, b"4")
        assert await take(messages, 1) == [b"4"]  # 2 and 3 are for the other member
        await broker.until(lambda: ("orders", 0) not in broker.holding["m"])
        assert events[1:] == [("revoked", [("orders", 0)])]
        assert broker.committed["orders", 0] == 1
    assert broker.committed == {("orders", 0): 1, ("orders", 1): 1}
    assert events[2:] == [("revoked", [("orders", 1)])]


async def test_a_queue_that_comes_back_starts_at_the_committed_offset(
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


async def test_a_queue_begins_at_the_committed_offset_despite_an_early_fetch(
    mq: tidemark.Client,
) -> None:
    """1. a queue is assigned; 2. a fetch sent before brings it from offset 1 on, and is dropped;
    3. committed is 0: begun at 1, the message at 0 would be committed with those behind it.
    """
    consumer = mq.subscribe("orders", group="billing")._engine
    engine = consumer._engine(mq._cluster.home, consumer._settings)
    (held,) = engine.member.holdings.assign([("orders", 0)]).arriving
    early = FetchedQueue(("orders", 0), "FOUND", 1, 5, 0, memoryview(b""))
    engine.fetching._accept(early)
    assert held.fetched_to is None
    held.start_at(0)
    assert held.progress.position == 0


async def test_a_member_without_a_lease_hands_out_nothing(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, b"1", b"2")
    async with mq.subscribe("orders", group="billing") as messages:
        assert await take(messages, 1) == [b"1"]
        broker.answers_heartbeats.clear()
        messages._engine.engines[0].member.session_limit.ended()
        asking = asyncio.ensure_future(take(messages, 1))
        await asyncio.wait({asking}, timeout=0.2)
        assert not asking.done()
        messages._engine.engines[0].member.hurry()
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


async def test_a_commit_of_a_lost_queue_does_not_hold_up_the_others(
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


async def test_held_fetches_take_no_connection_from_other_calls(broker: GroupBroker) -> None:
    """A pool of one connection, and a held fetch: heartbeats and commits go on."""
    settings, limits = ConnectionSettings(connections_max=1), Limits()
    cluster = Cluster([broker.url], settings, limits)
    producer = ClusterProducer(cluster, limits, retry_for_s=30.0, keyed_when_down="wait")
    client = Client(cluster, producer)
    async with client as mq, mq.subscribe("orders", group="billing") as ms:
        await broker.until(lambda: bool(broker.fetches))
        broker.put("orders", 0, b"1")
        assert await take(ms, 1) == [b"1"]
    assert broker.committed["orders", 0] == 1


async def test_a_body_that_never_waits_does_not_block_heartbeats(
    broker: GroupBroker, mq: tidemark.Client
) -> None:
    broker.put("orders", 0, *(b"%d" % n for n in range(50)))
    async with mq.subscribe("orders", group="billing") as messages:
        await broker.until(lambda: len(broker.fetches) > 1)  # all are here
        heartbeats, seen = len(broker.heartbeats), 0
        messages._engine.engines[0].member.hurry()
        async for _message in messages:
            seen += 1
            time.sleep(TURN_MS / 1000)  # noqa: ASYNC251 — a program that blocks
            if len(broker.heartbeats) > heartbeats:
                break
        assert seen < 50, "no heartbeat while there were messages"
