"""A configured node of a group and its addresses. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Node(NamedTuple):
    """One configured replica and its addresses; its ordinal is its position in the list."""

    name: str
    host: str
    """Host of the replication port."""
    port: int
    api: str
    """URL for clients, e.g. ``http://tidemark-0.tidemark:8080``."""
    admin: str
    """URL of ha's admin port, for the ``tidemark cluster`` commands."""
