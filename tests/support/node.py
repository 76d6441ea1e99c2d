"""A node of real processes for tests, which can be asked and measured.

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
import signal
import subprocess
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from drills.node_group import ask
from shared.runtime import programs
from tests.support import forked
from tidemark.testing.child import ChildProcess
from tidemark.testing.node import GROUP_ROLES as GROUP_ROLES
from tidemark.testing.node import LOOPBACK, NodeProcesses
from tidemark.testing.node import ROLES as ROLES
from tidemark.testing.ports import free_port as free_port
from tidemark.testing.waiting import wait_until as wait_until

PROJECT: Final = Path(__file__).resolve().parents[2]

SMALL_STORE: Final[Mapping[str, object]] = {
    "commit_log_file_size": 1 << 20,
    "consume_queue_file_size": 20_000,
    "index_slots": 500,
    "index_entries": 2000,
}
"""Files small enough that a test rolls through several."""


class ServiceProcess(ChildProcess):
    """A service, forked if its command and environment are those of every service."""

    def variables(self) -> dict[str, str]:
        """Return the environment: the services are those of this clone, wherever others are."""
        return {"PYTHONPATH": str(PROJECT), **super().variables()}

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        interpreter = programs.python_module("")[:-1]
        size = len(interpreter)
        if command[:size] == interpreter and not self.environment:
            process = forked.start(command[size], command[size + 1 :], self.log_path)
            if process is not None:
                return cast("subprocess.Popen[bytes]", process)
        return super()._spawn(command)


class Node(NodeProcesses):
    """The services of one store. Start, kill and stop them together or one by one."""

    STORE = SMALL_STORE
    CHILD = ServiceProcess

    def __init__(
        self,
        directory: Path,
        *,
        environment: Mapping[str, str] | None = None,
        store_dir: Path | None = None,
        cluster: Mapping[str, object] | None = None,
        host: str = LOOPBACK,
        prefix: tuple[str, ...] = (),
        ports: Mapping[str, int] | None = None,
        **settings: Mapping[str, object] | None,
    ) -> None:
        """prefix: before every command, like ``ip netns exec NAME``. settings: ``store`` for all
        services, ``broker``, ``reput`` and ``ha`` for one. The rest: see ``NodeProcesses``.
        """
        super().__init__(
            directory,
            settings={name: table for name, table in settings.items() if table is not None},
            store_dir=store_dir,
            host=host,
            ports=ports,
            cluster=cluster,
            environment=environment,
        )
        self._prefix = prefix

    def command(self, role: str) -> list[str]:
        """Return the command line that starts a service; its settings are in a file."""
        return [*self._prefix, *super().command(role)]

    @property
    def broker_admin_url(self) -> str:
        """Probes and metrics of the broker."""
        return self.admin_url("broker")

    @property
    def reput_admin_url(self) -> str:
        """Probes and metrics of reput."""
        return self.admin_url("reput")

    def wait_exit(self, role: str) -> int:
        """Wait until the process has ended; return its exit status (negative: the signal)."""
        return self.processes[role].wait()

    def stop(self, *roles: str) -> dict[str, int]:
        """SIGTERM services and return their exit statuses; each has to end by itself."""
        statuses = super().stop(*roles)
        assert -signal.SIGKILL not in statuses.values(), f"not ended by SIGTERM: {statuses}"
        return statuses

    # -- asking ---------------------------------------------------------------------------------

    def get_json(self, url: str) -> tuple[int, dict[str, Any]]:
        """Return status and JSON of a GET; status 0 without an answer."""
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
        """Return status and JSON of a call with a JSON body; status 0 without an answer.

        url: a whole URL, or a path of the API. headers: additional ones.
        """
        whole = url if url.startswith("http") else self.api_url + url
        return ask(whole, method, body, timeout_s=timeout_s, headers=headers)

    def ready(self, role: str = "broker") -> dict[str, Any]:
        """Return the body of /ready of a service; {} without an answer."""
        return self.get_json(self.admin_url(role) + "/ready")[1]

    def metric(self, role: str, name: str) -> float | None:
        """Return a metric, whose name includes its labels; None if it is missing."""
        url = self.admin_url(role)
        gone = (OSError, http.client.HTTPException)  # the process may end during its answer
        with contextlib.suppress(*gone), urllib.request.urlopen(url + "/metrics") as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(name + " "):
                    return float(line.rsplit(" ", 1)[1])
        return None
