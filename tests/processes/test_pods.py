"""The pods of the rendered manifests as processes: run, broken under load, judged.

``make k8s-drill`` runs all drills with the manifest's own probes; here is what takes six minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from deploy.lint.rendering import copied
from drills.pods.starting import what_is_missing
from tests.support.node import PROJECT

pytestmark = [pytest.mark.xdist_group("pods"), pytest.mark.timeout(900)]

PATIENCE: Final = "1"
"""Limits are scaled by how slow the machine is meanwhile (`drills/pace.py`); that suffices here."""
SEED: Final = os.environ.get("TIDEMARK_DRILL_SEED", str(time.time_ns() % 1_000_000))
STOP_S: Final = 150.0


@pytest.fixture
def tools() -> None:
    """What pods need on this machine; without it the test is skipped, or fails."""
    missing = what_is_missing()
    if os.environ.get("TIDEMARK_REQUIRE_ALL") == "1" and shutil.which("nft") is None:
        pytest.fail("nft is not installed: apt-get install nftables")
    if missing:
        if os.environ.get("TIDEMARK_REQUIRE_ALL") == "1":
            pytest.fail(missing)
        pytest.skip(missing)


@pytest.fixture
def overlay(tools: None) -> Iterator[Path]:
    """The manifests with a secret of this test."""
    with copied() as deploy:
        yield deploy / "k8s" / "overlays" / "ha"


def pods(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "drills.pods", *arguments],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


class Running(NamedTuple):
    """``run`` on the overlay, once all is ready."""

    process: subprocess.Popen[str]
    urls: list[str]
    """URLs of its Services."""
    pid: str
    """The first process of the master's broker."""


@pytest.fixture
def running(overlay: Path, tmp_path: Path) -> Iterator[Running]:
    process = pods("run", "--overlay", str(overlay), "--out", str(tmp_path / "out"))
    try:
        yield _ready(process)
    finally:
        # Twice: at once, but with everything unmounted and removed.
        deadline = time.monotonic() + STOP_S
        while process.poll() is None and time.monotonic() < deadline:
            process.terminate()
            time.sleep(0.5)
        process.kill()
        process.communicate()


def _ready(process: subprocess.Popen[str]) -> Running:
    """Read its output until it says where everything is."""
    assert process.stdout is not None
    said: list[str] = []
    found: list[str] = []
    pid = ""
    for line in process.stdout:
        said.append(line)
        if line.startswith("  tidemark-") and "http://" in line:
            found.append(line.split()[-1])
        elif "--target" in line:
            pid = line.split("--target ")[1].split()[0]
        elif line.startswith("Logs:"):
            return Running(process, found, pid)
    raise AssertionError(f"it ended with {process.wait()}: {''.join(said)}")


INSIDE: Final = """
import json, socket
def reached(host, port):
    try:
        socket.create_connection((host, port), 2).close()
        return "open"
    except TimeoutError:
        return "silence"
    except ConnectionRefusedError:
        return "refused"
    except OSError as error:
        return str(error)
def written(path):
    try:
        open(path, "w").close()
        return True
    except OSError:
        return False
status = dict(line.split(":", 1) for line in open("/proc/1/status"))
print(json.dumps({
    **{name: status[name].split() for name in ("Uid", "Gid", "Groups")},
    "rights": [status[name].strip() for name in ("CapBnd", "CapEff", "NoNewPrivs")],
    "name": socket.gethostname(),
    "command": open("/proc/1/cmdline").read().split(chr(0))[1].rpartition("/")[2],
    "written": [path for path in ("/x", "/usr/x", "/opt/tidemark/bin/x", "/etc/tidemark/x",
        "/var/lib/tidemark/x", "/run/tidemark/x", "/tmp/x") if written(path)],
    "reached": {f"{host}:{port}": reached(host, port) for host, port in (
        ("tidemark-g0-1.tidemark-g0-nodes.tidemark.svc", 8084), ("tidemark-g0-master", 8080),
        ("kubernetes.default.svc", 443), ("tidemark-g0-1.tidemark-g0-nodes", 9999),
        ("kubernetes.default.svc", 80))},
}))
"""
"""The environment of a process in a container, and the container's first process."""


