from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from shared.files.commit_log import CommitLogReader
from shared.files.disk import DirectoryEntry
from shared.files.index import MAPPED_MAX, Asked, Budget, IndexPlace, IndexReader
from shared.files.os_disk import OsDisk
from tests.support.index_query import headers, hits, query
from tests.support.small_store import CONFIG, FIRST_MS, SmallStore
from tests.support.small_store import small as small
from tidemark.errors import DamagedFile
from tidemark.formats.checkpoint import Slot
from tidemark.formats.hashing import index_hash
from tidemark.formats.queue_unit import Unit
from tidemark.formats.record import Record
from tidemark.offsets import PhysicalOffset

NAMES = ("20240101000000000", "20240101000000500", "20240101000001000")


def log(small: SmallStore) -> CommitLogReader:
    return CommitLogReader(small.store, small.positions)


def reader(small: SmallStore) -> IndexReader:
    return IndexReader(small.store, log(small))


def row(topic: str, key: str, unit: Unit, at_ms: int) -> tuple[int, int, int]:
    return index_hash(topic, key), unit.physical_offset, at_ms


def indexed(small: SmallStore, name: str, *keyed: tuple[str, str, int]) -> list[Unit]:
    """Records of (topic, keys, seconds after FIRST_MS) and an index file of their keys."""
    units, rows = [], []
    for topic, keys, seconds in keyed:
        at_ms = FIRST_MS + seconds * 1000
        unit = small.put(topic, keys=keys, at_ms=at_ms)
        units.append(unit)
        rows += [row(topic, key, unit, at_ms) for key in keys.split(" ") if key]
    small.flush()
    small.index_file(name, rows)
    return units


def offsets(units: list[Unit]) -> list[int]:
    return [unit.physical_offset for unit in units]


def test_without_files_nothing_is_found(small: SmallStore) -> None:
    index = reader(small)
    assert query(index, "orders", "k", dispatched=1 << 60) == []
    assert hits(index, log(small), "orders", "k", dispatched=1 << 60) == ([], 0, 0)
    assert headers(index) == []


def test_hits_of_all_files_come_in_the_order_of_the_log(small: SmallStore) -> None:
    found = []
    for number, name in enumerate(NAMES):
        units = indexed(
            small,
            name,
            ("orders", "k", 3 * number),
            ("orders", "other", 3 * number + 1),
            ("orders", "a k", 3 * number + 2),
        )
        found += [units[0], units[2]]
    index = reader(small)
    assert query(index, "orders", "k", dispatched=small.end) == offsets(found)
    assert query(index, "orders", "k", dispatched=small.end, hits_max=3) == offsets(found[-3:])
    assert query(index, "payments", "k", dispatched=small.end) == []
    raw = hits(index, log(small), "orders", "k", dispatched=small.end)
    assert raw.physical_offsets == offsets(found)
    assert raw.last_update_offset == found[-1].physical_offset
    assert raw.last_update_timestamp_ms == FIRST_MS + 8000


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [(0, 99, range(6)), (2, 3, [2, 3]), (0, 0, [0]), (5, 99, [5]), (6, 99, []), (3, 2, [])],
)
def test_only_files_and_entries_in_the_time_range_answer(
    small: SmallStore, begin: int, end: int, expected: list[int]
) -> None:
    found = []
    for number, name in enumerate(NAMES):
        found += indexed(small, name, ("orders", "k", 2 * number), ("orders", "k", 2 * number + 1))
    answer = query(
        reader(small),
        "orders",
        "k",
        begin_ms=FIRST_MS + begin * 1000,
        end_ms=FIRST_MS + end * 1000,
        dispatched=small.end,
    )
    assert answer == [found[number].physical_offset for number in expected]


def test_a_record_that_only_shares_the_hash_is_left_out(small: SmallStore) -> None:
    # "Aa" and "BB" have the same string hash.
    units = indexed(
        small, NAMES[0], ("orders", "Aa", 0), ("orders", "BB", 1), ("orders", "Aa BB", 2)
    )
    index = reader(small)
    assert query(index, "orders", "Aa", dispatched=small.end) == offsets([units[0], units[2]])
    assert query(index, "orders", "BB", dispatched=small.end) == offsets(units[1:])
    raw = hits(index, log(small), "orders", "Aa", dispatched=small.end)
    assert raw.physical_offsets == offsets([units[0], units[1], units[2], units[2]])


def test_collisions_do_not_crowd_out_the_hits(small: SmallStore) -> None:
    units = indexed(
        small,
        NAMES[0],
        *[("orders", "Aa", second) for second in range(3)],
        *[("orders", "BB", second) for second in range(3, 23)],
    )
    answer = query(reader(small), "orders", "Aa", dispatched=small.end, hits_max=2)
    assert answer == offsets(units[1:3])


