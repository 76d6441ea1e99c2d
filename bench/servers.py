"""Servers under measurement: real processes on one core, with their data on a real disk.

    pin_to_load_core()
    with Node() as node:
        ... node.url ...

Broker and reput (``Node``) share SERVER_CORE, and so do the servers that they are compared with
(``redis_server``, ``nats_server``, ``kafka_server``, ``rocketmq_server``); the load uses LOAD_CORE
alone. All waits have a condition and a deadline. The data are removed at the end.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from bench.exchange import Outcome
from bench.harness import PROJECT, WORK_DIR
from drills.node_group import ask
from drills.node_group import slot as read_slot
from shared.runtime.parent_death import kill_with_parent
from tidemark.formats.checkpoint import Slot
from tidemark.testing.child import ChildProcess
from tidemark.testing.node import LOOPBACK, NodeProcesses
from tidemark.testing.node import ROLES as ROLES
from tidemark.testing.node import START_TIMEOUT_S as START_TIMEOUT_S
from tidemark.testing.ports import free_port as free_port
from tidemark.testing.ports import free_ports
from tidemark.testing.waiting import wait_until as wait_until

SERVER_CORE: Final = 0
LOAD_CORE: Final = 1
HOST: Final = LOOPBACK
CALL_TIMEOUT_S: Final = 120.0
KAFKA_LIB: Final = PROJECT / "build" / "kafka" / "lib"
KAFKA_CLUSTER: Final = f"{'bench':A<22}"
"""The cluster's id: 16 bytes in base64."""
KAFKA_JVM: Final = (
    *("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
)

ROCKETMQ_LIB: Final = PROJECT / "build" / "referee" / "lib"
ROCKETMQ_JVM: Final = ("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:G1HeapRegionSize=16m")


def pin_to(core: int) -> None:
    """Pin this process and its children to one core, or to the only one."""
    os.sched_setaffinity(0, _cores(core))


def _cores(core: int) -> set[int]:
    return {core if core < (os.cpu_count() or 1) else 0}


def pin_to_load_core() -> None:
    """Pin this process to the core that the servers do not use."""
    pin_to(LOAD_CORE)


def work_dir(prefix: str) -> Path:
    """Create a directory on the measured disk, and remove those of killed benchmarks."""
    WORK_DIR.mkdir(parents=True, exist_ok=True)
    for left in WORK_DIR.iterdir():
        owner = re.search(r"\.(\d+)-\w+$", left.name)
        if owner is not None and not Path(f"/proc/{owner[1]}").exists():
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}.{os.getpid()}-", dir=WORK_DIR))


def pinned(core: int | None = SERVER_CORE) -> Callable[[], None]:
    """Return a function that pins a child to a core (None: to all) before its program starts.

    The kernel kills the child when this process ends for any reason.
    """
    cores = range(os.cpu_count() or 1) if core is None else _cores(core)

    def before_exec() -> None:
        os.sched_setaffinity(0, cores)
        kill_with_parent()

    return before_exec


def start_pinned(command: Sequence[str], log: Path) -> ChildProcess:
    process = ChildProcess(log, before_exec=pinned())
    process.start(command)
    return process


