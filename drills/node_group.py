"""A group of nodes on one machine, with its secret and its lease in a directory.

``NodeGroup`` chooses the ports, makes the [cluster] table, and starts, stops, watches and waits for
its nodes. The groups of tests, drills, benchmarks and lag scenarios are made of it.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Generic, Self, TypeVar

from shared.cluster.local_group import Addresses, cluster_table
from tidemark.formats.checkpoint import SLOT_SIZE, Slot
from tidemark.testing.child import NodeFailed
from tidemark.testing.node import GROUP_ROLES, LINES_SHOWN, SMALL_STORE, NodeProcesses
from tidemark.testing.ports import free_ports

PORTS: Final = ("api", *GROUP_ROLES, "replication")
LOG_FILE_SIZE: Final = SMALL_STORE["commit_log_file_size"]
"""Of the nodes [bytes]."""
WAIT_TIMEOUT_S: Final = 120.0
POLL_S: Final = 0.05
ANSWER_TIMEOUT_S: Final = 5.0

N = TypeVar("N", bound=NodeProcesses)
_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Nodes are on this machine, so no proxy of the environment is used."""


class NodeGroup(Generic[N]):
    """Nodes of one group. Start, kill and stop them together, one by one, or a service of one."""

    def __init__(
        self,
        directory: Path,
        hosts: Mapping[str, str],
        make: Callable[[str, dict[str, int], dict[str, object]], N],
        table: Mapping[str, object],
    ) -> None:
        """directory: contains all files of the group. hosts: address of each node by its name.
        make: makes a node of its name, its ports and its [cluster] table. table: more settings of
        [cluster] on every node.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.names = tuple(hosts)
        numbers = iter(free_ports(len(hosts) * len(PORTS)))
        self.ports = {name: {port: next(numbers) for port in PORTS} for name in hosts}
        places = {
            name: Addresses(
                replication=f"{host}:{self.ports[name]['replication']}",
                api=f"http://{host}:{self.ports[name]['api']}",
                admin=f"http://{host}:{self.ports[name]['ha']}",
            )
            for name, host in hosts.items()
        }
        self.table: dict[str, object] = {**cluster_table(directory, places), **table}
        if self.table["lease"] != "directory":
            del self.table["lease_dir"]
        self.nodes: dict[str, N] = {
            name: make(name, self.ports[name], {**self.table, "node": name}) for name in hosts
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, _trace: object) -> None:
        try:
            if error is not None:
                self.kill_all()
                self.print_logs()
        finally:
            self.close()

    @property
    def secret_path(self) -> Path:
        return Path(str(self.table["secret_file"]))

    @property
    def replication_ports(self) -> list[int]:
        return [ports["replication"] for ports in self.ports.values()]

    @property
    def lease_dir(self) -> Path:
        """Directory of the lease, if the lease is in one."""
        return Path(str(self.table["lease_dir"]))

    # -- life -------------------------------------------------------------------------------------

    def start(self, *names: str) -> None:
        """Start the services that do not run, of the named nodes (default: of all)."""
        for name in names or self.names:
            self.nodes[name].start()

    def kill(self, name: str, *roles: str) -> None:
        """SIGKILL services of a node (default: all)."""
        self.nodes[name].kill(*roles)

    def kill_all(self) -> None:
        for node in self.nodes.values():
            node.kill()

    def stop(self, *names: str) -> dict[str, dict[str, int]]:
        """SIGTERM all services of the named nodes (default: of all) at once, like the end of their
        pods; return the exit statuses."""
        found: dict[str, dict[str, int]] = {}
        processes = [
            (name, role, process)
            for name in names or self.names
            for role, process in self.nodes[name].processes.items()
            if process.is_alive
        ]
        for _, _, process in processes:
            process.terminate()
        for name, role, process in processes:
            found.setdefault(name, {})[role] = process.wait()
        return found

    def pause(self, name: str, *roles: str) -> None:
        """SIGSTOP services of a node (default: all)."""
        self.nodes[name].pause(*roles)

    def resume(self, name: str, *roles: str) -> None:
        """SIGCONT services of a node (default: all)."""
        self.nodes[name].resume(*roles)

    def close(self) -> None:
        self.kill_all()
        for node in self.nodes.values():
            node.close()

    def check_alive(self) -> None:
        """Raise NodeFailed with the last log lines if a service that should run has ended."""
        for node in self.nodes.values():
            node.check_alive()

    def logs(self, lines: int = LINES_SHOWN) -> str:
        return "\n".join(node.logs(lines) for node in self.nodes.values())

    def print_logs(self) -> None:
        """Print the last log lines of every service: pytest shows them with the failure."""
        print(self.logs(), file=sys.stderr)

    # -- state ------------------------------------------------------------------------------------

    def serving(self) -> str | None:
        """Return the node whose broker accepts sends; None if there is none."""
        for name, node in self.nodes.items():
            if node.is_alive("broker") and ask(f"{node.admin_url('broker')}/primary")[0] == 200:
                return name
        return None

    def members(self, name: str) -> list[dict[str, Any]]:
        """Return what a node's ha reports about all nodes; empty without an answer."""
        _, answer = ask(f"{self.nodes[name].admin_url('ha')}/v1/cluster")
        nodes: list[dict[str, Any]] = answer.get("nodes", [])
        return nodes

    def in_sync(self) -> set[str]:
        """Return the nodes that the master reports as in sync, and which follow it."""
        master = self.serving()
        return {
            node["node"]
            for node in ([] if master is None else self.members(master))
            if node["in_sync"] and node["state"] in ("master", "in-sync")
        }

    def wait(
        self, condition: Callable[[], object], what: str, timeout_s: float = WAIT_TIMEOUT_S
    ) -> None:
        """Wait for a condition.

        Raises NodeFailed as soon as a service that should run has ended; after the timeout, with
        the logs of all services."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            self.check_alive()
            if time.monotonic() > deadline:
                raise NodeFailed(f"waited {timeout_s:.0f} s for {what}.\n{self.logs(20)}")
            time.sleep(POLL_S)

    def wait_master(
        self, *, other_than: str | None = None, timeout_s: float = WAIT_TIMEOUT_S
    ) -> str:
        """Wait until a node's broker accepts sends; return its name. other_than: not this one."""
        found: str | None = None

        def is_there() -> bool:
            nonlocal found
            found = self.serving()
            return found is not None and found != other_than

        self.wait(is_there, "a master that accepts sends", timeout_s)
        assert found is not None
        return found

    def wait_in_sync(self, *names: str, timeout_s: float = WAIT_TIMEOUT_S) -> None:
        """Wait until the named nodes (default: all) are in sync."""
        wanted = set(names or self.names)
        self.wait(lambda: wanted <= self.in_sync(), f"{sorted(wanted)} to be in sync", timeout_s)


