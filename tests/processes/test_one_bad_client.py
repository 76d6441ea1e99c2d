"""One client at a time does its worst: another one's sends all succeed, and memory is bounded.

The times of the other client's sends before, during and after are printed (``pytest -s``); they
decide nothing.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgpack
import pytest

import tidemark
from tests.support.node import Node, wait_until

MIB: Final = 1 << 20
SENDS: Final = 60
GROWTH_MAX: Final = 192 * MIB
"""Of the broker's own memory: half of waiting_bytes_max, and one request being decoded."""
SETTINGS: Final = {"waiting_bytes_max": 128 * MIB, "connections_max": 300}
ALIKE: Final = ["".join(each) for each in itertools.product(("Aa", "BB"), repeat=9)]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    store = {"commit_log_file_size": 64 * MIB, "index_slots": 50_000, "index_entries": 200_000}
    with Node(tmp_path_factory.mktemp("bad"), store=store, broker=SETTINGS) as running:
        running.start()
        running.wait_ready()
        with tidemark.connect_sync(running.api_url) as mq:
            mq.create_topic("good", queues=1)
            mq.create_topic("bad", queues=1)
            for number in range(64):
                mq.send("bad", b"%d" % number, keys=ALIKE[1:])
            for _ in range(16):
                mq.send("bad", b"\x01" * (3 * MIB), keys=["large"])
            mq.send("bad", b"last", keys=["last"])
            wait_until(lambda: bool(mq.messages_by_key("bad", "last")), "dispatch to be done")
        yield running


def own_memory(node: Node) -> int:
    """Bytes of the broker that are no mapped file."""
    text = Path(f"/proc/{node.pid('broker')}/status").read_text()
    found = re.search(r"RssAnon:\s+(\d+) kB", text)
    assert found is not None
    return int(found[1]) * 1024


class Attack:
    """Connections of the bad client, and whether it is to stop."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.stop = threading.Event()
        self.held: list[socket.socket] = []
        self.count = 0

    def connect(self, port: str = "api") -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self.node.ports[port]), timeout=60)
        self.held.append(made)
        return made

    def ask(self, method: str, path: str, body: bytes = b"", kind: str = "json") -> int:
        """One request on a connection of its own; its status, 0 if the connection was closed."""
        self.count += 1
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.node.ports["api"], timeout=120)
        ) as connection:
            try:
                connection.request(
                    method, path, body or None, {"Content-Type": f"application/{kind}"}
                )
                answer = connection.getresponse()
                answer.read()
            except (OSError, http.client.HTTPException):
                return 0
            return answer.status


def silent_bodies(attack: Attack) -> None:
    head = "POST /v1/topics/bad/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 16777216\r\n\r\n"
    for _ in range(64):
        attack.connect().sendall(head.encode())
    attack.count += 64
    attack.stop.wait()


def half_bodies(attack: Attack) -> None:
    head = b"POST /v1/topics/bad/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 16777216\r\n\r\n"
    while not attack.stop.is_set():
        with contextlib.suppress(OSError):
            attack.connect().sendall(head + bytes(8 * MIB))
        attack.count += 1


def empty_maps(attack: Attack) -> None:
    body = msgpack.packb({"messages": [{}] * (16 * MIB - 100)})
    while not attack.stop.is_set():
        assert attack.ask("POST", "/v1/topics/bad/messages", body, "msgpack") in (413, 0)


def equal_hashes(attack: Attack) -> None:
    while not attack.stop.is_set():
        path = f"/v1/topics/bad/messages?key={ALIKE[0]}"
        assert attack.ask("GET", path) == 200


def repeats_of_equal_hashes(attack: Attack) -> None:
    messages = [{"body_text": "x", "unique_id": ALIKE[0]}]
    body = json.dumps({"messages": messages, "retry": True}).encode()
    while not attack.stop.is_set():
        assert attack.ask("POST", "/v1/topics/bad/messages", body) in (200, 503)


def large_answers(attack: Attack) -> None:
    while not attack.stop.is_set():
        assert attack.ask("GET", "/v1/topics/bad/messages?key=large&max=64") in (200, 503)


def slow_readers(attack: Attack) -> None:
    for _ in range(32):
        request = (
            "GET /v1/topics/bad/queues/0/messages?offset=64&max=64 HTTP/1.1\r\nHost: x\r\n\r\n"
        )
        attack.connect().sendall(request.encode())
        attack.count += 1
    attack.stop.wait()


def idle_connections(attack: Attack) -> None:
    while not attack.stop.is_set() and attack.count < 1500:
        for port in ("api", "broker"):
            with contextlib.suppress(OSError):
                attack.connect(port)
            attack.count += 1
    attack.stop.wait()


def joins(attack: Attack) -> None:
    body = json.dumps({"subscriptions": [{"topic": "bad"}]}).encode()
    for number in itertools.count():
        if attack.stop.is_set():
            return
        status = attack.ask("POST", f"/v1/groups/g{number}/members/m", body)
        assert status in (200, 503), status


def topics(attack: Attack) -> None:
    for number in itertools.count():
        if attack.stop.is_set():
            return
        status = attack.ask("PUT", f"/v1/topics/flood{number}", b'{"queues": 1}')
        assert status in (200, 503), status


def sends(node: Node, count: int) -> tuple[list[float], int]:
    """Seconds that each send took, and the most memory that the broker had; all succeed."""
    times, most = [], 0
    body = json.dumps({"messages": [{"body_text": "good"}]})
    with contextlib.closing(
        http.client.HTTPConnection("127.0.0.1", node.ports["api"], timeout=120)
    ) as connection:
        for _ in range(count):
            began = time.monotonic()
            connection.request(
                "POST", "/v1/topics/good/messages", body, {"Content-Type": "application/json"}
            )
            answer = connection.getresponse()
            data = answer.read()
            times.append(time.monotonic() - began)
            assert answer.status == 200, data
            most = max(most, own_memory(node))
    return times, most


def shown(times: list[float]) -> str:
    ordered = sorted(times)
    p99 = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    return f"p50 {ordered[len(ordered) // 2] * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms"


@pytest.mark.parametrize(
    "worst",
    [
        silent_bodies,
        half_bodies,
        empty_maps,
        equal_hashes,
        repeats_of_equal_hashes,
        large_answers,
        slow_readers,
        idle_connections,
        joins,
        topics,
    ],
    ids=lambda worst: worst.__name__,
)
def test_another_clients_sends_succeed_and_memory_is_bounded(
    node: Node, worst: Callable[[Attack], None]
) -> None:
    before, at_first = sends(node, SENDS)
    attack, failures = Attack(node), list[Exception]()

    def run() -> None:
        try:
            worst(attack)
        except Exception as error:  # noqa: BLE001 - judged below
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_until(lambda: attack.count > 0 or bool(failures), "the bad client to begin")
        during, most = sends(node, SENDS)
    finally:
        attack.stop.set()
        for each in attack.held:
            each.close()
        thread.join()
    began = time.monotonic()
    after, _ = sends(node, SENDS)
    print(
        f"{worst.__name__}: {attack.count} tries; before {shown(before)}; during {shown(during)}; "
        f"after {shown(after)}, the first within {(time.monotonic() - began) * 1000:.0f} ms of "
        f"its end; memory +{(most - at_first) / MIB:.0f} MiB"
    )
    assert not failures, failures
    assert most - at_first <= GROWTH_MAX
    assert node.ready()["ready"]
    assert node.get_json(f"{node.broker_admin_url}/live")[0] == 200
