from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from tidemark.cli.dev import Ports, greeting, not_ready, readable
from tidemark.errors import CannotListen


def test_a_log_line_becomes_a_sentence_with_its_facts() -> None:
    line = {"time": "2026", "level": "warning", "service": "broker", "event": "slow-disk",
            "message": "the disk is slow", "path": "/x", "wait_ms": 7}  # fmt: skip
    text = readable(json.dumps(line).encode(), verbose=False)
    assert text == "warning: the disk is slow path=/x wait_ms=7"


def test_what_nobody_needs_now_is_shown_only_when_asked_for() -> None:
    line = json.dumps({"level": "info", "message": "listening"}).encode()
    assert readable(line, verbose=False) is None
    assert readable(line, verbose=True) == "info: listening"


@pytest.mark.parametrize("line", [b"Traceback (most recent call last):\n", b"[1, 2]\n", b"\xff\n"])
def test_what_is_no_log_line_is_shown_as_it_is(line: bytes) -> None:
    assert readable(line, verbose=False) == line.decode("utf-8", "replace").rstrip()


def test_an_empty_line_is_not_shown() -> None:
    assert readable(b"\n", verbose=True) is None


def test_why_a_service_is_not_ready_is_told_with_progress() -> None:
    body = {"state": "recovering", "reasons": [{"code": "recovering", "detail": "walks the log"}],
            "recovery": {"done_bytes": 50, "total_bytes": 200, "eta_seconds": 3.2}}  # fmt: skip
    assert not_ready(json.dumps(body).encode()) == "walks the log; recovered 25 %, about 3 s left"
    body["recovery"] = {"done_bytes": 50, "total_bytes": 200, "eta_seconds": None}
    assert not_ready(json.dumps(body).encode()) == "walks the log; recovered 25 %"
    assert not_ready(b'{"state": "starting", "reasons": []}') == "starting"
    assert not_ready(b"<html>") == "<html>"


def test_the_greeting_names_every_address() -> None:
    text = greeting(Path("data"), "127.0.0.1", Ports.from_api(9000), 1.23)
    for part in (
        "http://127.0.0.1:9000/v1",
        ":9001/ready",
        ":9002/ready",
        "curl",
        "tidemark.connect",
    ):
        assert part in text
    assert "1.2 s" in text


def test_a_port_that_another_node_has_is_named() -> None:
    # A second `make run` said that it was ready: the node that answered was the first one.
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(
            CannotListen, match=rf"port {port} of 127\.0\.0\.1: Address already in use"
        ):
            Ports(port, 0, 0).check("127.0.0.1")
        with pytest.raises(CannotListen, match=f"port {port} "):
            Ports(0, 0, port).check("127.0.0.1")
    Ports(port, 0, 0).check("127.0.0.1")


def test_a_host_that_is_none_of_this_machine_is_named() -> None:
    with pytest.raises(CannotListen, match=r"port 0 of 192\.0\.2\.1: "):
        Ports(0, 0, 0).check("192.0.2.1")
