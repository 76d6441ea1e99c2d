"""Delivery over a real log: when, once, in which order, and what a kill leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest

from services.broker.delay import delayed, timer_queue, waiting
from services.broker.delay.build import FILE
from services.broker.delay.delayed import CarryResult
from services.broker.delay.pending_times import Pending, PendingTimes
from shared.state.records import TopicConfig, TopicRecord
from tests.support.delayed_store import DelayedStore, Killed
from tests.support.for_each import for_each
from tests.support.small_broker import BORN, FIRST_MS, HOST, LEVELS_MS
from tidemark.errors import DamagedFile, DiskFull, FileNotReady, NotServing
from tidemark.formats import delay
from tidemark.formats.delay import TIMER_TOPIC, Origin
from tidemark.formats.hashing import SCHEDULE_TOPIC
from tidemark.offsets import PhysicalOffset

SEEDS = range(20)
WHAT = ("send", "send", "turn", "turn", "clock", "kill", "cancel", "carry", "refuse")


def full_error() -> sqlite3.OperationalError:
    """What SQLite raises on a full disk."""
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


@contextlib.contextmanager
def full_disk(method: str) -> Iterator[None]:
    """The disk has no room for this change of the file of pending times."""
    with patch.object(PendingTimes, method, side_effect=full_error()):
        yield


def read_in_steps(monkeypatch: pytest.MonkeyPatch, count: int = 2) -> None:
    """Let the timer's queue take in only this many messages at once."""
    monkeypatch.setattr(timer_queue, "TAKE_IN_MAX", count)
    monkeypatch.setattr(timer_queue, "UNITS_AT_ONCE", count)


async def test_a_message_is_delivered_to_the_millisecond_when_it_is_due(
    store: DelayedStore,
) -> None:
    store.wait_level(b"level", 2, queue=3)
    store.wait_until(b"time", FIRST_MS + LEVELS_MS[1])
    await store.turn()
    store.now_ms += LEVELS_MS[1] - 1
    await store.turn()
    assert (store.delivered(queue=3), store.delivered()) == ([], [])
    store.now_ms += 1
    await store.turn()
    assert (store.delivered(queue=3), store.delivered()) == ([b"level"], [b"time"])


async def test_a_copy_equals_the_sent_message_and_names_its_origin(store: DelayedStore) -> None:
    waiting = store.wait_level(b"a", 1)
    store.now_ms += LEVELS_MS[0]
    await store.turn()
    (copy,) = store.all("orders")
    assert bytes(copy.body) == b"a"
    assert (copy.flag, copy.reconsume_times, copy.born_timestamp_ms) == (5, 2, 77)
    assert (copy.born_host, copy.store_host) == (BORN, HOST)
    assert copy.unique_id == "a"
    assert delay.origin_of(copy.properties) == Origin(1, waiting.queue_offset)
    assert copy.store_timestamp_ms == store.now_ms


async def test_messages_due_together_are_delivered_in_the_order_of_their_times(
    store: DelayedStore,
) -> None:
    store.wait_until(b"third", FIRST_MS + 1003)
    store.wait_until(b"second", FIRST_MS + 1002)
    store.wait_level(b"first", 1)
    store.wait_until(b"fourth", FIRST_MS + 1004)
    store.now_ms += 2000
    await store.turn()
    assert store.delivered() == [b"first", b"second", b"third", b"fourth"]


async def test_thousands_are_delivered_in_a_few_appends(store: DelayedStore) -> None:
    for number in range(1500):
        store.wait_until(b"%d" % number, FIRST_MS + 100 + number % 7)
    store.own.clear()
    store.now_ms += 1000
    await store.turn()
    assert sorted(map(int, store.delivered())) == list(range(1500))
    # Slices of 32 KiB in this small store; 512 messages elsewhere.
    assert len(store.own) < 40


async def test_a_clock_that_steps_back_delivers_nothing_early_and_nothing_twice(
    store: DelayedStore,
) -> None:
    store.wait_until(b"a", FIRST_MS + 5000)
    store.now_ms += 5000
    await store.turn()
    store.now_ms = FIRST_MS
    store.wait_until(b"b", FIRST_MS + 3000)
    await store.turn()
    assert store.delivered() == [b"a"]
    await store.kill()
    await store.turn()
    await store.kill(reboot=True)
    await store.turn()
    assert store.delivered() == [b"a"]
    store.now_ms = FIRST_MS + 3000
    await store.turn()
    assert store.delivered() == [b"a", b"b"]


