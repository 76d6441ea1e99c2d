"""Versions of the replication protocol, and the choice between two nodes. Pure.

A node supports every version from ``lowest`` to ``highest``. Two nodes use the highest that both
support, so that nodes of releases N and N+1 work together while a group is upgraded node by node.

- 2: the last release. All payloads are binary (``version_2``).
- 3: all payloads but those of APPEND and ACK are maps of msgpack (``payloads``).

A release speaks its own version and that of the release before it. Step before: a handshake. Step
after: every frame of that link.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Versions(NamedTuple):
    """The versions that one node supports."""

    lowest: int
    highest: int

    def __str__(self) -> str:
        return f"{self.lowest} to {self.highest}"


SPOKEN: Final = Versions(2, 3)
"""The versions of this code."""
WITH_MSGPACK: Final = 3
"""From this version on payloads are maps of msgpack, except those of APPEND and ACK."""


def common(own: Versions, other: Versions) -> int | None:
    """Return the version that two nodes use; None: they have none in common."""
    version = min(own.highest, other.highest)
    return version if version >= max(own.lowest, other.lowest) else None
