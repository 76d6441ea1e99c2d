"""Running out of descriptors: idle connections, and a limit that is reached while the log grows."""

from __future__ import annotations

import contextlib
import http.client
import json
import resource
import socket
from pathlib import Path

from shared.runtime.health import BOUNDS
from tests.support.node import Node, wait_until

IDLE_COUNT = 1100


def descriptor_count(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def send(connection: http.client.HTTPConnection, body: str) -> tuple[int, dict[str, object]]:
    sent = json.dumps({"messages": [{"body_text": body}]})
    connection.request("POST", "/v1/topics/t/messages", sent, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def test_idle_connections_do_not_block_an_admin_port(tmp_path: Path) -> None:
    """1,100 silent connections took all descriptors of a process, and blocked its API for as long
    as they were open: the admin port had no bound."""
    with Node(tmp_path) as node, contextlib.ExitStack() as held:
        node.start()
        node.wait_ready()
        assert node.request_json("PUT", "/v1/topics/t", {"queues": 1})[0] == 200
        for role in ("broker", "reput"):
            before = descriptor_count(node.pid(role))
            for _ in range(IDLE_COUNT):
                held.enter_context(
                    socket.create_connection(("127.0.0.1", node.ports[role]), timeout=30)
                )
            wait_until(
                lambda role=role, before=before: (  # type: ignore[misc]
                    descriptor_count(node.pid(role)) <= before + BOUNDS.connections_max + 16
                ),
                "connections beyond the bound to be closed",
            )
            assert node.get_json(f"{node.admin_url(role)}/live")[0] == 200
        assert (
            node.request_json("POST", "/v1/topics/t/messages", {"messages": [{"body_text": "x"}]})[
                0
            ]
            == 200
        )


def test_a_file_that_cannot_be_opened_ends_no_process_and_sends_come_back(tmp_path: Path) -> None:
    """EMFILE at the border of a log file ended the broker."""
    with Node(tmp_path) as node, contextlib.ExitStack() as held:
        node.start()
        node.wait_ready()
        assert node.request_json("PUT", "/v1/topics/t", {"queues": 1})[0] == 200
        connection = held.enter_context(
            contextlib.closing(
                http.client.HTTPConnection("127.0.0.1", node.ports["api"], timeout=60)
            )
        )
        assert send(connection, "first")[0] == 200
        pid = node.pid("broker")
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        # Below its present number: every open from now on fails.
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
        stored, body = 1, "x" * 100_000
        for _ in range(100):
            status, answer = send(connection, body)
            if status != 200:
                break
            stored += 1
        assert (status, answer["code"], answer["retriable"]) == (503, "out-of-resources", True)
        # The file that was made ahead is used: a log file holds ten of these.
        assert stored > 10
        assert node.is_alive("broker")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        wait_until(lambda: send(connection, "again")[0] == 200, "sends to be taken again")
        assert node.is_alive("broker")
