"""RocketMQ's timer: its state is continued here, and it continues ours."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sqlite3
from collections.abc import Callable, Sequence
from random import Random

import pytest

from services.broker.delay import timer_queue, timing_wheel
from services.broker.delay.build import FILE
from services.broker.delay.slices import Entry, read_entry
from shared.files.commit_log import CommitLogReader
from shared.state.values import TimerMark
from tests.support.delayed_store import DelayedStore
from tests.support.small_broker import FIRST_MS
from tidemark.errors import CorruptRecord, NotServing
from tidemark.formats import delay, timer_check, timer_log
from tidemark.formats.delay import TIMER_TOPIC
from tidemark.formats.filenames import offset_name
from tidemark.formats.record import Record
from tidemark.offsets import PhysicalOffset

DUE_MS = FIRST_MS + 10_000


def put(store: DelayedStore, unique_id: str, due_ms: int = DUE_MS, **pairs: str) -> Record:
    """A message in the timer's queue, as RocketMQ puts it there."""
    named = {
        "TIMER_DELIVER_MS": str(due_ms),
        "TIMER_OUT_MS": str(delay.slot_ms(due_ms)),
        "REAL_TOPIC": "orders",
        "REAL_QID": "0",
    }
    return store.send(
        TIMER_TOPIC, unique_id.encode(), unique_id=unique_id, pairs={**named, **pairs}
    )


def put_again(store: DelayedStore, unique_id: str, due_ms: int = DUE_MS) -> Record:
    """The same message once more: its window was over before its time."""
    return put(store, unique_id, due_ms, TIMER_ROLL_TIMES="1", TIMER_DEQUEUE_MS=str(store.now_ms))


def cancel(store: DelayedStore, key: str, due_ms: int = DUE_MS) -> Record:
    return put(store, f"cancels {key}", due_ms, TIMER_DEL_UNIQKEY=key)


def deliver(store: DelayedStore, unique_id: str, due_ms: int = DUE_MS, **pairs: str) -> Record:
    """A copy as RocketMQ's timer appends it."""
    named = {
        "TIMER_DELIVER_MS": str(due_ms),
        "TIMER_OUT_MS": str(delay.slot_ms(due_ms)),
        "REAL_TOPIC": "orders",
        "REAL_QID": "0",
        "TIMER_ENQUEUE_MS": str(FIRST_MS),
        "TIMER_DEQUEUE_MS": str(store.now_ms),
    }
    return store.send("orders", unique_id.encode(), unique_id=unique_id, pairs={**named, **pairs})


async def hand_over(store: DelayedStore, *, process_ends: bool = True) -> None:
    closed = asyncio.get_running_loop().create_future()
    closed.set_result(process_ends)
    await store.delayed.delivery.hand_over(closed)


async def delivered_at(store: DelayedStore, now_ms: int) -> list[bytes]:
    store.now_ms = now_ms
    await store.turn()
    return sorted(store.delivered())


