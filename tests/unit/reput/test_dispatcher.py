from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from services.reput.dispatcher import Dispatcher, Took
from services.reput.resume import IndexMode, QueueMode
from shared.files.commit_log import CommitLogReader
from shared.files.index import IndexReader
from tests.support.sim_disk import LOSE_ALL, SimDisk
from tests.support.small_store import BOOT, CONFIG, FIRST_MS, SmallStore
from tidemark.errors import CorruptRecord, FlushFailed, QueueGap, StrayFile
from tidemark.formats.checkpoint import Slot
from tidemark.formats.queue_unit import Unit, encode
from tidemark.offsets import PhysicalOffset


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallStore]:
    store = SmallStore(tmp_path / "store")
    yield store
    store.close()


def dispatcher_of(small: SmallStore, boot: tuple[int, int] = BOOT) -> Dispatcher:
    log = CommitLogReader(small.store, small.positions)
    dispatcher = Dispatcher(small.store, small.positions, log, boot_id=boot)
    dispatcher.resume()
    return dispatcher


def dispatch_all(dispatcher: Dispatcher, bytes_max: int = 700) -> int:
    done = 0
    while step := dispatcher.step(bytes_max):
        done += step
    return done


def fill(small: SmallStore, count: int = 60) -> None:
    """Records of three queues over several log, queue and index files."""
    for number in range(count):
        topic, queue = (("orders", 0), ("orders", 1), ("bills", 0))[number % 7 % 3]
        small.put(topic, queue, body=b"x" * (number * 37 % 500), tags="A", keys=f"k{number} all")
    small.flush()


def queue_files(small: SmallStore) -> dict[str, bytes]:
    root = small.store.consume_queues_dir
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("0*")
            if path.is_file()}  # fmt: skip


def index_files(small: SmallStore) -> list[bytes]:
    return [path.read_bytes() for path in sorted(small.store.index_dir.iterdir())]


def expected_units(small: SmallStore) -> dict[tuple[str, int, int], bytes]:
    return {(topic, queue, number): encode(unit) for topic, queue, number, unit in small.units}


