"""A replicated group of real nodes for drills; each node has three processes and its own host.

``Group`` writes the configuration, starts the services, restarts those that end, and offers the
actions of the drills. The lease is in a directory or in a ``Lease`` of a test's Kubernetes API.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp

from drills.faults import FAULTS_VARIABLE, FaultPage
from drills.namespaces import Host, Network
from drills.processes import ServiceProcess, faulty_command
from tidemark.testing.node import free_ports
from tidemark.testing.settings_file import toml

SERVICES: Final = ("ha", "broker", "reput")
PORTS: Final = ("api", "ha", "broker", "reput", "replication")
POLL_S: Final = 0.05
COMMAND_TIMEOUT_S: Final = 40.0
STATUS_TIMEOUT_S: Final = 3.0
STORE: Final[Mapping[str, object]] = {
    "commit_log_file_size": 4 << 20,
    "consume_queue_file_size": 60_000,
    "index_slots": 5_000,
    "index_entries": 20_000,
}
"""Small files, so that a drill rolls over several of them."""


class DrillNode:
    """One node: its processes, its addresses and its fault page."""

    def __init__(self, name: str, directory: Path, host: Host, ports: Mapping[str, int]) -> None:
        self.name, self.host, self.ports = name, host, dict(ports)
        self.directory = directory
        self.store_dir = directory / "store"
        # Not below directory, because the path of a socket has at most 108 bytes.
        self.run_dir = Path(tempfile.mkdtemp(prefix="tm-drill-"))
        directory.mkdir(parents=True, exist_ok=True)
        self.faults = FaultPage(directory / "faults")
        self.services: dict[str, ServiceProcess] = {}

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the services."""
        return {FAULTS_VARIABLE: str(self.directory / "faults")}

    @property
    def api(self) -> str:
        """URL of the API."""
        return f"http://{self.host.address}:{self.ports['api']}"

    def admin(self, service: str) -> str:
        """URL of a service's probes and metrics; for ha, also of its commands."""
        return f"http://{self.host.address}:{self.ports[service]}"

    def settings(self, service: str, table: Mapping[str, object]) -> dict[str, object]:
        """Return the complete configuration of a service."""
        return {
            "store_dir": str(self.store_dir),
            "run_dir": str(self.run_dir),
            "admin_host": self.host.address,
            "admin_port": self.ports[service],
            **(
                {"host": self.host.address, "port": self.ports["api"]}
                if service == "broker"
                else {}
            ),
            "store": {**STORE, "visible_after": "confirmed"},
            **({"commands": "port"} if service == "ha" else {}),
            # reput needs no cluster settings: it follows the offsets that ha publishes.
            **({} if service == "reput" else {"cluster": {**table, "node": self.name}}),
        }

    def configure(self, table: Mapping[str, object], broker: Mapping[str, object]) -> None:
        """Write the configuration files and create the service processes without starting them."""
        for service in SERVICES:
            path = self.directory / f"{service}.toml"
            more = broker if service == "broker" else {}
            path.write_text(toml({**self.settings(service, table), **more}), encoding="utf-8")
            self.services[service] = ServiceProcess(
                faulty_command(service, self.store_dir, path),
                self.host,
                self.directory / f"{service}.log",
                self.environment,
            )

    def running(self, services: tuple[str, ...]) -> list[ServiceProcess]:
        """Return the named services (default: all)."""
        return [self.services[service] for service in services or SERVICES]


