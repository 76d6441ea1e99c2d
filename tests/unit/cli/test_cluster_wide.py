"""Commands cover all broker groups of a cluster and say which one a result is from."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import tidemark
from tests.support.route_server import RouteServer, in_a_thread
from tidemark.cli.main import cli
from tidemark.testing import LocalStore


class Cluster:
    """Two broker groups and their name service."""

    def __init__(self, stores: dict[str, LocalStore], names: RouteServer) -> None:
        self.stores, self.names = stores, names

    def run(self, *arguments: str, text: str | None = None) -> Result:
        return CliRunner().invoke(cli, [*arguments, "--url", self.names.url], input=text)

    def printed(self, *arguments: str, text: str | None = None) -> Any:
        result = self.run(*arguments, "-o", "json", text=text)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory: Path = tmp_path_factory.mktemp("cluster")
    with contextlib.ExitStack() as parts:
        stores = {name: parts.enter_context(LocalStore(directory / name)) for name in ("g0", "g1")}
        names = RouteServer({name: store.url for name, store in stores.items()})
        parts.enter_context(in_a_thread(names))
        yield Cluster(stores, names)


def test_a_topic_is_made_shown_and_deleted_everywhere(cluster: Cluster) -> None:
    made = cluster.printed("topic", "create", "orders", "--queues", "2")
    assert (made["queues"], made["broker_groups"]) == (4, {"g0": 2, "g1": 2})
    assert [row["queue"] for row in cluster.printed("topic", "show", "orders")] == [
        "g0/0", "g0/1", "g1/0", "g1/1",
    ]  # fmt: skip
    cluster.printed("topic", "create", "small", "--queues", "1", "--groups", "g1")
    listed = {row["topic"]: row["broker_groups"] for row in cluster.printed("topic", "list")}
    assert listed == {"orders": {"g0": 2, "g1": 2}, "small": {"g1": 1}}
    synced = cluster.printed("topic", "sync", "small", "--groups", "g0")
    assert synced["broker_groups"] == {"g0": 1, "g1": 1}
    assert cluster.printed("topic", "delete", "small", "--yes")["deleted"] is True
    assert [row["topic"] for row in cluster.printed("topic", "list")] == ["orders"]
    wrong = cluster.run("topic", "create", "x", "--groups", "g7")
    assert wrong.exit_code == 1
    assert "[unknown-broker-group]" in wrong.stderr


def test_broker_groups_are_listed(cluster: Cluster) -> None:
    rows = cluster.printed("cluster", "groups")
    assert [(row["broker_group"], row["master"], row["epoch"]) for row in rows] == [
        ("g0", "n0", 1),
        ("g1", "n0", 1),
    ]
    assert cluster.stores["g0"].url in rows[0]["nodes"][0]


def test_lines_go_through_the_cluster_and_come_back(cluster: Cluster) -> None:
    cluster.printed("topic", "create", "lines", "--queues", "2")
    text = "".join(f"line-{n}\n" for n in range(40))
    sent = cluster.printed("produce", "lines", "--batch", "5", text=text)
    assert sent["lines"] == 40
    assert sorted(cluster.run("consume", "lines").stdout.splitlines()) == sorted(text.splitlines())
    one = cluster.run("consume", "lines", "--queue", "g1/0", "--format", "json")
    assert {json.loads(line)["queue"] for line in one.stdout.splitlines()} == {"g1/0"}
    assert len(cluster.run("consume", "lines", "--group", "billing").stdout.splitlines()) == 40
    lag = cluster.printed("lag", "billing", "--topic", "lines")
    assert [(row["queue"], row["messages"]) for row in lag] == [
        ("g0/0", 0), ("g0/1", 0), ("g1/0", 0), ("g1/1", 0),
    ]  # fmt: skip
    (group,) = [row for row in cluster.printed("group", "list") if row["group"] == "billing"]
    assert group["broker_groups"] == ["g0", "g1"]
    moved = cluster.printed("group", "reset", "billing", "lines", "--to", "first")
    assert {row["queue"] for row in moved} == {"g0/0", "g0/1", "g1/0", "g1/1"}
    moved = cluster.printed("group", "reset", "billing", "lines", "--to", "last", "--queue", "g1/1")
    assert [row["queue"] for row in moved] == ["g1/1"]
    assert cluster.printed("group", "describe", "billing")["members"] == []


def test_a_queue_that_the_cluster_lacks_is_named(cluster: Cluster) -> None:
    cluster.printed("topic", "create", "few", "--queues", "1")
    result = cluster.run("consume", "few", "--queue", "g0/7")
    assert result.exit_code == 1
    assert "its queues are g0/0 to g1/0" in result.stderr
    assert cluster.run("consume", "few", "--queue", "g0").exit_code == 2


def test_a_number_is_enough_for_a_topic_of_one_broker_group(cluster: Cluster) -> None:
    cluster.printed("topic", "create", "single", "--queues", "2", "--groups", "g1")
    assert cluster.printed("produce", "single", "--queue", "1", text="x\n")["lines"] == 1
    assert cluster.run("consume", "single", "--queue", "1").stdout == "x\n"
    assert cluster.run("consume", "single", "--queue", "g1/1").stdout == "x\n"


def test_a_partial_failure_names_each_broker_group(cluster: Cluster) -> None:
    cluster.names.urls["g2"] = "http://127.0.0.1:1"
    try:
        result = cluster.run("topic", "create", "part", "-o", "json")
        assert result.exit_code == 1
        error = json.loads(result.stderr)
        assert (error["code"], error["done"]) == ("partial-failure", ["g0", "g1"])
        assert error["failed"]["g2"]["code"] == "unreachable"
        text = cluster.run("topic", "create", "part").stderr
        assert "  g2: no connection to http://127.0.0.1:1" in text
    finally:
        del cluster.names.urls["g2"]
    assert cluster.printed("topic", "create", "part")["broker_groups"] == {"g0": 4, "g1": 4}


def test_a_topic_gets_more_queues_and_each_broker_group_says_how_many(cluster: Cluster) -> None:
    cluster.printed("topic", "create", "wide", "--queues", "2")
    cluster.printed("topic", "create", "wide", "--queues", "5", "--groups", "g1")
    partly = cluster.run("topic", "extend", "wide", "--queues", "4", "-o", "json")
    error = json.loads(partly.stderr)
    assert (error["code"], error["done"]) == ("partial-failure", ["g0"])
    assert error["failed"]["g1"]["code"] == "bad-request"
    assert "has 5 queues, and queues are never removed" in error["failed"]["g1"]["detail"]
    rows = cluster.printed("topic", "extend", "wide", "--queues", "6")
    assert [(row["broker_group"], row["before"], row["after"]) for row in rows] == [
        ("g0", 4, 6), ("g1", 5, 6),
    ]  # fmt: skip
    again = cluster.run("topic", "extend", "wide", "--queues", "6")
    assert again.exit_code == 0
    assert "none was added" in again.stderr
    less = cluster.run("topic", "extend", "wide", "--queues", "3")
    assert less.exit_code == 1
    assert "[bad-request]" in less.stderr
    (one,) = cluster.printed("topic", "extend", "wide", "--queues", "8", "--groups", "g1")
    assert (one["before"], one["after"]) == (6, 8)
    listed = {row["topic"]: row["broker_groups"] for row in cluster.printed("topic", "list")}
    assert listed["wide"] == {"g0": 6, "g1": 8}


def test_a_topic_of_one_broker_is_extended_without_a_broker_group(cluster: Cluster) -> None:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(cli, [*arguments, "--url", cluster.stores["g0"].url])

    assert run("topic", "create", "alone", "--queues", "2").exit_code == 0
    shown = run("topic", "extend", "alone", "--queues", "3", "-o", "json")
    assert json.loads(shown.stdout) == [{"broker_group": None, "before": 2, "after": 3}]
    less = run("topic", "extend", "alone", "--queues", "1")
    assert less.exit_code == 1
    assert "has 3 queues, and queues are never removed" in less.stderr


def test_an_extension_makes_no_topic(cluster: Cluster) -> None:
    missing = cluster.run("topic", "extend", "nothing", "--queues", "3")
    assert missing.exit_code == 1
    assert "[unknown-topic]" in missing.stderr
    cluster.printed("topic", "create", "half", "--queues", "2", "--groups", "g0")
    assert [
        row["after"] for row in cluster.printed("topic", "extend", "half", "--queues", "3")
    ] == [3]
    partly = cluster.run(
        "topic", "extend", "half", "--queues", "4", "--groups", "g0,g1", "-o", "json"
    )
    error = json.loads(partly.stderr)
    assert (error["done"], error["failed"]["g1"]["code"]) == (["g0"], "unknown-topic")


def test_an_extension_names_the_broker_group_that_is_down_and_can_be_repeated(
    cluster: Cluster,
) -> None:
    cluster.printed("topic", "create", "later", "--queues", "1")
    cluster.printed("topic", "show", "later")  # the name service has learned of the topic
    url = cluster.names.urls["g1"]
    cluster.names.urls["g1"] = "http://127.0.0.1:1"
    try:
        partly = cluster.run("topic", "extend", "later", "--queues", "2", "-o", "json")
        error = json.loads(partly.stderr)
        assert (error["done"], error["failed"]["g1"]["code"]) == (["g0"], "unreachable")
    finally:
        cluster.names.urls["g1"] = url
    rows = cluster.printed("topic", "extend", "later", "--queues", "2")
    assert [(row["before"], row["after"]) for row in rows] == [(2, 2), (1, 2)]


def test_reads_show_what_others_answer_and_name_the_broker_group_that_fails(
    cluster: Cluster,
) -> None:
    cluster.printed("topic", "create", "read", "--queues", "1")
    with tidemark.connect_sync(cluster.names.url) as mq:
        for queue in ("g0/0", "g1/0"):
            mq.send("read", queue.encode(), queue=queue, keys=["k"])
    assert len(cluster.run("consume", "read", "--group", "readers").stdout.splitlines()) == 2
    found = cluster.run("message", "find", "read", "--key", "k", "-o", "json").stdout.splitlines()
    (message_id,) = [row["unique_id"] for row in map(json.loads, found) if row["queue"] == "g0/0"]
    cluster.names.urls["g2"] = "http://127.0.0.1:1"
    cluster.names.topics["g2"] = {"read": 1}
    try:
        queues = {
            ("topic", "show", "read"): ["g0/0", "g1/0"],
            ("lag", "readers", "--topic", "read"): ["g0/0", "g1/0"],
        }
        for arguments, expected in queues.items():
            rows = partly(cluster, *arguments)
            assert [row["queue"] for row in rows] == expected
        (listed,) = [row for row in partly(cluster, "lag") if row["group"] == "readers"]
        assert (listed["messages"], listed["why"]) == (None, "no answer from broker group g2")
        assert "readers" in [row["group"] for row in partly(cluster, "group", "list")]
        assert partly(cluster, "group", "describe", "readers")["lag"]["messages"] is None
        assert "read" in [row["topic"] for row in partly(cluster, "topic", "list")]
        result = cluster.run("message", "find", "read", "--key", "k", "-o", "json")
        assert (result.exit_code, len(result.stdout.splitlines())) == (1, 2)
        assert "g2" in json.loads(result.stderr)["failed"]
        # A message that is found is complete; one that is not found may be in g2.
        assert cluster.printed("message", "get", message_id)["queue"] == "g0/0"
        missing = cluster.run("message", "get", "0" * 32, "-o", "json")
        assert (missing.exit_code, missing.stdout) == (1, "")
        assert json.loads(missing.stderr)["code"] == "partial-failure"
    finally:
        del cluster.names.urls["g2"], cluster.names.topics["g2"]


def partly(cluster: Cluster, *arguments: str) -> Any:
    """Return what a command prints although g2 fails."""
    result = cluster.run(*arguments, "-o", "json")
    assert result.exit_code == 1
    error = json.loads(result.stderr)
    assert error["failed"]["g2"]["code"] == "unreachable"
    return json.loads(result.stdout)
