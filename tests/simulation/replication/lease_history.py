"""Judges of the lease: how it changes, who holds it in which epoch, and who acts in that epoch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from services.ha.lease.value import Holder, Lease, Member, Stored
from shared.cluster.nodes import Node
from tests.simulation.replication.confirmed_log import ConfirmedLog
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.process import Process
from tests.simulation.replication.violation import Violation
from tidemark.formats.checkpoint import Slot

CONTENTS_KEPT: Final = 256
CLOCK_SLACK_MS: Final = 1
CLOCK_DRIFT_MAX: Final = 0.05
STATUS_US: Final = 500_000
"""A node knows the promises of the nodes that answer it after this time."""
SILENT_MS_MAX: Final = 1_700
"""A broker counts as silent after this time, and no earlier write of the lease is repeated."""


class LeaseHistory(ConfirmedLog):
    """The changes of the lease, and which node acted in which epoch."""

    def __init__(self, nodes: Callable[[], list[Machine]]) -> None:
        super().__init__(nodes)
        self.epoch = 0
        """The largest epoch that the lease ever had."""
        self.epochs_count = 0
        self.deleted = False
        """Whether the lease object was ever deleted."""
        self.went_back = False
        """Whether the object is older than its newest content: a late request recreated it."""
        self._newest = (0, 0)
        self.sets: dict[tuple[int, int], list[tuple[Member, ...]]] = {}
        """In-sync sets that the lease had, by epoch and version; more than one if it went back."""
        self.holder: Holder | None = None
        self.configured: tuple[Node, ...] = ()
        """The nodes with which the group began."""
        self.used_nodes: dict[Member, int] = {}
        """The latest version of the nodes that each member has used."""
        self.member_us: dict[Member, int] = {}
        """When each member left the set, or when the lease was last written with that member."""
        self._sent_ms: dict[int, tuple[Process, int]] = {}
        """For each write of the lease: the process that sent it, and when by that node's clock."""
        self._applied_ms: dict[Process, int] = {}
        """For each start of ha: when it sent the write that last made it the holder."""
        self.applied_us = 0
        """When the lease was last written."""
        self.gap_us = 0
        """Time between the last two writes of the lease."""
        self.released_us = 0
        """When the lease was last released."""
        self.campaign_now_us: dict[str, int] = {}
        """When each node last received CAMPAIGN_NOW."""
        self._contents: deque[tuple[int, Lease | None]] = deque([(0, None)], CONTENTS_KEPT)
        """The last contents of the lease and since when it had them, oldest first."""
        self.won_us = 0
        """When the largest epoch was acquired."""
        self._served: set[int] = set()
        self._promised: dict[tuple[Member, int], int] = {}
        """When each member first promised each epoch."""
        self._won: dict[int, Holder] = {}
        self._acted: dict[int, Holder] = {}
        self._boots: dict[int, tuple[int, int]] = {}

    def lease_changed(self, before: Stored | None, now: Stored | None) -> None:
        """Check a write, creation or deletion of the lease object."""
        self._contents.append((self._now_us(), None if now is None else now.lease))
        if now is None:
            self.deleted = True
            return
        lease = now.lease
        # Also for a lease that went back: nodes that have not read a newer one use it.
        for member in (*self.published, *(before.lease.in_sync if before else ()), *lease.in_sync):
            self.member_us[member] = self._now_us()
        shown = (int(lease.epoch), lease.in_sync_version)
        sets = self.sets.setdefault(shown, [])
        if lease.in_sync not in sets:
            sets.append(lease.in_sync)
        is_another = shown == self._newest and lease.in_sync != self.published
        # A first lease that was deleted before its holder acted may be created again.
        is_founded_again = self.deleted and lease.epoch not in self._acted
        self.went_back = shown < self._newest or (is_another and not is_founded_again)
        if self.went_back and not (self.deleted or self.is_restored):
            raise Violation(f"the lease goes back from {self._newest} to {shown}")
        if self.went_back:
            return  # No node may act on this lease: its holder never acquired the epoch.
        is_same_version = lease.in_sync_version <= self._newest[1] and bool(self.published)
        if is_same_version and lease.in_sync != self.published and not self.deleted:
            raise Violation(
                f"the in-sync set {self.published} becomes {lease.in_sync}, and its version "
                f"{self._newest[1]} becomes {lease.in_sync_version}"
            )
        least = min(lease.min_in_sync, 0 if before is None else len(before.lease.in_sync))
        if len(lease.in_sync) < least and not self.is_forced:
            raise Violation(f"the in-sync set shrinks to {len(lease.in_sync)}, below the minimum")
        if before is not None and lease.epoch == before.lease.epoch:
            for member in {*lease.in_sync} - {*before.lease.in_sync}:
                joined = self.node(member.node)
                known = [entry.epoch for entry in joined.table]
                if joined.is_being_emptied or joined.incarnation != member.incarnation:
                    # The node had the epoch. Acknowledgements wait for the volume that it had.
                    continue
                if lease.epoch not in known and not self._is_level(lease, joined):
                    raise Violation(
                        f"{member.node} joins the set, and its table has no epoch {lease.epoch}"
                    )
        self._newest = shown
        self._check_nodes(before.lease if before is not None else None, lease)
        if before is not None:
            self._must_have_run_out(before.lease, lease)
            self._must_not_be_paused(before.lease, lease)
        self.gap_us, self.applied_us = self.unwritten_us, self._now_us()
        if before is not None and before.lease.holder is not None and lease.holder is None:
            self.released_us = self._now_us()
        nodes = [member.node for member in lease.in_sync]
        if len(set(nodes)) != len(nodes):
            raise Violation(f"two incarnations of one node are in the in-sync set: {nodes}")
        if lease.holder is not None:
            if lease.renewed in self._sent_ms:
                sender, sent_ms = self._sent_ms[lease.renewed]
                self._applied_ms[sender] = sent_ms
            if lease.holder.member not in lease.in_sync:
                raise Violation(f"{lease.holder.node} holds the lease and is not in the set")
            self._note_holder(lease.epoch, lease.holder)
        self.published, self.holder = lease.in_sync, lease.holder
        self.check_members(f"in version {now.version} of the lease, epoch {lease.epoch}")

    def _check_nodes(self, before: Lease | None, now: Lease) -> None:
        """Check that the nodes change one at a time, by the master, with a majority of the set."""
        nodes = () if now.members is None else now.members.nodes
        for member in now.in_sync:
            if nodes and member.node not in {node.name for node in nodes}:
                raise Violation(f"{member.node} is in the in-sync set and no node of the group")
        if before is None or self.went_back or now.members == before.members:
            return
        version = 0 if before.members is None else before.members.version
        if now.members is None or now.members.version != version + 1:
            raise Violation(f"the nodes {before.members} become {now.members}")
        earlier = {*(before.members.nodes if before.members else self.configured)}
        if len({*nodes} ^ earlier) != 1:
            raise Violation(f"more or less than one node changes from {before} to {now}")
        if now.holder is None or now.holder != before.holder:
            raise Violation(f"the nodes change, and not by the master: {before}, {now}")
        changed = {node.name for node in {*nodes} ^ earlier}
        kept = tuple(member for member in before.in_sync if member.node not in changed)
        removes = len(nodes) < len(earlier)
        if now.in_sync != (kept if removes else before.in_sync):
            raise Violation(f"with the nodes the in-sync set changes from {before} to {now}")
        own = now.holder.member
        agree = [m for m in before.in_sync if m == own or self.used_nodes.get(m, 0) >= version]
        if 2 * len(agree) <= len(before.in_sync):
            raise Violation(
                f"{own.node} changes the nodes of version {version}, which only {agree} of "
                f"{before.in_sync} use"
            )

    def leases_since(self, since_us: int) -> list[Lease]:
        """Contents that the lease has had since that time."""
        begun = [at for at, (us, _) in enumerate(self._contents) if us <= since_us]
        contents = list(self._contents)[begun[-1] if begun else 0 :]
        return [lease for _, lease in contents if lease is not None]

    def _is_level(self, lease: Lease, joined: Machine) -> bool:
        """Whether no record of the holder's epoch is confirmed, and the joining node has all before
        it."""
        assert lease.holder is not None
        holder = self.node(lease.holder.member.node)
        epoch, start = holder.table[-1]
        return epoch == lease.epoch and joined.end >= start >= holder.slot(Slot.CONFIRM)

    def _must_have_run_out(self, before: Lease, now: Lease) -> None:
        """Check that the lease of another volume has run out before a node takes it."""
        if before.holder is None or now.holder is None or now.epoch == before.epoch:
            return
        left = [member for member in now.in_sync if member != before.holder.member]
        is_another = before.holder.member != now.holder.member
        if is_another and before.holder.member in now.in_sync and len(left) >= now.min_in_sync:
            raise Violation(
                f"{now.holder.node} takes the lease from {before.holder.node} but keeps it in the "
                f"set; the minimum is {now.min_in_sync} of {len(now.in_sync)}"
            )
        kept_ms = (self._now_us() - self.applied_us) // 1000
        in_time = kept_ms * (1 + CLOCK_DRIFT_MAX) < self.times.lease_ms
        if in_time and before.holder.member != now.holder.member and not self.clocks_wrong:
            raise Violation(
                f"{now.holder.node} takes the lease {kept_ms} ms after {before.holder.node} had "
                f"renewed it for {self.times.lease_ms}"
            )

    def _must_not_be_paused(self, before: Lease, now: Lease) -> None:
        """Check that no node takes an expired lease while automatic failover is paused."""
        if not before.paused or now.holder is None or now.epoch == before.epoch:
            return
        is_own = before.holder is not None and before.holder.member == now.holder.member
        is_given = before.holder is None and before.handover_to == now.holder.node
        if not (is_own or is_given):
            raise Violation(
                f"{now.holder.node} takes the lease of {before.holder and before.holder.node}; "
                "automatic failover is paused"
            )

    def acts(self, epoch: int, holder: Holder, how: str) -> None:
        """Check that only the winner of an epoch acts as its master (E), and has promised it
        durably."""
        if self._won.get(epoch) != holder:
            raise Violation(f"E: {holder.node} {how} in epoch {epoch}, which it never acquired")
        if self._acted.setdefault(epoch, holder) != holder:
            raise Violation(f"E: {holder.node} {how} in epoch {epoch}, in which another node acted")
        promised = self.node(holder.node).durably_promised
        if promised != epoch:
            raise Violation(
                f"{holder.node} {how} in epoch {epoch}; the promise on its disk is {promised}"
            )

    def granted(self, epoch: int, holder: Holder, boot: tuple[int, int]) -> None:
        """Check that a master grants its epoch only once. boot: boot id of its node."""
        self.acts(epoch, holder, "grants")
        if epoch in self._boots:
            raise Violation(f"{holder.node} grants epoch {epoch} a second time")
        self._boots[epoch] = boot

    def serves(self, node: Machine, epoch: int, boot: tuple[int, int]) -> None:
        """Check that the epoch that a broker begins to serve was granted to it in this boot (E)."""
        holder = self._won.get(epoch)
        if holder is None or holder.node != node.name:
            raise Violation(f"E: the broker of {node.name} serves epoch {epoch} of {holder}")
        if self._boots.get(epoch) != boot:
            raise Violation(
                f"E: the broker of {node.name} serves epoch {epoch}, granted before the machine "
                "was "
                "started again"
            )
        self._served.add(epoch)

    def promised(self, node: Machine, epoch: int) -> None:
        """Check that a promised epoch was acquired: a replica that promises more cannot follow the
        master."""
        if epoch > self.epoch and not self.deleted:
            raise Violation(f"{node.name} promises epoch {epoch}, which no node has acquired")

    def _note_holder(self, epoch: int, holder: Holder) -> None:
        won = self._won.setdefault(epoch, holder)
        if won != holder:
            if epoch in self._acted or not self.deleted:
                raise Violation(f"E: epoch {epoch} was acquired by {won.node} and {holder.node}")
            # The epoch was won twice, without harm: no term used it before the object was deleted.
            self._won[epoch] = holder
        if epoch > self.epoch:
            self.epoch, self.won_us = epoch, self._now_us()
            self.epochs_count += 1

    def has_led(self, node: str, epoch: object) -> bool:
        """Whether that node has acquired that epoch."""
        return isinstance(epoch, int) and epoch in self._won and self._won[epoch].node == node

    @property
    def unwritten_us(self) -> int:
        """Time since the lease was last written."""
        return self._now_us() - self.applied_us

    def writes_lease(
        self,
        machine: Machine,
        before: Lease | None,
        wanted: Lease,
        *,
        renews: bool = False,
        switches: bool = False,
    ) -> None:
        """Check a write of the lease, or its creation. switches: a planned switch has fixed the
        log's end."""
        self._sent_ms[wanted.renewed] = machine.processes["ha"], machine.boot_ms()
        if wanted.holder is None and (before is None or wanted.epoch > before.epoch):
            self._must_be_a_new_epoch(machine, wanted.epoch)
        if before is None:
            self._must_be_promised_by_all(machine, wanted)
        elif switches and wanted.holder is None and wanted.handover_to:
            target = self.node(wanted.handover_to)
            # A node with another disk since its acknowledgement is another member, and cannot take
            # over.
            is_member = Member(target.name, target.incarnation) in wanted.in_sync
            is_member = is_member and not self.damaged & {machine.name, target.name}
            first = max(machine.begins_at, target.begins_at)
            if is_member and target.durable_log(first, machine.end) != machine.log(
                first, machine.end
            ):
                raise Violation(
                    f"{machine.name} gives the lease to {target.name}, whose disk lacks some of "
                    f"the log's {machine.end} bytes"
                )
        if renews:
            self._must_not_be_silent(machine)

    def _must_not_be_silent(self, machine: Machine) -> None:
        """Check that the broker of a node that renews is alive, unless the node itself was
        paused."""
        silent_ms = machine.boot_ms() - machine.slot(Slot.BROKER_HEARTBEAT_MS)
        ran_ms = (self._now_us() - machine.processes["ha"].resumed_us) // 1000
        if min(silent_ms, ran_ms) > SILENT_MS_MAX and not self.clocks_wrong:
            raise Violation(
                f"{machine.name} renews the lease, but its broker is silent for {silent_ms} ms"
            )

    def _must_be_promised_by_all(self, machine: Machine, wanted: Lease) -> None:
        """Check that all members have promised the epoch of a recreated lease, so that no other
        node has won it."""
        if wanted.holder is None or not self.epoch:
            return
        for member in wanted.in_sync:
            if member != wanted.holder.member and not any(
                who == member and epoch >= wanted.epoch for who, epoch in self._promised
            ):
                raise Violation(
                    f"{machine.name} makes the lease again with epoch {wanted.epoch}, which "
                    f"{member.node} of its set has not promised"
                )

    def _must_be_a_new_epoch(self, machine: Machine, epoch: int) -> None:
        """Check that no node has promised or used the epoch of a lease that an operator creates
        again: it would refuse that epoch, or two terms would have it."""
        for (member, promised), us in self._promised.items():
            is_known = self._now_us() - us > STATUS_US
            node = self.node(member.node)
            # A power cut may have taken back a promise that was not on the disk yet.
            is_there = node.incarnation == member.incarnation and node.durably_promised >= promised
            if promised >= epoch and is_known and is_there:
                raise Violation(
                    f"{machine.name} makes the lease again with epoch {epoch}, but "
                    f"{member.node} has promised {promised}"
                )

    def _must_be_within_the_lease(
        self, machine: Machine, process: Process, deadline_ms: int
    ) -> None:
        """Check that the deadline of the holder is before the end of the lease, counted from its
        last write."""
        limit_ms = self._applied_ms.get(process, 0) + self.times.lease_ms
        if deadline_ms > limit_ms - self.times.margin_ms + CLOCK_SLACK_MS and not self.clocks_wrong:
            raise Violation(
                f"{machine.name} may answer until {deadline_ms}; its lease ends at {limit_ms}"
            )

    def _must_be_in_the_set(self, machine: Machine, size: int) -> None:
        """Check that the size published for the broker does not exceed the published set."""
        is_holder = self.holder is not None and self.holder.node == machine.name
        if is_holder and size > len(self.published) and not self.went_back:
            raise Violation(
                f"{machine.name} publishes IN_SYNC_SIZE {size}; the set has {len(self.published)}"
            )
