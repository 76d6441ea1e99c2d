"""A sync of touched files, individually or as a whole: it covers all and hides no error."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.reput.queue_writer import Totals
from services.reput.sync_job import SyncJob, SyncMark, SyncPoint
from shared.files.disk import WholeSync
from tests.support.sim_disk import LOSE_ALL, SimDisk
from tidemark.errors import FlushFailed, OutOfResources, ReadFailed, StoreError

STORE = Path("/store")


def touched(disk: SimDisk, names: list[str]) -> tuple[frozenset[Path], frozenset[Path]]:
    """Create files with one byte each; return them and their directories."""
    files = [STORE / name for name in names]
    for path in files:
        disk.make_directory(path.parent)
        file = disk.create(path, 4096, reserve=True)
        file.pwrite(b"x", 0)
        file.close()
    return frozenset(files), frozenset(path.parent for path in files)


def job_of(
    disk: SimDisk, files: frozenset[Path], directories: frozenset[Path], whole: WholeSync | None
) -> SyncJob:
    mark = SyncMark(SyncPoint(0, Totals(0, 0), 0), resume_number=1)
    return SyncJob(disk, files, directories, mark, whole)


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk(1)
    disk.write_back_chance = 0
    return disk


@pytest.mark.parametrize("files_min", [1, 3, 4, 1000])
def test_everything_is_durable_after_it(disk: SimDisk, files_min: int) -> None:
    disk.whole_sync_files_min = files_min
    files, directories = touched(disk, ["a/1", "a/2", "b/1"])
    disk.trace = []
    job_of(disk, files, directories, disk.whole_sync(STORE)).run()
    after = dict(disk.power_cut(loss=LOSE_ALL).files())
    assert {path for path, content in after.items() if content[:1] == b"x"} == files
    whole = [line for line in disk.trace if "whole_sync" in line]
    assert len(whole) == (1 if files_min <= 3 else 0)
    assert len([line for line in disk.trace if " sync " in line]) == (0 if whole else 3)


def test_a_whole_sync_that_fails_makes_every_file_doubtful(disk: SimDisk) -> None:
    disk.whole_sync_files_min = 1
    files, directories = touched(disk, ["a/1", "a/2", "b/1"])
    disk.failing_sync = lambda path: path.name == "2"
    with pytest.raises(FlushFailed, match=r"syncfs of .*/store/a/1 and 2 others failed") as caught:
        job_of(disk, files, directories, disk.whole_sync(STORE)).run()
    assert caught.value.paths == sorted(files)


def test_one_by_one_every_file_that_fails_is_named(disk: SimDisk) -> None:
    files, directories = touched(disk, ["a/1", "a/2", "b/1"])
    disk.failing_sync = lambda path: path.name == "1"
    with pytest.raises(FlushFailed, match="1 others failed as well") as caught:
        job_of(disk, files, directories, None).run()
    assert caught.value.paths == [STORE / "a/1", STORE / "b/1"]
    assert disk.durable_bytes(STORE / "a/2")[:1] == b"x"


# The error of the open was once raised first, and the next sync of a/1 found its pages clean: the
# mark moved over units that were never on disk.
@pytest.mark.parametrize("error", [OutOfResources("none left"), ReadFailed("no"), OSError(5, "no")])
@pytest.mark.parametrize("unopened", ["a/2", "b/1"])
def test_a_file_that_cannot_be_opened_hides_no_failed_sync(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch, error: StoreError | OSError, unopened: str
) -> None:
    files, directories = touched(disk, ["a/1", "a/2", "b/1", "c/3"])
    failing = {STORE / "a/1", STORE / "c/3"}
    disk.failing_sync = lambda path: path in failing
    real = disk.open

    def opened(path: Path, *, writable: bool) -> object:
        if path == STORE / unopened:
            raise error
        return real(path, writable=writable)

    monkeypatch.setattr(disk, "open", opened)
    with pytest.raises(FlushFailed, match="1 others failed as well") as caught:
        job_of(disk, files, directories, None).run()
    assert caught.value.paths == sorted(failing)
    # Without a failed sync, the error of the open is raised after all other files were tried.
    other, directories = touched(disk, ["d/1", "e/1"])
    with pytest.raises(type(error)) as why:
        job_of(disk, other | {STORE / unopened}, directories, None).run()
    assert why.value is error
    assert {disk.durable_bytes(path)[:1] for path in other} == {b"x"}


def test_files_on_another_file_system_are_synced_one_by_one(disk: SimDisk) -> None:
    class Other:
        """A file system that contains one directory, with a sync without effect."""

        files_min = 1
        runs = 0

        def covers(self, directory: Path) -> bool:
            return directory.name == "a"

        def run(self) -> None:
            self.runs += 1

        def close(self) -> None:
            raise AssertionError("whoever made it closes it")

    whole = Other()
    files, directories = touched(disk, ["a/1", "b/1"])
    job_of(disk, files, directories, whole).run()
    assert whole.runs == 1
    assert list(dict(disk.power_cut(loss=LOSE_ALL).files())) == [STORE / "b/1"]
