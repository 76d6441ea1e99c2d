"""Bounds of the table, so that nobody can fill the memory or slow other broker groups. Pure.

At a bound the registration that would exceed it is refused by name; nothing else is dropped for it.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemark.errors import NamesLimit


class TableBounds(NamedTuple):
    """The bounds; their defaults are in ``config``."""

    groups_max: int
    nodes_max: int
    """Nodes of one broker group."""
    topics_max: int
    """Topics of one broker group."""
    entries_max: int
    """Topics of all broker groups; a topic counts once in each broker group that has it."""


def check_bound(what: str, wanted: int, limit: int, setting: str, **facts: object) -> None:
    """Raise NamesLimit if wanted exceeds the limit. setting: the one to raise."""
    if wanted > limit:
        raise NamesLimit(
            f"{what}: {wanted} would be more than {limit}. Nothing was changed; all other broker "
            "groups are served as before.",
            f"Remove what is not needed, or raise {setting} of the name services.",
            limit=limit,
            wanted=wanted,
            **facts,
        )
