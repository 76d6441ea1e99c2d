"""The lease object as a value (docs/replication.md, the lease). Pure.

Lock, epoch and in-sync set live in one object on purpose: one compare-and-set covers all three, so
a master that lost the lock cannot change the set, and a candidate cannot act on a set that changed
under it.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemark.offsets import Epoch


class Member(NamedTuple):
    """A replica with the volume it has: a replaced volume is another member."""

    node: str
    incarnation: str
    """32 hex digits, made when the volume was first initialised."""


class Holder(NamedTuple):
    """One start of ha on one volume."""

    node: str
    incarnation: str
    process: str
    """16 hex digits, made at each start."""

    @property
    def member(self) -> Member:
        """The replica it is."""
        return Member(self.node, self.incarnation)


class Lease(NamedTuple):
    """What the object says."""

    holder: Holder | None
    """None: released."""
    epoch: Epoch
    in_sync: tuple[Member, ...]
    """Sorted; only these may become master."""
    in_sync_version: int
    """Raised by every change of in_sync."""
    min_in_sync: int
    replicas: tuple[str, ...]
    """Configured nodes, as recorded when the group was made."""
    renewed: int = 0
    """Changes with every write: one that changes nothing would not raise the version."""
    handover_to: str | None = None
    """The node that may take the lease at once."""
    master_address: str = ""
    """Where clients reach the holder."""
    paused: bool = False
    """No automatic failover: nobody campaigns."""


class Stored(NamedTuple):
    """The object as it was found."""

    lease: Lease
    version: str
    """Opaque; a write names the one that it replaces."""
    uid: str
    """Of this object: one that was deleted and made again has another."""