def ask(
    url: str,
    method: str = "GET",
    body: object = None,
    *,
    timeout_s: float = ANSWER_TIMEOUT_S,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, dict[str, Any]]:
    """Make an HTTP call with JSON; return status and body. Status 0: there was no answer."""
    data = None if body is None else json.dumps(body).encode()
    sent = {"Accept": "application/json", **(headers or {})}
    if data is not None:
        sent["Content-Type"] = "application/json"
    call = urllib.request.Request(url, data=data, headers=sent, method=method)
    try:
        with _DIRECT.open(call, timeout=timeout_s) as answer:
            text, status = answer.read(), int(answer.status)
    except urllib.error.HTTPError as error:
        text, status = error.read(), error.code
    except (OSError, http.client.HTTPException):
        return 0, {}
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        found = {}
    return status, found if isinstance(found, dict) else {}


async def ask_async(
    url: str,
    method: str = "GET",
    body: object = None,
    *,
    timeout_s: float = ANSWER_TIMEOUT_S,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, dict[str, Any]]:
    """Do the same as ``ask`` without blocking the event loop."""
    return await asyncio.to_thread(ask, url, method, body, timeout_s=timeout_s, headers=headers)


def slot(store_dir: Path, which: Slot) -> int:
    """Return a value of a node's checkpoint page, without its services; 0 if there is no page."""
    try:
        with (store_dir / "checkpoint").open("rb") as file:
            file.seek(which * SLOT_SIZE)
            return int.from_bytes(file.read(SLOT_SIZE), "little")
    except FileNotFoundError:
        return 0
