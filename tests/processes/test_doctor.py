"""The doctor on a real group: healthy, and with a node missing; both are reported correctly."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import run
from tests.support.dev import Dev
from tests.support.node import Node, wait_until
from tidemark.testing.ports import free_ports


def doctor(*arguments: str | Path) -> tuple[int, list[dict[str, Any]]]:
    done = run("doctor", *arguments, "-o", "json")
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)["findings"]


def in_time(*arguments: str | Path) -> tuple[int, list[dict[str, Any]]]:
    """The doctor's findings once the machine lets it read the settings within its time."""
    status, found = doctor(*arguments)
    while any("not read within" in each["cause"] for each in found):
        status, found = doctor(*arguments)
    return status, found


def level(findings: list[dict[str, Any]], check: str) -> dict[str, str]:
    return {each["subject"]: each["level"] for each in findings if each["check"] == check}


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Dev]:
    dev = Dev(tmp_path / "d", free_ports(15)[0], nodes=2)
    try:
        dev.wait_for("Stop with Ctrl-C")
        yield dev
    finally:
        dev.close()


def test_a_healthy_group_is_ok_and_a_missing_node_is_named(group: Dev) -> None:
    first, port = group.url.rsplit(":", 1)
    urls = f"{group.url},{first}:{int(port) + 10}"
    status, found = doctor("--url", urls)
    assert status == 0, [each for each in found if each["level"] == "error"]
    assert level(found, "nodes.api") == {"n0": "ok", "n1": "ok"}
    assert set(level(found, "nodes.version").values()) == {"ok"}
    (master,) = [each for each in found if each["check"] == "nodes.master"]
    assert master["level"] == "ok"
    gone = "n1" if master["cause"].startswith("n0") else "n0"
    for pid, command in group.children.items():
        if f"/{gone} " in command:
            os.kill(pid, signal.SIGSTOP)  # alive, and answers nothing

    def reported() -> bool:
        nonlocal status, found
        status, found = doctor("--url", urls)
        return level(found, "nodes.in-sync").get(gone) == "error"

    try:
        wait_until(reported, f"the doctor to say that {gone} is not in sync")
        assert status == 1
        assert level(found, "nodes.api")[gone] == "error"
        assert level(found, "nodes.admin")[gone] == "warning"
        bad = next(
            each for each in found if (each["check"], each["subject"]) == ("nodes.api", gone)
        )
        assert bad["code"] == "doctor-unreachable"
        assert "no answer within" in bad["cause"]
    finally:
        for pid in group.children:
            os.kill(pid, signal.SIGCONT)


def test_a_node_alone_is_checked_with_its_settings_running_and_stopped(
    tmp_path: Path,
) -> None:
    with Node(tmp_path) as node:
        node.start()
        node.wait_ready()
        asked = ("--config", f"broker={tmp_path}/broker.toml", "--config", tmp_path / "reput.toml")
        status, found = in_time(*asked, "--url", node.api_url)
        assert status == 0, [each for each in found if each["level"] == "error"]
        listening = [each for each in found if each["check"].startswith("ports.")]
        assert len(listening) == 3
        assert {each["cause"] for each in listening} == {"a Tidemark service listens there"}
        assert level(found, "disk.together") == {str(tmp_path / "store"): "ok"}
        node.stop()
        status, found = in_time(*asked)
        assert status == 0
        free = [each["cause"] for each in found if each["check"].startswith("ports.")]
        assert set(free) == {"free: the service does not run"}
