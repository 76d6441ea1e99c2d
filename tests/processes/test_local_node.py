"""The node of users' tests: one of its services is killed, and a failed start is explained."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import tidemark as sdk
from tidemark.testing import LocalNode, NodeFailed


def test_one_service_is_killed_and_started_again(tmp_path: Path) -> None:
    with LocalNode(tmp_path) as node, sdk.connect_sync(node.url) as mq:
        mq.create_topic("orders", queues=1)
        mq.send("orders", b"1")
        broker = node.pid("broker")
        node.kill("reput")
        mq.send("orders", b"2")
        node.start()
        assert node.pid("broker") == broker
        found = mq.pull("orders", 0, 0, wait_ms=10_000).messages
        assert [message.body for message in found][:1] == [b"1"]
        pids = [broker, node.pid("reput")]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_start_that_fails_says_why_and_leaves_no_process(tmp_path: Path) -> None:
    with LocalNode(tmp_path / "first") as first:
        second = LocalNode(tmp_path / "second")
        second.ports["api"] = first.ports["api"]
        with pytest.raises(NodeFailed, match=r"(?s)broker ended with status .*broker\.log.*in use"):
            second.start()
        assert not second.is_alive("reput")
        assert second.processes["broker"].returncode != -signal.SIGKILL
        second.close()
