"""What moves with the clock of a store in a test: delays, retries, sessions, retention."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import pytest

import tidemark
from tidemark.client.client import Client
from tidemark.client.groups import Lag
from tidemark.testing import LocalStore
from tidemark.testing.node import SMALL_STORE

pytest_plugins = ["tidemark.testing.fixtures"]

HOUR_S: Final = 3600
DAY_S: Final = 24 * HOUR_S
WAIT_S: Final = 30.0
FILE_SIZE: Final = SMALL_STORE["commit_log_file_size"]


async def until(condition: Callable[[], bool], what: str) -> None:
    """Return once it holds: the store reads its clock a few times a second."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {WAIT_S:.0f} s for {what}"
        await asyncio.sleep(0.02)


@asynccontextmanager
async def connected(store: LocalStore, topic: str) -> AsyncIterator[Client]:
    """A client, and a topic with one queue."""
    async with tidemark.connect(store.url) as mq:
        await mq.create_topic(topic, queues=1)
        yield mq


def oldest_file(store: LocalStore) -> int:
    """Physical offset at which the log's first file begins."""
    return min(int(path.name) for path in (store.store_dir / "commitlog").glob("[0-9]*"))


async def shown(mq: Client, topic: str, *, wait_ms: int = 0) -> list[bytes]:
    return [message.body for message in (await mq.pull(topic, 0, 0, wait_ms=wait_ms)).messages]


@pytest.mark.parametrize("seconds", [60, 40 * DAY_S - 60])
async def test_a_delayed_message_comes_at_its_time_and_not_before(
    tidemark_store: LocalStore, seconds: int
) -> None:
    async with connected(tidemark_store, "reminders") as mq:
        sent = await mq.send("reminders", b"call back", delay_ms=seconds * 1000)
        tidemark_store.clock.advance(seconds - 30)
        assert await shown(mq, "reminders") == []
        tidemark_store.clock.advance(30)
        (message,) = (await mq.pull("reminders", 0, 0, wait_ms=30_000)).messages
        assert message.body == b"call back"
        assert sent.deliver_at_ms is not None
        assert message.store_timestamp_ms >= sent.deliver_at_ms


async def test_a_clock_that_is_set_back_delivers_nothing_early_and_nothing_twice(
    tidemark_store: LocalStore,
) -> None:
    async with connected(tidemark_store, "reminders") as mq:
        await mq.send("reminders", b"soon", delay_ms=60_000)
        await mq.send("reminders", b"late", delay_ms=HOUR_S * 1000)
        tidemark_store.clock.step(61)
        assert await shown(mq, "reminders", wait_ms=30_000) == [b"soon"]
        tidemark_store.clock.step(-50)
        await mq.send("reminders", b"now")
        assert await shown(mq, "reminders") == [b"soon", b"now"]
        tidemark_store.clock.step(50 + HOUR_S)
        assert (await mq.pull("reminders", 0, 2, wait_ms=30_000)).messages[0].body == b"late"
        assert await shown(mq, "reminders") == [b"soon", b"now", b"late"]


async def test_a_message_that_was_sent_back_comes_again_after_its_level(
    tidemark_store: LocalStore,
) -> None:
    tries: list[int] = []
    async with (
        asyncio.timeout(WAIT_S),
        connected(tidemark_store, "orders") as mq,
        mq.subscribe("orders", group="billing") as messages,
    ):
        await mq.send("orders", b"difficult")
        async for message in messages:
            tries.append(message.reconsume_times)
            if len(tries) == 3:
                break
            await messages.nack(message)
            tidemark_store.clock.advance(31)  # levels 3 and 4 of RocketMQ's: 10 s and 30 s
    assert tries == [0, 1, 2]


async def test_a_silent_member_expires_and_its_queues_go_to_another(
    tidemark_store: LocalStore,
) -> None:
    async with asyncio.timeout(WAIT_S), tidemark.connect(tidemark_store.url) as mq:
        await mq.create_topic("orders", queues=2)
        join = {"subscriptions": [{"topic": "orders"}], "session_ms": 600_000}
        path = "/v1/groups/billing/members/silent"
        await mq.connection.call("POST", path, body=join, idempotent=True)
        async with mq.subscribe("orders", group="billing", member="lively") as messages:
            await mq.send("orders", b"hello", queue=0)
            await mq.send("orders", b"hello", queue=1)
            owned = {member.name for member in (await mq.groups.get("billing")).members}
            assert owned == {"silent", "lively"}
            tidemark_store.clock.advance(601)
            got = 0
            async for _ in messages:
                got += 1
                if got == 2:
                    break
        assert (await mq.groups.get("billing")).members == []


