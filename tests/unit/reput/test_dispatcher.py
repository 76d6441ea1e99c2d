"""Dispatch of a valid log: which records get a unit, progress, durability and step sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from services.reput.dispatcher import Dispatcher, Took
from shared.files.commit_log import CommitLogReader
from shared.files.index import IndexReader
from tests.support.index_query import query
from tests.support.small_dispatch import (
    dispatch_all,
    dispatched,
    dispatcher_of,
    expected_units,
    fill,
    units,
)
from tests.support.small_store import CONFIG, FIRST_MS, SmallStore
from tests.support.small_store import small as small
from tidemark.formats.checkpoint import Slot
from tidemark.offsets import PhysicalOffset


def lookup(small: SmallStore, topic: str, key: str) -> list[PhysicalOffset]:
    reader = IndexReader(small.store, CommitLogReader(small.store, small.positions))
    try:
        return query(reader, topic, key, dispatched=small.positions.get(Slot.DISPATCHED))
    finally:
        reader.close()


def test_every_record_gets_its_unit_and_its_keys_and_the_end_is_published(
    small: SmallStore,
) -> None:
    fill(small)
    dispatcher = dispatcher_of(small)
    assert small.positions.get(Slot.DISPATCHED) == 0
    assert dispatch_all(dispatcher) == small.end
    assert units(small) == expected_units(small)
    assert small.positions.get(Slot.DISPATCHED) == small.end == dispatcher.dispatched
    assert dispatcher.records_count == dispatcher.units_count == 60
    for topic, _, number, unit in small.units:
        del number
        assert unit.physical_offset in lookup(small, topic, "all")
    assert len(lookup(small, "orders", "k3") + lookup(small, "bills", "k3")) == 1


def test_prepared_and_rolled_back_messages_take_no_unit(small: SmallStore) -> None:
    small.put(keys="p", sys_flag=0x4, queue_offset=0)
    small.put(keys="r", sys_flag=0xC, queue_offset=0)
    small.put(keys="c", sys_flag=0x8)
    small.flush()
    dispatched(small)
    assert units(small) == expected_units(small)
    assert len(units(small)) == 1
    assert [len(lookup(small, "orders", key)) for key in "prc"] == [1, 0, 1]


def test_dispatch_stops_at_the_flushed_or_with_written_at_the_written_offset(
    tmp_path: Path,
) -> None:
    small = SmallStore(tmp_path / "a")
    small.put()
    small.flush()
    small.put()
    dispatched(small)
    assert small.positions.get(Slot.DISPATCHED) == small.positions.get(Slot.FLUSHED) < small.end
    small.close()
    small = SmallStore(tmp_path / "b", replace(CONFIG, visible_after="written"))
    small.put()
    dispatched(small)
    assert small.positions.get(Slot.DISPATCHED) == small.end
    small.close()


def test_the_dispatched_mark_moves_with_the_sync_and_its_totals(small: SmallStore) -> None:
    fill(small)
    dispatcher = dispatched(small)
    get = small.positions.get
    assert get(Slot.DISPATCHED_DURABLE) == 0
    dispatcher.sync()
    assert get(Slot.DISPATCHED_DURABLE) == small.end == dispatcher.dispatched_mark.offset
    assert get(Slot.RESUME_UNITS) == 60
    assert get(Slot.RESUME_INDEX_ENTRIES) == 120
    head = small.positions.head()
    assert head.logics_timestamp_ms == small.now_ms
    assert 0 < head.index_timestamp_ms < small.now_ms
    assert dispatcher.begin_sync() is None, "nothing new"


def test_records_dispatched_during_a_sync_wait_for_the_next(small: SmallStore) -> None:
    small.put()
    small.flush()
    dispatcher = dispatched(small)
    first_end = small.end
    job = dispatcher.begin_sync()
    assert job is not None
    small.put(topic="late")
    small.flush()
    dispatch_all(dispatcher)
    job.run()
    dispatcher.finish_sync(job)
    assert small.positions.get(Slot.DISPATCHED_DURABLE) == first_end
    assert small.positions.get(Slot.RESUME_UNITS) == 1
    dispatcher.sync()
    assert small.positions.get(Slot.DISPATCHED_DURABLE) == small.end


def test_a_sync_that_a_resume_overtook_publishes_nothing(small: SmallStore) -> None:
    fill(small, 10)
    dispatcher = dispatched(small)
    job = dispatcher.begin_sync()
    assert job is not None
    dispatcher.resume()
    dispatcher.finish_sync(job)
    assert small.positions.get(Slot.DISPATCHED_DURABLE) == 0


def test_a_record_larger_than_a_step_is_a_step(small: SmallStore) -> None:
    small.put(body=bytes(3000))
    small.put(body=bytes(3000))
    small.flush()
    dispatcher = dispatcher_of(small)
    assert dispatcher.step(100) > 3000
    dispatch_all(dispatcher, 100)
    assert len(units(small)) == 2


def test_a_large_step_grows_where_each_of_many_queues_would_get_a_few_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.reput.dispatcher.STEP_SIZE", 600)
    small = SmallStore(tmp_path / "store", replace(CONFIG, commit_log_file_size=1 << 18))
    for number in range(300):
        small.put("orders", number % 20)
    spread_end = small.end
    for _ in range(1000):
        small.put("orders", 0)
    small.flush()
    dispatcher = dispatcher_of(small)
    assert dispatcher.step(599) <= 599
    assert dispatcher.step(599) <= 599, "a small one stays small"
    assert dispatcher.step(600) <= 600
    assert 600 < dispatcher.step(600) <= 600 * 16
    while dispatcher.position < spread_end:
        dispatcher.step(600)
    sizes = [dispatcher.step(600) for _ in range(10)]
    assert max(sizes[5:]) < 64 * 140, "no more than makes long runs of the one queue"
    dispatch_all(dispatcher)
    assert units(small) == expected_units(small)
    small.close()


def test_a_step_does_not_grow_beyond_what_its_plan_may_take_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.reput.dispatcher.STEP_SIZE", 600)
    monkeypatch.setattr("services.reput.dispatcher.WIDE_SIZE_MAX", 1500)
    small = SmallStore(tmp_path / "store", replace(CONFIG, commit_log_file_size=1 << 18))
    for number in range(300):
        small.put("orders", number % 20)
    small.flush()
    dispatcher = dispatcher_of(small)
    sizes = [dispatcher.step(600) for _ in range(10)]
    assert 600 < max(sizes) <= 1500
    assert 1500 < dispatcher.step(3000) <= 3000, "one that was asked for is not cut"
    small.close()


class TickingClock:
    """A clock that advances by a second at each call of ``monotonic``."""

    def __init__(self) -> None:
        self.reads = 0

    def wall_ms(self) -> int:
        return FIRST_MS

    def monotonic(self) -> float:
        self.reads += 1
        return float(self.reads)

    def boot_ms(self) -> int:
        return 0


def ticking(small: SmallStore) -> tuple[Dispatcher, TickingClock]:
    clock = TickingClock()
    return dispatcher_of(small, clock=clock), clock


def test_a_step_reports_times_of_queues_and_index_and_the_age_of_its_first_record(
    small: SmallStore,
) -> None:
    for number in range(20):
        small.put("orders", keys=f"k{number}")
    small.flush()
    dispatcher, clock = ticking(small)
    assert dispatcher.took is None
    reads = clock.reads
    dispatcher.step()
    assert dispatcher.took == Took(queues_s=1.0, index_s=1.0, oldest_ms=FIRST_MS + 1)
    assert clock.reads == reads + 3  # per step, not per record


def test_a_step_without_keys_takes_no_time_for_the_index(small: SmallStore) -> None:
    small.put("orders")
    small.flush()
    dispatcher, _ = ticking(small)
    dispatcher.step()
    assert dispatcher.took == Took(queues_s=1.0, index_s=0.0, oldest_ms=FIRST_MS + 1)


def test_records_visible_before_have_no_delay(small: SmallStore) -> None:
    fill(small, 20)
    dispatcher = dispatched(small)
    for path in small.store.index_dir.iterdir():
        path.unlink()
    dispatcher, _ = ticking(small)
    assert dispatcher.is_catching_up
    dispatcher.step()
    assert dispatcher.took is not None
    assert dispatcher.took.oldest_ms is None
