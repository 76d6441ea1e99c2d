"""A configured node of a group, and where it is reached. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Node(NamedTuple):
    """One configured replica and where it is reached; its ordinal is its place in the list."""

    name: str
    host: str
    """Of replication."""
    port: int
    api: str
    """URL that clients use, e.g. ``http://tidemark-0.tidemark:8080``."""
    admin: str
    """URL of ha's admin port, for the ``tidemark cluster`` commands."""
