"""Nodes of a group under load are added, removed and replaced; no acknowledged message is lost."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from click.testing import CliRunner

import tidemark
from tests.processes.test_replication import TOPIC, make_topic, wait_readable
from tests.support.cluster import Cluster
from tests.support.node import wait_until
from tidemark.cli.main import cli

SWITCH_S = 5.0
"""Longest duration of a planned switch on a busy machine; it is about a second on an idle one."""


class Load:
    """A client of the group that sends one message after the other."""

    def __init__(self, cluster: Cluster) -> None:
        self._urls = [cluster.api_url(name) for name in cluster.names]
        self._stop = threading.Event()
        self.acked: list[tuple[float, str]] = []

    def run(self) -> None:
        with tidemark.connect_sync(self._urls) as mq:
            while not self._stop.is_set():
                body = f"m{len(self.acked)}"
                mq.send(TOPIC, body.encode())
                self.acked.append((time.monotonic(), body))

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            wait_until(lambda: self.acked or not thread.is_alive(), "the first ack")
            yield
            assert thread.is_alive(), "a send failed"
        finally:
            self._stop.set()
            thread.join()

    def longest_gap_s(self, since: float) -> float:
        """Longest time without an ack until a send that begins now, at the earliest, is acked."""
        sends = len(self.acked) + 2
        wait_until(lambda: len(self.acked) >= sends, "a send that began after the change")
        times = [since, *(at for at, _ in self.acked if at > since)]
        return max(later - earlier for earlier, later in pairwise(times))


def give(cluster: Cluster, at: str, *arguments: str) -> None:
    result = CliRunner().invoke(cli, ["cluster", *arguments, "--url", cluster.api_url(at)])
    assert result.exit_code == 0, result.output


def add(cluster: Cluster, at: str, name: str) -> None:
    address = f"{name}={cluster.hosts[name]}:{cluster.ports[name]['replication']}"
    where = ("--api", cluster.api_url(name), "--admin", cluster.admin_url(name))
    give(cluster, at, "add-node", address, *where)
    cluster.wait_in_sync(name)


def nodes_of(status: dict[str, Any]) -> list[str]:
    return [node["node"] for node in status["nodes"]]


def wait_nodes(cluster: Cluster, *names: str) -> None:
    """Wait until every node that runs shows these nodes."""
    wait_until(
        lambda: all(sorted(nodes_of(cluster.status(name))) == sorted(names) for name in names),
        f"all to have the nodes {names}",
    )


def test_nodes_are_added_removed_and_replaced_under_load(tmp_path: Path) -> None:
    with Cluster(tmp_path, nodes=4, later=("n3",), profile="default") as cluster:
        cluster.start("n0", "n1", "n2")
        first = cluster.wait_master()
        cluster.wait_in_sync("n0", "n1", "n2")
        make_topic(cluster, first)
        slave = next(name for name in ("n0", "n1", "n2") if name != first)
        load, took = Load(cluster), {}
        with load.running():
            began = time.monotonic()
            cluster.start("n3")
            add(cluster, slave, "n3")
            wait_nodes(cluster, "n0", "n1", "n2", "n3")
            took["add"] = load.longest_gap_s(began)

            began = time.monotonic()
            give(cluster, first, "remove-node", slave)
            remaining = [name for name in cluster.names if name != slave]
            wait_nodes(cluster, *remaining)
            took["remove a slave"] = load.longest_gap_s(began)

            cluster.wait_fit()
            first, epoch, began = cluster.wait_master(), cluster.epoch(), time.monotonic()
            remaining = [name for name in remaining if name != first]
            give(cluster, remaining[0], "remove-node", first)
            master = cluster.wait_master(other_than=first)
            wait_nodes(cluster, *remaining)
            took["remove the master"] = load.longest_gap_s(began)
            assert cluster.epoch() > epoch

            # The same node with another volume; its configuration is that of the beginning.
            began = time.monotonic()
            cluster.stop(slave)
            shutil.rmtree(cluster.nodes[slave].store_dir)
            cluster.start(slave)
            add(cluster, master, slave)
            wait_nodes(cluster, *remaining, slave)
            took["replace"] = load.longest_gap_s(began)

            began = time.monotonic()
            status, ready = cluster.nodes[first].get_json(f"{cluster.admin_url(first)}/ready")
            assert status == 503
            assert "removed-node" in str(ready)
        print(f"\n{len(load.acked)} sends; longest time without an ack [s]: {took}")
        assert max(took.values()) < SWITCH_S
        assert cluster.status(master)["min_in_sync"] == 2
        cluster.wait_in_sync(*remaining, slave)
        wait_readable(cluster, master, {body for _, body in load.acked})
        cluster.compare_logs(*remaining, slave)
        found = CliRunner().invoke(cli, ["doctor", "--url", cluster.api_url(first), "-o", "json"])
        assert "doctor-removed-node" in found.output
