"""syncfs: trusted where possible, and of one file system only."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shared.files import os_whole_sync
from shared.files.os_whole_sync import FILES_MIN, OsWholeSync, reports_failed_writes


def mounts_of(directory: Path, *kinds: str) -> Path:
    """A mountinfo with this kind for the file system of directory."""
    device = directory.stat().st_dev
    path = directory / "mountinfo"
    path.write_text(
        "22 1 0:20 / /proc rw shared:5 - proc proc rw\n"
        + "".join(
            f"30 1 {os.major(device)}:{os.minor(device)} / /m{n} rw - {kind} /dev/vda rw\n"
            for n, kind in enumerate(kinds)
        )
    )
    return path


@pytest.mark.parametrize(
    ("release", "kinds", "believed"),
    [
        ("6.1.0-18-amd64", ["ext4"], True),
        ("5.17.0", ["ext4", "ext4"], True),
        ("5.16.20", ["ext4"], False),
        ("4.19.0", ["ext4"], False),
        ("6.1.0", ["xfs"], False),
        ("6.1.0", ["overlay"], False),
        ("6.1.0", [], False),
        ("unknown", ["ext4"], False),
    ],
)
def test_it_is_trusted_where_failed_writes_are_reported(
    tmp_path: Path, release: str, kinds: list[str], believed: bool
) -> None:
    mounts = mounts_of(tmp_path, *kinds)
    assert reports_failed_writes(tmp_path, release=release, mounts_path=mounts) is believed


def test_without_a_mount_table_it_is_not_trusted(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    assert not reports_failed_writes(tmp_path, release="6.1.0", mounts_path=nowhere)
    assert not reports_failed_writes(nowhere, release="6.1.0")


def test_it_runs_and_covers_what_lies_on_the_file_system(tmp_path: Path) -> None:
    whole = OsWholeSync(tmp_path)
    (tmp_path / "below").mkdir()
    assert whole.covers(tmp_path / "below")
    assert not whole.covers(Path("/proc"))
    assert not whole.covers(tmp_path / "gone")
    (tmp_path / "linked").symlink_to("/proc")
    assert not whole.covers(tmp_path / "linked")
    whole.run()
    whole.close()
    whole.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        whole.run()


def test_errors_of_the_kernel_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        @staticmethod
        def syncfs(descriptor: int) -> int:
            return -1

    whole = OsWholeSync(tmp_path)
    monkeypatch.setattr(os_whole_sync, "_LIBC", Failing)
    monkeypatch.setattr("ctypes.get_errno", lambda: 5)
    with pytest.raises(OSError, match="Input/output error"):
        whole.run()
    whole.close()


def test_a_slow_run_is_not_repeated_for_a_minute_unless_each_file_would_take_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another program writes gigabytes to the file system: dispatch would wait for their sync.
    now = 1000.0
    takes_s = 0.5

    class Slow:
        @staticmethod
        def syncfs(descriptor: int) -> int:
            nonlocal now
            now += takes_s
            return 0

    monkeypatch.setattr(os_whole_sync, "_LIBC", Slow)
    monkeypatch.setattr("time.monotonic", lambda: now)
    whole = OsWholeSync(tmp_path)
    whole.run()
    assert whole.files_min == FILES_MIN
    takes_s = 8.0
    whole.run()
    assert whole.files_min == 100_000
    now += 59.0
    assert whole.files_min == 100_000
    now += 1.0
    assert whole.files_min == FILES_MIN
    whole.run()
    takes_s = 0.5
    whole.run()
    assert whole.files_min == FILES_MIN
    whole.close()
