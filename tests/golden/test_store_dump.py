"""`tidemark store dump` against what RocketMQ itself reads from the same stores.

The stores are never opened by a node first: a dump shows them as the next start will leave them, so
it must agree with what the real implementation had after its own recovery.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import golden, golden_rules
from tests.support.node import Node

pytestmark = pytest.mark.parametrize("name", golden.golden_names())

# Manifest name → ours, where one is a plain copy of the other.
RECORD_FIELDS = {
    "queueOffset": "queue_offset",
    "physicalOffset": "physical_offset",
    "size": "size",
    "topic": "topic",
    "sysFlag": "sys_flag",
    "flag": "flag",
    "bornTimestamp": "born_timestamp_ms",
    "storeTimestamp": "store_timestamp_ms",
    "reconsumeTimes": "reconsume_times",
    "preparedTransactionOffset": "prepared_transaction_offset",
    "bodyCrc": "body_crc",
    "bodySha256": "body_sha256",
    "properties": "properties",
    "msgId": "message_id",
    "queueId": "queue",
}
UNIT_FIELDS = {
    "queueOffset": "queue_offset",
    "physicalOffset": "physical_offset",
    "size": "size",
    "tagsCode": "tags_code",
}


def dump(store: Path, *options: str) -> tuple[list[dict[str, Any]], str]:
    command = [sys.executable, "-m", "tidemark.cli.main", "store", "dump", "--store", str(store)]
    done = subprocess.run([*command, *options], capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr.decode()


def host(text: str) -> tuple[Any, int]:
    address, _, port = text.rpartition(":")
    return ipaddress.ip_address(address.strip("[]")), int(port)


def body_of(dumped: dict[str, Any]) -> bytes:
    if "body_text" in dumped:
        assert "body" not in dumped
        return str(dumped["body_text"]).encode()
    return base64.b64decode(dumped["body"], validate=True)


def assert_same_message(dumped: dict[str, Any], message: dict[str, Any]) -> None:
    for theirs, ours in RECORD_FIELDS.items():
        assert dumped[ours] == message[theirs], (theirs, message["physicalOffset"])
    assert host(dumped["born_host"]) == host(message["bornHost"])
    assert host(dumped["store_host"]) == host(message["storeHost"])
    body = body_of(dumped)
    assert len(body) == message["bodySize"]
    assert hashlib.sha256(body).hexdigest() == message["bodySha256"]
    properties = message["properties"]
    assert dumped["tags"] == properties.get("TAGS")
    assert dumped["keys"] == [key for key in properties.get("KEYS", "").split(" ") if key]
    assert dumped["unique_id"] == properties.get("UNIQ_KEY")
    code = message["tagsCode"] if "tagsCode" in message else message["dispatchTagsCode"]
    assert dumped["tags_code"] == code


def test_every_record_has_every_field_that_rocketmq_reads(name: str, tmp_path: Path) -> None:
    dumped, _ = dump(golden.unpack(name, tmp_path))
    by_offset = {record["physical_offset"]: record for record in dumped}
    manifest = golden.manifest(name)
    messages = golden.queued_messages(name) + manifest["unqueued"]
    for message in messages:
        assert_same_message(by_offset[message["physicalOffset"]], message)
    # All of them, no others, in order: records that no queue lists any more have expired in it.
    offsets = [record["physical_offset"] for record in dumped]
    assert offsets == sorted(by_offset)
    assert len(dumped) == manifest["commitLog"]["records"]
    assert {message["physicalOffset"] for message in messages} <= by_offset.keys()


def test_the_dump_ends_at_rocketmqs_recovered_end_and_lists_what_it_left_out(
    name: str, tmp_path: Path
) -> None:
    dumped, said = dump(golden.unpack(name, tmp_path))
    manifest = golden.manifest(name)
    last = dumped[-1]
    end = manifest["commitLog"]["maxOffset"]
    assert last["physical_offset"] + last["size"] == end
    assert bool(said) == ("damage" in manifest)
    if said:
        assert f"physical offset {end} with a torn tail" in said


def test_every_queue_has_the_units_that_rocketmq_finds_in_it(name: str, tmp_path: Path) -> None:
    dumped, _ = dump(golden.unpack(name, tmp_path), "--queues")
    queues = golden.manifest(name)["queues"]
    ours = {(queue["topic"], queue["queue"]): queue for queue in dumped}
    assert sorted(ours) == sorted((queue["topic"], queue["queueId"]) for queue in queues)
    for queue in queues:
        found = ours[queue["topic"], queue["queueId"]]
        assert found["max_offset"] == queue["maxOffset"]
        # Pre-blank units at a queue's beginning, and files of nothing but expired ones, are no
        # messages here; the reference counts some of them (docs/formats.md, 4.8).
        first = found["min_offset"]
        real_first = golden_rules.first_message(name, queue)
        assert first == (queue["minOffset"] if real_first is None else real_first)
        expected = [
            {ours: message[theirs] for theirs, ours in UNIT_FIELDS.items()}
            for message in queue["messages"]
            if message["queueOffset"] >= first
        ]
        assert found["units"] == expected


def test_a_store_that_a_node_has_opened_has_the_same_dump(name: str, tmp_path: Path) -> None:
    store = golden.unpack(name, tmp_path)
    before = dump(store)[0]
    queues = {(queue["topic"], queue["queue"]): queue for queue in dump(store, "--queues")[0]}
    config = golden.manifest(name)["config"]
    sizes = {
        "commit_log_file_size": config["mappedFileSizeCommitLog"],
        "consume_queue_file_size": config["mappedFileSizeConsumeQueue"],
        "index_slots": config["maxHashSlotNum"],
        "index_entries": config["maxIndexNum"],
    }
    broker = golden.BROKER_AS_IT_WAS
    with Node(tmp_path / "node", store=sizes, broker=broker, store_dir=store) as node:
        node.start()
        node.wait_ready()
        for _ in ("while it runs", "after it stopped"):
            after, said = dump(store)
            # What the node kept of its own state comes behind.
            assert after[: len(before)] == before
            assert said == ""
            found = {
                (queue["topic"], queue["queue"]): queue for queue in dump(store, "--queues")[0]
            }
            assert {key: found[key] for key in queues} == queues
            node.stop("broker")
            node.stop("reput")


def test_a_dump_changes_nothing(name: str, tmp_path: Path) -> None:
    store = golden.unpack(name, tmp_path)

    def state() -> dict[str, tuple[int, int, bytes]]:
        return {
            str(path.relative_to(store)): (
                path.stat().st_mtime_ns,
                path.stat().st_size,
                path.read_bytes() if path.stat().st_size < 10_000_000 else b"",
            )
            for path in store.rglob("*")
            if path.is_file()
        }

    before = state()
    dump(store)
    dump(store, "--queues")
    assert state() == before
