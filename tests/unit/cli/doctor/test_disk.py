"""The disk: its kind by the mount table, free space, flush times; unknown values are reported."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tidemark.cli.doctor import disk
from tidemark.cli.doctor.findings import Level

MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:25 / /srv rw - xfs /dev/vdb rw
31 30 0:26 / /srv/far rw - nfs4 nas:/x rw
32 22 0:27 / /run rw - tmpfs tmpfs rw
33 22 0:28 / /with\\040blank rw - fuse.sshfs host: rw
34 22 0:29 / /odd rw - weirdfs x rw
35 22 0:30 / /srv/near rw - xfs /dev/vdc rw
36 22 0:31 / /srv/near rw - nfs nas:/y rw
"""


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text(MOUNTS)
    return path


@pytest.mark.parametrize(
    ("place", "level", "value"),
    [
        ("/var/lib/tidemark", Level.OK, "ext4"),
        ("/srv/data", Level.OK, "xfs"),
        ("/srv/far/data", Level.ERROR, "nfs4"),
        ("/srv/farther", Level.OK, "xfs"),  # the name goes on: another directory
        ("/run/x", Level.WARNING, "tmpfs"),
        ("/with blank/x", Level.ERROR, "fuse.sshfs"),
        ("/odd", Level.UNKNOWN, None),
        ("/srv/near", Level.ERROR, "nfs"),  # mounted over another one
    ],
)
def test_the_kind_is_that_of_the_longest_mount_point(
    mounts: Path, place: str, level: Level, value: str | None
) -> None:
    found = disk.kind(Path(place), mounts=mounts)
    assert (found.level, found.value) == (level, value)
    assert bool(found.code) == (level is not Level.OK)


def test_room_is_compared_with_the_percentage_at_which_sends_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts: dict[str, Any] = {
        "f_frsize": 4096, "f_blocks": 1000, "f_bfree": 90, "f_bavail": 80,
        "f_files": 100, "f_favail": 50,
    }  # fmt: skip
    monkeypatch.setattr(os, "statvfs", lambda _: type("Facts", (), facts)())
    used, room, inodes = disk.space(tmp_path, 90, 4096)
    assert (used.level, used.value, used.limit, used.unit) == (Level.ERROR, 92, 90, "percent")
    assert room.level is Level.OK
    assert inodes.level is Level.OK
    # A tenth of what is free is kept for root: sends are refused by what others may ever take.
    facts |= {"f_bfree": 900, "f_bavail": 11}
    assert disk.space(tmp_path, 90, 4096)[0].value == 91
    facts |= {"f_bavail": 12}
    assert disk.space(tmp_path, 90, 4096)[0].level is Level.OK
    facts |= {"f_bfree": 200, "f_bavail": 200, "f_favail": 0}
    used, room, inodes = disk.space(tmp_path, 90, 1 << 20)
    assert used.level is Level.OK
    assert (room.level, room.value, room.limit) == (Level.WARNING, 200 * 4096, 3 << 20)
    assert (inodes.level, inodes.value) == (Level.ERROR, 0)


def slow(monkeypatch: pytest.MonkeyPatch, ms: float) -> None:
    """Every flush takes this long by the clock; no test waits for it."""
    now = [0.0]

    def flushed(_: int) -> None:
        now[0] += ms / 1000

    monkeypatch.setattr(os, "fdatasync", flushed)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])


@pytest.mark.parametrize(
    ("ms", "level"), [(0.3, Level.OK), (25, Level.WARNING), (300, Level.ERROR)]
)
def test_flushes_are_compared_with_usual_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ms: float, level: Level
) -> None:
    slow(monkeypatch, ms)
    found = disk.flush(tmp_path)
    assert found.level is level
    assert found.value == pytest.approx(ms, abs=0.01)
    assert found.unit == "ms"
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_cannot_be_written_is_an_error_and_one_without_such_files_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(number: int) -> None:
        def opened(*_: object, **__: object) -> int:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "open", opened)

    refuse(errno.EROFS)
    for found in (disk.flush(tmp_path), disk.allocate(tmp_path)):
        assert (found.level, found.code) == (Level.ERROR, "doctor-not-writable")
    refuse(errno.EOPNOTSUPP)
    for found in (disk.flush(tmp_path), disk.allocate(tmp_path)):
        assert found.level is Level.UNKNOWN


def test_free_space_that_is_not_usable_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert disk.allocate(tmp_path).level in (Level.OK, Level.UNKNOWN)
    monkeypatch.setattr(os, "posix_fallocate", lambda *_: None)
    found = disk.allocate(tmp_path)
    assert (found.level, found.value) == (Level.WARNING, 0)


def test_a_store_over_two_file_systems_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "index").mkdir()
    assert disk.together(tmp_path).level is Level.OK
    stat = Path.stat

    def elsewhere(path: Path, **more: Any) -> Any:
        facts = stat(path, **more)
        if path.name != "index":
            return facts
        return os.stat_result((facts.st_mode, facts.st_ino, facts.st_dev + 1, *facts[3:10]))

    monkeypatch.setattr(Path, "stat", elsewhere)
    found = disk.together(tmp_path)
    assert (found.level, found.value, found.limit) == (Level.WARNING, 2, 1)


def test_a_store_that_does_not_exist_yet_is_checked_at_its_future_place(tmp_path: Path) -> None:
    checks = disk.checks(tmp_path / "not" / "yet", None)
    (kind,) = next(check for check in checks if check.name == "disk.kind").work()
    assert kind.subject == str(tmp_path)
    (together,) = next(check for check in checks if check.name == "disk.together").work()
    assert together.level is Level.UNKNOWN
