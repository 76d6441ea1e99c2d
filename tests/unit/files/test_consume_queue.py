from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import Boundary, ConsumeQueueReader, ConsumeQueues
from tests.support.small_store import CONFIG, FIRST_MS, SmallStore
from tests.support.small_store import small as small
from tidemark.formats.queue_unit import PRE_BLANK, Unit
from tidemark.offsets import UNIT_SIZE

UNITS_PER_FILE = CONFIG.consume_queue_file_size // UNIT_SIZE
"""10."""


def reader(small: SmallStore, topic: str = "orders", queue: int = 0) -> ConsumeQueueReader:
    return ConsumeQueueReader(
        small.store, topic, queue, CommitLogReader(small.store, small.positions)
    )


def put(small: SmallStore, count: int) -> list[Unit]:
    units = [small.put(body=b"x" * 100) for _ in range(count)]
    small.dispatch()
    return units


class TestHowFar:
    def test_a_queue_without_files_is_empty(self, small: SmallStore) -> None:
        queue = reader(small)
        assert queue.max_offset(1 << 60) == 0
        assert queue.min_offset(0) == 0
        assert queue.units(0, 10, 1 << 60) == []
        assert queue.last_record_end() is None
        assert queue.offset_by_time(5, dispatched=1 << 60) == 0
        assert queue.directory_is_empty

    @pytest.mark.parametrize("count", [1, 9, 10, 11, 20, 25])
    def test_only_units_up_to_the_dispatched_offset_count(
        self, small: SmallStore, count: int
    ) -> None:
        units = put(small, count)
        queue = reader(small)
        for number, unit in enumerate(units):
            assert queue.max_offset(unit.end - 1) == number
            assert queue.max_offset(unit.end) == number + 1
        assert queue.last_record_end() == units[-1].end
        assert queue.last_record_end(units[0].end) == units[0].end
        # Back again: the log was cut, so an earlier count proves nothing.
        assert queue.max_offset(units[0].end) == 1
        assert queue.max_offset(0) == 0

    def test_a_reader_sees_units_and_files_that_are_made_later(self, small: SmallStore) -> None:
        queue = reader(small)
        assert queue.max_offset(0) == 0
        for number in range(25):
            unit = small.put()
            small.dispatch()
            assert queue.max_offset(unit.end) == number + 1
            assert queue.units(number, 1, unit.end) == [unit]

    def test_units_beyond_the_dispatched_offset_are_never_shown(self, small: SmallStore) -> None:
        units = put(small, 12)
        queue = reader(small)
        end = units[4].end
        assert queue.units(0, 100, end) == units[:5]
        assert queue.units(5, 1, end) == []
        view = queue.view(5, 1, end)
        assert view is not None
        assert not view
        assert queue.units(-1, 1, end) == []

    def test_one_read_never_crosses_a_file(self, small: SmallStore) -> None:
        units = put(small, 25)
        queue = reader(small)
        assert queue.units(7, 100, small.end) == units[7:10]
        assert queue.units(10, 100, small.end) == units[10:20]
        assert queue.units(20, 100, small.end) == units[20:]
        assert queue.roll_next(7) == 10
        assert queue.roll_next(10) == 20

    def test_foreign_and_short_files_reduce_the_units(self, small: SmallStore) -> None:
        units = put(small, 25)
        small.queue_file("orders", 0, 0).with_name("notes.txt").write_text("mine")
        small.queue_file("orders", 0, 0).with_name("sub").mkdir()
        last = small.queue_file("orders", 0, 400)
        last.write_bytes(last.read_bytes()[:47])
        queue = reader(small)
        assert queue.max_offset(small.end) == 22
        assert queue.units(20, 10, small.end) == units[20:22]
        small.queue_file("orders", 0, 200).unlink()
        queue = reader(small)
        assert queue.view(12, 1, small.end) is None
        assert queue.units(12, 1, small.end) == []
        assert queue.unit(12) is None


class TestMinimum:
    def test_it_is_the_first_unit_that_the_log_still_has(self, small: SmallStore) -> None:
        units = put(small, 9)
        queue = reader(small)
        for number, unit in enumerate(units):
            for each in (queue, queue, reader(small)):
                assert each.min_offset(unit.physical_offset) == number
            assert reader(small).min_offset(unit.physical_offset + 1) == number + 1

    def test_a_queue_whose_messages_all_expired_keeps_its_numbering(
        self, small: SmallStore
    ) -> None:
        put(small, 13)
        queue = reader(small)
        assert queue.min_offset(small.end) == 13
        assert queue.max_offset(small.end) == 13
        unit = put(small, 1)[0]
        assert queue.max_offset(small.end) == 14
        assert queue.min_offset(unit.physical_offset) == 13

    def test_it_is_found_behind_files_of_expired_units(self, small: SmallStore) -> None:
        units = put(small, 15)
        queue = reader(small)
        assert queue.min_offset(units[3].physical_offset) == 3
        # Reput removes such a file a moment after the log's; readers do not wait for that.
        assert queue.min_offset(units[12].physical_offset) == 12
        assert reader(small).min_offset(units[12].physical_offset) == 12
        small.queue_file("orders", 0, 0).unlink()
        assert queue.min_offset(units[13].physical_offset) == 13

    def test_removed_files_do_not_shorten_a_queue(self, small: SmallStore) -> None:
        """1. A reader knows four files; 2. reput removes the second; 3. a running search for the
        last one met the gap, and took the first file for the last."""
        put(small, 35)
        queue = reader(small)
        assert queue.unit(0) is not None  # its first file stays mapped
        for start in (0, 200):
            small.queue_file("orders", 0, start).unlink()
        assert queue.max_offset(small.end) == 35

    def test_pre_blank_units_are_not_messages(self, small: SmallStore) -> None:
        first = 3 * UNITS_PER_FILE + 4
        for number in range(3 * UNITS_PER_FILE, first):
            small.put_unit("orders", 0, number, PRE_BLANK)
        queue = reader(small)
        assert queue.max_offset(0) == first
        assert queue.min_offset(0) == first
        unit = small.put(queue_offset=first)
        small.dispatch()
        queue = reader(small)
        assert queue.min_offset(0) == first
        assert queue.max_offset(unit.end) == first + 1
        assert queue.max_offset(unit.end - 1) == first
        assert queue.last_record_end(unit.end - 1) is None


