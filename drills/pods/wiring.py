"""Connectivity of pods: names, addresses of Services, policies, updated after changes.

The step before is ``cluster``, which has the list of pods. Afterwards ``services`` forwards
connections, and the rules of nft drop packets.
"""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from drills.namespaces import Namespaces
from drills.pods.api import PORT
from drills.pods.environment import ServiceAddress, addresses_of
from drills.pods.objects import Manifest, Objects, namespace_of
from drills.pods.policies import End, is_allowed, nft_rules
from drills.pods.services import Forwarder, Member, hosts_file, is_headless, members_of, target_port

API_HOST: Final = "api"
API_ADDRESS: Final = "10.214.0.1"
SERVICES_NET: Final = "10.214.1."
SERVICES_MAX: Final = 254

Published = Mapping[tuple[str, int], socket.socket]
"""Listening sockets of another network, by Service and port."""


class Wiring:
    """Connects the pods of a cluster; call ``show`` after every change."""

    def __init__(
        self,
        network: Namespaces,
        objects: Callable[[], Objects],
        members: Callable[[], list[Member]],
        published: Published,
    ) -> None:
        """objects: returns the applied manifests. members: returns the current pods."""
        self._network, self._objects, self._members = network, objects, members
        self._published = published
        self.enforced = shutil.which("nft") is not None
        """Whether NetworkPolicies are enforced between pods, not only at Services."""
        self.addresses: dict[tuple[str, str], str] = {("default", "kubernetes"): API_ADDRESS}
        """Addresses of Services, by namespace and name."""
        self._forwarders: list[Forwarder] = []
        self._shown = ""

    async def serve(self) -> None:
        services = [one for one in self._objects().of_kind("Service") if not is_headless(one)]
        for number, service in enumerate(services[:SERVICES_MAX], 1):
            name, namespace = service["metadata"]["name"], namespace_of(service)
            address = f"{SERVICES_NET}{number}"
            self._network.add_here(f"service-{namespace}-{name}", address)
            self.addresses[namespace, name] = address
            for entry in service["spec"]["ports"]:
                port = int(entry["port"])
                sockets = [socket.create_server((address, port))]
                if (name, port) in self._published:
                    sockets.append(self._published[name, port])
                for listening in sockets:
                    forwarder = Forwarder(self._chooser(service, port))
                    await forwarder.serve(listening)
                    self._forwarders.append(forwarder)

    async def close(self) -> None:
        for forwarder in self._forwarders:
            await forwarder.close()

    def links(self, namespace: str) -> tuple[ServiceAddress, ...]:
        """Return the services that are in the environment of a namespace's pods."""
        kubernetes = ServiceAddress("kubernetes", API_ADDRESS, (("https", PORT),))
        return (kubernetes, *addresses_of(self._objects(), namespace, self.addresses))

    def show(self, hosts_files: Mapping[str, Path]) -> None:
        """Write the names and policy rules, if anything about them has changed.

        hosts_files: the hosts file of each pod. They are written in place, because the file itself
        is mounted.
        """
        members, objects = self._members(), self._objects()
        pods = [(m.plan.name, m.address, sorted(m.labels.items()), m.ready) for m in members]
        state = f"{id(objects)} {pods}"
        if state == self._shown:
            return
        self._shown = state
        services = objects.of_kind("Service")
        for member in members:
            text = hosts_file(member, members, services, self.addresses)
            _overwrite(hosts_files[member.plan.name], text.encode("ascii"))
        if self.enforced:
            self._enforce([self._end(member) for member in members])

    def _end(self, member: Member) -> End:
        """Return a pod as NetworkPolicies see it."""
        namespace = member.plan.namespace
        found = self._objects().find("Namespace", "", namespace)
        labels = {} if found is None else found["metadata"].get("labels") or {}
        own = {**labels, "kubernetes.io/metadata.name": namespace}
        return End(member.address, namespace, member.labels, own, member.plan.named_ports)

    def _chooser(self, service: Manifest, port: int) -> Callable[[str], tuple[str, int] | None]:
        def choose(peer: str) -> tuple[str, int] | None:
            members = self._members()
            source = next((self._end(one) for one in members if one.address == peer), None)
            policies = self._objects().of_kind("NetworkPolicy")
            found: list[tuple[str, int]] = []
            for member in members_of(service, members):
                number = target_port(service, port, member.plan)
                # A source that is not a pod is a node, and nodes are always allowed.
                if number is not None and (
                    source is None or is_allowed(policies, source, self._end(member), number)
                ):
                    found.append((member.address, number))
            return random.choice(found) if found else None

        return choose

    def _enforce(self, pods: list[End]) -> None:
        policies = self._objects().of_kind("NetworkPolicy")
        rules = "\n".join(nft_rules(policies, pods, [End(API_ADDRESS)]))
        text = f"""
            table inet pods
            delete table inet pods
            table inet pods {{
                chain judged {{
                    ct state established,related accept
                    {rules}
                }}
                chain through {{ type filter hook forward priority 0; jump judged; }}
                chain here {{ type filter hook input priority 0; jump judged; }}
            }}
        """
        subprocess.run(["nft", "-f", "-"], input=text.encode(), check=True)


def _overwrite(path: Path, data: bytes) -> None:
    """Write in place, and never leave the file empty: a process may be looking up a name in it."""
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()
