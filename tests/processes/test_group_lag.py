"""Lag of a running node, over HTTP and as metrics, compared with the records in its log."""

from __future__ import annotations

import re
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.support import offline
from tests.support.node import Node, wait_until
from tests.support.raw_member import RawMember

QUEUES = 3
SENT = {0: 700, 1: 40, 2: 0}
"""Messages per queue; a queue's files hold 1000 units, one file."""
DONE = {0: 123, 1: 40}
"""Messages of each queue that the group commits."""


def send(node: Node, queue: int, count: int) -> None:
    while count:
        some = min(count, 100)
        messages = [
            {"body_text": "x" * (100 + number % 7), "queue": queue} for number in range(some)
        ]
        status, answer = node.request_json(
            "POST", "/v1/topics/orders/messages", {"messages": messages}
        )
        assert status == 200, answer
        count -= some


def view(node: Node, group: str = "billing") -> dict[str, Any]:
    status, answer = node.request_json("GET", f"/v1/groups/{group}")
    assert status == 200, answer
    return answer


def queues_of(shown: dict[str, Any]) -> dict[int, dict[str, Any]]:
    (topic,) = (each for each in shown["topics"] if each["topic"] == "orders")
    return {queue["queue"]: queue for queue in topic["queues"]}


def metrics(node: Node) -> dict[str, float]:
    """Series of groups, labels by name: ``lag_messages billing orders main`` → value."""
    with urllib.request.urlopen(node.broker_admin_url + "/metrics") as answer:
        text = answer.read().decode()
    found = {}
    for name, labels, value in re.findall(
        r"^tidemark_group_(\w+)\{([^}]*)\} (\S+)$", text, re.MULTILINE
    ):
        words = re.findall(r'"([^"]*)"', labels)
        found[" ".join([name, *words])] = float(value)
    return found


def test_lag_equals_the_records_in_the_log(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        node.start()
        node.wait_ready()
        assert node.request_json("PUT", "/v1/topics/orders", {"queues": QUEUES})[0] == 200
        config = {"lag_objective_ms": 1}
        assert node.request_json("PUT", "/v1/groups/billing", config)[0] == 200
        for queue, count in SENT.items():
            send(node, queue, count)
        empty = view(node)
        assert (empty["state"], empty["generation"], empty["members"]) == ("empty", None, [])
        assert empty["lag"]["reasons"]["messages"] == "never_committed"

        member = RawMember(node, "billing", "m1")
        member.join()
        for queue, done in DONE.items():
            member.commit(("orders", queue, done - 1))
        wait_until(
            lambda: (
                [queues_of(view(node))[queue]["max_offset"] for queue in SENT] == [*SENT.values()]
            ),
            "everything to be dispatched",
        )
        before_ms = time.time() * 1000
        shown = view(node)
        after_ms = time.time() * 1000
        scrapes: list[dict[str, float]] = []

        def share_a_look() -> bool:
            # Within a second, if nothing delays the second sample; a later one shows it older.
            scrapes[:] = [metrics(node) for _ in range(2)]
            first, second = (each["lag_seconds billing orders main"] for each in scrapes)
            return first == second

        wait_until(share_a_look, "two scrapes in a row that share one look")
        series = scrapes[0]
        assert node.stop() == {"broker": 0, "reput": 0}
        records = [each for each in offline.records(node.store_dir) if each.topic == "orders"]

    assert shown["state"] == "stable"
    assert [each["member"] for each in shown["members"]] == ["m1"]
    total_bytes = total = 0
    for queue, count in SENT.items():
        found = queues_of(shown)[queue]
        done = DONE.get(queue, 0)
        unread = [each for each in records if each.queue_id == queue and each.queue_offset >= done]
        total, total_bytes = total + len(unread), total_bytes + sum(each.size for each in unread)
        assert (found["committed"], found["min_offset"], found["max_offset"]) == (done, 0, count)
        assert (found["messages"], found["member"]) == (len(unread), "m1")
        assert found["bytes"] == sum(each.size for each in unread)
        if unread:
            oldest_ms = min(each.store_timestamp_ms for each in unread)
            # Whole milliseconds on either side of the sample.
            assert (before_ms - oldest_ms - 1) / 1000 <= found["seconds"]
            assert found["seconds"] <= (after_ms - oldest_ms + 1) / 1000
        else:
            assert found["seconds"] == 0
        assert found["reasons"] == {}
    lag = shown["lag"]
    assert (lag["messages"], lag["bytes"]) == (total, total_bytes) == (577, total_bytes)
    assert (lag["lost"], lag["ahead"], lag["expiring_messages"]) == (0, 0, 0)
    assert (lag["queues"], lag["unknown_queues"], lag["lagging_queues"]) == (4, 0, 1)

    assert series["lag_messages billing orders main"] == total
    assert series["lag_queue_max_messages billing orders"] == total
    assert series["lag_messages billing %RETRY%billing retry"] == 0
    assert series["lag_seconds billing orders main"] >= queues_of(shown)[0]["seconds"]
    assert series["lagging_queues billing orders"] == 1
    assert series["members billing"] == series["subscribed billing orders"] == 1
    assert series["consumed_messages_total billing orders"] == sum(DONE.values())
    assert series["lag_objective_seconds billing"] == 0.001


def test_a_group_that_is_not_there_is_named(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        node.start()
        node.wait_ready()
        status, answer = node.request_json("GET", "/v1/groups/missing")
        assert (status, answer["code"]) == (404, "unknown-group")