class Node(NodeProcesses):
    """A broker and a reput of one store, ready when the ``with`` block starts."""

    STORE: ClassVar[Mapping[str, object]] = {}
    """The files have the sizes of the profile."""

    def __init__(
        self,
        *,
        profile: str = "default",
        store: Mapping[str, object] | None = None,
        broker: Mapping[str, object] | None = None,
        cluster: Mapping[str, object] | None = None,
        ports: Mapping[str, int] | None = None,
        core: int | None = SERVER_CORE,
    ) -> None:
        """profile: ``default`` or ``local``. store: the [store] table of all services. broker: more
        settings of the broker. cluster, ports: of a node of a group (``group``), which also runs
        ha. core: None for all cores.
        """
        self._profile = profile
        quiet: dict[str, object] = {"log_level": "warning"}
        super().__init__(
            work_dir("node"),
            settings={
                "store": store or {},
                "broker": {**quiet, **(broker or {})},
                "reput": quiet,
                "ha": quiet,
            },
            ports=ports,
            cluster=cluster,
            before_exec=pinned(core),
        )

    @property
    def url(self) -> str:
        return self.api_url

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.ports["api"]

    def __enter__(self) -> Self:
        try:
            self.start()
            self.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def command(self, role: str) -> list[str]:
        return [*super().command(role), "--profile", self._profile]

    def cpu_s(self) -> float:
        """CPU time of its services so far [s]."""
        return sum(process.cpu_s() for process in self.processes.values() if process.is_alive)

    def metric(self, role: str, name: str) -> float:
        """Value of a metric; name includes its labels. Raises KeyError if it is missing."""
        with urllib.request.urlopen(f"{self.admin_url(role)}/metrics", timeout=10) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(name + " "):
                    return float(line.rsplit(" ", 1)[1])
        raise KeyError(name)

    def call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """Make a call with a JSON body. Raises OSError unless it succeeds."""
        status, answer = ask(self.url + path, method, body, timeout_s=CALL_TIMEOUT_S)
        if not 200 <= status < 300:
            raise OSError(f"{method} {path}: status {status}, {str(answer)[:500]}")
        return answer

    def make_topic(self, name: str, queues: int, queue_type: str = "simple") -> None:
        self.call("PUT", f"/v1/topics/{name}", {"queues": queues, "queue_type": queue_type})

    def message_count(self, topic: str) -> int:
        """Number of messages in all queues of a topic so far: the sum of its max offsets."""
        queues = self.call("GET", f"/v1/topics/{topic}")["queues"]
        return sum(int(queue["max_offset"]) for queue in queues)

    def position(self, slot: Slot) -> int:
        """The last published value of a slot; costs the servers nothing."""
        return read_slot(self.store_dir, slot)

    def wait_dispatched(self) -> float:
        """Wait until the whole log is flushed and dispatched; return the seconds."""
        began = time.perf_counter()
        self._wait_at_end(Slot.DISPATCHED, "reput to catch up")
        return time.perf_counter() - began

    def wait_synced(self) -> None:
        """Wait until the whole log is dispatched, and queues and index are on disk."""
        self._wait_at_end(Slot.DISPATCHED_DURABLE, "reput to sync")

    def _wait_at_end(self, slot: Slot, what: str) -> None:
        def is_at_end() -> bool:
            return self.position(slot) == self.position(Slot.WRITTEN)

        wait_until(is_at_end, what, START_TIMEOUT_S)

    def close(self) -> None:
        super().close()
        shutil.rmtree(self.directory, ignore_errors=True)


class MissingServer(SystemExit):
    """A program for comparison is not installed: the benchmark ends with this message."""

    def __init__(self, program: str, package: str) -> None:
        super().__init__(f"{program} is not installed: apt-get install {package}")


def program(name: str, package: str) -> str:
    """Find a program, also in sbin directories. Raises MissingServer naming its package."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/usr/local/sbin"
    found = shutil.which(name, path=path)
    if found is None:
        raise MissingServer(name, package)
    return found


class Compared:
    """A server that Tidemark is compared with: a process, a port, its own directory."""

    def __init__(
        self, name: str, command: Callable[[Compared], list[str]], *, port: int | None = None
    ) -> None:
        """name: for error messages and the directory. command: returns the command to run. port:
        None for any free one."""
        self.name = name
        self.directory = work_dir(name)
        self.port = port or free_port()
        self._command = command
        self._process: ChildProcess | None = None

    @property
    def address(self) -> tuple[str, int]:
        return HOST, self.port

    @property
    def process(self) -> ChildProcess:
        assert self._process is not None, "it runs only in the with block"
        return self._process

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Let the server run for the time of the block, and no longer.

        Idle servers would share core and caches with the one that is measured: three JVMs took half
        of a handler's speed.
        """
        self.process.send_signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGSTOP)

    def measured(self, run: Callable[[], Outcome]) -> Outcome:
        """Run a load of this server, and add the CPU time that the server used."""
        before = self.process.cpu_s()
        outcome = run()
        return outcome._replace(server_cpu_s=self.process.cpu_s() - before)

    def __enter__(self) -> Self:
        process = self._process = start_pinned(
            self._command(self), self.directory / f"{self.name}.log"
        )

        def listens() -> bool:
            process.check_alive()
            with contextlib.suppress(OSError), socket.create_connection(self.address, timeout=1):
                return True
            return False

        try:
            wait_until(listens, f"{self.name} to listen", START_TIMEOUT_S)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None
        shutil.rmtree(self.directory, ignore_errors=True)