async def test_a_clock_that_steps_forward_delivers_at_once(store: DelayedStore) -> None:
    store.wait_level(b"level", 4)
    store.wait_until(b"time", FIRST_MS + 86_400_000)
    await store.turn()
    store.now_ms += 30 * 86_400_000
    await store.turn()
    assert store.delivered() == [b"level", b"time"]


async def test_a_level_message_due_too_far_ahead_is_delivered_now(store: DelayedStore) -> None:
    # The clock stepped back by a day after it was stored: it would wait for a day and its delay.
    store.wait_level(b"a", 1)
    store.now_ms -= 86_400_000
    await store.turn()
    assert store.delivered() == [b"a"]


async def test_a_full_disk_holds_delivery_up_and_loses_nothing(store: DelayedStore) -> None:
    store.wait_level(b"level", 1)
    store.wait_until(b"time", FIRST_MS + 500)
    store.now_ms += 2000
    store.refusal = DiskFull("planted")
    await store.turn()
    assert store.delivered() == []
    assert [fault and fault.code for fault in store.faults] == ["disk-full"]
    assert store.delayed.overdue_s == 1.5
    store.refusal = None
    await store.turn()
    assert store.delivered() == [b"time", b"level"]
    assert store.faults[-1] is None


async def test_dispatch_behind_holds_delivery_up_without_a_fault(store: DelayedStore) -> None:
    store.wait_level(b"a", 1)
    store.now_ms += 2000
    store.refusal = NotServing("planted")
    await store.turn()
    store.refusal = None
    await store.turn()
    assert store.delivered() == [b"a"]
    assert store.faults == []


async def test_messages_waiting_for_a_deleted_topic_are_dropped(store: DelayedStore) -> None:
    store.wait_level(b"a", 1)
    store.wait_level(b"b", 1, topic="other")
    store.state.deleted["orders"] = TopicConfig("orders", 4, 4, deleted=True)
    store.now_ms += 2000
    await store.turn()
    assert store.delivered() == []
    assert store.delivered("other") == [b"b"]


async def test_messages_waiting_for_a_deleted_topic_do_not_reach_a_new_one_of_its_name(
    store: DelayedStore,
) -> None:
    """1. Messages wait for a group's retry; 2. the group is deleted, and its retry topic; 3. a
    consumer that still runs joins, and creates both anew: it got what the old group had failed on.
    Retention has carried some of it meanwhile, and its copies stand behind the deletion."""
    topic = TopicConfig("orders", 4, 4)
    store.state.apply(TopicRecord(0, topic))
    store.wait_level(b"old level", 2)
    store.wait_until(b"old time", FIRST_MS + 3000)
    store.wait_level(b"other", 2, topic="other")
    border = store.dispatched()
    store.state.apply(TopicRecord(border, topic._replace(deleted=True)))
    store.state.apply(TopicRecord(border, topic))
    store.wait_level(b"new level", 1)
    store.wait_until(b"new time", FIRST_MS + 4000)
    await store.turn()
    below = store.all(TIMER_TOPIC)[0].physical_offset + 1
    assert await store.delayed.carry_below(PhysicalOffset(below)) == CarryResult(0, 2)
    store.now_ms += 10_000
    await store.turn()
    assert store.delivered() == [b"new level", b"new time"]
    assert store.delivered("other") == [b"other"]
    assert store.delayed.pending == 0


