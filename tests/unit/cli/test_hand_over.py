"""Requests to ha before a node is stopped, and the effect of each answer."""

from __future__ import annotations

import contextlib
import json
import socket
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner, Result

from services.ha.shell.control import SOCKET_NAME as SERVED_NAME
from tidemark.cli.cluster_calls import SOCKET_NAME
from tidemark.cli.hand_over import HaAnswer, judge
from tidemark.cli.main import cli

DONE = (200, {"master": "n1", "epoch": 8, "took_ms": 300})
REFUSED = {"code": "cluster-refused", "advice": ""}
NO_SLAVE = (409, {**REFUSED, "detail": "no slave is in the in-sync set. Nothing was done."})
UNDER_WAY = (409, {**REFUSED, "detail": "a switch is under way. Nothing was done."})
SLAVE = (409, {**REFUSED, "detail": "n0 is not the master.", "master": "n1"})
NO_MASTER = (409, {**REFUSED, "detail": "n0 is not the master.", "master": None})
RECOVERING = (503, {"code": "not-serving", "detail": "the node recovers its log."})


class Ha(BaseHTTPRequestHandler):
    """Answers one command after another; the last answer is repeated."""

    answers: ClassVar[list[tuple[int, dict[str, Any]]]] = []
    asked: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append(self.path)
        status, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def address_string(self) -> str:
        return "socket"

    def log_message(self, format: str, *args: Any) -> None:
        return


class Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True


@pytest.fixture
def run_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tm-") as directory:
        server = Server(f"{directory}/{SOCKET_NAME}.sock", Ha)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        Ha.answers, Ha.asked = [DONE], []
        yield Path(directory)
        server.shutdown()
        server.server_close()


def hand_over(run_dir: Path, *, timeout_s: float = 10.0) -> Result:
    command = ["cluster", "hand-over", "--run-dir", str(run_dir), "--timeout-s", str(timeout_s)]
    return CliRunner().invoke(cli, [*command, "-o", "json"])


def test_the_socket_is_the_one_that_ha_makes() -> None:
    assert SOCKET_NAME == SERVED_NAME


def test_a_master_hands_over_and_names_the_new_master(run_dir: Path) -> None:
    result = hand_over(run_dir)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"handed_over": True, "master": "n1", "epoch": 8}
    assert Ha.asked == ["/v1/cluster/switchover"]


def test_three_containers_may_ask_at_once(run_dir: Path) -> None:
    # One of them requests the switch; the others wait until it is done, because their process must
    # not be stopped in the middle of it.
    Ha.answers = [UNDER_WAY, UNDER_WAY, NO_MASTER, SLAVE]
    result = hand_over(run_dir)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["master"] == "n1"
    assert len(Ha.asked) == 4


def test_the_hand_over_waits_for_a_slave_that_is_about_to_be_in_sync(run_dir: Path) -> None:
    Ha.answers = [NO_SLAVE, DONE]
    assert json.loads(hand_over(run_dir).stdout)["handed_over"] is True


@pytest.mark.parametrize("answer", [SLAVE, RECOVERING])
def test_a_node_that_is_not_the_master_has_nothing_to_hand_over(
    run_dir: Path, answer: tuple[int, dict[str, Any]]
) -> None:
    Ha.answers = [answer]
    result = hand_over(run_dir)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["handed_over"] is False
    assert len(Ha.asked) == 1


def test_a_node_alone_has_no_ha_and_nothing_to_hand_over(tmp_path: Path) -> None:
    result = hand_over(tmp_path)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["handed_over"] is False


def test_a_socket_left_by_a_killed_ha_counts_as_no_ha(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="tm-") as directory:
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(f"{directory}/{SOCKET_NAME}.sock")
        assert hand_over(Path(directory)).exit_code == 0


def test_an_overloaded_ha_does_not_count_as_no_ha() -> None:
    # A connection beyond what it accepts at a time fails at once; a master went on to be stopped.
    with tempfile.TemporaryDirectory(prefix="tm-") as directory, contextlib.ExitStack() as open_:
        path = f"{directory}/{SOCKET_NAME}.sock"
        busy = open_.enter_context(socket.socket(socket.AF_UNIX))
        busy.bind(path)
        busy.listen(0)
        for _ in range(2):
            waiting = open_.enter_context(socket.socket(socket.AF_UNIX))
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(path)
        result = hand_over(Path(directory), timeout_s=1.0)
    assert result.exit_code == 1
    assert "ha's socket" in json.loads(result.stderr)["detail"]


@pytest.mark.parametrize("answer", [NO_SLAVE, UNDER_WAY, NO_MASTER])
def test_a_hand_over_that_times_out_gives_the_reason(
    run_dir: Path, answer: tuple[int, dict[str, Any]]
) -> None:
    Ha.answers = [answer]
    result = hand_over(run_dir, timeout_s=0.5)
    assert result.exit_code == 1
    error = json.loads(result.stderr)
    assert error["code"] == "not-handed-over"
    assert error["detail"].startswith("after 0.5 s: ")
    assert "is lost" in error["advice"]


def test_an_empty_answer_is_requested_again() -> None:
    assert judge(HaAnswer(500, {})).done is None
    assert judge(HaAnswer(502, {"detail": "cut short"})).why == "cut short"
