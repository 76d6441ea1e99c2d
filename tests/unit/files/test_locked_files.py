"""Which log files are locked in memory, and what happens if that is not allowed."""

from __future__ import annotations

import logging
import resource
from pathlib import Path

import pytest

from shared.files.locked_files import LockedFiles
from shared.files.os_disk import OsDisk
from shared.files.os_page_lock import OsPageLock
from tests.support.sim_disk import SimDisk, SimFile
from tidemark.errors import MemoryLockRefused

SIZE = 8192
ROOT = Path("/log")


def path_of(start: int) -> Path:
    return ROOT / f"{start:020}"


@pytest.fixture
def disk() -> SimDisk:
    made = SimDisk(1)
    made.make_directory(ROOT)
    for start in range(0, 4 * SIZE, SIZE):
        made.create(path_of(start), SIZE, reserve=True).close()
    return made


@pytest.fixture
def locked(disk: SimDisk) -> LockedFiles:
    return LockedFiles(lambda start: disk.open(path_of(start), writable=True))


def test_each_file_is_locked_once_and_unlocked_after_use(
    disk: SimDisk, locked: LockedFiles
) -> None:
    for start in (0, SIZE, SIZE, 2 * SIZE):
        locked.lock(start)
    assert disk.page_locks == [path_of(0), path_of(SIZE), path_of(2 * SIZE)]
    locked.done_below(2 * SIZE)
    assert len(disk.page_locks) == 3
    locked.unlock_done()
    assert locked.starts == [2 * SIZE]
    locked.lock(SIZE)  # a thread that is late
    locked.unlock(2 * SIZE)
    locked.unlock(2 * SIZE)
    assert disk.page_locks == []
    locked.again()
    locked.lock(0)
    assert disk.page_locks == [path_of(0)]


def test_a_file_that_was_filled_while_it_was_read_is_unlocked(
    disk: SimDisk, locked: LockedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock_pages = SimFile.lock_pages

    def slow(file: SimFile) -> object:
        found = lock_pages(file)
        locked.done_below(SIZE)
        return found

    monkeypatch.setattr(SimFile, "lock_pages", slow)
    locked.lock(0)
    assert disk.page_locks == []
    assert locked.starts == []


def test_a_removed_file_is_ignored(locked: LockedFiles) -> None:
    locked.lock(9 * SIZE)
    assert locked.starts == []


def test_a_refusal_is_logged_once_and_tried_again_with_the_next_file(
    disk: SimDisk, locked: LockedFiles, caplog: pytest.LogCaptureFixture
) -> None:
    disk.refuses_page_locks = True
    with caplog.at_level(logging.WARNING):
        locked.lock(0)
        locked.lock(SIZE)
    assert [record.__dict__["event"] for record in caplog.records] == ["memory-lock-refused"]
    assert locked.refused is not None
    disk.refuses_page_locks = False
    locked.lock(2 * SIZE)
    assert locked.starts == [2 * SIZE]
    assert locked.refused is None


def locked_kib() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmLck:"):
            return int(line.split()[1])
    raise AssertionError("no VmLck in /proc/self/status")


def test_the_kernel_counts_the_pages_of_a_real_file(tmp_path: Path) -> None:
    file = OsDisk().create(tmp_path / "f", 16 * 4096, reserve=True)
    before = locked_kib()
    lock = file.lock_pages()
    file.close()
    assert locked_kib() == before + 64
    lock.release()
    lock.release()
    assert locked_kib() == before


def test_a_refused_lock_is_reported_with_the_limit_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_self: OsPageLock, _descriptor: int, _size: int) -> None:
        raise OSError(12, "Cannot allocate memory")

    file = OsDisk().create(tmp_path / "f", 4096, reserve=True)
    monkeypatch.setattr(OsPageLock, "__init__", refuse)
    with pytest.raises(MemoryLockRefused) as refused:
        file.lock_pages()
    file.close()
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    assert refused.value.limit == limit
    for part in ("4096 bytes", "Cannot allocate memory", "used without", "lock_files_memory"):
        assert part in str(refused.value)


def test_a_descriptor_that_cannot_be_mapped_is_an_error_and_no_crash(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        OsPageLock(-1, 4096)
