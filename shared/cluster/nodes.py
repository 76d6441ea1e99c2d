"""A node of a group and its addresses. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

NODES_MAX: Final = 9


class Node(NamedTuple):
    """One replica and its addresses; its ordinal is its position in the list."""

    name: str
    host: str
    """Host of the replication port."""
    port: int
    api: str
    """URL for clients, e.g. ``http://tidemark-0.tidemark:8080``."""
    admin: str
    """URL of ha's admin port, for the ``tidemark cluster`` commands."""


def parse_node(name: str, address: str, api: str, admin: str) -> Node:
    """Return the node with the replication address ``host:port``. Raises ValueError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ValueError(f"{name}={address} is not name=host:port")
    return Node(name, host.strip("[]"), int(port), api, admin)
