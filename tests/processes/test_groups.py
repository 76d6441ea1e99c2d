"""Consumer groups over HTTP and real processes: shares, rebalances, kills, and every error."""

from __future__ import annotations

import struct
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from tests.support.node import Node, wait_until
from tidemark.formats import record

GROUP, ORDERS = "/v1/groups/billing", "/v1/topics/orders"
M1, M2 = GROUP + "/members/m1", GROUP + "/members/m2"
TAKES = {"subscriptions": [{"topic": "orders"}]}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node with an empty topic and no group."""
    with Node(tmp_path) as served:
        served.start()
        served.wait_ready()
        call(served, "PUT", ORDERS, {"queues": 4})
        yield served


def call(node: Node, method: str, path: str, body: object = None) -> dict[str, Any]:
    status, answer = node.request_json(method, path, body)
    assert status in (200, 204), answer
    return answer


def refused(node: Node, method: str, path: str, body: object = None) -> tuple[int, str]:
    status, answer = node.request_json(method, path, body)
    return status, answer["code"]


def send(node: Node, count: int, queue: int = 0) -> None:
    messages = [{"body_text": f"{queue}-{number}", "queue": queue} for number in range(count)]
    call(node, "POST", ORDERS + "/messages", {"messages": messages})


def fetched(answer: dict[str, Any]) -> dict[int, list[str]]:
    """Queue → bodies."""
    return {
        each["queue"]: [message["body_text"] for message in each["messages"]]
        for each in answer["queues"]
        if each["messages"]
    }


def fetch_until(node: Node, member: str, count: int) -> dict[int, list[str]]:
    """Fetch until that many messages have come."""
    found: dict[int, list[str]] = {}
    while sum(map(len, found.values())) < count:
        for queue, bodies in fetched(
            call(node, "POST", member + "/fetch", {"wait_ms": 10_000})
        ).items():
            found.setdefault(queue, []).extend(bodies)
    return found


def test_two_members_share_a_topic_and_nothing_comes_twice(node: Node) -> None:
    for queue in range(4):
        send(node, 3, queue)
    first = call(node, "POST", M1, TAKES)
    assert sorted(queue for topic, queue in first["assignment"] if topic == "orders") == [
        0,
        1,
        2,
        3,
    ]
    found = fetch_until(node, M1, 12)
    assert found == {queue: [f"{queue}-{n}" for n in range(3)] for queue in range(4)}
    offsets = [{"topic": "orders", "queue": queue, "offset": 3} for queue in range(4)]
    commit = {"member": "m1", "generation": first["generation"], "offsets": offsets}
    assert call(node, "POST", GROUP + "/offsets", {**commit, "ack": "disk"}) == {"level": "disk"}
    second = call(node, "POST", M2, {**TAKES, "holding": []})
    assert second["assignment"] == [], "m1 has not let go"
    heard = call(node, "POST", M1, {**TAKES, "generation": first["generation"]})
    assert len(heard["assignment"]) in (2, 3)
    call(node, "POST", M1, {**TAKES, "generation": heard["generation"]})
    third = call(node, "POST", M2, {**TAKES, "generation": second["generation"]})
    assert sorted(third["assignment"] + heard["assignment"]) == sorted(first["assignment"])
    for queue in range(4):
        send(node, 1, queue)
    mine = {queue for topic, queue in heard["assignment"] if topic == "orders"}
    assert fetch_until(node, M1, len(mine)).keys() == mine
    assert fetch_until(node, M2, 4 - len(mine)).keys() == set(range(4)) - mine
    shown = call(node, "GET", GROUP)
    assert {each["member"] for each in shown["members"]} == {"m1", "m2"}
    assert shown["state"] == "stable"


def test_a_held_fetch_ends_when_another_member_comes(node: Node) -> None:
    first = call(node, "POST", M1, TAKES)
    answers: list[dict[str, Any]] = []
    held = threading.Thread(
        target=lambda: answers.append(call(node, "POST", M1 + "/fetch", {"wait_ms": 30_000}))
    )
    held.start()
    wait_until(lambda: node.metric("broker", "tidemark_broker_long_polls"), "the fetch to be held")
    call(node, "POST", M2, TAKES)
    held.join()
    assert answers[0]["generation"] > first["generation"]
    assert answers[0]["queues"] == []


def test_raw_records_follow_their_map(node: Node) -> None:
    send(node, 5, 1)
    send(node, 2, 3)
    call(node, "POST", M1, TAKES)
    fetch_until(node, M1, 7)
    positions = [{"topic": "orders", "queue": queue, "offset": 0} for queue in (1, 3)]
    request = urllib.request.Request(
        node.api_url + M1 + "/fetch",
        data=msgpack.packb({"positions": positions}),
        headers={
            "Accept": "application/vnd.tidemark.records",
            "Content-Type": "application/msgpack",
        },
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.headers["Content-Type"] == "application/vnd.tidemark.records"
        data = answer.read()
    (size,) = struct.unpack_from(">I", data)
    queues = msgpack.unpackb(data[4 : 4 + size])["queues"]
    at, bodies = 4 + size, []
    while at < len(data):
        found = record.decode(memoryview(data)[at:])
        bodies.append(bytes(found.body).decode())
        at += found.size
    assert {each["queue"]: each["next_offset"] for each in queues} == {1: 5, 3: 2}
    assert sorted(bodies) == [*(f"1-{n}" for n in range(5)), "3-0", "3-1"]


def test_every_mistake_has_its_own_code(node: Node) -> None:
    send(node, 2)
    assert refused(node, "GET", GROUP + "/offsets") == (404, "unknown-group")
    missing = {"subscriptions": [{"topic": "missing"}]}
    assert refused(node, "POST", M1, missing) == (404, "unknown-topic")
    malformed = {"subscriptions": [{"topic": "orders", "tags": "a || "}]}
    assert refused(node, "POST", M1, malformed) == (400, "bad-tags")
    assert refused(node, "POST", M1, {"subscriptions": []}) == (400, "bad-request")
    assert refused(node, "POST", M1 + "/fetch", {}) == (404, "unknown-group")
    joined = call(node, "POST", M1, TAKES)
    assert refused(node, "POST", M2 + "/fetch", {}) == (404, "unknown-member")
    generation = joined["generation"]
    offsets = GROUP + "/offsets"
    commit = {
        "member": "m1",
        "generation": generation,
        "offsets": [{"topic": "orders", "queue": 0, "offset": 1}],
    }
    call(node, "POST", offsets, commit)
    stale = {**commit, "generation": generation - 1}
    assert refused(node, "POST", offsets, stale) == (409, "stale-generation")
    beyond = {**commit, "offsets": [{"topic": "orders", "queue": 0, "offset": 3}]}
    assert refused(node, "POST", offsets, beyond) == (400, "offset-beyond-end")
    strange = {**commit, "member": "m2"}
    assert refused(node, "POST", offsets, strange) == (404, "unknown-member")
    elsewhere = {**commit, "offsets": [{"topic": "other", "queue": 0, "offset": 0}]}
    assert refused(node, "POST", offsets, elsewhere) == (409, "not-assigned")
    anonymous = {"offsets": [{"topic": "orders", "queue": 0, "offset": 1}]}
    assert refused(node, "POST", offsets, anonymous) == (409, "member-required")
    reset = {"topic": "orders", "to": "first"}
    assert refused(node, "POST", GROUP + "/reset", reset) == (409, "group-in-use")
    assert refused(node, "PUT", GROUP, {"order": True}) == (409, "group-in-use")
    assert refused(node, "DELETE", GROUP) == (409, "group-in-use")
    assert refused(node, "POST", M1 + "/fetch", {"generation": 1}) == (409, "stale-generation")
    strayed = {"positions": [{"topic": "orders", "queue": 77, "offset": 0}]}
    assert refused(node, "POST", M1 + "/fetch", strayed) == (409, "not-assigned")
    call(node, "DELETE", M1)
    assert refused(node, "DELETE", M1) == (404, "unknown-member")
    dry = call(node, "POST", GROUP + "/reset", {**reset, "dry_run": True, "queue": 0})
    assert dry == {"queues": [{"queue": 0, "from": 1, "to": 0}], "dry_run": True}
    moved = call(node, "POST", GROUP + "/reset", {**reset, "queue": 0})
    assert moved == {"queues": [{"queue": 0, "from": 1, "to": 0}], "dry_run": False}
    far = {**reset, "to": {"offset": 9}}
    assert refused(node, "POST", GROUP + "/reset", far) == (400, "offset-beyond-end")
    call(node, "PUT", GROUP, {"broadcast": True})
    assert refused(node, "POST", offsets, anonymous) == (409, "broadcast-group")
    call(node, "PUT", GROUP, {"broadcast": False, "consume_enabled": False})
    assert refused(node, "POST", M1, TAKES) == (403, "consume-disabled")


def test_a_silent_member_is_gone_after_its_session(node: Node) -> None:
    send(node, 1)
    joined = call(node, "POST", M1, {**TAKES, "session_ms": 5000})
    assert fetch_until(node, M1, 1) == {0: ["0-0"]}
    heartbeat = {**TAKES, "session_ms": 5000, "generation": joined["generation"]}
    wait_until(lambda: not call(node, "GET", GROUP)["members"], "the member to expire")
    assert refused(node, "POST", M1, heartbeat) == (404, "unknown-member")
    call(node, "POST", M2, TAKES)
    assert fetch_until(node, M2, 1) == {0: ["0-0"]}, "what it did not commit comes again"


def test_commits_and_configuration_survive_a_kill_and_old_generations_do_not(node: Node) -> None:
    call(node, "PUT", GROUP, {"retry_max": 3, "lag_objective_ms": 5000})
    send(node, 6)
    joined = call(node, "POST", M1, TAKES)
    assert fetch_until(node, M1, 6) == {0: [f"0-{n}" for n in range(6)]}
    commit = {
        "member": "m1",
        "generation": joined["generation"],
        "offsets": [{"topic": "orders", "queue": 0, "offset": 4}],
        "ack": "disk",
    }
    call(node, "POST", GROUP + "/offsets", commit)
    node.kill()
    node.start()
    node.wait_ready()
    offsets = {
        (each["topic"], each["queue"]): each["offset"]
        for each in call(node, "GET", GROUP + "/offsets")["offsets"]
    }
    assert offsets["orders", 0] == 4
    (listed,) = call(node, "GET", "/v1/groups")["groups"]
    assert (listed["group"], listed["retry_max"], listed["lag_objective_ms"]) == (
        "billing",
        3,
        5000,
    )
    assert (listed["members"], listed["state"]) == (0, "empty")
    late = {**commit, "offsets": [{"topic": "orders", "queue": 0, "offset": 2}]}
    assert refused(node, "POST", GROUP + "/offsets", late) == (409, "stale-generation")
    beat = {**TAKES, "generation": joined["generation"]}
    assert refused(node, "POST", M1, beat) == (404, "unknown-member")
    again = call(node, "POST", M1, TAKES)
    assert again["generation"] >> 32 > joined["generation"] >> 32
    assert fetch_until(node, M1, 2) == {0: ["0-4", "0-5"]}
    assert node.stop() == {"broker": 0, "reput": 0}