def test_a_container_corresponds_to_its_manifest(running: Running) -> None:
    inside = ("nsenter", "--all", "--target", running.pid, "--setuid", "10001", "--setgid", "10001")
    done = subprocess.run(
        [*inside, sys.executable, "-c", INSIDE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found["Uid"]) == set(found["Gid"]) == set(found["Groups"]) == {"10001"}
    assert found["rights"] == ["0" * 16, "0" * 16, "1"]
    assert found["name"] == "tidemark-g0-0"
    assert found["command"] == "tidemark-broker"
    assert found["written"] == ["/var/lib/tidemark/x", "/run/tidemark/x", "/tmp/x"]
    # Dropped by the policies; without nft the packet arrives, and no process listens.
    denied = "silence" if shutil.which("nft") else "refused"
    assert found["reached"] == {
        "tidemark-g0-1.tidemark-g0-nodes.tidemark.svc:8084": "open",
        "tidemark-g0-master:8080": "open",
        "kubernetes.default.svc:443": "open",
        "tidemark-g0-1.tidemark-g0-nodes:9999": denied,
        "kubernetes.default.svc:80": denied,
    }


def call(method: str, url: str, body: Mapping[str, object]) -> int:
    request = urllib.request.Request(url, json.dumps(body).encode(), method=method)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return int(answer.status)


def test_the_drills_on_pods_pass(overlay: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = pods(
        *("drill", "--short", "--patience", PATIENCE, "--seed", SEED),
        *("--overlay", str(overlay), "--out", str(out)),
    )
    said, _ = process.communicate()
    print(said)
    if process.returncode:
        for path in (out / "events.log", *sorted((out / "logs").glob("*.log"))):
            print(f"--- {path.name}\n{path.read_text(encoding='utf-8')[-10_000:]}")
    assert process.returncode == 0
    assert (out / "report.md").read_text(encoding="utf-8").count("| passed |") == 7


def test_the_services_of_running_pods_answer_and_all_stop_in_order(
    running: Running,
) -> None:
    process, urls = running.process, running.urls
    assert len(urls) == 2
    for url in urls:
        with urllib.request.urlopen(f"{url}/v1/cluster", timeout=60) as answer:
            nodes = json.load(answer)["nodes"]
        assert sorted(node["node"] for node in nodes) == ["tidemark-g0-0", "tidemark-g0-1"]
    assert call("PUT", f"{urls[0]}/v1/topics/t", {"queues": 1}) in (200, 201)
    sent = {"messages": [{"body_text": "hello"}], "ack": "replicated", "timeout_ms": 30_000}
    assert call("POST", f"{urls[0]}/v1/topics/t/messages", sent) == 200
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=STOP_S)
    print(said)
    assert process.returncode == 0
    gone = [line.split()[2].rstrip(":") for line in said.splitlines() if " Gone:" in line]
    assert gone == ["tidemark-g0-1", "tidemark-g0-0"]
    assert "SIGKILL" not in said


@pytest.mark.timeout(1800)
def test_a_cluster_of_groups_loses_nothing_while_pods_are_killed_and_it_grows(
    tools: None, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.cluster_on_pods", tmp_path / "out"],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(done.stdout)
    if done.returncode:
        for path in sorted((tmp_path / "out" / "logs").glob("*.log")):
            print(f"--- {path.name}\n{path.read_text(encoding='utf-8')[-5000:]}")
    assert done.returncode == 0
    assert "\nlost 0 of " in done.stdout


def test_a_user_who_is_not_root_gets_advice() -> None:
    if os.geteuid() != 0:
        assert "run it as root, with sudo" in what_is_missing()
        return
    # In a child process: a change of the user cannot be undone.
    program = (
        "import os; from drills.pods.starting import what_is_missing;"
        "os.seteuid(65534); print(what_is_missing())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert "run it as root, with sudo" in done.stdout
