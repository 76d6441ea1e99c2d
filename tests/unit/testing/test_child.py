"""A child process of a node under test: its end is noticed, and its output is kept."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node import wait_until
from tidemark.testing.child import ChildProcess, NodeFailed

SLEEPS = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
FAILS = [sys.executable, "-c", "print('no disk'); raise SystemExit(3)"]
IGNORES_SIGTERM = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print('up', flush=True); time.sleep(600)",
]


@pytest.fixture
def child(tmp_path: Path) -> Iterator[ChildProcess]:
    process = ChildProcess(tmp_path / "broker.log")
    yield process
    process.kill()


def test_an_end_by_itself_is_reported_with_status_and_output(child: ChildProcess) -> None:
    child.start(FAILS)
    wait_until(lambda: not child.is_alive, "the end")
    assert child.wanted
    with pytest.raises(NodeFailed, match=r"(?s)broker ended with status 3.*no disk"):
        child.check_alive()


def test_a_process_is_wanted_until_it_is_killed_or_stopped(child: ChildProcess) -> None:
    child.start(SLEEPS)
    child.crash()
    assert child.wanted
    assert child.returncode == -signal.SIGKILL
    child.start(SLEEPS)
    child.kill()
    assert not child.wanted
    assert child.starts == 2


def test_a_paused_process_ends_at_sigterm(child: ChildProcess) -> None:
    child.start(SLEEPS)
    child.send_signal(signal.SIGSTOP)
    wait_until(lambda: child.is_paused, "the pause")
    child.terminate()
    assert child.wait() == -signal.SIGTERM
    assert not child.is_paused


def test_a_process_that_ignores_sigterm_is_killed(child: ChildProcess) -> None:
    child.start(IGNORES_SIGTERM)
    wait_until(lambda: "up" in child.log_text(), "the start")
    child.terminate()
    assert child.wait(0.2) == -signal.SIGKILL


def test_a_process_is_not_started_twice(child: ChildProcess) -> None:
    child.start(SLEEPS)
    with pytest.raises(NodeFailed, match=f"broker already runs as process {child.pid}"):
        child.start(SLEEPS)
