"""The nodes of ``tidemark dev``: their directories, ports, settings and services.

A single node runs broker and reput on one store. Nodes of a group run ha as well; their stores are
sibling directories, next to the lease and the group's secret. With ``--lease etcd`` the lease is in
an etcd, whose only member runs beside the nodes. A cluster of several broker groups has one such
directory for each; its name services have no files. Used by ``dev``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from shared.cluster.local_etcd import PROGRAM, EtcdMember, etcd_command
from shared.cluster.local_group import Addresses, cluster_table, member_settings
from shared.files.os_disk import OsDisk
from shared.files.store_config import LocalStoreConfig, config_of
from shared.runtime import programs
from shared.runtime.doorbell import SOCKET_PATH_SIZE_MAX
from shared.runtime.listening import listening_on
from tidemark.cli.children import Child
from tidemark.errors import BadConfig, GroupStore

ADMIN_HOST: Final = "127.0.0.1"
ETCD_CLIENT_PORT: Final = 5
"""Distance of the ports of etcd from the API port of the first node."""
ETCD_PEER_PORT: Final = 6
PORTS_PER_NODE: Final = 10
"""Distance between the API ports of two nodes."""
PORTS_PER_GROUP: Final = 50
"""Distance between the first ports of two broker groups."""
LONGEST_SOCKET: Final = "ha-control.sock"


class Ports(NamedTuple):
    """The ports of a node: API, each service's probes and metrics, and replication."""

    api: int
    broker_admin: int
    reput_admin: int
    ha_admin: int | None = None
    replication: int | None = None

    @classmethod
    def from_api(cls, port: int, *, grouped: bool = False) -> Ports:
        """Derive the ports from the API's port."""
        alone = cls(port, port + 1, port + 2)
        return alone._replace(ha_admin=port + 3, replication=port + 4) if grouped else alone

    def check(self, host: str) -> None:
        """Raise CannotListen if another process listens on one of the ports.

        Otherwise another node's /ready could be taken for that of this node, which cannot start.
        """
        own = [(ADMIN_HOST, port) for port in self[1:] if port is not None]
        for name, port in ((host, self.api), *own):
            _check_free(name, port)


def _check_free(host: str, port: int) -> None:
    """Raise CannotListen if another process listens on the port."""
    with listening_on(host, port):
        for family, kind, number, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, number) as probe:
                # Like the services do: closed connections do not block a port.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)


class DevNode(NamedTuple):
    """One node on this machine."""

    name: str
    """Empty if it is in no group."""
    store: Path
    run_dir: Path
    host: str
    ports: Ports
    cluster: dict[str, object]
    """The [cluster] settings that its group shares; empty if it is in no group."""
    group: str = ""
    """Its broker group; empty if there are neither others nor name services."""
    names: tuple[str, ...] = ()
    """URLs of the name services."""

    @property
    def label(self) -> str:
        """Broker group and name, as far as it has them."""
        return f"{self.group} {self.name}".strip()

    @property
    def api(self) -> str:
        """URL of its API for clients on this machine."""
        return f"http://{connectable(self.host)}:{self.ports.api}"

    def children(self, *, verbose: bool) -> list[Child]:
        """Create its services in the order of stopping: reput can then dispatch the whole log, and
        ha ends last."""
        arguments = {
            "broker": ["--host", self.host, "--port", str(self.ports.api)],
            "reput": [],
            "ha": [],
        }
        ports = {
            "broker": self.ports.broker_admin,
            "reput": self.ports.reput_admin,
            "ha": self.ports.ha_admin,
        }
        return [
            Child(
                f"{self.label} {service}".strip(),
                [
                    *programs.service(service),
                    *("--store", str(self.store)),
                    *("--run-dir", str(self.run_dir), "--profile", "local"),
                    *("--admin-port", str(port), *arguments[service]),
                ],
                self._environment(service),
                ready_url=f"http://{ADMIN_HOST}:{port}/ready",
                verbose=verbose,
            )
            for service, port in ports.items()
            if port is not None
        ]

    def _environment(self, service: str) -> dict[str, str]:
        """Return settings as variables, because the caller's own take precedence over them."""
        settings: dict[str, object] = {}
        own = {"group": self.group} if self.group else {}
        if self.cluster:
            settings |= member_settings(service, {**self.cluster, **own, "node": self.name})
        elif own and service == "broker":
            settings["cluster"] = own
        if self.names and service == "broker":
            settings["names"] = {"urls": list(self.names)}
        variables = sizes_of(service.upper(), self.store)
        for name, value in settings.items():
            table = value if isinstance(value, Mapping) else {"": value}
            for key, each in table.items():
                text = ",".join(each) if isinstance(each, list) else str(each)
                path = "_".join(part for part in (name, key) if part)
                variables[f"TIDEMARK_{service}_{path}".upper()] = text
        return variables


