"""Versions of the replication protocol, and which of them two nodes speak with each other. Pure.

A node speaks every version from ``lowest`` to ``highest``; two nodes speak the highest that both
know, so that nodes of releases N and N+1 work together while a group is upgraded node by node.
What a version says that the one before did not:

- 1: the protocol of docs/replication.md.
- 2: STATUS says when it was asked, by the asker's clock; STATUS_OK repeats that and says what the
  wall clock of the answering node is. ``peer_clock`` reckons with it. ACK says whether its sender
  is about to end.

A new version is added here and in ``payloads``, which writes to each peer what its version knows;
the oldest goes when no release that is still in use speaks it only. Step before: a handshake. Step
after: every frame of that link.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Versions(NamedTuple):
    """What one node speaks."""

    lowest: int
    highest: int

    def __str__(self) -> str:
        return f"{self.lowest} to {self.highest}"


SPOKEN: Final = Versions(1, 2)
"""Of this code."""
WITH_CLOCKS: Final = 2
"""From here on STATUS and STATUS_OK carry times."""
WITH_LEAVING: Final = 2
"""From here on ACK says whether its sender is leaving."""


def common(own: Versions, other: Versions) -> int | None:
    """The version to be spoken between two nodes; None: there is none."""
    version = min(own.highest, other.highest)
    return version if version >= max(own.lowest, other.lowest) else None
