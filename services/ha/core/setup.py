"""What a replica is told at its start: its settings, and what was found on its disk. Pure.

Step before: ``opening`` recovers the log and reads ``ha/``. Step after: ``replica.Replica``.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from services.ha.lease.value import Holder, Lease, Member
from shared.cluster.nodes import Node
from shared.cluster.time_rules import TimeRules
from tidemark.formats.epochs import EpochStart


class Setup(NamedTuple):
    """Settings, the same on every node but for ``own`` and ``process``."""

    cluster: str
    group: str
    own: Node
    """This node."""
    nodes: tuple[Node, ...]
    """All configured ones in ordinal order, this one included; the first one bootstraps."""
    min_in_sync: int
    """What a group without a lease begins with."""
    times: TimeRules
    file_size: int
    """Of a commit log file [bytes]; equal everywhere."""
    process: str
    """Of this start of ha: 16 hex digits."""
    boot: tuple[int, int]
    """Of this boot of the machine: the halves of its id, as the page holds them."""
    sets_min_in_sync: bool = True
    """Whether ``min_in_sync`` is a setting, which replaces what a lease says; else the default."""

    def least_in_sync(self, lease: Lease) -> int:
        """``min_in_sync`` of the next term.

        A group that was founded with a default keeps it: one more node in the settings must not
        make its sends wait for two copies, nor one node less weaken what was promised.
        """
        return (
            self.min_in_sync if self.sets_min_in_sync else min(lease.min_in_sync, len(self.nodes))
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The configured nodes' names in ordinal order."""
        return tuple(node.name for node in self.nodes)


class Halt(NamedTuple):
    """Why nothing may be done without an operator."""

    code: str
    detail: str

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"


class Found(NamedTuple):
    """What the volume holds, as recovery left it: byte 0 is held, everything is on disk."""

    incarnation: str
    """Of ha/identity; made now, if there was none."""
    promised: int
    """ha/promise; 0: never promised."""
    seen_epoch: int
    seen_version: int
    """ha/promise: the largest (epoch, in_sync_version) seen in the lease."""
    table: tuple[EpochStart, ...]
    """Oldest first; entries above ``end`` are dropped already."""
    first_offset: int
    """Where the log begins."""
    end: int
    """Of the log; all of it is on disk."""
    confirm: int
    """Nothing below may be cut: the largest of ha/confirm, the page's CONFIRM of the same boot,
    DISPATCHED_DURABLE; at most ``end`` unless halted."""
    initialised: bool
    """The marker of a group: set durably by the first PersistPromise, and never unset."""
    holds_records: bool
    """The log has at least one record."""
    halted: Halt | None = None
    damage: str = ""
    """What an earlier start found damaged in the log, and is still; empty: nothing."""

    def holder(self, setup: Setup) -> Holder:
        """This start of ha on this volume, as the lease names it."""
        return Holder(setup.own.name, self.incarnation, setup.process)

    def member(self, setup: Setup) -> Member:
        """This replica, as the in-sync set names it."""
        return Member(setup.own.name, self.incarnation)


class LogBytes(Protocol):
    """The replica's own log, read only."""

    def crc_before(self, end: int, size: int) -> int | None:
        """CRC-32 of the log's bytes [end − size, end); None if they are not all there."""
        ...