def sizes_of(service: str, store: Path) -> dict[str, str]:
    """Return the file sizes of an existing store as settings; the profile's are for new stores.

    Therefore any store can be opened, including one that RocketMQ created with other sizes. The
    caller's environment takes precedence and is checked against the store. Raises
    StoreFormatUnknown.
    """
    sizes = config_of(OsDisk(), store, LocalStoreConfig()).sizes
    return {f"TIDEMARK_{service}_STORE_{name.upper()}": str(size) for name, size in sizes.items()}


@contextlib.contextmanager
def local_nodes(
    store: Path, host: str, port: int, count: int, etcd_endpoints: Sequence[str] = ()
) -> Iterator[list[DevNode]]:
    """Prepare the nodes of one ``tidemark dev``: a single one with its store at ``store``, or a
    group below it. Raises GroupStore if a store of the other kind exists there.

    etcd_endpoints: of the group's lease, if it is in etcd.
    """
    if (store / "g0").is_dir():
        raise _other_kind(store, "the stores of several broker groups are", "--groups 2")
    with contextlib.ExitStack() as directories:
        if count == 1:
            if (store / "n0").is_dir():
                raise _other_kind(store, "the stores of a group are", "--nodes 2")
            run_dir = directories.enter_context(_run_dir(store))
            yield [DevNode("", store, run_dir, host, Ports.from_api(port), {})]
            return
        if (store / "commitlog").is_dir():
            raise _other_kind(store, "the store of a single node is", "--nodes 1")
        names = [f"n{ordinal}" for ordinal in range(count)]
        ports = [
            Ports.from_api(port + PORTS_PER_NODE * ordinal, grouped=True)
            for ordinal in range(count)
        ]
        url = f"http://{connectable(host)}"
        cluster = cluster_table(
            store,
            {
                name: Addresses(
                    replication=f"{ADMIN_HOST}:{own.replication}",
                    api=f"{url}:{own.api}",
                    admin=f"http://{ADMIN_HOST}:{own.ha_admin}",
                )
                for name, own in zip(names, ports, strict=True)
            },
            etcd_endpoints,
        )
        yield [
            DevNode(
                name,
                store / name,
                directories.enter_context(_run_dir(store / name)),
                host,
                own,
                cluster,
            )
            for name, own in zip(names, ports, strict=True)
        ]


def local_etcd(store: Path, port: int) -> EtcdMember:
    """Return the etcd of a group below ``store``. port: of the API of the first node.

    Raises BadConfig if none is installed, CannotListen if another process has its port.
    """
    if shutil.which(PROGRAM) is None:
        raise BadConfig(
            f"{PROGRAM} is not installed. Nothing was started.",
            "Install it (Debian: apt-get install etcd-server), or name a running one with "
            "--etcd-endpoints.",
        )
    client, peer = port + ETCD_CLIENT_PORT, port + ETCD_PEER_PORT
    for number in (client, peer):
        _check_free(ADMIN_HOST, number)
    url = f"http://{ADMIN_HOST}"
    return EtcdMember("etcd", store / "etcd", f"{url}:{client}", f"{url}:{peer}")


def etcd_child(etcd: EtcdMember, *, verbose: bool) -> Child:
    """Return the process of an etcd with one member."""
    return Child(
        etcd.name,
        etcd_command(etcd, [etcd]),
        {},
        ready_url=f"{etcd.client_url}/health",
        verbose=verbose,
    )


