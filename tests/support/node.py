"""One node made of real processes: broker and reput, in a group ha too, with ports and logs.

    with Node(tmp_path) as node:
        node.start()
        node.wait_ready()
        ... node.api_url ...

Everything that a test waits for is a condition with a deadline, never a pause. ``kill`` is SIGKILL,
``stop`` is SIGTERM. When the body of the ``with`` fails, the logs of all processes are printed.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, cast

from tests.support import forked
from tidemark.testing.node import free_port as free_port
from tidemark.testing.settings_file import toml
from tidemark.testing.waiting import wait_until as wait_until

PROJECT: Final = Path(__file__).resolve().parents[2]
ROLES: Final = ("broker", "reput")
GROUP_ROLES: Final = ("ha", "broker", "reput")
"""Of a node in a group."""
START_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 40.0

SMALL_STORE: Final[Mapping[str, object]] = {
    "commit_log_file_size": 1 << 20,
    "consume_queue_file_size": 20_000,
    "index_slots": 500,
    "index_entries": 2000,
}
"""Files small enough that a test rolls through several."""


class Node:
    """The services of one store. Start, kill and stop them together or one by one."""

    def __init__(
        self,
        directory: Path,
        *,
        store: Mapping[str, object] | None = None,
        broker: Mapping[str, object] | None = None,
        reput: Mapping[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
        store_dir: Path | None = None,
        ha: Mapping[str, object] | None = None,
        cluster: Mapping[str, object] | None = None,
        host: str = "127.0.0.1",
        prefix: tuple[str, ...] = (),
        ports: Mapping[str, int] | None = None,
    ) -> None:
        """directory: everything goes below it. store: the [store] table of all services, on top of
        SMALL_STORE. broker, reput, ha: more settings of one of them. environment: more variables.
        store_dir: an existing store instead of directory/store. cluster: the [cluster] table; with
        it the node is one of a group and ha runs too. host: what everything listens on. prefix:
        before every command, like ``ip netns exec NAME``. ports: of api, broker, reput and ha, if
        somebody has chosen them before.
        """
        self.directory = directory
        self.roles = ROLES if cluster is None else GROUP_ROLES
        self.host = host
        self._prefix = prefix
        self.store_dir = store_dir if store_dir is not None else directory / "store"
        # Not below directory: pytest's paths are too long for a socket (108 bytes).
        self.run_dir = Path(tempfile.mkdtemp(prefix="tm-"))
        self.ports = dict(ports or {name: free_port() for name in ("api", *self.roles)})
        self.processes: dict[str, subprocess.Popen[bytes] | forked.Forked] = {}
        self.commands: dict[str, list[str]] = {}
        self._environment = dict(environment or {})
        self._settings: dict[str, dict[str, object]] = {
            role: {
                "store_dir": str(self.store_dir),
                "run_dir": str(self.run_dir),
                "admin_host": host,
                "admin_port": self.ports[role],
                **({"host": host, "port": self.ports["api"]} if role == "broker" else {}),
                **({"commands": "port"} if role == "ha" else {}),
                **(more or {}),
                "store": {
                    **SMALL_STORE,
                    **({"visible_after": "confirmed"} if cluster is not None else {}),
                    **(store or {}),
                },
                **({"cluster": dict(cluster)} if cluster is not None and role != "reput" else {}),
            }
            for role, more in (("ha", ha), ("broker", broker), ("reput", reput))
            if role in self.roles
        }

    # -- addresses ------------------------------------------------------------------------------

    @property
    def api_url(self) -> str:
        """``http://127.0.0.1:PORT`` of the broker's API."""
        return f"http://{self.host}:{self.ports['api']}"

    @property
    def broker_admin_url(self) -> str:
        """Probes and metrics of the broker."""
        return self.admin_url("broker")

    @property
    def reput_admin_url(self) -> str:
        """Probes and metrics of reput."""
        return self.admin_url("reput")

    def admin_url(self, role: str) -> str:
        """Probes and metrics of a service; of ha the commands of the cluster as well."""
        return f"http://{self.host}:{self.ports[role]}"

    def log_path(self, role: str) -> Path:
        """Where a service's standard output and error go, over all its starts."""
        return self.directory / f"{role}.log"

    def log_text(self, role: str) -> str:
        """All that a service has logged so far."""
        path = self.log_path(role)
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    # -- life -----------------------------------------------------------------------------------

    def __enter__(self) -> Node:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        if error is not None:
            self.print_logs()

    def command(self, role: str) -> list[str]:
        """The command line that starts a service; its settings are in a file."""
        path = self.directory / f"{role}.toml"
        path.write_text(toml(self._settings[role]), encoding="utf-8")
        return [
            sys.executable,
            "-m",
            f"services.{role}",
            "--store",
            str(self.store_dir),
            "--config",
            str(path),
        ]

    def start(self, *roles: str, prefix: tuple[str, ...] = ()) -> None:
        """Start the named services (default: all). prefix: for ``strace -f …`` and the like."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for role in roles or self.roles:
            assert not self.is_alive(role), f"{role} runs already"
            self.commands[role] = [*self._prefix, *prefix, *self.command(role)]
            self.processes[role] = self._process(role)

    def _process(self, role: str) -> subprocess.Popen[bytes] | forked.Forked:
        command = self.commands[role]
        _, _, module, *arguments = self.command(role)
        if command[0] == sys.executable and not self._environment:
            process = forked.start(module, arguments, self.log_path(role))
            if process is not None:
                return process
        with self.log_path(role).open("a", encoding="utf-8") as log:
            return subprocess.Popen(
                command,
                cwd=PROJECT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def is_alive(self, role: str) -> bool:
        """Whether the service's process runs."""
        process = self.processes.get(role)
        return process is not None and process.poll() is None

    def pid(self, role: str) -> int:
        """Process id of a service that was started."""
        return self.processes[role].pid

    def wait_exit(self, role: str, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Wait until the process has ended; its exit status (negative: the signal)."""
        return self.processes[role].wait(timeout_s)

    def kill(self, *roles: str) -> None:
        """SIGKILL the named services (default: all that run), and wait until they are gone."""
        self._signal(signal.SIGKILL, roles)

    def stop(self, *roles: str) -> dict[str, int]:
        """SIGTERM the named services (default: all that run); exit status of each."""
        return self._signal(signal.SIGTERM, roles)

    def pause(self, *roles: str) -> None:
        """SIGSTOP the named services (default: all that run)."""
        for role in roles or self.roles:
            if self.is_alive(role):
                self.processes[role].send_signal(signal.SIGSTOP)

    def resume(self, *roles: str) -> None:
        """SIGCONT the named services (default: all that run)."""
        for role in roles or self.roles:
            if self.is_alive(role):
                self.processes[role].send_signal(signal.SIGCONT)

    def _signal(self, signum: signal.Signals, roles: tuple[str, ...]) -> dict[str, int]:
        stopped = [role for role in roles or self.roles if self.is_alive(role)]
        for role in stopped:
            self.processes[role].send_signal(signum)
        return {role: self.wait_exit(role) for role in stopped}

    def close(self) -> None:
        """Kill what still runs, remove the sockets."""
        self.kill()
        shutil.rmtree(self.run_dir, ignore_errors=True)

    def print_logs(self, last: int = 200) -> None:
        """Print the last lines of every log: pytest shows them with the failure."""
        for role in self.roles:
            lines = self.log_text(role).splitlines()
            print(f"--- {role}: last {min(last, len(lines))} of {len(lines)} lines")
            print("\n".join(lines[-last:]))

    # -- asking ---------------------------------------------------------------------------------

    def get_json(self, url: str) -> tuple[int, dict[str, Any]]:
        """Status and decoded JSON of a GET; status 0 while nobody answers."""
        return self.request_json("GET", url)

    def request_json(
        self,
        method: str,
        url: str,
        body: object = None,
        *,
        timeout_s: float = 30.0,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, dict[str, Any]]:
        """Status and decoded JSON of a call with a JSON body; status 0 if nobody answers.

        url: a whole URL, or a path of the API. headers: more of them.
        """
        whole = url if url.startswith("http") else self.api_url + url
        data = None if body is None else json.dumps(body).encode()
        told = {"Accept": "application/json", **(headers or {})}
        if data is not None:
            told["Content-Type"] = "application/json"
        call = urllib.request.Request(whole, data=data, headers=told, method=method)
        try:
            with urllib.request.urlopen(call, timeout=timeout_s) as answer:
                text = answer.read()
                status = int(answer.status)
        except urllib.error.HTTPError as refused:
            text, status = refused.read(), refused.code
        except OSError:
            return 0, {}
        return status, cast(dict[str, Any], json.loads(text)) if text else {}

    def ready(self, role: str = "broker") -> dict[str, Any]:
        """Body of /ready of a service; {} while nobody answers."""
        return self.get_json(self.admin_url(role) + "/ready")[1]

    def wait_ready(self, *roles: str, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until the named services (default: all that run) say that they are ready."""
        for role in roles or tuple(role for role in self.roles if self.is_alive(role)):

            def is_ready(role: str = role) -> bool:
                assert self.is_alive(role), (
                    f"{role} ended with status {self.processes[role].returncode}"
                )
                return self.ready(role).get("ready") is True

            wait_until(is_ready, f"{role} to be ready", timeout_s)

    def metric(self, role: str, name: str) -> float | None:
        """Value of a metric without labels (or with them spelled out); None if it is missing."""
        url = self.admin_url(role)
        gone = (OSError, http.client.HTTPException)  # it may end in the middle of its answer
        with contextlib.suppress(*gone), urllib.request.urlopen(url + "/metrics") as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(name + " "):
                    return float(line.rsplit(" ", 1)[1])
        return None
