"""Servers under measurement: real processes on one core, with their data on a real disk.

    pin_to_load_core()
    with Node() as node:
        ... node.url ...

Broker and reput (``Node``) share SERVER_CORE, and so do the servers that they are compared with
(``RedisServer``, ``NatsServer``); the load uses LOAD_CORE alone. All waits have a condition and a
deadline. The data are removed at the end.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, cast

from bench.harness import PROJECT, WORK_DIR
from tidemark.formats.checkpoint import SLOT_SIZE, Slot
from tidemark.testing.node import free_port as free_port
from tidemark.testing.settings_file import toml
from tidemark.testing.waiting import wait_until as wait_until

SERVER_CORE: Final = 0
LOAD_CORE: Final = 1
ROLES: Final = ("broker", "reput")
START_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 60.0
HOST: Final = "127.0.0.1"
_CPUCLOCK_SCHED: Final = 2
_PR_SET_PDEATHSIG: Final = 1
_libc: Final = ctypes.CDLL(None)  # loaded here, because a child should load nothing before exec


def pin_to(core: int) -> None:
    """Pin this process and its children to one core, or to the only one."""
    os.sched_setaffinity(0, {core if core < (os.cpu_count() or 1) else 0})


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


def _begin_child(core: int | None) -> None:
    """Pin a child before its program starts (None: all cores), and make it die with this process.

    The kernel kills the child when this process ends for any reason.
    """
    if core is None:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    else:
        pin_to(core)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Process:
    """One child process pinned to a core, with its output in a file."""

    def __init__(self, command: list[str], log: Path, *, core: int | None = SERVER_CORE) -> None:
        self.name = command[0]
        self._log = log
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                cwd=PROJECT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: _begin_child(core),
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def check_alive(self) -> None:
        """Raise RuntimeError with the end of the log if the process has ended."""
        if self._process.poll() is not None:
            text = self._log.read_text(encoding="utf-8", errors="replace")
            raise RuntimeError(
                f"{self.name} ended with status {self._process.returncode}:\n{text[-4000:]}"
            )

    def cpu_s(self) -> float:
        """CPU time used so far, in user and kernel [s]; all threads."""
        # The process's CPU clock (clock_getcpuclockid), since /proc/PID/stat has ticks of 10 ms.
        return time.clock_gettime((~self.pid << 3) | _CPUCLOCK_SCHED)

    def status(self, field: str) -> int:
        """A line of /proc/PID/status in kB, returned in bytes: RssAnon, RssFile, VmHWM …"""
        for line in Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
        raise KeyError(field)

    def descriptor_count(self) -> int:
        """Number of open descriptors."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def send_signal(self, signum: signal.Signals) -> None:
        """Send a signal if the process still runs."""
        self._process.send_signal(signum)

    def wait(self) -> int:
        """Wait for the end, kill after a deadline; return the exit status, −signal if signalled."""
        try:
            return self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


