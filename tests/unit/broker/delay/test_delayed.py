"""Operations on delayed messages: list, cancel, carry forward, count."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from services.broker.delay import delayed, listing
from services.broker.delay.delayed import CarryResult
from services.broker.delay.listing import ListTime
from tests.support.delayed_store import DelayedStore
from tests.support.small_broker import FIRST_MS, LEVELS_MS
from tidemark.errors import DiskFull, DispatchBehind, NotServing, Overloaded, UnknownDelayed
from tidemark.formats import delay
from tidemark.formats.checkpoint import Slot
from tidemark.formats.delay import TIMER_TOPIC, Origin
from tidemark.formats.hashing import SCHEDULE_TOPIC
from tidemark.offsets import PhysicalOffset


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[DelayedStore]:
    opened = DelayedStore(tmp_path)
    await opened.turn()
    yield opened
    opened.close()


async def listed(
    store: DelayedStore, *, topic: str | None = None, count_max: int = 100
) -> list[dict[str, Any]]:
    """All pages."""
    found: list[dict[str, Any]] = []
    after: ListTime | None = None
    while True:
        page = await store.delayed.page(after, topic, count_max)
        assert len(page.messages) <= count_max
        found += page.messages
        after = page.after
        if after is None:
            return found


async def ids(store: DelayedStore, **more: Any) -> list[str]:
    return [message["unique_id"] for message in await listed(store, **more)]


# -- listing ---------------------------------------------------------------------------------------


async def test_waiting_messages_are_listed_next_due_first(store: DelayedStore) -> None:
    store.wait_level(b"level 2", 2, queue=1)
    store.wait_until(b"soon", FIRST_MS + 500)
    store.wait_level(b"level 1", 1)
    store.wait_until(b"late", FIRST_MS + 9000)
    messages = await listed(store)
    assert [each["unique_id"] for each in messages] == ["soon", "level 1", "level 2", "late"]
    assert [each["deliver_at_ms"] - FIRST_MS for each in messages] == [500, 1000, 5000, 9000]
    assert [each["delay_level"] for each in messages] == [None, 1, 2, None]
    (level_2,) = (each for each in messages if each["delay_level"] == 2)
    (waiting,) = store.all(SCHEDULE_TOPIC, 1)
    assert level_2 == {
        "unique_id": "level 2",
        "message_id": waiting.message_id,
        "topic": "orders",
        "queue": 1,
        "deliver_at_ms": FIRST_MS + LEVELS_MS[1],
        "delay_level": 2,
        "store_timestamp_ms": FIRST_MS,
        "size": waiting.size,
    }


@pytest.mark.parametrize("count_max", [1, 2, 3, 7, 100])
async def test_pages_of_any_size_show_each_message_once(
    store: DelayedStore, count_max: int
) -> None:
    expected = set()
    for number in range(12):
        # Many of the same times, over levels and the timer.
        store.wait_level(b"a%d" % number, 1 + number % 3)
        store.wait_until(b"b%d" % number, FIRST_MS + (1000, 5000)[number % 2])
        expected |= {f"a{number}", f"b{number}"}
    found = await ids(store, count_max=count_max)
    assert len(found) == len(expected)
    assert set(found) == expected


async def test_a_list_of_one_topic_ends_a_page_after_so_many_records(
    store: DelayedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "EXAMINED_MAX", 4)
    for number in range(9):
        store.wait_until(b"%d" % number, FIRST_MS + 100 + number)
    store.wait_until(b"wanted", FIRST_MS + 5000, topic="rare")
    page = await store.delayed.page(None, "rare", 10)
    assert (list(page.messages), page.after) == ([], (FIRST_MS + 103, 0, 3))
    assert await ids(store, topic="rare") == ["wanted"]


async def test_delivered_and_cancelled_messages_are_not_listed(store: DelayedStore) -> None:
    store.wait_level(b"delivered", 1)
    store.wait_level(b"cancelled", 3)
    store.wait_level(b"waits", 3)
    await store.delayed.cancel("cancelled", None)
    store.now_ms += 2000
    await store.turn()
    assert await ids(store) == ["waits"]


# -- cancelling ------------------------------------------------------------------------------------


@pytest.mark.parametrize("reboot", [False, True])
async def test_a_cancelled_message_is_never_delivered(store: DelayedStore, reboot: bool) -> None:
    for name in ("level", "time"):
        store.wait_level(name.encode(), 1) if name == "level" else store.wait_until(
            name.encode(), FIRST_MS + 700
        )
        (due_ms,) = await store.delayed.cancel(name, "orders")
        assert due_ms == FIRST_MS + (1000 if name == "level" else 700)
    store.wait_level(b"other", 1)
    await store.kill(reboot=reboot)
    await store.turn()
    store.now_ms += 5000
    await store.turn()
    assert store.delivered() == [b"other"]
    await store.kill(reboot=reboot)
    await store.turn()
    assert store.delivered() == [b"other"]
    assert store.delayed.pending == 0


async def test_a_cancellation_is_dropped_from_the_state_once_its_time_has_passed(
    store: DelayedStore,
) -> None:
    store.wait_level(b"a", 1)
    store.wait_until(b"b", FIRST_MS + 700)
    for name in "ab":
        await store.delayed.cancel(name, None)
    assert len(store.delay_now().cancelled) == 2
    store.now_ms += 5000
    store.wait_level(b"c", 1)
    store.wait_until(b"d", FIRST_MS + 5700)
    store.now_ms += 5000
    await store.turn()
    await store.turn()
    assert store.delay_now().cancelled == {}


@pytest.mark.parametrize(("unique_id", "topic"), [("other", None), ("a", "elsewhere")])
async def test_a_message_that_does_not_wait_cannot_be_cancelled(
    store: DelayedStore, unique_id: str, topic: str | None
) -> None:
    store.wait_level(b"a", 1)
    with pytest.raises(UnknownDelayed, match=unique_id):
        await store.delayed.cancel(unique_id, topic)


async def test_a_delivered_or_cancelled_message_cannot_be_cancelled_again(
    store: DelayedStore,
) -> None:
    store.wait_level(b"a", 1)
    store.wait_until(b"b", FIRST_MS + 90_000)
    store.now_ms += 2000
    await store.turn()
    await store.delayed.cancel("b", None)
    store.dispatch()
    for unique_id in "ab":
        with pytest.raises(UnknownDelayed):
            await store.delayed.cancel(unique_id, None)


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_repeated_cancellation_returns_the_result_of_the_first(
    store: DelayedStore, restarts: bool
) -> None:
    """1. A message is cancelled, the response is lost; 2. the repeated call found no waiting
    message, and a program believed that the reminder it had cancelled had been delivered."""
    store.wait_level(b"level", 2)
    store.wait_until(b"time", FIRST_MS + 90_000)
    store.wait_level(b"other", 2)
    for name in ("level", "time"):
        cancelled = list(await store.delayed.cancel(name, "orders"))
        store.dispatch()
        if restarts:
            await store.kill(reboot=True)
            await store.turn()
        for topic in ("orders", None):
            assert list(await store.delayed.cancel(name, topic, is_retry=True)) == cancelled
        for unique_id, topic in ((name, "elsewhere"), ("never", None)):
            with pytest.raises(UnknownDelayed):
                await store.delayed.cancel(unique_id, topic, is_retry=True)
    assert len(await store.delayed.cancel("other", None, is_retry=True)) == 1  # the first try


async def test_all_messages_of_one_id_are_cancelled_together(store: DelayedStore) -> None:
    store.wait_level(b"a", 1)
    store.wait_level(b"a", 2)
    store.wait_until(b"a", FIRST_MS + 500)
    assert len(await store.delayed.cancel("a", None)) == 3


async def test_a_retry_is_not_cancelled_with_the_message_that_was_sent(store: DelayedStore) -> None:
    # A retry has the unique id of its message. Cancelling the one cancelled the other, too: a group
    # that had failed once never saw its message again.
    store.wait_level(b"a", 1)
    store.wait_level(b"a", 2, topic="%RETRY%billing")
    assert len(await store.delayed.cancel("a", None)) == 1
    assert len(await store.delayed.cancel("a", "%RETRY%billing")) == 1


async def test_kept_cancellations_are_bounded(
    store: DelayedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed, "CANCELLED_MAX", 1)
    store.wait_level(b"a", 1)
    store.wait_level(b"b", 1)
    await store.delayed.cancel("a", None)
    with pytest.raises(Overloaded, match="1 are kept"):
        await store.delayed.cancel("b", None)
    store.now_ms += 2000
    await store.turn()
    assert store.delivered() == [b"b"]


async def test_cancelling_waits_until_a_message_just_sent_is_in_the_index(
    store: DelayedStore,
) -> None:
    store.dispatches = False
    store.wait_level(b"a", 1)
    waiting = asyncio.create_task(store.delayed.cancel("a", None))
    await asyncio.sleep(0)
    assert not waiting.done()
    store.dispatches = True
    store.dispatch()
    assert len(await waiting) == 1


async def test_while_the_index_is_rebuilt_a_cancellation_is_refused(store: DelayedStore) -> None:
    """1. The power fails, and the node starts: index files are rebuilt; 2. a waiting message was
    not found by its id, and the caller learned that it does not wait."""
    store.wait_level(b"a", 1)
    store.positions.publish(Slot.INDEX_BEHIND, 1)
    with pytest.raises(DispatchBehind):
        await store.delayed.cancel("a", None)
    store.positions.publish(Slot.INDEX_BEHIND, 0)
    assert len(await store.delayed.cancel("a", None)) == 1


# -- carrying --------------------------------------------------------------------------------------


async def test_a_carried_message_waits_at_the_end_and_is_delivered_at_its_time(
    store: DelayedStore,
) -> None:
    level = store.wait_level(b"level", 3, queue=2)
    time = store.wait_until(b"time", FIRST_MS + 70_000)
    border = store.wait_until(b"above", FIRST_MS + 70_001).physical_offset
    await store.turn()
    assert store.delayed.pending_below(border)
    assert await store.delayed.carry_below(border) == CarryResult(2, 0)
    await store.turn()
    assert not store.delayed.pending_below(border)
    carried = store.all(TIMER_TOPIC)[-2:]
    assert [delay.origin_of(each.properties) for each in carried] == [
        Origin(3, level.queue_offset),
        Origin(0, time.queue_offset),
    ]
    assert store.own[-1], "carrying goes on while sends are refused"
    assert store.delayed.pending == 3
    store.now_ms = FIRST_MS + LEVELS_MS[2]
    await store.turn()
    assert store.delivered(queue=2) == [b"level"]
    store.now_ms = FIRST_MS + 80_000
    await store.turn()
    assert store.delivered() == [b"time", b"above"]


@pytest.mark.parametrize("reboot", [False, True])
async def test_a_carried_message_is_delivered_once_while_its_first_record_exists(
    store: DelayedStore, reboot: bool
) -> None:
    for number in range(6):
        store.wait_until(b"%d" % number, FIRST_MS + 5000 - number)
    store.wait_level(b"level", 2)
    await store.turn()
    await store.delayed.carry_below(store.dispatched())
    store.dispatch()
    await store.delayed.carry_below(store.dispatched())
    await store.kill(reboot=reboot)
    store.now_ms += 6000
    await store.turn()
    assert sorted(store.delivered()) == [b"0", b"1", b"2", b"3", b"4", b"5", b"level"]


async def test_messages_carried_before_the_disk_was_full_are_delivered_once(
    store: DelayedStore,
) -> None:
    """1. Some are carried, the next are refused; 2. progress is recorded; 3. a kill takes back what
    the file of pending times knew: it learns of the carried ones from their copies again."""
    for number in range(200):
        store.wait_until(b"%d" % number, FIRST_MS + 50_000)
    store.wait_level(b"level", 1)
    await store.turn()
    store.refuse_after = 1
    with pytest.raises(DiskFull):
        await store.delayed.carry_below(store.dispatched())
    store.refuse_after = None
    store.dispatch()
    assert len(store.all(TIMER_TOPIC)) > 200
    await store.turn()
    assert store.delay_now().levels[1] == 1, "the level's was carried"
    await store.kill()
    store.now_ms += 50_000
    await store.turn()
    assert len(store.delivered()) == 201
    assert len(set(store.delivered())) == 201


async def test_messages_without_a_destination_are_not_carried_and_are_counted(
    store: DelayedStore,
) -> None:
    store.wait_level(b"a", 3, topic="..")
    store.wait_level(b"b", 3)
    assert await store.delayed.carry_below(store.dispatched()) == CarryResult(1, 1)


# -- counting --------------------------------------------------------------------------------------


async def test_waiting_messages_and_their_delay_are_counted(store: DelayedStore) -> None:
    assert (store.delayed.pending, store.delayed.overdue_s) == (0, 0.0)
    store.wait_level(b"a", 1)
    store.wait_until(b"b", FIRST_MS + 9000)
    assert store.delayed.pending == 2
    await store.turn()
    assert (store.delayed.pending, store.delayed.overdue_s) == (2, 0.0)
    store.now_ms += 3000
    assert store.delayed.overdue_s == 2.0
    await store.turn()
    assert (store.delayed.pending, store.delayed.overdue_s) == (1, 0.0)
    await store.delayed.cancel("b", None)
    assert store.delayed.pending == 0


async def test_counts_are_unknown_before_delivery_has_begun(tmp_path: Path) -> None:
    store = DelayedStore(tmp_path)
    store.wait_level(b"a", 1)
    assert store.delayed.pending is None
    assert store.delayed.overdue_s is None
    assert store.delayed.pending_below(PhysicalOffset(1)), "it may lie anywhere"
    for asked in (
        store.delayed.page(None, None, 1),
        store.delayed.cancel("a", None),
        store.delayed.carry_below(PhysicalOffset(1)),
    ):
        with pytest.raises(NotServing):
            await asked
    store.close()


async def test_a_closed_store_is_not_read(store: DelayedStore) -> None:
    store.wait_level(b"a", 1)
    store.delayed.delivery.abandon()
    with pytest.raises(NotServing, match="stopping"):
        await store.delayed.page(None, None, 1)


# -- the end, and RocketMQ -------------------------------------------------------------------------


async def test_a_clean_stop_records_the_progress_of_delivery(store: DelayedStore) -> None:
    store.wait_level(b"a", 1)
    store.now_ms += 2000
    await store.turn()
    store.wait_until(b"b", store.now_ms + 1)
    store.now_ms += 1
    await store.turn()
    await store.delayed.finish()
    store.dispatch()
    recorded = store.delay_now()
    assert (recorded.levels, recorded.timer) == ({1: 1}, (FIRST_MS + 2001, 0, 1))


async def test_messages_that_rocketmqs_timer_may_not_have_delivered_are_delivered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Everything due before the store was taken over counted as delivered: of 41 messages that a
    # broker left, due while it was down, none was delivered.
    store = DelayedStore(tmp_path)
    store.wait_until(b"past", FIRST_MS + 100)
    store.wait_until(b"ahead", FIRST_MS + 90_000)
    store.positions.publish(Slot.FOREIGN_FROM, 0)
    store.positions.publish(Slot.FOREIGN_UNTIL, store.appender.appended)
    store.now_ms += 50_000
    with caplog.at_level(logging.WARNING):
        await store.turn()
    assert "timer-progress-unknown" in {vars(record).get("event") for record in caplog.records}
    store.now_ms += 50_000
    await store.kill(reboot=True)
    await store.turn()
    assert store.delivered() == [b"past", b"ahead"]
    store.close()
