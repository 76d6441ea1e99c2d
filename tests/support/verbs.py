"""Commands against one node, and the log to compare their output with (test_delivery_verbs*.py)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import tidemark as sdk
from tests.support.command import run, tidemark
from tests.support.log_facts import LogFacts
from tests.support.node import Node

LEVELS: Final = "1s 1s 1s 1s 1s 1s"
QUEUES: Final = 4
WAIT_S: Final = 60.0


@contextmanager
def running_node(directory: Path) -> Iterator[Node]:
    """One node for all verbs: each test has topics and groups of its own."""
    with Node(
        directory,
        store={"delay_levels": LEVELS, "commit_log_file_size": 4 << 20},
        broker={"auto_create_topics": True, "auto_create_queues": QUEUES},
    ) as running:
        running.start()
        running.wait_ready()
        yield running
        running.print_logs(50)


def command(node: Node, *arguments: str | Path) -> Any:
    """What a command that must succeed prints as JSON."""
    return json.loads(tidemark(*arguments, "-o", "json", "--url", node.api_url))


def refused(node: Node, *arguments: str) -> str:
    """The code with which a command fails."""
    done = run(*arguments, "-o", "json", "--url", node.api_url)
    assert done.returncode == 1, done.stderr
    return str(json.loads(done.stderr.splitlines()[-1])["code"])


def produce(node: Node, topic: str, lines: list[str], *, queues: int = QUEUES) -> None:
    """One message per line, spread over the queues."""
    command(node, "topic", "create", topic, "--queues", str(queues))
    with sdk.connect_sync(node.api_url) as mq:
        mq.send_many(
            topic,
            [
                sdk.NewMessage(line.encode(), queue=number % queues, keys=[f"key-{number}"])
                for number, line in enumerate(lines)
            ],
        )


def consumed(node: Node, topic: str, group: str, *options: str) -> list[str]:
    """Lines that ``tidemark consume --group`` writes until the topic's end."""
    url = ("--url", node.api_url)
    return tidemark("consume", topic, "--group", group, *options, *url).decode().splitlines()


def log_of(node: Node) -> LogFacts:
    return LogFacts(node.store_dir)
