"""One service of a node as a child process that is restarted when it ends, like a container.

The process starts in its host's namespace and writes its output to a file. The drill sends SIGKILL,
SIGSTOP and SIGTERM. A process that ends by itself, or was killed with ``again``, is restarted a
moment later.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from drills.namespaces import Host
from shared.runtime import programs

RESTART_S: Final = 0.3
STOP_TIMEOUT_S: Final = 30.0
LOG_SHOWN: Final = 3000
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG: Final = 1


class ServiceProcess:
    """One service of one node."""

    def __init__(
        self,
        command: Sequence[str],
        host: Host,
        log_path: Path,
        environment: Mapping[str, str],
    ) -> None:
        self._command, self._host = list(command), host
        self.log_path = log_path
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._ended_at: float | None = None
        self.wanted = False
        """Whether the process is restarted when it ends."""
        self.starts = 0

    @property
    def pid(self) -> int | None:
        """PID of the running process; None if there is none."""
        return self._process.pid if self.alive and self._process is not None else None

    @property
    def alive(self) -> bool:
        """Whether the process exists, running or stopped."""
        return self._process is not None and self._process.poll() is None

    @property
    def is_stopped(self) -> bool:
        """Whether the process is stopped (SIGSTOP)."""
        if self.pid is None:
            return False
        stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8")
        return stat.rpartition(")")[2].split()[0] == "T"

    def start(self) -> None:
        """Start the process, and restart it whenever it ends."""
        self.wanted = True
        if self.alive:
            return
        enter = self._host.enter

        def before_exec() -> None:
            # Otherwise the nodes would outlive a drill that is killed.
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if enter is not None:
                enter()

        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=before_exec,
            )
        self._ended_at = None
        self.starts += 1

    def restart_if_ended(self) -> None:
        """Restart the process if it has ended and is wanted. Call this several times a second."""
        if not self.wanted or self.alive:
            return
        now = time.monotonic()
        if self._ended_at is None:
            self._ended_at = now
        elif now - self._ended_at >= RESTART_S:
            self.start()

    def kill(self, *, again: bool) -> None:
        """SIGKILL the process. again: restart it a moment later."""
        self.wanted = again
        if self.alive and self._process is not None:
            self._process.kill()
            self._process.wait()

    def send(self, signum: signal.Signals) -> None:
        """Send a signal if the process runs."""
        if self.alive and self._process is not None:
            self._process.send_signal(signum)

    def stop(self) -> int | None:
        """SIGTERM and wait, SIGKILL if it does not end in time; return the exit status."""
        self.wanted = False
        if self._process is None:
            return None
        if self.alive:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            try:
                return self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        return self._process.wait()

    def log_tail(self, size: int = LOG_SHOWN) -> str:
        """Return the end of its output."""
        if not self.log_path.exists():
            return ""
        with self.log_path.open("rb") as file:
            file.seek(max(0, self.log_path.stat().st_size - size))
            return file.read().decode("utf-8", "replace")


def faulty_command(service: str, store_dir: Path, settings: Path) -> list[str]:
    """Return the command line of a service with fault injection."""
    return [
        *programs.python_module(f"{__package__}.faulty"),
        f"{programs.SERVICES}.{service}",
        *("--store", str(store_dir), "--config", str(settings)),
    ]