class Group:
    """A group, used as ``async with Group(…) as group``; ``start`` starts its nodes."""

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
        self.directory, self.network = directory, network
        directory.mkdir(parents=True, exist_ok=True)
        secret = directory / "secret"
        secret.write_text(secrets.token_hex(32), encoding="ascii")
        secret.chmod(0o600)
        self.lease_dir = directory / "lease"
        self.lease_dir.mkdir(exist_ok=True)
        self.names = tuple(f"n{number}" for number in range(nodes))
        ports = free_ports(nodes * len(PORTS))
        self.nodes: dict[str, DrillNode] = {}
        for number, name in enumerate(self.names):
            own = ports[number * len(PORTS) : (number + 1) * len(PORTS)]
            self.nodes[name] = DrillNode(
                name, directory / name, network.add(name), dict(zip(PORTS, own, strict=True))
            )
        self.table: dict[str, object] = {
            "name": "drills",
            "group": "g0",
            "nodes": [f"{n.name}={n.host.address}:{n.ports['replication']}" for n in self._all],
            "api": [f"{node.name}={node.api}" for node in self._all],
            "admin": [f"{node.name}={node.admin('ha')}" for node in self._all],
            "secret_file": str(secret),
            "profile": profile,
            **(
                {"lease": "directory", "lease_dir": str(self.lease_dir)} if lease is None else lease
            ),
            **({} if min_in_sync is None else {"min_in_sync": min_in_sync}),
        }
        for node in self._all:
            node.configure(self.table, broker or {})
        self._keeper: asyncio.Task[None] | None = None

    @property
    def _all(self) -> list[DrillNode]:
        return list(self.nodes.values())

    @property
    def apis(self) -> dict[str, str]:
        """URL of every node's API."""
        return {node.name: node.api for node in self._all}

    async def __aenter__(self) -> Group:
        self._keeper = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        for node in self._all:
            for service in node.services.values():
                service.kill(again=False)
            shutil.rmtree(node.run_dir, ignore_errors=True)

    async def _keep(self) -> None:
        """Restart services that ended."""
        while True:
            for node in self._all:
                for service in node.services.values():
                    service.restart_if_ended()
            await asyncio.sleep(POLL_S)

    # -- actions ----------------------------------------------------------------------------------

    def start(self, *names: str) -> None:
        """Start all services of the named nodes (default: of all)."""
        for name in names or self.names:
            for service in self.nodes[name].running(()):
                service.start()

    def kill(self, name: str, *services: str, again: bool = False) -> None:
        """SIGKILL services of a node (default: all); again: they are restarted a moment later."""
        for service in self.nodes[name].running(services):
            service.kill(again=again)

    async def stop(self, *names: str) -> None:
        """SIGTERM all services of the named nodes (default: all) at once, like the end of a pod."""
        await asyncio.gather(
            *(
                asyncio.to_thread(service.stop)
                for name in names or self.names
                for service in self.nodes[name].running(())
            )
        )

    def pause(self, name: str, *services: str) -> None:
        """SIGSTOP services of a node (default: all)."""
        for service in self.nodes[name].running(services):
            service.send(signal.SIGSTOP)

    def unpause(self, name: str, *services: str) -> None:
        """SIGCONT services of a node (default: all)."""
        for service in self.nodes[name].running(services):
            service.send(signal.SIGCONT)

    async def command(
        self, name: str, command: str, **arguments: object
    ) -> tuple[int, dict[str, Any]]:
        """Send a command to a node's ha service; status 0 means that there was no response."""
        return await self.ask(
            f"{self.nodes[name].admin('ha')}/v1/cluster/{command}", "POST", arguments
        )

    def wipe(self, name: str) -> None:
        """Delete the store of a node that is down, as if its volume had been replaced."""
        shutil.rmtree(self.nodes[name].store_dir)

    async def status(self, name: str) -> dict[str, Any]:
        """Return the cluster status of a node's ha service; empty if there is no response."""
        url = f"{self.nodes[name].admin('ha')}/v1/cluster"
        return (await self.ask(url, timeout_s=STATUS_TIMEOUT_S))[1]

    async def ask(
        self,
        url: str,
        method: str = "GET",
        body: object = None,
        *,
        timeout_s: float = COMMAND_TIMEOUT_S,
    ) -> tuple[int, dict[str, Any]]:
        """Make an HTTP call; return status and JSON. Status 0 means that there was no response."""
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.request(method, url, json=body) as answer,
            ):
                text = await answer.read()
                return answer.status, json.loads(text) if text else {}
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return 0, {}

    def log_tail(self) -> str:
        """Return the end of the log of every service, for the report of a failed drill."""
        parts = []
        for node in self._all:
            for name, service in node.services.items():
                state = "runs" if service.alive else "does not run"
                parts.append(
                    f"--- {node.name} {name} ({state}, start {service.starts})\n"
                    f"{service.log_tail()}"
                )
        return "\n".join(parts)
