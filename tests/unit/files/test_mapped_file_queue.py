from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from shared.files.mapped_file_queue import MappedFileQueue, Preallocation, zero_range
from shared.files.os_disk import OsDisk, OsFile
from shared.files.region_cache import RegionCache
from tidemark.errors import DiskFull, FileNotReady, StrayFile, WrongFileSize

SIZE = 4096 * 4
DISK = OsDisk()


def queue(directory: Path, *, ahead: int = 0, mapped_max: int = 64) -> MappedFileQueue:
    made = MappedFileQueue(
        DISK,
        directory,
        SIZE,
        mapped_max=mapped_max,
        writable=True,
        preallocation=Preallocation(ahead=ahead, reserve=True),
    )
    made.load()
    return made


def filled(directory: Path, *starts: int) -> MappedFileQueue:
    """A queue whose files hold their number in every byte."""
    for start in starts:
        path = directory / f"{start:020}"
        path.write_bytes(bytes([start // SIZE + 1]) * SIZE)
    return queue(directory)


def names(directory: Path) -> list[int]:
    return [int(path.name) for path in sorted(directory.iterdir())]


class TestLoading:
    def test_a_missing_or_empty_directory_is_an_empty_queue(self, tmp_path: Path) -> None:
        for directory in (tmp_path, tmp_path / "none"):
            empty = queue(directory)
            assert empty.starts == []
            assert (empty.min_offset, empty.last(), empty.delete_last()) == (None, None, None)

    def test_existing_files_count_as_written(self, tmp_path: Path) -> None:
        found = filled(tmp_path, SIZE, 2 * SIZE)
        assert found.starts == [SIZE, 2 * SIZE]
        assert (found.min_offset, found.wrote_offset) == (SIZE, 3 * SIZE)

    def test_a_directory_inside_is_ignored(self, tmp_path: Path) -> None:
        (tmp_path / "sub").mkdir()
        assert filled(tmp_path, 0).starts == [0]

    @pytest.mark.parametrize(
        "name", [".DS_Store", "1", "0000000000000000000x", f"{SIZE // 2:020}", f"{0:021}"]
    )
    def test_a_stray_file_is_refused_by_name_with_the_remedy(
        self, tmp_path: Path, name: str
    ) -> None:
        (tmp_path / name).write_bytes(bytes(SIZE))
        with pytest.raises(StrayFile, match="Move the file out") as stray:
            queue(tmp_path)
        assert stray.value.path == tmp_path / name
        assert name in str(stray.value)

    @pytest.mark.parametrize("size", [1, SIZE - 1, SIZE + 1])
    def test_a_file_of_another_size_is_refused_by_name_with_both_sizes(
        self, tmp_path: Path, size: int
    ) -> None:
        (tmp_path / f"{0:020}").write_bytes(bytes(size))
        (tmp_path / f"{SIZE:020}").write_bytes(bytes(SIZE))
        with pytest.raises(WrongFileSize, match=f"{size} bytes, every file .* has {SIZE}") as wrong:
            queue(tmp_path)
        assert wrong.value.path == tmp_path / f"{0:020}"

    def test_an_empty_last_file_is_removed_and_an_empty_other_one_refused(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / f"{0:020}").write_bytes(bytes(SIZE))
        (tmp_path / f"{SIZE:020}").touch()
        reader = MappedFileQueue(DISK, tmp_path, SIZE)
        reader.load()
        assert reader.starts == [0]
        assert names(tmp_path) == [0, SIZE]
        assert queue(tmp_path).starts == [0]
        assert names(tmp_path) == [0]
        (tmp_path / f"{0:020}").write_bytes(b"")
        (tmp_path / f"{SIZE:020}").write_bytes(bytes(SIZE))
        with pytest.raises(WrongFileSize):
            queue(tmp_path)


class TestFinding:
    def test_a_file_that_another_process_makes_or_removes_is_noticed(self, tmp_path: Path) -> None:
        reader = MappedFileQueue(DISK, tmp_path, SIZE)
        assert reader.view(0, 10) is None
        filled(tmp_path, 0, SIZE)
        reader.refresh()
        assert reader.starts == [0, SIZE]
        (tmp_path / f"{0:020}").unlink()
        reader.refresh()
        assert reader.min_offset == SIZE


class TestBytes:
    def test_a_view_lies_in_one_file(self, tmp_path: Path) -> None:
        found = filled(tmp_path, SIZE, 2 * SIZE)
        assert bytes(found.view(2 * SIZE - 2, 2) or b"") == b"\x02\x02"
        assert found.view(2 * SIZE - 2, 3) is None
        assert found.view(0, 1) is None
        assert found.view(-1, 1) is None
        assert found.view(SIZE, -1) is None
        assert len(found.region(SIZE)) == SIZE
        with pytest.raises(FileNotFoundError):
            found.region(0)

    def test_a_file_of_the_wrong_size_is_not_mapped(self, tmp_path: Path) -> None:
        found = filled(tmp_path, 0)
        os.truncate(tmp_path / f"{0:020}", 10)
        with pytest.raises(WrongFileSize):
            found.region(0)

    def test_files_are_mapped_on_access_up_to_a_bound(self, tmp_path: Path) -> None:
        filled(tmp_path, *range(0, 8 * SIZE, SIZE))
        found = queue(tmp_path, mapped_max=3)

        def mapped() -> int:
            maps = Path("/proc/self/maps").read_text()
            return maps.count(str(tmp_path))

        assert mapped() == 0
        held = found.region(0)
        for start in range(0, 8 * SIZE, SIZE):
            assert found.region(start)[5] == start // SIZE + 1
        assert mapped() == 4  # three, and the one that is held
        assert held[5] == 1
        del held
        assert mapped() == 3
        found.close()
        assert mapped() == 0
        assert found.region(SIZE)[0] == 2  # and again on demand

    def test_several_queues_share_one_bound(self, tmp_path: Path) -> None:
        cache = RegionCache(DISK, 2)
        for number in range(4):
            directory = tmp_path / str(number)
            directory.mkdir()
            (directory / f"{0:020}").write_bytes(bytes([number]) * SIZE)
            found = MappedFileQueue(DISK, directory, SIZE, cache=cache)
            assert found.region(0)[0] == number
        assert cache.get((str(tmp_path / "3"), 0)) is not None
        assert cache.get((str(tmp_path / "1"), 0)) is None

    def test_threads_share_a_cache(self, tmp_path: Path) -> None:
        filled(tmp_path, *range(0, 6 * SIZE, SIZE))
        found = queue(tmp_path, mapped_max=2)
        failures: list[BaseException] = []

        def read(seed: int) -> None:
            try:
                for step in range(400):
                    number = (seed * 7 + step * 5) % 6
                    assert found.region(number * SIZE)[9] == number + 1
            except BaseException as failure:
                failures.append(failure)
                raise

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures


class TestCreating:
    def test_the_first_file_starts_at_the_border_below_the_wanted_offset(
        self, tmp_path: Path
    ) -> None:
        made = queue(tmp_path / "new")
        made.wrote_offset = 3 * SIZE + 17
        for start in (3 * SIZE, 4 * SIZE):
            made.prepare_next()
            assert made.roll() == made.last() == start
        assert names(tmp_path / "new") == [3 * SIZE, 4 * SIZE]
        assert made.region(4 * SIZE)[0] == 0

    def test_files_ahead_are_made_with_their_blocks_and_do_not_count_yet(
        self, tmp_path: Path
    ) -> None:
        made = queue(tmp_path, ahead=2)
        assert not made.next_ready
        made.prepare_next()
        made.prepare_next()
        assert names(tmp_path) == [0, SIZE]
        assert all(path.stat().st_blocks * 512 >= SIZE for path in tmp_path.iterdir())
        assert made.starts == []
        assert made.ready_ahead == 2
        assert made.roll() == 0
        made.prepare_next()
        assert names(tmp_path) == [0, SIZE, 2 * SIZE]
        assert made.starts == [0]
        assert made.roll() == SIZE
        assert made.wrote_offset == SIZE
        made.remove_unused()
        assert names(tmp_path) == [0, SIZE]
        with pytest.raises(FileNotReady, match=f"{2 * SIZE:020} is not ready"):
            made.roll()

    def test_a_full_disk_is_reported_and_overcome(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = queue(tmp_path, ahead=2)

        def full(_descriptor: int, _offset: int, _size: int) -> None:
            raise OSError(errno.ENOSPC, "full")

        made.prepare_next()
        made.roll()
        monkeypatch.setattr(os, "posix_fallocate", full)
        made.prepare_next()  # one is ready: the other is not worth an error
        made.roll()
        with pytest.raises(DiskFull):
            made.prepare_next()
        with pytest.raises(DiskFull):
            made.roll()
        assert names(tmp_path) == [0, SIZE]
        monkeypatch.undo()
        made.prepare_next()
        assert made.roll() == 2 * SIZE

    def test_a_foreign_file_of_the_same_name_is_refused(self, tmp_path: Path) -> None:
        made = queue(tmp_path)
        (tmp_path / f"{0:020}").touch()
        with pytest.raises(StrayFile):
            made.prepare_next()

    def test_a_thread_makes_them_in_the_background(self, tmp_path: Path) -> None:
        ahead = Preallocation(2, reserve=True, background=True)
        made = MappedFileQueue(DISK, tmp_path, SIZE, writable=True, preallocation=ahead)
        made.load()
        for _ in range(5):
            made.ensure_next()
            made.roll()
        assert made.last() == 4 * SIZE
        made.close()
        made.remove_unused()
        assert names(tmp_path) == [start * SIZE for start in range(5)]

    def test_waiting_for_a_file_is_bounded_and_it_can_be_picked_up_later(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ahead = Preallocation(1, background=True)
        made = MappedFileQueue(DISK, tmp_path, SIZE, writable=True, preallocation=ahead)
        made.load()
        gate = threading.Event()
        real = OsDisk.create

        def slow(self: OsDisk, path: Path, size: int, *, reserve: bool) -> OsFile:
            gate.wait()
            return real(self, path, size, reserve=reserve)

        monkeypatch.setattr(OsDisk, "create", slow)
        with pytest.raises(FileNotReady, match=r"within 0\.05 s"):
            made.ensure_next(0.05)
        gate.set()
        made.ensure_next()
        assert made.roll() == 0
        made.close()

    def test_the_error_of_the_background_thread_is_raised_to_waiting_callers(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ahead = Preallocation(1, reserve=True, background=True)
        made = MappedFileQueue(DISK, tmp_path, SIZE, writable=True, preallocation=ahead)

        def full(_descriptor: int, _offset: int, _size: int) -> None:
            raise OSError(errno.ENOSPC, "full")

        monkeypatch.setattr(os, "posix_fallocate", full)
        with pytest.raises(DiskFull):
            made.ensure_next()
        monkeypatch.undo()
        made.ensure_next()
        made.close()


class TestCutting:
    @pytest.mark.parametrize(("start", "end"), [(0, 5 << 20), (7, (3 << 20) + 9), (5, 5), (1, 2)])
    def test_zeroing_touches_its_range_only(self, tmp_path: Path, start: int, end: int) -> None:
        (tmp_path / "a").write_bytes(b"\xff" * (5 << 20))
        file = DISK.open(tmp_path / "a", writable=True)
        assert zero_range(file, start, end) == (end > start)
        assert not zero_range(file, start, end)
        raw = file.pread(5 << 20, 0)
        assert raw == b"\xff" * start + bytes(end - start) + b"\xff" * ((5 << 20) - end)
        file.close()

    def test_zeroing_writes_nothing_where_zeros_are(self, tmp_path: Path) -> None:
        file = DISK.create(tmp_path / "a", 10 << 20, reserve=False)
        file.pwrite(b"x", 5 << 20)
        assert zero_range(file, 0, 10 << 20)
        assert (facts := DISK.stat(tmp_path / "a")) is not None
        assert facts.allocated <= 1 << 20
        file.close()


class TestRemoving:
    def test_the_last_one_goes(self, tmp_path: Path) -> None:
        made = filled(tmp_path, 0, SIZE)
        assert made.delete_last() == SIZE
        assert names(tmp_path) == [0]
        assert made.wrote_offset == SIZE
        assert made.delete_last() == 0
        assert made.delete_last() is None

    def test_one_file_by_its_start_if_it_is_the_oldest(self, tmp_path: Path) -> None:
        made = filled(tmp_path, 0, SIZE, 2 * SIZE)
        assert not made.delete_oldest(SIZE)
        assert made.delete_oldest(0)
        assert not made.delete_oldest(0)
        assert made.delete_oldest(SIZE)
        assert not made.delete_oldest(2 * SIZE)
        assert names(tmp_path) == [2 * SIZE]

    def test_a_file_made_ahead_does_not_save_the_last_one_used(self, tmp_path: Path) -> None:
        made = filled(tmp_path, 0, SIZE)
        made.prepare_next()
        assert made.delete_oldest(0)
        assert not made.delete_oldest(SIZE)

    def test_a_removed_file_is_unmapped(self, tmp_path: Path) -> None:
        made = filled(tmp_path, 0, SIZE)
        assert made.region(0)[0] == 1
        made.delete_oldest(0)
        assert str(tmp_path) not in Path("/proc/self/maps").read_text()

    def test_each_removal_is_durable_before_the_next(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = filled(tmp_path, *range(0, 4 * SIZE, SIZE))
        steps: list[str] = []
        real_unlink, real_sync = OsDisk.unlink, OsDisk.sync_directory

        def unlink(self: OsDisk, path: Path) -> None:
            steps.append(path.name[-5:])
            real_unlink(self, path)

        def sync(self: OsDisk, path: Path) -> None:
            steps.append("s")
            real_sync(self, path)

        monkeypatch.setattr(OsDisk, "unlink", unlink)
        monkeypatch.setattr(OsDisk, "sync_directory", sync)
        assert made.delete_oldest(0)
        assert made.delete_last() == 3 * SIZE
        assert steps == ["00000", "s", "49152", "s"]
