"""RocketMQ's stores, killed: each loses its tail at any record, and recovers to exactly there.

The golden stores hold one crash each. Here every store is cut at places that a seed picks, with
half a record left over, while queues and index still know what was behind.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.support import golden, golden_rules, golden_store
from tests.support.golden_rules import Answer

PER_STORE = 3


def all_messages(name: str) -> list[Answer]:
    """Every record of the log that can be read, in physical order."""
    found = [message for message in golden_rules.messages(name)]
    return sorted(found, key=lambda message: int(message["physicalOffset"]))


def cut_behind(root: Path, file_size: int, at: int, *, torn: int) -> None:
    """Zeros from at to the log's end, except that the first ``torn`` bytes are still there."""
    for start, path in golden.commit_log_files(root):
        low = max(0, at + torn - start)
        if low < file_size and start + file_size > at:
            with path.open("r+b") as file:
                file.seek(low)
                file.write(bytes(file_size - low))


@pytest.mark.parametrize("seed", range(PER_STORE))
@pytest.mark.parametrize("name", golden.golden_names())
def test_a_killed_store_recovers_to_its_last_whole_record(
    name: str, seed: int, tmp_path: Path
) -> None:
    random = Random(f"{name} {seed}")
    found = all_messages(name)
    first_lost = random.randrange(1, len(found))
    lost = found[first_lost]
    kept = found[:first_lost]
    root = golden.unpack(name, tmp_path)
    file_size = golden_store.config_of(name).commit_log_file_size
    # Within head and body: nothing shows that the properties are whole, because RocketMQ does not
    # write a record CRC by default.
    torn = random.randrange(0, 88 + int(lost["bodySize"]) // 2)
    cut_behind(root, file_size, int(lost["physicalOffset"]), torn=torn)
    (root / "abort").touch()
    opened = golden_store.open_unpacked(name, root)
    try:
        last = kept[-1]
        end = last["physicalOffset"] + last["size"]
        # A filler between the two is the end of a file: the log then goes on in the next one.
        assert opened.end in (end, lost["physicalOffset"])
        unqueued = {message["physicalOffset"] for message in golden.manifest(name)["unqueued"]}
        for queue in golden.manifest(name)["queues"]:
            behind = [
                message["queueOffset"]
                for message in queue["messages"]
                if message["physicalOffset"] >= opened.end and message.get("readable", True)
            ]
            length = min(behind, default=queue["maxOffset"])
            key = (queue["topic"], queue["queueId"])
            assert opened.queue(queue).max_offset(opened.end) == length, key
            assert opened.recovered.next_queue_offsets.get(key, 0) == length, key
        for message in kept[-50:]:
            if message["physicalOffset"] in unqueued:
                continue
            (unit,) = opened.queues.get(message["topic"], message["queueId"]).units(
                message["queueOffset"], 1, opened.end
            )
            assert unit.physical_offset == message["physicalOffset"]
    finally:
        opened.close()
