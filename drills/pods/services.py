"""Services of a namespace: names in each pod's hosts file, and addresses that forward to ready
pods.

The address of a Service belongs to this process, which accepts each connection and forwards it to a
ready pod that the selector matches, if the NetworkPolicies allow it. Differences from a real
cluster: pods see this machine's address as the peer; names come from a file, so nothing is cached
and DNS policies have no effect; there is no session affinity.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from drills.pods.objects import Manifest, namespace_of, selects
from drills.pods.plans import PodPlan

CHUNK_SIZE: Final = 1 << 16
CONNECT_S: Final = 30.0
DOMAIN: Final = "cluster.local"


class Member(NamedTuple):
    """A pod as Services see it."""

    plan: PodPlan
    address: str
    labels: Mapping[str, str]
    ready: bool


def is_headless(service: Manifest) -> bool:
    """Return whether the Service has names but no address."""
    return bool(service["spec"].get("clusterIP") == "None")


def members_of(service: Manifest, pods: Iterable[Member]) -> list[Member]:
    spec = service["spec"]
    selector = spec.get("selector")
    return [
        pod
        for pod in pods
        if selector
        and pod.plan.namespace == namespace_of(service)
        and selects({"matchLabels": selector}, pod.labels)
        and (pod.ready or spec.get("publishNotReadyAddresses"))
    ]


def target_port(service: Manifest, number: int, pod: PodPlan) -> int | None:
    """Return the pod's port for a Service's port; None if the pod has no port of that name."""
    for entry in service["spec"]["ports"]:
        if entry["port"] == number:
            wanted = entry.get("targetPort", number)
            return wanted if isinstance(wanted, int) else pod.named_ports.get(wanted)
    return None


def forms(name: str, namespace: str, seen_from: str) -> list[str]:
    """Return all names by which a pod in the namespace seen_from finds a name in namespace."""
    full = f"{name}.{namespace}"
    found = [f"{full}.svc.{DOMAIN}", f"{full}.svc", full]
    return [*found, name] if namespace == seen_from else found


def hosts_file(
    own: Member,
    pods: Iterable[Member],
    services: Iterable[Manifest],
    addresses: Mapping[tuple[str, str], str],
) -> str:
    """Return a pod's ``/etc/hosts``. addresses: addresses of the Services, by namespace and
    name."""
    namespace, members = own.plan.namespace, list(pods)
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    subdomain = f" {' '.join(_of_pod(own, namespace))}" if own.plan.subdomain else ""
    lines.append(f"{own.address}{subdomain} {own.plan.name}")
    for service in services:
        name, within = service["metadata"]["name"], namespace_of(service)
        if (within, name) in addresses:
            lines.append(f"{addresses[within, name]} {' '.join(forms(name, within, namespace))}")
            continue
        for member in members_of(service, members):
            names = forms(name, within, namespace)
            if member.plan.subdomain == name:
                names = [*_of_pod(member, namespace), *names]
            lines.append(f"{member.address} {' '.join(names)}")
    kubernetes = addresses.get(("default", "kubernetes"))
    if kubernetes:
        lines.append(f"{kubernetes} {' '.join(forms('kubernetes', 'default', namespace))}")
    return "\n".join(lines) + "\n"


def _of_pod(pod: Member, seen_from: str) -> list[str]:
    return forms(f"{pod.plan.name}.{pod.plan.subdomain}", pod.plan.namespace, seen_from)


Choose = Callable[[str], tuple[str, int] | None]
"""Maps a client's address to address and port of a pod; None if no pod is available."""


class Forwarder:
    """Forwards the connections of one port of one Service."""

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.refused = 0

    async def serve(self, listening: socket.socket) -> None:
        """Accept connections from a listening socket, which may be in another network namespace."""
        self._server = await asyncio.start_server(self._take, sock=listening)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            await self._forward(reader, writer)
        finally:
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")[0]
        target = self._choose(peer)
        if target is None:
            self.refused += 1
            # Reset the connection, like a Service without endpoints, instead of an empty response.
            writer.transport.abort()
            return
        try:
            async with asyncio.timeout(CONNECT_S):
                far_reader, far_writer = await asyncio.open_connection(*target)
        except (OSError, TimeoutError):
            writer.transport.abort()
            return
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_copy(reader, far_writer))
                both.create_task(_copy(far_reader, writer))
        except* OSError:
            writer.transport.abort()
        finally:
            far_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK_SIZE):
        writer.write(data)
        await writer.drain()
    with contextlib.suppress(OSError, NotImplementedError):
        writer.write_eof()
