from __future__ import annotations

import os
from pathlib import Path

import pytest

from shared.files.kept_cuts import CUT_FILES_MAX
from shared.files.os_disk import OsDisk, OsFile
from shared.files.store_dir import StoreConfig, StoreDir
from tidemark.errors import DiskFull


def store(root: Path) -> StoreDir:
    return StoreDir(OsDisk(), root, StoreConfig())


def test_a_cut_is_kept_under_its_range_epoch_and_reason(tmp_path: Path) -> None:
    path = store(tmp_path).keep_cut(100, [b"abc", b"", b"defg"], epoch=3, reason="torn-tail")
    assert path.name == "00000000000000000100-00000000000000000107-epoch3-torn-tail"
    assert path.read_bytes() == b"abcdefg"
    assert [found.name for found in path.parent.iterdir()] == [path.name]


def test_the_oldest_go_when_there_are_too_many(tmp_path: Path) -> None:
    opened = store(tmp_path)
    for number in range(CUT_FILES_MAX + 3):
        path = opened.keep_cut(number, [b"x"], epoch=0, reason="torn-tail")
        os.utime(path, (number, number))
    (opened.cut_dir / "notes of an operator").touch()
    kept = sorted(path.name for path in opened.cut_dir.iterdir())
    assert len(kept) == CUT_FILES_MAX + 1
    assert kept[0].startswith("00000000000000000003-")


def test_the_oldest_go_when_they_are_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.files.kept_cuts.CUT_BYTES_MAX", 1000)
    opened = store(tmp_path)
    for number in range(4):
        path = opened.keep_cut(number * 1000, [bytes(400)], epoch=0, reason="fork")
        os.utime(path, (number, number))
    assert len(list(opened.cut_dir.iterdir())) == 2
    path = opened.keep_cut(9000, [b"y" * 600, b"z" * 600], epoch=0, reason="fork")
    assert path.name.startswith("00000000000000009000-00000000000000010000-")
    assert path.read_bytes() == b"y" * 600 + b"z" * 400
    assert list(opened.cut_dir.iterdir()) == [path]


def test_the_same_range_twice_is_one_file(tmp_path: Path) -> None:
    opened = store(tmp_path)
    opened.keep_cut(5, [b"abc"], epoch=0, reason="torn-tail")
    path = opened.keep_cut(5, [b"abd"], epoch=0, reason="torn-tail")
    assert path.read_bytes() == b"abd"
    assert list(opened.cut_dir.iterdir()) == [path]


def test_a_full_disk_leaves_nothing_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_self: OsFile, _offset: int, _size: int) -> None:
        raise DiskFull("no room")

    opened = store(tmp_path)
    monkeypatch.setattr(OsFile, "reserve", full)
    with pytest.raises(DiskFull):
        opened.keep_cut(5, [b"abc"], epoch=0, reason="torn-tail")
    assert list(opened.cut_dir.iterdir()) == []
