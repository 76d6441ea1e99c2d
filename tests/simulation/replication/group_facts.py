"""What the world has done to a group, and names of its nodes: the base of all judges."""

from __future__ import annotations

from collections.abc import Callable

from services.ha.lease.value import Lease, Member
from shared.cluster.time_rules import LOCAL
from tests.simulation.replication.machine import Machine


class GroupFacts:
    """Facts that the judges need and no node can read."""

    def __init__(self, nodes: Callable[[], list[Machine]]) -> None:
        self._nodes = nodes
        self.published: tuple[Member, ...] = ()
        """The in-sync set of the lease; the last one while the object is missing."""
        self.possible_leases: Callable[[], list[Lease]] = list
        """Returns the contents that the lease may have after a write that is under way."""
        self.damaged: set[str] = set()
        """Nodes whose log has a flipped bit."""
        self.corrupted: set[str] = set()
        """Nodes that received corrupted log bytes."""
        self.lost_queues: set[str] = set()
        """Nodes whose queue files were removed. Their queues are short until they are rebuilt."""
        self.unreadable: set[str] = set()
        """Nodes whose broker cannot read its state."""
        self.foreign_stores: set[str] = set()
        """Nodes whose store belongs to no group and waits for an admin command."""
        self.replaced: set[str] = set()
        """Nodes whose volume was replaced. They may be copied anew."""
        self.is_forced = False
        """Whether an operator forces a node to be the only member of the set."""
        self.is_restored = False
        """Whether an operator replaces the lease by an older one."""
        self.clocks_wrong = False
        """Whether clocks were set wrong on purpose. Reads may be stale then, nothing else may
        fail."""
        self.large_share: float | None = None
        """Share of large messages among the sends; None for the usual share."""
        self.late_topics: list[str] = []
        """Additional topics that producers send to."""
        self.producers_paused = False
        """Whether producers are paused."""
        self.times = LOCAL
        self.min_in_sync = 1
        """Members that an acknowledgement needs."""
        self._serial = 0

    def _now_us(self) -> int:
        return self._nodes()[0].timeline.now_us

    def others(self, machine: Machine) -> list[Machine]:
        """All other nodes."""
        return [node for node in self._nodes() if node is not machine]

    def node(self, name: str) -> Machine:
        """The node of that name."""
        return next(node for node in self._nodes() if node.name == name)

    def next_serial(self) -> int:
        """Return a number that no other message has."""
        self._serial += 1
        return self._serial
