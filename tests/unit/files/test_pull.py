from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import ConsumeQueueReader
from shared.files.pull import PullResult, PullStatus, get_message
from shared.files.store_dir import StoreConfig
from tests.support.small_store import SmallStore
from tidemark.errors import CorruptRecord, DamagedFile
from tidemark.formats import record
from tidemark.formats.checkpoint import Slot
from tidemark.formats.hashing import string_hash
from tidemark.formats.queue_unit import UNIT, Unit
from tidemark.formats.select import Wanted, names
from tidemark.offsets import PhysicalOffset

CONFIG = StoreConfig(
    commit_log_file_size=1 << 20, consume_queue_file_size=20_000, index_slots=20, index_entries=30
)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallStore]:
    store = SmallStore(tmp_path / "store", CONFIG)
    yield store
    store.close()


def put(small: SmallStore, count: int, *, size: int = 10, tags: str | None = None) -> list[Unit]:
    units = [small.put(body=b"x" * size, tags=tags) for _ in range(count)]
    small.dispatch()
    return units


def reading(small: SmallStore) -> tuple[ConsumeQueueReader, CommitLogReader]:
    log = CommitLogReader(small.store, small.positions)
    return ConsumeQueueReader(small.store, "orders", 0, log), log


def pull(
    small: SmallStore,
    offset: int = 0,
    *,
    topic: str = "orders",
    queue: int = 0,
    dispatched: int | None = None,
    tags: tuple[str, ...] | None = None,
    **limits: int | None,
) -> PullResult:
    log = CommitLogReader(small.store, small.positions)
    units = ConsumeQueueReader(small.store, topic, queue, log)
    return get_message(
        units,
        log,
        offset=offset,
        dispatched=small.end if dispatched is None else dispatched,
        wanted=None if tags is None else Wanted(frozenset(map(string_hash, tags))),
        **limits,  # type: ignore[arg-type]
    )


def numbers(result: PullResult) -> list[int]:
    return [number for number, _, _ in result.records()]


def units_of(result: PullResult) -> list[Unit]:
    return [unit for _, unit, _ in result.records()]


def records_of(result: PullResult) -> list[memoryview]:
    return [data for _, _, data in result.records()]


class TestTakenAwayWhileUp:
    """No lost message is skipped silently."""

    def test_a_queue_that_lost_units_is_no_shorter_queue(self, small: SmallStore) -> None:
        put(small, 3)
        queue, log = reading(small)
        assert get_message(queue, log, offset=0, dispatched=small.end).message_count == 3
        small.queue_file("orders", 0, 0).unlink()
        put(small, 1)
        small.queue_file("orders", 0, 0).unlink()
        queue._files.refresh()
        for _ in range(2):
            with pytest.raises(DamagedFile, match="lacks units"):
                get_message(queue, log, offset=3, dispatched=small.end)

    def test_records_of_a_missing_log_file_are_named(self, small: SmallStore) -> None:
        put(small, 3)
        small.log_file(0).rename(small.store.root / "moved")
        small.log_file(1 << 20).write_bytes(bytes(1 << 20))
        with pytest.raises(CorruptRecord, match="file is missing"):
            pull(small)


