"""One badly behaved client at a time: another one's sends all succeed, and memory is bounded.

``bench/one_bad_client.py`` measures how long those sends take; times decide nothing here.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import tidemark
from bench.bad_clients import ATTACKS, GROWTH_MAX, MIB, SETTINGS, Attack, attackable
from tests.support.node import Node, wait_until

SENDS: Final = 60


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    store = {"commit_log_file_size": 64 * MIB, "index_slots": 50_000, "index_entries": 200_000}
    with Node(tmp_path_factory.mktemp("bad"), store=store, broker=SETTINGS) as running:
        running.start()
        running.wait_ready()
        with tidemark.connect_sync(running.api_url) as mq:
            mq.create_topic("good", queues=1)
            attackable(mq)
            wait_until(lambda: bool(mq.messages_by_key("bad", "last")), "dispatch to be done")
        yield running


def own_memory(node: Node) -> int:
    """Memory of the broker without mapped files."""
    text = Path(f"/proc/{node.pid('broker')}/status").read_text()
    found = re.search(r"RssAnon:\s+(\d+) kB", text)
    assert found is not None
    return int(found[1]) * 1024


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


@pytest.mark.parametrize("name", ATTACKS)
def test_another_clients_sends_succeed_and_memory_is_bounded(node: Node, name: str) -> None:
    before, at_first = sends(node, SENDS)
    attack = Attack(node.ports["api"], node.ports["broker"])
    failures: list[Exception] = []

    def run() -> None:
        try:
            ATTACKS[name](attack)
        except Exception as error:  # noqa: BLE001 - judged below
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_until(lambda: attack.count > 0 or bool(failures), "the bad client to begin")
        during, most = sends(node, SENDS)
    finally:
        attack.close()
        thread.join()
        attack.close()
    began = time.monotonic()
    after, _ = sends(node, SENDS)
    print(
        f"{name}: {attack.count} tries; before {shown(before)}; during {shown(during)}; "
        f"after {shown(after)}, the first within {(time.monotonic() - began) * 1000:.0f} ms of "
        f"its end; memory +{(most - at_first) / MIB:.0f} MiB"
    )
    assert not failures, failures
    assert most - at_first <= GROWTH_MAX
    assert node.ready()["ready"]
    assert node.get_json(f"{node.broker_admin_url}/live")[0] == 200
