"""The judge of one group: it checks what its nodes store, write, send and answer.

Each store to a node's page is checked before it becomes visible. The judge is built in layers: the
facts of the world (``group_facts``), the logs (``confirmed_log``), the lease (``lease_history``),
the answers to clients (``client_answers``), and here the steps of services. No node can read it.

Violations name these rules by their letters. A: an acknowledged record is confirmed, and every
member of the in-sync set has all confirmed bytes on its disk. B: a confirm offset covers durable
bytes only. C: consumers and queues see the confirmed log and nothing else. D: a confirm offset that
a node knows lies in its log. E: only the winner of an epoch acts as its master. F: where two logs
have an epoch with the same start, their bytes are equal.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from services.ha.lease.value import Member
from services.ha.wire.frames import Frame, FrameType
from services.ha.wire.payloads import Hello, HelloOk
from shared.files.store_dir import LockByte
from tests.simulation.replication import page_rules, redone
from tests.simulation.replication.client_answers import ClientAnswers
from tests.simulation.replication.confirmed_log import ACK_CHECKED_SIZE, must_be_durable
from tests.simulation.replication.known_marks import check_cut
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.process import Process
from tests.simulation.replication.violation import Violation
from tidemark.formats.checkpoint import NodeRole, Slot, Trouble
from tidemark.formats.epochs import EpochStart

LAGS_KEPT: Final = 200
REPLICA_FRAMES: Final = (FrameType.HELLO, FrameType.ACK, FrameType.PROMISE_OK)
"""Frames that a replica sends to its master."""


class History(ClientAnswers):
    """The judge of one group: checks each store, file, frame and lease write of its nodes."""

    def __init__(self, nodes: Callable[[], list[Machine]]) -> None:
        super().__init__(nodes)
        self.of_terms: dict[Process, set[int]] = {}
        """Epochs of the terms before and after the decision that a start of ha carries out."""
        self.reigns: dict[Process, int | None] = {}
        """Epoch of the term if the decision did not change it."""
        self.lags_sent: dict[str, deque[tuple[int, dict[str, int | None]]]] = {}
        """By node: the lags in its last frames with its status, and when they were sent."""
        self.epoch_of: Callable[[Machine], int | None] = lambda machine: None
        """Returns the epoch under which the broker of a node holds the log, or None."""

    def sends_lags(self, node: str, lags: dict[str, int | None]) -> None:
        """Note the lags in a status that a node sends."""
        sent = self.lags_sent.setdefault(node, deque(maxlen=LAGS_KEPT))
        sent.append((self._now_us(), lags))

    def publishes(self, machine: Machine, process: Process, slot: Slot, value: int) -> None:
        """Check a store to the page before it becomes visible."""
        page_rules.check_owner(machine, process, slot, value)
        page_rules.check_value(machine, process, slot, value)
        match slot:
            case Slot.FLUSHED:
                must_be_durable(machine, machine.slot(slot), value)
            case Slot.CONFIRM:
                self._must_confirm_in_served_epoch(machine, process)
                self.confirm_moved(machine, value)
            case Slot.IN_SYNC_SIZE:
                self._must_be_in_the_set(machine, value)
            case Slot.LEASE_DEADLINE if value:
                self._must_be_within_the_lease(machine, process, value)
            case Slot.GENERATION if process.name == "broker":
                self._must_have_reloaded_grant(machine, process)
            case Slot.MIN if process.name == "broker" and value > machine.slot(slot):
                self.expires(machine, value)
            case Slot.ROLE if value in (NodeRole.HALTED, NodeRole.RESYNC):
                confirm = max(machine.slot(Slot.CONFIRM), machine.noted_confirm)
                self.halts_or_resyncs(machine, NodeRole(value), confirm)
            case Slot.BROKER_TROUBLE if value == Trouble.DAMAGED:
                if machine.name not in self.damaged | self.lost_queues | self.unreadable:
                    raise Violation(f"{machine.name} publishes DAMAGED, but nothing is damaged")
            case Slot.SERVING_EPOCH if value:
                self.serves(machine, value, machine.boot)
                self.check_equal_histories()
            case Slot.DISPATCHED | Slot.DISPATCHED_DURABLE:
                self._must_match_confirmed(machine, value, "dispatches")

    def writes(self, machine: Machine, process: Process, what: str) -> None:
        """Check that a process which writes to the log, or has replaced the epoch table, holds byte
        0."""
        if not machine.holds(LockByte.APPEND, process):
            raise Violation(f"{process.name} of {machine.name} {what} without byte 0")

    def promises(self, machine: Machine, epoch: int) -> None:
        """Record the promise of an epoch. The member promises it, that is, this volume of the node.
        From the promise on the volume belongs to the group, so its identity must be durable
        before."""
        if not machine.durable_incarnation:
            raise Violation(f"{machine.name} promises epoch {epoch} without a durable identity")
        if epoch < machine.durably_promised:
            raise Violation(
                f"{machine.name} promises epoch {epoch}; its durable promise is "
                f"{machine.durably_promised}"
            )
        member = Member(machine.name, machine.incarnation)
        self._promised.setdefault((member, epoch), self._now_us())
        self.promised(machine, epoch)

    def sends_to_master(self, machine: Machine, frame: Frame) -> None:
        """Check that a replica only sends frames of the epoch that it has durably promised."""
        promised = machine.durably_promised
        if frame.epoch < promised and frame.type is not FrameType.PROMISE_OK:
            raise Violation(
                f"{machine.name} sends {frame.type.name} in epoch {frame.epoch}; its promise is "
                f"{promised}"
            )
        if frame.epoch > promised:
            raise Violation(
                f"{machine.name} sends {frame.type.name} in epoch {frame.epoch}; its disk is "
                f"sure of the promise of {promised} only"
            )

    def sends_hello(self, machine: Machine, hello: Hello) -> None:
        """Check the description of its log that a slave sends; the master derives the divergence
        point from it."""
        _must_not_repeat(machine)
        must_be_durable(machine, hello.durable - ACK_CHECKED_SIZE, hello.durable)
        if hello.end > machine.end or machine.durable_table[: len(hello.table)] != hello.table:
            raise Violation(
                f"{machine.name} sends HELLO with a log up to {hello.end} with the epochs "
                f"{hello.table}; it ends at {machine.end} and has {machine.durable_table}"
            )
        behind = machine.durable_table[len(hello.table) :]
        if behind and hello.table and hello.end > behind[0].start:
            raise Violation(
                f"{machine.name} sends HELLO with a log up to {hello.end} without the epoch "
                f"that begins at {behind[0].start}"
            )

    def sends_hello_ok(self, machine: Machine, ok: HelloOk) -> None:
        """Check the answer to HELLO: the common prefix of both logs, and the extent of the master's
        own."""
        if not self._expired_below(ok.first_offset) or ok.first_offset > machine.begins_at:
            raise Violation(
                f"{machine.name} sends HELLO_OK with a log from {ok.first_offset} on; it begins at "
                f"{machine.begins_at}"
            )
        common = machine.log(ok.point - ok.crc_size, ok.point)
        if len(common) < ok.crc_size or (common and zlib.crc32(common) != ok.crc):
            raise Violation(
                f"{machine.name} sends HELLO_OK with CRC-32 {ok.crc:#010x} over the {ok.crc_size} "
                f"bytes before {ok.point}; it is {zlib.crc32(common):#010x}"
            )
        if not ok.confirm <= ok.end <= machine.end:
            raise Violation(
                f"{machine.name} sends HELLO_OK with a log up to {ok.end}, confirmed up to "
                f"{ok.confirm}; it ends at {machine.end}"
            )

    def acknowledges(self, machine: Machine, appended: int, durable: int) -> None:
        """Check the offsets that a slave acknowledges."""
        _must_not_repeat(machine)
        must_be_durable(machine, durable - ACK_CHECKED_SIZE, durable)
        if appended > machine.end:
            raise Violation(
                f"{machine.name} acknowledges {appended}; its log ends at {machine.end}"
            )

    def counts_ack(self, machine: Machine, member: Member, end: int) -> None:
        """Check that a member has the bytes that a master counts as acknowledged, and that they are
        equal."""
        other = self.node(member.node)
        if other.is_being_emptied:
            return  # The other node had the log. The link ends once its identity has changed.
        start = max(machine.begins_at, other.begins_at, end - ACK_CHECKED_SIZE)
        if self.damaged & {machine.name, member.node}:
            return  # The damage changed the bytes on the disk.
        same = other.durable_log(start, end) == machine.log(start, end)
        if not same and other.incarnation == member.incarnation:
            raise Violation(
                f"{machine.name} counts that {member.node} has its log up to {end}, which is not so"
            )

    def releases_log(self, machine: Machine, process: Process) -> None:
        """Check that a broker which releases byte 0 does not claim to serve an epoch afterwards."""
        process.released_us, serving = machine.timeline.now_us, machine.slot(Slot.SERVING_EPOCH)
        if process.name == "broker" and serving:
            raise Violation(
                f"the broker of {machine.name} releases byte 0 and still serves epoch {serving}"
            )

    def notes_confirm(self, machine: Machine) -> None:
        """Check that the confirm offset that a node has written down is within its durable log."""
        confirm, end = machine.noted_confirm, machine.end
        if confirm > end:
            raise Violation(
                f"{machine.name} notes {confirm} as confirmed, and its log ends at {end}"
            )
        if not machine.is_being_emptied:
            must_be_durable(machine, confirm - ACK_CHECKED_SIZE, confirm)

    def finishes_cut(self, machine: Machine) -> None:
        """Check at the removal of an intent that all changes are durable: bytes, names and
        offsets."""
        if machine.is_being_emptied:
            redone.check_emptied(machine)
        else:
            redone.check_cut_ends(machine)
        for path in machine.unsynced():
            raise Violation(f"{machine.name} removes its intent before {path} is durable")
        if machine.is_being_emptied and machine.durable_incarnation == machine.resync_of:
            raise Violation(f"{machine.name} is emptied, but its identity has not changed")

    def cuts(self, machine: Machine, point: int) -> None:
        """Check at the start of a cut that it removes nothing confirmed, and that the removed bytes
        are kept."""
        check_cut(machine, point, self.confirmed)
        redone.check_cut_begins(machine, self.confirmed)

    def empties_store(self, machine: Machine, *, alone: bool) -> None:
        """Check that an emptied store is not mapped by another process, and is really empty."""
        if not alone:
            raise Violation(
                f"{machine.name} empties its store without the locks of broker and reput"
            )
        if machine.leftovers:
            raise Violation(f"{machine.name} has emptied its store except for {machine.leftovers}")

    def writes_table(self, machine: Machine, table: Sequence[EpochStart], *, begins: bool) -> None:
        """Check a new epoch table. begins: its master starts a term, at the end of its log."""
        first = machine.slot(Slot.MIN)
        if begins and table[0].start > first:
            raise Violation(
                f"{machine.name} begins with the table {table}; the bytes from {first} to "
                f"{table[0].start} belong to no epoch"
            )
        # The first epoch of a store that was alone also covers its older bytes.
        starts = (machine.end,) if len(table) > 1 else (machine.end, first)
        if begins and table[-1].start not in starts and machine.end:
            raise Violation(
                f"{machine.name} begins epoch {table[-1].epoch} at {table[-1].start}; its log "
                f"ends at {machine.end}"
            )

    def reports_end(self, machine: Machine, end: int) -> None:
        """Check that the log is durable up to the end that a disk thread reports."""
        must_be_durable(machine, end - ACK_CHECKED_SIZE, end)

    def _must_have_reloaded_grant(self, machine: Machine, process: Process) -> None:
        """Check that the broker has reloaded its grant after it took byte 0; recovery takes a
        while."""
        if process.fence_loaded_us < machine.taken_us[LockByte.APPEND]:
            raise Violation(
                f"the broker of {machine.name} recovers the log for a grant that it loaded "
                "before it took byte 0"
            )

    def _must_confirm_in_served_epoch(self, machine: Machine, process: Process) -> None:
        """Check that the broker appends in the epoch of this confirm offset, so that senders do not
        mix them."""
        if process.name != "ha":
            return
        reigning = self.reigns.get(process)
        if reigning is not None and reigning not in self._served:
            raise Violation(
                f"{machine.name} confirms in epoch {reigning}, which its broker does not serve yet"
            )
        appending, terms = self.epoch_of(machine), self.of_terms.get(process, set())
        if appending is not None and appending not in terms:
            raise Violation(
                f"{machine.name} publishes a confirm offset as the master of {terms or 'none'}, "
                f"but its broker still appends under epoch {appending}"
            )

    def halts_or_resyncs(self, node: Machine, role: NodeRole, confirm: int) -> None:
        """Check that an undamaged node neither halts nor gives up confirmed records.

        A node without confirmed records may be copied anew: its master lost them before they were
        durable on any disk.
        """
        is_stranger = role is NodeRole.HALTED and node.name in self.foreign_stores
        if node.name in self.damaged or is_stranger:
            return
        if role is NodeRole.RESYNC and self._is_overtaken(node):
            return
        if role is NodeRole.HALTED or (confirm > 0 and node.name not in self.replaced):
            raise Violation(f"{node.name} is {role.name} without damage")


def _must_not_repeat(machine: Machine) -> None:
    """Check that a replica which describes its log has no intent that would repeat a cut or a
    resync."""
    if machine.has_durable_intent:
        raise Violation(
            f"{machine.name} describes its log, but its next start would cut or empty it again"
        )
