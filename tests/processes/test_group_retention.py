"""Deletion at the beginning of a group's log: the master decides, its slaves follow."""

from __future__ import annotations

from pathlib import Path

from tests.support.cluster import PATIENT_MS, Cluster
from tests.support.node import wait_until
from tidemark.formats.checkpoint import Slot

FILE_SIZE = 1 << 20


def test_a_slave_deletes_the_files_that_its_master_deleted(tmp_path: Path) -> None:
    with Cluster(tmp_path, broker={"retention_size_max": 4 * FILE_SIZE}) as cluster:
        cluster.start()
        master = cluster.wait_master()
        cluster.wait_in_sync()
        slave = next(name for name in cluster.names if name != master)
        node = cluster.nodes[master]
        assert node.request_json("PUT", "/v1/topics/t", {"queues": 1})[0] == 200
        body = {"messages": [{"body_text": "x" * 1000}] * 200, "timeout_ms": PATIENT_MS}
        for _ in range(40):
            status, answer = node.request_json("POST", "/v1/topics/t/messages", body)
            assert status == 200, answer
        wait_until(
            lambda: cluster.slot(master, Slot.MIN) > 2 * FILE_SIZE, "the master's files to go"
        )
        wait_until(
            lambda: cluster.slot(slave, Slot.MIN) >= cluster.slot(master, Slot.MIN),
            "the slave to follow",
        )
        # The minimum is published first, and made durable before the file is removed
        # (broker/retention/deletion): a listing in between has the file before it.
        wait_until(
            lambda: cluster.log_start(slave) == cluster.slot(slave, Slot.MIN),
            "the names of the slave's files to go",
        )
        cluster.kill(master)
        assert cluster.wait_master(other_than=master) == slave
        status, answer = cluster.nodes[slave].request_json("POST", "/v1/topics/t/messages", body)
        assert status == 200, answer
