"""Two name services, two standalone brokers and a group of two: kills, failover, new topics."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from drills.node_group import ask
from tests.support.cluster import Cluster
from tests.support.dev import Dev
from tests.support.names import NamesProcesses
from tests.support.node import wait_until
from tidemark.testing.node import LocalNode, NodeProcesses
from tidemark.testing.ports import free_ports

WAIT_MS = 60_000
GROUPS = ("a0", "a1", "g")


class World(NamedTuple):
    """Everything that runs."""

    names: NamesProcesses
    alone: list[NodeProcesses]
    """Of the broker groups a0 and a1."""
    cluster: Cluster
    """Broker group g."""

    def put_topic(self, group: str, topic: str) -> None:
        url = {
            "a0": self.alone[0].api_url,
            "a1": self.alone[1].api_url,
        }.get(group) or self.cluster.nodes[self.cluster.wait_master()].api_url
        wait_until(
            lambda: ask(f"{url}/v1/topics/{topic}", "PUT", {"queues": 4})[0] == 200, "a topic"
        )

    def groups(self, number: int, path: str = "") -> list[str]:
        return [each["group"] for each in self.names.route(number, path)[1].get("groups", [])]


def standalone(directory: Path, group: str, urls: list[str], secret: Path) -> NodeProcesses:
    table = {"urls": urls, "secret_file": str(secret)}
    broker = {"cluster": {"group": group}, "names": table}
    return NodeProcesses(directory, settings={"broker": broker})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("names")
    with contextlib.ExitStack() as closing:
        secret = directory / "secret"
        secret.write_text("0123456789abcdef" * 2)
        secret.chmod(0o600)
        names = closing.enter_context(
            NamesProcesses(directory, 2, groups=",".join(GROUPS), secret_file=str(secret))
        )
        alone = [
            closing.enter_context(standalone(directory / group, group, names.urls, secret))
            for group in GROUPS[:2]
        ]
        cluster = closing.enter_context(
            Cluster(
                directory / "g",
                cluster={"name": "tidemark", "group": "g"},
                broker={"names": {"urls": names.urls, "secret_file": str(secret)}},
            )
        )
        for node in alone:
            node.start()
        cluster.start()
        found = World(names, alone, cluster)
        cluster.wait_in_sync()
        for number in range(2):
            wait_until(lambda n=number: names.route(n)[1].get("complete"), "all groups")  # type: ignore[misc]
        yield found


def later(world: World, number: int, path: str, version: str) -> tuple[threading.Thread, list[Any]]:
    """Hold a long poll in a thread; the list gets its answer."""
    answers: list[Any] = []
    query = f"?after={version}&wait_ms={WAIT_MS}"
    thread = threading.Thread(
        target=lambda: answers.append(world.names.route(number, path, query)), daemon=True
    )
    thread.start()
    return thread, answers


def test_both_instances_and_each_broker_answer_the_same(world: World) -> None:
    routes = [world.names.route(number)[1] for number in range(2)]
    assert routes[0]["groups"] == routes[1]["groups"]
    assert [each["group"] for each in routes[0]["groups"]] == list(GROUPS)
    assert {each["master"] is not None for each in routes[0]["groups"]} == {True}
    assert routes[0]["version"] == routes[1]["version"]
    own = ask(f"{world.alone[0].api_url}/v1/route")[1]
    assert own["groups"] == routes[0]["groups"][:1]
    assert own["names"] == world.names.urls


def test_a_new_topic_is_seen_at_once_by_a_held_long_poll(world: World) -> None:
    assert world.names.route(1, "/orders")[0] == 404
    thread, answers = later(world, 1, "", world.names.route(1)[1]["version"])
    world.put_topic("a0", "orders")
    began = time.monotonic()
    thread.join(20)
    assert answers, "the long poll was not answered"
    assert answers[0][1]["changed"]
    wait_until(lambda: world.groups(1, "/orders") == ["a0"], "the topic")
    assert time.monotonic() - began < 10.0
    world.put_topic("g", "orders")
    wait_until(lambda: world.groups(0, "/orders") == ["a0", "g"], "the second broker group")


def test_a_failover_is_seen_by_a_held_long_poll(world: World) -> None:
    world.put_topic("g", "failing")
    wait_until(lambda: world.groups(0, "/failing") == ["g"], "the topic")
    before = world.names.route(0, "/failing")[1]
    master = before["groups"][0]["master"]
    world.cluster.kill(master)
    try:
        deadline = time.monotonic() + 60
        route = before
        while route["groups"][0]["master"] in (master, None):
            assert time.monotonic() < deadline, route
            thread, answers = later(world, 0, "/failing", route["version"])
            thread.join(60)
            route = answers[0][1]
        group = route["groups"][0]
        assert group["epoch"] > before["groups"][0]["epoch"]
        roles = {node["node"]: node["role"] for node in group["nodes"]}
        assert roles == {group["master"]: "master", master: "unknown"}
    finally:
        world.cluster.start(master)
        world.cluster.wait_in_sync()
    wait_until(
        lambda: (
            "slave"
            in [each["role"] for each in world.names.route(0, "/failing")[1]["groups"][0]["nodes"]]
        ),
        "the old master to register as a slave",
    )


def test_a_restarted_instance_is_incomplete_until_every_broker_group_has_registered(
    world: World,
) -> None:
    world.names.processes[0].kill()
    world.put_topic("a0", "meanwhile")
    url = f"{world.alone[0].api_url}/v1/topics/meanwhile/messages"
    began = time.monotonic()
    assert ask(url, "POST", {"messages": [{"body_text": "x"}]})[0] == 200
    assert time.monotonic() - began < 5.0, "a send does not wait for a name service"
    wait_until(lambda: world.groups(1, "/meanwhile") == ["a0"], "the other instance")
    world.names.start([0])
    status, answer = world.names.route(0)
    assert status == 200
    assert (answer["complete"], set(answer["missing"]) <= set(GROUPS)) == (False, True)
    status, answer = world.names.route(0, "/never-made")
    assert (status, answer["code"], answer["retriable"]) == (503, "route-incomplete", True)
    for group in GROUPS:
        world.put_topic(group, "after")
    wait_until(lambda: world.names.route(0)[1]["complete"], "all broker groups to register")
    assert world.names.route(0, "/never-made")[0] == 404
    assert world.groups(0, "/after") == list(GROUPS)
    masters = [
        [(each["group"], each["master"]) for each in world.names.route(number)[1]["groups"]]
        for number in range(2)
    ]
    assert masters[0] == masters[1], "slaves register within 30 s"


def test_a_second_broker_group_of_one_name_is_refused_and_both_are_named(
    world: World, tmp_path: Path
) -> None:
    before = world.names.route(1)[1]["groups"]
    secret = Path(str(world.alone[0].settings("broker")["names"]["secret_file"]))  # type: ignore[index]
    with standalone(tmp_path, "a0", world.names.urls, secret) as second:
        second.start()
        wait_until(lambda: "broker-group-conflict" in second.log_text("broker"), "the refusal")
        second.wait_ready("broker")
        for url in (world.alone[0].api_url, second.api_url):
            assert url in second.log_text("broker")
    assert world.names.route(1)[1]["groups"] == before


def test_a_standalone_node_without_name_services_answers_its_own_route(tmp_path: Path) -> None:
    with LocalNode(tmp_path) as node:
        status, route = ask(f"{node.url}/v1/route")
        assert (status, route["names"], route["complete"]) == (200, [], True)
        assert [each["master"] for each in route["groups"]] == ["n0"]
        assert not (node.store_dir / "store-id").exists(), "it registers with nobody"
        query = f"?after={route['version']}&wait_ms=100"
        assert not ask(f"{node.url}/v1/route{query}")[1]["changed"]
        assert ask(f"{node.url}/v1/route/none")[1]["code"] == "unknown-topic"


def test_dev_runs_two_broker_groups_and_a_name_service(tmp_path: Path) -> None:
    port = free_ports(120)[0]
    dev = Dev(tmp_path / "dev", port, "--groups", "2", "--names", "1")
    try:
        dev.wait_for("Stop with Ctrl-C")
        url = f"http://127.0.0.1:{port + 100}/v1/route"
        assert url in dev.said
        # Both brokers have registered before the name service says that it is complete.
        wait_until(lambda: ask(url)[1].get("complete"), "both broker groups")
        assert [each["group"] for each in ask(url)[1]["groups"]] == ["g0", "g1"]
        assert dev.stop() == 0
        assert "Traceback" not in dev.said
    finally:
        dev.close()
