"""Versions of the replication protocol, and the choice between two nodes. Pure.

A node supports every version from ``lowest`` to ``highest``. Two nodes use the highest that both
support, so that nodes of releases N and N+1 work together while a group is upgraded node by node.

- 1: the protocol of docs/replication.md.
- 2: STATUS carries its send time by the sender's clock; STATUS_OK repeats it and carries the wall
  clock of the answering node, for ``peer_clock``. ACK says whether its sender is about to end.

A new version is added here and in ``payloads``, which encodes for each peer what its version knows.
The oldest one is removed when no release that is still in use depends on it. Step before: a
handshake. Step after: every frame of that link.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Versions(NamedTuple):
    """The versions that one node supports."""

    lowest: int
    highest: int

    def __str__(self) -> str:
        return f"{self.lowest} to {self.highest}"


SPOKEN: Final = Versions(1, 2)
"""The versions of this code."""
WITH_CLOCKS: Final = 2
"""From this version on STATUS and STATUS_OK carry times."""
WITH_LEAVING: Final = 2
"""From this version on ACK says whether its sender is leaving."""


def common(own: Versions, other: Versions) -> int | None:
    """Return the version that two nodes use; None: they have none in common."""
    version = min(own.highest, other.highest)
    return version if version >= max(own.lowest, other.lowest) else None
