"""One child process whose output goes to a file. It can be started again after it has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

STOP_TIMEOUT_S: Final = 40.0
LINES_SHOWN: Final = 40
_CPUCLOCK_SCHED: Final = 2


class NodeFailed(Exception):
    """A process ended or was not ready in time; the message has its last log lines."""


class ChildProcess:
    """A process of a node under test. ``wanted`` says whether it should run."""

    def __init__(
        self,
        log_path: Path,
        *,
        environment: Mapping[str, str] | None = None,
        before_exec: Callable[[], None] | None = None,
    ) -> None:
        """log_path: its output, over all starts. environment: variables in addition to those of
        this process. before_exec: called in the child before the program starts, for example to
        pin it to a core.
        """
        self.log_path = log_path
        self.environment = dict(environment or {})
        self._before_exec = before_exec
        self._process: subprocess.Popen[bytes] | None = None
        self.wanted = False
        """True from ``start`` until ``kill``, ``stop`` or ``wait``."""
        self.starts = 0

    @property
    def pid(self) -> int:
        """Process id, even of a process that has ended. Raises NodeFailed if none was started."""
        return self._started().pid

    @property
    def returncode(self) -> int | None:
        """Exit status, negative for a signal; None while the process runs."""
        return self._started().poll()

    @property
    def is_alive(self) -> bool:
        """Whether the process exists, running or paused."""
        return self._process is not None and self._process.poll() is None

    @property
    def is_paused(self) -> bool:
        """Whether the process is stopped by SIGSTOP."""
        if not self.is_alive:
            return False
        stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8")
        return stat.rpartition(")")[2].split()[0] == "T"

    def start(self, command: Sequence[str]) -> None:
        """Start the process. Raises NodeFailed if it runs already."""
        if self.is_alive:
            raise NodeFailed(f"{self.log_path.stem} already runs as process {self.pid}")
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self._process = self._spawn(list(command))
        self.wanted = True
        self.starts += 1

    def variables(self) -> dict[str, str]:
        """Return all environment variables of the process."""
        return {**os.environ, "PYTHONUNBUFFERED": "1", **self.environment}

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        with self.log_path.open("ab") as log:
            return subprocess.Popen(
                command,
                env=self.variables(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=self._before_exec,
            )

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise NodeFailed(f"{self.log_path.stem} was not started")
        return self._process

    def send_signal(self, signum: signal.Signals) -> None:
        """Send a signal if the process runs."""
        if self.is_alive:
            self._started().send_signal(signum)

    def kill(self) -> None:
        """SIGKILL the process and wait for its end."""
        self.wanted = False
        self.crash()

    def crash(self) -> None:
        """Do the same as ``kill`` to a process that is still wanted: a supervisor restarts it."""
        self.send_signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def terminate(self) -> None:
        """Send SIGTERM, even to a paused process; ``wait`` waits for the end."""
        self.wanted = False
        self.send_signal(signal.SIGCONT)
        self.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Wait for the end and return the exit status; a process that does not end in time is
        killed, which gives the status -9."""
        self.wanted = False
        process = self._started()
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            return process.wait()

    def check_alive(self) -> None:
        """Raise NodeFailed with the last log lines if the process has ended."""
        if (status := self.returncode) is not None:
            raise NodeFailed(
                f"{self.log_path.stem} ended with status {status}. The end of {self.log_path}:\n"
                f"{self.log_tail()}"
            )

    def log_text(self) -> str:
        """Return the whole output."""
        if not self.log_path.exists():
            return ""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def log_tail(self, lines: int = LINES_SHOWN) -> str:
        """Return the last lines of the output."""
        return "\n".join(self.log_text().splitlines()[-lines:])

    # -- measurements -----------------------------------------------------------------------------

    def cpu_s(self) -> float:
        """CPU time of all threads so far, in user and kernel [s]."""
        # The process's CPU clock (clock_getcpuclockid), since /proc/PID/stat has ticks of 10 ms.
        return time.clock_gettime((~self.pid << 3) | _CPUCLOCK_SCHED)

    def memory(self, field: str) -> int:
        """Return a field of /proc/PID/status in bytes: RssAnon, RssFile, VmHWM …"""
        for line in Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
        raise KeyError(field)
