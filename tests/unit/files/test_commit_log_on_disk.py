"""The commit log and its disk: when bytes are written and synced; a disk that is slow, or fails."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path

import pytest

from shared.files.commit_log import CommitLogAppender
from shared.files.os_disk import OsFile
from shared.files.positions import Positions
from shared.files.store_dir import StoreConfig, StoreDir
from tests.support.next_start import again
from tests.support.runs import runs_of
from tests.support.sim_disk import SimDisk
from tests.support.small_log import (
    END,
    FILE_SIZE,
    Log,
    body_of_record,
    break_file,
    busy,
    message,
    watch_writes,
)
from tests.support.small_log import log as log
from tests.support.small_log import pooled as pooled
from tests.support.small_store import HOST, SmallStore
from tidemark.errors import DiskFull, FlushFailed, ReadOnlyDisk, WriteFailed
from tidemark.formats import record
from tidemark.formats.checkpoint import Slot
from tidemark.formats.record import Message
from tidemark.offsets import PhysicalOffset


class TestFlushing:
    def test_it_publishes_the_written_offset_of_its_beginning(self, log: Log) -> None:
        log.put(b"one")
        assert log.positions.get(Slot.FLUSHED) == 0
        assert log.appender.flush() == log.appender.written == log.appender.flushed
        assert log.positions.get(Slot.FLUSHED) == log.appender.written
        assert log.positions.head().physic_timestamp_ms == 1000
        assert log.appender.flush() == log.appender.written

    def test_every_file_is_synced_oldest_first_before_anything_is_published(
        self, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced: list[int] = []
        real = OsFile.sync

        def sync(self: OsFile) -> None:
            if self.path.parent.name == "commitlog":
                synced.append(int(self.path.name))
                assert log.positions.get(Slot.FLUSHED) == 0
            real(self)

        for _ in range(4):
            log.put(body_of_record(5000))
        monkeypatch.setattr(OsFile, "sync", sync)
        log.appender.flush()
        assert synced == [0, FILE_SIZE, 2 * FILE_SIZE, 3 * FILE_SIZE]
        assert log.positions.get(Slot.FLUSHED) == log.appender.written
        monkeypatch.undo()
        log.put(b"more")
        log.appender.flush()

    def test_a_files_name_is_durable_before_anything_is_written_into_it(self, log: Log) -> None:
        for _ in range(4):
            log.put(body_of_record(5000))
        trace = [step for step in log.disk.trace if "commitlog" in step or "create 0" in step]
        for step, following in itertools.pairwise(trace):
            if step.startswith("create"):
                assert following == "sync commitlog/"

    def test_a_failed_flush_is_final_for_flushes_and_appends(
        self, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log.put(b"one")
        flushed = log.appender.flush()
        log.put(b"two")
        break_file(monkeypatch, "sync")
        with pytest.raises(FlushFailed, match="Input/output error"):
            log.appender.flush()
        monkeypatch.undo()
        with pytest.raises(FlushFailed):
            log.appender.flush()
        with pytest.raises(FlushFailed):
            log.put(b"three")
        assert log.positions.get(Slot.FLUSHED) == flushed

    def test_a_failed_write_publishes_nothing_and_is_final(
        self, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log.put(b"one")
        written = log.appender.written
        break_file(monkeypatch, "pwrite")
        with pytest.raises(WriteFailed, match=f"below physical offset {written}"):
            log.put(b"two")
        monkeypatch.undo()
        with pytest.raises(WriteFailed):
            log.put(b"two")
        with pytest.raises(WriteFailed):
            log.appender.flush()
        assert log.positions.get(Slot.WRITTEN) == written

    def test_descriptors_of_full_files_are_closed_once_flushed(self, log: Log) -> None:
        for _ in range(6):
            log.put(body_of_record(5000))
        assert len(log.appender._open) == 6
        log.appender.flush()
        assert list(log.appender._open) == [5 * FILE_SIZE]

    def test_flushing_in_a_thread_while_appending_loses_nothing(self, log: Log) -> None:
        seen: list[int] = []

        def flush() -> None:
            seen.append(log.appender.flush())
            assert log.positions.get(Slot.FLUSHED) <= log.positions.get(Slot.WRITTEN)

        with busy(flush):
            for number in range(400):
                log.put(b"z" * (number % 700))
        assert seen == sorted(seen)
        assert log.appender.flush() == log.appender.written


class TestPool:
    def test_an_append_is_invisible_before_the_commit(self, pooled: Log) -> None:
        pooled.put(b"before")
        written = pooled.appender.written
        ((offset, size),) = pooled.pool(b"pooled")
        assert (offset, pooled.appender.appended) == (written, written + size)
        assert pooled.appender.written == pooled.positions.get(Slot.WRITTEN) == written
        raw = pooled.path().read_bytes()
        assert raw[written:] == bytes(FILE_SIZE - written)
        assert pooled.appender.commit() == written + size == pooled.positions.get(Slot.WRITTEN)
        assert bytes(pooled.record(offset).body) == b"pooled"

    def test_many_appends_go_into_the_file_with_one_write(
        self, pooled: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writes = watch_writes(monkeypatch)
        for _ in range(10):
            pooled.pool(b"x" * 100)
        assert writes == []
        pooled.appender.commit()
        assert writes == [(0, pooled.appender.appended)]
        pooled.appender.commit()  # there is nothing
        assert len(writes) == 1

    def test_a_flush_commits_first(self, pooled: Log) -> None:
        pooled.pool(b"x")
        assert pooled.appender.flush() == pooled.appender.appended == pooled.appender.written
        assert pooled.positions.get(Slot.FLUSHED) == pooled.appender.appended

    def test_a_full_pool_is_committed_by_the_append_that_finds_it_full(
        self, tmp_path: Path
    ) -> None:
        log = Log(tmp_path, pool_size=4096).start()
        for number in range(7):
            log.pool(body_of_record(1000), first=number)
            assert log.appender.written == number // 4 * 4000
        log.close()

    def test_a_batch_larger_than_the_pool_goes_straight_into_the_file_behind_the_others(
        self, tmp_path: Path
    ) -> None:
        log = Log(tmp_path, pool_size=4096).start()
        ((first, _),) = log.pool(b"small")
        ((second, size),) = log.pool(body_of_record(5000))
        assert log.appender.written == log.appender.appended == second + size
        assert log.reader.record(first, END) is not None
        assert log.reader.record(second, END) is not None
        log.close()

    def test_a_new_file_begins_after_the_old_ones_bytes_are_written(self, pooled: Log) -> None:
        ((first, size),) = pooled.pool(body_of_record(3000))
        ((second, _),) = pooled.pool(body_of_record(3900))
        pooled.pool(body_of_record(1500))
        assert pooled.appender.appended == FILE_SIZE + 1500
        # Committed up to the filler: what stands in the new file is in memory only.
        assert pooled.appender.written == 6900
        raw = pooled.path().read_bytes()
        assert raw[6900:6908] == record.encode_blank(FILE_SIZE - 6900)
        assert pooled.path(FILE_SIZE).read_bytes() == bytes(FILE_SIZE)
        assert pooled.appender.flush() == FILE_SIZE + 1500
        for offset in (first, second, PhysicalOffset(FILE_SIZE)):
            assert pooled.reader.record(offset, END) is not None
        assert size == 3000

    def test_a_message_that_cannot_be_encoded_leaves_no_trace_in_the_pool(
        self, pooled: Log
    ) -> None:
        pooled.pool(b"good")
        appended = pooled.appender.appended
        with pytest.raises(record.RecordError):
            pooled.appender.append(runs_of([message(b"x"), message(b"", "t" * 300)]), [0, 1], 5)
        with pytest.raises(ValueError, match=r".+"):
            pooled.appender.append(runs_of([message(b"x")]), [0, 1], 5)
        assert pooled.appender.appended == appended
        assert pooled.put(b"next")[0][0] == appended
        assert pooled.reader.record(appended, END) is not None

    def test_after_a_second_recovery_old_bytes_of_the_pool_are_gone(self, pooled: Log) -> None:
        pooled.put(b"kept")
        end = pooled.appender.written
        pooled.pool(b"lost")
        pooled.start(end)
        ((offset, _),) = pooled.pool(b"instead")
        pooled.appender.commit()
        assert bytes(pooled.record(offset).body) == b"instead"

    def test_an_unclean_close_loses_uncommitted_bytes_and_a_clean_one_does_not(
        self, tmp_path: Path
    ) -> None:
        log = Log(tmp_path, pool_size=4096).start()
        log.put(b"one")
        log.pool(b"two")
        end = log.appender.written
        log.appender.close(clean=False)
        again = Log(tmp_path, pool_size=4096).start(end)
        ((offset, _),) = again.pool(b"three")
        again.appender.close(clean=True)
        assert offset == end
        assert bytes(again.record(offset).body) == b"three"
        assert again.positions.get(Slot.FLUSHED) == again.appender.appended

    def test_others_may_commit_and_flush_while_one_appends(self, pooled: Log) -> None:
        def commit() -> None:
            end = pooled.appender.commit()
            assert pooled.positions.get(Slot.WRITTEN) >= end

        def flush() -> None:
            end = pooled.appender.flush()
            assert pooled.positions.get(Slot.WRITTEN) >= end

        bodies = [bytes([number % 251]) * (number % 700) for number in range(600)]
        with busy(commit, flush):
            placed = [place for body in bodies for place in pooled.pool(body)]
        pooled.appender.flush()
        assert [bytes(pooled.record(offset).body) for offset, _ in placed] == bodies


class TestSlowPreparations:
    def test_a_new_file_is_written_through_before_it_counts(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writes = watch_writes(monkeypatch)
        log = Log(tmp_path)
        log.appender = CommitLogAppender(log.store, log.positions, warm_up=True, background=False)
        log.start()
        assert writes == [(0, FILE_SIZE), (0, FILE_SIZE)]
        log.put(b"x")
        log.close()

    def test_a_log_of_no_files_begins_with_a_warm_one_and_a_thread_makes_the_others(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writes = watch_writes(monkeypatch)
        log = Log(tmp_path)
        log.appender = CommitLogAppender(log.store, log.positions, warm_up=True)
        log.start()
        assert writes[0] == (0, FILE_SIZE)
        log.put(b"x")
        for number in range(20):
            log.appender.prepare_next()
            log.put(body_of_record(5000), first=number)
        log.appender.flush()
        log.close()
        assert log.names() == [number * FILE_SIZE for number in range(20)]

    def test_files_in_use_are_locked_and_full_ones_are_not(self, tmp_path: Path) -> None:
        disk = SimDisk(3)
        disk.make_directory(tmp_path)
        store = StoreDir(disk, tmp_path, StoreConfig(commit_log_file_size=FILE_SIZE))
        store.open_or_create()
        positions = Positions.open(disk, store.checkpoint_path)
        appender = CommitLogAppender(store, positions, lock_memory=True, background=False)
        appender.start_at(PhysicalOffset(0))
        for number in range(5):
            appender.append(runs_of([message(body_of_record(5000))]), [number], 1)
            appender.flush()
            appender.prepare_next()
            held = sorted(int(path.name) for path in disk.page_locks)
            assert held == [(number + ahead) * FILE_SIZE for ahead in range(3)]
        appender.close(clean=True)
        assert disk.page_locks == []


class TestFullAndReadOnlyDisk:
    def test_a_sparse_file_gets_its_blocks_first(self, tmp_path: Path) -> None:
        (tmp_path / "commitlog").mkdir()
        path = tmp_path / "commitlog" / ("0" * 20)
        with path.open("wb") as file:
            file.truncate(FILE_SIZE)
        log = Log(tmp_path).start(0)
        assert path.stat().st_blocks * 512 >= FILE_SIZE
        log.close()

    def test_a_full_disk_is_reported_and_writes_come_back_with_space(self, log: Log) -> None:
        log.put(body_of_record(5000))
        log.put(body_of_record(5000))
        log.disk.refuse_create = DiskFull("full", "Free space.")
        assert log.put(b"fits into the current file")
        with pytest.raises(DiskFull):
            log.put(body_of_record(5000))  # FileNotReady, then the attempt
        written = log.appender.written
        with pytest.raises(DiskFull):
            log.appender.append(runs_of([message(body_of_record(5000))]), [0], 1)
        assert log.appender.written == written
        assert log.put(b"still fits")
        log.disk.refuse_create = None
        log.appender.prepare_next()
        assert log.put(body_of_record(5000))[0][0] == 2 * FILE_SIZE

    def test_one_file_ahead_is_enough_to_go_on(self, log: Log) -> None:
        log.disk.refuse_create = DiskFull("full")
        log.appender.prepare_next()  # the next is there, the next but one can wait
        assert log.put(b"x")

    def test_a_store_on_a_full_disk_starts_and_writes_later(self, tmp_path: Path) -> None:
        log = Log(tmp_path)
        log.disk.refuse_create = DiskFull("full")
        log.start()
        with pytest.raises(DiskFull):
            log.appender.append(runs_of([message(b"x")]), [0], 1)
        log.disk.refuse_create = None
        log.appender.prepare_next()
        assert log.put(b"x")[0][0] == 0
        log.close()

    def test_a_store_on_a_read_only_disk_starts_reads_and_writes_later(
        self, tmp_path: Path
    ) -> None:
        log = Log(tmp_path).start()
        log.put(b"old")
        end = log.appender.written
        log.appender.close(clean=False)  # leaves a file made ahead
        log = Log(tmp_path)
        log.disk.refuse_writing = ReadOnlyDisk("read-only")
        log.disk.refuse_create = ReadOnlyDisk("read-only")
        log.start(end)
        assert log.reader.record(PhysicalOffset(0), end) is not None
        for _ in range(2):
            with pytest.raises(ReadOnlyDisk):
                log.appender.append(runs_of([message(b"new")]), [0], 1)
            with pytest.raises(ReadOnlyDisk):
                log.appender.ensure_next()
        log.disk.refuse_writing = log.disk.refuse_create = None
        log.appender.prepare_next()
        assert log.put(b"new")[0][0] == end
        assert log.put(body_of_record(FILE_SIZE - 8))[0][0] == FILE_SIZE
        log.close()


def test_records_written_before_a_write_failed_are_there_after_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender learned that nothing is visible and that it must not retry: 10 of 30 were
    stored."""
    small = SmallStore(tmp_path / "store")
    small.store.mark_running()
    real = os.pwrite
    calls: list[int] = []

    def partly(descriptor: int, data: bytes | memoryview, offset: int) -> int:
        calls.append(offset)
        if len(calls) > 1:
            raise OSError(errno.EIO, "input/output error")
        return real(descriptor, bytes(data)[: len(data) // 2 + 10], offset)

    sent = [Message("orders", 0, b"x" * 100, HOST, HOST)] * 6
    small.appender.prepare_next()
    with monkeypatch.context() as patched:
        patched.setattr("os.pwrite", partly)
        with pytest.raises(WriteFailed, match="the outcome is unknown") as failed:
            small.appender.append(runs_of(sent), [0], 1)
    assert failed.value.status == 504
    assert failed.value.retriable
    small.appender.close(clean=False)
    found = again(small)
    assert found.next_queue_offsets["orders", 0] == 3
    assert found.cut is not None