def units(small: SmallStore) -> dict[tuple[str, int, int], bytes]:
    found = {}
    for name, raw in queue_files(small).items():
        topic, queue, start = name.split("/")
        for at in range(0, len(raw), 20):
            if raw[at : at + 20] != bytes(20):
                found[topic, int(queue), (int(start) + at) // 20] = raw[at : at + 20]
    return found


def lookup(small: SmallStore, topic: str, key: str) -> list[PhysicalOffset]:
    reader = IndexReader(small.store, CommitLogReader(small.store, small.positions))
    try:
        return reader.query(topic, key, dispatched=small.positions.get(Slot.DISPATCHED))
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
    dispatcher.close()


def test_dispatch_stops_at_what_is_flushed_and_with_written_at_what_is_written(
    tmp_path: Path,
) -> None:
    small = SmallStore(tmp_path / "a")
    small.put()
    small.flush()
    small.put()
    dispatcher = dispatcher_of(small)
    dispatch_all(dispatcher)
    assert small.positions.get(Slot.DISPATCHED) == small.positions.get(Slot.FLUSHED) < small.end
    dispatcher.close()
    small.close()
    small = SmallStore(tmp_path / "b", replace(CONFIG, visible_after="written"))
    small.put()
    dispatcher = dispatcher_of(small)
    dispatch_all(dispatcher)
    assert small.positions.get(Slot.DISPATCHED) == small.end
    dispatcher.close()
    small.close()


def test_the_durable_mark_moves_with_the_sync_and_its_totals(small: SmallStore) -> None:
    fill(small)
    dispatcher = dispatcher_of(small)
    dispatch_all(dispatcher)
    get = small.positions.get
    assert get(Slot.DISPATCHED_DURABLE) == 0
    dispatcher.sync()
    assert get(Slot.DISPATCHED_DURABLE) == small.end == dispatcher.durable
    assert get(Slot.RESUME_UNITS) == 60
    assert get(Slot.RESUME_INDEX_ENTRIES) == 120
    head = small.positions.head()
    assert head.logics_timestamp_ms == small.now_ms
    assert 0 < head.index_timestamp_ms < small.now_ms
    assert dispatcher.begin_sync() is None, "nothing new"
    dispatcher.close()


def test_what_is_dispatched_during_a_sync_waits_for_the_next(small: SmallStore) -> None:
    small.put()
    small.flush()
    dispatcher = dispatcher_of(small)
    dispatch_all(dispatcher)
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
    dispatcher.close()


def test_a_sync_that_a_resume_overtook_publishes_nothing(small: SmallStore) -> None:
    fill(small, 10)
    dispatcher = dispatcher_of(small)
    dispatch_all(dispatcher)
    job = dispatcher.begin_sync()
    assert job is not None
    dispatcher.resume()
    dispatcher.finish_sync(job)
    assert small.positions.get(Slot.DISPATCHED_DURABLE) == 0
    dispatcher.close()


@pytest.mark.parametrize("killed_after", range(0, 12))
@pytest.mark.parametrize("synced", [False, True])
def test_killed_after_any_step_and_started_again_it_comes_out_the_same(
    small: SmallStore, killed_after: int, synced: bool
) -> None:
    fill(small)
    whole = dispatcher_of(small)
    dispatch_all(whole)
    expected_queues, expected_index = queue_files(small), index_files(small)
    whole.close()
    shutil.rmtree(small.store.consume_queues_dir / "orders")
    shutil.rmtree(small.store.consume_queues_dir / "bills")
    for path in small.store.index_dir.iterdir():
        path.unlink()
    for slot in (Slot.DISPATCHED, Slot.REPUT_GENERATION, Slot.REPUT_BOOT_ID_LOW):
        small.positions.publish(slot, 0)

    killed = dispatcher_of(small)
    for number in range(killed_after):
        killed.step(700)
        if synced and number == killed_after // 2:
            killed.sync()
    before = small.positions.get(Slot.DISPATCHED)
    again = dispatcher_of(small)
    assert small.positions.get(Slot.DISPATCHED) == before
    dispatch_all(again)
    assert queue_files(small) == expected_queues
    assert index_files(small) == expected_index
    again.sync()
    assert small.positions.get(Slot.RESUME_UNITS) == 60
    assert small.positions.get(Slot.RESUME_INDEX_ENTRIES) == 120
    again.close()
    killed.close()


def synced_store(small: SmallStore) -> tuple[dict[str, bytes], list[bytes]]:
    fill(small)
    dispatcher = dispatcher_of(small)
    dispatch_all(dispatcher)
    dispatcher.sync()
    dispatcher.close()
    return queue_files(small), index_files(small)


def test_a_restart_with_nothing_to_do_does_nothing(small: SmallStore) -> None:
    synced_store(small)
    dispatcher = dispatcher_of(small)
    assert dispatcher.decision is not None
    assert dispatcher.decision.queue_mode is QueueMode.CONTINUE
    assert dispatcher.decision.index_mode is IndexMode.CONTINUE
    assert dispatcher.step() == 0
    assert not dispatcher.is_catching_up
    dispatcher.close()


@pytest.mark.parametrize(
    "what", ["orders", "orders/1", "bills/0/00000000000000000200", "orders/0/0" + "0" * 19]
)
def test_a_missing_queue_or_file_comes_back_byte_for_byte(small: SmallStore, what: str) -> None:
    expected, index = synced_store(small)
    path = small.store.consume_queues_dir / what
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    dispatcher = dispatcher_of(small)
    assert dispatcher.decision is not None
    assert dispatcher.decision.queue_mode is QueueMode.REBUILD
    assert small.positions.get(Slot.DISPATCHED_DURABLE) == 0
    dispatch_all(dispatcher)
    assert queue_files(small) == expected
    assert index_files(small) == index
    dispatcher.sync()
    assert small.positions.get(Slot.DISPATCHED_DURABLE) == small.end
    dispatcher.close()


def test_a_short_queue_file_and_a_damaged_unit_are_made_good(small: SmallStore) -> None:
    expected, _ = synced_store(small)
    small.queue_file("orders", 0, 0).write_bytes(b"short")
    dispatcher = dispatcher_of(small)
    dispatch_all(dispatcher)
    assert queue_files(small) == expected
    dispatcher.sync()
    dispatcher.close()
    small.put_unit("bills", 0, 3, Unit(1, 2, 3))
    dispatcher = dispatcher_of(small)
    dispatch_all(dispatcher)
    assert queue_files(small) == expected
    dispatcher.close()


def test_a_missing_index_file_is_made_again_while_queues_stay_readable(small: SmallStore) -> None:
    queues, expected = synced_store(small)
    sorted(small.store.index_dir.iterdir())[1].unlink()
    dispatcher = dispatcher_of(small)
    assert dispatcher.decision is not None
    assert dispatcher.decision.index_mode is IndexMode.REBUILD
    assert small.positions.get(Slot.DISPATCHED) == small.end
    dispatch_all(dispatcher)
    assert (queue_files(small), index_files(small)) == (queues, expected)
    dispatcher.close()


def test_after_a_power_cut_what_was_not_synced_is_cut_and_made_again(small: SmallStore) -> None:
    fill(small, 40)
    dispatcher = dispatcher_of(small)
    dispatch_all(dispatcher)
    dispatcher.sync()
    synced = small.end
    fill(small, 30)
    dispatch_all(dispatcher)
    expected, index = queue_files(small), index_files(small)
    dispatcher.close()
    # As far as this can be shown without a simulated disk: another boot, another recovery.
    small.positions.publish(Slot.BOOT_ID_LOW, 77)
    small.positions.publish(Slot.GENERATION, small.positions.get(Slot.GENERATION) + 1)
    again = dispatcher_of(small, (BOOT[0], 77))
    assert again.decision is not None
    assert again.decision.index_mode is IndexMode.REOPEN
    assert small.positions.get(Slot.DISPATCHED) == synced
    assert small.positions.get(Slot.INDEX_BEHIND) == 1, "it has less than DISPATCHED covers"
    assert {key for key, raw in units(small).items() if Unit(*_fields(raw)).end > synced} == set()
    dispatch_all(again)
    assert small.positions.get(Slot.INDEX_BEHIND) == 0
    assert (queue_files(small), index_files(small)) == (expected, index)
    again.close()


def _fields(raw: bytes) -> tuple[int, int, int]:
    return (
        int.from_bytes(raw[:8], "big"),
        int.from_bytes(raw[8:12], "big"),
        int.from_bytes(raw[12:], "big", signed=True),
    )


def test_a_lost_checkpoint_costs_a_walk_and_nothing_else(small: SmallStore) -> None:
    expected, index = synced_store(small)
    for slot in Slot:
        if 192 <= slot < 256:
            small.positions.publish(slot, 0)
    dispatcher = dispatcher_of(small)
    assert dispatcher.decision is not None
    assert dispatcher.decision.queue_mode is QueueMode.ADOPT
    dispatch_all(dispatcher)
    assert (queue_files(small), index_files(small)) == (expected, index)
    dispatcher.sync()
    assert small.positions.get(Slot.RESUME_UNITS) == 60
    dispatcher.close()


def test_units_beyond_the_end_of_the_log_go_when_a_store_is_adopted(small: SmallStore) -> None:
    fill(small, 20)
    small.dispatch()
    small.put_unit("bills", 0, 40, Unit(small.end, 100, 0))
    small.put_unit("bills", 0, 7, Unit(small.end, 100, 0))
    for slot in (Slot.DISPATCHED, Slot.REPUT_GENERATION):
        small.positions.publish(slot, 0)
    dispatcher = dispatcher_of(small)
    dispatch_all(dispatcher)
    assert units(small) == expected_units(small)
    dispatcher.close()


def test_a_damaged_record_stops_dispatch_names_the_byte_and_the_file(small: SmallStore) -> None:
    dispatcher = dispatcher_of(small)
    fill(small)
    bad = small.units[30][3]
    small.overwrite(bad.physical_offset + 90, b"\xff")
    with pytest.raises(CorruptRecord) as caught:
        dispatch_all(dispatcher)
    assert caught.value.at == bad.physical_offset
    start = bad.physical_offset - bad.physical_offset % 4096
    assert caught.value.path == small.log_file(start)
    assert small.positions.get(Slot.DISPATCHED) == bad.physical_offset
    assert dispatcher.stopped is caught.value
    assert dispatcher.step() == 0, "it stays where it is"
    assert len(units(small)) == 30
    dispatcher.sync()
    assert small.positions.get(Slot.DISPATCHED_DURABLE) == bad.physical_offset
    dispatcher.close()


def test_a_missing_log_file_stops_dispatch_and_is_named(small: SmallStore) -> None:
    fill(small)
    dispatcher = dispatcher_of(small)
    small.log_file(4096).unlink()
    with pytest.raises(CorruptRecord, match="the file is missing") as caught:
        dispatch_all(dispatcher)
    assert caught.value.at == 4096
    assert dispatcher.stopped is caught.value
    dispatcher.close()


def test_a_gap_in_the_log_stops_dispatch_after_one_comparison_with_the_whole_log(
    small: SmallStore,
) -> None:
    small.put()
    small.put()
    small.flush()
    dispatcher = dispatcher_of(small)
    dispatch_all(dispatcher)
    small.put(queue_offset=5)
    small.flush()
    with pytest.raises(QueueGap, match="has queue offset 5, but the queue ends at 2"):
        dispatch_all(dispatcher)
    assert isinstance(dispatcher.stopped, QueueGap)
    assert len(units(small)) == 2
    dispatcher.close()


def test_units_that_went_missing_unseen_are_found_by_the_next_record_and_made_again(
    small: SmallStore,
) -> None:
    fill(small, 30)
    dispatcher = dispatcher_of(small)
    dispatch_all(dispatcher)
    # Inside the process: as if a queue had lost its end since the totals were counted.
    queue = dispatcher._queues._queues["orders", 0]
    queue.next -= 2
    published = small.positions.get(Slot.DISPATCHED)
    fill(small, 10)
    dispatch_all(dispatcher)
    assert small.positions.get(Slot.DISPATCHED) == small.end > published
    assert units(small) == expected_units(small)
    assert dispatcher.stopped is None
    dispatcher.sync()
    assert small.positions.get(Slot.RESUME_UNITS) == 40
    dispatcher.close()


def test_prepared_and_rolled_back_messages_take_no_unit(small: SmallStore) -> None:
    small.put(keys="p", sys_flag=0x4, queue_offset=0)
    small.put(keys="r", sys_flag=0xC, queue_offset=0)
    small.put(keys="c", sys_flag=0x8)
    small.flush()
    dispatcher = dispatcher_of(small)
    dispatch_all(dispatcher)
    assert units(small) == expected_units(small)
    assert len(units(small)) == 1
    assert [len(lookup(small, "orders", key)) for key in "prc"] == [1, 0, 1]
    dispatcher.close()


def test_a_record_larger_than_a_step_is_a_step(small: SmallStore) -> None:
    small.put(body=bytes(3000))
    small.put(body=bytes(3000))
    small.flush()
    dispatcher = dispatcher_of(small)
    assert dispatcher.step(100) > 3000
    dispatch_all(dispatcher, 100)
    assert len(units(small)) == 2
    dispatcher.close()


def test_another_recovery_is_adopted_unless_it_took_away_what_was_dispatched(
    small: SmallStore,
) -> None:
    fill(small, 20)
    dispatcher = dispatcher_of(small)
    dispatch_all(dispatcher)
    publish, get = small.positions.publish, small.positions.get
    publish(Slot.GENERATION, get(Slot.GENERATION) + 1)
    assert dispatcher.adopt_generation()
    assert get(Slot.REPUT_GENERATION) == get(Slot.GENERATION)
    publish(Slot.GENERATION, get(Slot.GENERATION) + 1)
    shorter = small.units[11][3].physical_offset
    publish(Slot.FLUSHED, shorter)
    assert not dispatcher.adopt_generation()
    dispatcher.resume()
    assert get(Slot.DISPATCHED) <= shorter
    dispatch_all(dispatcher)
    assert len(units(small)) == 11
    dispatcher.close()


def test_a_file_where_a_queues_directory_belongs_is_waited_for(small: SmallStore) -> None:
    # The stranger was named, and a second later its directory could not be synced either: that
    # ended the process as if the disk had failed, again and again.
    fill(small, 20)
    topic, queue, *_ = small.units[0]
    directory = small.store.consume_queue_dir(topic, queue)
    directory.parent.mkdir(parents=True)
    directory.touch()
    dispatcher = dispatcher_of(small)
    with pytest.raises(StrayFile, match="a file where a directory belongs"):
        dispatch_all(dispatcher)
    dispatcher.sync()
    directory.unlink()
    dispatch_all(dispatcher)
    dispatcher.sync()
    assert units(small) == expected_units(small)
    dispatcher.close()


def test_after_a_failed_sync_the_next_start_believes_the_disk_only(
    small: SmallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(small, 20)
    dispatcher = dispatcher_of(small)
    dispatch_all(dispatcher)
    dispatcher.sync()
    fill(small, 10)
    dispatch_all(dispatcher)

    def fails(descriptor: int) -> None:
        raise OSError(5, "input/output error")

    with monkeypatch.context() as patched:
        patched.setattr("os.fdatasync", fails)
        with pytest.raises(FlushFailed, match="fdatasync of "):
            dispatcher.sync()
    dispatcher.close()
    durable = small.positions.get(Slot.DISPATCHED_DURABLE)
    again = dispatcher_of(small)
    assert small.positions.get(Slot.DISPATCHED) == durable
    assert again.decision is not None
    assert again.decision.index_mode is IndexMode.REOPEN
    dispatch_all(again)
    assert units(small) == expected_units(small)
    again.close()


@pytest.mark.parametrize(
    ("synced_before", "killed_at_once"),
    # Not so if it was never synced and killed at once: it is believed as RocketMQ believes it.
    [(False, False), (True, False), (True, True)],
)
def test_all_files_of_a_failed_sync_tell_the_truth_at_the_next(
    synced_before: bool, killed_at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. The sync of several files fails, and the kernel calls their pages clean; 2. only the first
    of them was written over itself, or the process was killed before; 3. the next start found equal
    units and left them alone; 4. its sync succeeded, and was believed; 5. power cut."""
    disk = SimDisk(3)
    disk.write_back_chance = 0
    small = SmallStore(Path("/store"), replace(CONFIG, index_enabled=False), disk=disk)
    dispatcher = dispatcher_of(small)
    if synced_before:
        for queue in range(3):
            small.put("orders", queue)
        small.flush()
        dispatch_all(dispatcher)
        dispatcher.sync()
    for number in range(12):
        small.put("orders", number % 3)
    small.flush()
    dispatch_all(dispatcher)
    disk.failing_sync = lambda path: "consumequeue" in path.parts
    if killed_at_once:
        monkeypatch.setattr(Dispatcher, "_write_over_itself", lambda *_: None)
    with pytest.raises(FlushFailed, match="2 others failed as well") as caught:
        dispatcher.sync()
    assert caught.value.paths == [small.queue_file("orders", queue, 0) for queue in range(3)]
    disk.failing_sync = lambda path: False

    again = dispatcher_of(small)
    dispatch_all(again)
    again.sync()
    assert small.positions.get(Slot.DISPATCHED_DURABLE) == small.end
    files = dict(disk.power_cut(loss=LOSE_ALL).files())
    for topic, queue, number, unit in small.units:
        stored = files[small.queue_file(topic, queue, number * 20 // 200 * 200)]
        assert stored[number * 20 % 200 :][:20] == encode(unit)


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
    dispatcher.close()
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
    dispatcher.close()
    small.close()


def test_where_rocketmq_wrote_a_record_crc_that_came_along_is_not_judged(
    small: SmallStore,
) -> None:
    """RocketMQ takes our CRC property for a user's and copies it when it delivers a delayed message
    or sends one back: the copy then carries the CRC of another record."""
    dispatcher = dispatcher_of(small)
    fill(small, 12)
    copied = small.units[5][3]
    digit = small.log_file().read_bytes()[copied.end - 3 : copied.end - 2]
    small.overwrite(copied.end - 3, b"1" if digit == b"0" else b"0")
    with pytest.raises(CorruptRecord):
        dispatch_all(dispatcher)
    small.positions.publish(Slot.FOREIGN_FROM, small.units[4][3].physical_offset)
    small.positions.publish(Slot.FOREIGN_UNTIL, small.units[8][3].physical_offset)
    dispatcher.resume()
    dispatch_all(dispatcher, 1 << 20)
    assert len(units(small)) == 12
    dispatcher.close()

    again = dispatcher_of(small)
    fill(small, 1)
    ours = small.units[-1][3]
    small.overwrite(ours.end - 3, b"\xff")
    with pytest.raises(CorruptRecord) as caught:
        dispatch_all(again, 1 << 20)
    assert caught.value.at == ours.physical_offset, "behind the range it is judged again"
    again.close()


def test_a_sync_under_way_does_not_say_again_what_a_rebuild_has_withdrawn(
    small: SmallStore,
) -> None:
    dispatcher = dispatcher_of(small)
    fill(small, 10)
    dispatch_all(dispatcher)
    job = dispatcher.begin_sync()
    assert job is not None
    small.put(queue_offset=99)
    small.flush()
    with pytest.raises(QueueGap):
        dispatch_all(dispatcher)
    job.run()
    dispatcher.finish_sync(job)
    assert small.positions.get(Slot.DISPATCHED_DURABLE) == 0
    again = dispatcher_of(small)
    assert again.decision is not None
    assert again.decision.queue_mode is QueueMode.REBUILD
    again.close()
    dispatcher.close()


class TickingClock:
    """Every look at ``monotonic`` is a second after the one before."""

    def __init__(self) -> None:
        self.looks = 0

    def wall_ms(self) -> int:
        return FIRST_MS

    def monotonic(self) -> float:
        self.looks += 1
        return float(self.looks)

    def boot_ms(self) -> int:
        return 0


def ticking(small: SmallStore) -> tuple[Dispatcher, TickingClock]:
    clock = TickingClock()
    log = CommitLogReader(small.store, small.positions)
    dispatcher = Dispatcher(small.store, small.positions, log, clock=clock, boot_id=BOOT)
    dispatcher.resume()
    return dispatcher, clock


def test_a_step_says_what_queues_and_index_took_and_how_old_its_first_record_is(
    small: SmallStore,
) -> None:
    for number in range(20):
        small.put("orders", keys=f"k{number}")
    small.flush()
    dispatcher, clock = ticking(small)
    assert dispatcher.took is None
    looks = clock.looks
    dispatcher.step()
    assert dispatcher.took == Took(queues_s=1.0, index_s=1.0, oldest_ms=FIRST_MS + 1)
    assert clock.looks == looks + 3  # of a step, not of each of its records


def test_a_step_without_keys_takes_no_time_for_the_index(small: SmallStore) -> None:
    small.put("orders")
    small.flush()
    dispatcher, _ = ticking(small)
    dispatcher.step()
    assert dispatcher.took == Took(queues_s=1.0, index_s=0.0, oldest_ms=FIRST_MS + 1)


def test_what_was_visible_before_has_no_delay(small: SmallStore) -> None:
    fill(small, 20)
    dispatcher = dispatcher_of(small)
    dispatch_all(dispatcher)
    for path in small.store.index_dir.iterdir():
        path.unlink()
    dispatcher, _ = ticking(small)
    assert dispatcher.is_catching_up
    dispatcher.step()
    assert dispatcher.took is not None
    assert dispatcher.took.oldest_ms is None
