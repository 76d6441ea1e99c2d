"""Queues and index that dispatch makes from RocketMQ's log are RocketMQ's, byte for byte.

Where the log starts at 0 and everything was written in one go; index files have other names.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support import golden
from tests.support.golden_store import open_unpacked
from tidemark.formats.filenames import offset_name
from tidemark.formats.queue_unit import UNIT
from tidemark.offsets import UNIT_SIZE


def files_below(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def was_written_in_one_go(name: str) -> bool:
    manifest = golden.manifest(name)
    return manifest["commitLog"]["minOffset"] == 0 and not manifest["packed"]["abort"]


@pytest.mark.parametrize("name", [n for n in golden.golden_names() if was_written_in_one_go(n)])
def test_deleted_queues_and_index_are_made_again_byte_for_byte(name: str, tmp_path: Path) -> None:
    root = golden.unpack(name, tmp_path)
    queues = files_below(root / "consumequeue")
    index = list(files_below(root / "index").values())
    assert queues
    assert index
    for directory in ("consumequeue", "index"):
        shutil.rmtree(root / directory)
    (root / "checkpoint").unlink()
    open_unpacked(name, root).close()
    made = files_below(root / "consumequeue")
    assert made.keys() == queues.keys()
    assert [path for path in queues if made[path] != queues[path]] == []
    assert list(files_below(root / "index").values()) == index


def was_stopped_clean(name: str) -> bool:
    return not golden.manifest(name)["packed"]["abort"]


@pytest.mark.parametrize("name", [n for n in golden.golden_names() if was_stopped_clean(n)])
def test_queues_and_index_that_are_whole_are_left_alone(name: str, tmp_path: Path) -> None:
    root = golden.unpack(name, tmp_path)
    before = files_below(root / "consumequeue") | files_below(root / "index")
    open_unpacked(name, root).close()
    after = files_below(root / "consumequeue") | files_below(root / "index")
    assert {path for path in before if before[path] != after.get(path)} == set()
    assert after.keys() == before.keys()


@pytest.mark.parametrize("name", golden.golden_names())
def test_deleted_queues_of_any_store_are_equal_from_the_minimum_on(
    name: str, tmp_path: Path
) -> None:
    root = golden.unpack(name, tmp_path)
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    (root / "checkpoint").unlink()
    open_unpacked(name, root).close()
    manifest = golden.manifest(name)
    file_size = manifest["config"]["mappedFileSizeConsumeQueue"]
    compared = 0
    for queue in manifest["queues"]:
        directory = root / "consumequeue" / queue["topic"] / str(queue["queueId"])
        for message in queue["messages"]:
            if not message.get("readable", True):
                continue
            at = message["queueOffset"] * UNIT_SIZE
            with (directory / offset_name(at - at % file_size)).open("rb") as file:
                file.seek(at % file_size)
                unit = UNIT.unpack(file.read(UNIT_SIZE))
            assert unit == (message["physicalOffset"], message["size"], message["tagsCode"])
            compared += 1
    assert compared == manifest["messagesInQueues"]
