"""The order of the steps of ``replace-node``, also when it is repeated after each of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner, Result

from tidemark.cli import cluster_calls, replace_node
from tidemark.cli.main import cli

NEW = ("n9=10.0.0.9:8084", "--api", "http://n9:8080", "--admin")


class Group(BaseHTTPRequestHandler):
    """A group whose nodes change as ordered; a new node is in sync at the second look."""

    url: ClassVar[str] = ""
    nodes: ClassVar[dict[str, dict[str, Any]]] = {}
    master: ClassVar[str] = "n0"
    orders: ClassVar[list[str]] = []
    refuse: ClassVar[list[str]] = []
    """Orders that are refused once."""
    never_in_sync: ClassVar[bool] = False

    def do_GET(self) -> None:
        nodes = [{**each} for each in self.nodes.values()]
        for each in self.nodes.values():
            each["in_sync"] = each["in_sync"] or not self.never_in_sync
        lease = {"deadline_in_ms": 1900}  # the view of the master: no other node is asked
        self._answer(200, {"master": self.master, "epoch": 1, "lease": lease, "nodes": nodes})

    def do_POST(self) -> None:
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = self.path.rpartition("/")[2]
        said = f"{name} {order.get('node', '')}".strip()
        self.orders.append(said)
        if said in self.refuse:
            self.refuse.remove(said)
            self._answer(409, {"code": "cluster-refused", "detail": "not now.", "advice": ""})
            return
        self._answer(200, self._done(name, order))

    def _done(self, name: str, order: dict[str, str]) -> dict[str, Any]:
        if name == "switchover":
            Group.master = next(each for each in self.nodes if each != self.master)
            return {"master": self.master}
        before = order["node"] in self.nodes
        if name == "add-node":
            if not before:
                self.nodes[order["node"]] = node(order["node"], order["api"], in_sync=False)
            return {"changed": not before}
        self.nodes.pop(order["node"], None)
        return {"changed": before}

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        return


def node(name: str, api: str, *, in_sync: bool = True) -> dict[str, Any]:
    return {"node": name, "api": api, "admin": Group.url, "in_sync": in_sync, "reason": None}


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(replace_node, "POLL_S", 0.01)
    monkeypatch.setattr(cluster_calls, "VIEW_TIMEOUT_S", 30.0)
    monkeypatch.setattr(cluster_calls, "CONNECT_TIMEOUT_S", 30.0)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Group)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    Group.url = f"http://127.0.0.1:{server.server_address[1]}"
    Group.nodes = {name: node(name, f"http://{name}:8080") for name in ("n0", "n1")}
    Group.master, Group.orders, Group.refuse, Group.never_in_sync = "n0", [], [], False
    yield Group.url
    server.shutdown()
    server.server_close()


def replace(url: str, old: str, *new: str, timeout_s: str = "5") -> Result:
    """Run the command. The admin port of the new node is another one than that of the group."""
    return CliRunner().invoke(
        cli, ["cluster", "replace-node", old, *new, "--timeout-s", timeout_s, "--url", url]
    )


def test_the_old_node_is_removed_when_the_new_one_is_in_sync(url: str) -> None:
    result = replace(url, "n1", *NEW, "http://n9:8083")
    assert result.exit_code == 0, result.output
    assert Group.orders == ["add-node n9", "remove-node n1"]
    assert list(Group.nodes) == ["n0", "n9"]
    assert result.stderr.index("n9 is in sync") < result.stderr.index("n1 is removed")


def test_a_master_hands_over_before_it_is_removed(url: str) -> None:
    result = replace(url, "n0", *NEW, "http://n9:8083")
    assert result.exit_code == 0, result.output
    assert Group.orders == ["add-node n9", "switchover", "remove-node n0"]


def test_without_a_copy_in_time_the_old_node_stays_and_the_command_can_be_repeated(
    url: str,
) -> None:
    Group.never_in_sync = True
    late = replace(url, "n1", *NEW, "http://n9:8083", timeout_s="1")
    assert late.exit_code == 1
    assert "[replacement-unfinished]" in late.stderr
    assert list(Group.nodes) == ["n0", "n1", "n9"]
    Group.never_in_sync = False
    again = replace(url, "n1", *NEW, "http://n9:8083")
    assert again.exit_code == 0, again.output
    assert "n9 is a node of the group already" in again.stderr
    assert list(Group.nodes) == ["n0", "n9"]


def test_after_its_end_a_repeated_command_changes_nothing(url: str) -> None:
    replace(url, "n1", *NEW, "http://n9:8083")
    again = replace(url, "n1", *NEW, "http://n9:8083")
    assert again.exit_code == 0
    assert "n1 is not a node of the group" in again.stderr
    assert list(Group.nodes) == ["n0", "n9"]


def test_a_node_whose_address_the_new_one_takes_over_is_removed_first(url: str) -> None:
    Group.refuse = ["add-node n9"]  # the others have not acknowledged the removal yet
    result = replace(
        url, "n1", "n9=10.0.0.1:8084", "--api", "http://n1:8080", "--admin", "http://n9:8083"
    )
    assert result.exit_code == 0, result.output
    assert Group.orders == ["remove-node n1", "add-node n9", "add-node n9"]
    assert list(Group.nodes) == ["n0", "n9"]


def test_a_node_moves_to_other_addresses_under_its_name(url: str) -> None:
    moved = ("n1=10.0.0.7:8084", "--api", "http://n7:8080", "--admin", Group.url)
    result = replace(url, "n1", *moved)
    assert result.exit_code == 0, result.output
    assert Group.orders == ["remove-node n1", "add-node n1"]
    assert Group.nodes["n1"]["api"] == "http://n7:8080"
    again = replace(url, "n1", *moved)
    assert again.exit_code == 0, again.output
    assert Group.orders[2:] == ["add-node n1"], "it is the new node: it is not removed again"


def test_a_refusal_ends_the_command_before_anything_is_removed(url: str) -> None:
    Group.refuse = ["add-node n9"]
    result = replace(url, "n1", *NEW, "http://n9:8083")
    assert result.exit_code == 1
    assert "[cluster-refused]" in result.stderr
    assert list(Group.nodes) == ["n0", "n1"]
    assert replace(url, "n1", "n9", *NEW[1:], "http://n9:8083").exit_code == 2
