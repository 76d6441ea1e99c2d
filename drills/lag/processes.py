"""The nodes of the stage: a master and a slave, and a single node, all as real processes.

They end with this process, however it ends. Logs and stores are below the given directory.
"""

from __future__ import annotations

import json
import secrets
import shutil
import signal
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from drills.lag.plan import CLUSTER
from drills.namespaces import Host
from drills.processes import ServiceProcess
from shared.runtime import programs
from tidemark.testing.node import free_ports
from tidemark.testing.settings_file import toml

ALONE: Final = ("broker", "reput")
GROUPED: Final = ("ha", *ALONE)
PORTS: Final = ("api", "broker", "reput", "ha", "replication")
READY_S: Final = 90.0
POLL_S: Final = 0.1
TIMEOUT_S: Final = 5.0
STORE: Final[Mapping[str, object]] = {
    "commit_log_file_size": 16 << 20,
    "consume_queue_file_size": 300_000,
    "index_slots": 5_000,
    "index_entries": 20_000,
}
"""Small files, which are created fast on any disk."""


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
        return {
            "cluster": CLUSTER,
            "broker": self.broker,
            "replica": self.replica,
            "service": self.service,
        }


class StageNode:
    """One node: its settings, processes and addresses."""

    def __init__(self, name: str, broker: str, directory: Path, ports: Mapping[str, int]) -> None:
        """broker: the set of the node. ports: by purpose, see ``PORTS``."""
        self.name, self.broker, self.directory, self.ports = name, broker, directory, dict(ports)
        self.store_dir = directory / "store"
        # Not below directory, because the path of a socket has at most 108 bytes.
        self.run_dir = Path(tempfile.mkdtemp(prefix="tidemark-lag-"))
        self.services: dict[str, ServiceProcess] = {}
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def api_url(self) -> str:
        """URL of the broker's API."""
        return f"http://127.0.0.1:{self.ports['api']}"

    def admin_url(self, service: str) -> str:
        """URL of a service's probes and metrics."""
        return f"http://127.0.0.1:{self.ports[service]}"

    def configure(self, cluster: Mapping[str, object] | None) -> None:
        """Write the settings. cluster: its table; None for a single node."""
        for service in ALONE if cluster is None else GROUPED:
            values: dict[str, object] = {
                "store_dir": str(self.store_dir),
                "run_dir": str(self.run_dir),
                "admin_port": self.ports[service],
                "store": {
                    **STORE,
                    **({} if cluster is None else {"visible_after": "confirmed"}),
                },
            }
            if service == "broker":
                values |= {"port": self.ports["api"], "auto_create_topics": False}
            if service == "ha":
                values["commands"] = "port"
            if cluster is not None and service != "reput":
                values["cluster"] = {**cluster, "node": self.name}
            path = self.directory / f"{service}.toml"
            path.write_text(toml(values), encoding="utf-8")
            self.services[service] = ServiceProcess(
                [
                    *programs.service(service),
                    *("--store", str(self.store_dir), "--config", str(path)),
                ],
                Host(self.name, "127.0.0.1", None),
                self.directory / f"{service}.log",
                {},
            )

    def targets(self) -> list[Target]:
        """Return the scrape targets."""
        return [
            Target(self.broker, self.name, service, self.ports[service])
            for service in self.services
        ]

    def close(self) -> None:
        """Kill its processes, and remove the files outside its directory."""
        for service in self.services.values():
            service.kill(again=False)
        shutil.rmtree(self.run_dir, ignore_errors=True)

    def log_tail(self) -> str:
        """Return the end of its services' output."""
        return "\n".join(
            f"--- {self.name} {name} ({'runs' if service.alive else 'does not run'})\n"
            f"{service.log_tail(1500)}"
            for name, service in self.services.items()
        )


