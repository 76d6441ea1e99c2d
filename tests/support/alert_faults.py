"""The clusters of the alert drill and what is planted in each, with what must be told of it.

``healthy`` is a master and a slave under load. ``consumers`` is a node alone with four groups: one
dies, one is slow, one stands still, one is well. ``reput`` is a node alone whose reput is stopped,
``full`` one whose disk fills, ``cut`` a master and a slave between which nothing passes any more.
"""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.support.alert_load import AlertLoad, consuming, producing
from tests.support.alert_stage import Stage, Target
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
SLOW_SHARE: Final = 0.7
OBJECTIVES_MS: Final = {"dead": 5_000, "slow": 10_000, "stuck": 60_000, "well": 60_000}
CLI_SESSION_S: Final = 30.0
STALL_S: Final = 60.0
"""A queue is stuck at the earliest after so long, whatever the speed of watching."""
Key = tuple[str, str, str]
"""(alert, cluster, consumer group)"""


class Fault(NamedTuple):
    """One fault: how it is planted and cleared, and who must say what."""

    name: str
    told: Key
    """The one alert that somebody is told."""
    plant: Callable[[], None]
    clear: Callable[[], None] | None
    """None: not cleared, since that is not cheap."""
    true_after_s: float
    """Until what the alert looks at is so, at the latest: no time of watching."""
    watched: str = "0s"
    """The range over which its expression looks back."""
    fires_too: frozenset[str] = frozenset()
    """Alerts that fire as well and of which nobody is told."""


class Clusters:
    """All processes of the drill. Made, started and loaded by ``clusters``."""

    def __init__(self, directory: Path, disk: Path, load: AlertLoad) -> None:
        self.load = load
        self.links: list[CutLink] = []
        self.ballast = disk / "ballast"
        broker = {"auto_create_topics": True, "auto_create_queues": QUEUES}
        self.healthy = Cluster(
            directory / "healthy",
            broker=broker,
            store={"commit_log_file_size": 4 << 20},
        )
        self.cut = Cluster(directory / "cut", broker=broker, through=self._through)
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
        """Everything ends."""
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
        """What a healthy group meets now and then. It is before Prometheus looks: no news later."""
        node = self.healthy.nodes[self.healthy.wait_master()]
        self._set_up(node, f"topics/{TOPIC}", {"queues": QUEUES})
        self.give_up(node, "before")

    def give_up(self, node: Node, group: str) -> None:
        """A group gives up on a message, reads others twice, and is reset to both ends."""
        self._set_up(node, f"groups/{group}", {"retry_max": 0})
        sent = {"messages": [{"body_text": "x", "keys": ["a"]} for _ in range(20)]}
        assert node.request_json("POST", f"/v1/topics/{TOPIC}/messages", sent)[0] == 200
        member = RawMember(node, group, topics=(TOPIC,))
        member.join()
        found: list[Source] = []

        def are_read() -> bool:
            found.extend(source for source, _ in member.fetch())
            return bool(found)

        wait_until(are_read, "messages for the group that fails")
        member.nack(found[0])
        member.join()  # as after a crash: all that it has is handed out again
        wait_until(lambda: [*member.fetch()], "messages that come again")
        member.call("DELETE", member.path)
        for place in ("first", "last"):
            member.call("POST", f"/v1/groups/{group}/reset", {"topic": TOPIC, "to": place})
        assert node.request_json("GET", "/v1/groups/nobody")[0] == 404

    def switch_over(self) -> None:
        """The healthy group's master hands over to its slave, as before an update."""
        master = self.healthy.wait_master()
        status, answer = self.healthy.command(master, "switchover")
        assert status == 200, answer
        self.healthy.wait_master(other_than=master)
        self.healthy.wait_in_sync()

    def begin_load(self) -> None:
        """What goes on from before Prometheus looks until the end."""
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

    def faults(self, stage: Stage) -> list[Fault]:
        """All that are planted at the same time."""
        url = self.consumers.api_url
        return [
            Fault(
                "consumer dead",
                ("TidemarkGroupStopped", "consumers", "dead"),
                self._kill_consumer,
                self._start_again,
                CLI_SESSION_S + OBJECTIVES_MS["dead"] / 1000,
            ),
            Fault(
                "consumer slow",
                ("TidemarkGroupFallingBehind", "consumers", "slow"),
                lambda: self.load.start(
                    "slow", consuming(url, TOPIC, "slow", per_s=PACE * SLOW_SHARE)
                ),
                None,
                OBJECTIVES_MS["slow"] / 1000 / (1 - SLOW_SHARE),
                "5m",
            ),
            Fault(
                "consumer stands still",
                ("TidemarkGroupStalled", "consumers", "stuck"),
                lambda: self.load.start("stuck", consuming(url, TOPIC, "stuck", stands_still=True)),
                None,
                STALL_S + stage.seconds("1m"),
                fires_too=frozenset({"TidemarkGroupFallingBehind", "TidemarkGroupLagObjective"}),
            ),
            Fault(
                "reput stopped",
                ("TidemarkTargetDown", "reput", ""),
                lambda: self.reput.pause("reput"),
                self._start_reput_again,
                0.0,
                fires_too=frozenset({"TidemarkDispatchStuck"}),
            ),
            Fault(
                "disk filling",
                ("TidemarkStoreNearlyFull", "full", ""),
                self._fill,
                self.ballast.unlink,
                5.0,
                fires_too=frozenset(
                    {"TidemarkNotReady", "TidemarkSendsFail", "TidemarkTimerOverdue"}
                ),
            ),
            Fault(
                "slave cut off",
                ("TidemarkUnderReplicated", "cut", ""),
                self._cut,
                self._heal,
                10.0,
            ),
        ]

    def _start_reput_again(self) -> None:
        self.reput.kill("reput")
        self.reput.start("reput")

    def _cut(self) -> None:
        for link in self.links:
            link.cut()

    def _heal(self) -> None:
        for link in self.links:
            link.heal()

    def _kill_consumer(self) -> None:
        assert self.dying is not None
        assert self.dying.poll() is None, "the consumer has ended by itself"
        self.dying.kill()
        self.dying.wait()

    def _start_again(self) -> None:
        self.load.start("dead again", consuming(self.consumers.api_url, TOPIC, "dead"))

    def _fill(self) -> None:
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
    """All of them, started; loaded is up to the caller."""
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


class SecondMaster:
    """A process that says it is master as well: all of it is planted."""

    TEXT: Final = (
        "# HELP tidemark_ha_role 1 for what this node is.\n# TYPE tidemark_ha_role gauge\n"
        'tidemark_ha_role{role="master"} 1\n'
    )

    def __init__(self) -> None:
        text = self.TEXT.encode()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.target = Target("healthy", "g0", "planted", "ha", int(self._server.server_address[1]))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """It was never there."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)
