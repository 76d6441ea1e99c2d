"""The id of a store is made once, and a copy of the store has the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from shared.files.os_disk import OsDisk
from shared.files.store_config import LocalStoreConfig
from shared.files.store_dir import StoreDir
from shared.files.store_id import STORE_ID, store_id


def directory(root: Path) -> StoreDir:
    root.mkdir(exist_ok=True)
    return StoreDir(OsDisk(), root, LocalStoreConfig())


def test_the_id_stays_with_the_directory(tmp_path: Path) -> None:
    made = store_id(directory(tmp_path / "a"))
    assert len(made) == 32
    assert store_id(directory(tmp_path / "a")) == made
    assert store_id(directory(tmp_path / "b")) != made
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    assert store_id(directory(tmp_path / "copy")) == made


@pytest.mark.parametrize("text", [b"", b"x" * 33, b"0" * 32, b"0" * 31 + b"G\n"])
def test_a_damaged_id_is_replaced(tmp_path: Path, text: bytes) -> None:
    (tmp_path / STORE_ID).write_bytes(text)
    made = store_id(directory(tmp_path))
    assert (tmp_path / STORE_ID).read_text() == made + "\n"
