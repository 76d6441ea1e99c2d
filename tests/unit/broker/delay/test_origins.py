"""Origins in the log: found across files and chunks, and only in properties."""

from __future__ import annotations

from collections import Counter

import pytest

from services.broker.delay import origins
from services.broker.delay.progress import Found
from shared.state import records
from shared.state.records import DelayRecord, OffsetsRecord
from shared.state.values import TimerMark
from tests.support.delayed_store import DelayedStore
from tests.support.small_broker import CONFIG, FIRST_MS
from tidemark.errors import CorruptRecord
from tidemark.formats.delay import Identity
from tidemark.offsets import PhysicalOffset


def found(store: DelayedStore, start: int = 0) -> Found:
    return origins.find_origins(store.reader, PhysicalOffset(start), store.dispatched())


def delivered(store: DelayedStore, origin: str, **pairs: str) -> int:
    """Append a copy with that origin; return where its record begins."""
    pairs = {**pairs, "TIDEMARK_DELAY_ORIGIN": origin}
    return store.send("orders", b"x" * 300, pairs=pairs).physical_offset


def test_origins_are_found_in_every_file_whatever_a_chunk_holds(
    store: DelayedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(400):
        store.send("orders", b"y" * 1200)
        if number % 20 == 0:
            delivered(store, f"{1 + number % 3}@{number}")
            delivered(store, f"0@{number}", TIMER_OUT_MS=str(number * 1000))
    assert store.dispatched() > 2 * CONFIG.commit_log_file_size - 1000
    levels = {1: 361, 2: 341, 3: 381}
    timer = {number: (number + 1) * 1000 for number in range(0, 400, 20)}
    for chunk_size in (1, 100, 1000, 4096, 4 << 20):
        monkeypatch.setattr(origins, "CHUNK_SIZE", chunk_size)
        assert found(store) == Found(levels, timer), chunk_size


@pytest.mark.parametrize("chunk_size", [1, 1000, 4 << 20])
def test_copies_of_rocketmqs_are_found_among_ours(
    store: DelayedStore, monkeypatch: pytest.MonkeyPatch, chunk_size: int
) -> None:
    monkeypatch.setattr(origins, "CHUNK_SIZE", chunk_size)
    times = {"TIMER_OUT_MS": "5000", "TIMER_DEQUEUE_MS": "6000", "REAL_TOPIC": "orders"}
    for number in range(30):
        store.now_ms = FIRST_MS + number
        store.send("orders", b"y" * 300, unique_id=f"other{number}")
        delivered(store, f"0@{number}", **times)
        store.send("orders", b"y", unique_id=f"r{number}", pairs=times)
        store.send("rmq_sys_wheel_timer", b"y", unique_id=f"again{number}", pairs=times)
    copies: Counter[origins.Copy] = Counter()
    end = store.dispatched()
    since = FIRST_MS + 10
    result = origins.find_origins(
        store.reader, PhysicalOffset(0), end, rocketmq_from_ms=since, copies=copies
    )
    assert result.timer.keys() == set(range(30))
    assert set(copies.values()) == {1}
    assert copies.keys() == {
        origins.Copy(6000, Identity(b"orders", b"r%d" % number)) for number in range(10, 30)
    }
    # Memory is bounded, whatever RocketMQ delivered.
    monkeypatch.setattr(origins, "COPIES_MAX", 3)
    few: Counter[origins.Copy] = Counter()
    origins.find_origins(store.reader, PhysicalOffset(0), end, copies=few)
    assert len(few) == 3


def test_a_body_that_contains_an_origin_property_is_no_delivery(store: DelayedStore) -> None:
    store.send("orders", b"TIDEMARK_DELAY_ORIGIN\x010@5\x02")
    store.send("orders", b"x", pairs={"note": "TIDEMARK_DELAY_ORIGIN", "a": "0@6"})
    delivered(store, "0@7")
    assert found(store).timer.keys() == {7}


def test_the_time_of_a_copy_that_does_not_say_when_it_was_due_is_its_store_time(
    store: DelayedStore,
) -> None:
    delivered(store, "0@7")
    assert found(store) == Found({}, {7: FIRST_MS})


async def test_a_carried_message_has_no_time_yet(store: DelayedStore) -> None:
    store.wait_until(b"a", FIRST_MS + 9000)
    store.wait_level(b"b", 3)
    await store.turn()
    await store.delayed.carry_below(store.dispatched())
    store.dispatch()
    assert found(store) == Found({3: 1}, {0: None})


def test_only_what_lies_behind_the_start_is_looked_at(store: DelayedStore) -> None:
    delivered(store, "0@1")
    border = delivered(store, "0@2")
    assert found(store, border).timer.keys() == {2}


def test_bytes_that_are_no_record_are_named(store: DelayedStore) -> None:
    delivered(store, "0@1")
    at = delivered(store, "0@2")
    path = next(iter(sorted(store.store.commit_log_dir.iterdir())))
    with path.open("r+b") as file:
        file.seek(at + 4)
        file.write(b"\xff\xff\xff\xff")
    with pytest.raises(CorruptRecord) as caught:
        found(store)
    assert caught.value.at == at


def test_the_search_begins_at_the_last_checkpoint(store: DelayedStore) -> None:
    def last() -> int:
        store.dispatch()
        return origins.last_checkpoint(store.queues, store.reader, store.dispatched())

    store.send("orders")
    assert last() == 0, "there is no record yet"
    checkpoint = store.appender.appended
    store.append_state_now(records.encode(DelayRecord(0, {1: 3}, TimerMark())))
    assert last() == checkpoint
    # Neither a cancellation nor another kind records progress.
    store.append_state_now(records.encode(DelayRecord(0, cancelled={(1, 9): 5})))
    store.append_state_now(records.encode(OffsetsRecord(0, {"delay": {("orders", 0): 1}})))
    # Nor does a snapshot: it repeats the last record, behind copies that are not in it.
    for body in store.state.snapshot_records(0, 1 << 20):
        store.append_state_now(body)
    assert last() == checkpoint
