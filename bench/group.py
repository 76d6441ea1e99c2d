"""A master and a slave under measurement: two nodes of one group, lease in a directory.

    with Group() as group:
        ... group.master.url ...

Neither is pinned: what two nodes cost on two cores is what is measured.
"""

from __future__ import annotations

import secrets
import shutil
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self

from bench.servers import HOST, START_TIMEOUT_S, Node, free_port, wait_until, work_dir

NAMES: Final = ("n0", "n1")
PORTS: Final = ("api", "broker", "reput", "ha", "replication")


class Group:
    """Two nodes; the master has been found, and with_slave the slave is in sync, when the ``with``
    block begins."""

    def __init__(self, *, with_slave: bool = True) -> None:
        """with_slave: False leaves the slave to ``start_slave``."""
        self.directory = work_dir("group")
        secret = self.directory / "secret"
        secret.write_text(secrets.token_hex(32), encoding="ascii")
        secret.chmod(0o600)
        (self.directory / "lease").mkdir()
        ports = {name: {port: free_port() for port in PORTS} for name in NAMES}
        table = {
            "nodes": [f"{name}={HOST}:{ports[name]['replication']}" for name in NAMES],
            "api": [f"{name}=http://{HOST}:{ports[name]['api']}" for name in NAMES],
            "admin": [f"{name}=http://{HOST}:{ports[name]['ha']}" for name in NAMES],
            "secret_file": str(secret),
            "lease": "directory",
            "lease_dir": str(self.directory / "lease"),
            "profile": "default",
        }
        self._with_slave = with_slave
        self._nodes = [
            Node(
                profile="local",
                cluster={**table, "node": name},
                ports=ports[name],
                core=None,
            )
            for name in NAMES
        ]
        self._running = ExitStack()

    @property
    def master(self) -> Node:
        """The first node: it founds the group."""
        return self._nodes[0]

    @property
    def slave(self) -> Node:
        """The other."""
        return self._nodes[1]

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            starting.callback(shutil.rmtree, self.directory, ignore_errors=True)
            for node in self._nodes:
                starting.callback(node.close)
                node.start()  # a group is founded when all have said that they know of none
            wait_until(lambda: self._holds("master", "n0"), "a master", START_TIMEOUT_S)
            self.wait_in_sync()
            if not self._with_slave:
                self.slave.stop()
                wait_until(lambda: self.in_sync() == {"n0"}, "a set of one", START_TIMEOUT_S)
            self._running = starting.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._running.close()

    def empty_slave(self) -> None:
        """Take the slave's volume away: it comes back as another member, with nothing."""
        shutil.rmtree(self.slave.store_dir)

    def in_sync(self) -> set[str]:
        """Names of the in-sync set, as the master says; empty while it does not answer."""
        try:
            view = self.master.call("GET", "/v1/cluster")
        except OSError:
            return set()
        return {node["node"] for node in view["nodes"] if node["in_sync"]}

    def wait_in_sync(self) -> None:
        """Wait until both are in the set."""
        wait_until(lambda: self.in_sync() == set(NAMES), "both in sync", START_TIMEOUT_S)

    def slave_lag_ms(self) -> float | None:
        """How far the slave is behind, as the master says; None while it does not know."""
        for node in self.master.call("GET", "/v1/cluster")["nodes"]:
            if node["node"] == NAMES[1]:
                lag_ms: float | None = node["lag_ms"]
                return lag_ms
        return None

    def _holds(self, field: str, value: str) -> bool:
        try:
            return bool(self.master.call("GET", "/v1/cluster").get(field) == value)
        except OSError:
            return False