async def test_a_subscription_lives_on_when_more_time_passes_than_its_session(
    tidemark_store: LocalStore,
) -> None:
    got: list[bytes] = []
    async with (
        asyncio.timeout(WAIT_S),
        connected(tidemark_store, "orders") as mq,
        mq.subscribe("orders", group="billing") as messages,
    ):
        for number in range(3):
            await mq.send("orders", b"%d" % number)
            async for message in messages:
                got.append(message.body)
                if message.body == b"%d" % number:
                    break
            await messages.commit()
            tidemark_store.clock.advance(HOUR_S)
    # At least once: uncommitted messages of an expired session come again.
    assert set(got) == {b"0", b"1", b"2"}


async def test_a_topic_hides_what_is_older_than_it_promised(tidemark_store: LocalStore) -> None:
    async with tidemark.connect(tidemark_store.url) as mq:
        body = {"queues": 1, "retention_ms": HOUR_S * 1000}
        await mq.connection.call("PUT", "/v1/topics/short", body=body, idempotent=True)
        await mq.send("short", b"old")
        assert await shown(mq, "short", wait_ms=10_000) == [b"old"]
        tidemark_store.clock.advance(HOUR_S / 2)
        await mq.send("short", b"young")
        assert (await mq.pull("short", 0, 1, wait_ms=10_000)).messages
        tidemark_store.clock.advance(HOUR_S / 2 + 60)
        async with asyncio.timeout(WAIT_S):
            while (pulled := await mq.pull("short", 0, 0)).status != "OFFSET_TOO_SMALL":
                assert [message.body for message in pulled.messages] == [b"old", b"young"]
        assert pulled.next_offset == 1
        assert (await mq.pull("short", 0, 1)).messages[0].body == b"young"


@pytest.fixture
def tidemark_settings() -> dict[str, object]:
    """Expired files are deleted at any hour: the local time of the tests decides nothing."""
    return {"delete_when": ";".join(f"{hour:02}" for hour in range(24))}


async def test_log_files_go_when_they_have_expired(tidemark_store: LocalStore) -> None:
    async with connected(tidemark_store, "bulk") as mq:
        for _ in range(12):
            await mq.send("bulk", bytes(900_000))
        tidemark_store.clock.advance(71 * HOUR_S)
        assert oldest_file(tidemark_store) == 0
        tidemark_store.clock.advance(2 * HOUR_S)
        await until(lambda: oldest_file(tidemark_store) > 0, "the oldest file to go")
        pulled = await mq.pull("bulk", 0, 0)
        assert pulled.status == "OFFSET_TOO_SMALL"
        assert pulled.next_offset == pulled.min_offset > 0


async def test_lag_in_seconds_grows_with_the_time_that_passes(tidemark_store: LocalStore) -> None:
    async with connected(tidemark_store, "orders") as mq:
        await mq.send("orders", b"handled")
        async with mq.subscribe("orders", group="billing") as messages:
            async for _ in messages:
                break
        await mq.send("orders", b"unread")
        tidemark_store.clock.advance(HOUR_S)
        lag = (await mq.groups.get("billing")).lag
        assert lag.messages == 1
        assert lag.seconds is not None
        assert HOUR_S <= lag.seconds < HOUR_S + WAIT_S


async def test_a_group_is_warned_before_its_unread_messages_go_and_they_are_counted_when_they_do(
    tidemark_store: LocalStore, caplog: pytest.LogCaptureFixture
) -> None:
    async def lag() -> Lag:
        return (await mq.groups.get("slow")).lag

    async with connected(tidemark_store, "bulk") as mq:
        for _ in range(12):
            await mq.send("bulk", bytes(900_000))
        async with mq.subscribe("bulk", group="slow") as messages:
            async for message in messages:
                if message.queue_offset == 1:
                    break
        assert (await lag()).messages == 10
        # The first file holds messages 0 to 3: two of them are not read.
        tidemark_store.clock.advance(72 * HOUR_S - 600)
        await until(lambda: "messages-expiring" in events(caplog), "the warning")
        assert (await lag()).expiring_messages == 2
        tidemark_store.clock.advance(1200)
        await until(lambda: oldest_file(tidemark_store) == 2 * FILE_SIZE, "all but the last to go")
        assert (await mq.pull("bulk", 0, 0)).next_offset == 8
        assert (await lag()).messages == 4


def events(caplog: pytest.LogCaptureFixture) -> set[str]:
    """What the services in this process have logged as warnings."""
    return {str(getattr(record, "event", "")) for record in caplog.records}


async def test_a_subscription_lives_through_a_restart_of_the_store(
    tidemark_store: LocalStore,
) -> None:
    async with (
        asyncio.timeout(WAIT_S),
        connected(tidemark_store, "orders") as mq,
        mq.subscribe("orders", group="billing") as messages,
    ):
        await mq.send("orders", b"before")
        got = [message.body for message in [await anext(aiter(messages))]]
        await asyncio.to_thread(tidemark_store.restart)
        await mq.send("orders", b"after")
        async for message in messages:
            got.append(message.body)
            if message.body == b"after":
                break
    assert set(got) == {b"before", b"after"}
