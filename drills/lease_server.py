"""The Kubernetes API of a drill: a process on its own host, and operations on its Lease.

The server is ``drills.lease_api``; the drills configure its faults over HTTP.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, Final

from drills.namespaces import Network
from drills.node_group import ask_async
from shared.runtime import programs
from tidemark.testing.child import ChildProcess
from tidemark.testing.ports import free_ports

HOST: Final = "lease"
TIMEOUT_S: Final = 60.0
"""Limit of the start and of each call; on a quiet machine they take a second, or less."""
POLL_S: Final = 0.05
NAMESPACE: Final = "drills"
BY_HAND: Final = {"By-Hand": "1"}
"""Faults are not applied to requests of the drill itself."""


class LeaseServer:
    """The server process, used as ``async with LeaseServer(…) as lease``."""

    def __init__(self, directory: Path, network: Network, *, seed: int, lease_name: str) -> None:
        """lease_name: name of the Lease object in the configuration of the group."""
        host = network.add(HOST)
        (port,) = free_ports(1)
        self.url = f"http://{host.address}:{port}"
        self._object = (
            f"{self.url}/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{lease_name}"
        )
        directory.mkdir(parents=True, exist_ok=True)
        self.process = ChildProcess(directory / "lease.log", before_exec=host.before_exec)
        self._command = [
            *programs.python_module(f"{__package__}.lease_api"),
            *("--host", host.address, "--port", str(port), "--seed", str(seed)),
        ]

    @property
    def settings(self) -> dict[str, object]:
        """The [cluster] settings of the lease."""
        names = {"kubernetes_url": self.url, "kubernetes_namespace": NAMESPACE}
        return {"lease": "kubernetes", **names}

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

    async def faults(self, **values: object) -> None:
        """Replace the faults of the server; without values, remove them."""
        status, answer = await self._ask("PUT", f"{self.url}/faults", values)
        if status != 200:
            raise RuntimeError(f"the lease's server took no faults: {status} {answer}")

    async def read(self) -> dict[str, Any] | None:
        """Return the Lease object; None if it does not exist."""
        status, found = await self._ask("GET", self._object)
        return found if status == 200 else None

    async def write(self, found: dict[str, Any]) -> bool:
        """Replace the object; return False if its version has changed meanwhile."""
        return (await self._ask("PUT", self._object, found))[0] == 200

    async def delete(self) -> None:
        await self._ask("DELETE", self._object)

    async def create(self, found: dict[str, Any]) -> None:
        """Create the object; the server assigns a new version."""
        metadata = {
            name: value
            for name, value in found["metadata"].items()
            if name not in ("resourceVersion", "uid", "creationTimestamp")
        }
        collection = self._object.rpartition("/")[0]
        status, answer = await self._ask("POST", collection, {**found, "metadata": metadata})
        if status not in (200, 201):
            raise RuntimeError(f"the lease cannot be made: {status} {answer}")

    async def _ask(self, method: str, url: str, body: object = None) -> tuple[int, dict[str, Any]]:
        return await ask_async(url, method, body, timeout_s=TIMEOUT_S, headers=BY_HAND)
