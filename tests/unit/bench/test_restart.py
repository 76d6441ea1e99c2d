"""The figure of a restart finds the page cache as a killed node leaves it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.restart import CHUNK_SIZE, warm

SIZE = 4 * CHUNK_SIZE


def test_data_is_read_and_reserved_space_stays_a_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once its pages are cached, the kernel reports reserved space as data."""
    path = tmp_path / "store" / "commitlog" / "00000000000000000000"
    path.parent.mkdir(parents=True)
    read: list[tuple[int, int]] = []
    pread = os.pread

    def noting(descriptor: int, size: int, offset: int) -> bytes:
        read.append((offset, size))
        return pread(descriptor, size, offset)

    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, SIZE)
        os.pwrite(file.fileno(), b"begin", 0)
        os.pwrite(file.fileno(), b"behind a hole", 3 * CHUNK_SIZE)
        os.fsync(file.fileno())
    monkeypatch.setattr(os, "pread", noting)
    warm(tmp_path)
    assert {offset for offset, _ in read} == {0, 3 * CHUNK_SIZE}
    assert sum(size for _, size in read) < CHUNK_SIZE
