"""What the simulation knows of the world outside: what was confirmed, and must never change.

Every move of a node's confirm offset counts as if all below it had been acknowledged and read, in
former masters, too, which is stricter than what the broker does. Letters are those of
``docs/replication.md``, what must hold. No node sees this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from services.ha.lease.value import Holder, Member, Stored
from tests.simulation.replication.records import Record
from tests.simulation.replication.volume import Volume
from tidemark.formats.checkpoint import NodeRole


class Violation(AssertionError):
    """Something that must hold does not. The message says what; the runner adds the seed."""


class Node(Protocol):
    """A node as the history looks at it."""

    name: str
    volume: Volume


class Acked(NamedTuple):
    """A send that was answered with success."""

    record: Record
    copies: int
    at_us: int


class History:
    """The confirmed log, the lease's past, and who acted in which epoch."""

    def __init__(self, nodes: Callable[[], list[Node]]) -> None:
        self._nodes = nodes
        self.confirmed = bytearray()
        """The one history of the group."""
        self.acked: list[Acked] = []
        self.reads_count = 0
        self.epoch = 0
        """The largest that the lease ever had."""
        self.deleted = False
        """The lease object was deleted at some time."""
        self.went_back = False
        """The object says less than it did: a late request made it anew after it was deleted."""
        self._newest = (0, 0)
        self.published: tuple[Member, ...] = ()
        """The in-sync set as the object says it, or said it last."""
        self.holder: Holder | None = None
        self.epochs_count = 0
        self.replaced: set[str] = set()
        """Nodes whose volume was replaced: they may be copied anew."""
        self.clocks_lie = False
        """Clocks were set wrong on purpose: reads may be stale then, and nothing else."""
        self._serial = 0
        self._won: dict[int, Holder] = {}
        self._acted: dict[int, Holder] = {}
        self._boots: dict[int, tuple[int, int]] = {}

    # -- the log ---------------------------------------------------------------------------

    def confirm_moved(self, node: Node, confirm: int) -> None:
        """B, D: a node says that its log up to confirm may be seen."""
        volume = node.volume
        if confirm > volume.durable:
            raise Violation(
                f"{node.name} confirms {confirm}; its disk is sure of {volume.durable} only"
            )
        common = min(confirm, len(self.confirmed))
        if volume.log[:common] != self.confirmed[:common]:
            raise Violation(
                f"B: {node.name} confirms another history up to {confirm}: "
                f"{_parting(volume.log, self.confirmed, common)}"
            )
        if confirm > common:
            self.confirmed += volume.log[common:confirm]
            self.check_members(f"when {node.name} confirmed {confirm}")

    def acknowledged(self, node: Node, record: Record, copies: int, at_us: int) -> None:
        """A send was answered: A, and as many copies as the answer says."""
        self._must_be_confirmed(record, f"A: {node.name} acknowledged")
        found = sum(
            other.volume.durable >= record.end
            and other.volume.log[record.start : record.end] == record.raw
            for other in self._nodes()
        ) + len(self.replaced)
        if found < copies:
            raise Violation(
                f"{node.name} answered that {copies} nodes have the record at {record.start}; "
                f"{found} have it"
            )
        self.acked.append(Acked(record, copies, at_us))

    def read(self, node: Node, record: Record) -> None:
        """A consumer was given a record: C."""
        self._must_be_confirmed(record, f"C: a consumer of {node.name} saw")
        self.reads_count += 1

    def read_at_master(self, node: Node, epoch: int, newest_before: int) -> None:
        """A master says that it may answer; newest_before: the lease's epoch when it was asked."""
        if epoch < newest_before and not self.clocks_lie:
            raise Violation(
                f"{node.name} answers reads as the master of epoch {epoch}, and epoch "
                f"{newest_before} was acquired before it looked"
            )

    def next_serial(self) -> int:
        """A number that no other record has."""
        self._serial += 1
        return self._serial

    def check_members(self, when: str) -> None:
        """A: each member of the published set has on disk all that was ever confirmed.

        So does whoever wins the lease, since only members can.
        """
        end = len(self.confirmed)
        for node in self._nodes():
            volume = node.volume
            if Member(node.name, volume.incarnation) not in self.published:
                continue
            if volume.durable < end:
                raise Violation(
                    f"A: {node.name} is in the in-sync set and has {volume.durable} of "
                    f"{end} confirmed bytes on disk {when}"
                )
            if volume.log[:end] != self.confirmed:
                raise Violation(
                    f"A: {node.name} is in the in-sync set with another history {when}: "
                    f"{_parting(volume.log, self.confirmed, end)}"
                )

    def check_own_confirm(self, node: Node) -> None:
        """D: what a node has noted as confirmed is in its log, and is the one history."""
        volume = node.volume
        confirm = volume.files.confirm
        if volume.end < confirm or volume.log[:confirm] != self.confirmed[:confirm]:
            raise Violation(f"D: {node.name} has noted {confirm} as confirmed and lacks some of it")

    def check_equal_histories(self) -> None:
        """F: where two logs have the same (epoch, start), they are the same as far as both go."""
        nodes = [node for node in self._nodes() if node.volume.files.intent is None]
        for index, one in enumerate(nodes):
            for other in nodes[index + 1 :]:
                _check_pair(one, other)

    # -- the lease -------------------------------------------------------------------------

    def lease_changed(self, before: Stored | None, now: Stored | None) -> None:
        """The object was written, made or deleted."""
        if now is None:
            self.deleted = True
            return
        lease = now.lease
        shown = (int(lease.epoch), lease.in_sync_version)
        self.went_back = shown < self._newest
        if self.went_back and not self.deleted:
            raise Violation(f"the lease goes back from {self._newest} to {shown}")
        if self.went_back:
            return  # believed by nobody: whoever acts on it never acquired anything
        self._newest = shown
        nodes = [member.node for member in lease.in_sync]
        if len(set(nodes)) != len(nodes):
            raise Violation(f"two incarnations of one node are in the in-sync set: {nodes}")
        if lease.holder is not None:
            if lease.holder.member not in lease.in_sync:
                raise Violation(f"{lease.holder.node} holds the lease and is not in the set")
            self._note_holder(lease.epoch, lease.holder)
        self.published, self.holder = lease.in_sync, lease.holder
        self.check_members(f"in version {now.version} of the lease, epoch {lease.epoch}")

    def acts(self, epoch: int, holder: Holder, how: str) -> None:
        """E: somebody does what only the master of an epoch may do."""
        if self._won.get(epoch) != holder:
            raise Violation(f"E: {holder.node} {how} in epoch {epoch}, which it never acquired")
        if self._acted.setdefault(epoch, holder) != holder:
            raise Violation(f"E: {holder.node} {how} in epoch {epoch}, in which another one acted")

    def granted(self, epoch: int, holder: Holder, boot: tuple[int, int]) -> None:
        """A master grants its epoch to its broker. boot: of its node."""
        self.acts(epoch, holder, "grants")
        self._boots[epoch] = boot

    def serves(self, node: Node, epoch: int, boot: tuple[int, int]) -> None:
        """E: a broker begins to append under an epoch, which was granted to it in this boot."""
        holder = self._won.get(epoch)
        if holder is None or holder.node != node.name:
            raise Violation(f"E: the broker of {node.name} serves epoch {epoch} of {holder}")
        if self._boots.get(epoch) != boot:
            raise Violation(
                f"E: the broker of {node.name} serves epoch {epoch}, of before the machine was "
                "started again"
            )

    def promised(self, node: Node, epoch: int) -> None:
        """Nobody promises an epoch that nobody acquired, or it is locked out of the living one."""
        if epoch > self.epoch and not self.deleted:
            raise Violation(f"{node.name} promises epoch {epoch}, and nobody has acquired it")

    def needs_help(self, node: Node, role: NodeRole, confirm: int) -> None:
        """Nothing was damaged: nobody halts, and nobody gives up what it knows to be confirmed.

        A node of which nothing was confirmed yet may be copied anew: what it has, its master lost
        before it was on any disk.
        """
        if role is NodeRole.HALTED or (confirm > 0 and node.name not in self.replaced):
            raise Violation(f"{node.name} is {role.name}, and nothing was damaged")

    # -- inside ----------------------------------------------------------------------------

    def _note_holder(self, epoch: int, holder: Holder) -> None:
        won = self._won.setdefault(epoch, holder)
        if won != holder:
            if epoch in self._acted or not self.deleted:
                raise Violation(f"E: epoch {epoch} was acquired by {won.node} and {holder.node}")
            # A number taken twice, harmlessly: nothing ever bore it before the object was deleted.
            self._won[epoch] = holder
        if epoch > self.epoch:
            self.epoch = epoch
            self.epochs_count += 1

    def _must_be_confirmed(self, record: Record, who: str) -> None:
        if self.confirmed[record.start : record.end] != record.raw:
            raise Violation(
                f"{who} record {record.serial} of epoch {record.epoch} at {record.start}, which "
                f"the confirmed history of {len(self.confirmed)} bytes does not have there"
            )


def _parting(one: bytearray, other: bytearray, end: int) -> str:
    at = next((at for at in range(end) if one[at : at + 1] != other[at : at + 1]), end)
    return f"they part at {at}"


def _check_pair(one: Node, other: Node) -> None:
    mine, theirs = one.volume, other.volume
    for table, size in ((mine.files.table, mine.end), (theirs.files.table, theirs.end)):
        if any(entry.start > size for entry in table[:-1]):
            return  # a start drops such entries; until then they say nothing
    ends = dict(zip(mine.files.table, [e.start for e in mine.files.table[1:]], strict=False))
    ends_there = dict(
        zip(theirs.files.table, [e.start for e in theirs.files.table[1:]], strict=False)
    )
    common = set(mine.files.table) & set(theirs.files.table)
    if not common:
        return
    newest = max(common)
    upto = min(ends.get(newest, mine.end), ends_there.get(newest, theirs.end), mine.end, theirs.end)
    if mine.log[:upto] != theirs.log[:upto]:
        raise Violation(
            f"F: {one.name} and {other.name} both have epoch {newest.epoch} from {newest.start}, "
            f"and differ below {upto}: {_parting(mine.log, theirs.log, upto)}"
        )
