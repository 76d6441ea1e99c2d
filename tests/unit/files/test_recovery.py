from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.files.commit_log import CommitLogReader
from shared.files.log_walk import PROGRESS_BYTES, STATE_TOPIC
from shared.files.os_disk import OsDisk, OsFile
from shared.files.positions import Positions
from shared.files.recovery import Recovered, recover
from shared.files.store_dir import StoreConfig, StoreDir
from tests.support.small_store import BOOT, CONFIG, SmallStore
from tidemark.errors import CorruptRecord, DiskFull, ReadOnlyDisk, StrayFile, WrongFileSize
from tidemark.formats import record
from tidemark.formats.checkpoint import REGION_MAGIC, Slot
from tidemark.formats.queue_unit import PRE_BLANK, Unit
from tidemark.offsets import PhysicalOffset

FILE = CONFIG.commit_log_file_size
OTHER_BOOT = (8, 8)
KEY = ("orders", 0)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallStore]:
    store = SmallStore(tmp_path / "store")
    yield store
    store.close()


def again(
    small: SmallStore,
    *,
    boot: tuple[int, int] = BOOT,
    disk: OsDisk | None = None,
    config: StoreConfig = CONFIG,
    clean: bool | None = False,
) -> Recovered:
    """Recover the store as the next start would; clean: whether the last one had ended so."""
    store = StoreDir(disk or OsDisk(), small.store.root, config)
    if clean is not None:
        (store.mark_clean if clean else small.store.mark_running)()
        store = StoreDir(disk or OsDisk(), small.store.root, config)
    store.open_or_create()
    positions = Positions.open(
        store.disk, store.checkpoint_path, fallback=store.private_positions_path
    )
    try:
        return recover(store, positions, boot_id=boot, now=0)
    finally:
        positions.close()


def fill(small: SmallStore, count: int, *, size: int = 300) -> list[Unit]:
    return [small.put(body=b"x" * size) for _ in range(count)]


