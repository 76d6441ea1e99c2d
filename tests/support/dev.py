"""``tidemark dev`` in the background, for tests: its output, its services, its end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.support.node import PROJECT, wait_until


class Dev:
    """A `tidemark dev` in the background."""

    def __init__(
        self, store: Path, port: int, *options: str, nodes: int = 1, **environment: str
    ) -> None:
        """options: more options of the command. environment: more variables."""
        self.url = f"http://127.0.0.1:{port}"
        self.said = ""
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tidemark.cli.main", "dev"),
                *("--store", str(store), "--port", str(port), "--nodes", str(nodes)),
                *options,
            ],
            cwd=PROJECT,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self.said += line

    def wait_for(self, text: str, count: int = 1) -> None:
        def was_said() -> bool:
            assert self.process.poll() is None or self.said.count(text) >= count, self.said
            return self.said.count(text) >= count

        wait_until(was_said, f"dev to say {text!r} (it said: {self.said})")

    @property
    def children(self) -> dict[int, str]:
        """Process ids of the services that run, with their command lines."""
        pid, found = self.process.pid, {}
        with contextlib.suppress(OSError):
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                command = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ")
                if b"services." in command:
                    found[int(child)] = command.decode()
        return found

    def child(self, service: str, node: str = "") -> int | None:
        """Process id of a service, of the named node; None while it does not run."""
        for pid, command in self.children.items():
            if f"services.{service} " in command and f"/{node}" in command:
                return pid
        return None

    def stop(self, signum: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(signum)
        status = self.process.wait(60)
        self._reader.join(10)
        return status

    def close(self) -> None:
        if self.process.poll() is None:
            self.stop(signal.SIGTERM)
        self._reader.join(10)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