def redis_server(appendfsync: str) -> Compared:
    """Return a redis-server with an append-only file, no snapshots, no rewriting during a run.

    appendfsync: ``always`` (answers after fdatasync) or ``everysec`` (after write).
    """
    path = program("redis-server", "redis-server")

    def command(server: Compared) -> list[str]:
        return [
            *(path, "--port", str(server.port), "--bind", HOST, "--dir", str(server.directory)),
            *("--appendonly", "yes", "--appendfsync", appendfsync),
            *("--auto-aof-rewrite-percentage", "0", "--save", ""),
        ]

    return Compared("redis", command)


def nats_server() -> Compared:
    """Return a nats-server with JetStream, streams in files; otherwise the defaults."""
    path = program("nats-server", "nats-server")
    return Compared(
        "nats", lambda s: [path, "-a", HOST, "-p", str(s.port), "-js", "-sd", str(s.directory)]
    )


def kafka_version() -> str | None:
    """Version of the Kafka that ``make kafka`` has fetched; None without it."""
    names = [path.stem.removeprefix("kafka_2.13-") for path in KAFKA_LIB.glob("kafka_2.13-*.jar")]
    return names[0] if names else None


def kafka_server() -> Compared:
    """Return a Kafka broker that is its own controller; otherwise its defaults.

    The JVM has the options of Kafka's start script.
    """
    java = [program("java", "openjdk-17-jre-headless"), *KAFKA_JVM, "-cp", f"{KAFKA_LIB}/*"]

    def command(server: Compared) -> list[str]:
        config = server.directory / "server.properties"
        broker, controller = f"{HOST}:{server.port}", f"{HOST}:{free_port()}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{broker},CONTROLLER://{controller}",
            "log.dirs": f"{server.directory}/data",
            "offsets.topic.replication.factor": "1",  # of groups; the default is 3
            "group.initial.rebalance.delay.ms": "0",
            "broker.session.timeout.ms": "3600000",  # it is stopped between its runs
            "message.max.bytes": str(4 << 20),  # 256 messages of 4 KiB exceed the default
        }
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        steps = (
            [*java, "kafka.tools.StorageTool", "format", "-t", KAFKA_CLUSTER, "-c", str(config)],
            ["exec", *java, "kafka.Kafka", str(config)],
        )
        return ["sh", "-c", " && ".join(map(shlex.join, steps))]

    return Compared("kafka", command)


def rocketmq_version() -> str | None:
    """Version of the RocketMQ that ``make referee`` has fetched; None without it."""
    names = [path.stem for path in ROCKETMQ_LIB.glob("rocketmq-broker-*.jar")]
    return names[0].removeprefix("rocketmq-broker-") if names else None


def rocketmq_server(flush: str) -> Compared:
    """Return a RocketMQ broker without a name server; otherwise its defaults.

    flush: ``ASYNC_FLUSH`` (answers from the page cache) or ``SYNC_FLUSH`` (after fsync). The JVM
    has the collector of its start script and the heap of Kafka's.
    """
    java = [program("java", "openjdk-17-jre-headless"), *ROCKETMQ_JVM]
    _, _, main_port, ha_port = free_ports(4)  # it also listens two below its main port

    def command(server: Compared) -> list[str]:
        config = server.directory / "broker.conf"
        settings = {
            "listenPort": str(server.port),
            "haListenPort": str(ha_port),
            "brokerIP1": HOST,
            "storePathRootDir": f"{server.directory}/store",
            "storePathCommitLog": f"{server.directory}/store/commitlog",
            "flushDiskType": flush,
            "waitTimeMillsInSendQueue": "60000",  # by default it rejects what waited for 0.2 s
        }
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        home = f"-Drocketmq.home.dir={server.directory}"
        broker = "org.apache.rocketmq.broker.BrokerStartup"
        return [*java, home, "-cp", f"{ROCKETMQ_LIB}/*", broker, "-c", str(config)]

    return Compared("rocketmq", command, port=main_port)


def peer(name: str, *arguments: str) -> Compared:
    start = [sys.executable, "-m", "bench.peers", name]
    return Compared(name, lambda server: [*start, str(server.port), *arguments])


def version_of(name: str) -> str:
    """Version of an installed server. Raises MissingServer."""
    command = [program(name, name), "--version"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"\bv=?(\d+(\.\d+)*)", text)
    return found[1] if found else text.strip()


def settle() -> None:
    """Write back dirty data of earlier runs, so that no run pays for the one before."""
    os.sync()
