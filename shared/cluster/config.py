"""Settings of a replication group: nodes, secret, lease; the table ``[cluster]`` of all services.

Only its settings make a node a member of a group, never what it finds on disk or network. The table
is the same on every node except for ``node``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

from shared.cluster.nodes import NODES_MAX, Node, parse_node
from shared.cluster.time_rules import PROFILES, TimeRules
from shared.runtime.config import Ruled, setting

ETCD_ENDPOINT: Final = re.compile(r"(https?)://(\[[0-9A-Fa-f:.]+\]|[^\s/:@]+):[0-9]{1,5}")

NUMBER: Final = "{n}"
"""Stands for the number of a node in entries that ``node_count`` repeats."""


@dataclasses.dataclass(frozen=True)
class ClusterConfig(Ruled):
    """The group of a node; a node without configured nodes is standalone."""

    name: str = setting("tidemark", says="cluster id: nodes of another one are refused")
    group: str = setting("g0", says="one master and its slaves")
    node: str = setting("", says="which of nodes this one is; empty: alone")
    nodes: tuple[str, ...] = ()
    """``name=host:port`` of replication, for all replicas; the first one bootstraps the group.
    After ``tidemark cluster add-node`` or ``remove-node`` the list in the lease counts instead."""
    api: tuple[str, ...] = ()
    """``name=URL`` for clients, of every node."""
    admin: tuple[str, ...] = ()
    """``name=URL`` of ha's admin port, of every node."""
    node_count: int = setting(
        0,
        unit="nodes",
        minimum=0,
        maximum=NODES_MAX,
        says="nodes, api, admin have one entry each, with {n} for 0, 1, ...; 0: one for each node",
    )
    secret_file: Path | None = None
    """File with the shared secret: at least 16 bytes, readable by its owner only."""
    tls_cert_file: Path | None = None
    """With tls_key_file and tls_ca_file: mutual TLS between the nodes, in addition to the secret.
    """
    tls_key_file: Path | None = None
    tls_ca_file: Path | None = None
    lease: Literal["directory", "etcd", "kubernetes"] = "directory"
    lease_dir: Path | None = None
    """Directory that all nodes, on one machine, can access; only with lease = "directory"."""
    kubernetes_namespace: str = ""
    kubernetes_url: str = setting("", says="of the API server; empty: as a pod finds it")
    etcd_endpoints: tuple[str, ...] = ()
    """URLs of the members of one etcd cluster; all http, or all https. Only with lease = "etcd"."""
    etcd_prefix: str = setting("/tidemark/", says="of the key; then follow name and group")
    etcd_user: str = setting("", says="with etcd_password_file; empty: without authentication")
    etcd_password_file: Path | None = None
    etcd_tls_ca_file: Path | None = None
    """Authority that signed etcd's certificates. Default: those of the system."""
    etcd_tls_cert_file: Path | None = None
    """With etcd_tls_key_file: for an etcd that requires certificates of clients."""
    etcd_tls_key_file: Path | None = None
    profile: Literal["default", "long", "local"] = "default"
    min_in_sync: int | None = None
    """Smallest in-sync set that may acknowledge. Default: 1 of two nodes, 2 of three or more."""

    def broken_rules(self) -> Iterator[str]:
        """Yield the broken rules between fields."""
        if not self.nodes:
            if self.node:
                yield f"cluster.node is {self.node!r} and cluster.nodes is empty"
            return
        yield from self._broken_nodes()
        if self.secret_file is None:
            yield "cluster.secret_file is missing"
        if (self.lease == "directory") != (self.lease_dir is not None):
            yield 'cluster.lease_dir belongs to lease = "directory", and only to it'
        if (self.lease == "etcd") != bool(self.etcd_endpoints):
            yield 'cluster.etcd_endpoints belongs to lease = "etcd", and only to it'
        yield from self._broken_etcd()
        tls = (self.tls_cert_file, self.tls_key_file, self.tls_ca_file)
        if any(tls) and not all(tls):
            yield "cluster.tls_cert_file, tls_key_file and tls_ca_file go together"

    def _broken_nodes(self) -> Iterator[str]:
        try:
            names = [replica.name for replica in self.replicas]
        except ValueError as error:
            yield str(error)
            return
        if len(set(names)) != len(names) or not 2 <= len(names) <= NODES_MAX:
            yield f"cluster.nodes needs 2 to {NODES_MAX} different names, has {names}"
        if self.node not in names:
            yield f"cluster.node is {self.node!r}, and cluster.nodes has {names}"
        if not 1 <= self.least_in_sync <= len(names):
            yield f"cluster.min_in_sync is {self.min_in_sync}, with {len(names)} nodes"

    def _broken_etcd(self) -> Iterator[str]:
        schemes = set()
        for endpoint in self.etcd_endpoints:
            found = ETCD_ENDPOINT.fullmatch(endpoint)
            if found is None:
                yield f"cluster.etcd_endpoints: {endpoint} is not http(s)://host:port"
            else:
                schemes.add(found[1])
        if len(schemes) > 1:
            yield "cluster.etcd_endpoints: either all are http, or all https"
        if bool(self.etcd_user) != (self.etcd_password_file is not None):
            yield "cluster.etcd_user and etcd_password_file go together"
        pair = (self.etcd_tls_cert_file, self.etcd_tls_key_file)
        if any(pair) and not all(pair):
            yield "cluster.etcd_tls_cert_file and etcd_tls_key_file go together"
        if (any(pair) or self.etcd_tls_ca_file is not None) and "https" not in schemes:
            yield "cluster.etcd_tls_ca_file, etcd_tls_cert_file: only with https endpoints"

    @property
    def lease_name(self) -> str:
        """Name of the group's lease in its store."""
        return f"{self.name}-{self.group}"

    @property
    def grouped(self) -> bool:
        """Whether this node is a member of a group."""
        return bool(self.nodes)

    @property
    def replicas(self) -> tuple[Node, ...]:
        """All configured nodes in ordinal order. Raises ValueError naming what is missing."""
        nodes, apis, admins = (
            _by_name(field, numbered(entries, self.node_count))
            for field, entries in (("nodes", self.nodes), ("api", self.api), ("admin", self.admin))
        )
        found = []
        for name, address in nodes.items():
            if name not in apis or name not in admins:
                raise ValueError(f"cluster.api and cluster.admin need a URL of {name}")
            try:
                found.append(parse_node(name, address, apis[name], admins[name]))
            except ValueError as error:
                raise ValueError(f"cluster.nodes: {error}") from None
        return tuple(found)

    @property
    def own(self) -> Node:
        """This node."""
        return next(replica for replica in self.replicas if replica.name == self.node)

    @property
    def least_in_sync(self) -> int:
        """Size of the smallest in-sync set that may acknowledge."""
        if self.min_in_sync is not None:
            return self.min_in_sync
        return 1 if len(self.replicas) <= 2 else 2

    @property
    def time_rules(self) -> TimeRules:
        """The times of the configured profile."""
        return PROFILES[self.profile]


def numbered(entries: Sequence[str], node_count: int) -> tuple[str, ...]:
    """Return the entries of all nodes: each entry once for each number; unchanged if
    ``node_count`` is 0."""
    if not node_count:
        return tuple(entries)
    return tuple(each.replace(NUMBER, str(n)) for n in range(node_count) for each in entries)


def _by_name(field: str, entries: tuple[str, ...]) -> dict[str, str]:
    """Parse ``name=value`` entries, in order. Raises ValueError."""
    found: dict[str, str] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not (name and equals and value) or name in found:
            raise ValueError(f"cluster.{field}: {entry!r} is not a new name=value")
        found[name] = value
    return found
