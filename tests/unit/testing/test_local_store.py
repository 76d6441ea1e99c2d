from __future__ import annotations

import gc
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

import tidemark
from tests.support.node import wait_until
from tidemark.errors import BadConfig, UnknownTopic
from tidemark.testing import FakeClock, LocalStore, NodeFailed

pytest_plugins = ["tidemark.testing.fixtures"]

HOUR_MS = 3_600_000


@pytest.fixture
def tidemark_settings(request: pytest.FixtureRequest) -> Mapping[str, object]:
    """As a user's conftest would override it: by a test's parameter here."""
    settings: Mapping[str, object] = getattr(request, "param", {})
    return settings


def threads_of_stores() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "tidemark-store"]


def test_a_clock_goes_with_the_machine_until_it_is_moved() -> None:
    clock = FakeClock()
    before = time.time_ns() // 1_000_000
    assert before <= clock.wall_ms() <= time.time_ns() // 1_000_000
    wall, boot, monotonic = clock.wall_ms(), clock.boot_ms(), clock.monotonic()
    clock.advance(3600)
    assert 0 <= clock.wall_ms() - wall - HOUR_MS < 10_000
    assert 0 <= clock.boot_ms() - boot - HOUR_MS < 10_000
    assert 0 <= clock.monotonic() - monotonic - 3600 < 10


def test_a_step_moves_the_wall_clock_alone() -> None:
    clock = FakeClock()
    wall, boot, monotonic = clock.wall_ms(), clock.boot_ms(), clock.monotonic()
    clock.step(-3600)
    assert 0 <= clock.wall_ms() - wall + HOUR_MS < 10_000
    assert 0 <= clock.boot_ms() - boot < 10_000
    assert 0 <= clock.monotonic() - monotonic < 10


def test_time_does_not_pass_backwards() -> None:
    with pytest.raises(ValueError, match="use step"):
        FakeClock().advance(-1)


def test_a_synchronous_test_sends_and_reads(tidemark_store: LocalStore) -> None:
    with tidemark.connect_sync(tidemark_store.url) as mq:
        sent = mq.send("orders", b"hello", tags="new")
        (message,) = mq.pull("orders", sent.queue, 0, wait_ms=10_000).messages
    assert (message.body, message.tags) == (b"hello", "new")


async def test_an_asynchronous_test_sends_and_reads(tidemark_store: LocalStore) -> None:
    async with tidemark.connect(tidemark_store.url) as mq:
        sent = await mq.send("orders", b"hello")
        pulled = await mq.pull("orders", sent.queue, 0, wait_ms=10_000)
    assert [message.body for message in pulled.messages] == [b"hello"]


def test_store_times_follow_the_clock_that_the_test_moves(tidemark_store: LocalStore) -> None:
    with tidemark.connect_sync(tidemark_store.url) as mq:
        first = mq.send("orders", b"1").store_timestamp_ms
        tidemark_store.clock.advance(3600)
        second = mq.send("orders", b"2").store_timestamp_ms
        assert HOUR_MS <= second - first < HOUR_MS + 60_000
        # Never back, whatever the wall clock does: store times of a log ascend.
        tidemark_store.clock.step(-5)
        assert mq.send("orders", b"3").store_timestamp_ms >= second


def test_messages_survive_a_restart(tidemark_store: LocalStore) -> None:
    with tidemark.connect_sync(tidemark_store.url) as mq:
        sent = mq.send("orders", b"hello")
        tidemark_store.restart()
        assert mq.message_by_id(sent.message_id).body == b"hello"
    assert (tidemark_store.store_dir / "commitlog").is_dir()


def test_a_test_keeps_its_own_garbage_collector(request: pytest.FixtureRequest) -> None:
    frozen_before = gc.get_freeze_count()  # what pytest has collected
    store: LocalStore = request.getfixturevalue("tidemark_store")
    assert store.url
    assert gc.get_threshold()[0] < 50_000
    assert gc.get_freeze_count() <= frozen_before


@pytest.mark.parametrize("tidemark_settings", [{"auto_create_topics": False}], indirect=True)
def test_settings_reach_the_broker(tidemark_store: LocalStore) -> None:
    with (
        tidemark.connect_sync(tidemark_store.url) as mq,
        pytest.raises(UnknownTopic),
    ):
        mq.send("orders", b"hello")


def test_a_misspelt_setting_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="flush_intervall_ms is not a setting"):
        LocalStore(tmp_path, settings={"flush_intervall_ms": 1})


def test_a_store_that_cannot_start_raises_why_and_leaves_no_thread(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        store = LocalStore(tmp_path, settings={"port": taken.getsockname()[1]})
        with pytest.raises(NodeFailed, match="address already in use"):
            store.start()
    store.close()
    assert not threads_of_stores()


def test_a_store_that_ended_by_itself_fails_the_test_that_used_it(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.start()
    # What no service goes on over: the positions that it has mapped are no longer the store's.
    page = store.store_dir / "checkpoint"
    page.rename(page.with_name("moved"))
    page.write_bytes(bytes(4096))
    wait_until(lambda: not threads_of_stores(), "the store to end")
    with pytest.raises(NodeFailed, match="checkpoint"):
        store.close()


def test_a_synchronous_test_subscribes(tidemark_store: LocalStore) -> None:
    with tidemark.connect_sync(tidemark_store.url) as mq:
        mq.send_many("orders", [b"1", b"2", b"3"])
        with mq.subscribe("orders", group="billing") as messages:
            got = [message.body for _, message in zip(range(3), messages, strict=False)]
    assert sorted(got) == [b"1", b"2", b"3"]


def test_a_closed_store_has_stopped_clean_and_opens_again(tmp_path: Path) -> None:
    with LocalStore(tmp_path) as store, tidemark.connect_sync(store.url) as mq:
        mq.send("orders", b"hello", queue=0)
    assert not (store.store_dir / "abort").exists()
    with LocalStore(tmp_path) as again, tidemark.connect_sync(again.url) as mq:
        assert [message.body for message in mq.read("orders", 0)] == [b"hello"]
