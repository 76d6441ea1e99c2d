"""Stores that Apache RocketMQ's own classes wrote with settings that the golden stores lack."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command import tidemark as command
from tests.support.referee import classpath, write_store

SHAPE = {
    "commit_log_file_size": 1 << 18,
    "consume_queue_file_size": 4_000,
    "index_slots": 100,
    "index_entries": 500,
}
COUNT = 1000


@pytest.mark.parametrize("flags", [(), ("kill",)], ids=["closed", "killed"])
def test_inner_batches_are_no_damage(tmp_path: Path, flags: tuple[str, ...]) -> None:
    classpath()
    store = tmp_path / "store"
    write_store(store, tmp_path, "batches", *flags, count=COUNT, shape=SHAPE)
    report = json.loads(command("store", "verify", "--store", store, "-o", "json"))
    assert report["damages"] == []
    assert report["records"] == COUNT + COUNT // 10
    assert report["units"] == COUNT
    assert report["not_dispatched"] == 0, "a batch has no unit to come"
