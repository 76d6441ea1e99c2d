"""The lease object as a value (docs/replication.md, the lease). Pure.

Lock, epoch and in-sync set are one object, so that one compare-and-set covers all three. A master
that lost the lock cannot change the set, and a candidate cannot act on a set that changed
meanwhile.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from msgspec import Meta

from shared.cluster.nodes import Node
from tidemark.offsets import Epoch

# ``wire.payloads`` refuses what a peer sends in another form.
NodeName = Annotated[str, Meta(max_length=255)]
Incarnation = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
ProcessId = Annotated[str, Meta(pattern=r"\A[0-9a-f]{16}\Z")]


class Member(NamedTuple):
    """A replica with its volume: a replaced volume is another member."""

    node: NodeName
    incarnation: Incarnation
    """32 hex digits, generated when the volume was first initialised."""


class Holder(NamedTuple):
    """One start of ha on one volume."""

    node: NodeName
    incarnation: Incarnation
    process: ProcessId
    """16 hex digits, generated at each start."""

    @property
    def member(self) -> Member:
        """The replica of this holder."""
        return Member(self.node, self.incarnation)


class Membership(NamedTuple):
    """The nodes of the group."""

    version: int
    """Raised by every change of an operator; 0: as configured, and not in the lease."""
    nodes: tuple[Node, ...]


class Lease(NamedTuple):
    """Content of the object."""

    holder: Holder | None
    """None: released."""
    epoch: Epoch
    in_sync: tuple[Member, ...]
    """Sorted; only these may become master."""
    in_sync_version: int
    """Raised by every change of in_sync."""
    min_in_sync: int
    replicas: tuple[str, ...]
    """Names of the nodes, for people; ``members`` counts."""
    renewed: int = 0
    """Changes with every write, because an unchanged object would keep its version."""
    handover_to: str | None = None
    """The node that may take the lease at once."""
    master_address: str = ""
    """Address of the holder for clients."""
    paused: bool = False
    """Automatic failover is off: no node campaigns."""
    members: Membership | None = None
    """The nodes, once an operator has changed them; None: as configured."""


class Stored(NamedTuple):
    """The object as it was found."""

    lease: Lease
    version: str
    """Opaque; a write names the one that it replaces."""
    uid: str
    """Id of this object: one that was deleted and created again has another."""
