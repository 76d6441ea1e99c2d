"""Messages for any time, with RocketMQ's own timer and ours on one store in turns.

Whatever the order of the two, and however RocketMQ ends, each message is delivered once, and a
cancelled one never.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Final

from tests.support.node import SMALL_STORE, Node, wait_until
from tests.support.referee import classpath, run_timer
from tidemark.formats import timer_log
from tidemark.formats.filenames import offset_name

TOPIC: Final = "/v1/topics/orders"
HOUR_MS: Final = 3_600_000
IN_TIME: Final = ("ours", "last", "first", "soon", "ours-later", "mine")
LATER: Final = ("late", "far")
WINDOW_S: Final = 2
"""RocketMQ's roll window: later messages are put into the queue again meanwhile."""


def send(node: Node, unique_id: str, at_ms: int) -> None:
    message = {
        "body_text": unique_id,
        "queue": 0,
        "unique_id": unique_id,
        "deliver_at_ms": at_ms,
    }
    status, answer = node.request_json("POST", TOPIC + "/messages", {"messages": [message]})
    assert status == 200, answer


def cancel(node: Node, unique_id: str) -> None:
    status, answer = node.request_json("DELETE", f"/v1/delayed/{unique_id}")
    assert status == 200, answer


def delivered(node: Node) -> list[str]:
    path = f"{TOPIC}/queues/0/messages?offset=0&max=64"
    return [each["body_text"] for each in node.request_json("GET", path)[1]["messages"]]


def waiting(node: Node) -> list[str]:
    status, answer = node.request_json("GET", "/v1/delayed")
    assert status == 200, answer
    return [each["unique_id"] for each in answer["messages"]]


def wait_settled(node: Node) -> None:
    """Wait until each message is either delivered or waits, and none is there twice."""
    expected = Counter(IN_TIME + LATER)

    def found() -> Counter[str]:
        before = delivered(node)
        return Counter(before + [each for each in waiting(node) if each not in delivered(node)])

    wait_until(lambda: found() == expected, "each message to be known")
    assert Counter(delivered(node)) <= expected, "one was delivered twice"


def start(node: Node) -> None:
    node.start()
    node.wait_ready()


def stop(node: Node) -> None:
    assert node.stop() == {"broker": 0, "reput": 0}


def check_units(path: Path) -> None:
    """Each unit of RocketMQ's log is read, and written byte for byte as it is there."""
    raw = path.read_bytes()
    at = 0
    while (unit := timer_log.decode(raw, at)) is not None:
        assert timer_log.encode(*unit) == raw[at : at + timer_log.UNIT_SIZE]
        at += timer_log.UNIT_SIZE
    assert at >= 10 * timer_log.UNIT_SIZE
    assert not any(raw[at : at + 4096])


def test_each_message_comes_once_and_a_cancelled_one_never(tmp_path: Path) -> None:
    classpath()
    with Node(tmp_path / "node") as node:
        start(node)
        assert node.request_json("PUT", TOPIC, {"queues": 1})[0] == 200
        begin = int(time.time() * 1000)
        send(node, "ours", begin + 500)
        send(node, "late", begin + HOUR_MS)
        send(node, "never", begin + 11_000)
        send(node, "ours-later", begin + 11_000)
        send(node, "far", begin + 30 * 24 * HOUR_MS)
        send(node, "first", begin + 3000)
        send(node, "last", begin + 600)  # of the queue; delivered here
        wait_until(lambda: delivered(node) == ["ours", "last"], "our own two")
        cancel(node, "never")
        stop(node)
        # RocketMQ goes on, puts back what is later than its window, and has messages of its own.
        found = run_timer(
            node.store_dir,
            tmp_path,
            "put:mine:7000",
            "put:dropped:7000",
            "cancel:dropped:7000",
            "put:soon:0",
            "until:4",
            "queued:14",  # all but the last are put back once
            roll_window_s=WINDOW_S,
            shape=SMALL_STORE,
        )
        assert Counter(found) >= Counter(["ours", "last", "first", "soon"])
        assert max(Counter(found).values()) == 1
        check_units(node.store_dir / "timerlog" / offset_name(0))
        # We go on, and hand over once more; what was due meanwhile has come, from one of the two.
        start(node)
        wait_settled(node)
        stop(node)
        found = run_timer(
            node.store_dir,
            tmp_path,
            "until:6",
            "kill",
            roll_window_s=WINDOW_S,
            shape=SMALL_STORE,
        )
        assert Counter(found) == Counter(IN_TIME)
        start(node)
        wait_settled(node)
        assert Counter(delivered(node)) == Counter(IN_TIME)
        stop(node)