class Node:
    """A broker and a reput of one store, ready when the ``with`` block starts."""

    def __init__(
        self,
        *,
        profile: str = "default",
        store: Mapping[str, object] | None = None,
        broker: Mapping[str, object] | None = None,
        reput: Mapping[str, object] | None = None,
        store_dir: Path | None = None,
        cluster: Mapping[str, object] | None = None,
        ports: Mapping[str, int] | None = None,
        core: int | None = SERVER_CORE,
    ) -> None:
        """profile: ``default`` or ``local``. store: the [store] table of all services.

        broker, reput: more settings of one service. store_dir: an existing store, which is not
        removed. cluster: the [cluster] table of a node of a group (``group``), which also runs ha.
        ports: of the API and of each service; default: free ones. core: None for all cores.
        """
        self.directory = work_dir("node")
        self.store_dir = store_dir if store_dir is not None else self.directory / "store"
        # Not below directory: its path may be too long for a socket (108 bytes).
        self._run_dir = Path(tempfile.mkdtemp(prefix="tm-"))
        self._profile = profile
        self._core = core
        self.roles = ROLES if cluster is None else (*ROLES, "ha")
        self.ports = dict(ports or {name: free_port() for name in ("api", *self.roles)})
        self.processes: dict[str, Process] = {}
        grouped = {} if cluster is None else {"cluster": dict(cluster)}
        shown = {} if cluster is None else {"visible_after": "confirmed"}
        self._settings: dict[str, dict[str, object]] = {
            role: {
                "store_dir": str(self.store_dir),
                "run_dir": str(self._run_dir),
                "admin_port": self.ports[role],
                "log_level": "warning",
                **({"port": self.ports["api"]} if role == "broker" else {}),
                **({"commands": "port"} if role == "ha" else {}),
                **(more or {}),
                "store": {**(store or {}), **shown},
                **({} if role == "reput" else grouped),
            }
            for role, more in (("broker", broker), ("reput", reput), ("ha", None))
            if role in self.roles
        }

    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT`` of the API."""
        return f"http://{HOST}:{self.ports['api']}"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the API."""
        return HOST, self.ports["api"]

    def __enter__(self) -> Self:
        try:
            self.start()
            self.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            for role in self.processes:
                text = self.log_path(role).read_text(encoding="utf-8", errors="replace")
                print(f"--- end of the log of {role}\n{text[-2000:]}", file=sys.stderr)
        self.close()

    def start(self, *roles: str) -> None:
        """Start the named services (default: all) without waiting for them."""
        for role in roles or self.roles:
            config = self.directory / f"{role}.toml"
            config.write_text(toml(self._settings[role]), encoding="utf-8")
            self.processes[role] = Process(
                [
                    *(sys.executable, "-m", f"services.{role}"),
                    *("--config", str(config), "--profile", self._profile),
                ],
                self.log_path(role),
                core=self._core,
            )

    def log_path(self, role: str) -> Path:
        """Path of a service's output."""
        return self.directory / f"{role}.log"

    def wait_ready(self, *roles: str) -> None:
        """Wait until the named services (default: all running) are ready."""
        for role in roles or tuple(self.processes):

            def is_ready(role: str = role) -> bool:
                self.processes[role].check_alive()
                return self.is_ready(role)

            wait_until(is_ready, f"{role} to be ready", START_TIMEOUT_S)

    def is_ready(self, role: str) -> bool:
        """Whether /ready of a service reports ready; False without an answer."""
        url = f"http://{HOST}:{self.ports[role]}/ready"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=10) as answer:
            return bool(json.loads(answer.read())["ready"])
        return False

    def pid(self, role: str) -> int:
        """Process id of a service."""
        return self.processes[role].pid

    def cpu_s(self) -> float:
        """CPU time of its services so far [s]."""
        return sum(process.cpu_s() for process in self.processes.values())

    def metric(self, role: str, name: str) -> float:
        """Value of a metric; name includes its labels. Raises KeyError if it is missing."""
        url = f"http://{HOST}:{self.ports[role]}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(name + " "):
                    return float(line.rsplit(" ", 1)[1])
        raise KeyError(name)

    def call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """Make a call with a JSON body. Raises urllib.error.HTTPError, OSError."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path,
            data=data,
            method=method,
            headers={"Content-Type": "application/json", "Accept": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            # The body explains the status.
            error.msg = f"{error.msg}: {error.read().decode(errors='replace')[:500]}"
            raise
        return cast(dict[str, Any], json.loads(text)) if text else {}

    def make_topic(self, name: str, queues: int) -> None:
        """Create a topic durably."""
        self.call("PUT", f"/v1/topics/{name}", {"queues": queues})

    def message_count(self, topic: str) -> int:
        """Number of messages in all queues of a topic so far: the sum of its max offsets."""
        queues = self.call("GET", f"/v1/topics/{topic}")["queues"]
        return sum(int(queue["max_offset"]) for queue in queues)

    def position(self, slot: Slot) -> int:
        """The last published value of a slot; costs the servers nothing."""
        with (self.store_dir / "checkpoint").open("rb") as page:
            page.seek(slot * SLOT_SIZE)
            return int.from_bytes(page.read(SLOT_SIZE), "little")

    def lag_bytes(self) -> int:
        """Bytes of log that are not flushed or not dispatched yet."""
        return self.position(Slot.WRITTEN) - self.position(Slot.DISPATCHED)

    def wait_dispatched(self) -> float:
        """Wait until the whole log is flushed and dispatched; return the seconds."""
        began = time.perf_counter()
        wait_until(lambda: self.lag_bytes() == 0, "reput to catch up", START_TIMEOUT_S)
        return time.perf_counter() - began

    def wait_synced(self) -> None:
        """Wait until the whole log is dispatched, and queues and index are on disk."""

        def is_synced() -> bool:
            return self.position(Slot.DISPATCHED_DURABLE) == self.position(Slot.WRITTEN)

        wait_until(is_synced, "reput to sync", START_TIMEOUT_S)

    def kill(self, *roles: str) -> None:
        """SIGKILL the named services (default: all running), and wait until they have ended."""
        self._end(signal.SIGKILL, roles)

    def stop(self, *roles: str) -> None:
        """SIGTERM the named services (default: all running), and wait until they have ended."""
        self._end(signal.SIGTERM, roles)

    def _end(self, signum: signal.Signals, roles: tuple[str, ...]) -> None:
        ended = [
            self.processes.pop(role)
            for role in roles or tuple(self.processes)
            if role in self.processes
        ]
        for process in ended:
            process.send_signal(signum)
        for process in ended:
            process.wait()

    def close(self) -> None:
        """Kill running services and remove the directories."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.rmtree(self._run_dir, ignore_errors=True)


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


