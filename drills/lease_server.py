"""A lease store that a drill makes fail, and operations on the lease.

A drill edits, deletes and restores the lease by hand, and sets the faults of the store over HTTP.
``KubernetesServer`` is ``drills.lease_api`` on a host of its own. ``EtcdServer`` is a real etcd
with a member on each machine; the nodes reach each member through a ``drills.etcd_proxy``, and the
drill itself calls etcd directly.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from drills.etcd_cluster import EtcdCluster
from drills.faulty_server import BY_HAND
from drills.namespaces import Host, Network, cut_apart
from drills.node_group import ask_async
from shared.runtime import programs
from tidemark.testing.child import ChildProcess
from tidemark.testing.ports import free_port

HOST: Final = "lease"
TIMEOUT_S: Final = 60.0
"""Limit of the start and of each call; on a quiet machine they take a second, or less."""
POLL_S: Final = 0.05
NAMESPACE: Final = "drills"
NOTE: Final = "example.org/note"
"""A field that another program puts into the object."""


class FaultyProcess:
    """A process with a ``FaultyServer``."""

    def __init__(self, directory: Path, host: Host, module: str, *arguments: str) -> None:
        """module: of ``drills``; it is run on the host with its address, a port and arguments."""
        port = free_port()
        self.url = f"http://{host.address}:{port}"
        directory.mkdir(parents=True, exist_ok=True)
        log = directory / f"{module}-{host.name}.log"
        self.process = ChildProcess(log, before_exec=host.before_exec)
        self._command = [
            *programs.python_module(f"{__package__}.{module}"),
            *("--host", host.address, "--port", str(port), *arguments),
        ]

    async def start(self) -> None:
        """Start the process and wait until it answers."""
        self.process.start(self._command)
        deadline = time.monotonic() + TIMEOUT_S
        while (await _ask("GET", f"{self.url}/faults"))[0] != 200:
            self.process.check_alive()
            if time.monotonic() > deadline:
                raise TimeoutError(f"the lease's server does not answer: {self.process.log_tail()}")
            await asyncio.sleep(POLL_S)

    async def set_faults(self, values: dict[str, object]) -> None:
        """Replace the faults of the server."""
        status, answer = await _ask("PUT", f"{self.url}/faults", values)
        if status != 200:
            raise RuntimeError(f"the lease's server took no faults: {status} {answer}")


class LeaseServer(ABC):
    """The processes of the store, used as ``async with KubernetesServer(…) as lease``."""

    own_hosts: tuple[str, ...] = ()
    """Hosts of the store on which no node runs."""

    def __init__(self, *servers: FaultyProcess) -> None:
        self._servers = servers

    async def __aenter__(self) -> LeaseServer:
        await asyncio.gather(*(server.start() for server in self._servers))
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.process.kill()

    @property
    @abstractmethod
    def settings(self) -> dict[str, object]:
        """The [cluster] settings of the lease."""

    async def faults(self, **values: object) -> None:
        """Replace the faults of the store; without values, remove them."""
        await asyncio.gather(*(server.set_faults(values) for server in self._servers))

    @abstractmethod
    async def cut_off(self, network: Network, name: str) -> None:
        """Let a node reach all but the store until the faults are removed, and the cuts healed."""

    @abstractmethod
    async def read(self) -> dict[str, Any] | None:
        """Return the stored object; None if it does not exist."""

    @abstractmethod
    async def create(self, found: dict[str, Any]) -> None:
        """Create the object again as it was read once; it gets a new version."""

    @abstractmethod
    async def delete(self) -> None:
        """Delete the object."""

    @abstractmethod
    async def edit_holder(self, holder: str) -> bool:
        """Write another holder; return False if another write came first."""

    @abstractmethod
    async def edit_note(self, text: str) -> bool:
        """Write a field of another program; return False if another write came first."""


class KubernetesServer(LeaseServer):
    """A Kubernetes API with the Lease of a group."""

    own_hosts = (HOST,)

    def __init__(self, directory: Path, network: Network, *, seed: int, lease_name: str) -> None:
        """lease_name: name of the object in the configuration of the group."""
        server = FaultyProcess(directory, network.add(HOST), "lease_api", "--seed", str(seed))
        super().__init__(server)
        self._url = server.url
        self._object = (
            f"{server.url}/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{lease_name}"
        )

    @property
    def settings(self) -> dict[str, object]:
        names = {"kubernetes_url": self._url, "kubernetes_namespace": NAMESPACE}
        return {"lease": "kubernetes", **names}

    async def cut_off(self, network: Network, name: str) -> None:
        cut_apart(network, name, self.own_hosts)

    async def read(self) -> dict[str, Any] | None:
        status, found = await _ask("GET", self._object)
        return found if status == 200 else None

    async def delete(self) -> None:
        await _ask("DELETE", self._object)

    async def create(self, found: dict[str, Any]) -> None:
        metadata = {
            name: value
            for name, value in found["metadata"].items()
            if name not in ("resourceVersion", "uid", "creationTimestamp")
        }
        collection = self._object.rpartition("/")[0]
        status, answer = await _ask("POST", collection, {**found, "metadata": metadata})
        if status not in (200, 201):
            raise RuntimeError(f"the lease cannot be made: {status} {answer}")

    async def edit_holder(self, holder: str) -> bool:
        found = await self._found()
        found["spec"]["holderIdentity"] = holder
        return await self._write(found)

    async def edit_note(self, text: str) -> bool:
        found = await self._found()
        found["metadata"].setdefault("annotations", {})[NOTE] = text
        return await self._write(found)

    async def _found(self) -> dict[str, Any]:
        found = await self.read()
        assert found is not None, "there is no lease"
        return found

    async def _write(self, found: dict[str, Any]) -> bool:
        return (await _ask("PUT", self._object, found))[0] == 200


class EtcdServer(LeaseServer):
    """An etcd with the key of a group, each member behind a proxy on its host."""

    def __init__(
        self,
        directory: Path,
        etcd: EtcdCluster,
        hosts: Sequence[Host],
        *,
        seed: int,
        lease_name: str,
    ) -> None:
        """etcd: its members are on the hosts. lease_name: name of the lease in the configuration of
        the group."""
        proxies = [
            FaultyProcess(
                *(directory, host, "etcd_proxy", "--seed", str(seed + number)),
                *("--etcd", etcd.members[host.name].client_url),
            )
            for number, host in enumerate(hosts)
        ]
        super().__init__(*proxies)
        self._etcd = etcd
        self._endpoints = [proxy.url for proxy in proxies]
        self._key = f"/tidemark/{lease_name}"

    @property
    def settings(self) -> dict[str, object]:
        return {"lease": "etcd", "etcd_endpoints": self._endpoints}

    async def cut_off(self, network: Network, name: str) -> None:
        # A cut of the network would not separate the node from the member on its own host.
        await self.faults(drop_requests=1, only_from=[network.add(name).address])

    async def read(self) -> dict[str, Any] | None:
        return await asyncio.to_thread(self._etcd.read, self._key)

    async def delete(self) -> None:
        await asyncio.to_thread(self._etcd.delete, self._key)

    async def create(self, found: dict[str, Any]) -> None:
        if not await asyncio.to_thread(self._etcd.write, self._key, found["text"], revision="0"):
            raise RuntimeError("the lease cannot be made: there is one")

    async def edit_holder(self, holder: str) -> bool:
        return await asyncio.to_thread(self._etcd.edit, self._key, holder=holder)

    async def edit_note(self, text: str) -> bool:
        return await asyncio.to_thread(self._etcd.edit, self._key, **{NOTE: text})


async def _ask(method: str, url: str, body: object = None) -> tuple[int, dict[str, Any]]:
    return await ask_async(url, method, body, timeout_s=TIMEOUT_S, headers={BY_HAND: "1"})
