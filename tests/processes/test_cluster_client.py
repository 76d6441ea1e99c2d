"""Programs use several broker groups as one cluster: real stores behind a name service.

The name service is ``tests/support/route_server.py``; its answers are those of the contract.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import tidemark
from tests.support.route_server import RouteServer, in_a_thread
from tidemark import errors
from tidemark.client.queue_choice import queue_of_key, writable_queues
from tidemark.testing import LocalStore
from tidemark.testing.ports import free_ports

PATIENCE_S = 15.0


class Stores:
    """Broker groups by name, and the name service in front of them."""

    def __init__(self, directory: Path, names: RouteServer) -> None:
        self.directory, self.names = directory, names
        self.by_name: dict[str, LocalStore] = {}

    def add(self, name: str) -> LocalStore:
        settings = {"auto_create_topics": False}
        store = LocalStore(self.directory / name, settings=settings)
        store.start()
        self.by_name[name] = store
        self.names.urls[name] = store.url
        return store


@pytest.fixture
async def names() -> AsyncIterator[RouteServer]:
    async with RouteServer().serve() as server:
        yield server


@pytest.fixture
async def stores(tmp_path: Path, names: RouteServer) -> AsyncIterator[Stores]:
    made = Stores(tmp_path, names)
    try:
        for name in ("g0", "g1", "g2"):
            await asyncio.to_thread(made.add, name)
        yield made
    finally:
        for store in made.by_name.values():
            await asyncio.to_thread(store.close)


@pytest.fixture
async def mq(stores: Stores) -> AsyncIterator[tidemark.Client]:
    async with tidemark.connect(stores.names.url) as client:
        await client.create_topic("orders", queues=2)
        await until_route(client, "orders", 3)
        yield client


async def until_route(client: tidemark.Client, topic: str, count: int) -> None:
    """Wait until the client knows that this many broker groups have the topic."""

    async def has_them() -> bool:
        return len((await client.routes(topic)).groups) == count

    await until(has_them)


async def until_listed(client: tidemark.Client, count: int) -> None:
    """Wait until the client knows this many broker groups."""

    async def are_listed() -> bool:
        return len((await client.routes()).groups) == count

    await until(are_listed)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await holds():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.02)


async def bodies(messages: tidemark.Subscription, count: int) -> list[bytes]:
    """Take this many messages."""
    found: list[bytes] = []
    async with asyncio.timeout(PATIENCE_S):
        async for message in messages:
            found.append(message.body)
            if len(found) == count:
                return found
    raise AssertionError("the subscription has stopped")


async def test_keys_wait_for_all_broker_groups_and_other_messages_do_not(
    stores: Stores, mq: tidemark.Client
) -> None:
    key = "customer-7"
    place = (await mq.send("orders", b"1", sharding_key=key)).broker_group
    stores.names.missing = {str(place)}
    async with tidemark.connect(stores.names.url) as fresh:
        assert (await fresh.send("orders", b"2")).broker_group != place
        with pytest.raises(errors.RouteIncomplete, match=str(place)):
            await fresh.send("orders", b"3", sharding_key=key, timeout_ms=200)
        with pytest.raises(errors.RouteIncomplete):
            await fresh.drain(place)
        waiting = asyncio.create_task(fresh.send_many("orders", [keyed(b"4", key)]))
        # A client that knew all of them goes on.
        assert (await mq.send("orders", b"5", sharding_key=key)).broker_group == place
        assert not waiting.done()
        stores.names.missing = set()
        async with asyncio.timeout(PATIENCE_S):
            (sent,) = await waiting
    assert sent.broker_group == place


def keyed(body: bytes, key: str) -> tidemark.NewMessage:
    return tidemark.NewMessage(body, sharding_key=key)


async def test_the_first_message_of_the_readme_is_sent_and_read(mq: tidemark.Client) -> None:
    sent = await mq.send("orders", b"hello", tags="new", keys=["order-1"])
    assert sent.broker_group in ("g0", "g1", "g2")
    async with mq.subscribe("orders", group="billing", start="first") as messages:
        assert await bodies(messages, 1) == [b"hello"]
    (found,) = await mq.messages_by_key("orders", "order-1")
    assert (found.queue, found.body) == (f"{sent.broker_group}/{sent.queue}", b"hello")


async def test_messages_without_key_go_round_all_broker_groups(mq: tidemark.Client) -> None:
    sent = [await mq.send("orders", b"x") for _ in range(12)]
    assert Counter(each.broker_group for each in sent) == {"g0": 4, "g1": 4, "g2": 4}
    assert len({(each.broker_group, each.queue) for each in sent}) == 6
    at_once = await asyncio.gather(*(mq.send("orders", b"x") for _ in range(300)))
    assert Counter(each.broker_group for each in at_once) == {"g0": 100, "g1": 100, "g2": 100}


async def test_a_key_keeps_its_order_in_the_queue_of_its_hash(mq: tidemark.Client) -> None:
    keys = [f"customer-{n}" for n in range(9)]
    for n in range(5):
        await mq.send_many(
            "orders", [tidemark.NewMessage(b"%d" % n, sharding_key=key) for key in keys]
        )
    seen: dict[str, list[bytes]] = {key: [] for key in keys}
    queues: dict[str, set[Any]] = {key: set() for key in keys}

    async def handle(message: tidemark.Message) -> None:
        key = message.properties["__SHARDINGKEY"]
        seen[key].append(message.body)
        queues[key].add(message.queue)
        if all(len(each) == 5 for each in seen.values()):
            messages.stop()

    async with mq.subscribe("orders", group="billing", start="first") as messages:
        async with asyncio.timeout(PATIENCE_S):
            await messages.run(handle, concurrency=8)
    assert set(map(tuple, seen.values())) == {(b"0", b"1", b"2", b"3", b"4")}
    assert all(len(each) == 1 for each in queues.values())
    assert len({str(queue).partition("/")[0] for each in queues.values() for queue in each}) > 1


async def test_results_of_a_list_are_in_its_order(mq: tidemark.Client) -> None:
    listed: list[tidemark.NewMessage | bytes] = [
        b"free",
        tidemark.NewMessage(b"keyed", sharding_key="order-1"),
        tidemark.NewMessage(b"named", queue="g2/1"),
    ]
    free, keyed, named = await mq.send_many("orders", listed)
    assert (named.broker_group, named.queue) == ("g2", 1)
    again = await mq.send("orders", b"keyed", sharding_key="order-1")
    assert (again.broker_group, again.queue) == (keyed.broker_group, keyed.queue)
    assert again.queue_offset == keyed.queue_offset + 1
    assert free.broker_group is not None


async def test_a_number_is_no_queue_of_a_topic_in_several_broker_groups(
    mq: tidemark.Client,
) -> None:
    with pytest.raises(errors.BadRequest, match="g0/1"):
        await mq.send("orders", b"x", queue=1)
    with pytest.raises(errors.BadRequest, match="g0/1"):
        await mq.pull("orders", 1, 0)
    with pytest.raises(errors.UnknownBrokerGroup, match="g7"):
        await mq.send("orders", b"x", queue="g7/1")
    await mq.create_topic("small", queues=1, broker_groups=["g1"])
    await until_route(mq, "small", 1)
    assert (await mq.send("small", b"x", queue=0)).broker_group == "g1"
    pulled = await mq.pull("small", 0, 0, wait_ms=10_000)
    assert [message.queue for message in pulled.messages] == ["g1/0"]


async def test_without_one_broker_group_free_messages_go_elsewhere_and_keyed_ones_wait(
    stores: Stores, mq: tidemark.Client
) -> None:
    key = "0"
    while (await mq.send("orders", b"0", sharding_key=key)).broker_group != "g1":
        key += "0"
    await asyncio.to_thread(stores.by_name["g1"].stop)
    for _ in range(12):
        async with asyncio.timeout(2.0):
            assert (await mq.send("orders", b"free")).broker_group in ("g0", "g2")
    keyed = asyncio.create_task(mq.send("orders", b"1", sharding_key=key))
    await asyncio.sleep(0.2)
    assert not keyed.done()
    async with tidemark.connect(stores.names.url, keyed_when_down="reject") as hasty:
        with pytest.raises(errors.BrokerGroupDown, match="g1"):
            await hasty.send("orders", b"2", sharding_key=key)
    with pytest.raises(errors.Unreachable):
        await mq.send("orders", b"3", sharding_key=key, timeout_ms=300)
    await asyncio.to_thread(stores.by_name["g1"].start)
    assert (await keyed).broker_group == "g1"

    async def is_back() -> bool:
        return (await mq.send("orders", b"free")).broker_group == "g1"

    await until(is_back)


async def test_a_group_over_all_broker_groups_handles_every_message_once(
    stores: Stores, mq: tidemark.Client
) -> None:
    """A fourth broker group is added meanwhile."""
    seen: Counter[bytes] = Counter()
    assigned: set[Any] = set()

    async def handle(message: tidemark.Message) -> None:
        seen[message.body] += 1

    async def until_seen(count: int) -> None:
        async def are_seen() -> bool:
            return len(seen) == count

        await until(are_seen)

    async def on_assigned(queues: list[Any]) -> None:
        assigned.update(queues)

    async with contextlib.AsyncExitStack() as members:
        runs: list[asyncio.Task[None]] = []
        for _ in range(2):
            messages = mq.subscribe(
                "orders", group="billing", start="first", on_assigned=on_assigned
            )
            await members.enter_async_context(messages)
            runs.append(asyncio.create_task(messages.run(handle, concurrency=4)))
        await mq.send_many("orders", [b"a%d" % n for n in range(60)])
        await asyncio.gather(*(mq.send("orders", b"b%d" % n) for n in range(60)))
        await until_seen(120)
        assert {queue for _, queue in assigned} == {
            f"{group}/{queue}" for group in ("g0", "g1", "g2") for queue in range(2)
        }
        await asyncio.to_thread(stores.add, "g3")
        await until_listed(mq, 4)
        await mq.sync_topic("orders", broker_groups=["g3"])
        await until_route(mq, "orders", 4)
        sent = [await mq.send("orders", b"c%d" % n) for n in range(40)]
        assert Counter(each.broker_group for each in sent)["g3"] == 10
        await until_seen(160)
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
    assert set(seen.values()) == {1}
    offsets = await mq.groups.offsets("billing")
    assert {queue for topic, queue in offsets if topic == "orders"} == {
        f"g{group}/{queue}" for group in range(4) for queue in range(2)
    }


async def test_a_nacked_message_comes_again_from_its_broker_group(mq: tidemark.Client) -> None:
    await mq.send("orders", b"x", queue="g1/1")
    async with mq.subscribe("orders", group="billing", start="first") as messages:
        first = await messages.getone(PATIENCE_S)
        assert first is not None
        assert first.queue == "g1/1"
        await messages.nack(first, delay_level=1)
        again = await messages.getone(PATIENCE_S)
        assert again is not None
        assert (again.body, again.reconsume_times) == (b"x", 1)
        assert str(again.queue).startswith("g1/")
        await messages.ack(again)


async def test_queues_of_a_cluster_are_paused_sought_and_positioned(mq: tidemark.Client) -> None:
    for n in range(3):
        await mq.send("orders", b"%d" % n, queue="g2/0")
    async with mq.subscribe("orders", group="billing", start="first") as messages:
        assert await bodies(messages, 3) == [b"0", b"1", b"2"]
        assert ("orders", "g2/0") in messages.assignment
        messages.pause(("orders", "g2/0"))
        assert messages.paused == {("orders", "g2/0")}
        messages.resume(("orders", "g2/0"))
        await messages.seek("orders", "g2/0", 1)
        assert await bodies(messages, 2) == [b"1", b"2"]
        assert messages.position("orders", "g2/0") == 3


async def test_a_broker_group_that_goes_is_left_and_the_others_go_on(
    stores: Stores, mq: tidemark.Client
) -> None:
    revoked: set[Any] = set()

    async def on_revoked(queues: list[Any]) -> None:
        revoked.update(queue for _, queue in queues)

    async def are_revoked() -> bool:
        return revoked == {"g2/0", "g2/1"}

    settings: dict[str, Any] = {"session_ms": 6000, "on_revoked": on_revoked}
    async with mq.subscribe("orders", group="billing", start="first", **settings) as messages:
        stores.names.urls.pop("g2")
        await until_route(mq, "orders", 2)
        # It still serves the member: its messages are read although no name service knows it.
        await asyncio.to_thread(stores.by_name["g2"].stop)
        sent = [await mq.send("orders", b"%d" % n) for n in range(6)]
        assert {each.broker_group for each in sent} == {"g0", "g1"}
        assert sorted(await bodies(messages, 6)) == [b"%d" % n for n in range(6)]
        await until(are_revoked)
        assert {str(queue)[:2] for _, queue in messages.assignment} == {"g0", "g1"}


# A store that is stopped in this process may have just accepted a connection.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.parametrize("way", ["async for", "run"])
async def test_a_broker_group_that_does_not_answer_keeps_no_messages_of_others_back(
    stores: Stores, mq: tidemark.Client, way: str
) -> None:
    """It stops while messages of it wait in the program, and for longer than its session."""
    seen: set[bytes] = set()
    of_stopped = [b"g1 %d" % n for n in range(300)]

    async def handle(message: tidemark.Message) -> None:
        seen.add(message.body)
        await asyncio.sleep(0.03)

    async def read(messages: tidemark.Subscription) -> None:
        if way == "async for":
            async for message in messages:
                await handle(message)
        else:
            await messages.run(handle, by_key=False)

    async def is_seen(body: bytes) -> bool:
        return body in seen

    await mq.send_many("orders", of_stopped, queue="g1/0")
    async with mq.subscribe("orders", group="billing", start="first", session_ms=6000) as messages:
        reading = asyncio.create_task(read(messages))
        await until(lambda: is_seen(of_stopped[0]))
        await asyncio.to_thread(stores.by_name["g1"].stop)
        await until(lambda: has_expired(messages, "g1/0"))
        await mq.send("orders", b"of another", queue="g0/0")
        await until(lambda: is_seen(b"of another"))
        await asyncio.to_thread(stores.by_name["g1"].start)
        await until(lambda: is_seen(of_stopped[-1]))
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def has_expired(messages: tidemark.Subscription, queue: str) -> bool:
    """Whether the session at the broker group of a queue has ended."""
    held = messages._engine.held(("orders", queue))
    return held is not None and not held.engine.member.may_deliver


async def test_a_drained_broker_group_gets_no_messages_and_is_read_to_its_end(
    stores: Stores, mq: tidemark.Client
) -> None:
    await mq.send("orders", b"old", queue="g2/0")
    stores.names.drained.add("g2")

    async def is_drained() -> bool:
        return not all(each.writable for each in (await mq.routes("orders")).groups)

    await until(is_drained)
    sent = [await mq.send("orders", b"new") for _ in range(6)]
    assert {each.broker_group for each in sent} == {"g0", "g1"}
    async with mq.subscribe("orders", group="billing", start="first") as messages:
        assert sorted(await bodies(messages, 7)) == [b"new"] * 6 + [b"old"]


async def test_messages_of_a_key_whose_broker_group_is_just_drained_wait_for_the_new_route(
    stores: Stores, mq: tidemark.Client
) -> None:
    """The broker refuses from the drain on; the route of the client still has its queues."""
    key = await key_of(mq, "g2")
    await mq.drain("g2")
    with pytest.raises(errors.Drained):
        await mq.send("orders", b"late", sharding_key=key, timeout_ms=200)
    with pytest.raises(errors.Drained):
        await mq.send("orders", b"own", queue="g2/0")
    some = [keyed(b"%d" % number, f"key-{number}") for number in range(20)]
    one = asyncio.create_task(mq.send("orders", b"one", sharding_key=key))
    many = asyncio.create_task(mq.send_many("orders", [*some, keyed(b"last", key)]))
    stores.names.drained.add("g2")
    async with asyncio.timeout(PATIENCE_S):
        sent = [await one, *await many]
    assert {each.broker_group for each in sent} == {"g0", "g1"}
    after = await mq.send("orders", b"after", sharding_key=key)
    places = {(each.broker_group, each.queue) for each in (sent[0], sent[-1], after)}
    assert len(places) == 1, "the key has one queue from then on"
    assert await stored(mq) == 20 + 3


async def key_of(mq: tidemark.Client, broker_group: str) -> str:
    """Return a sharding key whose queue is in a broker group."""
    queues = writable_queues(await mq.routes("orders"))
    keys = (f"key-{number}" for number in range(1000))
    return next(key for key in keys if queue_of_key(queues, key).broker_group == broker_group)


async def stored(mq: tidemark.Client) -> int:
    return sum(each.max_offset for each in (await mq.topic("orders")).ranges)


async def test_the_client_goes_on_when_all_name_services_are_gone(stores: Stores) -> None:
    async with contextlib.AsyncExitStack() as gone:
        second = await gone.enter_async_context(RouteServer(stores.names.urls).serve())
        async with tidemark.connect([second.url]) as mq:
            await mq.create_topic("orders", queues=2)
            await until_route(mq, "orders", 3)
            async with mq.subscribe("orders", group="billing", start="first") as messages:
                await gone.aclose()
                sent = [await mq.send("orders", b"%d" % n) for n in range(6)]
                assert len({each.broker_group for each in sent}) == 3
                assert len(await bodies(messages, 6)) == 6


async def test_a_broker_leads_to_the_name_services_and_without_them_to_itself(
    stores: Stores,
) -> None:
    """Its own route names them; the other broker groups are known as soon as one answers."""
    (port,) = free_ports(1)
    named = [f"http://127.0.0.1:{port}"]
    async with contextlib.AsyncExitStack() as parts:
        own = RouteServer({"g0": stores.by_name["g0"].url}, names=named)
        broker = await parts.enter_async_context(own.serve())
        async with tidemark.connect(stores.names.url) as everywhere:
            await everywhere.create_topic("orders", queues=1)
        mq = await parts.enter_async_context(tidemark.connect(broker.url))
        assert (await mq.send("orders", b"x")).broker_group == "g0"
        await parts.enter_async_context(RouteServer(stores.names.urls, names=named).serve(port))
        await until_route(mq, "orders", 3)
        await until_listed(mq, 3)


async def test_an_address_that_is_down_is_skipped(stores: Stores) -> None:
    async with tidemark.connect(f"http://127.0.0.1:1, {stores.names.url}") as mq:
        assert len((await mq.routes()).groups) == 3


async def test_without_any_address_the_call_fails_and_the_next_one_asks_again(
    stores: Stores,
) -> None:
    (port,) = free_ports(1)
    async with tidemark.connect(f"http://127.0.0.1:{port}", retry_for_s=0) as mq:
        with pytest.raises(errors.Unreachable, match="Nothing was sent") as raised:
            await mq.send("orders", b"x")
        assert raised.value.sent is False
        async with RouteServer(stores.names.urls).serve(port):
            assert len((await mq.routes()).groups) == 3


async def test_routes_of_another_cluster_are_not_used(stores: Stores) -> None:
    async with RouteServer({"alien": "http://127.0.0.1:1"}, cluster="other").serve() as alien:
        stores.names.names = [stores.names.url, alien.url]
        async with tidemark.connect(stores.names.url) as mq:
            assert len((await mq.routes()).groups) == 3
            await mq.create_topic("orders", queues=1)
            await until_route(mq, "orders", 3)
            stores.names.cluster = "renamed"
            sent = [await mq.send("orders", b"x") for _ in range(6)]
            assert {each.broker_group for each in sent} == {"g0", "g1", "g2"}


async def test_a_node_that_is_gone_costs_no_message(stores: Stores) -> None:
    stores.names.urls["g1"] = "http://127.0.0.1:1"  # the route is out of date
    stores.names.topics["g1"] = {"orders": 2}
    async with tidemark.connect(stores.names.url) as mq:
        await mq.create_topic("orders", queues=2, broker_groups=["g0", "g2"])
        await until_route(mq, "orders", 3)
        sent = [await mq.send("orders", b"x") for _ in range(8)]
        assert {each.broker_group for each in sent} == {"g0", "g2"}


async def test_a_broker_group_of_which_a_restarted_name_service_has_not_heard_is_kept(
    stores: Stores, mq: tidemark.Client
) -> None:
    stores.names.missing = {"g0"}

    async def is_missing() -> bool:
        return "g0" in (await mq.routes("orders")).missing

    await until(is_missing)
    sent = [await mq.send("orders", b"x") for _ in range(6)]
    assert Counter(each.broker_group for each in sent)["g0"] == 2


async def test_a_broker_alone_is_asked_for_its_route_once(tmp_path: Path) -> None:
    with LocalStore(tmp_path) as store:
        async with RouteServer({"g0": store.url}).serve() as server:
            async with tidemark.connect(server.url) as mq:
                assert (await mq.routes()).is_alone
                with contextlib.suppress(errors.TidemarkError):
                    await mq.topics()  # the server is no broker; a real one answers both
            assert server.asked == ["/v1/route"]


async def test_administration_covers_all_broker_groups(stores: Stores, mq: tidemark.Client) -> None:
    (topic,) = [each for each in await mq.topics() if each.name == "orders"]
    assert topic.settings["broker_groups"] == {"g0": 2, "g1": 2, "g2": 2}
    assert [each.queue for each in (await mq.topic("orders")).ranges] == [
        f"g{group}/{queue}" for group in range(3) for queue in range(2)
    ]
    await mq.groups.create("billing", start="first", retry_max=0)
    sent = [await mq.send("orders", b"x", keys=["k"]) for _ in range(6)]
    found = await mq.messages_by_key("orders", "k", max=4)
    assert len(found) == 4
    for each in sent:
        assert (await mq.message_by_id(each.message_id)).body == b"x"
        assert each.unique_id is not None
        assert (await mq.message_by_unique_id("orders", each.unique_id)).body == b"x"
    async with mq.subscribe("orders", group="billing") as messages:
        for message in await take_all(messages, 6):
            await messages.nack(message, delay_level=-1)
    detail = await mq.groups.get("billing")
    assert {each.queue for each in detail.queues if each.topic == "orders"} == {
        f"g{group}/{queue}" for group in range(3) for queue in range(2)
    }
    letters = [letter async for letter in mq.dead_letters.iterate("billing")]
    assert Counter(letter.facts["broker_group"] for letter in letters) == {
        "g0": 2, "g1": 2, "g2": 2,
    }  # fmt: skip
    offset: Any = None
    redriven, done = 0, False
    while not done:
        step = await mq.dead_letters.redrive("billing", from_offset=offset)
        redriven, done, offset = redriven + step.redriven, step.done, step.next_offset
    assert redriven == 6
    moves = await mq.groups.reset("billing", "orders", to="first", queue="g1/1")
    assert [move.queue for move in moves] == ["g1/1"]
    assert len(await mq.groups.reset("billing", "orders", to="last")) == 6
    await mq.delete_topic("orders")
    with pytest.raises(errors.UnknownTopic):
        await mq.topic("orders")
    assert set((await mq.retention())["broker_groups"]) == {"g0", "g1", "g2"}


async def test_delayed_messages_are_listed_and_cancelled_wherever_they_are(
    mq: tidemark.Client,
) -> None:
    sent = [await mq.send("orders", b"x", delay_ms=3_600_000) for _ in range(6)]
    assert len({each.broker_group for each in sent}) == 3

    async def are_listed() -> bool:
        return len([each async for each in mq.delayed.iterate("orders")]) == 6

    await until(are_listed)
    for each in sent:
        assert await mq.delayed.cancel("orders", str(each.unique_id)) == 1
    with pytest.raises(errors.UnknownDelayed):
        await mq.delayed.cancel("orders", str(sent[0].unique_id))


async def test_a_partial_failure_is_reported_by_broker_group_and_can_be_repeated(
    stores: Stores,
) -> None:
    await asyncio.to_thread(stores.by_name["g2"].stop)
    async with tidemark.connect(stores.names.url, retry_for_s=0) as mq:
        with pytest.raises(errors.PartialFailure) as raised:
            await mq.create_topic("orders", queues=3)
        assert raised.value.facts == {"failed": {"g2": "unreachable"}, "done": ["g0", "g1"]}
        await asyncio.to_thread(stores.by_name["g2"].start)
        await until_route(mq, "orders", 2)
        made = await mq.sync_topic("orders", broker_groups=["g2"])
        assert made.settings["broker_groups"] == {"g0": 3, "g1": 3, "g2": 3}


def test_programs_without_asyncio_use_a_cluster_as_well(tmp_path: Path) -> None:
    with contextlib.ExitStack() as parts:
        stores = [parts.enter_context(LocalStore(tmp_path / name)) for name in ("g0", "g1")]
        server = RouteServer({f"g{n}": store.url for n, store in enumerate(stores)})
        parts.enter_context(in_a_thread(server))
        with tidemark.connect_sync(server.url) as mq:
            mq.create_topic("orders", queues=1)
            sent = [mq.send("orders", b"%d" % n) for n in range(4)]
            assert {each.broker_group for each in sent} == {"g0", "g1"}
            with mq.subscribe("orders", group="billing", start="first") as messages:
                taken = [message.body for _, message in zip(range(4), messages, strict=False)]
            assert sorted(taken) == [b"0", b"1", b"2", b"3"]
            assert [each.body for each in mq.read("orders", "g0/0")]


async def take_all(messages: tidemark.Subscription, count: int) -> list[tidemark.Message]:
    found: list[tidemark.Message] = []
    while len(found) < count:
        found += await messages.getmany(count - len(found), PATIENCE_S)
    return found