class TestStatus:
    def test_an_empty_queue_has_no_message(self, small: SmallStore) -> None:
        for offset in (0, 5):
            result = pull(small, offset)
            assert result.status is PullStatus.NO_MESSAGE_IN_QUEUE
            assert result.next_offset == result.min_offset == result.max_offset == 0

    @pytest.mark.parametrize(
        ("offset", "status", "next_offset"),
        [
            (-1, PullStatus.OFFSET_TOO_SMALL, 0),
            (3, PullStatus.OFFSET_OVERFLOW_ONE, 3),
            (4, PullStatus.OFFSET_OVERFLOW_BADLY, 3),
            (99, PullStatus.OFFSET_OVERFLOW_BADLY, 3),
            (0, PullStatus.FOUND, 3),
            (2, PullStatus.FOUND, 3),
        ],
    )
    def test_an_offset_is_judged_against_the_queue(
        self, small: SmallStore, offset: int, status: PullStatus, next_offset: int
    ) -> None:
        put(small, 3)
        result = pull(small, offset)
        assert (result.status, result.next_offset) == (status, next_offset)
        assert (result.min_offset, result.max_offset) == (0, 3)
        assert bool(result.stretches) == (status is PullStatus.FOUND)

    def test_a_queue_whose_messages_all_expired_starts_and_ends_at_its_number(
        self, small: SmallStore
    ) -> None:
        put(small, 3)
        small.appender.close(clean=False)
        # The log goes on in a later file; the first one is gone.
        small.log_file(1 << 20).write_bytes(bytes(1 << 20))
        small.positions.publish(Slot.MIN, 1 << 20)
        small.log_file(0).unlink()
        for offset, status in (
            (2, PullStatus.OFFSET_TOO_SMALL),
            (3, PullStatus.OFFSET_OVERFLOW_ONE),
            (4, PullStatus.OFFSET_OVERFLOW_BADLY),
        ):
            result = pull(small, offset, dispatched=1 << 20)
            assert result.status is status
            assert (result.next_offset, result.min_offset, result.max_offset) == (3, 3, 3)

    def test_the_messages_of_a_missing_unit_file_are_not_skipped(self, small: SmallStore) -> None:
        """As in RocketMQ, the reader was sent to the next file, and lost a thousand messages."""
        put(small, 2500)
        small.queue_file("orders", 0, 20_000).unlink()
        with pytest.raises(DamagedFile, match="lacks units"):
            pull(small, 1500)
        assert numbers(pull(small, 2000, count_max=2)) == [2000, 2001]


