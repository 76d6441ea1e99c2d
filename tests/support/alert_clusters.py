"""The clusters of the alert drill: real processes, their load, and faults in them.

``healthy`` is a master and a slave under load. ``consumers`` is a standalone node with four groups:
one dies, one is slow, one stalls, one is healthy. ``reput`` is a standalone node whose reput is
stopped, ``full`` one whose disk fills, ``cut`` a master and a slave whose connection gets lost.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from tests.support.alert_load import AlertLoad, consuming, producing
from tests.support.alert_stage import Target
from tests.support.cluster import Cluster
from tests.support.cut_link import CutLink
from tests.support.node import PROJECT, Node, wait_until
from tests.support.raw_member import RawMember, Source
from tests.support.small_disk import mounted
from tidemark.client.messages import NewMessage

TOPIC: Final = "orders"
QUEUES: Final = 4
DISK_SIZE: Final = 96 << 20
LEFT_SHARE: Final = 0.06
"""Of the disk, once the ballast is there."""
PACE: Final = 100.0
"""Messages per second to the groups that are read too slowly."""
OBJECTIVES_MS: Final = {"dead": 5_000, "slow": 10_000, "stuck": 60_000, "well": 60_000}


class Clusters:
    """All processes of the drill. Made, started and loaded by ``clusters``."""

    def __init__(self, directory: Path, disk: Path, load: AlertLoad) -> None:
        self.load = load
        self.links: list[CutLink] = []
        self.ballast = disk / "ballast"
        broker = {"auto_create_topics": True, "auto_create_queues": QUEUES}
        # Not the local profile: a machine that stalls for two seconds would cost a term.
        self.healthy = Cluster(
            directory / "healthy",
            profile="default",
            broker=broker,
            store={"commit_log_file_size": 4 << 20},
        )
        self.cut = Cluster(
            directory / "cut", profile="default", broker=broker, through=self._through
        )
        self.consumers = Node(
            directory / "consumers", broker=broker, store={"commit_log_file_size": 16 << 20}
        )
        self.reput = Node(directory / "reput", broker=broker)
        self.full = Node(
            directory / "full",
            broker={**broker, "clean_file_forcibly": False},
            store_dir=disk / "store",
        )
        self.dying: subprocess.Popen[bytes] | None = None

    @property
    def alone(self) -> dict[str, Node]:
        """Nodes without ha, by cluster."""
        return {"consumers": self.consumers, "reput": self.reput, "full": self.full}

    @property
    def grouped(self) -> dict[str, Cluster]:
        """Groups of nodes."""
        return {"healthy": self.healthy, "cut": self.cut}

    def _through(self, of: str, to: str, port: int) -> int:
        link = CutLink(port)
        self.links.append(link)
        return link.port

    def targets(self) -> list[Target]:
        """Every process."""
        found = [
            Target(cluster, "g0", name, role, node.ports[role])
            for cluster, group in self.grouped.items()
            for name, node in group.nodes.items()
            for role in node.roles
        ]
        return found + [
            Target(cluster, "solo", "s0", role, node.ports[role])
            for cluster, node in self.alone.items()
            for role in node.roles
        ]

    def start(self) -> None:
        """All at once, then wait for each."""
        for group in self.grouped.values():
            group.start()
        for node in self.alone.values():
            node.start()
        for node in self.alone.values():
            node.wait_ready()
        for group in self.grouped.values():
            group.wait_in_sync()

    def close(self) -> None:
        """End all processes."""
        if self.dying is not None:
            self.dying.kill()
            self.dying.wait()
        for group in self.grouped.values():
            group.close()
        for node in self.alone.values():
            node.close()
        for link in self.links:
            link.close()

    # -- load -----------------------------------------------------------------------------------

    def happen_before(self) -> None:
        """Rare events of a healthy group. They come before the first scrape, so no alert fires
        later."""
        node = self.healthy.nodes[self.healthy.wait_master()]
        self._set_up(node, f"topics/{TOPIC}", {"queues": QUEUES})
        self.give_up(node, "before")

    def give_up(self, node: Node, group: str) -> None:
        """A group gives up on a message, reads others twice, and is reset to both ends."""
        self._set_up(node, f"groups/{group}", {"retry_max": 0})
        sent = {"messages": [{"body_text": "x", "keys": ["a"]} for _ in range(20)]}
        path = f"/v1/topics/{TOPIC}/messages"
        # A time-out on a loaded machine stores them twice, which does no harm here.
        wait_until(lambda: node.request_json("POST", path, sent)[0] == 200, "messages to be stored")
        member = RawMember(node, group, topics=(TOPIC,))
        member.join()
        found: list[Source] = []

        def are_read() -> bool:
            found.extend(source for source, _ in member.fetch())
            return bool(found)

        wait_until(are_read, "messages for the group that fails")
        member.nack(found[0])
        member.join()  # as after a crash: all its messages are handed out again
        wait_until(lambda: [*member.fetch()], "messages that come again")
        member.call("DELETE", member.path)
        for place in ("first", "last"):
            member.call("POST", f"/v1/groups/{group}/reset", {"topic": TOPIC, "to": place})
        assert node.request_json("GET", "/v1/groups/missing")[0] == 404

    def switch_over(self) -> None:
        """The healthy group's master hands over to its slave, as before an update."""
        master = self.healthy.wait_master()
        status, answer = self.healthy.command(master, "switchover")
        assert status == 200, answer
        self.healthy.wait_master(other_than=master)
        self.healthy.wait_in_sync()

    def begin_load(self) -> None:
        """Begin the load that lasts from before the first scrape until the end."""
        for master in (
            *self.alone.values(),
            *(group.nodes[group.wait_master()] for group in self.grouped.values()),
        ):
            self._set_up(master, f"topics/{TOPIC}", {"queues": QUEUES})
        for group in self.grouped.values():
            urls = [group.api_url(name) for name in group.names]
            self._serve(
                f"load of {group.directory.name}", urls, 60 if group is self.healthy else 10
            )
        for cluster in ("reput", "full"):
            self._serve(f"load of {cluster}", self.alone[cluster].api_url, 5)
        url = self.consumers.api_url
        for group_name, objective_ms in OBJECTIVES_MS.items():
            self._set_up(self.consumers, f"groups/{group_name}", {"lag_objective_ms": objective_ms})
        self.load.start("load of consumers", producing(url, TOPIC, PACE))
        self.load.start("well", consuming(url, TOPIC, "well"))
        self.dying = subprocess.Popen(
            [
                *(sys.executable, "-m", "tidemark.cli.main", "consume", TOPIC),
                *("--group", "dead", "--follow", "--url", url),
            ],
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _serve(self, name: str, url: str | Sequence[str], per_s: float) -> None:
        self.load.start(name, producing(url, TOPIC, per_s, varied))
        self.load.start(f"{name}: orders", consuming(url, TOPIC, "orders"))
        if "healthy" in name:
            self.load.start(f"{name}: tagged", consuming(url, TOPIC, "tagged", tags="a"))

    def _set_up(self, node: Node, what: str, config: dict[str, Any]) -> None:
        status, answer = node.request_json("PUT", f"/v1/{what}", config)
        assert status == 200, answer

    # -- faults ---------------------------------------------------------------------------------

    def start_reput_again(self) -> None:
        """Kill reput of ``reput`` and start it as another process."""
        self.reput.kill("reput")
        self.reput.start("reput")

    def cut_off(self) -> None:
        """Cut the connection of the nodes of ``cut``."""
        for link in self.links:
            link.cut()

    def heal(self) -> None:
        """Restore the connection."""
        for link in self.links:
            link.heal()

    def kill_consumer(self) -> None:
        """Kill the only member of ``dead``."""
        assert self.dying is not None
        assert self.dying.poll() is None, "the consumer has ended by itself"
        self.dying.kill()
        self.dying.wait()

    def start_consumer_again(self) -> None:
        """Another member takes its place."""
        self.load.start("dead again", consuming(self.consumers.api_url, TOPIC, "dead"))

    def read_faster(self) -> None:
        """The slow member of ``slow`` goes, and one comes that reads as fast as it can."""
        self.load.stop("slow")
        self.load.start("slow no more", consuming(self.consumers.api_url, TOPIC, "slow"))

    def fill(self) -> None:
        """Fill the disk of ``full`` with other data."""
        found = os.statvfs(self.ballast.parent)
        size = int((found.f_bavail - LEFT_SHARE * found.f_blocks) * found.f_frsize)
        with self.ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)


def varied(number: int) -> NewMessage:
    """Messages of all kinds: with tags and keys, in order, delayed."""
    return NewMessage(
        b"x" * (50 + number % 400),
        tags="ab"[number % 2],
        keys=(f"key-{number % 100}",),
        sharding_key=f"customer-{number % 7}" if number % 10 == 0 else None,
        delay_level=1 if number % 25 == 1 else None,
    )


@contextmanager
def clusters(directory: Path) -> Iterator[Clusters]:
    """Start all clusters and yield them; putting load on them is up to the caller."""
    with ExitStack() as parts:
        disk_dir = directory / "small"
        disk_dir.mkdir(parents=True)
        disk = parts.enter_context(mounted("ext4", disk_dir, DISK_SIZE))
        load = parts.enter_context(AlertLoad())
        found = Clusters(directory, disk, load)
        parts.callback(found.close)
        try:
            found.start()
            yield found
        except BaseException:
            for node in (*found.alone.values(), *found.cut.nodes.values()):
                node.print_logs(30)
            raise
