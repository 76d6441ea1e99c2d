"""A node for tests: broker and reput as two child processes with their own store.

Real processes on a real directory, without in-process parts or fakes: a test sees the behaviour of
a deployment, at about a second per start. Files are small; ports are free loopback ports.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

from shared.runtime import programs

START_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 30.0
POLL_S: Final = 0.02
LOG_SHOWN: Final = 4000

SMALL_STORE: Final = {
    "commit_log_file_size": 4 << 20,
    "consume_queue_file_size": 60_000,
    "index_slots": 5_000,
    "index_entries": 20_000,
}
"""Small files, which are created fast; a larger test uses several of them."""

PORTS: Final = range(10_000, 32_000)
_choosing: Final = threading.Lock()
_next_port = 0
"""The port after the last ones returned; 0 before the first call."""


class NodeFailed(Exception):
    """A service ended or was not ready in time; the message has its last log lines."""


class LocalNode:
    """Broker and reput on ``directory``. Use it with ``with``, or call ``start`` and ``stop``."""

    def __init__(self, directory: Path, *, auto_create_topics: bool = True) -> None:
        self.store_dir = directory / "store"
        self._directory = directory
        self._auto_create_topics = auto_create_topics
        self._ports: dict[str, int] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        # Not below directory: a socket's path has at most 108 bytes.
        self._run_dir = Path(tempfile.mkdtemp(prefix="tidemark-"))

    @property
    def url(self) -> str:
        """The URL for ``tidemark.connect``."""
        return f"http://127.0.0.1:{self._ports['api']}"

    def __enter__(self) -> LocalNode:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start both services and wait until both are ready; a restart uses the same ports."""
        self._directory.mkdir(parents=True, exist_ok=True)
        if not self._ports:
            self._ports = dict(zip(("api", "broker", "reput"), free_ports(3), strict=True))
        for role in ("broker", "reput"):
            self._start(role)
        for role in ("broker", "reput"):
            self._wait_ready(role)

    def kill(self) -> None:
        """Kill both with SIGKILL, as in a crash. ``start`` starts them again."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
        self._processes.clear()

    def stop(self) -> None:
        """Stop in order: the broker, then reput, which dispatches the rest of the log."""
        for role in ("broker", "reput"):
            process = self._processes.pop(role, None)
            if process is None:
                continue
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def close(self) -> None:
        """Stop, and remove the files outside ``directory``."""
        self.stop()
        shutil.rmtree(self._run_dir, ignore_errors=True)

    def pid(self, role: str) -> int:
        """Process id of ``broker`` or ``reput``."""
        return self._processes[role].pid

    def log_text(self, role: str) -> str:
        """Return the whole output of a service."""
        path = self._directory / f"{role}.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def _start(self, role: str) -> None:
        settings = self._directory / f"{role}.toml"
        settings.write_text(self._settings(role), encoding="utf-8")
        with (self._directory / f"{role}.log").open("ab") as log:
            self._processes[role] = subprocess.Popen(
                [
                    *programs.service(role),
                    *("--store", str(self.store_dir), "--config", str(settings)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _settings(self, role: str) -> str:
        values: dict[str, object] = {
            "run_dir": str(self._run_dir),
            "admin_port": self._ports[role],
        }
        if role == "broker":
            values["port"] = self._ports["api"]
            values["auto_create_topics"] = self._auto_create_topics
        lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
        lines += ["[store]", *(f"{name} = {value}" for name, value in SMALL_STORE.items())]
        return "\n".join(lines) + "\n"

    def _wait_ready(self, role: str) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not is_ready(self._ports[role]):
            status = self._processes[role].poll()
            if status is not None or time.monotonic() > deadline:
                said = self.log_text(role)[-LOG_SHOWN:]
                self.kill()
                why = "was not ready in time" if status is None else f"ended with status {status}"
                raise NodeFailed(f"{role} {why}. Its last output:\n{said}")
            time.sleep(POLL_S)


def is_ready(admin_port: int) -> bool:
    """Whether the service with this admin port reports that it is ready."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{admin_port}/ready", timeout=2) as answer:
            return int(answer.status) == 200
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def free_port() -> int:
    """Return a free loopback port."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return adjacent free loopback ports.

    They are below the range that the kernel uses for outgoing connections, because such a
    connection could take a port at any moment. Each worker of pytest-xdist has its own share, and a
    process cycles through its share before it returns a port again. So no other caller gets a port
    between this check and the start of the server that will listen there.
    """
    global _next_port
    share = port_share(os.environ)
    with _choosing:
        for _ in range(len(share)):
            first = _next_port if _next_port in share else random.choice(share)
            if first + count > share.stop:
                first = share.start
            ports = range(first, first + count)
            _next_port = ports.stop
            with contextlib.ExitStack() as held, contextlib.suppress(OSError):
                for port in ports:
                    probe = held.enter_context(socket.socket())
                    probe.bind(("127.0.0.1", port))
                return list(ports)
    raise NodeFailed(f"There are no {count} free ports in a row from {share.start} to {share.stop}")


def port_share(environment: Mapping[str, str]) -> range:
    """The ports for this process: all, or its share as a worker of pytest-xdist."""
    worker = environment.get("PYTEST_XDIST_WORKER", "")
    if not worker.startswith("gw"):
        return PORTS
    workers = max(int(environment.get("PYTEST_XDIST_WORKER_COUNT", "1")), 1)
    size = len(PORTS) // workers
    first = PORTS.start + int(worker[2:]) % workers * size
    return range(first, first + size)
