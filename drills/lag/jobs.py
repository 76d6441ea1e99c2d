"""Runs the jobs of the lag analytics as processes: start, watch, stop, without leftovers.

Each is the command ``tidemark-analytics`` in its own session. So Ctrl-C reaches only this process,
and the JVM and the Python workers of a job can be killed together.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from drills.lag.processes import StageFailed
from shared.runtime.parent_death import stop_with_parent

STOP_S: Final = 120.0
"""Time limit for the current batch of a stream."""
RUN_S: Final = 300.0
POLL_S: Final = 0.2
SAID: Final = 4000


class Job:
    """One run of one job; its output goes to ``<log_dir>/<name>.log``."""

    def __init__(self, name: str, arguments: Sequence[str], log_dir: Path) -> None:
        """name: for messages. arguments: arguments of the command; the first is the job's name."""
        self.name = name
        self._log = log_dir / f"{name}.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from analytics.main import main; main()", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=stop_with_parent,
            )

    def log_tail(self) -> str:
        text = self._log.read_text(encoding="utf-8", errors="replace")
        return f"--- {self.name} ({self._log})\n{text[-SAID:]}"

    def check(self) -> None:
        """Raise StageFailed if a job that should run forever has ended."""
        status = self._process.poll()
        if status is not None:
            raise StageFailed(f"{self.name} ended with status {status}.\n{self.log_tail()}")

    def stop(self) -> None:
        """Ask a stream to end after its batch. Raises StageFailed if it fails."""
        self.check()
        self._process.send_signal(signal.SIGTERM)
        self.wait(lambda: None, STOP_S)

    def wait(self, meanwhile: Callable[[], None], timeout_s: float = RUN_S) -> None:
        """Wait for a job that ends by itself. meanwhile: called repeatedly. Raises StageFailed if
        it fails or does not end in time."""
        deadline = time.monotonic() + timeout_s
        while (status := self._process.poll()) is None:
            if time.monotonic() > deadline:
                self.close()
                raise StageFailed(
                    f"{self.name} did not end in {timeout_s:.0f} s.\n{self.log_tail()}"
                )
            meanwhile()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(POLL_S)
        self.close()
        if status != 0:
            raise StageFailed(f"{self.name} ended with status {status}.\n{self.log_tail()}")

    def close(self) -> None:
        """Kill all remaining processes of the job, including JVM and workers."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
