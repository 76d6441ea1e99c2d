from __future__ import annotations

import asyncio
import json
import socket
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner, Result

from tidemark.cli.cluster_calls import (
    NODE_VARIABLE,
    RUN_DIR_VARIABLE,
    SOCKET_NAME,
    ClusterCalls,
    OwnNode,
    own_node,
)
from tidemark.cli.main import cli
from tidemark.cli.times import shown_time


class Group(BaseHTTPRequestHandler):
    """The answers of the nodes of a group; every command is noted."""

    view: ClassVar[dict[str, Any]] = {}
    answers: ClassVar[dict[str, tuple[int, dict[str, Any]]]] = {}
    orders: ClassVar[list[tuple[str, dict[str, Any]]]] = []

    def do_GET(self) -> None:
        if self.path == "/v1/route":
            self._answer(200, {"names": ["http://names:9870"]})
            return
        assert self.path == "/v1/cluster"
        self._answer(200, self.view)

    def do_POST(self) -> None:
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.orders.append((self.path, order))
        self._answer(*self.answers.get(self.path, (200, {"done": True})))

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        return


class OwnHa(Group):
    """As ``Group``, but over the socket of the local node."""

    def do_POST(self) -> None:
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.orders.append((f"socket{self.path}", order))
        self._answer(200, {"done": True})

    def address_string(self) -> str:
        return "socket"


class SocketServer(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Group)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    found = f"http://127.0.0.1:{server.server_address[1]}"
    Group.view = {
        "cluster": "tidemark",
        "group": "g0",
        "epoch": 7,
        "master": "n0",
        "min_in_sync": 1,
        "paused": False,
        "lease": {"holder": "n0", "age_ms": 120, "deadline_in_ms": 1900, "in_sync_version": 3},
        "nodes": [
            _node("n0", f"{found}/n0", role="master", log_end=5000),
            _node("n1", f"{found}/n1", state=None, log_end=None, reason="does not answer"),
        ],
        "history": [{"epoch": 7, "start": 4096, "node": "n0", "at_ms": None}],
    }
    Group.answers, Group.orders = {}, []
    yield found
    server.shutdown()
    server.server_close()


def _node(name: str, admin: str, **facts: Any) -> dict[str, Any]:
    plain = {"state": "in-sync", "in_sync": True, "api": f"http://{name}:8080", "confirm": 4800,
             "lag_bytes": 0, "lag_ms": 0, "reason": None}  # fmt: skip
    return {**plain, "node": name, "admin": admin, **facts}


def _run(*arguments: str, url: str, text: str = "") -> Result:
    return CliRunner().invoke(cli, ["cluster", *arguments, "--url", url], input=text)


def test_status_names_the_master_and_why_a_node_is_behind(url: str) -> None:
    result = _run("status", url=url)
    assert result.exit_code == 0, result.output
    for part in ("n0", "does not answer", "5000", "tidemark / g0"):
        assert part in result.output
    assert json.loads(_run("status", "-o", "json", url=url).stdout) == Group.view


def test_a_group_without_a_master_says_why(url: str) -> None:
    Group.view |= {"master": None, "reason": "the lease cannot be reached"}
    assert "none: the lease cannot be reached" in _run("status", url=url).output
    refused = _run("switchover", url=url)
    assert refused.exit_code == 1
    assert "the lease cannot be reached" in refused.output
    assert Group.orders == []


def test_switchover_is_asked_of_the_master(url: str) -> None:
    assert _run("switchover", "--to", "n1", url=url).exit_code == 0
    assert Group.orders == [("/n0/v1/cluster/switchover", {"to": "n1"})]


def test_a_refusal_keeps_its_code_and_advice(url: str) -> None:
    Group.answers["/n0/v1/cluster/switchover"] = (
        409,
        {"code": "cluster-refused", "detail": "n1 is not in sync.", "advice": "Wait for it."},
    )
    result = _run("switchover", "--to", "n1", "-o", "json", url=url)
    assert result.exit_code == 1
    error = json.loads(result.stderr)
    assert (error["code"], error["advice"]) == ("cluster-refused", "Wait for it.")


