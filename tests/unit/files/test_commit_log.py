"""The commit log: appended records are read back from the right file and its beginning."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shared.files.commit_log import CommitLogAppender, CommitLogReader
from shared.files.commit_log_appender import BUFFER_SIZE_MAX
from tests.support.runs import runs_of
from tests.support.small_log import END, FILE_SIZE, Log, body_of_record, message
from tests.support.small_log import log as log
from tidemark.errors import CorruptRecord, FileNotReady, MessageTooLarge
from tidemark.formats import native, record
from tidemark.formats.checkpoint import Slot
from tidemark.formats.record_layout import BLANK_SIZE
from tidemark.offsets import PhysicalOffset

THIRD_OF_A_FILE = (FILE_SIZE - BLANK_SIZE) // 3


class TestAppending:
    def test_an_appended_record_is_read_back_from_its_returned_offset(self, log: Log) -> None:
        placed = log.put(b"one", b"two", b"")
        assert log.appender.written == log.positions.get(Slot.WRITTEN)
        assert sum(size for _, size in placed) == log.appender.written
        for number, ((offset, size), body) in enumerate(
            zip(placed, (b"one", b"two", b""), strict=True)
        ):
            found = log.record(offset)
            assert (bytes(found.body), found.queue_offset, found.size) == (body, number, size)
            assert found.physical_offset == offset
            assert found.store_timestamp_ms == 1000
            assert log.reader.store_timestamp(offset, size, log.appender.written) == 1000

    def test_an_empty_append_does_nothing(self, log: Log) -> None:
        assert log.appender.append([], [], 5) == (0, b"")
        assert log.appender.written == 0
        log.put(b"x")
        assert log.appender.append([], [], 5) == (log.appender.appended, b"")

    def test_record_crcs_are_written_when_configured(self, tmp_path: Path) -> None:
        log = Log(tmp_path, record_crc=True).start()
        ((offset, _),) = log.put(b"x")
        assert log.record(offset).properties.startswith(b"__CRC32#")
        log.close()

    def test_a_record_may_leave_exactly_eight_bytes_for_the_filler(self, log: Log) -> None:
        ((_, size),) = log.put(body_of_record(FILE_SIZE - 8))
        assert size == FILE_SIZE - 8
        ((offset, _),) = log.put(b"next")
        assert offset == FILE_SIZE
        raw = log.path().read_bytes()
        assert raw[-8:] == record.encode_blank(8)

    def test_a_record_that_would_leave_seven_goes_to_the_next_file_behind_a_filler(
        self, log: Log
    ) -> None:
        log.put(body_of_record(1000))
        ((offset, _),) = log.put(body_of_record(FILE_SIZE - 1000 - 7))
        assert offset == FILE_SIZE
        raw = log.path().read_bytes()
        assert raw[1000:1008] == bytes.fromhex("00001c18cbd43194")
        assert raw[1008:] == bytes(FILE_SIZE - 1008)
        assert log.reader.record(PhysicalOffset(1000), log.appender.written) is None

    def test_a_record_that_no_file_can_hold_is_refused_before_anything_is_written(
        self, log: Log
    ) -> None:
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
        raw = log.path().read_bytes()
        assert raw[written:] == bytes(FILE_SIZE - written)
        log.put(b"after")

    def test_a_bad_message_in_a_batch_leaves_no_trace(self, log: Log) -> None:
        with pytest.raises(record.RecordError):
            log.appender.append(runs_of([message(b"good"), message(b"", "t" * 300)]), [0, 1], 5)
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

    def test_room_returns_whether_a_size_fits_into_the_current_file(self, log: Log) -> None:
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
    @given(
        st.lists(st.lists(st.integers(92, THIRD_OF_A_FILE), min_size=1, max_size=3), max_size=40)
    )
    @example([[THIRD_OF_A_FILE] * 3] * 2)
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
    def test_a_new_file_begins_with_the_head(self, tmp_path: Path, pool_size: int) -> None:
        log = Log(tmp_path, pool_size=pool_size)
        head_runs = runs_of([message(b"snapshot"), message(b"of state")])
        log.start()

        def put(body: bytes) -> int:
            log.appender.ensure_next()
            runs = runs_of([message(body)])
            placed = log.appender.append(runs, [0], 1, (head_runs, [7]))
            log.appender.commit()
            return placed.start

        first = put(b"user's")
        inside = put(b"user's")
        second = put(body_of_record(7900))
        assert bytes(log.record(inside).body) == b"user's"
        assert inside == first + log.record(first).size, "it begins no file, and has no head"
        head = log.record(FILE_SIZE)
        assert (bytes(head.body), head.queue_offset) == (b"snapshot", 7)
        assert second > FILE_SIZE
        assert log.record(second).size == 7900
        assert first > 0
        with pytest.raises(MessageTooLarge):
            put(body_of_record(FILE_SIZE - 8))
        assert log.appender.written == second + 7900
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


def are_deleted_files_mapped(log: Log) -> bool:
    """Return whether this process keeps the blocks of removed files of that log."""
    mapped = Path("/proc/self/maps").read_text().splitlines()
    folder = str(log.store.commit_log_dir)
    return any(folder in line and line.endswith("(deleted)") for line in mapped)


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
        path = log.path()
        raw = bytearray(path.read_bytes())
        raw[90] ^= 1
        path.write_bytes(raw)
        with pytest.raises(CorruptRecord) as corrupt:
            log.reader.record(offset, log.appender.written)
        assert (corrupt.value.at, corrupt.value.path) == (offset, path)
        assert log.reader.find(offset, log.appender.written) is None

    def test_any_offset_of_a_user_is_found_or_not_and_never_an_error(self, log: Log) -> None:
        placed = log.put(b"one", b"two")
        end = log.appender.written
        starts = {offset for offset, _ in placed}
        for offset in [*range(end + 20), 2**62, FILE_SIZE - 1]:
            found = log.reader.find(PhysicalOffset(offset), end)
            assert (found is not None) == (offset in starts)
        assert log.reader.find(PhysicalOffset(-1), end) is None

    def test_expired_files_give_none_and_missing_ones_are_corruption(self, log: Log) -> None:
        for _ in range(4):
            log.put(body_of_record(5000))
        end = log.appender.flush()  # none speaks for a file that is gone
        for offset in range(0, end, FILE_SIZE):
            assert log.reader.record(PhysicalOffset(offset), end) is not None
        assert all(log.appender.files.delete_oldest(start) for start in (0, FILE_SIZE))
        log.positions.publish(Slot.MIN, 2 * FILE_SIZE)
        assert log.reader.min_offset == 2 * FILE_SIZE
        assert log.reader.record(PhysicalOffset(0), end) is None
        assert log.reader.read(PhysicalOffset(FILE_SIZE), 5000, end) is None
        assert not are_deleted_files_mapped(log)
        log.disk.unlink(log.path(3 * FILE_SIZE))
        fresh = CommitLogReader(log.store, log.positions)
        with pytest.raises(CorruptRecord, match="the file is missing"):
            fresh.record(PhysicalOffset(3 * FILE_SIZE), end)
        fresh.close()

    def test_a_reader_that_opens_a_file_before_its_removal_unmaps_it_afterwards(
        self, log: Log
    ) -> None:
        """1. The new start is published; 2. a reader opens the file, which still exists; 3. it is
        removed: a mapping kept from 2 on would keep its blocks."""
        for _ in range(2):
            log.put(body_of_record(5000))
        end = log.appender.flush()
        assert log.reader.record(PhysicalOffset(0), end) is not None
        log.positions.publish(Slot.MIN, FILE_SIZE)
        assert log.reader.min_offset == FILE_SIZE
        assert log.appender.files.delete_oldest(0)
        assert log.reader.min_offset == FILE_SIZE
        assert not are_deleted_files_mapped(log)

    def test_without_positions_the_log_starts_at_its_first_file(self, log: Log) -> None:
        log.put(body_of_record(5000))
        log.put(body_of_record(5000))
        log.appender.flush()
        log.disk.unlink(log.path())
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
        log.path(FILE_SIZE).unlink()  # what recovery cut
        log.appender = CommitLogAppender(log.store, log.positions)
        log.start(5000)
        log.positions.publish(Slot.GENERATION, 1)
        ((again, _),) = log.put(b"new" + body_of_record(4997))
        assert again == offset
        assert bytes(log.record(offset).body[:3]) == b"new"

    def test_a_borrowed_body_outlives_the_reader(self, log: Log) -> None:
        ((offset, _),) = log.put(b"kept")
        found = log.record(offset)
        log.reader.close()
        assert bytes(found.body) == b"kept"
        assert log.reader.record(offset, log.appender.written) is not None  # mapped again

    def test_an_invalid_record_is_read_twice_before_it_counts_as_corrupt(
        self, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # A CPU with weak ordering showed the position before the bytes that it covers.
        ((offset, _),) = log.put(b"late")
        reads: list[int] = []

        def read_record(*_: object, **__: object) -> None:
            reads.append(1)

        monkeypatch.setattr(native, "read_record", read_record)
        assert log.reader.record(offset, log.appender.written) is not None
        assert reads == [1]
