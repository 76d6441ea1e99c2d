"""The calls of delayed messages over real processes: what they accept, and what they refuse."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.node import Node, wait_until
from tidemark.formats.delay import DELAY_MS_MAX

TOPIC = "/v1/topics/reminders"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("node"), store={"delay_levels": "1s 2s 1h"}) as started:
        started.start()
        started.wait_ready()
        assert started.request_json("PUT", TOPIC, {"queues": 2})[0] == 200
        yield started
        assert started.stop() == {"broker": 0, "reput": 0}


def send(node: Node, **fields: Any) -> tuple[int, dict[str, Any]]:
    message = {"body_text": "x", **fields}
    return node.request_json("POST", TOPIC + "/messages", {"messages": [message]})


def waiting(node: Node, **query: Any) -> dict[str, Any]:
    parameters = "&".join(f"{name}={value}" for name, value in query.items())
    status, answer = node.request_json("GET", f"/v1/delayed?{parameters}".rstrip("?"))
    assert status == 200, answer
    return answer


def bodies(node: Node, queue: int) -> list[str]:
    path = f"{TOPIC}/queues/{queue}/messages?offset=0&max=32"
    return [each["body_text"] for each in node.request_json("GET", path)[1]["messages"]]


def test_a_delayed_message_is_listed_and_delivered(node: Node) -> None:
    status, answer = send(node, body_text="soon", delay_ms=4000, queue=1, unique_id="soon")
    assert status == 200, answer
    (result,) = answer["results"]
    assert result["topic"] == "rmq_sys_wheel_timer"
    assert bodies(node, 1) == []
    # It is listed once it is dispatched.
    wait_until(lambda: waiting(node, topic="reminders")["messages"], "the message to be listed")
    (shown,) = waiting(node, topic="reminders")["messages"]
    assert shown["unique_id"] == "soon"
    assert shown["deliver_at_ms"] == result["deliver_at_ms"]
    assert shown["message_id"] == result["message_id"]
    wait_until(lambda: bodies(node, 1) == ["soon"], "the message to be delivered")
    assert time.time() * 1000 >= result["deliver_at_ms"]
    assert waiting(node)["messages"] == []


def test_a_list_goes_on_from_page_to_page(node: Node) -> None:
    for number in range(5):
        assert send(node, unique_id=f"page-{number}", delay_level=3)[0] == 200
    wait_until(lambda: len(waiting(node)["messages"]) == 5, "the messages to be listed")
    found: list[str] = []
    page = waiting(node, max=2)
    while True:
        found += [each["unique_id"] for each in page["messages"]]
        if page["next"] is None:
            break
        page = waiting(node, max=2, after=page["next"])
    assert found == [f"page-{number}" for number in range(5)]
    for number in range(5):
        status, answer = node.request_json("DELETE", f"/v1/delayed/page-{number}?topic=reminders")
        assert (status, answer["cancelled"]) == (200, 1)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"delay_level": 4}, "delay-out-of-range"),
        ({"delay_level": 0}, "delay-out-of-range"),
        ({"delay_ms": DELAY_MS_MAX + 1}, "delay-out-of-range"),
        ({"delay_ms": -1}, "delay-out-of-range"),
        ({"deliver_at_ms": 1 << 60}, "delay-out-of-range"),
        ({"delay_ms": "1"}, "bad-request"),
        ({"delay_ms": 1, "delay_level": 1}, "bad-request"),
    ],
)
def test_a_delay_that_cannot_be_kept_is_refused_and_nothing_is_stored(
    node: Node, fields: dict[str, Any], code: str
) -> None:
    before = waiting(node)["pending"]
    status, answer = send(node, **fields)
    assert (status, answer["code"]) == (400, code)
    assert waiting(node)["pending"] == before


def test_a_message_that_does_not_wait_is_not_cancelled(node: Node) -> None:
    status, answer = node.request_json("DELETE", "/v1/delayed/missing")
    assert (status, answer["code"]) == (404, "unknown-delayed")
    assert send(node, unique_id="there", delay_level=3)[0] == 200
    status, answer = node.request_json("DELETE", "/v1/delayed/there?topic=elsewhere")
    assert (status, answer["code"]) == (404, "unknown-delayed")
    # Immediately after the send: the call waits until the index has it.
    status, answer = node.request_json("DELETE", "/v1/delayed/there")
    assert (status, answer["cancelled"]) == (200, 1)


@pytest.mark.parametrize(
    "query", ["max=0", "max=1025", "max=x", "after=1-2", "topic=..", "colour=red"]
)
def test_a_wrong_parameter_is_named(node: Node, query: str) -> None:
    status, answer = node.request_json("GET", f"/v1/delayed?{query}")
    assert status == 400
    assert query.split("=")[0] in answer["detail"]


def test_waiting_messages_have_metrics(node: Node) -> None:
    assert send(node, unique_id="measured", delay_level=3)[0] == 200
    wait_until(
        lambda: node.metric("broker", "tidemark_timer_pending_messages") == 1, "it to be counted"
    )
    assert node.metric("broker", "tidemark_timer_overdue_seconds") == 0
    assert node.request_json("DELETE", "/v1/delayed/measured")[0] == 200
    wait_until(
        lambda: node.metric("broker", "tidemark_timer_pending_messages") == 0, "it to be gone"
    )
