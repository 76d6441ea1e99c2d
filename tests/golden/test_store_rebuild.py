"""`tidemark store rebuild` on stores that RocketMQ wrote: queues and index as they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import golden
from tests.support.command import dump, run, tidemark

pytestmark = pytest.mark.parametrize("name", golden.golden_names())

PRE_BLANK_SIZE = 0x7FFFFFFF


def slots(name: str) -> tuple[str, str]:
    return "--index-slots", str(golden.manifest(name)["config"]["maxHashSlotNum"])


def queue_files(store: Path) -> dict[str, bytes]:
    root = store / "consumequeue"
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and any(path.read_bytes())
    }


def test_a_rebuilt_store_is_sound_and_its_queues_hold_the_same(name: str, tmp_path: Path) -> None:
    store = golden.unpack(name, tmp_path)
    before = queue_files(store)
    tidemark("store", "rebuild", "--store", store, *slots(name))
    report: dict[str, Any] = json.loads(
        tidemark("store", "verify", "--store", store, "-o", "json", *slots(name))
    )
    manifest = golden.manifest(name)
    assert report["damages"] == report["remarks"] == []
    assert report["records"] == manifest["commitLog"]["records"]
    assert report["log_end"] == manifest["commitLog"]["maxOffset"]

    found = {(queue["topic"], queue["queue"]): queue for queue in dump(store, "--queues")}
    for queue in manifest["queues"]:
        ours = found[queue["topic"], queue["queueId"]]
        assert ours["max_offset"] == queue["maxOffset"]
        units = {unit["queue_offset"]: unit for unit in ours["units"]}
        for message in queue["messages"]:
            if not message.get("readable", True) or message["size"] == PRE_BLANK_SIZE:
                continue
            unit = units[message["queueOffset"]]
            assert unit["physical_offset"] == message["physicalOffset"]
            assert (unit["size"], unit["tags_code"]) == (message["size"], message["tagsCode"])
    if manifest["commitLog"]["minOffset"] == 0 and "damage" not in manifest:
        assert queue_files(store) == before


def test_a_second_rebuild_changes_nothing(name: str, tmp_path: Path) -> None:
    store = golden.unpack(name, tmp_path)
    tidemark("store", "rebuild", "--store", store, *slots(name))
    before = queue_files(store)
    done = run("store", "rebuild", "--store", store)
    assert done.returncode == 0
    assert queue_files(store) == before
    assert not (store / "abort").exists()
