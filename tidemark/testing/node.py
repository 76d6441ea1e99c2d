"""A node of real processes: broker and reput on one store, and ha if the node is in a group.

``NodeProcesses`` writes the configuration and starts, stops, kills and watches the services. The
tests, drills and benchmarks of Tidemark itself run their nodes with it, too. ``LocalNode`` is the
node that users' tests get: a behaviour as in a deployment, at about a second per start.
"""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final, Self

from shared.cluster.local_group import member_settings
from shared.runtime import programs
from tidemark.testing.child import ChildProcess, NodeFailed
from tidemark.testing.ports import free_ports

ROLES: Final = ("broker", "reput")
GROUP_ROLES: Final = ("ha", *ROLES)
LOOPBACK: Final = "127.0.0.1"
START_TIMEOUT_S: Final = 120.0
POLL_S: Final = 0.02
READY_TIMEOUT_S: Final = 10.0
LINES_SHOWN: Final = 200

SMALL_STORE: Final[Mapping[str, int]] = {
    "commit_log_file_size": 4 << 20,
    "consume_queue_file_size": 60_000,
    "index_slots": 5_000,
    "index_entries": 20_000,
}
"""Small files, which are created fast; a larger test uses several of them."""


class NodeProcesses:
    """The services of one store. Start, kill and stop them together or one by one.

    Without role names, a method applies to all services.
    """

    STORE: ClassVar[Mapping[str, object]] = SMALL_STORE
    """The [store] table unless ``settings`` say otherwise."""
    CHILD: ClassVar[type[ChildProcess]] = ChildProcess
    """The class of its processes."""

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, Mapping[str, object]] | None = None,
        store_dir: Path | None = None,
        host: str = LOOPBACK,
        ports: Mapping[str, int] | None = None,
        cluster: Mapping[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
        before_exec: Callable[[], None] | None = None,
    ) -> None:
        """directory: contains logs, configuration and, by default, the store. settings: "store" for
        all services, and more of one service by its role. host: the address of all listeners.
        ports: ports of "api" and of each role's probes; default: free ones. cluster: the [cluster]
        table of a node that is in a group. environment, before_exec: see ``ChildProcess``.
        """
        self.directory, self.host, self.cluster = directory, host, cluster
        self.roles = ROLES if cluster is None else GROUP_ROLES
        self.store_dir = store_dir if store_dir is not None else directory / "store"
        if ports is None:
            names = ("api", *self.roles)
            ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.ports = dict(ports)
        self._more = dict(settings or {})
        assert set(self._more) <= {"store", *GROUP_ROLES}, sorted(self._more)
        # Not below directory: a socket's path has at most 108 bytes.
        self.run_dir = Path(tempfile.mkdtemp(prefix="tidemark-"))
        self.processes: dict[str, ChildProcess] = {
            role: self.CHILD(
                directory / f"{role}.log", environment=environment, before_exec=before_exec
            )
            for role in self.roles
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, _trace: object) -> None:
        try:
            if error is not None:
                self.kill()
                self.print_logs()
        finally:
            self.close()

    # -- addresses ------------------------------------------------------------------------------

    @property
    def api_url(self) -> str:
        """URL of the broker's API."""
        return self.admin_url("api")

    def admin_url(self, role: str) -> str:
        """URL of a service's probes and metrics; that of ha also takes the cluster commands."""
        return f"http://{self.host}:{self.ports[role]}"

    # -- configuration --------------------------------------------------------------------------

    def settings(self, role: str) -> dict[str, object]:
        """Return the complete configuration of a service."""
        member = {} if self.cluster is None else member_settings(role, self.cluster)
        listening = {"host": self.host, "port": self.ports["api"]} if role == "broker" else {}
        store = member.pop("store", {})
        assert isinstance(store, Mapping)
        return {
            "store_dir": str(self.store_dir),
            "run_dir": str(self.run_dir),
            "admin_host": self.host,
            "admin_port": self.ports[role],
            **listening,
            **member,
            **self._more.get(role, {}),
            "store": {**self.STORE, **store, **self._more.get("store", {})},
        }

    def command(self, role: str) -> list[str]:
        """Write the configuration of a service; return the command line that starts it."""
        path = self.directory / f"{role}.toml"
        self.directory.mkdir(parents=True, exist_ok=True)
        path.write_text(_toml(self.settings(role)), encoding="utf-8")
        return [*programs.service(role), "--store", str(self.store_dir), "--config", str(path)]

    # -- life -----------------------------------------------------------------------------------

    def start(self, *roles: str, prefix: Sequence[str] = ()) -> None:
        """Start services (default: those that do not run) without waiting for them.

        prefix: put before the command, like strace. Raises NodeFailed if a named service runs.
        """
        for role in roles or [role for role in self.roles if not self.is_alive(role)]:
            self.processes[role].start([*prefix, *self.command(role)])

    def kill(self, *roles: str) -> None:
        """SIGKILL services, and wait until they have ended."""
        for process in self._of(roles):
            process.send_signal(signal.SIGKILL)
        for process in self._of(roles):
            process.kill()

    def stop(self, *roles: str) -> dict[str, int]:
        """SIGTERM services at once and wait; return the exit status of each that ran. A service
        that does not end in time is killed."""
        running = [role for role in roles or self.roles if self.is_alive(role)]
        for role in running:
            self.processes[role].terminate()
        return {role: self.processes[role].wait() for role in running}

    def pause(self, *roles: str) -> None:
        """SIGSTOP services."""
        for process in self._of(roles):
            process.send_signal(signal.SIGSTOP)

    def resume(self, *roles: str) -> None:
        """SIGCONT services."""
        for process in self._of(roles):
            process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill what still runs, and remove the files outside ``directory``."""
        self.kill()
        shutil.rmtree(self.run_dir, ignore_errors=True)

    def _of(self, roles: Sequence[str]) -> list[ChildProcess]:
        return [self.processes[role] for role in roles or self.roles]

    # -- state ----------------------------------------------------------------------------------

    def is_alive(self, role: str) -> bool:
        """Whether a service's process exists."""
        return self.processes[role].is_alive

    def pid(self, role: str) -> int:
        """Process id of a service that was started."""
        return self.processes[role].pid

    def is_ready(self, role: str) -> bool:
        """Whether a service reports that it is ready."""
        return is_ready(self.admin_url(role))

    def wait_ready(self, *roles: str, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until services (default: all that should run) are ready.

        Raises NodeFailed with the last log lines as soon as one has ended, or after the timeout.
        """
        for role in roles or [role for role in self.roles if self.processes[role].wanted]:
            process, deadline = self.processes[role], time.monotonic() + timeout_s
            while not self.is_ready(role):
                process.check_alive()
                if time.monotonic() > deadline:
                    raise NodeFailed(
                        f"{role} was not ready within {timeout_s:.0f} s. "
                        f"The end of {process.log_path}:\n{process.log_tail()}"
                    )
                time.sleep(POLL_S)

    def check_alive(self) -> None:
        """Raise NodeFailed with the last log lines if a service that should run has ended."""
        for process in self.processes.values():
            if process.wanted:
                process.check_alive()

    def log_text(self, role: str) -> str:
        """Return the whole output of a service, over all its starts."""
        return self.processes[role].log_text()

    def logs(self, lines: int = LINES_SHOWN) -> str:
        """Return the last log lines of every service, with its state."""
        parts = []
        for role, process in self.processes.items():
            state = "runs" if process.is_alive else "does not run"
            parts.append(
                f"--- {self.directory.name} {role}: {state}, start {process.starts}, last {lines} "
                f"lines of {process.log_path}\n{process.log_tail(lines)}"
            )
        return "\n".join(parts)

    def print_logs(self, lines: int = LINES_SHOWN) -> None:
        """Print the last log lines: pytest shows them with the failure."""
        print(self.logs(lines), file=sys.stderr)


class LocalNode(NodeProcesses):
    """Broker and reput on ``directory``. Use it with ``with``, or call ``start`` and ``stop``."""

    def __init__(self, directory: Path, *, auto_create_topics: bool = True) -> None:
        super().__init__(directory, settings={"broker": {"auto_create_topics": auto_create_topics}})

    @property
    def url(self) -> str:
        """The URL for ``tidemark.connect``."""
        return self.api_url

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def start(self, *roles: str, prefix: Sequence[str] = ()) -> None:
        """Start what does not run and wait until both are ready; a restart uses the same ports."""
        super().start(*roles, prefix=prefix)
        try:
            self.wait_ready()
        except BaseException:
            self.kill()
            raise

    def stop(self, *roles: str) -> dict[str, int]:
        """Stop in order: the broker, then reput, which dispatches the rest of the log."""
        return {
            role: status
            for each in roles or self.roles
            for role, status in super(LocalNode, self).stop(each).items()
        }

    def close(self) -> None:
        """Stop, and remove the files outside ``directory``."""
        self.stop()
        super().close()


def is_ready(url: str) -> bool:
    """Whether the service with this URL of its probes reports that it is ready."""
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=READY_TIMEOUT_S) as answer:
            return int(answer.status) == 200
    except (OSError, http.client.HTTPException):
        return False


def _toml(values: Mapping[str, object]) -> str:
    """Return settings as TOML: scalars and lists, then one table per map. None is omitted."""
    lines = [
        f"{name} = {json.dumps(str(value) if isinstance(value, Path) else value)}"
        for name, value in values.items()
        if value is not None and not isinstance(value, Mapping)
    ]
    for name, value in values.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{name}]", _toml(value)]
    return "\n".join(lines) + "\n"