class Compared(ABC):
    """A server that Tidemark is compared with: a process, a port, its own directory."""

    def __init__(self, name: str) -> None:
        """name: for error messages and the directory."""
        self.name = name
        self.directory = work_dir(name)
        self.port = free_port()
        self._process: Process | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command to run."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return HOST, self.port

    @property
    def process(self) -> Process:
        """The running process."""
        assert self._process is not None, "it runs only in the with block"
        return self._process

    def __enter__(self) -> Self:
        process = self._process = Process(self.command(), self.directory / "log")

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
        """Kill the server and remove its data."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None
        shutil.rmtree(self.directory, ignore_errors=True)


class RedisServer(Compared):
    """redis-server with an append-only file and no snapshots."""

    def __init__(self, appendfsync: str) -> None:
        """appendfsync: ``always`` (answers after fdatasync) or ``everysec`` (after write)."""
        self._path = program("redis-server", "redis-server")
        super().__init__("redis")
        self._appendfsync = appendfsync

    def command(self) -> list[str]:
        """Append-only file, no snapshots, no rewriting of the file during a run."""
        settings = {
            "port": self.port,
            "bind": HOST,
            "dir": self.directory,
            "appendonly": "yes",
            "appendfsync": self._appendfsync,
            "auto-aof-rewrite-percentage": 0,
            "save": "",
        }
        given = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
        return [self._path, *given]


class NatsServer(Compared):
    """nats-server with JetStream, streams in files."""

    def __init__(self) -> None:
        self._path = program("nats-server", "nats-server")
        super().__init__("nats")

    def command(self) -> list[str]:
        """JetStream on, its directory on the measured disk; otherwise the defaults."""
        return [self._path, "-a", HOST, "-p", str(self.port), "-js", "-sd", str(self.directory)]


class BareHttp(Compared):
    """The bare handler of ``bare_http``."""

    def __init__(self, answer_size: int) -> None:
        """answer_size: bytes of each answer's body."""
        super().__init__("bare-http")
        self._answer_size = answer_size

    def command(self) -> list[str]:
        """The module, run by this interpreter."""
        return [sys.executable, "-m", "bench.bare_http", str(self.port), str(self._answer_size)]


class Echo(Compared):
    """``echo``: the other end of a loopback round trip."""

    def __init__(self) -> None:
        super().__init__("echo")

    def command(self) -> list[str]:
        """The module, run by this interpreter."""
        return [sys.executable, "-m", "bench.echo", str(self.port)]


def redis_version() -> str:
    """Version of the installed server. Raises MissingServer."""
    return _version(program("redis-server", "redis-server"))


def nats_version() -> str:
    """Version of the installed server. Raises MissingServer."""
    return _version(program("nats-server", "nats-server"))


def _version(path: str) -> str:
    text = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\bv=?(\d+(\.\d+)*)", text)
    return found[1] if found else text.strip()


def settle() -> None:
    """Write back dirty data of earlier runs, so that no run pays for the one before."""
    os.sync()