def test_an_unclean_failover_shows_the_loss_and_needs_two_confirmations(url: str) -> None:
    path = "/n1/v1/cluster/failover"
    Group.answers[path] = (200, {"estimated_loss_bytes": 200, "known_confirm": 5000})
    dry = _run("failover", "--to", "n1", "--dry-run", url=url)
    assert "200 bytes of confirmed log are missing on n1" in dry.output
    assert _run("failover", "--to", "n1", url=url).exit_code == 1
    assert [order["dry_run"] for _, order in Group.orders] == [True, True]
    done = _run("failover", "--to", "n1", "--old-master-stopped", url=url, text="g0\n")
    assert done.exit_code == 0
    assert Group.orders[-1] == (
        path,
        {"to": "n1", "group": "g0", "old_master_stopped": True, "dry_run": False},
    )


def test_an_unknown_loss_is_not_shown_as_none(url: str) -> None:
    Group.answers["/n1/v1/cluster/failover"] = (
        200,
        {"estimated_loss_bytes": None, "loss_reason": "no other node answers"},
    )
    result = _run("failover", "--to", "n1", "--dry-run", url=url)
    assert "the loss on n1 is not known: no other node answers" in result.output


def test_a_node_outside_the_group_is_named(url: str) -> None:
    result = _run("failover", "--to", "n7", "--dry-run", url=url)
    assert result.exit_code == 1
    assert "there is no node 'n7'; the group has n0, n1" in result.output


def test_pause_needs_no_master(url: str) -> None:
    Group.view |= {"master": None}
    assert _run("pause", url=url).exit_code == 0
    assert Group.orders == [("/n0/v1/cluster/pause", {})]


def test_an_order_that_changed_nothing_is_shown_as_such(url: str) -> None:
    said = "automatic failover is paused already. Nothing was changed."
    body = {"epoch": 7, "paused": True, "in_sync": ["n0"], "changed": False, "detail": said}
    Group.answers["/n0/v1/cluster/pause"] = 200, body
    result = _run("pause", url=url)
    assert (result.exit_code, said in result.stdout) == (0, True), result.output
    assert json.loads(_run("pause", "-o", "json", url=url).stdout) == body


