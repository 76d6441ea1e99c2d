"""Doctor and support bundle on a real cluster: healthy, and with a name service that hangs."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes.test_doctor import doctor
from tests.processes.test_support_bundle import files_of
from tests.support.command import tidemark
from tests.support.dev import Dev
from tests.support.node import wait_until
from tidemark.testing.ports import free_ports

FIRST = 100
"""Ports from that of the first broker to that of the first name service, of two broker groups."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Dev]:
    dev = Dev(tmp_path / "d", free_ports(FIRST + 10)[0], "--groups", "2", "--names", "2")
    try:
        dev.wait_for("Stop with Ctrl-C")
        yield dev
    finally:
        dev.close()


def of_names(found: list[dict[str, Any]]) -> dict[tuple[str, str], str]:
    return {
        (each["check"], each["subject"]): each["code"] or each["level"]
        for each in found
        if each["check"].startswith("names.")
    }


def test_doctor_and_bundle_know_the_name_services_of_a_cluster(
    cluster: Dev, tmp_path: Path
) -> None:
    broker = int(cluster.url.rpartition(":")[2])
    one, two = (f"http://127.0.0.1:{broker + FIRST + 2 * number}" for number in range(2))

    def is_healthy() -> bool:
        status, found = doctor("--url", one)
        return status == 0 and set(of_names(found).values()) == {"ok"}

    wait_until(is_healthy, "both name services to know both broker groups")
    status, found = doctor("--url", cluster.url)
    assert status == 0, found
    assert {key for key in of_names(found) if key[0] == "names.registered"} == {
        ("names.registered", f"g0 at {url}") for url in (one, two)
    }
    (pid,) = [
        pid
        for pid, command in cluster.children.items()
        if "services.names" in command and f"{broker + FIRST + 2}" in command
    ]
    os.kill(pid, signal.SIGSTOP)
    try:
        status, found = doctor("--url", cluster.url)
        assert status == 0, "the other one answers"
        assert of_names(found)["names.api", two] == "doctor-names-unreachable"
        target = tmp_path / "bundle.tar.gz"
        tidemark("support-bundle", "--url", cluster.url, "--file", target)
    finally:
        os.kill(pid, signal.SIGCONT)
    files = files_of(target.read_bytes())
    routes = json.loads(files[f"nodes/127.0.0.1_{broker + FIRST}/route.json"])
    assert [each["group"] for each in routes["groups"]] == ["g0", "g1"]
    assert f"nodes/127.0.0.1_{broker + FIRST + 2}/route.json" not in files
