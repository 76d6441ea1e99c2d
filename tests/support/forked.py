"""Start services by a fork of a process that has imported them, which saves 0.5 s of CPU each.

Each service is a process of its own, with its own arguments, log and signals, as if it had been
started with ``python -m services.ROLE``. Only its imports were done before, and all have the
parent's hash seed. One parent serves the tests of one process; it ends with them.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from shared.runtime.parent_death import kill_with_parent

PROJECT: Final = Path(__file__).resolve().parents[2]
MODULES: Final = ("services.broker.__main__", "services.reput.__main__", "services.ha.__main__")
UNLIKE: Final = frozenset({"PYTEST_CURRENT_TEST"})
"""Variables that change from test to test and that no service reads."""


class Forked:
    """A process that the parent has forked; the part of ``subprocess.Popen`` that tests use."""

    def __init__(self, parent: Parent, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._parent = parent
        self._pidfd = os.pidfd_open(pid)
        weakref.finalize(self, os.close, self._pidfd)  # not before: a thread may wait on it
        self._reaping = threading.Lock()

    def poll(self) -> int | None:
        """Exit status; None while it runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Exit status, negative for a signal. Raises subprocess.TimeoutExpired."""
        status = self._ended(None if timeout is None else timeout * 1000)
        if status is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return status

    def send_signal(self, signum: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, signum)

    def _ended(self, timeout_ms: float | None) -> int | None:
        if self.returncode is None:
            waiting = select.poll()
            waiting.register(self._pidfd, select.POLLIN)
            if not waiting.poll(timeout_ms):
                return None
            with self._reaping:  # several threads may wait
                if self.returncode is None:
                    self.returncode = self._parent.ask({"reap": self.pid})
        return self.returncode


class Parent:
    """The process that has imported the services."""

    def __init__(self) -> None:
        self._environment = self.inherited()
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=PROJECT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        atexit.register(self._process.communicate)

    @staticmethod
    def inherited() -> dict[str, str]:
        """The environment, without the variables that differ from test to test."""
        return {name: value for name, value in os.environ.items() if name not in UNLIKE}

    def is_fit(self) -> bool:
        """Whether a service may be forked: some variables count when a module is imported."""
        return self._environment == self.inherited()

    def start(self, module: str, arguments: list[str], log: Path) -> Forked:
        """Start ``python -m module arguments`` with its output appended to log."""
        return Forked(self, self.ask({"start": module, "arguments": arguments, "log": str(log)}))

    def ask(self, request: Mapping[str, Any]) -> int:
        """Send one request; return the number that answers it."""
        with self._lock:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
            assert answer, "the process that forks services has ended"
            return int(answer)


_parents: Final[list[Parent]] = []


def start(module: str, arguments: list[str], log: Path) -> Forked | None:
    """Fork a service; None for any other module, or if the environment is not the parent's."""
    if f"{module}.__main__" not in MODULES:
        return None
    if not _parents:
        _parents.append(Parent())
    return _parents[0].start(module, arguments, log) if _parents[0].is_fit() else None


def serve() -> tuple[str, list[str]] | None:
    """Answer requests until the tests end. In a forked child, return what it has to run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        if "reap" in request:
            _, status = os.waitpid(request["reap"], 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
        elif pid := os.fork():
            print(pid, flush=True)
        else:
            kill_with_parent()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            _redirect(Path(request["log"]))
            return str(request["start"]), [str(word) for word in request["arguments"]]
    return None


def _redirect(log: Path) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(nothing)
    os.close(output)


def main() -> None:
    """Import the services, then serve; a forked child becomes its service."""
    modules = {name: importlib.import_module(name) for name in MODULES}
    gc.freeze()
    wanted = serve()
    if wanted is not None:
        module, arguments = wanted
        sys.argv = [module, *arguments]
        modules[module + ".__main__"].main(arguments, prog_name=f"python -m {module}")


if __name__ == "__main__":
    main()
