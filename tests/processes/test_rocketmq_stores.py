"""Stores that Apache RocketMQ's own classes wrote with settings that the golden stores lack."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from tests.support.command import run
from tests.support.node import Node
from tests.support.referee import classpath, write_store

SHAPE = {
    "commit_log_file_size": 1 << 18,
    "consume_queue_file_size": 4_000,
    "index_slots": 100,
    "index_entries": 500,
}
COUNT = 1000


def test_tags_and_due_times_in_extensions_are_those_of_the_records(tmp_path: Path) -> None:
    """With ``enableConsumeQueueExt`` a unit has the address of its tags code. Treated as hashes,
    pulls by tag missed messages; treated as due times, messages of level 18 were delivered at once.
    """
    classpath()
    with Node(tmp_path / "node", store=SHAPE) as node:
        for rounds in (1, 2):
            # RocketMQ has the store again after ours: it goes on with its extensions.
            write_store(node.store_dir, tmp_path, "ext", count=COUNT, shape=SHAPE)
            assert verified(node.store_dir)["damages"] == []
            node.start()
            node.wait_ready()
            found: Counter[str] = Counter()
            for queue in (0, 1):
                for tag in ("t0", "t6"):
                    found[tag] += len(pulled(node, queue, tag))
            sent = [n for n in range(COUNT) if n % 10 != 9]
            assert found == {f"t{t}": rounds * sum(n % 7 == t for n in sent) for t in (0, 6)}
            status, answer = node.request_json("GET", "/v1/topics/orders")
            assert status == 200
            ends = sum(queue["max_offset"] for queue in answer["queues"])
            assert ends == rounds * len(sent), "no message of level 18 is delivered yet"
            assert node.stop() == {"broker": 0, "reput": 0}
            report = verified(node.store_dir)
            assert report["damages"] == []
            assert report["units"] >= rounds * COUNT


def verified(store: Path) -> dict[str, Any]:
    """The report of `store verify`, whatever its status."""
    report: dict[str, Any] = json.loads(
        run("store", "verify", "--store", store, "-o", "json").stdout
    )
    return report


def pulled(node: Node, queue: int, tag: str) -> list[dict[str, Any]]:
    """All messages of a queue of "orders" that a pull by tag finds."""
    messages: list[dict[str, Any]] = []
    at, end = 0, 1
    while at < end:
        path = f"/v1/topics/orders/queues/{queue}/messages?offset={at}&max=1024&tags={tag}"
        status, answer = node.request_json("GET", path)
        assert status == 200, answer
        messages += answer["messages"]
        at, end = answer["next_offset"], answer["max_offset"]
    return messages
