"""A group of real nodes: each of three processes, one directory for all, a lease in a directory.

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
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from tests.support.node import GROUP_ROLES, Node, wait_until
from tidemark.formats.checkpoint import Slot
from tidemark.testing.node import free_ports

MASTER_TIMEOUT_S: Final = 120.0
PATIENT_MS: Final = 20_000
"""Of a send whose slaves may be slow: with less, one that is late for a second is an error."""
PORT_NAMES: Final = ("api", *GROUP_ROLES, "replication")


class Cluster:
    """Nodes of one group. Start, kill and stop them together, one by one, or a service of one."""

    def __init__(
        self,
        directory: Path,
        *,
        nodes: int = 2,
        profile: str = "local",
        min_in_sync: int | None = None,
        cluster: Mapping[str, object] | None = None,
        store: Mapping[str, object] | None = None,
        broker: Mapping[str, object] | None = None,
        reput: Mapping[str, object] | None = None,
        ha: Mapping[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
        hosts: Sequence[str] = (),
        prefixes: Sequence[tuple[str, ...]] = (),
        through: Callable[[str, str, int], int] | None = None,
    ) -> None:
        """directory: everything goes below it. cluster: more settings of [cluster], on every node,
        for example another lease. store, broker, reput, ha, environment: as for ``Node``, of every
        node. hosts, prefixes: of each node its address and what comes before its commands, for
        nodes in network namespaces of their own; default: all on the loopback. through: of (a node,
        another node, that one's replication port) the port under which the first reaches it.
        """
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.names = tuple(f"n{number}" for number in range(nodes))
        hosts = hosts or ["127.0.0.1"] * nodes
        prefixes = prefixes or [()] * nodes
        numbers = free_ports(nodes * len(PORT_NAMES))
        each = len(PORT_NAMES)
        self.ports = {
            name: dict(zip(PORT_NAMES, numbers[at * each : (at + 1) * each], strict=True))
            for at, name in enumerate(self.names)
        }
        self.hosts = dict(zip(self.names, hosts, strict=True))
        self.secret_path = directory / "secret"
        self.secret_path.write_text(secrets.token_hex(32), encoding="ascii")
        self.secret_path.chmod(0o600)
        self.lease_dir = directory / "lease"
        self.lease_dir.mkdir(exist_ok=True)
        table: dict[str, object] = {
            "name": "test",
            "group": "g0",
            "api": self._entries("api", "http://"),
            "admin": self._entries("ha", "http://"),
            "secret_file": str(self.secret_path),
            "lease": "directory",
            "lease_dir": str(self.lease_dir),
            "profile": profile,
            **({} if min_in_sync is None else {"min_in_sync": min_in_sync}),
            **(cluster or {}),
        }
        self.nodes = {
            name: Node(
                directory / name,
                store=store,
                broker=broker,
                reput=reput,
                ha=ha,
                environment=environment,
                cluster={**table, "node": name, "nodes": self._reached_from(name, through)},
                host=host,
                prefix=prefix,
                ports=self.ports[name],
            )
            for (name, host), prefix in zip(self.hosts.items(), prefixes, strict=True)
        }

    def _entries(self, port: str, before: str) -> list[str]:
        return [
            f"{name}={before}{self.hosts[name]}:{self.ports[name][port]}" for name in self.names
        ]

    def _reached_from(self, name: str, through: Callable[[str, str, int], int] | None) -> list[str]:
        """Replication addresses of all nodes, as a node dials them."""
        found = []
        for other in self.names:
            port = self.ports[other]["replication"]
            if through is not None and other != name:
                port = through(name, other, port)
            found.append(f"{other}={self.hosts[other]}:{port}")
        return found

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        if error is not None:
            for name, node in self.nodes.items():
                print(f"=== {name}")
                node.print_logs()

    # -- life -----------------------------------------------------------------------------------

    def start(self, *names: str) -> None:
        """Start all services of the named nodes (default: of all)."""
        for name in names or self.names:
            self.nodes[name].start(
                *(role for role in GROUP_ROLES if not self.nodes[name].is_alive(role))
            )

    def kill(self, name: str, *roles: str) -> None:
        """SIGKILL services of a node (default: all)."""
        self.nodes[name].kill(*roles)

    def restart(self, name: str, *roles: str) -> None:
        """SIGKILL services of a node (default: all) and start them again at once."""
        self.nodes[name].kill(*roles)
        self.nodes[name].start(*(roles or GROUP_ROLES))

    def stop(self, *names: str) -> dict[str, dict[str, int]]:
        """SIGTERM all services of the named nodes (default: of all); exit statuses."""
        return {name: self.nodes[name].stop() for name in names or self.names}

    def pause(self, name: str, *roles: str) -> None:
        """SIGSTOP services of a node (default: all)."""
        self.nodes[name].pause(*roles)

    def resume(self, name: str, *roles: str) -> None:
        """SIGCONT them."""
        self.nodes[name].resume(*roles)

    def close(self) -> None:
        """Kill whatever runs."""
        for node in self.nodes.values():
            node.close()

    # -- asking ---------------------------------------------------------------------------------

    def api_url(self, name: str) -> str:
        """Of a node's broker."""
        return self.nodes[name].api_url

    def admin_url(self, name: str, role: str = "ha") -> str:
        """Probes, metrics and, of ha, the commands of the cluster."""
        return self.nodes[name].admin_url(role)

    def status(self, name: str, *, timeout_s: float = 5.0) -> dict[str, Any]:
        """What a node's ha says of the group; {} while it does not answer."""
        return self.nodes[name].request_json(
            "GET", self.admin_url(name) + "/v1/cluster", timeout_s=timeout_s
        )[1]

    def command(
        self, name: str, command: str, arguments: Mapping[str, object] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Give a command to a node's ha: status and body of its answer."""
        url = f"{self.admin_url(name)}/v1/cluster/{command}"
        return self.nodes[name].request_json("POST", url, dict(arguments or {}))

    def epoch(self) -> int:
        """The highest epoch that a node says in its page; 0 before the first."""
        return max(self.slot(name, Slot.EPOCH) for name in self.names)

    def serving(self) -> str | None:
        """The node whose broker accepts sends, if there is one."""
        for name, node in self.nodes.items():
            if (
                node.is_alive("broker")
                and node.get_json(self.admin_url(name, "broker") + "/primary")[0] == 200
            ):
                return name
        return None

    def wait_master(
        self, *, other_than: str | None = None, timeout_s: float = MASTER_TIMEOUT_S
    ) -> str:
        """Wait until a node's broker accepts sends; its name. other_than: not this one."""
        found: list[str] = []

        def is_there() -> bool:
            name = self.serving()
            found[:] = [name] if name is not None and name != other_than else []
            return bool(found)

        wait_until(is_there, "a master that accepts sends", timeout_s)
        return found[0]

    def wait_in_sync(self, *names: str, timeout_s: float = MASTER_TIMEOUT_S) -> None:
        """Wait until the master has the named nodes (default: all) in the set, and each of them
        says of itself that it is."""
        wanted = set(names or self.names)

        def are_in() -> bool:
            master = self.serving()
            if master is None:
                return False
            said = self.status(master).get("nodes", [])
            return wanted <= {
                node["node"]
                for node in said
                if node["in_sync"] and node["state"] in ("master", "in-sync")
            }

        wait_until(are_in, f"{sorted(wanted)} to be in sync", timeout_s)

    def wait_fit(self) -> None:
        """Wait until every slave may be switched to: in sync, and its services move."""

        def are_fit() -> bool:
            master = self.serving()
            nodes = [] if master is None else self.status(master).get("nodes", [])
            said = [node for node in nodes if node["node"] != master]
            return bool(said) and all(
                node["in_sync"] and node["state"] == "in-sync" and not node["reason"]
                for node in said
            )

        wait_until(are_fit, "slaves that can take over", MASTER_TIMEOUT_S)

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
        """Assert that all logs are equal byte for byte up to the smallest confirm offset; it."""
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
