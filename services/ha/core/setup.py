"""Input of a replica at its start: settings, and what recovery found on its disk. Pure.

Step before: ``replica_store`` recovers the log and reads ``ha/``. Step after: ``replica.Replica``.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from services.ha.lease.value import Holder, Lease, Member
from shared.cluster.nodes import Node
from shared.cluster.time_rules import TimeRules
from tidemark.formats.epochs import EpochStart


class Setup(NamedTuple):
    """Settings, equal on every node except for ``own`` and ``process``."""

    cluster: str
    group: str
    own: Node
    """This node."""
    nodes: tuple[Node, ...]
    """All configured nodes in ordinal order, this one included; the first one bootstraps the
    group. ``ReplicaContext.members`` has the present ones."""
    min_in_sync: int
    """min_in_sync of the first lease of a group."""
    times: TimeRules
    file_size: int
    """Size of a commit log file [bytes]; equal on every node."""
    process: str
    """Id of this start of ha: 16 hex digits."""
    boot: tuple[int, int]
    """Id of this boot of the machine, as two halves, like on the page."""
    sets_min_in_sync: bool = True
    """Whether ``min_in_sync`` is configured and replaces the lease's; else it is a default."""
    lease_size_max: int | None = None
    """Bytes of a lease that its store takes; None: enough for any."""

    def least_in_sync(self, lease: Lease) -> int:
        """Return ``min_in_sync`` of the next term.

        A group that was founded with a default keeps it: one more node must not make its sends wait
        for two copies, and one node less must not weaken the promise.
        """
        if self.sets_min_in_sync:
            return self.min_in_sync
        nodes = self.nodes if lease.members is None else lease.members.nodes
        return min(lease.min_in_sync, len(nodes))


class Halt(NamedTuple):
    """Why nothing may be done without an operator."""

    code: str
    detail: str

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"


class Found(NamedTuple):
    """State of the volume after recovery: the append lock is held, everything is on disk."""

    incarnation: str
    """From ha/identity; a new one if there was none."""
    promised: int
    """From ha/promise; 0: nothing was promised."""
    seen_epoch: int
    seen_version: int
    """From ha/promise: the largest (epoch, in_sync_version) seen in the lease."""
    table: tuple[EpochStart, ...]
    """Oldest first, without entries above ``end``."""
    first_offset: int
    """First offset of the log."""
    end: int
    """End of the log; everything below is on disk."""
    confirm: int
    """Nothing below may be cut: the largest of ha/confirm, the page's CONFIRM of the same boot and
    DISPATCHED_DURABLE; at most ``end`` unless halted."""
    initialised: bool
    """Whether the volume belongs to a group: set durably by the first PersistPromise, never
    unset."""
    holds_records: bool
    """Whether the log has at least one record."""
    halted: Halt | None = None
    damage: str = ""
    """Damage of the log that an earlier start found and that is still there; empty: none."""

    def holder(self, setup: Setup) -> Holder:
        """Return this start of ha on this volume as a holder of the lease."""
        return Holder(setup.own.name, self.incarnation, setup.process)

    def member(self, setup: Setup) -> Member:
        """Return this replica as a member of the in-sync set."""
        return Member(setup.own.name, self.incarnation)


class LogBytes(Protocol):
    """Read access to the replica's own log."""

    def crc_before(self, end: int, size: int) -> int | None:
        """Return the CRC-32 of the log's bytes [end − size, end); None if some are missing."""
        ...