async def test_a_stop_commits_what_was_read(
    store: DelayedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was committed only with a delivery: each start read the whole queue again."""
    monkeypatch.setattr(timer_queue, "TAKE_IN_MAX", 2)
    for number in range(7):
        put(store, f"m{number}")
    await store.delayed.delivery.turn()
    await hand_over(store)
    await store.kill()  # a stop closes the file as a kill does
    with contextlib.closing(sqlite3.connect(store.root / FILE)) as file:
        assert file.execute("SELECT value FROM known WHERE name = 'read_to'").fetchone() == ("7",)
    await store.turn()
    await hand_over(store)
    check = timer_check.decode((store.root / "config" / "timercheck").read_bytes())
    assert check is not None
    assert check.queue_offset == 7


@pytest.mark.parametrize("reboot", [False, True])
@pytest.mark.parametrize("key", ["orders+a", "a"])
async def test_a_cancellation_of_rocketmqs_is_kept_and_never_delivered(
    store: DelayedStore, key: str, *, reboot: bool
) -> None:
    put(store, "a")
    put(store, "b")
    await store.turn()
    cancel(store, key)
    # In the same slot of the wheel, whatever the millisecond; no other slot is meant.
    put(store, "a", DUE_MS + 1)
    await store.turn()
    await store.kill(reboot=reboot)
    assert await delivered_at(store, DUE_MS + 2000) == [b"a", b"b"]
    assert len(store.all(TIMER_TOPIC)) == 4


@pytest.mark.parametrize("turns", [*itertools.product((False, True), repeat=4)])
async def test_a_cancelled_message_that_is_put_back_stays_cancelled(
    store: DelayedStore, turns: Sequence[bool]
) -> None:
    # RocketMQ puts the cancellation back as well, before the message or behind it.
    steps: tuple[Callable[[DelayedStore, str], Record], ...] = (
        put,
        lambda store, _: cancel(store, "orders+a"),
        lambda store, _: put(
            store, "c", TIMER_DEL_UNIQKEY="orders+a", TIMER_ROLL_TIMES="1", TIMER_DEQUEUE_MS="5"
        ),
        put_again,
    )
    for step, does_turn in zip(steps, turns, strict=True):
        step(store, "a")
        if does_turn:
            await store.turn()
    put(store, "b")
    assert await delivered_at(store, DUE_MS) == [b"b"]


@pytest.mark.parametrize("reboot", [False, True])
async def test_a_message_that_rocketmq_put_back_comes_once(
    store: DelayedStore, *, reboot: bool
) -> None:
    for unique_id in ("a", "b", "twice", "twice"):
        put(store, unique_id)
    await store.turn()
    for unique_id in ("a", "twice", "twice", "a"):  # the last: it was killed, and did it again
        put_again(store, unique_id)
        await store.turn()
    await store.kill(reboot=reboot)
    assert await delivered_at(store, DUE_MS) == [b"a", b"b", b"twice", b"twice"]


@pytest.mark.parametrize("reboot", [False, True])
async def test_messages_that_a_killed_rocketmq_delivered_are_not_delivered_again(
    store: DelayedStore, *, reboot: bool
) -> None:
    for unique_id in ("a", "b", "c"):
        put(store, unique_id)
    put(store, "a", DUE_MS + 5000)  # another message of the same id is not this one
    await store.turn()
    await store.kill(reboot=reboot)
    store.now_ms = DUE_MS
    deliver(store, "b")
    deliver(store, "a")
    assert await delivered_at(store, DUE_MS + 1) == [b"a", b"b", b"c"]
    # The progress is recorded; the copies lie before that record now.
    for _ in range(3):
        await store.turn()
    await store.kill(reboot=True)
    assert await delivered_at(store, DUE_MS + 5000) == [b"a", b"a", b"b", b"c"]


@pytest.mark.parametrize("was_put_back", [False, True])
async def test_of_messages_with_one_id_as_many_are_delivered_as_there_are_copies(
    store: DelayedStore, *, was_put_back: bool
) -> None:
    # Both counted as delivered when RocketMQ was killed between the two.
    put(store, "a")
    put(store, "a")
    if was_put_back:
        put_again(store, "a")
        put_again(store, "a")
    store.now_ms = DUE_MS
    deliver(store, "a")
    assert await delivered_at(store, DUE_MS + 1) == [b"a", b"a"]


async def test_rocketmq_begins_with_the_oldest_message_that_is_overdue(store: DelayedStore) -> None:
    # It began with the second of the stop, where the overdue ones lay: killed there, it left a
    # timercheck that counts them as delivered.
    late = store.wait_until(b"late", FIRST_MS + 5000)
    await store.turn()
    store.now_ms = FIRST_MS + 3_600_000
    await hand_over(store)
    check = timer_check.decode((store.root / "config" / "timercheck").read_bytes())
    assert check is not None
    unit = timer_log.decode((store.root / "timerlog" / offset_name(0)).read_bytes())
    assert unit is not None
    assert unit.physical_offset == late.physical_offset
    assert unit.slot_ms == check.read_to_ms == delay.slot_ms(FIRST_MS + 5000)
    assert not TimerMark(check.read_to_ms, 1 << 62, 9).passed(FIRST_MS + 5000, 0)


async def test_messages_overdue_for_a_week_are_left_in_the_queue_for_rocketmq(
    store: DelayedStore,
) -> None:
    store.wait_until(b"late", FIRST_MS + 5000)
    await store.turn()
    store.now_ms = FIRST_MS + 7 * 24 * 3_600_000
    await hand_over(store)
    assert not (store.root / "timerlog").exists()
    assert not (store.root / "config" / "timercheck").exists(), "the queue is read from its start"


async def test_waiting_messages_are_handed_over_without_cancelled_and_delivered_ones(
    store: DelayedStore,
) -> None:
    records = {
        name: store.wait_until(name.encode(), FIRST_MS + at_ms)
        for name, at_ms in (
            ("due", 500),
            ("soon", 5000),
            ("cancelled", 5000),
            ("far", 3 * 24 * 3_600_000),
            ("last", 600),
        )
    }
    await store.turn()
    assert await delivered_at(store, FIRST_MS + 1700) == [b"due", b"last"]
    await store.delayed.cancel("cancelled", None)
    await hand_over(store)
    log = (store.root / "timerlog" / offset_name(0)).read_bytes()
    units: list[timer_log.Unit] = []
    while (unit := timer_log.decode(log, len(units) * timer_log.UNIT_SIZE)) is not None:
        units.append(unit)
    now_ms = FIRST_MS + 1000
    # The last message of the queue has a unit, in a slot that is never read.
    assert [(unit.physical_offset, unit.slot_ms - now_ms, unit.magic) for unit in units] == [
        (records["soon"].physical_offset, 3000, 1),
        (records["far"].physical_offset, timer_log.ROLL_WINDOW_MS, 3),
        (records["last"].physical_offset, -1000, 1),
    ]
    raw = (store.root / "config" / "timercheck").read_bytes()
    assert timer_check.decode(raw) == (now_ms, 3 * timer_log.UNIT_SIZE, 5, 5)
    # The next start takes it back: from here on it gets older. After a kill RocketMQ begins at the
    # oldest message that waits.
    await store.kill()
    await store.turn()
    raw = (store.root / "config" / "timercheck").read_bytes()
    assert timer_check.decode(raw) == (now_ms, 0, 1, 1)
    assert timer_check.is_untouched(raw)
    assert not any((store.root / "timerlog" / offset_name(0)).read_bytes()[:1000])


async def test_more_than_can_be_written_in_time_is_not_handed_over(
    store: DelayedStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(timing_wheel, "WHEEL_COUNT_MAX", 2)
    for name in (b"a", b"b", b"c"):
        store.wait_until(name, DUE_MS)
    await store.turn()
    await hand_over(store)
    assert not (store.root / "timerlog").exists()
    assert "timer-wheel-not-written" in [getattr(each, "event", "") for each in caplog.records]


async def test_a_master_that_steps_down_writes_nothing(store: DelayedStore) -> None:
    # A million units took three seconds before the node could follow the next master, and a slave
    # removes them.
    store.wait_until(b"a", DUE_MS)
    await store.turn()
    await hand_over(store, process_ends=False)
    assert not (store.root / "timerlog").exists()


@pytest.mark.parametrize(("lock_is_held", "is_written"), [(True, True), (False, False)])
async def test_a_master_that_another_node_replaces_at_its_stop_writes_them(
    store: DelayedStore, monkeypatch: pytest.MonkeyPatch, *, lock_is_held: bool, is_written: bool
) -> None:
    # 1. The broker of a master was stopped; 2. ha switched to another node, which ended the term
    # and closed the confirmer; 3. that refused the question whether the delivered copies are
    # confirmed, though they were, and no file was written. Once the append lock is free, the
    # page's confirm offset may be of another epoch, and proves nothing.
    store.wait_until(b"due", FIRST_MS + 500)
    store.wait_until(b"a", DUE_MS)
    await store.turn()
    assert await delivered_at(store, FIRST_MS + 1700) == [b"due"]
    refused: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    refused.set_exception(NotServing("the term is over.", "Try again."))
    monkeypatch.setattr(store, "durable", lambda *_: refused)
    closed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    if not lock_is_held:
        closed.set_result(True)
    ending = asyncio.create_task(store.delayed.delivery.hand_over(closed))
    await asyncio.sleep(0)
    if lock_is_held:
        closed.set_result(True)
    await ending
    assert (store.root / "timerlog").exists() is is_written


async def test_a_store_without_any_such_message_gets_no_files(store: DelayedStore) -> None:
    store.wait_level(b"a", 2)
    await store.turn()
    await hand_over(store)
    assert not (store.root / "timerlog").exists()
    assert not (store.root / "config" / "timercheck").exists()


async def test_a_slot_that_cannot_be_read_is_read_again_as_a_whole(
    store: DelayedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Messages were taken in, what RocketMQ had put back was not: it came twice.
    first = put(store, "a")
    await store.turn()
    is_damaged = True

    def damaged(log: CommitLogReader, entry: Entry, dispatched: PhysicalOffset) -> Record | None:
        if is_damaged and entry.physical_offset == first.physical_offset:
            raise CorruptRecord(first.physical_offset, "planted")
        return read_entry(log, entry, dispatched)

    monkeypatch.setattr("services.broker.delay.timer_messages.read_entry", damaged)
    put_again(store, "a")
    assert await delivered_at(store, DUE_MS) == []
    assert [getattr(fault, "code", None) for fault in store.faults] == ["corrupt-record"]
    is_damaged = False
    assert await delivered_at(store, DUE_MS) == [b"a"]


@pytest.mark.parametrize("seed", range(5))
async def test_after_a_kill_rocketmq_begins_at_or_before_all_that_waits(
    store: DelayedStore, seed: int
) -> None:
    random = Random(seed)
    moved = 0
    for number in range(60):
        match random.choice(("send", "send", "turn", "clock", "kill")):
            case "send":
                at_ms = store.now_ms + random.randint(1, 5000)
                store.wait_until(b"%d" % number, at_ms)
            case "turn":
                await store.turn()
            case "clock":
                store.now_ms += random.randint(1, 4000)
            case _:
                await store.kill(reboot=random.random() < 0.5)
        path = store.root / "config" / "timercheck"
        check = timer_check.decode(path.read_bytes()) if path.exists() else None
        if check is not None:
            delivered = {bytes(each.body) for each in store.all("orders")}
            waits = [each for each in store.all(TIMER_TOPIC) if bytes(each.body) not in delivered]
            assert all(each.queue_offset >= check.queue_offset for each in waits)
            moved = max(moved, check.queue_offset)
    assert moved, "it is not the queue's start forever"