def test_of_several_addresses_one_that_answers_is_enough(url: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{unused.getsockname()[1]}"
        assert "tidemark / g0" in _run("status", url=f"{gone}, {url}").output
        refused = _run("status", url=gone)
    assert refused.exit_code == 1
    assert "--url accepts the addresses of several nodes" in refused.output


def test_a_node_without_ha_shows_what_it_knows(url: str) -> None:
    # Status ended with a traceback: such a node reports no lease, no set and no ends.
    own = {"node": "n0", "role": "slave", "api": None, "admin": None}
    Group.view = {"cluster": "tidemark", "group": "g0", "epoch": 7, "master": None,
                  "reason": "ha of node n0 does not answer", "nodes": [own]}  # fmt: skip
    result = _run("status", url=url)
    assert result.exit_code == 0, result.output
    assert "none: ha of node n0 does not answer" in result.output
    assert _run("history", url=url).exit_code == 0


def test_a_node_alone_is_no_group(url: str) -> None:
    Group.view = {"cluster": None, "group": None, "epoch": None, "master": None, "nodes": [],
                  "reason": "this node is alone, in no group"}  # fmt: skip
    result = _run("status", url=url)
    assert result.exit_code == 1
    assert "this node is alone, in no group" in result.output


def test_status_shows_the_cost_of_losing_the_master_and_a_paused_failover(
    url: str,
) -> None:
    assert "n1 takes over" in _run("status", url=url).output
    Group.view |= {"paused": True}
    shown = _run("status", url=url).output
    assert "paused: no automatic failover" in shown
    # It went on: "n1 takes over, with all messages acknowledged as replicated".
    assert "n1 takes over" not in shown
    assert "no failover: the group waits for it" in shown
    Group.view["nodes"][1]["in_sync"] = False
    Group.view |= {"paused": False}
    assert "no other node is in sync" in _run("status", url=url).output


def test_status_says_that_a_node_in_sync_cannot_lead(url: str) -> None:
    # Its reput did not run: a switch to it was refused, and status showed nothing of it.
    Group.view["nodes"][1] |= {"state": "in-sync", "reason": "reput is not there"}
    shown = _run("status", url=url).output
    assert "n1 takes over" not in shown
    assert "can lead (n1: reput is not there)" in shown


def test_commands_to_the_local_node_go_over_its_socket(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its port may accept none: any client that reaches it could make any node the master.
    Group.answers["/n0/v1/cluster/switchover"] = (
        403,
        {"code": "order-by-socket", "detail": "on the node only.", "advice": "Go there."},
    )
    refused = _run("switchover", "-o", "json", url=url)
    assert json.loads(refused.stderr)["code"] == "order-by-socket"
    Group.orders.clear()
    with tempfile.TemporaryDirectory(prefix="tm-") as run_dir:
        server = SocketServer(f"{run_dir}/{SOCKET_NAME}.sock", OwnHa)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        monkeypatch.setenv(NODE_VARIABLE, "n0")
        monkeypatch.setenv(RUN_DIR_VARIABLE, run_dir)
        assert _run("switchover", "--to", "n1", url=url).exit_code == 0
        assert _run("pause", url=url).exit_code == 0
        # A command for another node still goes to that node.
        assert _run("adopt", "n1", url=url).exit_code == 0
        server.shutdown()
        server.server_close()
    assert Group.orders == [
        ("socket/v1/cluster/switchover", {"to": "n1"}),
        ("socket/v1/cluster/pause", {}),
        ("/n1/v1/cluster/adopt", {}),
    ]


def test_an_incomplete_node_name_selects_no_node() -> None:
    assert own_node({NODE_VARIABLE: "n0"}) is None
    assert own_node({RUN_DIR_VARIABLE: "/run", NODE_VARIABLE: ""}) is None
    assert own_node({RUN_DIR_VARIABLE: "/run", NODE_VARIABLE: "n0"}) == OwnNode("n0", Path("/run"))


def test_a_node_is_added_at_the_master(url: str) -> None:
    where = ("--api", "http://n3:8080", "--admin", "http://n3:8083")
    assert _run("add-node", "n3=10.0.0.3:8084", *where, url=url).exit_code == 0
    order = {
        "node": "n3",
        "replication": "10.0.0.3:8084",
        "api": "http://n3:8080",
        "admin": "http://n3:8083",
    }
    assert Group.orders == [("/n0/v1/cluster/add-node", order)]
    assert _run("add-node", "n3", *where, url=url).exit_code == 2


def test_a_slave_is_removed_at_the_master_and_a_master_after_a_switchover(url: str) -> None:
    assert _run("remove-node", "n1", url=url).exit_code == 0
    assert Group.orders == [("/n0/v1/cluster/remove-node", {"node": "n1"})]
    Group.orders.clear()
    Group.answers["/n0/v1/cluster/switchover"] = (200, {"master": "n1"})
    assert _run("remove-node", "n0", url=url).exit_code == 0
    assert Group.orders == [
        ("/n0/v1/cluster/switchover", {}),
        ("/n1/v1/cluster/remove-node", {"node": "n0"}),
    ]


def test_history_says_who_was_master_from_when_to_when(url: str) -> None:
    Group.view["history"] = [
        {"epoch": 5, "start": 0, "node": None, "at_ms": None},
        {"epoch": 6, "start": 4096, "node": "n0", "at_ms": 1_700_000_000_000},
        {"epoch": 7, "start": 8192, "node": "n1", "at_ms": 1_700_000_060_000},
    ]
    terms = json.loads(_run("history", "-o", "json", url=url).stdout)
    assert [(each["node"], each["at_ms"], each["until_ms"]) for each in terms] == [
        (None, None, 1_700_000_000_000),
        ("n0", 1_700_000_000_000, 1_700_000_060_000),
        ("n1", 1_700_000_060_000, None),
    ]
    shown = _run("history", url=url).output
    for time_ms in (1_700_000_000_000, 1_700_000_060_000):
        assert shown.count(str(shown_time(time_ms))) == 2, "once as an end, once as a beginning"


def test_the_name_services_are_those_of_the_nodes_that_answer(url: str) -> None:
    silent = "http://127.0.0.1:1"
    assert asyncio.run(ClusterCalls([url, silent]).name_services()) == ["http://names:9870"]
    assert asyncio.run(ClusterCalls([silent]).name_services()) == []