class TestTimes:
    TIMES = (10, 10, 20, 20, 20, 20, 20, 20, 20, 30, 30, 40, 50, 60, 60, 60, 60, 60, 60, 70, 80, 80)

    @pytest.fixture
    def timed(self, small: SmallStore) -> SmallStore:
        for time in self.TIMES:
            small.put(at_ms=FIRST_MS + time)
        small.dispatch()
        return small

    @pytest.mark.parametrize("time", range(0, 95, 5))
    def test_each_boundary_gives_the_nearest_message_on_its_side(
        self, timed: SmallStore, time: int
    ) -> None:
        queue = reader(timed)
        later = [number for number, other in enumerate(self.TIMES) if other >= time]
        earlier = [number for number, other in enumerate(self.TIMES) if other <= time]
        lower = queue.offset_by_time(FIRST_MS + time, Boundary.LOWER, dispatched=timed.end)
        upper = queue.offset_by_time(FIRST_MS + time, Boundary.UPPER, dispatched=timed.end)
        assert lower == (later[0] if later else len(self.TIMES))
        # A time that several files hold is looked up in the last of them for the upper boundary.
        assert upper == (earlier[-1] if earlier else 0)

    def test_messages_not_yet_dispatched_have_no_time(self, timed: SmallStore) -> None:
        end = timed.units[4][3].end
        queue = reader(timed)
        assert queue.offset_by_time(FIRST_MS + 90, Boundary.LOWER, dispatched=end) == 5
        assert queue.offset_by_time(FIRST_MS + 90, Boundary.UPPER, dispatched=end) == 4

    def test_the_answer_is_within_the_queue_after_expiry(self, small: SmallStore) -> None:
        while small.end < 3 * CONFIG.commit_log_file_size:
            small.put(body=b"x" * 300)
        small.dispatch()
        small.log_file(0).unlink()
        queue = reader(small)
        first = queue.min_offset(CONFIG.commit_log_file_size)
        assert first > 0
        for boundary in Boundary:
            assert queue.offset_by_time(0, boundary, dispatched=small.end) == first
        last = queue.max_offset(small.end)
        assert queue.offset_by_time(1 << 60, Boundary.LOWER, dispatched=small.end) == last
        assert queue.offset_by_time(1 << 60, Boundary.UPPER, dispatched=small.end) == last - 1


class TestManyQueues:
    def test_a_bounded_number_of_readers_is_kept(self, tmp_path: Path) -> None:
        small = SmallStore(tmp_path / "store")
        log = CommitLogReader(small.store, small.positions)
        queues = ConsumeQueues(small.store, log)
        kept_max = small.store.config.queue_files_mapped_max // 2
        first = queues.get("orders", 0)
        assert queues.get("orders", 0) is first
        for queue in range(1, kept_max + 1):
            queues.get("orders", queue)
        assert queues.get("orders", kept_max) is queues.get("orders", kept_max)
        assert queues.get("orders", 0) is not first
        small.close()

    def test_after_forgetting_replaced_files_are_seen(self, small: SmallStore) -> None:
        put(small, 3)
        queues = ConsumeQueues(small.store, CommitLogReader(small.store, small.positions))
        assert queues.get("orders", 0).max_offset(small.end) == 3
        path = small.queue_file("orders", 0, 0)
        path.unlink()
        path.write_bytes(bytes(CONFIG.consume_queue_file_size))
        queues.forget()
        assert queues.get("orders", 0).max_offset(small.end) == 0


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.binary(max_size=500), end=st.integers(0, 1 << 40))
def test_no_bytes_in_a_queue_file_raise(tmp_path: Path, data: bytes, end: int) -> None:
    small = SmallStore(tmp_path / "store")
    try:
        for start in range(0, len(data), 200):
            path = small.queue_file("orders", 0, start)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data[start : start + 200].ljust(200, b"\0"))
        queue = reader(small)
        last = queue.max_offset(end)
        assert queue.min_offset(0) >= 0
        assert len(queue.units(0, 1000, end)) <= 10
        assert 0 <= queue.offset_by_time(FIRST_MS, dispatched=end) <= last
        queue.last_record_end(end)
    finally:
        small.close()
