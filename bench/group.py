"""A master and a slave for measurements: two nodes of one group, with the lease in a directory.

    with Group() as group:
        ... group.master.url ...

Neither is pinned, because the measurement is the cost of two nodes on two cores.
"""

from __future__ import annotations

import secrets
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Final, Self

from bench.servers import HOST, START_TIMEOUT_S, Node, free_port, wait_until, work_dir

NAMES: Final = ("n0", "n1")
PORTS: Final = ("api", "broker", "reput", "ha", "replication")
SHOWN_SIZE: Final = 2000
"""Number of characters shown from the end of each log on a failure."""


class Group:
    """Two nodes. When the ``with`` block starts, the master is known, and with_slave the slave is
    in sync."""

    def __init__(self, *, with_slave: bool = True, times: str = "default") -> None:
        """with_slave: False stops the slave after the group is founded, which leaves a set of one.
        times: profile of lease, heartbeats and limits: ``default``, ``long`` or ``local``.
        """
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
            "profile": times,
        }
        self._with_slave = with_slave
        self._leader = 0
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
        """The master as of the last query; at first the first node."""
        return self._nodes[self._leader]

    @property
    def slave(self) -> Node:
        """The other node."""
        return self._nodes[1 - self._leader]

    @property
    def nodes(self) -> tuple[Node, Node]:
        """Both nodes in the order of their names."""
        first, second = self._nodes
        return first, second

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            starting.callback(shutil.rmtree, self.directory, ignore_errors=True)
            for node in self._nodes:
                starting.callback(node.close)
            starting.push(self._show_logs)
            for node in self._nodes:
                node.start()  # founding needs all nodes to report that they know no group
            self.wait_in_sync()
            if not self._with_slave:
                self.end_slave()
            self._running = starting.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._running.__exit__(kind, error, trace)

    def end_slave(self) -> None:
        """Stop the slave and wait until the master is the only in-sync member."""
        self.slave.stop()
        self._wait(lambda: self.in_sync() == {NAMES[self._leader]}, "a set of one")

    def empty_slave(self) -> None:
        """Remove the stopped slave's data, so that it comes back as an empty, new member."""
        shutil.rmtree(self.slave.store_dir)

    def in_sync(self) -> set[str]:
        """Names of the in-sync set as the master reports it; empty without a master."""
        view = self._view()
        return (
            set() if view is None else {node["node"] for node in view["nodes"] if node["in_sync"]}
        )

    def wait_in_sync(self) -> None:
        """Wait until there is a master and both are in sync; ``master`` is then up to date."""
        self._wait(lambda: self.in_sync() == set(NAMES), "both in sync")

    def _view(self) -> dict[str, Any] | None:
        """Return the master's view of the group and update ``master``; None without a master."""
        for leader in (self._leader, 1 - self._leader):
            try:
                view = self._nodes[leader].call("GET", "/v1/cluster")
            except OSError:
                continue
            if view["master"] == NAMES[leader]:
                self._leader = leader
                return view
        return None

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        """Like ``wait_until``, but fails at once if a service ends. A broker whose store is about
        to be emptied would end and be restarted by its supervisor, but no store is emptied here."""

        def holds() -> bool:
            for node in self._nodes:
                for process in node.processes.values():
                    process.check_alive()
            return condition()

        wait_until(holds, what, START_TIMEOUT_S)

    def _show_logs(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Print the end of the logs, before they are removed, if the block failed."""
        if error is None:
            return
        for name, node in zip(NAMES, self._nodes, strict=True):
            for role in node.roles:
                path = node.log_path(role)
                text = path.read_text("utf-8", "replace") if path.exists() else ""
                print(f"--- end of the log of {name} {role}\n{text[-SHOWN_SIZE:]}", file=sys.stderr)
