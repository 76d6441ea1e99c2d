from __future__ import annotations

import errno
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.files.commit_log import CommitLogAppender, CommitLogReader
from shared.files.commit_log_appender import BUFFER_SIZE_MAX, Placed
from shared.files.os_disk import OsDisk, OsFile
from shared.files.positions import Positions
from shared.files.store_dir import StoreConfig, StoreDir
from tests.support.runs import runs_of
from tests.support.sim_disk import SimDisk
from tidemark.errors import (
    CorruptRecord,
    DiskFull,
    FileNotReady,
    FlushFailed,
    MessageTooLarge,
    ReadOnlyDisk,
    WriteFailed,
)
from tidemark.formats import record, twins
from tidemark.formats.checkpoint import Slot
from tidemark.formats.hosts import Host
from tidemark.formats.record import Message
from tidemark.formats.runs import Run
from tidemark.offsets import PhysicalOffset

FILE_SIZE = 8192
HOST = Host(bytes([127, 0, 0, 1]), 10911)
END = PhysicalOffset(1 << 60)


class FailingDisk(OsDisk):
    """A disk whose creations, openings and syncs can be made to fail."""

    def __init__(self) -> None:
        self.refuse_create: Exception | None = None
        self.refuse_writing: Exception | None = None
        self.trace: list[str] = []

    def create(self, path: Path, size: int, *, reserve: bool) -> OsFile:
        if self.refuse_create is not None:
            raise self.refuse_create
        self.trace.append(f"create {path.name}")
        return super().create(path, size, reserve=reserve)

    def open(self, path: Path, *, writable: bool) -> OsFile:
        if writable and self.refuse_writing is not None:
            raise self.refuse_writing
        return super().open(path, writable=writable)

    def sync_directory(self, path: Path) -> None:
        self.trace.append(f"sync {path.name}/")
        super().sync_directory(path)


class Log:
    """A small store with an appender and a reader; ``put`` commits what it appended."""

    def __init__(
        self,
        root: Path,
        *,
        record_crc: bool = False,
        pool_size: int = 0,
        file_size: int = FILE_SIZE,
    ) -> None:
        config = StoreConfig(commit_log_file_size=file_size, record_crc=record_crc)
        self.disk = FailingDisk()
        self.store = StoreDir(self.disk, root, config)
        self.store.open_or_create()
        self.positions = Positions.open(self.disk, self.store.checkpoint_path)
        self.appender = CommitLogAppender(self.store, self.positions, pool_size=pool_size)
        self.reader = CommitLogReader(self.store, self.positions)

    def start(self, end: int = 0) -> Log:
        self.appender.start_at(PhysicalOffset(end))
        return self

    def names(self) -> list[int]:
        return [int(path.name) for path in sorted(self.store.commit_log_dir.iterdir())]

    def close(self) -> None:
        self.appender.close(clean=True)
        self.reader.close()
        self.positions.close()

    def put(self, *bodies: bytes, first: int = 0) -> list[tuple[PhysicalOffset, int]]:
        found = self.pool(*bodies, first=first)
        self.appender.commit()
        return found

    def pool(self, *bodies: bytes, first: int = 0) -> list[tuple[PhysicalOffset, int]]:
        """Append; with a pool the records may stay in it."""
        runs = runs_of([message(body) for body in bodies])
        for _ in range(2):
            try:
                return places(self.appender.append(runs, [first], 1000))
            except FileNotReady:
                self.appender.prepare_next()
        raise AssertionError("prepared and still not ready")


@pytest.fixture(params=[0, 1, FILE_SIZE], ids=["no pool", "small pool", "large pool"])
def log(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Log]:
    made = Log(tmp_path, pool_size=request.param).start()
    yield made
    made.close()


@pytest.fixture(params=[4096, FILE_SIZE], ids=["small", "large"])
def pooled(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Log]:
    made = Log(tmp_path, pool_size=request.param).start()
    yield made
    made.close()


def message(body: bytes) -> Message:
    return Message("TopicA", 1, body, HOST, HOST)


