"""The broker's metrics on a real node, compared with its own answers and with its log."""

from __future__ import annotations

import http.client
import json
import os
import re
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support import offline
from tests.support.cluster import PATIENT_MS, Cluster
from tests.support.node import Node, wait_until
from tests.support.raw_member import RawMember

QUEUES: Final = 3
HANDED, DONE = 7, 4
"""Messages of queue 0 that the member got, and that it committed."""
FIXED: Final = {"delay_levels": "1h 2h 3h 4h"}
"""Nothing that waits comes due in a test."""

Shown = Mapping[str, float]


def scrape(node: Node) -> Shown:
    """All samples: ``name topic queue`` → value, label values in the order they are written."""
    with urllib.request.urlopen(node.broker_admin_url + "/metrics") as answer:
        text = answer.read().decode()
    found = {}
    for name, labels, value in re.findall(
        r"^tidemark_(\w+?)(?:\{(.*)\})? (\S+)$", text, re.MULTILINE
    ):
        found[" ".join([name, *re.findall(r'"([^"]*)"', labels)])] = float(value)
    return found


def send(node: Node, *messages: dict[str, Any]) -> None:
    status, answer = node.request_json(
        "POST",
        "/v1/topics/orders/messages",
        {"messages": list(messages), "timeout_ms": PATIENT_MS},
    )
    assert status == 200, answer


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path, store=FIXED) as node:
        node.start()
        node.wait_ready()
        assert node.request_json("PUT", "/v1/topics/orders", {"queues": QUEUES})[0] == 200
        yield node


def ranges_of(node: Node, topic: str) -> dict[int, tuple[int, int]]:
    """Min and max offset of each queue from the API."""
    status, answer = node.request_json("GET", f"/v1/topics/{topic}")
    assert status == 200, answer
    return {each["queue"]: (each["min_offset"], each["max_offset"]) for each in answer["queues"]}


def family(shown: Shown, name: str) -> Shown:
    """Samples of a family by what follows its name."""
    return {
        key.removeprefix(name + " "): value
        for key, value in shown.items()
        if key.startswith(name + " ")
    }


