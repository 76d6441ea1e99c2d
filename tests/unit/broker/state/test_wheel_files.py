"""The files of RocketMQ's timer: withdrawn whole, and written so that a failure leaves none."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path

import pytest

from services.broker.state import wheel_files
from services.broker.state.wheel_files import WheelFiles
from shared.files.os_disk import OsDisk, OsFile
from shared.runtime.clock import SystemClock
from tidemark.errors import DiskFull
from tidemark.formats import timer_check, timer_log
from tidemark.formats.filenames import offset_name
from tidemark.formats.timer_log import Waiting

NOW_MS = 1_795_380_837_000
FILE_SIZE = 4096
PER_FILE = (FILE_SIZE - 16) // 52
LAST = Waiting(0, 1_000_000_000, 100)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    return tmp_path


class StillClock(SystemClock):
    """The time that a stop waits for the files does not run out, however slow the machine is."""

    def monotonic(self) -> float:
        return 0.0


def files(root: Path) -> WheelFiles:
    return WheelFiles(OsDisk(), root, root / "config", StillClock())


def messages(count: int) -> list[Waiting]:
    return [Waiting(NOW_MS + 1000 * (n % 7), 1000 * n, 100) for n in range(count)]


def rocketmqs(root: Path, file_size: int) -> None:
    (root / "timerlog").mkdir()
    for start in (0, file_size, 2 * file_size):
        (root / "timerlog" / offset_name(start)).write_bytes(b"x" * file_size)
    for name in ("timerwheel", "timerwheel.1024"):
        (root / name).write_bytes(b"x" * 100)
    (root / "config" / "timercheck").write_bytes(struct.pack(">7q", *range(1, 8)))


def test_withdrawn_files_leave_the_size_that_rocketmq_is_configured_with(root: Path) -> None:
    files(root).withdraw()
    assert sorted(path.name for path in root.iterdir()) == ["config"], "nothing was there"
    rocketmqs(root, FILE_SIZE)
    files(root).withdraw()
    assert not list(root.glob("timerwheel*"))
    assert not (root / "config" / "timercheck").exists()
    (left,) = (root / "timerlog").iterdir()
    assert left.name == offset_name(0)
    assert left.read_bytes() == bytes(FILE_SIZE)


@pytest.mark.parametrize("cut_to", [0, 100, 4095, 2 * FILE_SIZE - 1])
def test_a_file_that_is_cut_does_not_change_the_size(root: Path, cut_to: int) -> None:
    rocketmqs(root, 2 * FILE_SIZE)
    (root / "timerlog" / offset_name(4 * FILE_SIZE)).write_bytes(b"x" * cut_to)
    files(root).withdraw()
    (left,) = (root / "timerlog").iterdir()
    assert left.stat().st_size == 2 * FILE_SIZE


@pytest.mark.parametrize("count", [0, 1, PER_FILE - 1, PER_FILE, PER_FILE + 1, 50_000])
def test_all_units_are_in_files_of_rocketmqs_size(root: Path, count: int) -> None:
    rocketmqs(root, FILE_SIZE)
    waiting = messages(count)
    last = waiting.pop() if waiting else None
    files(root).write(iter(waiting), last, 60_000, now_ms=NOW_MS, start_ms=NOW_MS)
    found = sorted((root / "timerlog").iterdir())
    number = max(1, -(-count // PER_FILE))  # without a unit the first one stays, and is empty
    assert [path.name for path in found] == [offset_name(n * FILE_SIZE) for n in range(number)]
    log = b"".join(path.read_bytes() for path in found)
    assert len(log) == number * FILE_SIZE
    positions = [n // PER_FILE * FILE_SIZE + n % PER_FILE * 52 for n in range(count)]
    units = [timer_log.decode(log, at) for at in positions]
    assert [unit.physical_offset for unit in units if unit] == [1000 * n for n in range(count)]
    raw = (root / "config" / "timercheck").read_bytes()
    end = positions[-1] + 52 if positions else 0
    assert timer_check.decode(raw) == (NOW_MS, end, 60_000, 60_000)
    assert timer_check.is_untouched(raw)
    assert not (root / "timerwheel").exists()


def test_a_store_that_rocketmq_never_had_gets_a_file_of_its_default(root: Path) -> None:
    files(root).write(iter([]), None, 3, now_ms=NOW_MS, start_ms=NOW_MS)
    assert not (root / "timerlog").exists(), "nothing waits"
    files(root).write(iter(messages(3)), LAST, 3, now_ms=NOW_MS, start_ms=NOW_MS)
    (path,) = (root / "timerlog").iterdir()
    assert path.stat().st_size == timer_log.FILE_SIZE
    assert path.stat().st_blocks * 512 < 1 << 20, "sparse"


def test_a_log_that_takes_too_long_is_given_up(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel_files, "WRITE_MAX_S", -1.0)
    with pytest.raises(TimeoutError, match="not written within"):
        files(root).write(iter(messages(3)), LAST, 3, now_ms=NOW_MS, start_ms=NOW_MS)
    assert not (root / "config" / "timercheck").exists()


class Failing(OsDisk):
    """Fails the change with that number, and all later ones."""

    def __init__(self, number: int) -> None:
        self.left = number

    def _change(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise DiskFull("planted")

    def create(self, path: Path, size: int, *, reserve: bool) -> OsFile:
        self._change()
        return super().create(path, size, reserve=reserve)

    def open(self, path: Path, *, writable: bool) -> OsFile:
        if writable:
            self._change()
        return super().open(path, writable=writable)

    def unlink(self, path: Path) -> None:
        self._change()
        super().unlink(path)

    def rename(self, old: Path, new: Path) -> None:
        self._change()
        super().rename(old, new)

    def sync_directory(self, path: Path) -> None:
        self._change()
        super().sync_directory(path)


def test_a_write_that_ends_anywhere_leaves_no_check_or_all(root: Path) -> None:
    # RocketMQ reads the queue from its start without a check, whatever part of the log there is.
    rocketmqs(root, FILE_SIZE)
    theirs = (root / "config" / "timercheck").read_bytes()
    checks = set()
    for number in range(100):
        disk = Failing(number)
        wheel = WheelFiles(disk, root, root / "config", StillClock())
        with suppress(DiskFull):
            wheel.write(iter(messages(2 * PER_FILE)), LAST, 9, now_ms=NOW_MS, start_ms=NOW_MS)
        path = root / "config" / "timercheck"
        raw = path.read_bytes() if path.exists() else None
        if raw is not None and raw != theirs:
            log = b"".join(each.read_bytes() for each in sorted((root / "timerlog").iterdir()))
            assert timer_check.decode(raw) == (NOW_MS, 2 * FILE_SIZE + 52, 9, 9)
            assert timer_log.decode(log, 2 * FILE_SIZE) is not None
            assert not list(root.glob("timerwheel*"))
        checks.add(raw)
        if disk.left >= 0:
            break
    else:
        raise AssertionError("it never ended")
    assert len(checks) == 3
    files(root).withdraw()
    (left,) = (root / "timerlog").iterdir()
    assert left.read_bytes() == bytes(FILE_SIZE)


def test_no_check_is_written_beside_units_that_could_not_be_removed(root: Path) -> None:
    """RocketMQ would trust the check for messages that the old units do not have."""
    files(root).write(iter(messages(3)), LAST, 3, now_ms=NOW_MS, start_ms=NOW_MS)
    check = root / "config" / "timercheck"
    disk = Failing(1)  # the check is removed, the next change fails
    opened = WheelFiles(disk, root, root / "config", StillClock())
    opened.withdraw()
    opened.note(2)
    assert not check.exists()
    disk.left = 1 << 30
    opened = WheelFiles(disk, root, root / "config", StillClock())
    files(root).write(iter(messages(3)), LAST, 3, now_ms=NOW_MS, start_ms=NOW_MS)
    disk.left = 1
    opened.withdraw()
    disk.left = 1 << 30
    opened.note(2)
    assert check.exists()
    assert all(not any(each.read_bytes()) for each in (root / "timerlog").iterdir())
