from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.files.index_geometry import geometry_of
from shared.files.os_disk import OsDisk
from shared.files.store_config import StoreConfig, config_of
from tests.support import golden
from tests.support.index_rows import packed
from tidemark.formats.index_file import Geometry, IndexFile

DISK = OsDisk()


def index_file(geometry: Geometry, hashes: list[int]) -> bytearray:
    raw = bytearray(geometry.size)
    file = IndexFile(memoryview(raw), geometry)
    rows = [
        (key_hash, number * 100, 1_700_000_000_000 + number)
        for number, key_hash in enumerate(hashes)
    ]
    assert file.put_rows(packed(rows)) == len(rows)
    file.close()
    return raw


@given(
    slots=st.integers(1, 60),
    spare=st.integers(0, 40),
    hashes=st.lists(st.integers(1, 2**31 - 1), min_size=1, max_size=30),
)
def test_one_entry_is_enough_to_find_slots_and_entries(
    tmp_path_factory: pytest.TempPathFactory, slots: int, spare: int, hashes: list[int]
) -> None:
    geometry = Geometry(slots=slots, entries=len(hashes) + 1 + spare)
    path = tmp_path_factory.mktemp("index") / "20240101000000000"
    path.write_bytes(index_file(geometry, hashes))
    assert geometry_of(DISK, path) == geometry


@pytest.mark.parametrize(
    "raw",
    [b"", b"\x01", bytes(40), bytes(720), bytes(36) + b"\0\0\0\1" + bytes(680), b"\xff" * 720],
)
def test_a_file_without_its_geometry_gives_none(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "20240101000000000").write_bytes(raw)
    assert geometry_of(DISK, tmp_path / "20240101000000000") is None


@given(st.binary(max_size=900))
def test_any_bytes_are_an_answer_or_none(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    path = tmp_path_factory.mktemp("index") / "20240101000000000"
    path.write_bytes(raw)
    found = geometry_of(DISK, path)
    assert found is None or found.size == len(raw)


@pytest.mark.parametrize("name", golden.golden_names())
def test_every_golden_store_shows_all_its_sizes(tmp_path: Path, name: str) -> None:
    found = config_of(DISK, golden.unpack(name, tmp_path), StoreConfig())
    config = golden.manifest(name)["config"]
    assert (found.index_slots, found.index_entries) == (
        config["maxHashSlotNum"],
        config["maxIndexNum"],
    )
    assert found.commit_log_file_size == config["mappedFileSizeCommitLog"]
    assert found.consume_queue_file_size == config["mappedFileSizeConsumeQueue"]