def test_offsets_and_times_equal_those_of_the_api_and_the_log(node: Node) -> None:
    for number in range(10):
        send(node, {"body_text": f"zero {number}", "queue": 0})
    send(node, *({"body_text": "one", "queue": 1} for _ in range(4)))
    send(
        node, {"body_text": "by key", "sharding_key": "k"}, {"body_text": "2", "sharding_key": "k"}
    )
    send(
        node, {"body_text": "later", "delay_level": 1, "queue": 2}, {"body_text": "now", "queue": 2}
    )
    member = RawMember(node, "billing")
    member.join()
    got: list[tuple[str, int, int]] = []

    def fetched() -> bool:
        body = {"generation": member.generation, "max": HANDED, "wait_ms": 0}
        answer = member.call("POST", member.path + "/fetch", body)
        got.extend(
            (piece["topic"], piece["queue"], message["queue_offset"])
            for piece in answer["queues"]
            for message in piece["messages"]
        )
        return bool(got)

    wait_until(fetched, "a batch")
    topic, queue, first = got[0]
    assert (topic, queue, first, len(got)) == ("orders", 0, 0, HANDED)
    member.commit(got[DONE - 1])
    assert member.nack(got[DONE])["status"] == "RETRY"
    wait_until(
        lambda: (
            node.metric("reput", "tidemark_dispatch_lag_bytes") == 0
            and sum(end for _, end in ranges_of(node, "orders").values()) == 17
        ),
        "everything to be dispatched",
    )

    def settled() -> bool:
        """A sample that began after the last commit was written to the log."""
        shown = scrape(node)
        times = [
            shown.get(f"log_{at}_message_timestamp_seconds") for at in ("newest", "dispatched")
        ]
        return times[0] is not None and times[0] == times[1]

    wait_until(settled, "a look at a log in which nothing is outstanding")
    shown = scrape(node)
    status, view = node.request_json("GET", "/v1/groups/billing")
    assert status == 200
    ranges = ranges_of(node, "orders")
    _, listed = node.request_json("GET", "/v1/topics")
    topics = {each["topic"]: ranges_of(node, each["topic"]) for each in listed["topics"]}
    assert node.stop() == {"broker": 0, "reput": 0}
    records = offline.records(node.store_dir)

    for name, place in (("max", 1), ("min", 0)):
        assert family(shown, f"topic_{name}_offset_messages") == {
            topic: sum(bounds[place] for bounds in of_topic.values())
            for topic, of_topic in topics.items()
        }
        assert family(shown, f"queue_{name}_offset_messages") == {
            f"{topic} {queue}": bounds[place]
            for topic, of_topic in topics.items()
            for queue, bounds in of_topic.items()
        }
    committed = {
        f"billing {topic['topic']} {queue['queue']}": queue["committed"]
        for topic in view["topics"]
        for queue in topic["queues"]
        if queue["committed"] is not None
    }
    assert committed["billing orders 0"] == DONE
    assert family(shown, "group_queue_offset_messages") == committed
    # The only member, and the first of its group: all queues of what it reads are its own.
    held = {
        f"billing {topic['topic']} {queue['queue']}": queue["member"]
        for topic in view["topics"]
        for queue in topic["queues"]
    }
    assert set(held.values()) == {member.name}
    assert family(shown, "group_queue_member_number") == dict.fromkeys(held, 1)
    assert {f"billing orders {queue}" for queue in range(QUEUES)} <= held.keys()

    def stored_s(queue: int, queue_offset: int) -> float:
        (time_ms,) = (
            each.store_timestamp_ms
            for each in records
            if (each.topic, each.queue_id, each.queue_offset) == ("orders", queue, queue_offset)
        )
        return time_ms / 1000

    oldest = {
        f"billing orders {queue}": stored_s(queue, committed[f"billing orders {queue}"])
        for queue, (_, end) in ranges.items()
        if committed[f"billing orders {queue}"] < end
    }
    assert family(shown, "group_queue_oldest_timestamp_seconds") == oldest
    # Messages of queue 0 were handed out up to HANDED, of the others none.
    undelivered = min(stored_s(0, HANDED), *(stored_s(queue, 0) for queue in (1, 2)))
    pair = " billing orders"
    assert shown["group_oldest_undelivered_timestamp_seconds" + pair] == undelivered
    assert shown["group_oldest_uncommitted_timestamp_seconds" + pair] == stored_s(0, DONE)
    assert shown["group_inflight_messages" + pair] == HANDED - DONE
    times = [
        shown["log_newest_message_timestamp_seconds"],
        shown["log_confirm_message_timestamp_seconds"],
        shown["log_dispatched_message_timestamp_seconds"],
        undelivered,
        stored_s(0, DONE),
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] in {each.store_timestamp_ms / 1000 for each in records}
    assert (
        times[0]
        >= max(each.store_timestamp_ms for each in records if not each.topic.startswith("rmq_sys"))
        / 1000
    )
    read_all = "group_oldest_undelivered_timestamp_seconds billing %RETRY%billing"
    assert read_all not in shown or shown[read_all] == times[2]

    kinds = family(shown, "broker_messages_in_total")
    assert kinds == {
        "orders normal": 15,
        "orders fifo": 2,
        "orders delay": 1,
        "%RETRY%billing retry": 1,
    }
    print(f"a look took {shown['broker_look_duration_seconds']:.3f} s")


def connection_to(node: Node) -> http.client.HTTPConnection:
    """A connection to the API, not open yet."""
    return http.client.HTTPConnection("127.0.0.1", node.ports["api"])


