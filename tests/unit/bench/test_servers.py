from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import servers
from bench.exchange import Outcome
from tidemark.testing.child import ChildProcess, NodeFailed


def test_what_a_killed_benchmark_left_behind_goes_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "WORK_DIR", tmp_path)
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    left = tmp_path / f"write-pool.{gone.stdout.strip()}-abc"
    others = [tmp_path / f"node.{os.getpid()}-abc", tmp_path / "mine", tmp_path / "a.b-c"]
    for path in (left, *others):
        path.mkdir()
    made = servers.work_dir("redis")
    assert not left.exists()
    assert all(path.is_dir() for path in (made, *others))
    assert made.name.startswith(f"redis.{os.getpid()}-")


def test_a_server_that_is_not_installed_is_named_with_its_package() -> None:
    with pytest.raises(servers.MissingServer, match="apt-get install some-package"):
        servers.program("no-such-program-here", "some-package")


def test_a_program_that_ends_at_once_is_reported_with_its_output(tmp_path: Path) -> None:
    process = servers.start_pinned([sys.executable, "-c", "print('no'); exit(3)"], tmp_path / "log")
    process.wait()
    with pytest.raises(NodeFailed, match=r"(?s)ended with status 3.*no"):
        process.check_alive()


def test_a_process_runs_on_the_core_it_was_given(tmp_path: Path) -> None:
    code = "import os; print(os.sched_getaffinity(0))"
    servers.start_pinned([sys.executable, "-c", code], tmp_path / "log").wait()
    assert (tmp_path / "log").read_text().strip() == "{0}"


def test_the_cpu_time_of_a_server_during_a_load_is_counted_per_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "WORK_DIR", tmp_path)
    times = iter([2.0, 2.5])
    monkeypatch.setattr(ChildProcess, "cpu_s", lambda _: next(times))
    with servers.peer("echo") as server:
        outcome = server.measured(lambda: Outcome(1000, 10, seconds=2.0, cpu_s=0.2))
    assert outcome.server_cpu_us == 500.0
    assert outcome.shares == "server 25% of its core, load 10% of its own"