class TestWholeLog:
    def test_a_new_store_is_empty(self, small: SmallStore) -> None:
        found = small.recovered
        assert (found.end, found.min_offset, found.next_queue_offsets) == (0, 0, {})
        assert (found.cut, found.read_only, found.generation) == (None, None, 1)
        assert small.positions.get(Slot.MAGIC_AND_FORMAT) == REGION_MAGIC

    @pytest.mark.parametrize("clean", [False, True])
    @pytest.mark.parametrize("boot", [BOOT, OTHER_BOOT])
    @pytest.mark.parametrize("count", [1, 9, 10, 11, 30])
    def test_every_record_is_found_across_files_and_fillers(
        self, small: SmallStore, count: int, boot: tuple[int, int], clean: bool
    ) -> None:
        fill(small, count)
        small.flush()
        small.appender.close(clean=clean)
        found = again(small, boot=boot, clean=clean)
        assert found.end == small.end
        assert found.next_queue_offsets == {KEY: count}
        assert found.walked_records == count
        assert found.last_store_timestamp_ms == found.clock_behind_ms == small.now_ms
        assert found.cut is None
        assert found.generation == 2
        assert not found.dispatched_trusted
        get = small.positions.get
        assert get(Slot.WRITTEN) == get(Slot.FLUSHED) == small.end
        assert (get(Slot.BOOT_ID_HIGH), get(Slot.BOOT_ID_LOW)) == boot

    def test_records_without_a_queue_offset_give_none(self, small: SmallStore) -> None:
        small.put(sys_flag=record.TRANSACTION_PREPARED, queue_offset=70)
        small.put(sys_flag=record.TRANSACTION_ROLLBACK, queue_offset=80)
        small.put(sys_flag=record.TRANSACTION_COMMIT, queue_offset=5)
        small.put("payments", 3, queue_offset=9)
        small.put("payments", 3, queue_offset=2)
        small.flush()
        assert again(small).next_queue_offsets == {KEY: 6, ("payments", 3): 10}

    def test_it_starts_where_queues_are_complete_on_disk(self, small: SmallStore) -> None:
        small.put("quiet", 1)
        fill(small, 15)
        small.flush()
        small.dispatch(durable=True)
        start = small.end
        fill(small, 3)
        small.flush()
        found = again(small)
        assert found.dispatched_trusted
        assert found.walked_bytes == small.end - start
        assert found.next_queue_offsets == {KEY: 18, ("quiet", 1): 1}

    @pytest.mark.parametrize("damage", ["queue gone", "queue short", "check", "all queues gone"])
    def test_it_starts_at_the_beginning_if_they_may_not_be(
        self, small: SmallStore, damage: str
    ) -> None:
        # Else a queue whose directory is gone would number its messages from 0 again.
        small.put("quiet", 1)
        fill(small, 15)
        small.flush()
        small.dispatch(durable=True)
        path = small.queue_file("quiet", 1, 0)
        if damage == "check":
            small.positions.publish(Slot.RESUME_CHECK, 1)
        elif damage == "queue short":
            path.write_bytes(bytes(CONFIG.consume_queue_file_size))
        else:
            path.unlink()
            path.parent.rmdir()
        if damage == "all queues gone":
            small.queue_file("orders", 0, 0).unlink()
            small.queue_file("orders", 0, 200).unlink()
        found = again(small)
        assert not found.dispatched_trusted
        assert found.walked_bytes == small.end
        assert found.next_queue_offsets == {KEY: 15, ("quiet", 1): 1}

    def test_without_its_checkpoint_it_costs_time_and_no_message(self, small: SmallStore) -> None:
        fill(small, 15)
        small.flush()
        small.dispatch(durable=True)
        small.store.checkpoint_path.unlink()
        found = again(small)
        assert (found.end, found.walked_bytes) == (small.end, small.end)
        assert found.next_queue_offsets == {KEY: 15}

    def test_an_old_copy_of_the_checkpoint_costs_time_and_no_message(
        self, small: SmallStore
    ) -> None:
        fill(small, 5)
        small.flush()
        small.dispatch(durable=True)
        old = small.store.checkpoint_path.read_bytes()
        fill(small, 15)
        small.flush()
        small.dispatch(durable=True)
        small.store.checkpoint_path.write_bytes(old)
        found = again(small)
        assert found.end == small.end
        assert found.next_queue_offsets == {KEY: 20}

    def test_queues_of_expired_messages_and_of_pre_blank_units_go_on(
        self, small: SmallStore
    ) -> None:
        for _ in range(13):
            small.put("early", body=b"x" * 250)
        while small.end < 3 * FILE:
            small.put(body=b"x" * 250)
        for number in range(40, 44):
            small.put_unit("moved", 1, number, PRE_BLANK)
        small.flush()
        small.dispatch()
        small.log_file(0).unlink()
        found = again(small)
        assert found.min_offset == FILE
        assert found.next_queue_offsets["early", 0] == 13
        assert found.next_queue_offsets["moved", 1] == 44
        assert found.walked_bytes == small.end - FILE

    def test_in_a_whole_log_fillers_number_a_queue_and_the_name_of_a_file_does_not(
        self, small: SmallStore
    ) -> None:
        small.put()
        for number in range(40, 44):
            small.put_unit("moved", 1, number, PRE_BLANK)
        later = small.queue_file("torn", 0, CONFIG.consume_queue_file_size)
        later.parent.mkdir(parents=True)
        later.write_bytes(bytes(CONFIG.consume_queue_file_size))
        small.flush()
        found = again(small)
        assert found.walked_bytes == small.end
        assert found.next_queue_offsets["moved", 1] == 44
        assert found.next_queue_offsets["torn", 0] == 0

    def test_progress_is_told_from_the_first_byte_to_the_last(self, small: SmallStore) -> None:
        fill(small, 30)
        small.flush()
        told: list[tuple[int, int]] = []
        store = StoreDir(OsDisk(), small.store.root, CONFIG)
        recover(
            store,
            small.positions,
            boot_id=BOOT,
            now=0,
            progress=lambda done, total: told.append((done, total)),
        )
        assert told[0][0] == 0
        assert told[-1][0] == told[-1][1] > 0
        assert all(after[0] - before[0] > 0 for before, after in itertools.pairwise(told))
        assert PROGRESS_BYTES == 64 << 20

    def test_a_start_can_be_ended_while_queues_are_looked_at(
        self, small: SmallStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Stopped(Exception):
            pass

        def stop(done: int, total: int) -> None:
            calls.append((done, total))
            if len(calls) == 2:
                raise Stopped

        calls: list[tuple[int, int]] = []
        monkeypatch.setattr("shared.files.recovery.QUEUES_AT_ONCE", 3)
        for queue in range(7):
            small.put("orders", queue)
        small.flush()
        small.dispatch()
        store = StoreDir(OsDisk(), small.store.root, CONFIG)
        generation = small.positions.get(Slot.GENERATION)
        with pytest.raises(Stopped):
            recover(store, small.positions, boot_id=BOOT, now=0, progress=stop)
        assert calls == [(0, 0), (0, 0)]
        assert small.positions.get(Slot.GENERATION) == generation


class TestTornTail:
    """Bytes behind the last whole record that nobody was promised."""

    def tear(self, small: SmallStore, data: bytes) -> int:
        fill(small, 5)
        small.flush()
        small.overwrite(small.end, data)
        return small.end

    def test_it_is_kept_aside_then_zeroed(self, small: SmallStore) -> None:
        end = self.tear(small, b"\x00\x00half a record\x00\x00")
        found = again(small)
        assert found.end == end
        assert found.cut is not None
        assert (found.cut.start, found.cut.end) == (end, end + 15)
        assert found.cut.path.parent == small.store.cut_dir
        assert found.cut.path.read_bytes() == b"\x00\x00half a record"
        assert not any(small.log_file().read_bytes()[end:])
        assert found.next_queue_offsets == {KEY: 5}
        again_found = again(small)
        assert (again_found.end, again_found.cut) == (end, None)

    def test_a_whole_record_behind_the_tear_is_cut_with_it(self, small: SmallStore) -> None:
        fill(small, 5)
        small.flush()
        lost, *_ = fill(small, 3)
        small.overwrite(lost.physical_offset + 100, b"y")
        found = again(small, boot=OTHER_BOOT)
        assert found.end == lost.physical_offset
        assert found.cut is not None
        assert found.cut.end == small.end
        assert "body crc" in found.cut.reason

    def test_it_may_reach_into_later_files_which_go(self, small: SmallStore) -> None:
        fill(small, 5)
        small.flush()
        lost, *_ = fill(small, 40)
        small.overwrite(lost.physical_offset, bytes(lost.size))
        assert small.end > 2 * FILE
        found = again(small, boot=OTHER_BOOT)
        assert found.end == lost.physical_offset
        assert found.cut is not None
        assert (found.cut.start, found.cut.end) == (lost.physical_offset, small.end)
        assert found.cut.path.stat().st_size == small.end - lost.physical_offset
        assert list(small.log_bytes()) == [small.log_file().name]
        assert again(small, boot=OTHER_BOOT).end == lost.physical_offset

    def test_it_may_begin_at_a_files_border(self, small: SmallStore) -> None:
        while small.end < FILE:
            last = small.put(body=b"x" * 300)
            small.flush()
        units = len(small.units)
        small.positions.publish(Slot.FLUSHED, FILE)
        small.overwrite(FILE, bytes(50) + b"z" * (last.size - 50))
        found = again(small, boot=OTHER_BOOT)
        assert found.end == FILE
        assert found.next_queue_offsets == {KEY: units - 1}
        assert not any(small.log_file(FILE).read_bytes())

    def test_a_file_that_lost_its_name_before_the_next_one_cuts_there(
        self, small: SmallStore
    ) -> None:
        small.flush()
        small.appender.close(clean=False)
        for start in (0, 2 * FILE):
            small.log_file(start).write_bytes(bytes(FILE))
        small.log_file(FILE).unlink(missing_ok=True)
        found = again(small)
        assert found.end == 0
        assert small.log_file(0).exists()
        assert not small.log_file(2 * FILE).exists()

    def test_empty_files_made_ahead_are_no_damage(self, small: SmallStore) -> None:
        fill(small, 3)
        small.flush()
        small.log_file(FILE).write_bytes(bytes(FILE))
        small.log_file(2 * FILE).write_bytes(b"")
        found = again(small)
        assert (found.end, found.cut) == (small.end, None)
        assert not small.log_file(2 * FILE).exists()

    @settings(
        max_examples=40,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(position=st.integers(0, 3 * FILE - 1), data=st.binary(min_size=1, max_size=900))
    def test_any_bytes_anywhere_are_cut_or_named(
        self, tmp_path_factory: pytest.TempPathFactory, position: int, data: bytes
    ) -> None:
        """flushed → named with nothing changed; not flushed → cut at the record that was hit."""
        small = SmallStore(tmp_path_factory.mktemp("store"))
        try:
            fill(small, 12)
            small.flush()
            flushed = small.end
            fill(small, 12)
            data = data[: FILE - position % FILE]
            small.overwrite(position, data)
            before = small.log_bytes()
            found = named = None
            try:
                found = again(small, boot=OTHER_BOOT)
            except CorruptRecord as corrupt:
                named = corrupt
            if found is None:
                assert named is not None
                assert named.at < flushed
                assert small.log_bytes() == before
                assert not small.store.cut_dir.exists()
                return
            assert found.end >= flushed
            kept = sum(1 for *_, unit in small.units if unit.end <= found.end)
            assert found.next_queue_offsets == {KEY: kept}
            untouched = [unit.end for *_, unit in small.units if unit.end <= position]
            assert found.end >= max(untouched, default=0)
        finally:
            small.close()


class TestCorruption:
    """A bad record below a durable mark: named, and not a byte changes."""

    def refused(self, small: SmallStore, *, boot: tuple[int, int] = BOOT) -> CorruptRecord:
        before = small.log_bytes()
        page = small.store.checkpoint_path.read_bytes()
        with pytest.raises(CorruptRecord) as refused:
            again(small, boot=boot)
        assert small.log_bytes() == before
        assert small.store.checkpoint_path.read_bytes() == page
        assert not small.store.cut_dir.exists()
        return refused.value

    def test_below_the_flushed_offset(self, small: SmallStore) -> None:
        units = fill(small, 12)
        small.flush()
        small.overwrite(units[4].physical_offset + 120, b"y")
        error = self.refused(small, boot=OTHER_BOOT)
        assert error.at == units[4].physical_offset
        assert "body crc" in str(error)
        assert f"flushed offset is {small.end}" in str(error)
        assert error.path == small.log_file()

    def test_a_log_that_is_shorter_than_what_was_flushed(self, small: SmallStore) -> None:
        units = fill(small, 12)
        small.flush()
        small.overwrite(units[11].physical_offset, bytes(units[11].size))
        assert self.refused(small).at == units[11].physical_offset

    def test_below_the_written_offset_while_the_page_cache_is_the_same(
        self, small: SmallStore
    ) -> None:
        fill(small, 3)
        small.flush()
        unflushed, *_ = fill(small, 3)
        small.overwrite(unflushed.physical_offset + 100, b"y")
        error = self.refused(small)
        assert error.at == unflushed.physical_offset
        assert "written in this boot" in str(error)
        assert again(small, boot=OTHER_BOOT).end == unflushed.physical_offset

    def test_below_the_end_of_a_record_that_a_queue_points_to(self, small: SmallStore) -> None:
        units = fill(small, 12)
        small.flush()
        small.dispatch()
        small.positions.publish(Slot.FLUSHED, 0)  # an old page
        small.overwrite(units[4].physical_offset + 120, b"y")
        error = self.refused(small, boot=OTHER_BOOT)
        assert "consume queue points to" in str(error)

    @pytest.mark.parametrize("seed", range(5))
    def test_not_by_a_queue_file_full_of_garbage(self, small: SmallStore, seed: int) -> None:
        # Random bytes read as units "point" far behind the log's end. That once stopped a node with
        # a sound log for corruption, and advised to cut the log; the queue is rebuilt instead.
        fill(small, 12)
        small.flush()
        small.dispatch(durable=True)
        path = small.queue_file("orders", 0, CONFIG.consume_queue_file_size)
        path.write_bytes(random.Random(seed).randbytes(path.stat().st_size))
        recovered = again(small, boot=OTHER_BOOT)
        assert recovered.end == small.end
        assert not recovered.dispatched_trusted

    def test_by_a_lone_unit_of_which_the_earlier_ones_never_reached_the_disk(
        self, small: SmallStore
    ) -> None:
        units = fill(small, 12)
        small.flush()
        small.positions.publish(Slot.FLUSHED, 0)
        small.positions.publish(Slot.REPUT_GENERATION, small.positions.get(Slot.GENERATION))
        small.put_unit("orders", 0, 0, units[0])
        small.put_unit("orders", 0, 7, units[7])
        small.put_unit("orders", 0, 11, units[8])
        small.overwrite(units[8].physical_offset + 120, b"y")
        assert self.refused(small, boot=OTHER_BOOT).at == units[8].physical_offset

    @pytest.mark.parametrize("why", ["visible when written", "not cut yet"])
    def test_units_prove_nothing_where_they_may_be_of_unflushed_records(
        self, small: SmallStore, why: str
    ) -> None:
        units = fill(small, 12)
        small.dispatch()
        small.overwrite(units[4].physical_offset + 120, b"y")
        config = CONFIG
        if why == "not cut yet":
            small.positions.publish(Slot.REPUT_GENERATION, 99)
        else:
            config = StoreConfig(
                FILE,
                CONFIG.consume_queue_file_size,
                CONFIG.index_slots,
                CONFIG.index_entries,
                visible_after="written",
            )
        assert again(small, boot=OTHER_BOOT, config=config).end == units[4].physical_offset

    @pytest.mark.parametrize("shift", [0, 1])
    def test_by_a_state_record_behind_it_that_knew_of_a_larger_flushed_offset(
        self, small: SmallStore, shift: int
    ) -> None:
        fill(small, 3)
        bad = small.put(body=b"x" * 300)
        small.put(STATE_TOPIC, body=msgpack.packb({"v": 1, "flushed": bad.end - shift * bad.size}))
        fill(small, 20)
        small.overwrite(bad.physical_offset + 120, b"y")
        if shift:
            assert again(small, boot=OTHER_BOOT).end == bad.physical_offset
        else:
            error = self.refused(small, boot=OTHER_BOOT)
            assert error.at == bad.physical_offset
            assert "later state record" in str(error)

    @pytest.mark.parametrize(
        "body", [b"", b"\xc1", b"\x01", msgpack.packb({"flushed": True}), msgpack.packb([1])]
    )
    def test_other_bodies_of_state_records_say_nothing(
        self, small: SmallStore, body: bytes
    ) -> None:
        bad = small.put(body=b"x" * 300)
        small.put(STATE_TOPIC, body=body)
        small.overwrite(bad.physical_offset + 120, b"y")
        assert again(small, boot=OTHER_BOOT).end == bad.physical_offset

    def test_below_the_confirm_offset(self, small: SmallStore) -> None:
        units = fill(small, 5)
        small.positions.publish(Slot.CONFIRM, units[3].end)
        small.overwrite(units[2].physical_offset + 120, b"y")
        assert "confirm offset" in str(self.refused(small, boot=OTHER_BOOT))

    def test_a_missing_file_is_named(self, small: SmallStore) -> None:
        while small.end < 3 * FILE:
            small.put(body=b"x" * 300)
        small.flush()
        small.log_file(FILE).unlink()
        error = self.refused(small, boot=OTHER_BOOT)
        assert error.at == FILE
        assert f"{small.log_file(FILE).name} is missing" in str(error)

    def test_a_missing_last_file_is_named(self, small: SmallStore) -> None:
        while small.end < 2 * FILE:
            small.put(body=b"x" * 300)
        small.flush()
        small.appender.close(clean=True)
        small.log_file(2 * FILE).unlink()
        assert self.refused(small, boot=OTHER_BOOT).at == 2 * FILE

    def test_files_left_over_from_a_deletion_are_none_of_it(self, small: SmallStore) -> None:
        while small.end < 4 * FILE:
            small.put(body=b"x" * 300)
        small.flush()
        small.positions.publish(Slot.MIN, 2 * FILE)
        small.log_file(FILE).unlink()
        found = again(small)
        assert (found.end, found.min_offset) == (small.end, 2 * FILE)

    def test_a_short_file_and_a_stranger_are_named(self, small: SmallStore) -> None:
        fill(small, 5)
        small.flush()
        stranger = small.store.commit_log_dir / ".DS_Store"
        stranger.touch()
        with pytest.raises(StrayFile, match=r"DS_Store.*Move it"):
            again(small)
        stranger.unlink()
        path = small.log_file()
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(WrongFileSize, match=f"{FILE - 1} bytes.*{FILE}"):
            again(small)


class RefusingDisk(OsDisk):
    """Opens and makes nothing for writing below the store."""

    def __init__(self, error: type[DiskFull | ReadOnlyDisk]) -> None:
        self.error = error

    def create(self, path: Path, size: int, *, reserve: bool) -> OsFile:
        if "run" not in path.parts:
            raise self.error(f"no writing at {path}")
        return super().create(path, size, reserve=reserve)

    def open(self, path: Path, *, writable: bool) -> OsFile:
        if writable and "run" not in path.parts:
            raise self.error(f"no writing at {path}")
        return super().open(path, writable=writable)


@pytest.mark.parametrize("error", [DiskFull, ReadOnlyDisk])
def test_a_disk_that_takes_no_writes_still_tells_where_the_log_ends(
    small: SmallStore, error: type[DiskFull | ReadOnlyDisk]
) -> None:
    fill(small, 5)
    small.flush()
    end = small.end
    small.overwrite(end, b"torn")
    small.store.mark_running()
    before = small.log_bytes()
    found = again(small, disk=RefusingDisk(error), clean=None)
    assert isinstance(found.read_only, error)
    assert (found.end, found.cut) == (end, None)
    assert found.next_queue_offsets == {KEY: 5}
    assert small.log_bytes() == before
    later = again(small)
    assert later.read_only is None
    assert later.cut is not None


class Recording(OsDisk):
    """Notes which names change and are synced, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self.calls.append(f"remove {path.name}")

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self.calls.append("keep" if new.parent.name == "cut" else f"rename {new.name}")

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self.calls.append(f"sync {path.name}/")


def test_the_cut_is_kept_before_it_is_zeroed_and_all_is_synced_before_it_is_published(
    small: SmallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(small, 2)
    small.flush()
    small.positions.publish(Slot.FLUSHED, 0)
    units = fill(small, 14)
    small.overwrite(units[3].physical_offset, b"!!!!")
    disk = Recording()
    pwrite, sync = OsFile.pwrite, OsFile.sync

    def noted_pwrite(file: OsFile, data: bytes | bytearray | memoryview, offset: int) -> None:
        disk.calls.append(f"write {file.path.name} {'bytes' if any(data) else 'zeros'}")
        pwrite(file, data, offset)

    def noted_sync(file: OsFile) -> None:
        disk.calls.append(f"sync {file.path.name}")
        sync(file)

    monkeypatch.setattr(OsFile, "pwrite", noted_pwrite)
    monkeypatch.setattr(OsFile, "sync", noted_sync)
    found = again(small, boot=OTHER_BOOT, disk=disk)
    assert found.end == units[3].physical_offset
    first, second = small.log_file().name, small.log_file(FILE).name
    calls = disk.calls[disk.calls.index("keep") :]
    expected = [
        "keep",
        "sync cut/",
        f"write {first} zeros",
        f"sync {first}",
        f"remove {second}",
        f"write {first} bytes",
        f"sync {first}",
        "sync commitlog/",
        "sync checkpoint",
    ]
    assert [call for call in calls if call in expected] == expected


class TestRocketmqStores:
    def foreign(self, small: SmallStore, *, clean: bool) -> None:
        """Make the store look as RocketMQ leaves one."""
        small.flush()
        small.dispatch()
        small.close()
        (small.store.root / "tidemark.json").unlink()
        page = bytearray(4096)
        for slot in (0, 1):
            page[slot * 8 : slot * 8 + 8] = small.now_ms.to_bytes(8, "big")
        small.store.checkpoint_path.write_bytes(page)
        if clean:
            small.store.mark_clean()
        else:
            small.store.abort_path.touch()

    def test_one_that_was_killed_is_cut_whatever_its_queues_say(self, small: SmallStore) -> None:
        units = fill(small, 24)
        self.foreign(small, clean=False)
        small.overwrite(units[22].physical_offset, bytes(2 * units[22].size))
        small.overwrite(units[22].physical_offset, b"torn")
        for _ in range(2):  # the second start finds units that reput has not cut yet
            found = again(small, boot=OTHER_BOOT, clean=None)
            assert found.end == units[22].physical_offset
            assert found.next_queue_offsets == {KEY: 22}

    def test_one_that_was_closed_lacks_nothing_of_what_its_queues_point_to(
        self, small: SmallStore
    ) -> None:
        units = fill(small, 24)
        self.foreign(small, clean=True)
        small.overwrite(units[22].physical_offset + 120, b"y")
        with pytest.raises(CorruptRecord, match="consume queue points to") as refused:
            again(small, clean=None)
        assert refused.value.at == units[22].physical_offset

    def test_units_left_behind_an_earlier_cut_of_rocketmqs_are_no_proof(
        self, small: SmallStore
    ) -> None:
        fill(small, 24)
        small.put_unit("old", 0, 3, Unit(small.end, 400, 0))
        self.foreign(small, clean=True)
        assert again(small, clean=None).end == small.end

    def test_a_missing_file_in_the_middle_is_named_though_it_was_killed(
        self, small: SmallStore
    ) -> None:
        while small.end < 3 * FILE:
            small.put(body=b"x" * 300)
        self.foreign(small, clean=False)
        page = bytearray(4096)
        small.store.checkpoint_path.write_bytes(page)
        small.log_file(FILE).unlink()
        with pytest.raises(CorruptRecord, match="is missing or empty, and later files hold"):
            again(small, clean=None)

    def test_a_record_crc_that_rocketmq_copied_along_is_not_judged(self, small: SmallStore) -> None:
        unit = fill(small, 3)[1]
        self.foreign(small, clean=True)
        # As its retry path does: new fields in front of the property bytes of the first record.
        raw = bytearray(small.log_file().read_bytes())
        raw[unit.physical_offset + 16 : unit.physical_offset + 20] = b"\0\0\0\7"
        small.log_file().write_bytes(raw)
        assert again(small, clean=None).end == small.end

    def test_that_is_remembered_for_the_next_start_and_for_readers(self, small: SmallStore) -> None:
        """Killed right after it adopted the store, the next start walks the same records, and they
        are not RocketMQ's by any other sign."""
        unit = fill(small, 3)[1]
        self.foreign(small, clean=True)
        raw = bytearray(small.log_file().read_bytes())
        raw[unit.physical_offset + 16 : unit.physical_offset + 20] = b"\0\0\0\7"
        small.log_file().write_bytes(raw)
        again(small, clean=None)
        assert again(small, clean=False).end == small.end
        positions = Positions.open(OsDisk(), small.store.checkpoint_path)
        reader = CommitLogReader(small.store, positions)
        offset = PhysicalOffset(unit.physical_offset)
        found = reader.record(offset, small.end)
        assert found is not None
        assert found.flag == 7
        assert not reader.checks_at(0).record_crc
        assert reader.checks_at(small.end).record_crc, "what we append from here on is judged"
        reader.close()
        positions.close()

    def test_what_rocketmq_wrote_behind_our_end_is_remembered_and_ours_stays_judged(
        self, small: SmallStore
    ) -> None:
        units = fill(small, 3)
        small.flush()
        ours = small.end
        small.put()
        small.close()
        for slot in (Slot.WRITTEN, Slot.FLUSHED):
            page = bytearray(small.store.checkpoint_path.read_bytes())
            page[slot * 8 : slot * 8 + 8] = ours.to_bytes(8, "little")
            small.store.checkpoint_path.write_bytes(page)
        small.store.mark_clean()
        assert again(small, clean=None).end == small.end
        for _ in range(2):
            positions = Positions.open(OsDisk(), small.store.checkpoint_path)
            assert positions.get(Slot.FOREIGN_FROM) == ours
            assert positions.get(Slot.FOREIGN_UNTIL) == small.end
            positions.close()
            again(small, clean=True)  # a clean stop with nothing new adds nothing to it
        small.overwrite(units[1].physical_offset + 16, b"\0\0\0\7")
        with pytest.raises(CorruptRecord) as refused:
            again(small, clean=False)
        assert refused.value.at == units[1].physical_offset

    def test_after_adoption_it_is_ours(self, small: SmallStore) -> None:
        fill(small, 3)
        self.foreign(small, clean=True)
        again(small, clean=None)
        store = StoreDir(OsDisk(), small.store.root, CONFIG)
        store.open_or_create()
        assert not store.is_foreign


def test_what_is_appended_after_a_recovery_follows_it(tmp_path: Path) -> None:
    for round_number in range(5):
        small = SmallStore(tmp_path / "store")
        assert small.recovered.next_queue_offsets.get(KEY, 0) == 4 * round_number
        fill(small, 4)
        small.flush()
        small.overwrite(small.end, b"torn tail %d" % round_number)
        small.close()
