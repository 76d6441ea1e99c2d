"""The broker of a node of a group, by what it does when ha says something in the page.

Broker and reput are real processes, ha is a script (``tests.support.scripted_ha``), stopped or
killed between any two of its steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node import Node, wait_until
from tests.support.scripted_ha import ScriptedHa, scripted_node
from tidemark.formats.checkpoint import Slot

TOPIC = "/v1/topics/orders"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with scripted_node(tmp_path) as made:
        yield made


@pytest.fixture
def ha(node: Node) -> Iterator[ScriptedHa]:
    with ScriptedHa(node) as made:
        yield made


def send(node: Node, text: str, **more: object) -> tuple[int, dict[str, object]]:
    body = {"messages": [{"body_text": text}], **more}
    return node.request_json("POST", f"{TOPIC}/messages", body)


def is_primary(node: Node) -> bool:
    return node.get_json(node.broker_admin_url + "/primary")[0] == 200


def is_replica(node: Node) -> bool:
    return node.get_json(node.broker_admin_url + "/replica")[0] == 200


def wait_master(node: Node) -> None:
    wait_until(lambda: is_primary(node), "the broker to be the master", 20)


def wait_slave(node: Node) -> None:
    wait_until(lambda: is_replica(node), "the broker to be a slave", 20)


def test_a_granted_epoch_is_served_and_given_back(node: Node, ha: ScriptedHa) -> None:
    ha.start()
    node.start("broker", "reput")
    wait_slave(node)
    ha.serve(1)
    wait_master(node)
    assert node.request_json("PUT", TOPIC, {"queues": 1})[0] == 200
    status, answer = send(node, "first")
    assert (status, answer["ack"]) == (200, {"level": "replicated", "copies": 2})
    ha.take_back()
    assert ha.get(Slot.SERVING_EPOCH) == 0
    status, answer = send(node, "second")
    assert (status, answer["code"]) == (421, "not-master")
    wait_slave(node)