class StageCluster:
    """All nodes, ready and in sync inside the ``with`` block."""

    def __init__(self, directory: Path) -> None:
        """directory: contains all files; created if it does not exist."""
        directory.mkdir(parents=True, exist_ok=True)
        ports = free_ports(3 * len(PORTS))
        each = [
            dict(zip(PORTS, ports[at : at + len(PORTS)], strict=True))
            for at in range(0, len(ports), len(PORTS))
        ]
        self.master = StageNode("n0", "g0", directory / "n0", each[0])
        self.slave = StageNode("n1", "g0", directory / "n1", each[1])
        self.solo = StageNode("solo", "g1", directory / "solo", each[2])
        self.nodes = (self.master, self.slave, self.solo)
        pair = (self.master, self.slave)
        secret = directory / "secret"
        secret.touch(0o600)
        secret.write_text(secrets.token_hex(32), encoding="ascii")
        (directory / "lease").mkdir(exist_ok=True)
        table = {
            "name": CLUSTER,
            "group": "g0",
            "nodes": [f"{node.name}=127.0.0.1:{node.ports['replication']}" for node in pair],
            "api": [f"{node.name}={node.api_url}" for node in pair],
            "admin": [f"{node.name}={node.admin_url('ha')}" for node in pair],
            "secret_file": str(secret),
            "lease": "directory",
            "lease_dir": str(directory / "lease"),
            "profile": "local",
        }
        for node in pair:
            node.configure(table)
        self.solo.configure(None)

    def __enter__(self) -> StageCluster:
        try:
            for node in self.nodes:
                for service in node.services.values():
                    service.start()
            self._wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill all processes."""
        for node in self.nodes:
            node.close()

    @property
    def orders_urls(self) -> list[str]:
        """API URLs of the nodes of ``g0``."""
        return [node.api_url for node in (self.master, self.slave)]

    def targets(self) -> list[Target]:
        """Return the targets of all processes."""
        return [target for node in self.nodes for target in node.targets()]

    def stop_reput(self) -> None:
        """Stop reput of ``g1`` with SIGSTOP."""
        self.solo.services["reput"].send(signal.SIGSTOP)

    def check(self) -> None:
        """Raise StageFailed if a process has ended."""
        for node in self.nodes:
            for name, service in node.services.items():
                if not service.alive:
                    raise StageFailed(f"{name} of {node.name} has ended.\n{node.log_tail()}")

    def serving(self) -> StageNode | None:
        """Return the master of ``g0``, whose broker accepts sends; None if there is none."""
        for node in (self.master, self.slave):
            if ask(f"{node.admin_url('broker')}/primary")[0] == 200:
                return node
        return None

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        while (missing := self._missing()) is not None:
            self.check()
            if time.monotonic() > deadline:
                said = "\n".join(node.log_tail() for node in self.nodes)
                raise StageFailed(f"after {READY_S:.0f} s {missing}.\n{said}")
            time.sleep(POLL_S)

    def _missing(self) -> str | None:
        """Return what is not ready yet; None if all is ready."""
        for node in self.nodes:
            for service in node.services:
                if ask(f"{node.admin_url(service)}/ready")[0] != 200:
                    return f"{service} of {node.name} is not ready"
        master = self.serving()
        if master is None:
            return "there is no master"
        nodes = ask(f"{master.admin_url('ha')}/v1/cluster")[1].get("nodes", [])
        outside = [node["node"] for node in nodes if not node["in_sync"]]
        return f"{', '.join(outside)} is not in sync" if outside or not nodes else None


def ask(url: str) -> tuple[int, dict[str, Any]]:
    """Return status and JSON of a GET; status 0 without an answer."""
    call = urllib.request.Request(url, headers={"Accept": "application/json"})
    try:
        with urllib.request.urlopen(call, timeout=TIMEOUT_S) as answer:
            text, status = answer.read(), int(answer.status)
    except urllib.error.HTTPError as error:
        text, status = error.read(), error.code
    except OSError:
        return 0, {}
    try:
        found = json.loads(text)
    except ValueError:
        return status, {}
    return status, found if isinstance(found, dict) else {}
