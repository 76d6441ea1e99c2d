"""The simulated disk keeps what was synced, and may lose anything else."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.files.disk import read_whole, write_atomically
from tests.support.sim_disk import KEEP_ALL, LOSE_ALL, PAGE, SECTOR, Loss, SimCrash, SimDisk
from tidemark.errors import DiskFull

HOME = Path("/store")
FILE = HOME / "file"


def fresh(**settings: int) -> SimDisk:
    disk = SimDisk(1, **settings)
    disk.write_back_chance = 0.0
    disk.make_directory(HOME)
    return disk


def settled(size: int = 4 * PAGE) -> SimDisk:
    """A disk with one file of zeros whose name and length are durable."""
    disk = fresh()
    file = disk.create(FILE, size, reserve=True)
    file.sync()
    disk.sync_directory(HOME)
    return disk


def test_what_was_written_is_lost_unless_synced() -> None:
    disk = settled()
    disk.open(FILE, writable=True).pwrite(b"abc", 0)
    assert read_whole(disk.power_cut(loss=LOSE_ALL), FILE) == bytes(4 * PAGE)
    assert read_whole(disk.power_cut(loss=KEEP_ALL), FILE) == b"abc" + bytes(4 * PAGE - 3)
    disk.open(FILE, writable=False).sync()
    assert (read_whole(disk.power_cut(loss=LOSE_ALL), FILE) or b"")[:3] == b"abc"


def test_a_store_through_a_mapping_is_seen_by_readers_and_lost_like_a_write() -> None:
    disk = settled()
    file = disk.open(FILE, writable=True)
    region = file.map(writable=True)
    region.view[10:13] = b"abc"
    assert file.pread(3, 10) == b"abc"
    assert bytes(file.map(writable=False).view[10:13]) == b"abc"
    assert (read_whole(disk.power_cut(loss=LOSE_ALL), FILE) or b"")[10:13] == bytes(3)
    file.sync()
    assert (read_whole(disk.power_cut(loss=LOSE_ALL), FILE) or b"")[10:13] == b"abc"


def test_pages_survive_each_on_its_own() -> None:
    disk = settled()
    disk.open(FILE, writable=True).pwrite(b"x" * 4 * PAGE, 0)
    seen = set()
    for seed in range(200):
        after = disk.power_cut(Random(seed), Loss(0.5, 1.0, 0.0, whole_files=False))
        raw = read_whole(after, FILE) or b""
        pages = [raw[at : at + PAGE] for at in range(0, len(raw), PAGE)]
        assert all(page in (b"x" * PAGE, bytes(PAGE)) for page in pages)
        seen.add(tuple(page[:1] for page in pages))
    assert len(seen) == 16


def test_a_torn_page_is_a_mix_of_old_and_new_sectors() -> None:
    disk = settled(PAGE)
    disk.open(FILE, writable=True).pwrite(b"x" * PAGE, 0)
    torn = 0
    for seed in range(50):
        raw = read_whole(disk.power_cut(Random(seed), Loss(1.0, 1.0, 1.0, False)), FILE) or b""
        sectors = {raw[at : at + SECTOR] for at in range(0, PAGE, SECTOR)}
        assert sectors <= {b"x" * SECTOR, bytes(SECTOR)}
        torn += len(sectors) == 2
    assert torn > 40


@given(st.integers(0, 1 << 32), st.integers(1, 3 * PAGE), st.integers(1, PAGE))
def test_no_power_cut_takes_a_synced_byte(seed: int, synced: int, more: int) -> None:
    disk = settled()
    file = disk.open(FILE, writable=True)
    file.pwrite(b"s" * synced, 0)
    file.sync()
    file.pwrite(b"u" * more, synced)
    raw = read_whole(disk.power_cut(Random(seed)), FILE) or b""
    assert raw[:synced] == b"s" * synced
    assert set(raw[synced:]) <= {0, ord("u")}


def test_what_is_written_while_a_sync_returns_is_not_synced() -> None:
    disk = settled()
    file = disk.open(FILE, writable=True)
    file.pwrite(b"before", 0)
    disk.after_sync = lambda: file.pwrite(b"behind", 6)
    file.sync()
    assert file.pread(12, 0) == b"beforebehind"
    assert disk.durable_bytes(FILE)[:12] == b"before" + bytes(6)
    assert disk.after_sync is None


def test_writes_may_reach_the_disk_before_anyone_syncs() -> None:
    disk = settled()
    disk.write_back_chance = 1.0
    file = disk.open(FILE, writable=True)
    file.pwrite(b"early", 0)
    for _ in range(20):
        file.pread(1, 0)
    file.pwrite(b"later", 0)
    disk.write_back_chance = 0.0
    assert (read_whole(disk.power_cut(loss=LOSE_ALL), FILE) or b"")[:5] in (b"early", b"later")


def test_a_name_needs_the_sync_of_its_directory() -> None:
    disk = fresh()
    disk.create(FILE, PAGE, reserve=True).sync()
    assert disk.power_cut(loss=LOSE_ALL).stat(FILE) is None
    disk.sync_directory(HOME)
    assert disk.power_cut(loss=LOSE_ALL).stat(FILE) is not None


def test_a_length_needs_the_sync_of_its_file() -> None:
    disk = fresh()
    file = disk.create(FILE, PAGE, reserve=True)
    disk.sync_directory(HOME)
    sizes = {(disk.power_cut(Random(seed)).stat(FILE) or (0,))[0] for seed in range(60)}
    assert sizes == {0, PAGE}
    file.sync()
    assert disk.power_cut(loss=LOSE_ALL).stat(FILE)[0] == PAGE  # type: ignore[index]


def test_unsynced_names_come_and_go_independently() -> None:
    disk = settled()
    disk.unlink(FILE)
    disk.create(HOME / "a", 0, reserve=False)
    disk.create(HOME / "b", 0, reserve=False)
    seen = set()
    for seed in range(200):
        after = disk.power_cut(Random(seed), Loss(0.5, 0.5, 0.0, False))
        seen.add(tuple(entry.name for entry in after.list_directory(HOME)))
    assert len(seen) == 8


def test_a_rename_is_old_or_new() -> None:
    disk = settled(8)
    write_atomically(disk, FILE, b"old")
    for crash_at in range(1, 12):
        before = disk.copy()
        before.crash_at = crash_at
        try:
            write_atomically(before, FILE, b"newer")
        except SimCrash:
            pass
        else:
            assert read_whole(before.power_cut(loss=LOSE_ALL), FILE) == b"newer"
        for seed in range(20):
            assert read_whole(before.power_cut(Random(seed)), FILE) in (b"old", b"newer")


def test_a_directory_made_is_durable_and_its_siblings_are_not() -> None:
    disk = fresh()
    disk.create(HOME / "loose", 0, reserve=False)
    disk.make_directory(HOME / "a" / "b")
    after = disk.power_cut(loss=LOSE_ALL)
    assert [entry.name for entry in after.list_directory(HOME)] == ["a"]
    assert after.stat(HOME / "a" / "b") is not None


def test_a_directory_made_without_that_is_durable_once_its_parent_is_synced() -> None:
    disk = fresh()
    disk.make_directory(HOME / "a" / "b", durable=False)
    disk.create(HOME / "a" / "b" / "c", 0, reserve=False)
    assert disk.power_cut(loss=LOSE_ALL).list_directory(HOME) == []
    disk.sync_directory(HOME)
    assert disk.power_cut(loss=LOSE_ALL).list_directory(HOME / "a") == []
    disk.sync_directory(HOME / "a")
    disk.sync_directory(HOME / "a" / "b")
    after = disk.power_cut(loss=LOSE_ALL)
    assert [entry.name for entry in after.list_directory(HOME / "a" / "b")] == ["c"]


def test_a_crash_stops_every_later_operation_and_keeps_the_moment() -> None:
    disk = settled()
    file = disk.open(FILE, writable=True)
    region = file.map(writable=True)
    disk.crash_at = disk.operations + 2
    file.pwrite(b"one", 0)
    with pytest.raises(SimCrash):
        file.sync()
    region.view[0:3] = b"two"
    with pytest.raises(SimCrash):
        file.pread(1, 0)
    assert (read_whole(disk.copy(), FILE) or b"")[:3] == b"one"
    disk.revive()
    assert file.pread(3, 0) == b"two"


def test_a_killed_write_leaves_a_prefix_of_whole_pages() -> None:
    sizes = set()
    for seed in range(60):
        disk = settled()
        disk.random = Random(seed)
        file = disk.open(FILE, writable=True)
        disk.crash_at = disk.operations + 1
        with pytest.raises(SimCrash):
            file.pwrite(b"x" * 2 * PAGE, 100)
        sizes.add((read_whole(disk.copy(), FILE) or b"").count(b"x"))
    assert sizes == {0, PAGE - 100, 2 * PAGE - 100}


def test_a_killed_creation_may_leave_an_empty_file() -> None:
    seen = set()
    for seed in range(20):
        disk = fresh()
        disk.random = Random(seed)
        disk.crash_at = disk.operations + 1
        with pytest.raises(SimCrash):
            disk.create(FILE, PAGE, reserve=True)
        stat = disk.copy().stat(FILE)
        seen.add(stat.size if stat else None)
    assert seen == {None, 0}


def test_after_a_failed_sync_the_next_one_succeeds_without_the_pages() -> None:
    disk = settled()
    file = disk.open(FILE, writable=True)
    file.pwrite(b"lost", 0)
    disk.failing_sync = lambda path: path == FILE
    with pytest.raises(OSError, match="input/output"):
        file.sync()
    disk.failing_sync = lambda path: False
    file.sync()
    assert file.pread(4, 0) == b"lost"
    assert disk.durable_bytes(FILE)[:4] == bytes(4)
    file.pwrite(b"lost", 0)
    file.sync()
    assert disk.durable_bytes(FILE)[:4] == b"lost"


def test_a_full_disk_refuses_and_changes_nothing() -> None:
    disk = fresh(capacity_bytes=4 * PAGE)
    file = disk.create(FILE, 3 * PAGE, reserve=True)
    assert disk.free_bytes(HOME) == PAGE
    assert disk.space(HOME) == (3 * PAGE, PAGE)
    with pytest.raises(DiskFull):
        disk.create(HOME / "big", 2 * PAGE, reserve=True)
    assert disk.stat(HOME / "big") is None
    sparse = disk.create(HOME / "sparse", 2 * PAGE, reserve=False)
    sparse.pwrite(b"x", 0)
    with pytest.raises(DiskFull):
        sparse.pwrite(b"x", PAGE)
    with pytest.raises(DiskFull):
        sparse.reserve(0, 2 * PAGE)
    assert sparse.pread(2, PAGE - 1) == bytes(2)
    file.close()
    disk.unlink(FILE)
    sparse.reserve(0, 2 * PAGE)
    assert disk.free_bytes(HOME) == 2 * PAGE


def test_a_store_without_blocks_under_it_is_noted() -> None:
    disk = fresh()
    disk.check_reserved = True
    file = disk.create(FILE, 2 * PAGE, reserve=False)
    region = file.map(writable=True)
    file.reserve(0, PAGE)
    region.view[0] = 1
    file.sync()
    assert disk.unreserved_stores == []
    region.view[PAGE] = 1
    file.sync()
    assert disk.unreserved_stores == [f"{FILE} page 1"]


def test_a_seed_gives_the_same_disk_again() -> None:
    def run() -> list[tuple[Path, bytes]]:
        disk = SimDisk(7)
        disk.make_directory(HOME)
        for number in range(10):
            file = disk.create(HOME / f"{number}", 3 * PAGE, reserve=True)
            file.pwrite(bytes([number + 1]) * 2 * PAGE, 50 * number)
            if number % 3 == 0:
                file.sync()
                disk.sync_directory(HOME)
        return list(disk.power_cut().files())

    assert run() == run()
