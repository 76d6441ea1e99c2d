"""A send that is repeated with its unique id while its first try is only in memory."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from tests.support.node import Node, wait_until


class SlowNode(Node):
    """A node whose broker has a slow disk."""

    def command(self, role: str) -> list[str]:
        """The usual command, with another module for the broker."""
        return [
            "tests.support.slow_fdatasync" if word == "services.broker" else word
            for word in super().command(role)
        ]


def send(node: Node, message: dict[str, Any], *, timeout_s: float = 30.0, **more: Any) -> int:
    """Status of a send; 0: its connection was given up."""
    body = {"messages": [{"queue": 0, **message}], **more}
    return node.request_json("POST", "/v1/topics/t/messages", body, timeout_s=timeout_s)[0]


def test_a_send_whose_first_try_waits_in_the_pool_is_stored_once(tmp_path: Path) -> None:
    # 1. A sync is running. 2. A send is appended to the pool; the next sync would put it into the
    # file. 3. Its connection breaks, and it is sent again at once.
    pooled = {"write_buffer_pool_size": 1 << 20, "commit_interval_ms": 10_000}
    with SlowNode(tmp_path, broker=pooled) as node:
        node.start()
        node.wait_ready()
        node.request_json("PUT", "/v1/topics/t", {"queues": 1})
        syncing = threading.Thread(target=send, args=(node, {"body_text": "other"}))
        syncing.start()
        repeated = {"body_text": "once", "unique_id": "7F000001" + 24 * "0"}
        while send(node, repeated, timeout_s=0.3):
            repeated["unique_id"] += "1"  # too quick to be interrupted: another one
        assert send(node, repeated, retry=True) == 200
        syncing.join()
        queue = "/v1/topics/t/queues/0/messages?offset=0&max=100"

        def found() -> list[str]:
            return [each["unique_id"] for each in node.request_json("GET", queue)[1]["messages"]]

        wait_until(lambda: repeated["unique_id"] in found(), "it to be dispatched")
        assert found().count(repeated["unique_id"]) == 1
