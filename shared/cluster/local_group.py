"""Settings of a group whose nodes share a machine: its secret, its lease and the [cluster] table.

``tidemark dev`` and the runners of tests, drills and benchmarks start such groups. The lease is in
a directory next to the secret, or in an etcd.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

_SECRET_SIZE: Final = 32


class Addresses(NamedTuple):
    """Where a node of the group is reached."""

    replication: str
    """``host:port`` for the other nodes."""
    api: str
    """URL of the broker's API."""
    admin: str
    """URL of the commands of ha."""


def cluster_table(
    directory: Path, nodes: Mapping[str, Addresses], etcd_endpoints: Sequence[str] = ()
) -> dict[str, object]:
    """Return the [cluster] settings that all nodes share; creates the secret and the lease
    directory in ``directory`` unless they exist. etcd_endpoints: of the lease, if it is in etcd."""
    lease_dir, secret_file = directory / "lease", directory / "secret"
    if etcd_endpoints:
        directory.mkdir(parents=True, exist_ok=True)
        lease: dict[str, object] = {"lease": "etcd", "etcd_endpoints": list(etcd_endpoints)}
    else:
        lease_dir.mkdir(parents=True, exist_ok=True)
        lease = {"lease": "directory", "lease_dir": str(lease_dir)}
    if not secret_file.exists():
        descriptor = os.open(secret_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(_SECRET_SIZE))
    return {
        "nodes": [f"{name}={node.replication}" for name, node in nodes.items()],
        "api": [f"{name}={node.api}" for name, node in nodes.items()],
        "admin": [f"{name}={node.admin}" for name, node in nodes.items()],
        "secret_file": str(secret_file),
        **lease,
        "profile": "local",
    }


def member_settings(
    service: str, cluster: Mapping[str, object]
) -> dict[str, Mapping[str, object] | str]:
    """Return the settings that a service needs because its node is a member of a group.

    cluster: the [cluster] table of the node, with its name under ``node``.
    """
    settings: dict[str, Mapping[str, object] | str] = {"store": {"visible_after": "confirmed"}}
    if service != "reput":  # reput needs no other setting: it follows the offsets that ha publishes
        settings["cluster"] = cluster
    if service == "ha":  # `tidemark cluster` runs without the node's environment
        settings["commands"] = "port"
    return settings
