"""All state is in the log: without JSON, queues, index and checkpoint it is restored unchanged.

Real processes are asked over HTTP before and after; the log's bytes are the reference. Whatever
happens to a store, queue offsets go on and none is used twice.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest

from shared.files.log_start import write_log_start
from shared.files.os_disk import OsDisk
from tests.support.log_state import ends_in_log, state_in_log
from tests.support.node import Node, wait_until
from tidemark.formats.metadata_json import parse_consumer_offsets, parse_groups, parse_topics

Answer = dict[str, Any]
FILE_SIZE: Final = 256 << 10
STORE: Final[Mapping[str, object]] = {
    "commit_log_file_size": FILE_SIZE,
    "delay_levels": "1s 1h",
}
KEPT: Final = frozenset({"commitlog", "tidemark.json", "cut"})
HOUR_MS: Final = 3_600_000


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path, store=STORE) as made:
        yield made


def start(node: Node) -> None:
    node.start()
    node.wait_ready()


def stop(node: Node) -> None:
    assert node.stop() == {"broker": 0, "reput": 0}


def call(node: Node, method: str, path: str, body: object = None, *, status: int = 200) -> Answer:
    got, answer = node.request_json(method, path, body)
    assert got == status, (method, path, got, answer)
    return answer


def send(node: Node, topic: str, *messages: Answer) -> list[Answer]:
    answer = call(node, "POST", f"/v1/topics/{topic}/messages", {"messages": list(messages)})
    results: list[Answer] = answer["results"]
    return results


def fill_files(node: Node, files: int) -> None:
    """Send until that many commit log files have been begun; each begins with a snapshot."""
    body = "x" * 8000
    while send(node, "filler", *[{"body_text": body}] * 8)[-1]["physical_offset"] < (
        files * FILE_SIZE - FILE_SIZE // 2
    ):
        pass
    wait_until(
        lambda: node.metric("reput", "tidemark_dispatch_lag_bytes") == 0, "all to be dispatched"
    )


def use(node: Node) -> None:
    """Make some of every kind of state, changed and deleted ones included."""
    for topic, queues in (("orders", 4), ("bills", 2), ("gone", 1), ("again", 1), ("filler", 1)):
        call(node, "PUT", f"/v1/topics/{topic}", {"queues": queues})
        send(node, topic, *[{"body_text": f"{n}", "queue": 0} for n in range(6)])
    call(node, "DELETE", "/v1/topics/gone", status=204)
    call(node, "DELETE", "/v1/topics/again", status=204)
    call(node, "PUT", "/v1/topics/again", {"queues": 3})
    send(node, "again", {"body_text": "new", "queue": 0})
    call(node, "PUT", "/v1/groups/billing", {"order": True, "start": "last"})
    call(node, "PUT", "/v1/groups/shipping", {"retry_max": 3, "lag_objective_ms": 5000})
    call(node, "PUT", "/v1/groups/shipping", {"retry_max": 4})
    call(node, "PUT", "/v1/groups/gone", {})
    for group, offsets in (
        (
            "billing",
            [
                {"topic": "orders", "queue": 0, "offset": 3},
                {"topic": "bills", "queue": 0, "offset": 6},
            ],
        ),
        ("shipping", [{"topic": "orders", "queue": 0, "offset": 6}]),
        (
            "shipping",
            [
                {"topic": "orders", "queue": 0, "offset": 2},
                {"topic": "again", "queue": 0, "offset": 7},
            ],
        ),
        ("gone", [{"topic": "orders", "queue": 0, "offset": 1}]),
    ):
        path = f"/v1/groups/{group}/offsets"
        call(node, "POST", path, {"offsets": offsets, "ack": "disk"})
    call(node, "DELETE", "/v1/groups/gone", status=204)
    delay(node)


def delay(node: Node) -> None:
    """Delayed messages: delivered, pending and cancelled, by level and by time."""
    due_ms = int(time.time() * 1000) + HOUR_MS
    send(node, "bills", *[{"body_text": f"soon {n}", "delay_level": 1} for n in range(3)])
    send(node, "bills", *[{"body_text": f"later {n}", "delay_level": 2} for n in range(3)])
    send(node, "bills", *[{"body_text": f"soon at {n}", "delay_ms": 300 + n} for n in range(3)])
    far = [{"body_text": f"at {n}", "deliver_at_ms": due_ms + 1000 * n} for n in range(3)]
    results = send(node, "bills", *far)
    listed = {each["unique_id"] for each in results}
    wait_until(lambda: listed <= pending(node), "delayed messages to be listed")
    call(node, "DELETE", f"/v1/delayed/{results[0]['unique_id']}?topic=bills")
    wait_until(
        lambda: call(node, "GET", "/v1/delayed")["pending"] == 5, "due messages to be delivered"
    )
    wait_readable(node, "bills", 12)


def pending(node: Node) -> set[str]:
    return {each["unique_id"] for each in call(node, "GET", "/v1/delayed")["messages"]}


def readable(node: Node, topic: str) -> int:
    queues = call(node, "GET", f"/v1/topics/{topic}")["queues"]
    return sum(queue["max_offset"] - queue["min_offset"] for queue in queues)


def wait_readable(node: Node, topic: str, messages: int) -> None:
    wait_until(lambda: readable(node, topic) == messages, f"{messages} messages in {topic}")


def served(node: Node) -> Answer:
    """All that is served of the state, over HTTP."""
    topics = call(node, "GET", "/v1/topics")["topics"]
    groups = call(node, "GET", "/v1/groups")["groups"]
    return {
        "topics": topics,
        "ends": {
            topic["topic"]: [
                queue["max_offset"]
                for queue in call(node, "GET", f"/v1/topics/{quote(topic['topic'])}")["queues"]
            ]
            for topic in topics
        },
        "groups": groups,
        "offsets": {
            group["group"]: call(node, "GET", f"/v1/groups/{group['group']}/offsets")["offsets"]
            for group in groups
        },
        "delayed": call(node, "GET", "/v1/delayed"),
    }


def remove_derived(node: Node) -> None:
    """Leave nothing of the store but its log and the description of its sizes."""
    for path in node.store_dir.iterdir():
        if path.name not in KEPT:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def config_files(node: Node) -> tuple[object, object, object]:
    """What the JSON files say, without their versions and how much of the log they cover."""
    config = node.store_dir / "config"
    return (
        parse_topics((config / "topics.json").read_text()).topics,
        parse_groups((config / "subscriptionGroup.json").read_text()).groups,
        parse_consumer_offsets((config / "consumerOffset.json").read_text()).offsets,
    )


def test_all_state_comes_back_from_the_log_alone(node: Node) -> None:
    start(node)
    use(node)
    fill_files(node, 3)
    before = served(node)
    stop(node)
    files = config_files(node)
    in_log = state_in_log(node.store_dir)
    remove_derived(node)
    start(node)
    assert served(node) == before
    stop(node)
    assert config_files(node) == files
    after = state_in_log(node.store_dir)
    assert after.delay == in_log.delay
    assert (after.topics, after.groups, after.offsets) == (
        in_log.topics,
        in_log.groups,
        in_log.offsets,
    )
    assert after.start_count == in_log.start_count + 1


@pytest.mark.parametrize("derived_too", [True, False])
def test_without_the_oldest_files_it_comes_back_from_a_snapshot(
    node: Node, *, derived_too: bool
) -> None:
    start(node)
    use(node)
    fill_files(node, 5)
    before = served(node)
    stop(node)
    in_log = state_in_log(node.store_dir)
    log_files = sorted((node.store_dir / "commitlog").glob("[0-9]*"))
    # As retention does: the new start is durable before a file is removed.
    write_log_start(OsDisk(), node.store_dir / "log-start", int(log_files[3].name))
    for path in log_files[:3]:
        path.unlink()
    if derived_too:
        remove_derived(node)
    assert state_in_log(node.store_dir).offsets == in_log.offsets
    start(node)
    after = served(node)
    for name in ("topics", "ends", "groups", "offsets"):
        assert after[name] == before[name], name
    stop(node)
    state = state_in_log(node.store_dir)
    # Level 2: its waiting messages were lost with the files, which retention would have kept.
    assert state.delay.levels[1] == in_log.delay.levels[1]
    assert state.delay.timer == in_log.delay.timer


def test_a_killed_broker_loses_no_commit_that_waited_for_the_disk(node: Node) -> None:
    start(node)
    call(node, "PUT", "/v1/topics/orders", {"queues": 1})
    for round_number in range(3):
        send(node, "orders", *[{"body_text": "x"}] * 4)
        wait_readable(node, "orders", 4 * (round_number + 1))
        for offset in range(4 * round_number + 1, 4 * round_number + 5):
            body = {"offsets": [{"topic": "orders", "queue": 0, "offset": offset}], "ack": "disk"}
            assert call(node, "POST", "/v1/groups/g/offsets", body) == {"level": "disk"}
        node.kill()
        start(node)
        offsets = call(node, "GET", "/v1/groups/g/offsets")["offsets"]
        assert offsets == [{"topic": "orders", "queue": 0, "offset": 4 * round_number + 4}]


def test_offsets_of_a_topic_made_again_go_on_also_after_a_rebuild(node: Node) -> None:
    start(node)
    call(node, "PUT", "/v1/topics/orders", {"queues": 2})
    first = send(node, "orders", *[{"body_text": "old", "queue": 1}] * 5)
    assert [each["queue_offset"] for each in first] == [0, 1, 2, 3, 4]
    call(node, "DELETE", "/v1/topics/orders", status=204)
    call(node, "PUT", "/v1/topics/orders", {"queues": 2})
    for expected in (5, 6, 7):
        (sent,) = send(node, "orders", {"body_text": f"new {expected}", "queue": 1})
        assert sent["queue_offset"] == expected
        stop(node)
        remove_derived(node)
        start(node)
        queue = "/v1/topics/orders/queues/1/messages"
        assert call(node, "GET", f"{queue}?offset=0&max=32")["min_offset"] == 5
        found = call(node, "GET", f"{queue}?offset=5&max=32")["messages"]
        assert [each["body_text"] for each in found] == [f"new {n}" for n in range(5, expected + 1)]


def test_offsets_of_a_queue_whose_records_have_all_gone_go_on_after_a_rebuild(node: Node) -> None:
    start(node)
    call(node, "PUT", "/v1/topics/orders", {"queues": 2})
    call(node, "PUT", "/v1/topics/filler", {"queues": 1})
    send(node, "orders", *[{"body_text": "old", "queue": 1}] * 7)
    fill_files(node, 4)
    stop(node)
    for path in sorted((node.store_dir / "commitlog").glob("[0-9]*"))[:2]:
        path.unlink()
    remove_derived(node)
    assert ("orders", 1) not in ends_in_log(node.store_dir)
    start(node)
    queue = call(node, "GET", "/v1/topics/orders")["queues"][1]
    assert queue == {"queue": 1, "min_offset": 7, "max_offset": 7}
    pulled = call(node, "GET", "/v1/topics/orders/queues/1/messages?offset=3")
    assert (pulled["status"], pulled["next_offset"]) == ("OFFSET_TOO_SMALL", 7)
    for expected in (7, 8):
        (sent,) = send(node, "orders", {"body_text": "new", "queue": 1})
        assert sent["queue_offset"] == expected
        wait_readable(node, "orders", expected - 6)
        stop(node)
        remove_derived(node)
        start(node)


def test_a_member_from_before_a_restart_is_refused(node: Node) -> None:
    start(node)
    call(node, "PUT", "/v1/topics/orders", {"queues": 1})
    join = {"subscriptions": [{"topic": "orders"}]}
    generations = []
    for _ in range(3):
        joined = call(node, "POST", "/v1/groups/g/members/m", join)
        generations.append(joined["generation"])
        node.kill() if len(generations) == 2 else stop(node)
        start(node)
        stale = {
            "member": "m",
            "generation": joined["generation"],
            "offsets": [{"topic": "orders", "queue": 0, "offset": 0}],
        }
        call(node, "POST", "/v1/groups/g/members/other", join)
        refused = call(node, "POST", "/v1/groups/g/offsets", stale, status=409)
        assert refused["code"] == "stale-generation"
        call(node, "DELETE", "/v1/groups/g/members/other", status=204)
    assert [each >> 32 for each in generations] == [1, 2, 3]