def watch_writes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(position, size) of each write into a commit log file from now on."""
    writes: list[tuple[int, int]] = []
    real = OsFile.pwrite

    def pwrite(self: OsFile, data: bytes, offset: int) -> None:
        if self.path.parent.name == "commitlog":
            writes.append((offset, len(data)))
        real(self, data, offset)

    monkeypatch.setattr(OsFile, "pwrite", pwrite)
    return writes


def places(placed: Placed) -> list[tuple[PhysicalOffset, int]]:
    """Physical offset and size of each record."""
    at, found = placed.start, []
    for size in memoryview(placed.sizes).cast("I"):
        found.append((at, size))
        at = PhysicalOffset(at + size)
    return found


def body_of_record(size: int) -> bytes:
    """A body whose record has that size."""
    return b"x" * (size - record.encoded_size(message(b""), record_crc=False))


class TestAppending:
    def test_what_is_appended_is_read_back_from_the_offset_it_was_told(self, log: Log) -> None:
        placed = log.put(b"one", b"two", b"")
        assert log.appender.written == log.positions.get(Slot.WRITTEN)
        assert sum(size for _, size in placed) == log.appender.written
        for number, ((offset, size), body) in enumerate(
            zip(placed, (b"one", b"two", b""), strict=True)
        ):
            found = log.reader.record(offset, log.appender.written)
            assert found is not None
            assert (bytes(found.body), found.queue_offset, found.size) == (body, number, size)
            assert found.physical_offset == offset
            assert found.store_timestamp_ms == 1000
            assert log.reader.store_timestamp(offset, size, log.appender.written) == 1000

    def test_nothing_to_append_is_fine(self, log: Log) -> None:
        assert log.appender.append([], [], 5) == (0, b"")
        assert log.appender.written == 0
        log.put(b"x")
        assert log.appender.append([], [], 5) == (log.appender.appended, b"")

    def test_record_crcs_are_written_when_configured(self, tmp_path: Path) -> None:
        log = Log(tmp_path, record_crc=True).start()
        ((offset, _),) = log.put(b"x")
        found = log.reader.record(offset, END)
        assert found is not None
        assert found.properties.startswith(b"__CRC32#")
        log.close()

    def test_a_record_may_leave_exactly_eight_bytes_for_the_filler(self, log: Log) -> None:
        ((_, size),) = log.put(body_of_record(FILE_SIZE - 8))
        assert size == FILE_SIZE - 8
        ((offset, _),) = log.put(b"next")
        assert offset == FILE_SIZE
        raw = (log.store.commit_log_dir / ("0" * 20)).read_bytes()
        assert raw[-8:] == record.encode_blank(8)

    def test_a_record_that_would_leave_seven_goes_to_the_next_file_behind_a_filler(
        self, log: Log
    ) -> None:
        log.put(body_of_record(1000))
        ((offset, _),) = log.put(body_of_record(FILE_SIZE - 1000 - 7))
        assert offset == FILE_SIZE
        raw = (log.store.commit_log_dir / ("0" * 20)).read_bytes()
        assert raw[1000:1008] == bytes.fromhex("00001c18cbd43194")
        assert raw[1008:] == bytes(FILE_SIZE - 1008)
        assert log.reader.record(PhysicalOffset(1000), log.appender.written) is None

    def test_a_batch_never_spans_files(self, log: Log) -> None:
        log.put(body_of_record(FILE_SIZE - 1000))
        placed = log.put(body_of_record(600), body_of_record(600))
        assert placed == [(FILE_SIZE, 600), (FILE_SIZE + 600, 600)]

    def test_what_no_file_can_hold_is_refused_before_anything_is_written(self, log: Log) -> None:
        log.put(b"before")
        written = log.appender.written
        for bodies in (
            [body_of_record(FILE_SIZE - 7)],
            [body_of_record(FILE_SIZE // 2)] * 2,
            [b"y" * FILE_SIZE * 2],
        ):
            with pytest.raises(MessageTooLarge, match=f"holds {FILE_SIZE - 8}"):
                log.put(*bodies)
        assert log.appender.written == written
        raw = (log.store.commit_log_dir / ("0" * 20)).read_bytes()
        assert raw[written:] == bytes(FILE_SIZE - written)
        log.put(b"after")

    def test_a_bad_message_in_a_batch_leaves_no_trace(self, log: Log) -> None:
        too_long = Message("t" * 300, 0, b"", HOST, HOST)
        with pytest.raises(record.RecordError):
            log.appender.append(runs_of([message(b"good"), too_long]), [0, 1], 5)
        assert log.appender.written == 0
        assert log.put(b"x")[0][0] == 0

    def test_without_the_next_file_nothing_is_written(self, tmp_path: Path) -> None:
        log = Log(tmp_path).start()
        for _ in range(2):
            log.put(body_of_record(5000))
        assert log.names() == [0, FILE_SIZE]
        before = [path.read_bytes() for path in sorted(log.store.commit_log_dir.iterdir())]
        with pytest.raises(FileNotReady, match="Nothing was stored"):
            log.appender.append(runs_of([message(body_of_record(5000))]), [0], 5)
        after = [path.read_bytes() for path in sorted(log.store.commit_log_dir.iterdir())]
        assert before == after
        log.appender.prepare_next()
        assert log.put(body_of_record(5000))[0][0] == 2 * FILE_SIZE
        log.close()

    def test_room_tells_whether_a_size_fits_into_the_current_file(self, log: Log) -> None:
        assert not log.appender.room(1)  # no file yet is in use
        log.put(body_of_record(1000))
        assert log.appender.room(FILE_SIZE - 1008)
        assert not log.appender.room(FILE_SIZE - 1007)
        assert log.appender.reserved_bytes == FILE_SIZE - 1000 + FILE_SIZE

    def test_a_large_batch_is_encoded_in_a_buffer_that_is_not_kept(self, tmp_path: Path) -> None:
        log = Log(tmp_path, file_size=4 * BUFFER_SIZE_MAX).start()
        kept = []
        for body_size in (100, BUFFER_SIZE_MAX // 2, 2 * BUFFER_SIZE_MAX):
            log.put(b"z" * body_size)
            kept.append(len(log.appender._buffer))
        assert kept[0] < BUFFER_SIZE_MAX // 2 < kept[1]
        assert kept[1] == kept[2] <= BUFFER_SIZE_MAX
        log.close()

    @settings(max_examples=30, deadline=None)
    @given(st.lists(st.lists(st.integers(92, FILE_SIZE // 3), min_size=1, max_size=3), max_size=40))
    def test_every_record_is_found_by_walking_from_the_start(
        self, tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]]
    ) -> None:
        log = Log(tmp_path_factory.mktemp("walk")).start()
        placed: list[tuple[int, int]] = []
        for sizes in batches:
            got = log.put(*[body_of_record(size) for size in sizes])
            starts = {offset // FILE_SIZE for offset, _ in got}
            assert len(starts) == 1
            placed += got
        walked: list[tuple[int, int]] = []
        at, end = PhysicalOffset(0), log.appender.written
        while at < end:
            found = log.reader.record(at, end)
            if found is None:
                at = log.reader.next_file(at)
                continue
            walked.append((at, found.size))
            at = PhysicalOffset(at + found.size)
        assert walked == placed
        log.close()


class TestNewFiles:
    def test_two_are_kept_ahead_and_unused_ones_removed_at_a_clean_stop(
        self, tmp_path: Path
    ) -> None:
        log = Log(tmp_path).start()
        log.put(b"x")
        log.appender.prepare_next()
        assert log.names() == [0, FILE_SIZE, 2 * FILE_SIZE]
        log.close()
        assert log.names() == [0]

    def test_after_an_unclean_stop_they_stay_and_the_next_start_replaces_them(
        self, tmp_path: Path
    ) -> None:
        log = Log(tmp_path).start()
        log.put(b"x")
        end = log.appender.written
        log.appender.close(clean=False)
        assert log.names() == [0, FILE_SIZE]
        again = Log(tmp_path).start(end)
        assert again.put(b"y")[0][0] == end
        again.close()

    def test_a_thread_can_make_them(self, tmp_path: Path) -> None:
        log = Log(tmp_path)
        log.appender = CommitLogAppender(log.store, log.positions, background=True)
        log.start()
        body = body_of_record(5000)
        for number in range(200):
            log.appender.ensure_next()
            placed = log.appender.append(runs_of([message(body)]), [number], 1)
            assert placed.start == number * FILE_SIZE
        assert log.appender.flush() == 199 * FILE_SIZE + 5000
        log.close()
        assert log.names() == [number * FILE_SIZE for number in range(200)]

    @pytest.mark.parametrize("pool_size", [0, 4096, FILE_SIZE])
    def test_a_new_file_begins_with_what_the_hook_says(
        self, tmp_path: Path, pool_size: int
    ) -> None:
        log = Log(tmp_path, pool_size=pool_size)
        asked: list[int] = []

        def hook(start: PhysicalOffset) -> tuple[Sequence[Run], Sequence[int]]:
            asked.append(start)
            return runs_of([message(b"snapshot"), message(b"of state")]), [7]

        log.appender.on_new_file = hook
        log.start()
        ((first, _),) = log.put(b"user's")
        ((second, _),) = log.put(body_of_record(7900))
        assert asked == [0, FILE_SIZE]
        head = log.reader.record(PhysicalOffset(FILE_SIZE), END)
        assert head is not None
        assert (bytes(head.body), head.queue_offset) == (b"snapshot", 7)
        mine = log.reader.record(second, END)
        assert mine is not None
        assert second > FILE_SIZE
        assert mine.size == 7900
        assert first > 0
        with pytest.raises(MessageTooLarge):
            log.put(body_of_record(FILE_SIZE - 8))
        assert log.appender.written == second + 7900
        log.close()


class TestFlushing:
    def test_it_publishes_what_was_written_when_it_began(self, log: Log) -> None:
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

        def fail(_self: OsFile) -> None:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(OsFile, "sync", fail)
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

        def fail(_self: OsFile, _data: bytes, _offset: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(OsFile, "pwrite", fail)
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
        stop = threading.Event()
        seen: list[int] = []
        failures: list[BaseException] = []

        def flusher() -> None:
            try:
                while not stop.is_set():
                    seen.append(log.appender.flush())
                    assert log.positions.get(Slot.FLUSHED) <= log.positions.get(Slot.WRITTEN)
            except BaseException as failure:
                failures.append(failure)
                raise

        thread = threading.Thread(target=flusher)
        thread.start()
        for number in range(400):
            log.put(b"z" * (number % 700))
        stop.set()
        thread.join()
        assert not failures
        assert seen == sorted(seen)
        assert log.appender.flush() == log.appender.written


class TestPool:
    def test_nothing_of_an_append_is_seen_before_the_commit(self, pooled: Log) -> None:
        pooled.put(b"before")
        written = pooled.appender.written
        ((offset, size),) = pooled.pool(b"pooled")
        assert (offset, pooled.appender.appended) == (written, written + size)
        assert pooled.appender.written == pooled.positions.get(Slot.WRITTEN) == written
        raw = (pooled.store.commit_log_dir / ("0" * 20)).read_bytes()
        assert raw[written:] == bytes(FILE_SIZE - written)
        assert pooled.appender.commit() == written + size == pooled.positions.get(Slot.WRITTEN)
        found = pooled.reader.record(offset, pooled.appender.written)
        assert found is not None
        assert bytes(found.body) == b"pooled"

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
        raw = (pooled.store.commit_log_dir / ("0" * 20)).read_bytes()
        assert raw[6900:6908] == record.encode_blank(FILE_SIZE - 6900)
        new = (pooled.store.commit_log_dir / f"{FILE_SIZE:020}").read_bytes()
        assert new == bytes(FILE_SIZE)
        assert pooled.appender.flush() == FILE_SIZE + 1500
        for offset in (first, second, PhysicalOffset(FILE_SIZE)):
            assert pooled.reader.record(offset, END) is not None
        assert size == 3000

    def test_what_cannot_be_encoded_leaves_no_trace_in_the_pool(self, pooled: Log) -> None:
        pooled.pool(b"good")
        appended = pooled.appender.appended
        too_long = Message("t" * 300, 0, b"", HOST, HOST)
        with pytest.raises(record.RecordError):
            pooled.appender.append(runs_of([message(b"x"), too_long]), [0, 1], 5)
        with pytest.raises(ValueError, match=r".+"):
            pooled.appender.append(runs_of([message(b"x")]), [0, 1], 5)
        assert pooled.appender.appended == appended
        assert pooled.put(b"next")[0][0] == appended
        assert pooled.reader.record(appended, END) is not None

    def test_a_failed_commit_publishes_nothing_and_is_final(
        self, pooled: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pooled.put(b"one")
        written = pooled.appender.flush()
        pooled.pool(b"two")

        def fail(_self: OsFile, _data: bytes, _offset: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(OsFile, "pwrite", fail)
        with pytest.raises(WriteFailed, match=f"below physical offset {written}"):
            pooled.appender.commit()
        monkeypatch.undo()
        for refused in (pooled.appender.commit, pooled.appender.flush, lambda: pooled.pool(b"3")):
            with pytest.raises(WriteFailed):
                refused()
        assert pooled.positions.get(Slot.WRITTEN) == written
        assert pooled.positions.get(Slot.FLUSHED) == written

    def test_after_a_second_recovery_old_bytes_of_the_pool_are_gone(self, pooled: Log) -> None:
        pooled.put(b"kept")
        end = pooled.appender.written
        pooled.pool(b"lost")
        pooled.start(end)
        ((offset, _),) = pooled.pool(b"instead")
        pooled.appender.commit()
        found = pooled.reader.record(offset, END)
        assert found is not None
        assert bytes(found.body) == b"instead"

    def test_an_unclean_close_takes_what_was_not_committed_a_clean_one_does_not(
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
        found = again.reader.record(offset, END)
        assert found is not None
        assert bytes(found.body) == b"three"
        assert again.positions.get(Slot.FLUSHED) == again.appender.appended

    def test_others_may_commit_and_flush_while_one_appends(self, pooled: Log) -> None:
        stop = threading.Event()
        failures: list[BaseException] = []

        def busy(work: Callable[[], PhysicalOffset]) -> None:
            try:
                while not stop.is_set():
                    end = work()
                    assert pooled.positions.get(Slot.WRITTEN) >= end
            except BaseException as failure:
                failures.append(failure)
                raise

        threads = [
            threading.Thread(target=busy, args=(work,))
            for work in (pooled.appender.commit, pooled.appender.flush)
        ]
        for thread in threads:
            thread.start()
        placed = []
        for number in range(600):
            placed += pooled.pool(bytes([number % 251]) * (number % 700))
        stop.set()
        for thread in threads:
            thread.join()
        assert not failures
        end = pooled.appender.flush()
        for number, (offset, _) in enumerate(placed):
            found = pooled.reader.record(offset, end)
            assert found is not None
            assert bytes(found.body) == bytes([number % 251]) * (number % 700)


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


class TestStartingAnywhere:
    def test_in_the_middle_of_a_file(self, tmp_path: Path) -> None:
        log = Log(tmp_path).start()
        for _ in range(3):
            log.put(body_of_record(3000))
        end = log.appender.written
        log.close()
        again = Log(tmp_path).start(end)
        assert again.appender.written == again.appender.flushed == end
        assert again.put(b"x")[0][0] == end
        again.close()

    def test_at_a_file_border_with_the_file_there_or_not(self, tmp_path: Path) -> None:
        log = Log(tmp_path).start()
        log.put(body_of_record(FILE_SIZE - 8))
        log.close()
        again = Log(tmp_path).start(FILE_SIZE)
        assert again.put(b"x")[0][0] == FILE_SIZE
        again.appender.close(clean=False)
        third = Log(tmp_path).start(FILE_SIZE)  # as if x had been cut
        assert third.put(b"y")[0][0] == FILE_SIZE
        third.appender.flush()
        third.close()

    def test_in_an_empty_log_inside_its_first_file(self, tmp_path: Path) -> None:
        log = Log(tmp_path).start(3 * FILE_SIZE + 100)
        ((offset, _),) = log.put(b"x")
        assert offset == 3 * FILE_SIZE + 100
        assert log.names()[0] == 3 * FILE_SIZE
        log.appender.flush()
        with pytest.raises(MessageTooLarge):
            log.put(body_of_record(FILE_SIZE - 7))
        log.close()

    def test_a_second_time_after_a_second_recovery(self, log: Log) -> None:
        log.put(b"one", b"two")
        log.put(body_of_record(FILE_SIZE - 8))
        log.start(FILE_SIZE)
        assert log.appender.flushed == FILE_SIZE
        assert log.put(b"instead")[0][0] == FILE_SIZE
        assert log.appender.flush() == log.appender.written

    def test_a_sparse_file_gets_its_blocks_first(self, tmp_path: Path) -> None:
        (tmp_path / "commitlog").mkdir()
        path = tmp_path / "commitlog" / ("0" * 20)
        with path.open("wb") as file:
            file.truncate(FILE_SIZE)
        log = Log(tmp_path).start(0)
        assert path.stat().st_blocks * 512 >= FILE_SIZE
        log.close()


class TestReading:
    def test_nothing_is_read_beyond_the_given_end(self, log: Log) -> None:
        placed = log.put(b"one", b"two")
        (first, first_size), (second, size) = placed
        assert log.reader.read(second, size, second) is None
        assert log.reader.read(second, size, PhysicalOffset(second + size - 1)) is None
        assert log.reader.record(second, second) is None
        assert len(log.reader.window(first, second)) == first_size
        assert len(log.reader.window(first, PhysicalOffset(second + 5))) == first_size + 5
        assert len(log.reader.window(second, first)) == 0

    def test_a_window_ends_with_its_file(self, log: Log) -> None:
        log.put(body_of_record(5000))
        log.put(body_of_record(5000))
        assert len(log.reader.window(PhysicalOffset(100), END)) == FILE_SIZE - 100
        assert log.reader.read(PhysicalOffset(FILE_SIZE - 4), 8, END) is None
        assert log.reader.next_file(PhysicalOffset(100)) == FILE_SIZE
        assert log.reader.next_file(PhysicalOffset(FILE_SIZE)) == 2 * FILE_SIZE

    def test_a_damaged_record_is_named_with_its_offset_and_file(self, log: Log) -> None:
        ((offset, _),) = log.put(b"body")
        path = log.store.commit_log_dir / ("0" * 20)
        raw = bytearray(path.read_bytes())
        raw[90] ^= 1
        path.write_bytes(raw)
        with pytest.raises(CorruptRecord) as corrupt:
            log.reader.record(offset, log.appender.written)
        assert (corrupt.value.at, corrupt.value.path) == (offset, path)
        assert log.reader.find(offset, log.appender.written) is None

    def test_what_a_user_typed_is_found_or_not_and_never_an_error(self, log: Log) -> None:
        placed = log.put(b"one", b"two")
        end = log.appender.written
        starts = {offset for offset, _ in placed}
        for offset in [*range(end + 20), 2**62, FILE_SIZE - 1]:
            found = log.reader.find(PhysicalOffset(offset), end)
            assert (found is not None) == (offset in starts)
        assert log.reader.find(PhysicalOffset(-1), end) is None

    def test_expired_files_are_nothing_and_missing_ones_are_corruption(self, log: Log) -> None:
        for _ in range(4):
            log.put(body_of_record(5000))
        end = log.appender.written
        for offset in range(0, end, FILE_SIZE):
            assert log.reader.record(PhysicalOffset(offset), end) is not None
        assert log.appender.files.delete_oldest_while(lambda start: start < 2 * FILE_SIZE) == [
            0,
            FILE_SIZE,
        ]
        log.positions.publish(Slot.MIN, 2 * FILE_SIZE)
        assert log.reader.min_offset == 2 * FILE_SIZE
        assert log.reader.record(PhysicalOffset(0), end) is None
        assert log.reader.read(PhysicalOffset(FILE_SIZE), 5000, end) is None
        assert "(deleted)" not in Path("/proc/self/maps").read_text().replace("zero (deleted)", "")
        log.disk.unlink(log.store.commit_log_dir / f"{3 * FILE_SIZE:020}")
        fresh = CommitLogReader(log.store, log.positions)
        with pytest.raises(CorruptRecord, match="the file is missing"):
            fresh.record(PhysicalOffset(3 * FILE_SIZE), end)
        fresh.close()

    def test_a_reader_that_looks_before_the_name_is_gone_lets_go_of_the_file_after(
        self, log: Log
    ) -> None:
        """1. The new start is published; 2. a reader looks, the name is still there; 3. it goes:
        a mapping kept from 2 on would keep its blocks."""
        for _ in range(2):
            log.put(body_of_record(5000))
        end = log.appender.written
        assert log.reader.record(PhysicalOffset(0), end) is not None
        log.positions.publish(Slot.MIN, FILE_SIZE)
        assert log.reader.min_offset == FILE_SIZE
        assert log.appender.files.delete_oldest(0)
        assert log.reader.min_offset == FILE_SIZE
        assert "(deleted)" not in Path("/proc/self/maps").read_text().replace("zero (deleted)", "")

    def test_without_positions_the_log_starts_at_its_first_file(self, log: Log) -> None:
        log.put(body_of_record(5000))
        log.put(body_of_record(5000))
        log.disk.unlink(log.store.commit_log_dir / ("0" * 20))
        assert CommitLogReader(log.store).min_offset == FILE_SIZE

    def test_files_made_by_another_process_are_found(self, log: Log) -> None:
        other = CommitLogReader(log.store, log.positions)
        for _ in range(5):
            ((offset, _),) = log.put(body_of_record(5000))
            assert other.record(offset, log.appender.written) is not None
        other.close()

    def test_after_a_recovery_a_file_made_again_is_not_read_from_its_old_mapping(
        self, log: Log
    ) -> None:
        log.put(body_of_record(5000))
        ((offset, _),) = log.put(body_of_record(5000))
        assert log.reader.record(offset, log.appender.written) is not None
        log.appender.close(clean=False)
        (log.store.commit_log_dir / f"{FILE_SIZE:020}").unlink()  # what recovery cut
        log.appender = CommitLogAppender(log.store, log.positions)
        log.start(5000)
        log.positions.publish(Slot.GENERATION, 1)
        ((again, _),) = log.put(b"new" + body_of_record(4997))
        assert again == offset
        found = log.reader.record(offset, log.appender.written)
        assert found is not None
        assert bytes(found.body[:3]) == b"new"

    def test_a_borrowed_body_outlives_the_reader(self, log: Log) -> None:
        ((offset, _),) = log.put(b"kept")
        found = log.reader.record(offset, log.appender.written)
        assert found is not None
        log.reader.close()
        assert bytes(found.body) == b"kept"
        assert log.reader.record(offset, log.appender.written) is not None  # mapped again


def test_an_invalid_record_is_looked_at_twice_before_it_is_called_corrupt(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A CPU with weak ordering showed the position before the bytes behind it.
    ((offset, _),) = log.put(b"late")
    looks: list[int] = []

    def read_record(*_: object, **__: object) -> None:
        looks.append(1)

    monkeypatch.setattr(twins, "read_record", read_record)
    assert log.reader.record(offset, log.appender.written) is not None
    assert looks == [1]
