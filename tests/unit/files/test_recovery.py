"""Recovery of a complete log: its end, how queues go on, how much is walked."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from shared.files.log_walk import PROGRESS_BYTES
from shared.files.os_disk import OsDisk, OsFile
from shared.files.recovery import recover
from shared.files.store_dir import StoreDir
from tests.support.next_start import FILE, KEY, OTHER_BOOT, again, fill
from tests.support.small_store import BOOT, CONFIG, SmallStore
from tests.support.small_store import small as small
from tidemark.errors import DiskFull, ReadOnlyDisk
from tidemark.formats import record
from tidemark.formats.checkpoint import REGION_MAGIC, Slot
from tidemark.formats.queue_unit import PRE_BLANK


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
        assert found.last_store_timestamp_ms == small.now_ms
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
        # Otherwise a queue without its directory would number its messages from 0 again.
        small.put("quiet", 1)
        fill(small, 15)
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

    @pytest.mark.parametrize("gone", [False, True])
    def test_totals_count_the_units_of_batch_queues_and_not_their_messages(
        self, small: SmallStore, gone: bool
    ) -> None:
        # 1. A store had 3 units of 4 messages; 2. the queue with one message of its own was
        # deleted; 3. the 3 messages of the others were taken for the 3 units, and the deleted
        # queue was numbered from 0 again.
        small.put_batch([b"a", b"b"])
        small.put_batch([b"a"], "others")
        small.put("quiet", 1)
        small.dispatch(durable=True)
        if gone:
            small.queue_file("quiet", 1, 0).unlink()
        found = again(small)
        assert found.dispatched_trusted is not gone
        assert found.walked_bytes == (small.end if gone else 0)
        assert found.next_queue_offsets == {("batches", 0): 2, ("others", 0): 1, ("quiet", 1): 1}

    def test_an_old_copy_of_the_checkpoint_costs_time_and_no_message(
        self, small: SmallStore
    ) -> None:
        fill(small, 5)
        small.dispatch(durable=True)
        old = small.store.checkpoint_path.read_bytes()
        fill(small, 15)
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
        small.dispatch()
        small.positions.publish(Slot.MIN, FILE)
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

    def test_progress_is_reported_from_the_first_byte_to_the_last(self, small: SmallStore) -> None:
        fill(small, 30)
        small.flush()
        reports: list[tuple[int, int]] = []
        store = StoreDir(OsDisk(), small.store.root, CONFIG)
        recover(
            store,
            small.positions,
            boot_id=BOOT,
            progress=lambda done, total: reports.append((done, total)),
        )
        assert reports[0][0] == 0
        assert reports[-1][0] == reports[-1][1] > 0
        assert all(after[0] - before[0] > 0 for before, after in itertools.pairwise(reports))
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
        small.dispatch()
        store = StoreDir(OsDisk(), small.store.root, CONFIG)
        generation = small.positions.get(Slot.GENERATION)
        with pytest.raises(Stopped):
            recover(store, small.positions, boot_id=BOOT, progress=stop)
        assert calls == [(0, 0), (0, 0)]
        assert small.positions.get(Slot.GENERATION) == generation


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
def test_a_read_only_disk_still_shows_the_end_of_the_log(
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