def test_the_unique_id_finds_a_record_too(small: SmallStore) -> None:
    unit = small.put("orders", keys="k", unique_id="u")
    small.flush()
    small.index_file(NAMES[0], [row("orders", "u", unit, FIRST_MS)])
    assert query(reader(small), "orders", "u", dispatched=small.end) == [unit.physical_offset]


# The sender of an answer may put a message's unique id among its keys: many answers hid the
# message.
def test_a_unique_id_is_found_behind_newer_messages_that_have_it_as_key(small: SmallStore) -> None:
    asked = small.put("orders", unique_id="u")
    answers = [small.put("orders", keys="u") for _ in range(20)]
    small.flush()
    small.index_file(NAMES[0], [row("orders", "u", unit, FIRST_MS) for unit in [asked, *answers]])
    index = reader(small)
    assert query(index, "orders", "u", dispatched=small.end, hits_max=1) == offsets(answers[-1:])
    only = query(index, "orders", "u", dispatched=small.end, hits_max=1, unique_id_only=True)
    assert only == [asked.physical_offset]


def test_nothing_beyond_the_dispatched_offset_is_found(small: SmallStore) -> None:
    units = indexed(small, NAMES[0], ("orders", "k", 0), ("orders", "k", 1))
    index = reader(small)
    for end, expected in ((0, 0), (units[0].end, 1), (small.end, 2)):
        assert query(index, "orders", "k", dispatched=end) == offsets(units[:expected])


def test_expired_records_are_left_out(small: SmallStore) -> None:
    found = []
    while small.end < 3 * 4096:
        found.append(small.put("orders", keys="k", body=b"x" * 500))
    small.flush()
    small.index_file(NAMES[0], [row("orders", "k", unit, FIRST_MS + 1) for unit in found])
    small.positions.publish(Slot.MIN, 4096)  # then the file goes, as in retention
    small.log_file(0).unlink()
    kept = [unit for unit in found if unit.physical_offset >= 4096]
    assert query(reader(small), "orders", "k", dispatched=small.end) == offsets(kept)


def test_an_entry_that_points_to_no_record_is_named(small: SmallStore) -> None:
    (unit,) = indexed(small, NAMES[0], ("orders", "k", 0))
    small.index_file(NAMES[1], [(index_hash("orders", "k"), unit.physical_offset + 1, FIRST_MS)])
    with pytest.raises(DamagedFile, match="physical offset 1, where no sound record begins"):
        query(reader(small), "orders", "k", dispatched=small.end)


def test_only_the_starts_of_indexed_records_are_known(small: SmallStore) -> None:
    units = indexed(small, NAMES[0], ("orders", "k l", 0), ("orders", "", 1), ("orders", "k", 2))
    units += indexed(small, NAMES[1], ("orders", "m", 600), ("orders", "k", 700))
    index = reader(small)
    known = [at for at in range(small.end + 1) if index.has_record(PhysicalOffset(at))]
    assert known == offsets([units[0], *units[2:]])


def test_foreign_files_are_ignored_and_a_short_file_is_named(small: SmallStore) -> None:
    units = indexed(small, NAMES[0], ("orders", "k", 0))
    (small.store.index_dir / "notes").write_text("mine")
    index = reader(small)
    assert query(index, "orders", "k", dispatched=small.end) == offsets(units)
    (small.store.index_dir / NAMES[1]).write_bytes(bytes(100))
    with pytest.raises(DamagedFile, match=r"100 bytes.*store rebuild"):
        query(reader(small), "orders", "k", dispatched=small.end)


def test_records_come_whole_and_in_the_order_of_the_log(small: SmallStore) -> None:
    units = indexed(
        small, NAMES[0], ("orders", "Aa", 0), ("orders", "BB", 1), ("orders", "Aa Aa", 2)
    )
    found = reader(small).records("orders", "Aa", dispatched=small.end)
    assert [each.physical_offset for each in found] == offsets([units[0], units[2]])
    assert [each.keys for each in found] == [["Aa"], ["Aa", "Aa"]]


def test_one_record_in_two_files_is_found_once(small: SmallStore) -> None:
    (unit,) = indexed(small, NAMES[0], ("orders", "k", 0))
    small.index_file(NAMES[1], [row("orders", "k", unit, FIRST_MS)])
    assert query(reader(small), "orders", "k", dispatched=small.end) == offsets([unit])


class CountingDisk(OsDisk):
    """Counts how often a directory is listed."""

    def __init__(self) -> None:
        self.listed = 0

    def list_directory(self, path: Path) -> Sequence[DirectoryEntry]:
        self.listed += 1
        return super().list_directory(path)


