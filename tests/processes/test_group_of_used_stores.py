"""A store that was used before becomes a group's first node: the others copy all of it.

Records that RocketMQ wrote in between may have record CRC properties of other records: the master
does not check them there, and its slaves must not either.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from tests.processes.test_rocketmq_in_between import rocketmq_uses
from tests.processes.test_state_in_log import STORE, start, stop, use
from tests.support.cluster import Cluster
from tests.support.golden import manifest, queued_messages, unpack
from tests.support.node import Node

TOPIC_SIZE_MAX: Final = 127


def all_bodies(cluster: Cluster, name: str, topic: str, queue: int, offset: int = 0) -> list[str]:
    """What a node shows of a queue from an offset on, as far as it is confirmed."""
    node = cluster.nodes[name]
    found: list[str] = []
    while True:
        path = f"/v1/topics/{topic}/queues/{queue}/messages?offset={offset}&max=1024"
        status, answer = node.request_json("GET", path, headers={"Tidemark-Read-From": "any"})
        assert status == 200, answer
        if not answer["messages"]:
            return found
        found += [each.get("body_text", each.get("body")) for each in answer["messages"]]
        offset = answer["next_offset"]


def test_a_slave_copies_records_that_rocketmq_wrote_in_between(tmp_path: Path) -> None:
    with Node(tmp_path / "alone", store=STORE) as node:
        start(node)
        use(node)
        stop(node)
        messages, _ = rocketmq_uses(node.store_dir)
        start(node)
        stop(node)
        with Cluster(tmp_path / "group", store=STORE) as cluster:
            shutil.copytree(node.store_dir, cluster.nodes["n1"].store_dir, symlinks=True)
            cluster.start()
            assert cluster.wait_master() == "n1", "the one that holds records"
            cluster.wait_in_sync()
            cluster.kill("n1")
            assert cluster.wait_master() == "n0"
            found = all_bodies(cluster, "n0", "orders", 0)
            wanted = [each.body.decode() for each in messages if each.topic == "orders"]
            assert found[-len(wanted) :] == wanted
            cluster.start("n1")
            cluster.wait_in_sync()
            cluster.compare_logs()


def test_a_store_that_rocketmq_wrote_becomes_a_groups_first_node(tmp_path: Path) -> None:
    (tmp_path / "unpacked").mkdir()
    name = "defaults"  # a copy is kept with the tests; the other stores may not be there
    sizes = manifest(name)["config"]
    store = unpack(name, tmp_path / "unpacked")
    with Cluster(
        tmp_path / "group",
        broker={"deliver_delayed": False, "retention_age_ms": 1 << 50},
        store={
            "commit_log_file_size": sizes["mappedFileSizeCommitLog"],
            "consume_queue_file_size": sizes["mappedFileSizeConsumeQueue"],
            "index_slots": sizes["maxHashSlotNum"],
            "index_entries": sizes["maxIndexNum"],
        },
    ) as cluster:
        cluster.nodes["n1"].directory.mkdir(parents=True, exist_ok=True)
        shutil.move(store, cluster.nodes["n1"].store_dir)
        cluster.start()
        assert cluster.wait_master() == "n1", "the one that holds records"
        cluster.wait_in_sync()
        assert cluster.compare_logs() >= manifest(name)["commitLog"]["maxOffset"]
        cluster.kill("n1")
        assert cluster.wait_master() == "n0"
        queues = {(each["topic"], each["queueId"]) for each in queued_messages(name)}
        for topic, queue in sorted(queues):
            if len(topic) > TOPIC_SIZE_MAX:
                continue  # more than a call may name
            wanted = [
                each
                for each in queued_messages(name)
                if (each["topic"], each["queueId"]) == (topic, queue)
            ]
            first = min(each["queueOffset"] for each in wanted)
            found = all_bodies(cluster, "n0", topic, queue, first)
            assert len(found) == len(wanted), (topic, queue)