class NamesProcess(NamedTuple):
    """One name service on this machine."""

    name: str
    host: str
    port: int
    groups: tuple[str, ...]
    """Broker groups of its cluster."""
    peers: tuple[str, ...]
    """URLs of the other name services."""

    @property
    def url(self) -> str:
        """Its URL for clients on this machine."""
        return f"http://{connectable(self.host)}:{self.port}"

    def child(self, *, verbose: bool) -> Child:
        """Create its process."""
        admin_port = self.port + 1
        return Child(
            self.name,
            [
                *programs.service("names"),
                *("--host", self.host, "--port", str(self.port), "--admin-port", str(admin_port)),
            ],
            {
                "TIDEMARK_NAMES_URL": self.url,
                "TIDEMARK_NAMES_PEERS": ",".join(self.peers),
                "TIDEMARK_NAMES_GROUPS": ",".join(self.groups),
            },
            ready_url=f"http://{ADMIN_HOST}:{admin_port}/ready",
            verbose=verbose,
        )


class LocalCluster(NamedTuple):
    """What one ``tidemark dev`` runs."""

    groups: list[list[DevNode]]
    names: list[NamesProcess]

    @property
    def is_plain(self) -> bool:
        """Whether it is one broker group without a name service."""
        return len(self.groups) == 1 and not self.names

    @property
    def nodes(self) -> list[DevNode]:
        """The nodes of all broker groups."""
        return [node for group in self.groups for node in group]


@contextlib.contextmanager
def local_cluster(
    store: Path,
    host: str,
    port: int,
    *,
    groups: int,
    nodes: int,
    names: int,
    etcd_endpoints: Sequence[str] = (),
) -> Iterator[LocalCluster]:
    """Prepare one ``tidemark dev``: broker groups of as many nodes each, and name services.

    One broker group has its store or stores at ``store``, several have one directory each below it.
    etcd_endpoints: of the groups' leases, if they are in etcd.
    Raises GroupStore if there are stores of another kind.
    """
    if groups == 1 and not names:
        with local_nodes(store, host, port, nodes, etcd_endpoints) as found:
            yield LocalCluster([found], [])
        return
    if groups > 1 and any((store / name).is_dir() for name in ("commitlog", "n0")):
        raise _other_kind(store, "the store or stores of one broker group are", "--groups 1")
    group_names = tuple(f"g{number}" for number in range(groups))
    first = port + PORTS_PER_GROUP * groups
    services = [
        NamesProcess(f"names-{number}", host, first + 2 * number, group_names, ())
        for number in range(names)
    ]
    urls = tuple(each.url for each in services)
    services = [
        each._replace(peers=tuple(url for url in urls if url != each.url)) for each in services
    ]
    with contextlib.ExitStack() as prepared:
        found_groups = []
        for number, name in enumerate(group_names):
            directory = store if groups == 1 else store / name
            own_port = port + PORTS_PER_GROUP * number
            own = prepared.enter_context(
                local_nodes(directory, host, own_port, nodes, etcd_endpoints)
            )
            found_groups.append([each._replace(group=name, names=urls) for each in own])
        yield LocalCluster(found_groups, services)


def connectable(host: str) -> str:
    """Return a host to which a client can connect if the node listens on this address."""
    match host:
        case "0.0.0.0" | "":
            return "127.0.0.1"
        case "::":
            return "[::1]"
        case _:
            return f"[{host}]" if ":" in host else host


def _other_kind(store: Path, what: str, option: str) -> GroupStore:
    return GroupStore(
        f"{what} in {store}. Nothing was started.",
        f"Start it with `{option}` (`make run {option.upper()[2:].replace(' ', '=')}`), or choose "
        "another directory with --store (`STORE=`).",
        path=store,
    )


@contextlib.contextmanager
def _run_dir(store: Path) -> Iterator[Path]:
    """Directory of the sockets: below the store, unless the path is too long for sockets."""
    beside = store / "run"
    if len(os.fsencode(beside / LONGEST_SOCKET)) < SOCKET_PATH_SIZE_MAX:
        yield beside
        return
    with tempfile.TemporaryDirectory(prefix="tidemark-") as elsewhere:
        yield Path(elsewhere)
