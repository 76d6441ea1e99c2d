from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shared.files import os_disk
from shared.files.disk import read_whole, write_atomically
from shared.files.os_disk import OsDisk
from tidemark.errors import DiskFull, OutOfResources, ReadFailed, ReadOnlyDisk, StrayFile

DISK = OsDisk()

POSIX_LOCK = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR)
try:
    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int(sys.argv[2]))
except OSError:
    print("refused", flush=True)
else:
    print("taken", flush=True)
sys.stdin.read()
"""


def posix_locker(path: Path, byte: int) -> tuple[subprocess.Popen[str], str]:
    """A process that takes the byte as a RocketMQ broker does, and what it got."""
    process = subprocess.Popen(
        [sys.executable, "-c", POSIX_LOCK, str(path), str(byte)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    process.communicate(timeout=30)


def failing(error_number: int) -> object:
    def fail(*_args: object, **_kwargs: object) -> int:
        raise OSError(error_number, os.strerror(error_number))

    return fail


class TestFiles:
    def test_a_created_file_is_zero_filled_and_has_its_length_at_once(self, tmp_path: Path) -> None:
        file = DISK.create(tmp_path / "a", 10_000, reserve=False)
        assert file.size == 10_000
        assert file.pread(10_000, 0) == bytes(10_000)
        assert (facts := DISK.stat(tmp_path / "a")) is not None
        assert (facts.size, facts.allocated) == (10_000, 0)
        file.close()

    def test_a_reserved_file_has_all_its_blocks(self, tmp_path: Path) -> None:
        DISK.create(tmp_path / "a", 100_000, reserve=True).close()
        assert (facts := DISK.stat(tmp_path / "a")) is not None
        assert facts.allocated >= 100_000

    def test_an_existing_file_is_not_made_again(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"old")
        with pytest.raises(FileExistsError):
            DISK.create(tmp_path / "a", 10, reserve=True)
        assert (tmp_path / "a").read_bytes() == b"old"

    def test_without_nameless_files_creation_works_and_leaves_nothing_on_failure(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(OsDisk, "_open_nameless", staticmethod(lambda _path: None))
        DISK.create(tmp_path / "a", 100, reserve=True).close()
        monkeypatch.setattr(os, "posix_fallocate", failing(errno.ENOSPC))
        with pytest.raises(DiskFull):
            DISK.create(tmp_path / "b", 100, reserve=True)
        assert [entry.name for entry in DISK.list_directory(tmp_path)] == ["a"]

    def test_a_full_disk_is_named_with_path_and_numbers_and_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "posix_fallocate", failing(errno.ENOSPC))
        seen = os.statvfs(tmp_path)  # others write on the same file system: it must not move
        monkeypatch.setattr(os, "statvfs", lambda path: seen)
        with pytest.raises(DiskFull) as full:
            DISK.create(tmp_path / "a", 4096, reserve=True)
        assert full.value.path == tmp_path / "a"
        assert full.value.needed_bytes == 4096
        assert full.value.free_bytes == seen.f_bavail * seen.f_frsize
        assert "4096 bytes" in str(full.value)
        assert "Free space" in full.value.advice
        assert list(tmp_path.iterdir()) == []

    def test_more_than_is_free_is_refused_before_anything_is_taken(self, tmp_path: Path) -> None:
        with pytest.raises(DiskFull):
            DISK.create(tmp_path / "a", 1 << 60, reserve=True)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
    def test_a_read_only_disk_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        (tmp_path / "a").write_bytes(b"x")
        monkeypatch.setattr(os, "open", failing(number))
        with pytest.raises(ReadOnlyDisk, match=f"cannot write {tmp_path / 'a'}"):
            DISK.open(tmp_path / "a", writable=True)
        with pytest.raises(ReadOnlyDisk, match="Remount"):
            DISK.create(tmp_path / "b", 1, reserve=False)

    def test_a_directory_where_a_file_belongs_is_named_and_the_other_way_round(
        self, tmp_path: Path
    ) -> None:
        # "[Errno 21] Is a directory", without a name, was the only output of a node before it
        # ended.
        (tmp_path / "directory").mkdir()
        (tmp_path / "file").touch()
        disk, directory = OsDisk(), tmp_path / "directory"
        with pytest.raises(StrayFile, match=r"/directory is a directory where a file belongs"):
            disk.open(directory, writable=True)
        with pytest.raises(StrayFile, match=r"/directory is a directory where a file belongs"):
            read_whole(disk, directory)
        with pytest.raises(StrayFile, match=r"/directory is a directory where a file belongs"):
            disk.lock(directory, byte=0)
        with pytest.raises(StrayFile, match=r"/file is a file where a directory belongs"):
            disk.list_directory(tmp_path / "file")
        with pytest.raises(StrayFile, match=r"/file is a file where a directory belongs"):
            disk.create(tmp_path / "file" / "below", 1, reserve=False)

    def test_opening_a_missing_file_names_it(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            DISK.open(tmp_path / "a", writable=True)

    def test_short_writes_are_continued(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = DISK.create(tmp_path / "a", 100, reserve=False)
        whole = os.pwrite
        monkeypatch.setattr(os, "pwrite", lambda d, data, at: whole(d, bytes(data)[:7], at))
        file.pwrite(bytearray(range(50)), 10)
        assert file.pread(60, 0) == bytes(10) + bytes(range(50))
        file.close()

    def test_reserving_behind_the_end_extends_and_changes_no_byte(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"abc")
        file = DISK.open(tmp_path / "a", writable=True)
        file.reserve(0, 8192)
        assert file.size == 8192
        assert file.pread(10, 0) == b"abc" + bytes(7)
        file.reserve(0, 0)
        file.close()
        file.close()

    def test_write_atomically_replaces_and_overcomes_a_leftover(self, tmp_path: Path) -> None:
        (tmp_path / "a.tmp").write_bytes(b"half of something longer")
        write_atomically(DISK, tmp_path / "a", b"one")
        write_atomically(DISK, tmp_path / "a", b"")
        assert read_whole(DISK, tmp_path / "a") == b""
        assert [path.name for path in tmp_path.iterdir()] == ["a"]


class TestMappings:
    def test_written_bytes_are_visible_through_every_mapping_and_back(self, tmp_path: Path) -> None:
        file = DISK.create(tmp_path / "a", 8192, reserve=True)
        one, other = file.map(writable=True), file.map(writable=False)
        file.pwrite(b"hello", 4000)
        assert bytes(other.view[4000:4005]) == b"hello"
        one.view[5000:5003] = b"abc"
        assert file.pread(3, 5000) == b"abc"
        assert bytes(other.view[5000:5003]) == b"abc"
        assert other.view.readonly
        one.close()
        other.close()
        file.close()

    def test_a_region_closed_while_a_view_is_borrowed_lives_as_long_as_the_view(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "a").write_bytes(b"abcdef")
        file = DISK.open(tmp_path / "a", writable=False)
        region = file.map(writable=False)
        slice_, nested = region.view[1:3], memoryview(region.view)[3:5]
        region.close()
        region.close()
        file.close()
        assert bytes(slice_) == b"bc"
        assert bytes(nested) == b"de"

        def mapped() -> bool:
            return str(tmp_path / "a") in Path("/proc/self/maps").read_text()

        assert mapped()
        del slice_, nested, region
        assert not mapped()

    def test_an_empty_file_maps_to_an_empty_view(self, tmp_path: Path) -> None:
        file = DISK.create(tmp_path / "a", 0, reserve=True)
        region = file.map(writable=True)
        assert len(region.view) == 0
        region.close()
        file.close()


class Closed:
    """A directory entry whose target this process may not look at."""

    def __init__(self, entry: os.DirEntry[str]) -> None:
        self.name = entry.name

    def is_dir(self) -> bool:
        raise PermissionError(13, "Permission denied")


class TestDirectories:
    def test_parents_are_made_and_an_existing_one_is_fine(self, tmp_path: Path) -> None:
        DISK.make_directory(tmp_path / "a" / "b" / "c")
        DISK.make_directory(tmp_path / "a" / "b" / "c")
        assert (tmp_path / "a" / "b" / "c").is_dir()
        DISK.remove_directory(tmp_path / "a" / "b" / "c")
        assert DISK.list_directory(tmp_path / "a" / "b") == []

    def test_names_come_sorted_and_a_missing_directory_is_empty(self, tmp_path: Path) -> None:
        for name in ("2", "1"):
            (tmp_path / name).touch()
        (tmp_path / "0").mkdir()
        found = DISK.list_directory(tmp_path)
        assert [(entry.name, entry.is_directory) for entry in found] == [
            ("0", True),
            ("1", False),
            ("2", False),
        ]
        assert DISK.list_directory(tmp_path / "none") == []
        assert DISK.stat(tmp_path / "none") is None
        assert DISK.stat(tmp_path / "1" / "below") is None

    def test_a_link_that_may_not_be_followed_is_no_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The sign of a node in a container leads to a descriptor of process 1: read from outside,
        # its log could not be listed.
        (tmp_path / "a").mkdir()
        (tmp_path / "sign").symlink_to("/proc/1/fd/23")
        scandir = os.scandir

        def guarded(path: Path) -> Any:
            names = [Closed(name) if name.is_symlink() else name for name in scandir(path)]
            return contextlib.nullcontext(names)

        monkeypatch.setattr(os, "scandir", guarded)
        found = DISK.list_directory(tmp_path)
        assert [tuple(entry) for entry in found] == [("a", True), ("sign", False)]

    def test_renaming_unlinking_and_syncing(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"1")
        DISK.rename(tmp_path / "a", tmp_path / "b")
        DISK.sync_directory(tmp_path)
        DISK.unlink(tmp_path / "b")
        with pytest.raises(FileNotFoundError):
            DISK.unlink(tmp_path / "b")

    def test_space_is_what_an_ordinary_user_sees(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        facts = os.statvfs(tmp_path)  # others write on the same file system: it must not move
        statvfs = os.statvfs

        def frozen(path: Path) -> os.statvfs_result:
            statvfs(path)  # raises where there is nothing
            return facts

        monkeypatch.setattr(os, "statvfs", frozen)
        space = DISK.space(tmp_path / "none" / "below")
        assert space.available == facts.f_bavail * facts.f_frsize
        assert space.used == (facts.f_blocks - facts.f_bfree) * facts.f_frsize


class TestLocks:
    def test_a_byte_is_held_once_also_inside_one_process(self, tmp_path: Path) -> None:
        path = tmp_path / "lock"
        held = DISK.lock(path, byte=0)
        assert held is not None
        assert DISK.lock(path, byte=0) is None
        other = DISK.lock(path, byte=1)
        assert other is not None
        held.release()
        held.release()
        again = DISK.lock(path, byte=0)
        assert again is not None
        again.release()
        other.release()

    def test_a_posix_locker_is_excluded_even_after_another_descriptor_closed(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "lock"
        held = DISK.lock(path, byte=0)
        assert held is not None
        DISK.open(path, writable=True).close()  # would drop a POSIX lock of this process
        process, got = posix_locker(path, 0)
        end(process)
        assert got == "refused"
        process, got = posix_locker(path, 1)
        end(process)
        assert got == "taken"
        held.release()
        process, got = posix_locker(path, 0)
        end(process)
        assert got == "taken"

    def test_a_posix_locker_excludes_us(self, tmp_path: Path) -> None:
        path = tmp_path / "lock"
        path.touch()
        process, got = posix_locker(path, 0)
        assert got == "taken"
        assert DISK.lock(path, byte=0) is None
        end(process)
        held = DISK.lock(path, byte=0)
        assert held is not None
        held.release()

    def test_the_struct_is_as_large_as_the_kernels(self) -> None:
        assert os_disk.FLOCK.size == 32

    def test_a_lock_that_fails_otherwise_names_the_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fcntl, "fcntl", failing(errno.ENOLCK))
        with pytest.raises(OSError, match="No locks available"):
            DISK.lock(tmp_path / "lock", byte=0)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_limit_of_the_system_is_named_wherever_a_file_is_opened_or_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path = tmp_path / "file"
    opened = DISK.create(path, 4096, reserve=False)
    with monkeypatch.context() as patched:
        patched.setattr(mmap, "mmap", failing(number))
        with pytest.raises(OutOfResources, match=f"cannot open or map {path}"):
            opened.map(writable=False)
    opened.close()
    monkeypatch.setattr(os, "open", failing(number))
    for attempt in (
        lambda: DISK.open(path, writable=False),
        lambda: DISK.open(path, writable=True),
        lambda: DISK.create(tmp_path / "other", 4096, reserve=False),
        lambda: DISK.sync_directory(tmp_path),
        lambda: DISK.lock(path, byte=0),
    ):
        with pytest.raises(OutOfResources):
            attempt()


def test_bytes_that_the_disk_cannot_read_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(DISK.create(tmp_path / "file", 4096, reserve=False)) as opened:
        monkeypatch.setattr(os, "pread", failing(errno.EIO))
        with pytest.raises(ReadFailed, match=r"cannot read .*/file: Input/output error"):
            opened.pread(10, 0)


@pytest.mark.parametrize("offset", [0, 1, 4096, 5000, 8999, 9000, 9001, 1 << 20])
def test_borrowed_bytes_are_those_of_pread_and_outlive_the_file(
    tmp_path: Path, offset: int
) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(9000))
    with contextlib.closing(DISK.open(path, writable=False)) as opened:
        borrowed = {size: opened.borrow(size, offset) for size in (0, 1, 3000, 9000)}
        copied = {size: opened.pread(size, offset) for size in borrowed}
        assert isinstance(borrowed[1], memoryview) == (offset < 9000)
    path.unlink()
    assert borrowed == copied


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EFAULT])
def test_bytes_that_cannot_be_borrowed_are_copied_or_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    class Unmapped(mmap.mmap):
        def madvise(self, *_arguments: int) -> None:
            raise OSError(number, os.strerror(number))

    path = tmp_path / "file"
    path.write_bytes(b"content")
    monkeypatch.setattr(mmap, "mmap", Unmapped)
    with contextlib.closing(DISK.open(path, writable=False)) as opened:
        assert opened.borrow(7, 3) == b"tent"
        monkeypatch.setattr(os, "pread", failing(errno.EIO))
        with pytest.raises(ReadFailed):
            opened.borrow(7, 3)


def test_a_file_that_was_cut_since_it_was_opened_is_not_borrowed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(9000))
    with contextlib.closing(DISK.open(path, writable=False)) as opened:
        os.truncate(path, 10)
        assert opened.borrow(9000, 0) == bytes(10)
