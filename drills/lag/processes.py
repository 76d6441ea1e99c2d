"""The nodes of the stage: a master and a slave, and a single node, all as real processes.

They end with this process, however it ends. Logs and stores are below the given directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final, NamedTuple, Self

from drills.lag.plan import CLUSTER
from drills.node_group import NodeGroup
from shared.runtime.parent_death import kill_with_parent
from tidemark.testing.child import NodeFailed
from tidemark.testing.node import LOOPBACK, NodeProcesses

READY_S: Final = 90.0
LINES_SHOWN: Final = 20
PAIR: Final = ("n0", "n1")


class StageFailed(Exception):
    """An expected state was not reached; the message has the reason and the services' output."""


class Target(NamedTuple):
    """One process that is scraped, and its four labels."""

    broker: str
    replica: str
    service: str
    port: int

    @property
    def labels(self) -> dict[str, str]:
        """Labels as set by service discovery."""
        labels = {"cluster": CLUSTER, **self._asdict()}
        del labels["port"]
        return labels


class StageNode(NodeProcesses):
    """One node. Its topics are created by the load only."""

    STORE: ClassVar[Mapping[str, object]] = {
        **NodeProcesses.STORE,
        "commit_log_file_size": 16 << 20,
        "consume_queue_file_size": 300_000,
    }

    def __init__(
        self,
        directory: Path,
        ports: dict[str, int] | None = None,
        cluster: dict[str, object] | None = None,
    ) -> None:
        super().__init__(
            directory,
            settings={"broker": {"auto_create_topics": False}},
            ports=ports,
            cluster=cluster,
            before_exec=kill_with_parent,
        )


class StageCluster:
    """All nodes, ready and in sync inside the ``with`` block."""

    def __init__(self, directory: Path) -> None:
        """directory: contains all files; created if it does not exist."""
        self.solo = StageNode(directory / "solo")
        self.pair = NodeGroup(
            directory,
            dict.fromkeys(PAIR, LOOPBACK),
            lambda name, ports, table: StageNode(directory / name, ports, table),
            {"name": CLUSTER, "group": "g0"},
        )

    def __enter__(self) -> Self:
        try:
            self.solo.start()
            self.pair.start()
            self.solo.wait_ready(timeout_s=READY_S)
            for node in self.pair.nodes.values():
                node.wait_ready(timeout_s=READY_S)
            self.pair.wait_in_sync(timeout_s=READY_S)
        except NodeFailed as error:
            logs = f"{self.solo.logs(LINES_SHOWN)}\n{self.pair.logs(LINES_SHOWN)}"
            failed = StageFailed(f"{error}\n{logs}")
            self.close()
            raise failed from error
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.solo.close()
        self.pair.close()

    @property
    def orders_urls(self) -> list[str]:
        """API URLs of the nodes of ``g0``."""
        return [node.api_url for node in self.pair.nodes.values()]

    def targets(self) -> list[Target]:
        nodes = [("g0", name, node) for name, node in self.pair.nodes.items()]
        return [
            Target(broker, name, role, node.ports[role])
            for broker, name, node in (*nodes, ("g1", "solo", self.solo))
            for role in node.roles
        ]

    def stop_reput(self) -> None:
        """Stop reput of ``g1`` with SIGSTOP."""
        self.solo.pause("reput")

    def check(self) -> None:
        try:
            self.pair.check_alive()
            self.solo.check_alive()
        except NodeFailed as error:
            raise StageFailed(str(error)) from error