def test_the_directory_is_listed_again_when_it_may_have_changed(tmp_path: Path) -> None:
    disk = CountingDisk()
    small = SmallStore(tmp_path / "store", disk=disk)
    room = CONFIG.index_entries - 1
    first = indexed(small, NAMES[0], *[("orders", "k", 0)] * (room - 1))
    index = reader(small)

    def count() -> tuple[int, int]:
        """(hits, times that the directory was listed for them)."""
        before = disk.listed
        hits = query(index, "orders", "k", dispatched=small.end)
        return len(hits), disk.listed - before

    assert count() == (room - 1, 1)
    assert count() == (room - 1, 0)
    last = small.put("orders", keys="k")
    small.flush()
    assert count() == (room - 1, 0)
    small.index_file(NAMES[0], [row("orders", "k", unit, FIRST_MS) for unit in [*first, last]])
    # Full: from now on there may be a newer one.
    assert count() == (room, 1)
    assert count() == (room, 1)
    indexed(small, NAMES[1], ("orders", "k", 1), ("orders", "k", 2))
    assert count() == (room + 2, 1)
    assert count() == (room + 2, 0)
    # The newest one was made again, with less in it.
    (small.store.index_dir / NAMES[1]).unlink()
    indexed(small, NAMES[2], ("orders", "k", 3))
    assert count() == (room + 1, 1)
    assert count() == (room + 1, 0)
    index.close()
    small.close()


def test_a_bounded_number_of_files_is_mapped_and_a_replaced_one_is_seen(small: SmallStore) -> None:
    found = []
    for number in range(MAPPED_MAX + 4):
        found += indexed(small, f"202401010000{number:05d}", ("orders", "k", number))
    index = reader(small)
    assert query(index, "orders", "k", dispatched=small.end) == offsets(found)
    assert len(headers(index)) == len(found)
    path = small.store.index_dir / f"202401010000{MAPPED_MAX + 3:05d}"
    path.unlink()
    path.write_bytes(bytes(small.store.config.index_geometry.size))
    assert query(index, "orders", "k", dispatched=small.end) == offsets(found[:-1])
    index.close()


ALIKE = ["".join(each) for each in itertools.product(("Aa", "BB"), repeat=6)]
"""64 keys of one hash."""


class CountingLog(CommitLogReader):
    """Counts the records that are looked at."""

    count = 0

    def find(self, offset: PhysicalOffset, end: PhysicalOffset) -> Record | None:
        self.count += 1
        return super().find(offset, end)


def counting(small: SmallStore) -> tuple[IndexReader, CountingLog]:
    log = CountingLog(small.store, small.positions)
    return IndexReader(small.store, log), log


def test_a_record_with_many_keys_of_one_hash_is_judged_once(small: SmallStore) -> None:
    """A look-up of an absent key checked each of 100 messages once for each of its 1,023 keys, on
    the loop: five seconds."""
    assert len({index_hash("orders", each) for each in ALIKE}) == 1
    keys = " ".join(ALIKE[1:6])
    indexed(small, NAMES[0], *(("orders", keys, number) for number in range(5)))
    index, log = counting(small)
    assert query(index, "orders", ALIKE[0], dispatched=1 << 60) == []
    assert log.count == 5
    assert len(query(index, "orders", ALIKE[5], hits_max=3, dispatched=1 << 60)) == 3
    assert log.count == 8


@pytest.mark.parametrize("budget", [(3, 1 << 30), (1, 1 << 30), (9, 400)])
def test_a_bounded_look_up_goes_on_where_it_stopped(
    small: SmallStore, budget: tuple[int, int]
) -> None:
    units = []
    for number, name in enumerate(NAMES):
        keyed = [
            ("orders", ALIKE[0] if each % 5 == 0 else " ".join(ALIKE[1:4]), number * 60 + each)
            for each in range(10)
        ]
        units += indexed(small, name, *keyed)[::5]
    index, log = counting(small)
    asked = Asked("orders", ALIKE[0], 1 << 60)
    found, place, pages = list[int](), None, 0
    while True:
        before = log.count
        search = index.search(asked, budget=Budget(1 << 30, *budget), at=place)
        for _ in search.steps():
            pass
        assert log.count - before <= budget[0]
        pages += 1
        found[:0] = [each.physical_offset for each in search.found]
        if search.place is None:
            break
        place = IndexPlace.parse(str(search.place))
    assert found == offsets(units)
    assert pages > 3
    # The files may have been rebuilt meanwhile: then the number is useless, but not the offset.
    middle = units[3].physical_offset
    for number in (0, 1, 3, 20, 10_000):
        search = index.search(asked, at=IndexPlace(NAMES[1], number, middle))
        for _ in search.steps():
            pass
        assert [each.physical_offset for each in search.found] == offsets(units)[:3]


@pytest.mark.parametrize(
    "text",
    ["", "x", "20240101000000000", "20240101000000000-1", "20240101000000000--1-5",
     "20240101000000000-1-9223372036854775808", "../../etc/passwd-1-2", "20240101000000000-²-1",
     "20240101000000000-2147483648-1", "20240101000000000-1-1-1"],
)  # fmt: skip
def test_an_invalid_place_of_a_look_up_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no place of a look-up"):
        IndexPlace.parse(text)
