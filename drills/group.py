"""A replicated group of real nodes for drills; each node has three processes and its own host.

``Group`` restarts services that end and offers the actions of the drills. The lease is in a
directory, in an etcd or in a ``Lease`` of a test's Kubernetes API. Step before: ``node_group``.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from drills.faults import FAULTS_VARIABLE, FaultPage
from drills.namespaces import Host, Network
from drills.node_group import NodeGroup, ask_async
from shared.runtime import programs
from shared.runtime.lifecycle import EXIT_USAGE
from tidemark.testing.node import NodeProcesses

POLL_S: Final = 0.05
RESTART_S: Final = 0.3
"""Time between the end of a service and its restart."""
COMMAND_TIMEOUT_S: Final = 40.0
STATUS_TIMEOUT_S: Final = 3.0


class DrillNode(NodeProcesses):
    """One node: its processes with fault injection, its host and its fault page."""

    def __init__(
        self,
        name: str,
        directory: Path,
        host: Host,
        ports: Mapping[str, int],
        cluster: Mapping[str, object],
        broker: Mapping[str, object],
    ) -> None:
        """broker: additional settings of the broker."""
        self.name, self.place = name, host
        directory.mkdir(parents=True, exist_ok=True)
        self.faults = FaultPage(directory / "faults")
        super().__init__(
            directory,
            settings={"broker": broker},
            host=host.address,
            ports=ports,
            cluster=cluster,
            environment={FAULTS_VARIABLE: str(directory / "faults")},
            before_exec=host.before_exec,
        )
        self._ended_at: dict[str, float] = {}

    def command(self, role: str) -> list[str]:
        """Return the command line of a service with fault injection."""
        plain = programs.service(role)
        faulty = [*programs.python_module(f"{__package__}.faulty"), plain[-1]]
        return [*faulty, *super().command(role)[len(plain) :]]

    def join(self, cluster: Mapping[str, object]) -> None:
        """Use another [cluster] table from the next start on."""
        self.cluster = {**cluster, "node": self.name}

    def restart_ended(self) -> None:
        """Start services that have ended and should run. Call this several times a second.

        Raises NodeFailed if one has refused its configuration, which it would do again.
        """
        now = time.monotonic()
        for role, process in self.processes.items():
            if not process.wanted or process.is_alive:
                self._ended_at.pop(role, None)
            elif process.returncode == EXIT_USAGE:
                process.check_alive()
            elif now - self._ended_at.setdefault(role, now) >= RESTART_S:
                self.start(role)


class Group(NodeGroup[DrillNode]):
    """A group whose services are restarted; use it as ``async with``, and ``start`` it.

    The block is cancelled and ends with NodeFailed if a service refuses its configuration.
    """

    def __init__(
        self,
        directory: Path,
        network: Network,
        *,
        nodes: int = 3,
        min_in_sync: int | None = None,
        profile: str = "local",
        lease: Mapping[str, object] | None = None,
        broker: Mapping[str, object] | None = None,
    ) -> None:
        """lease: the [cluster] settings of the lease; default: a directory. broker: additional
        settings of every broker.
        """
        self.network = network
        hosts = {name: network.add(name) for name in (f"n{number}" for number in range(nodes))}

        def make(name: str, ports: dict[str, int], table: dict[str, object]) -> DrillNode:
            return DrillNode(name, directory / name, hosts[name], ports, table, broker or {})

        table: dict[str, object] = {"name": "drills", "group": "g0", "profile": profile}
        table |= lease or {}
        if min_in_sync is not None:
            table["min_in_sync"] = min_in_sync
        super().__init__(
            directory, {name: host.address for name, host in hosts.items()}, make, table
        )
        self._tasks = asyncio.TaskGroup()
        self._keeper: asyncio.Task[None] | None = None

    @property
    def apis(self) -> dict[str, str]:
        return {name: node.api_url for name, node in self.nodes.items()}

    async def __aenter__(self) -> Group:
        await self._tasks.__aenter__()
        self._keeper = self._tasks.create_task(self._keep())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
        try:
            await self._tasks.__aexit__(kind, error, trace)
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            self.close()

    async def _keep(self) -> None:
        while True:
            for node in self.nodes.values():
                node.restart_ended()
            await asyncio.sleep(POLL_S)

    # -- actions ----------------------------------------------------------------------------------

    def crash(self, name: str, *roles: str) -> None:
        """SIGKILL services of a node (default: all), which are restarted a moment later."""
        node = self.nodes[name]
        for role in roles or node.roles:
            node.processes[role].crash()

    async def stop_orderly(self, *names: str) -> None:
        """Do the same as ``stop`` while the load continues."""
        await asyncio.to_thread(self.stop, *names)

    async def command(
        self, name: str, command: str, **arguments: object
    ) -> tuple[int, dict[str, Any]]:
        """Send a command to a node's ha service; status 0 means that there was no response."""
        url = f"{self.nodes[name].admin_url('ha')}/v1/cluster/{command}"
        return await ask_async(url, "POST", arguments, timeout_s=COMMAND_TIMEOUT_S)

    def wipe(self, name: str) -> None:
        """Delete the store of a node that is down, as if its volume had been replaced."""
        shutil.rmtree(self.nodes[name].store_dir)

    async def status(self, name: str) -> dict[str, Any]:
        """Return the cluster status of a node's ha service; empty if there is no response."""
        url = f"{self.nodes[name].admin_url('ha')}/v1/cluster"
        return (await ask_async(url, timeout_s=STATUS_TIMEOUT_S))[1]

    async def entry(self, asked: str, name: str) -> dict[str, Any]:
        """Return what one node's ha service reports of another; empty if there is nothing."""
        nodes = (await self.status(asked)).get("nodes") or ()
        return next((dict(node) for node in nodes if node.get("node") == name), {})
