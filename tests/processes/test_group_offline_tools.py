"""The offline tools on the stopped store of a node of a group."""

from __future__ import annotations

from pathlib import Path

from tests.support.cluster import PATIENT_MS, Cluster
from tests.support.command import dump, tidemark


def test_queues_and_index_of_a_replica_are_rebuilt_from_its_log(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.start()
        master = cluster.wait_master()
        cluster.wait_in_sync()
        node = cluster.nodes[master]
        assert node.request_json("PUT", "/v1/topics/t", {"queues": 1})[0] in (200, 201)
        for n in range(30):
            message = {"body_text": f"{n} " + "x" * 50_000, "keys": [f"k{n}"]}
            body = {"messages": [message], "timeout_ms": PATIENT_MS}
            assert node.request_json("POST", "/v1/topics/t/messages", body)[0] == 200
        cluster.stop()
        for each in cluster.nodes.values():
            before = dump(each.store_dir, "--queues")
            tidemark("store", "rebuild", "--store", each.store_dir)
            assert dump(each.store_dir, "--queues") == before
            tidemark("store", "verify", "--store", each.store_dir)
        cluster.start()
        node = cluster.nodes[cluster.wait_master()]
        cluster.wait_in_sync()
        status, answer = node.request_json("GET", "/v1/topics/t/queues/0/messages?offset=29")
        assert (status, len(answer["messages"]), answer["max_offset"]) == (200, 1, 30)
        found = node.request_json("GET", "/v1/topics/t/messages?key=k29")[1]["messages"]
        assert len(found) == 1
        cluster.compare_logs()