def test_requests_connections_and_volumes_are_counted_correctly(
    node: Node, request: pytest.FixtureRequest
) -> None:
    assert node.request_json("GET", "/v1/topics/nothing")[0] == 404
    assert node.request_json("POST", "/v1/topics/nothing/messages", {"messages": []})[0] == 400
    producer, silent, slow = (connection_to(node) for _ in range(3))
    for each in (producer, silent, slow):
        request.addfinalizer(each.close)
    producer.request(
        "POST",
        "/v1/topics/orders/messages",
        json.dumps({"messages": [{"body_text": "m"}]}),
        {"Content-Type": "application/json"},
    )
    assert producer.getresponse().read()
    silent.connect()
    held = threading.Thread(
        target=node.request_json,
        args=("GET", "/v1/topics/orders/queues/2/messages?offset=0&wait_ms=20000"),
    )
    held.start()
    wait_until(lambda: scrape(node)["broker_long_polls"] == 1, "a held pull")
    shown = scrape(node)
    assert family(shown, "broker_connections") == {
        "new": 1,
        "producer": 1,
        "consumer": 1,
        "admin": 0,
    }
    assert family(shown, "broker_requests_rejected_total") == {
        "query unknown-topic": 1,
        "put bad-request": 1,
    }
    pools = ("put", "pull", "query", "admin", "heartbeat")
    assert family(shown, "broker_requests_queued") == dict.fromkeys(pools, 0), "none is held"
    assert family(shown, "broker_oldest_queued_request_seconds") == dict.fromkeys(pools, 0)

    # A request whose body does not come is in hand, and grows older.
    slow.putrequest("POST", "/v1/topics/orders/messages")
    slow.putheader("Content-Type", "application/json")
    slow.putheader("Content-Length", "100")
    slow.endheaders(b"{")
    wait_until(lambda: scrape(node)["broker_requests_queued put"] == 1, "a request in hand")
    wait_until(
        lambda: scrape(node)["broker_oldest_queued_request_seconds put"] > 0.2, "it to grow older"
    )
    slow.close()
    wait_until(lambda: scrape(node)["broker_requests_queued put"] == 0, "it to be gone")

    _, retention = node.request_json("GET", "/v1/retention")
    capacity = family(shown, "store_capacity_bytes")
    of_log = retention["log"]
    assert capacity["log"] == of_log["used_bytes"] + of_log["available_bytes"]
    free = family(shown, "store_free_bytes")
    assert free.keys() == capacity.keys() == {"log", "queue", "index"}
    facts = os.statvfs(node.store_dir)
    # Other programs write on the same file system.
    there = facts.f_bavail * facts.f_frsize
    assert free["log"] == pytest.approx(there, rel=0.05, abs=2 << 30)
    send(node, {"body_text": "the held pull ends", "queue": 2})
    held.join(30.0)
    assert not held.is_alive()


def times_of(shown: Shown) -> list[float] | None:
    """Return the times of the newest, confirmed and dispatched record; None before a look has found
    them."""
    stages = ("newest", "confirm", "dispatched")
    names = [f"log_{stage}_message_timestamp_seconds" for stage in stages]
    return [shown[name] for name in names] if names[0] in shown else None


def test_a_slave_shows_the_times_of_its_log_and_a_dead_reput_shows_as_dispatch(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, store=FIXED) as cluster:
        cluster.start()
        cluster.wait_in_sync()
        name = cluster.wait_master()
        (other,) = set(cluster.names) - {name}
        master, slave = cluster.nodes[name], cluster.nodes[other]
        assert master.request_json("PUT", "/v1/topics/orders", {"queues": QUEUES})[0] == 200
        member = RawMember(master, "billing")
        member.join()
        send(master, {"body_text": "first", "queue": 0})
        wait_until(lambda: [*member.fetch()], "the message")

        def same() -> bool:
            """Both have everything, and so has the group, but for its commit."""
            here, there = times_of(scrape(master)), times_of(scrape(slave))
            return here is not None and here == there and len(set(here)) == 1

        wait_until(same, "both to have the same newest record, dispatched")
        shown = scrape(slave)
        assert not [key for key in shown if key.startswith(("group_", "topic_", "queue_"))]
        assert {key for key in shown if key.startswith("store_free")} == {
            f"store_free_bytes {volume}" for volume in ("log", "queue", "index")
        }

        master.kill("reput")
        # Each is confirmed before the next one is sent: they differ in store time.
        for number in range(5):
            send(master, {"body_text": f"waits {number}", "queue": 1})

        def is_dispatch() -> bool:
            """Delay shows at its source: neither at replication nor at the consumer."""
            shown = scrape(master)
            newest, confirmed, dispatched = times_of(shown) or (0.0, 0.0, 0.0)
            undelivered = shown.get(
                "group_oldest_undelivered_timestamp_seconds billing orders", dispatched
            )
            return newest == confirmed > dispatched == undelivered

        wait_until(is_dispatch, "the delay to show as dispatch")
