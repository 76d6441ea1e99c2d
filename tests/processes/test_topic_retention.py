"""A topic's own retention over real processes: hidden on time, counted once, hidden forever."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tests.support.node import Node, wait_until

TOPIC: Final = "/v1/topics/short"
SKIPPED: Final = (
    'tidemark_group_skipped_messages_total{group="late",topic="short",reason="expired"}'
)


def pull(node: Node, offset: int) -> dict[str, Any]:
    status, answer = node.get_json(f"{node.api_url}{TOPIC}/queues/0/messages?offset={offset}")
    assert status == 200
    return answer


def send(node: Node, count: int) -> None:
    messages = [{"body_text": f"m{number}", "keys": ["k"]} for number in range(count)]
    status, answer = node.request_json("POST", TOPIC + "/messages", {"messages": messages})
    assert status == 200, answer


def found_by_key(node: Node) -> int:
    status, answer = node.get_json(f"{node.api_url}{TOPIC}/messages?key=k")
    assert status == 200
    return len(answer["messages"])


async def test_messages_are_hidden_on_time_and_nothing_brings_them_back(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        node.start()
        node.wait_ready()
        status, topic = node.request_json("PUT", TOPIC, {"queues": 1})
        assert (status, topic["retention_ms"]) == (200, None)
        body = {"offsets": [{"topic": "short", "queue": 0, "offset": 0}]}
        assert node.request_json("POST", "/v1/groups/late/offsets", body)[0] == 200
        send(node, 5)
        wait_until(
            lambda: (pull(node, 0)["max_offset"], found_by_key(node)) == (5, 5),
            "messages to be seen",
        )
        # Only now: a slow machine may need longer to read than a short retention allows.
        status, topic = node.request_json("PUT", TOPIC, {"retention_ms": 1500})
        assert (status, topic["retention_ms"]) == (200, 1500)
        wait_until(lambda: pull(node, 0)["status"] == "OFFSET_TOO_SMALL", "them to be hidden")
        answer = pull(node, 0)
        assert (answer["next_offset"], answer["min_offset"], answer["max_offset"]) == (5, 5, 5)
        assert found_by_key(node) == 0
        wait_until(lambda: node.metric("broker", SKIPPED) == 5, "the loss to be counted")

        # Neither a longer retention nor none, nor a restart, shows again what was hidden.
        for retention_ms in (600_000, 0):
            status, topic = node.request_json("PUT", TOPIC, {"retention_ms": retention_ms})
            assert (status, topic["retention_ms"]) == (200, retention_ms or None)
            assert pull(node, 0)["next_offset"] == 5
        node.kill()
        node.start()
        node.wait_ready()
        send(node, 2)
        wait_until(
            lambda: (pull(node, 0)["max_offset"], found_by_key(node)) == (7, 2),
            "later messages to be seen",
        )
        assert pull(node, 0)["status"] == "OFFSET_TOO_SMALL"
        assert [each["queue_offset"] for each in pull(node, 5)["messages"]] == [5, 6]
