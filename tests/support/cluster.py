"""A group of real nodes for tests: each of three processes, a lease in a directory.

    with Cluster(tmp_path) as cluster:
        cluster.start()
        master = cluster.wait_master()
        ... cluster.api_url(master) ...
        cluster.kill(master)

A node is named ``n0``, ``n1`` …, a service by its role. Everything that is waited for is a
condition with a deadline. When the body of the ``with`` fails, all logs are printed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from drills.node_group import WAIT_TIMEOUT_S, NodeGroup
from tests.support.node import Node, wait_until
from tidemark.formats.checkpoint import Slot
from tidemark.testing.node import LOOPBACK

PATIENT_MS: Final = 20_000
"""Timeout of a send whose slaves may be slow: with less, one second of delay is an error."""


class Cluster(NodeGroup[Node]):
    """Nodes of one group. Start, kill and stop them together, one by one, or a service of one."""

    def __init__(
        self,
        directory: Path,
        *,
        nodes: int = 2,
        profile: str = "local",
        min_in_sync: int | None = None,
        cluster: Mapping[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
        hosts: Sequence[str] = (),
        prefixes: Sequence[tuple[str, ...]] = (),
        through: Callable[[str, str, int], int] | None = None,
        own_secrets: bool = False,
        later: Sequence[str] = (),
        **settings: Mapping[str, object] | None,
    ) -> None:
        """cluster: more settings of [cluster], on every node, for example another lease.
        environment, settings: as for ``Node``, for every node. hosts, prefixes: for each node, its
        address and what comes before its commands, if nodes have network namespaces of their own;
        default: all on the loopback. through: takes a node, another node and that one's replication
        port; returns the port under which the first node reaches it. own_secrets: each node has a
        file of its own with the group's secret, as nodes on several machines have. later: nodes
        that the configurations of the others do not have, to be added to the running group.
        """
        names = [f"n{number}" for number in range(nodes)]
        self.hosts = dict(zip(names, hosts or [LOOPBACK] * nodes, strict=True))
        more: dict[str, Any] = dict(settings)
        before = dict(zip(names, prefixes or [()] * nodes, strict=True))

        def make(name: str, ports: dict[str, int], table: dict[str, object]) -> Node:
            reached = table if through is None else {**table, "nodes": self._reached(name, through)}
            if name not in later:
                reached = {**reached, **_without(later, reached)}
            if own_secrets:
                reached["secret_file"] = str(
                    self._own_secret(name, Path(str(table["secret_file"])))
                )
            return Node(
                directory / name,
                environment=environment,
                cluster=reached,
                host=self.hosts[name],
                prefix=before[name],
                ports=ports,
                **more,
            )

        table: dict[str, object] = {"name": "test", "group": "g0", "profile": profile}
        if min_in_sync is not None:
            table["min_in_sync"] = min_in_sync
        super().__init__(directory, self.hosts, make, {**table, **(cluster or {})})

    def _reached(self, name: str, through: Callable[[str, str, int], int]) -> list[str]:
        """Return the replication addresses of all nodes, as a node dials them."""
        found = []
        for other in self.names:
            port = self.ports[other]["replication"]
            dialled = port if other == name else through(name, other, port)
            found.append(f"{other}={self.hosts[other]}:{dialled}")
        return found

    def own_secret(self, name: str) -> Path:
        """File with the secret of a node, if each has its own."""
        return self.directory / "secrets" / name / "secret"

    def _own_secret(self, name: str, common: Path) -> Path:
        path = self.own_secret(name)
        path.parent.mkdir(parents=True)
        path.touch(0o600)
        path.write_bytes(common.read_bytes())
        return path

    def restart(self, name: str, *roles: str) -> None:
        """SIGKILL services of a node (default: all) and start them again at once."""
        self.nodes[name].kill(*roles)
        self.nodes[name].start(*roles)

    def stop(self, *names: str) -> dict[str, dict[str, int]]:
        """SIGTERM all services of one node after the other (default: of all); return the exit
        statuses."""
        return {name: self.nodes[name].stop() for name in names or self.names}

    # -- asking ---------------------------------------------------------------------------------

    def api_url(self, name: str) -> str:
        """URL of the API of a node."""
        return self.nodes[name].api_url

    def admin_url(self, name: str, role: str = "ha") -> str:
        """URL of probes and metrics and, of ha, of the commands of the cluster."""
        return self.nodes[name].admin_url(role)

    def status(self, name: str) -> dict[str, Any]:
        """Return what a node's ha reports about the group; {} without an answer."""
        return self.nodes[name].get_json(f"{self.admin_url(name)}/v1/cluster")[1]

    def command(
        self, name: str, command: str, arguments: Mapping[str, object] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Give a command to a node's ha; return status and body of the answer."""
        url = f"{self.admin_url(name)}/v1/cluster/{command}"
        return self.nodes[name].request_json("POST", url, dict(arguments or {}))

    def epoch(self) -> int:
        """Return the highest epoch that a node has in its page; 0 before the first."""
        return max(self.slot(name, Slot.EPOCH) for name in self.names)

    def wait(
        self, condition: Callable[[], object], what: str, timeout_s: float = WAIT_TIMEOUT_S
    ) -> None:
        """Wait for a condition; services may end meanwhile, which many tests cause."""
        wait_until(condition, what, timeout_s)

    def wait_fit(self) -> None:
        """Wait until every slave can take over: it is in sync, and its services are up to date."""

        def are_fit() -> bool:
            master = self.serving()
            members = [] if master is None else self.members(master)
            slaves = [node for node in members if node["node"] != master]
            return bool(slaves) and all(
                node["in_sync"] and node["state"] == "in-sync" and not node["reason"]
                for node in slaves
            )

        self.wait(are_fit, "slaves that can take over")

    # -- files ----------------------------------------------------------------------------------

    def slot(self, name: str, slot: Slot) -> int:
        """A slot of a node's page; 0 if there is no page yet."""
        page = b""
        with contextlib.suppress(FileNotFoundError):
            page = (self.nodes[name].store_dir / "checkpoint").read_bytes()
        return int.from_bytes(page[slot * 8 : slot * 8 + 8], "little")

    def log_bytes(self, name: str, start: int, end: int) -> bytes:
        """The bytes [start, end) of a node's commit log."""
        found = bytearray()
        directory = self.nodes[name].store_dir / "commitlog"
        for path in sorted(directory.iterdir()):
            if not path.name.isdigit():
                continue
            first, size = int(path.name), path.stat().st_size
            if first + size <= start or first >= end:
                continue
            with path.open("rb") as file:
                file.seek(max(0, start - first))
                found += file.read(min(end, first + size) - max(start, first))
        return bytes(found)

    def log_start(self, name: str) -> int:
        """Physical offset at which a node's log begins."""
        directory = self.nodes[name].store_dir / "commitlog"
        return min(
            (int(path.name) for path in directory.iterdir() if path.name.isdigit()), default=0
        )

    def compare_logs(self, *names: str) -> int:
        """Assert that all logs are equal byte for byte up to the smallest confirm offset; return
        that offset."""
        names = names or self.names
        confirm = min(self.slot(name, Slot.CONFIRM) for name in names)
        start = max(self.log_start(name) for name in names)
        first = self.log_bytes(names[0], start, confirm)
        assert len(first) == max(0, confirm - start)
        for name in names[1:]:
            other = self.log_bytes(name, start, confirm)
            assert len(other) == len(first), f"{name} has {len(other)} bytes, not {len(first)}"
            if other != first:
                at = next(
                    at
                    for at, pair in enumerate(zip(first, other, strict=True))
                    if pair[0] != pair[1]
                )
                raise AssertionError(
                    f"the logs of {names[0]} and {name} differ at {start + at}, below {confirm}"
                )
        return confirm


def _without(names: Sequence[str], table: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the lists of nodes in a [cluster] table without some of them."""
    return {
        field: [entry for entry in table[field] if entry.partition("=")[0] not in names]
        for field in ("nodes", "api", "admin")
    }
