"""The place of the lease in a drill: a process on its own host, and operations on the object.

A drill edits, deletes and restores the object by hand, and sets the faults of the server over HTTP.
``KubernetesServer`` is ``drills.lease_api``. ``EtcdServer`` is a real etcd, which the nodes reach
through ``drills.etcd_proxy``; the drill itself calls etcd directly.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from drills.etcd_cluster import EtcdCluster
from drills.faulty_server import BY_HAND
from drills.namespaces import Host, Network
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


class LeaseServer(ABC):
    """The server process, used as ``async with KubernetesServer(…) as lease``."""

    def __init__(self, directory: Path, host: Host, module: str, *arguments: str) -> None:
        """module: of ``drills``; it is run on the host with its address, a port and arguments."""
        port = free_port()
        self.url = f"http://{host.address}:{port}"
        directory.mkdir(parents=True, exist_ok=True)
        self.process = ChildProcess(directory / "lease.log", before_exec=host.before_exec)
        self._command = [
            *programs.python_module(f"{__package__}.{module}"),
            *("--host", host.address, "--port", str(port), *arguments),
        ]

    async def __aenter__(self) -> LeaseServer:
        self.process.start(self._command)
        deadline = time.monotonic() + TIMEOUT_S
        while (await self._ask("GET", f"{self.url}/faults"))[0] != 200:
            self.process.check_alive()
            if time.monotonic() > deadline:
                raise TimeoutError(f"the lease's server does not answer: {self.process.log_tail()}")
            await asyncio.sleep(POLL_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.process.kill()

    @property
    @abstractmethod
    def settings(self) -> dict[str, object]:
        """The [cluster] settings of the lease."""

    async def faults(self, **values: object) -> None:
        """Replace the faults of the server; without values, remove them."""
        status, answer = await self._ask("PUT", f"{self.url}/faults", values)
        if status != 200:
            raise RuntimeError(f"the lease's server took no faults: {status} {answer}")

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

    async def _ask(self, method: str, url: str, body: object = None) -> tuple[int, dict[str, Any]]:
        return await ask_async(url, method, body, timeout_s=TIMEOUT_S, headers={BY_HAND: "1"})


class KubernetesServer(LeaseServer):
    """A Kubernetes API with the Lease of a group."""

    def __init__(self, directory: Path, network: Network, *, seed: int, lease_name: str) -> None:
        """lease_name: name of the object in the configuration of the group."""
        super().__init__(directory, network.add(HOST), "lease_api", "--seed", str(seed))
        self._object = (
            f"{self.url}/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{lease_name}"
        )

    @property
    def settings(self) -> dict[str, object]:
        names = {"kubernetes_url": self.url, "kubernetes_namespace": NAMESPACE}
        return {"lease": "kubernetes", **names}

    async def read(self) -> dict[str, Any] | None:
        status, found = await self._ask("GET", self._object)
        return found if status == 200 else None

    async def delete(self) -> None:
        await self._ask("DELETE", self._object)

    async def create(self, found: dict[str, Any]) -> None:
        metadata = {
            name: value
            for name, value in found["metadata"].items()
            if name not in ("resourceVersion", "uid", "creationTimestamp")
        }
        collection = self._object.rpartition("/")[0]
        status, answer = await self._ask("POST", collection, {**found, "metadata": metadata})
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
        return (await self._ask("PUT", self._object, found))[0] == 200


class EtcdServer(LeaseServer):
    """One member of etcd with the key of a group, behind a proxy on the same host."""

    def __init__(self, directory: Path, network: Network, *, seed: int, lease_name: str) -> None:
        """lease_name: name of the lease in the configuration of the group."""
        host = network.add(HOST)
        self.etcd = EtcdCluster(directory / "etcd", [host])
        (url,) = self.etcd.endpoints
        super().__init__(directory, host, "etcd_proxy", "--seed", str(seed), "--etcd", url)
        self._key = f"/tidemark/{lease_name}"

    async def __aenter__(self) -> LeaseServer:
        self.etcd.__enter__()
        await asyncio.to_thread(self.etcd.wait_serving)
        return await super().__aenter__()

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
        self.etcd.kill()

    @property
    def settings(self) -> dict[str, object]:
        return {"lease": "etcd", "etcd_endpoints": [self.url]}

    async def read(self) -> dict[str, Any] | None:
        return await asyncio.to_thread(self.etcd.read, self._key)

    async def delete(self) -> None:
        await asyncio.to_thread(self.etcd.delete, self._key)

    async def create(self, found: dict[str, Any]) -> None:
        if not await asyncio.to_thread(self.etcd.write, self._key, found["text"], revision="0"):
            raise RuntimeError("the lease cannot be made: there is one")

    async def edit_holder(self, holder: str) -> bool:
        return await asyncio.to_thread(self.etcd.edit, self._key, holder=holder)

    async def edit_note(self, text: str) -> bool:
        return await asyncio.to_thread(self.etcd.edit, self._key, **{NOTE: text})


SERVERS: Final[Mapping[str, type[KubernetesServer] | type[EtcdServer]]] = {
    "kubernetes": KubernetesServer,
    "etcd": EtcdServer,
}
"""By the setting ``cluster.lease``."""
