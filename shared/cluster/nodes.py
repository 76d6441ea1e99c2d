"""A node of a group and its addresses. Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

NODES_MAX: Final = 9
HOST: Final = re.compile(r"[^\s\[\]]{1,255}")


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
    host = host.strip("[]")
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65_536
    if not is_port or not _is_host(host):
        raise ValueError(f"{name}={address!r} is not name=host:port")
    return Node(name, host, int(port), api, admin)


def _is_host(host: str) -> bool:
    """Return whether host can be looked up, as a name or as an address."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return HOST.fullmatch(host) is not None