class TestMessages:
    def test_they_are_the_stored_records_in_queue_order(self, small: SmallStore) -> None:
        units = [small.put(body=b"%d" % number) for number in range(5)]
        small.put("orders", 1)
        small.dispatch()
        result = pull(small, 1, count_max=3)
        assert numbers(result) == [1, 2, 3]
        assert units_of(result) == units[1:4]
        bodies = [bytes(record.decode(data).body) for data in records_of(result)]
        assert bodies == [b"1", b"2", b"3"]
        assert result.bytes_total == sum(map(len, result.stretches))

    def test_nothing_beyond_the_dispatched_offset_is_served(self, small: SmallStore) -> None:
        units = put(small, 5)
        for number, unit in enumerate(units):
            result = pull(small, 0, dispatched=unit.end)
            assert numbers(result) == list(range(number + 1))
            assert result.max_offset == number + 1
            assert pull(small, number, dispatched=unit.end - 1).stretches == []

    def test_neighbours_in_the_log_are_one_piece_and_those_of_another_file_another(
        self, tmp_path: Path
    ) -> None:
        config = replace(CONFIG, commit_log_file_size=4096)
        store = SmallStore(tmp_path / "files", config)
        try:
            for number in range(60):
                store.put(body=b"%d" % number)
                if number == 10:
                    store.put("orders", 1)
            store.dispatch()
            result = pull(store, count_max=100, bulk=True)
            files = {unit.physical_offset // 4096 for unit in units_of(result)}
            assert len(result.stretches) == len(files) + 1 > 2
            bodies = [bytes(record.decode(data).body) for data in records_of(result)]
            assert bodies == [b"%d" % number for number in range(60)]
        finally:
            store.close()

    def test_returned_records_are_not_copied(self, small: SmallStore) -> None:
        put(small, 2)
        result = pull(small)
        assert bytes(result.stretches[0]).count(b"x" * 10) == 2
        small.overwrite(small.units[0][3].physical_offset, b"\xaa" * 4)
        assert bytes(result.stretches[0][:4]) == b"\xaa" * 4

    def test_records_that_change_under_a_reader_are_not_taken_apart(
        self, small: SmallStore
    ) -> None:
        put(small, 2)
        result = pull(small)
        small.overwrite(small.units[1][3].physical_offset + 20, b"\xff" * 8)
        messages = result.records()
        assert next(messages)[0] == 0
        with pytest.raises(DamagedFile, match="changed while a pull read it"):
            next(messages)


class TestLimits:
    def test_32_messages_and_256_kib_by_default(self, small: SmallStore) -> None:
        put(small, 100)
        assert numbers(pull(small, count_max=1000)) == list(range(32))
        put(small, 100, size=20_000)
        result = pull(small, 100)
        assert result.bytes_total <= 262_144 < result.bytes_total + len(records_of(result)[0])

    @pytest.mark.parametrize("count_max", [0, 1, 2, 31])
    def test_the_callers_count_is_kept_but_one_message_always_comes(
        self, small: SmallStore, count_max: int
    ) -> None:
        put(small, 40)
        assert pull(small, count_max=count_max).message_count == max(1, count_max)

    def test_a_message_larger_than_every_limit_comes_alone(self, small: SmallStore) -> None:
        put(small, 3, size=300_000)
        for bytes_max in (None, 0, 1, 299_000):
            result = pull(small, bytes_max=bytes_max)
            assert numbers(result) == [0]
            assert result.next_offset == 1

    def test_the_callers_bytes_are_kept(self, small: SmallStore) -> None:
        size = put(small, 10, size=200)[0].size
        assert pull(small, bytes_max=3 * size).message_count == 3
        assert pull(small, bytes_max=3 * size - 1).message_count == 2

    def test_one_answer_ends_with_the_queue_file(self, small: SmallStore) -> None:
        put(small, 1010)
        assert numbers(pull(small, 995)) == list(range(995, 1000))


class TestTags:
    def test_only_subscribed_tags_come_and_the_next_offset_passes_the_others(
        self, small: SmallStore
    ) -> None:
        for number in range(9):
            small.put(tags="abc"[number % 3])
        small.put()
        small.dispatch()
        assert numbers(pull(small, tags=("a",))) == [0, 3, 6]
        assert numbers(pull(small, tags=("a", "c"))) == [0, 2, 3, 5, 6, 8]
        assert numbers(pull(small, tags=("",))) == [9]
        # Full before unit 4 is looked at: it is not passed.
        assert pull(small, tags=("a",), count_max=2).next_offset == 4
        nothing = pull(small, tags=("z",))
        assert (nothing.status, nothing.next_offset) == (PullStatus.NO_MATCHED_MESSAGE, 10)

    def test_800_units_are_read_for_one_answer(self, small: SmallStore) -> None:
        put(small, 900, tags="a")
        nothing = pull(small, tags=("z",))
        assert (nothing.status, nothing.next_offset) == (PullStatus.NO_MATCHED_MESSAGE, 800)
        assert pull(small, tags=("z",), count_max=850).next_offset == 850

    def test_negative_hashes_match_as_signed_numbers(self, small: SmallStore) -> None:
        put(small, 1, tags="ORDER_CREATED")
        put(small, 1, tags="polygenelubricants")
        assert string_hash("polygenelubricants") == -(2**31)
        assert numbers(pull(small, tags=("polygenelubricants",))) == [1]
        assert numbers(pull(small, tags=("ORDER_CREATED",))) == [0]

    def test_other_tags_of_the_same_hash_are_passed_where_tags_are_given(
        self, small: SmallStore
    ) -> None:
        for number in range(6):
            small.put(tags=("Aa", "BB")[number % 2])
        small.dispatch()
        queue, log = reading(small)
        wanted = Wanted(frozenset({string_hash("Aa")}), frozenset({"Aa"}))
        result = get_message(queue, log, offset=0, dispatched=small.end, wanted=wanted)
        assert numbers(result) == [0, 2, 4]
        assert (result.filtered, result.next_offset) == (3, 6)
        assert numbers(pull(small, tags=("Aa",))) == list(range(6))


class TestGoneRecords:
    CONFIG = StoreConfig(
        commit_log_file_size=4096, consume_queue_file_size=20_000, index_slots=20, index_entries=30
    )

    @pytest.fixture
    def expired(self, tmp_path: Path) -> Iterator[SmallStore]:
        """A queue of which the records in the middle are gone, as no retention does it."""
        store = SmallStore(tmp_path / "small", self.CONFIG)
        while store.end < 3 * 4096:
            store.put(body=b"x" * 500, tags="a")
        store.dispatch()
        yield store
        store.close()

    def test_units_of_the_same_lost_file_are_passed_in_one_answer(
        self, expired: SmallStore
    ) -> None:
        lost = sum(1 for *_, unit in expired.units if unit.physical_offset < 4096)
        queue, log = reading(expired)
        queue.min_offset(0)
        expired.positions.publish(Slot.MIN, 4096)
        expired.log_file(0).unlink()

        class Stale:
            """The earlier minimum: retention runs between the two reads."""

            min_offset = PhysicalOffset(0)
            next_file = log.next_file
            window = log.window

            def read(
                self, offset: PhysicalOffset, size: int, end: PhysicalOffset
            ) -> memoryview | None:
                return None if offset < 4096 else log.read(offset, size, end)

        stale = cast(CommitLogReader, Stale())
        result = get_message(queue, stale, offset=0, dispatched=expired.end)
        assert result.status is PullStatus.FOUND
        assert numbers(result)[0] == lost
        only = get_message(queue, stale, offset=0, dispatched=expired.units[lost - 1][3].end)
        assert (only.status, only.next_offset) == (PullStatus.MESSAGE_WAS_REMOVING, lost)
        assert only.stretches == []

    @pytest.mark.parametrize("is_expired", [True, False])
    def test_a_damaged_unit_does_not_hide_that_the_next_one_has_expired(
        self, expired: SmallStore, is_expired: bool
    ) -> None:
        """An expired unit behind a damaged one was reported as damaged, and the node as unready."""
        lost = sum(1 for *_, unit in expired.units if unit.physical_offset < 4096)
        number = lost - 1 if is_expired else lost + 2
        stray = expired.units[-1][3]
        damaged = UNIT.pack(stray.physical_offset + 1, stray.size - 1, 0)
        expired.put_unit("orders", 0, number - 1, damaged)
        if not is_expired:
            expired.put_unit("orders", 0, number, UNIT.pack(8, stray.size, 0))
        queue, log = reading(expired)
        queue.min_offset(0)
        expired.positions.publish(Slot.MIN, 4096)
        expired.log_file(0).unlink()

        class Shortened:
            """Retention runs between the first look and the others."""

            read, window, next_file = log.read, log.window, log.next_file

            def __init__(self) -> None:
                self._ends = iter([PhysicalOffset(0)])

            @property
            def min_offset(self) -> PhysicalOffset:
                return next(self._ends, PhysicalOffset(4096))

        shortened = cast(CommitLogReader, Shortened())
        if is_expired:
            result = get_message(queue, shortened, offset=number, dispatched=expired.end)
            assert numbers(result)[0] == lost
        else:
            with pytest.raises(DamagedFile):
                get_message(queue, shortened, offset=number, dispatched=expired.end)


class TestDamage:
    @pytest.mark.parametrize("wrong", ["far", "negative size", "no size", "border"])
    def test_a_unit_that_points_outside_the_log_does_not_hide_later_ones(
        self, small: SmallStore, wrong: str
    ) -> None:
        put(small, 3)
        at, size = small.units[1][3].physical_offset, small.units[1][3].size
        unit = {
            "far": Unit(at + (1 << 40), size, 0),
            "negative size": Unit(at, -size, 0),
            "no size": Unit(at, 0, 0),
            "border": Unit(at, 1 << 30, 0),
        }[wrong]
        small.flush()
        small.put_unit("orders", 0, 1, unit)
        assert numbers(pull(small, 0, count_max=1)) == [0]
        with pytest.raises(DamagedFile, match="queue offset 1 points to physical offset"):
            pull(small, 1)
        assert numbers(pull(small, 2)) == [2]

    @pytest.mark.parametrize("wrong", ["queue offset", "queue", "topic", "position", "size"])
    def test_a_unit_that_points_to_another_record_is_named_and_not_served(
        self, small: SmallStore, wrong: str
    ) -> None:
        put(small, 3)
        other = {
            "queue offset": small.units[2][3],
            "queue": small.put("orders", 1, queue_offset=1),
            "topic": small.put("orderz", 0, queue_offset=1),
            "position": Unit(small.units[1][3].physical_offset + 4, small.units[1][3].size, 0),
            "size": Unit(small.units[1][3].physical_offset, small.units[1][3].size - 1, 0),
        }[wrong]
        small.flush()
        small.put_unit("orders", 0, 1, other)
        assert numbers(pull(small, 0, count_max=1)) == [0]
        with pytest.raises(DamagedFile, match="store rebuild") as damaged:
            pull(small, 1, count_max=1)
        facts = damaged.value
        assert (facts.topic, facts.queue, facts.queue_offset) == ("orders", 0, 1)
        assert numbers(pull(small, 2)) == [2]

    def test_garbage_at_the_target_of_a_unit_may_be_damage_of_the_log(
        self, small: SmallStore
    ) -> None:
        # Bytes of the log below the start of recovery were overwritten; the answer excluded damage
        # of the log and sent the reader away to rebuild a valid queue.
        put(small, 3)
        small.flush()
        small.overwrite(small.units[1][3].physical_offset + 10, b"garbage" * 4)
        with pytest.raises(DamagedFile, match=r"either the unit or the commit log.*store verify"):
            pull(small, 1, count_max=1)

    def test_a_record_whose_tags_cannot_be_read_is_damage_of_the_log(
        self, small: SmallStore
    ) -> None:
        put(small, 1, tags="a")
        queue, log = reading(small)
        at = small.log_bytes()["0" * 20].index(b"orders") + len(b"orders")
        small.overwrite(at, b"\x7f\xff")
        wanted = Wanted(frozenset({string_hash("a")}), frozenset({"a"}))
        with pytest.raises(CorruptRecord, match="the fields have") as damaged:
            get_message(queue, log, offset=0, dispatched=small.end, wanted=wanted)
        assert damaged.value.at == small.units[0][3].physical_offset

    def test_every_flipped_bit_of_a_units_first_fields_is_noticed(self, small: SmallStore) -> None:
        put(small, 3)
        good = small.units[1][3]
        for bit in range(96):
            raw = bytearray(12)
            raw[:8] = good.physical_offset.to_bytes(8, "big")
            raw[8:] = good.size.to_bytes(4, "big")
            raw[bit // 8] ^= 1 << bit % 8
            small.put_unit("orders", 0, 1, bytes(raw) + bytes(8))
            try:
                served = list(pull(small, 1, count_max=1).records())
            except DamagedFile:
                continue
            # A unit that points behind the end does not count, one before the log is gone.
            assert all(unit == small.units[number][3] for number, unit, _ in served)

    def test_an_ipv6_born_host_and_a_long_topic_are_read_by_their_own_layout(self) -> None:
        raw = bytes.fromhex(
            "00000083daa320ab770659160000000000000007000000000000000200000000000003790000003000000"
            "18bcfe5687b20010db800000000000000000000000100000457000001a1f8492efa20010db80000000000"
            "00000000000002000008ae0000000200000000000000000000000276360006546f7069634100075441475"
            "3015636"
        )
        view = memoryview(raw)
        unit = Unit(889, len(raw), 0)
        assert len(raw) == 131
        assert names(view, b"TopicA", 0, 2, unit)
        assert not names(view, b"TopicB", 0, 2, unit)
        assert not names(view, b"Topic", 0, 2, unit)