async def test_a_queue_that_is_read_anew_delivers_nothing_before_it_is_read_whole(
    store: DelayedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message is read before its carried copy, and only the copy shows that it was carried."""
    for number in range(6):
        store.wait_until(b"%d" % number, FIRST_MS + 100)
    await store.turn()
    await store.delayed.carry_below(store.dispatched())
    await store.turn()
    read_in_steps(monkeypatch)
    await store.kill(reboot=True)
    store.now_ms += 1000
    await store.turn()
    assert sorted(store.delivered()) == [b"%d" % number for number in range(6)]


async def test_a_file_that_missed_its_last_commit_delivers_nothing_before_it_has_read_on(
    store: DelayedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Some are carried, and the disk is full at the commit of the file; 2. progress is recorded,
    so no start searches for the copies' origins any more; 3. a kill: the file has the carried
    messages, and their copies lie behind more than is read at once."""
    store.wait_until(b"kept", FIRST_MS + 1)
    for number in range(6):
        store.wait_until(b"%d" % number, FIRST_MS + 5000)
    store.now_ms += 1
    await store.turn()

    def is_full(times: PendingTimes) -> None:
        store.dispatch()
        raise full_error()

    with monkeypatch.context() as full:
        full.setattr(PendingTimes, "commit", is_full)
        with pytest.raises(DiskFull):
            await store.delayed.carry_below(store.dispatched())
        store.wait_level(b"level", 1)
        store.now_ms += 1000
        await store.turn()
        await store.turn()
        assert store.delay_now().levels[1] == 1
        await store.kill()
    read_in_steps(monkeypatch)
    store.now_ms += 5000
    await store.turn()
    expected = [b"kept", b"level", *(b"%d" % number for number in range(6))]
    assert sorted(store.delivered()) == sorted(expected)


@pytest.mark.parametrize("refused", ["commit", "take_in"])
async def test_carrying_does_not_wait_for_a_file_that_waits_for_room(
    store: DelayedStore, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """1. The disk is full, and SQLite's file lost; 2. retention wants to free space, and first has
    the waiting messages carried; 3. that waited for the file to be opened, which needs space. Or
    it opens, which needs little, and there is no space for what is read into it."""

    store.wait_until(b"a", FIRST_MS + 5000)
    with full_disk(refused):
        await store.turn()
        for _ in range(5):
            with pytest.raises(DiskFull):
                await asyncio.wait_for(store.delayed.carry_below(store.dispatched()), 30)
            await store.turn()
    assert await asyncio.wait_for(store.delayed.carry_below(store.dispatched()), 30) == (1, 0)
    store.now_ms += 5000
    await store.turn()
    assert store.delivered() == [b"a"]


async def test_carrying_does_not_treat_a_lost_file_as_an_empty_one(
    store: DelayedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Retention asks what waits in the oldest log file; 2. SQLite cannot read that now; 3. the
    answer was that nothing waits, and the file was deleted."""

    below, asked = PendingTimes.below, 0

    def is_lost_once(times: PendingTimes, *border: int) -> list[Pending]:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise sqlite3.OperationalError("disk I/O error")
        return below(times, *border)

    store.wait_until(b"a", FIRST_MS + 5000)
    await store.turn()
    monkeypatch.setattr(PendingTimes, "below", is_lost_once)
    assert await store.delayed.carry_below(store.dispatched()) == CarryResult(1, 0)
    assert asked > 1


async def test_a_file_that_cannot_commit_is_filled_again_and_everything_is_carried(
    store: DelayedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. The disk is nearly full: the file opens, and what is read fits into SQLite's memory; 2. it
    is lost at the commit of carried messages. The rest is carried all the same: it was lost with
    its log file if that counted as a file that waits for space."""
    for number in range(6):
        store.wait_until(b"%d" % number, FIRST_MS + 5000)
    await store.turn()
    commit = PendingTimes.commit

    def keeps_nothing(times: PendingTimes) -> None:
        if times.read_to > kept:
            raise full_error()
        commit(times)

    kept = 0
    monkeypatch.setattr(waiting, "CARRY_COUNT_MAX", 2)
    await store.kill(reboot=True)
    await store.delayed.delivery.turn()
    with monkeypatch.context() as full:
        full.setattr(PendingTimes, "commit", keeps_nothing)
        border = store.dispatched()
        carrying = asyncio.create_task(store.delayed.carry_below(border))
        while not carrying.done():
            await asyncio.sleep(0.02)
            store.dispatch()  # reput comes later than the file is tried again
        assert await carrying == CarryResult(6, 0)
    store.now_ms += 5000
    await store.turn()
    assert sorted(store.delivered()) == [b"%d" % number for number in range(6)]


async def test_carrying_does_not_wait_for_ever_for_a_long_queue(
    store: DelayedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        store.wait_until(b"%d" % number, FIRST_MS + 5000)
    await store.turn()
    read_in_steps(monkeypatch, 1)
    monkeypatch.setattr(delayed, "ASKED_MAX", 2)
    await store.kill(reboot=True)
    await store.delayed.delivery.turn()
    with pytest.raises(FileNotReady, match="still being read"):
        await store.delayed.carry_below(store.dispatched())
    monkeypatch.setattr(delayed, "ASKED_MAX", 9)
    assert await store.delayed.carry_below(store.dispatched()) == CarryResult(6, 0)


@pytest.mark.parametrize("refused", ["commit", "take_in"])
async def test_a_file_that_stays_lost_is_a_fault_and_how_late_delivery_is_not_known(
    store: DelayedStore, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """Messages stalled as long as the disk was full, and their delay was reported as 0: it was that
    of the levels alone."""

    store.wait_until(b"a", FIRST_MS + 5000)
    store.wait_level(b"level", 4)
    with full_disk(refused):
        store.now_ms += 9000
        await store.turn()
        assert store.faults == [], "it may be back in a moment"
        for _ in range(20):
            await store.turn()
            assert store.delayed.overdue_s is None
            assert store.delayed.pending is None
        assert [fault and fault.code for fault in store.faults] == ["disk-full"]
        # The delay of the levels is known, and is a lower bound.
        store.now_ms = FIRST_MS + LEVELS_MS[3] + 2000
        assert store.delayed.overdue_s == 2.0
        await store.turn()
        assert store.delivered() == [b"level"], "only the timer's stand still"
        assert store.delayed.overdue_s is None
    for _ in range(3):
        await store.turn()
    assert store.delivered() == [b"level", b"a"]
    assert store.delayed.overdue_s == 0
    assert store.faults[-1] is None


async def test_how_late_delivery_is_is_not_known_before_the_queue_is_read_whole(
    store: DelayedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        store.wait_until(b"%d" % number, FIRST_MS + 5000 - number)
    await store.turn()
    read_in_steps(monkeypatch)
    await store.kill(reboot=True)
    await store.delayed.delivery.turn()
    assert store.delayed.overdue_s is None
    await store.turn()
    assert store.delayed.overdue_s == 0
    assert store.faults == []


async def test_unread_messages_count_as_waiting_below_any_offset(
    store: DelayedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. After a reboot the queue is read anew, and begins with delivered messages; 2. retention
    asks whether anything waits in the oldest log file; 3. nothing waiting had been read so far, the
    file was deleted, and with it the waiting messages behind them."""
    for number in range(4):
        store.wait_until(b"%d" % number, FIRST_MS + 1)
    store.wait_until(b"waits", FIRST_MS + 50_000)
    store.now_ms += 1
    await store.turn()
    await store.turn()
    read_in_steps(monkeypatch)
    await store.kill(reboot=True)
    await store.delayed.delivery.turn()
    assert store.delayed.pending_below(store.dispatched())
    await store.turn()
    assert store.delayed.pending_below(store.dispatched())
    assert store.delayed.pending == 1


async def test_a_message_delivered_while_the_file_is_lost_is_delivered_once(
    store: DelayedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A message is due, and the disk is full as it is taken out of the file; 2. it is delivered,
    and progress was recorded although it was unknown how far the queue was read: a mark that
    covers nothing; 3. the file is opened again, and has the delivered message."""

    store.wait_level(b"waits", len(LEVELS_MS))
    for number in range(3):
        store.wait_until(b"%d" % number, FIRST_MS + 1000)
    await store.turn()
    store.now_ms += 1000
    with full_disk("remove"):
        for _ in range(3):
            await store.delayed.delivery.turn()
    for _ in range(5):
        await store.turn()
    assert store.delivered() == [b"0", b"1", b"2"]
    await store.kill()
    await store.turn()
    assert store.delivered() == [b"0", b"1", b"2"]


async def test_a_file_of_another_log_is_discarded(store: DelayedStore, tmp_path: Path) -> None:
    other = DelayedStore(tmp_path / "other")
    for number in range(3):
        other.wait_until(b"other %d" % number, FIRST_MS + 100)
    await other.turn()
    other.close()
    store.wait_until(b"ours, with a longer body", FIRST_MS + 100)
    await store.turn()
    await store.kill()
    (tmp_path / "other" / FILE).rename(tmp_path / FILE)
    await store.turn()
    store.now_ms += 1000
    await store.turn()
    assert store.delivered() == [b"ours, with a longer body"]


async def test_damage_stops_delivery_and_names_the_place(store: DelayedStore) -> None:
    store.wait_level(b"a", 1)
    store.wait_level(b"b", 1)
    path = store.store.queue_directory(SCHEDULE_TOPIC, 0).path / f"{0:020d}"
    units = path.read_bytes()
    path.write_bytes(units[20:40] + units[20:])
    await store.kill()
    store.now_ms += 2000
    await store.turn()
    assert isinstance(store.faults[-1], DamagedFile)
    assert store.delivered() == []
    path.write_bytes(units)
    await store.kill()
    await store.turn()
    assert store.delivered() == [b"a", b"b"]


@pytest.mark.parametrize(
    ("topic", "byte"),
    [*((SCHEDULE_TOPIC, byte) for byte in (3, 7, 10, 11)), (TIMER_TOPIC, 7), (TIMER_TOPIC, 11)],
)
async def test_a_flipped_bit_in_a_unit_delays_its_message_and_loses_none(
    store: DelayedStore, topic: str, byte: int
) -> None:
    """A unit that pointed behind the log was treated as an expired message, and skipped."""
    for name in (b"a", b"b"):
        if topic == SCHEDULE_TOPIC:
            store.wait_level(name, 1)
        else:
            store.wait_until(name, FIRST_MS + 1000)
    if topic == SCHEDULE_TOPIC:  # of the other one all would be read at once
        await store.turn()
    path = store.store.queue_directory(topic, 0).path / f"{0:020d}"
    units = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        file.seek(byte)
        file.write(bytes([units[byte] ^ 0x40]))
        store.now_ms += 2000
        await store.turn()
        assert store.delivered() == []
        fault = store.faults[-1]
        assert fault is not None
        place = (fault.facts["topic"], fault.facts["queue"], fault.facts["queue_offset"])
        assert place == (topic, 0, 0), "reput is asked to make that unit again"
        file.seek(0)
        file.write(units)
    await store.turn()
    assert sorted(store.delivered()) == [b"a", b"b"]


async def test_progress_is_recorded_in_the_log_and_a_start_goes_on_from_there(
    store: DelayedStore,
) -> None:
    for number in range(5):
        store.wait_level(b"%d" % number, 1)
    store.wait_until(b"time", FIRST_MS + 700)
    store.now_ms += 2000
    await store.turn()
    await store.turn()
    recorded = store.delay_now()
    assert recorded.levels[1] == 5
    assert recorded.timer[:2] == (FIRST_MS + 700, 0)


async def test_an_idle_store_is_not_read(store: DelayedStore) -> None:
    store.wait_level(b"a", 1)
    await store.turn()
    looked = store.delayed.delivery.last_scan
    for _ in range(5):
        await store.turn()
    assert store.delayed.delivery.last_scan is looked
    store.send("orders", b"at once")
    await store.turn()
    assert store.delayed.delivery.last_scan is looked, "nothing came that waits"


@for_each("seed", SEEDS)
async def test_no_kill_delivers_a_message_twice_or_loses_it(tmp_path: Path, seed: int) -> None:
    """Sends, steps of the clock, cancellations, carrying and kills in any order, then time passes
    for all: every message that was not cancelled is delivered once, the others never."""
    random = Random(seed)
    store = DelayedStore(tmp_path)
    due_at: dict[bytes, int] = {}
    cancelled: set[bytes] = set()
    number = 0
    for _ in range(random.randrange(20, 60)):
        match random.choice(WHAT):
            case "send":
                for _ in range(random.randrange(1, 12)):
                    body = b"%d" % number
                    number += 1
                    if random.random() < 0.5:
                        level = random.randrange(1, 1 + len(LEVELS_MS))
                        store.wait_level(body, level)
                    else:
                        ahead = random.choice((1, 50, 1000, 20_000))
                        store.wait_until(body, store.now_ms + random.randrange(1, ahead + 1))
                    due_at[body] = store.now_ms
            case "refuse":
                store.refuse_after = random.randrange(3)
                await store.turn()
                with contextlib.suppress(DiskFull):
                    await store.delayed.carry_below(store.dispatched())
                store.refuse_after = None
            case "clock":
                store.now_ms += random.choice((-3000, 1, 100, 1000, 7000))
            case "turn":
                if random.random() < 0.3:
                    store.appends_until_kill = random.randrange(3)
                try:
                    await store.turn()
                    store.appends_until_kill = None
                except Killed:
                    await store.kill(reboot=random.random() < 0.5)
            case "kill":
                await store.kill(reboot=random.random() < 0.5)
            case "cancel" if due_at:
                await store.turn()
                body = random.choice(sorted(due_at))
                if body not in store.delivered() and body not in cancelled:
                    await store.delayed.cancel(body.decode(), None)
                    cancelled.add(body)
            case "carry":
                await store.turn()
                end = store.dispatched()
                if random.random() < 0.3:
                    store.appends_until_kill = random.randrange(2)
                try:
                    await store.delayed.carry_below(end)
                    store.appends_until_kill = None
                except Killed:
                    await store.kill(reboot=random.random() < 0.5)
    store.now_ms += 200_000
    await store.turn()
    assert sorted(store.delivered()) == sorted(due_at.keys() - cancelled), f"seed {seed}"
    assert store.delayed.pending == 0
    store.close()
