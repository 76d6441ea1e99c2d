from __future__ import annotations

from pathlib import Path

import pytest

from services.reput import index_writer
from services.reput.index_writer import IndexIncomplete, IndexWriter
from services.reput.resume import IndexMode
from shared.files.store_dir import StoreConfig, StoreDir
from tests.support.index_rows import Row, packed, put_plainly
from tests.support.sim_disk import SimDisk
from tidemark.errors import DiskFull
from tidemark.formats.index_file import Geometry, IndexFile

ROOT = Path("/store")
DIRECTORY = ROOT / "index"
GEOMETRY = Geometry(slots=5, entries=8)  # seven entries per file
NOW_MS = 1_700_000_000_000


class StandingClock:
    """A wall clock that stands still or is set back."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic(self) -> float:
        return 0.0

    def boot_ms(self) -> int:
        return 0


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk(1)
    disk.check_reserved = True
    disk.make_directory(DIRECTORY)
    return disk


def rows(first: int, count: int, *, keys: int = 1) -> list[Row]:
    """Return ``keys`` rows for each of count records, from record number first on."""
    return [
        (17 * number + key, number * 100, NOW_MS + number * 1500)
        for number in range(first, first + count)
        for key in range(keys)
    ]


def writer_on(disk: SimDisk, clock: StandingClock | None = None) -> IndexWriter:
    config = StoreConfig(index_slots=GEOMETRY.slots, index_entries=GEOMETRY.entries)
    return IndexWriter(StoreDir(disk, ROOT, config), clock or StandingClock(), lambda _: 3600)


def resumed(
    disk: SimDisk, mode: IndexMode, *, start: int = 0, keep: int = 1 << 40, log_min: int = 0
) -> tuple[IndexWriter, int]:
    writer = writer_on(disk)
    if mode is IndexMode.CONTINUE:
        writer.survey(start)
    begin = writer.resume(
        mode,
        start=start,
        keep=keep,
        log_min=log_min,
        store_time_of=lambda offset: NOW_MS + offset // 100 * 1500,
    )
    return writer, begin


def put_all(writer: IndexWriter, some: list[Row]) -> None:
    rows, done = packed(some), 0
    while done < len(some):
        done = writer.put(rows, done)


def content(disk: SimDisk) -> list[bytes]:
    return [raw for path, raw in sorted(disk.files()) if path.parent == DIRECTORY]


def names(disk: SimDisk) -> list[str]:
    return [path.name for path, _ in sorted(disk.files()) if path.parent == DIRECTORY]


def found(disk: SimDisk, key_hash: int) -> list[int]:
    hits = []
    for raw in content(disk):
        file = IndexFile(memoryview(raw), GEOMETRY)
        hits += file.lookup(key_hash, begin_ms=0, end_ms=1 << 60, hits_max=100)
    return sorted(hits)


def put_by_the_format(some: list[Row]) -> list[bytes]:
    """Return the files according to the format, with rows put individually."""
    made: list[bytearray] = []
    before = None
    for row in some:
        if made and put_plainly(made[-1], GEOMETRY, row):
            continue
        if made:
            before = IndexFile(memoryview(made[-1]), GEOMETRY).header
        made.append(bytearray(GEOMETRY.size))
        file = IndexFile(memoryview(made[-1]), GEOMETRY)
        file.start_after(before)
        assert put_plainly(made[-1], GEOMETRY, row)
    return [bytes(one) for one in made]


def test_files_fill_one_after_the_other_with_the_bytes_of_single_puts(disk: SimDisk) -> None:
    writer = writer_on(disk)
    some = rows(1, 11, keys=2)
    put_all(writer, some)
    assert content(disk) == put_by_the_format(some)
    assert writer.entries == 22
    assert disk.unreserved_stores == []
    third = IndexFile(memoryview(content(disk)[2]), GEOMETRY).header
    assert writer.filled_timestamp_ms == third.end_timestamp_ms


def test_names_are_local_time_and_rise_even_if_the_clock_does_not(disk: SimDisk) -> None:
    clock = StandingClock()
    writer = writer_on(disk, clock)
    put_all(writer, rows(1, 8))
    clock.now_ms -= 3_600_000
    put_all(writer, rows(9, 8))
    assert names(disk) == ["20231114231320000", "20231114231320001", "20231114231320002"]


def test_nothing_indexed_makes_no_file(disk: SimDisk) -> None:
    writer, begin = resumed(disk, IndexMode.CONTINUE, start=700)
    assert begin == 700
    assert names(disk) == []
    assert writer.survey(700) == 0


def test_a_full_disk_is_waited_for_and_no_key_is_put_twice(disk: SimDisk) -> None:
    writer = writer_on(disk)
    some = packed(rows(1, 5, keys=3))
    done = writer.put(some, 0)
    assert done == 7
    disk.capacity_bytes = (1 << 50) - disk.free_bytes(ROOT)
    for _ in range(3):
        with pytest.raises(DiskFull):
            writer.put(some, done)
    disk.capacity_bytes = None
    while done < 15:
        done = writer.put(some, done)
    assert content(disk) == put_by_the_format(rows(1, 5, keys=3))


def test_a_count_covers_entries_of_records_below_an_offset(disk: SimDisk) -> None:
    put_all(writer_on(disk), rows(1, 9, keys=2))
    writer = writer_on(disk)
    assert [writer.survey(offset) for offset in (0, 100, 101, 450, 901, 1 << 40)] == [
        0, 0, 2, 8, 18, 18,
    ]  # fmt: skip


def test_after_a_kill_of_reput_existing_entries_are_not_put_again(disk: SimDisk) -> None:
    some = rows(1, 9, keys=2)
    put_all(writer_on(disk), some)
    before = content(disk)
    writer, begin = resumed(disk, IndexMode.CONTINUE, start=300, keep=1000)
    assert begin == 300
    put_all(writer, [row for row in some if row[1] >= 300])
    assert content(disk) == before
    more = rows(10, 3, keys=2)
    put_all(writer, more)
    assert content(disk) == put_by_the_format(some + more)


def test_entries_above_the_kept_offset_are_cut_and_empty_files_removed(disk: SimDisk) -> None:
    some = rows(1, 12, keys=2)
    put_all(writer_on(disk), some)
    _, begin = resumed(disk, IndexMode.CONTINUE, start=600, keep=600)
    assert begin == 600
    kept = [row for row in some if row[1] < 600]
    assert content(disk) == put_by_the_format(kept)
    writer, _ = resumed(disk, IndexMode.CONTINUE, start=600, keep=600)
    put_all(writer, [row for row in some if row[1] >= 600])
    assert content(disk) == put_by_the_format(some)


def test_a_record_whose_keys_were_put_in_part_gets_the_others_once(disk: SimDisk) -> None:
    some = rows(1, 4, keys=3)
    put_all(writer_on(disk), some[:10])  # killed after the first key of record 4
    writer, _ = resumed(disk, IndexMode.CONTINUE, start=0, keep=500)
    put_all(writer, some)
    assert content(disk) == put_by_the_format(some)


def test_after_a_power_cut_files_that_could_take_entries_are_made_again(disk: SimDisk) -> None:
    some = rows(1, 12, keys=2)
    put_all(writer_on(disk), some)
    before = content(disk)
    writer, begin = resumed(disk, IndexMode.REOPEN, start=900, keep=900)
    # The second file is full and its last record is below the mark; the third was open.
    assert content(disk) == before[:2]
    assert begin == 700
    put_all(writer, [row for row in some if row[1] >= begin])
    assert content(disk) == before


def test_a_file_filled_after_the_mark_is_made_again_as_well(disk: SimDisk) -> None:
    some = rows(1, 12, keys=2)
    put_all(writer_on(disk), some)
    _, begin = resumed(disk, IndexMode.REOPEN, start=600, keep=600)
    assert len(content(disk)) == 1
    assert begin == 400
    _, begin = resumed(disk, IndexMode.REOPEN, start=200, keep=200, log_min=150)
    assert content(disk) == []
    assert begin == 150


def test_a_comparison_finds_every_key_or_reports_a_missing_one(disk: SimDisk) -> None:
    some = rows(1, 12, keys=2)
    put_all(writer_on(disk), some)
    before = content(disk)
    writer, begin = resumed(disk, IndexMode.COMPARE)
    assert begin == 0
    put_all(writer, some)
    assert content(disk) == before
    disk.unlink(DIRECTORY / names(disk)[1])
    writer, _ = resumed(disk, IndexMode.COMPARE)
    with pytest.raises(IndexIncomplete):
        put_all(writer, some)
    assert writer.start_over(0) == 0
    put_all(writer, some)
    assert content(disk) == before


def test_comparing_passes_over_records_that_have_expired(disk: SimDisk) -> None:
    some = rows(1, 12)
    put_all(writer_on(disk), some)
    before = content(disk)
    writer, begin = resumed(disk, IndexMode.COMPARE, log_min=500)
    assert begin == 500
    put_all(writer, [row for row in some if row[1] >= 500])
    assert content(disk) == before


def test_a_file_of_another_size_is_removed_and_missed_by_the_count(disk: SimDisk) -> None:
    put_all(writer_on(disk), rows(1, 9))
    disk.create(DIRECTORY / "20990101000000000", 17, reserve=False)
    disk.create(DIRECTORY / "README", 17, reserve=False)
    writer = writer_on(disk)
    assert writer.survey(1 << 40) == 9
    assert disk.stat(DIRECTORY / "20990101000000000") is None
    assert disk.stat(DIRECTORY / "README") is not None


def test_a_file_created_before_a_kill_is_used(disk: SimDisk) -> None:
    some = rows(1, 9)
    put_all(writer_on(disk), some[:7])
    disk.create(DIRECTORY / "20231114231320009", GEOMETRY.size, reserve=False).close()
    writer, _ = resumed(disk, IndexMode.CONTINUE, start=800, keep=800)
    put_all(writer, some[7:])
    assert content(disk) == put_by_the_format(some)
    assert found(disk, some[8][0]) == [900]


def test_a_disabled_index_touches_nothing(disk: SimDisk) -> None:
    config = StoreConfig(index_slots=5, index_entries=8, index_enabled=False)
    writer = IndexWriter(StoreDir(disk, ROOT, config), StandingClock())
    assert writer.survey(100) == 0
    for mode in IndexMode:
        assert writer.resume(mode, start=5, keep=9, log_min=0, store_time_of=lambda _: None) == 9


@pytest.mark.parametrize("place", ["slot", "entry", "header"])
def test_a_damaged_file_is_found_although_its_entries_can_be_counted(
    disk: SimDisk, place: str
) -> None:
    put_all(writer_on(disk), rows(1, 9, keys=2))
    writer = writer_on(disk)
    assert writer.survey(1 << 40) == 18
    writer.close()
    used = next(hash_ for hash_, _, _ in rows(5, 1)) % GEOMETRY.slots
    at, raw = {
        "slot": (GEOMETRY.slot_offset(used), bytes(4)),
        "entry": (GEOMETRY.entry_offset(3), b"\x7f" * 20),
        "header": (36, b"\0\0\0\3"),
    }[place]
    disk.open(DIRECTORY / names(disk)[1], writable=True).pwrite(raw, at)
    assert writer_on(disk).survey(1 << 40) != 18


def test_one_batch_may_begin_below_and_end_above_existing_entries(disk: SimDisk) -> None:
    some = rows(1, 20, keys=2)
    put_all(writer_on(disk), some[:21])  # killed after the first key of record 11
    writer, begin = resumed(disk, IndexMode.CONTINUE, start=500, keep=1200)
    assert begin == 500
    put_all(writer, some)
    assert content(disk) == put_by_the_format(some)
    assert writer.put_count == 19


def test_a_record_with_more_keys_than_a_file_takes_is_compared_over_all_of_them(
    disk: SimDisk,
) -> None:
    some = rows(1, 2, keys=20)
    put_all(writer_on(disk), some[:33])
    writer, _ = resumed(disk, IndexMode.CONTINUE, start=0, keep=500)
    put_all(writer, some)
    assert content(disk) == put_by_the_format(some)


@pytest.mark.parametrize("mode", [IndexMode.CONTINUE, IndexMode.COMPARE])
def test_entries_that_no_chain_reaches_are_made_again(disk: SimDisk, mode: IndexMode) -> None:
    """A comparison reads the entries in order, so the hash chains to them are checked before."""
    some = rows(1, 12, keys=2)
    put_all(writer_on(disk), some)
    before = content(disk)
    slot = GEOMETRY.slot_offset(some[20][0] % GEOMETRY.slots)
    disk.open(DIRECTORY / names(disk)[2], writable=True).pwrite(bytes(4), slot)
    writer, begin = resumed(disk, mode, start=800, keep=1300, log_min=100)
    assert begin == 100
    assert content(disk) == []
    put_all(writer, some)
    assert content(disk) == before


def test_a_start_checks_the_newest_entries_and_trusts_the_others(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_all(writer_on(disk), rows(1, 9, keys=2))
    monkeypatch.setattr(index_writer, "CHECKED_MAX", 6)  # all of the last file, two before it
    for number, is_found in ((5, False), (6, True)):
        damaged = disk.open(DIRECTORY / names(disk)[1], writable=True)
        at = GEOMETRY.entry_offset(number) + 12
        kept = damaged.pread(4, at)
        damaged.pwrite(b"\xff" * 4, at)
        assert (writer_on(disk).survey(1 << 40) == index_writer.DAMAGED) == is_found
        damaged.pwrite(kept, at)
