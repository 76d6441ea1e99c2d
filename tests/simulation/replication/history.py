"""The confirmed history of a group, its lease and its masters, as an outside judge records them.

Every advance of a node's confirm offset counts as if all bytes below it had been acknowledged and
read, also on former masters. That is stricter than what the broker does. Each store to a node's
page is checked before it becomes visible. The letters A to F are those of ``docs/replication.md``,
section "What must hold". No node can read this object.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from services.ha.lease.value import Holder, Lease, Member, Stored
from services.ha.wire.frames import Frame, FrameType
from services.ha.wire.payloads import Hello, HelloOk
from shared.cluster.time_rules import LOCAL
from shared.files.store_dir import Role
from shared.state.state import BrokerState
from tests.simulation.replication import page_rules, redone
from tests.simulation.replication.confirmed import Confirmed
from tests.simulation.replication.known_marks import check_cut
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.process import Process
from tests.simulation.replication.violation import Violation
from tidemark.formats.checkpoint import NodeRole, Slot
from tidemark.formats.epochs import EpochStart

PROMISING: Final = (FrameType.HELLO, FrameType.ACK, FrameType.PROMISE_OK)
ACK_CHECKED_SIZE: Final = 8192
"""Bytes before an acknowledged end that are compared with the disk."""
CLOCK_SLACK_MS: Final = 1
CLOCK_DRIFT_MAX: Final = 0.05
ANSWER_MAX_US: Final = 5_000
"""Longest time between the loads that allow an answer and the answer, unless the process is
paused."""
LATE_US: Final = 500_000
"""Senders wait less than this for a member that shuts down cleanly."""
SILENT_MS_MAX: Final = 1_700
"""A broker counts as silent after this time, and no earlier write of the lease is repeated."""


class Acked(NamedTuple):
    """A send that was answered with success."""

    start: int
    end: int
    copies: int


class History:
    """The confirmed log, the changes of the lease, and which node acted in which epoch."""

    def __init__(self, nodes: Callable[[], list[Machine]]) -> None:
        self._nodes = nodes
        self.records = Confirmed()
        self.confirmed = self.records.log
        """The confirmed log of the group."""
        self.acked: list[Acked] = []
        self.stored_count = 0
        self.late_count = 0
        """Number of stored sends that were answered later than ``LATE_US``."""
        self.reads_count = 0
        self.epoch = 0
        """The largest epoch that the lease ever had."""
        self.deleted = False
        """Whether the lease object was ever deleted."""
        self.is_restored = False
        """Whether an older lease was put back."""
        self.went_back = False
        """Whether the object is older than its newest content: a late request recreated it."""
        self._newest = (0, 0)
        self.published: tuple[Member, ...] = ()
        """The in-sync set of the lease; the last one while the object is missing."""
        self.holder: Holder | None = None
        self.member_us: dict[Member, int] = {}
        """When each member left the set, or when the lease was last written with that member."""
        self.epochs_count = 0
        self.damaged: set[str] = set()
        """Nodes whose log has a flipped bit."""
        self.corrupted: set[str] = set()
        """Nodes that received corrupted log bytes."""
        self._covered: set[tuple[str, int]] = set()
        """(node, epoch) pairs whose queues covered the epoch record when reads began."""
        self.lost_queues: set[str] = set()
        """Nodes whose queue files were removed. Their queues are short until they are rebuilt."""
        self.foreign_stores: set[str] = set()
        """Nodes whose store belongs to no group and waits for an admin command."""
        self.is_forced = False
        """Whether an operator forces a node to be the only member of the set."""
        self.is_restored = False
        """Whether an operator replaces the lease by an older one."""
        self.expired = 0
        """Largest start of a log among all nodes whose retention deleted files."""
        self.large_share = 0.0
        """Share of large messages among the sends; 0 for the usual share."""
        self.late_topics: list[str] = []
        """Additional topics that producers send to."""
        self.producers_paused = False
        """Whether producers are paused."""
        self.replaced: set[str] = set()
        """Nodes whose volume was replaced. They may be copied anew."""
        self.clocks_wrong = False
        """Whether clocks were set wrong on purpose. Reads may be stale then, nothing else may
        fail."""
        self.of_terms: dict[Process, set[int]] = {}
        """Epochs of the terms before and after the decision that a start of ha carries out."""
        self.reigns: dict[Process, int | None] = {}
        """Epoch of the term if the decision did not change it."""
        self.epoch_of: Callable[[Machine], int | None] = lambda machine: None
        """Returns the epoch under which the broker of a node holds the log, or None."""
        self.possible_leases: Callable[[], list[Lease]] = list
        """Returns the contents that the lease may have after a write that is under way."""
        self.times = LOCAL
        self.min_in_sync = 1
        """Members that an acknowledgement needs."""
        self._sent_ms: dict[int, tuple[Process, int]] = {}
        """For each write of the lease: the process that sent it, and when by that node's clock."""
        self._applied_ms: dict[Process, int] = {}
        """For each start of ha: when it sent the write that last made it the holder."""
        self.applied_us = 0
        """When the lease was last written."""
        self.released_us = 0
        """When the lease was last released."""
        self.campaign_now_us: dict[str, int] = {}
        """When each node last received CAMPAIGN_NOW."""
        self.won_us = 0
        """When the largest epoch was acquired."""
        self._served: set[int] = set()
        self._promised: set[tuple[Member, int]] = set()
        self._serial = 0
        self._won: dict[int, Holder] = {}
        self._acted: dict[int, Holder] = {}
        self._boots: dict[int, tuple[int, int]] = {}

    # -- the page --------------------------------------------------------------------------

    def publishes(self, machine: Machine, process: Process, slot: Slot, value: int) -> None:
        """Check a store to the page before it becomes visible."""
        page_rules.check_owner(machine, process, slot, value)
        page_rules.check_value(machine, process, slot, value)
        match slot:
            case Slot.FLUSHED:
                _must_be_durable(machine, machine.slot(slot), value)
            case Slot.CONFIRM:
                self._must_be_of_the_epoch_that_is_appended(machine, process)
                self.confirm_moved(machine, value)
            case Slot.IN_SYNC_SIZE:
                self._must_be_in_the_set(machine, value)
            case Slot.LEASE_DEADLINE if value:
                self._must_be_within_the_lease(machine, process, value)
            case Slot.GENERATION if process.name == "broker":
                self._must_be_granted_still(machine, process)
            case Slot.MIN if process.name == "broker" and value > machine.slot(slot):
                self.expires(machine, value)
            case Slot.ROLE if value in (NodeRole.HALTED, NodeRole.RESYNC):
                confirm = max(machine.slot(Slot.CONFIRM), machine.noted_confirm)
                self.needs_help(machine, NodeRole(value), confirm)
            case Slot.SERVING_EPOCH if value:
                self.serves(machine, value, machine.boot)
                self.check_equal_histories()
            case Slot.DISPATCHED | Slot.DISPATCHED_DURABLE:
                self._must_be_one_history(machine, value, "dispatches")

    def writes(self, machine: Machine, process: Process, what: str) -> None:
        """Check that a process which writes to the log, or has replaced the epoch table, holds byte
        0."""
        if not machine.holds(Role.APPEND, process):
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
        self._promised.add((Member(machine.name, machine.incarnation), epoch))
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
        _must_be_durable(machine, hello.durable - ACK_CHECKED_SIZE, hello.durable)
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
        _must_be_durable(machine, durable - ACK_CHECKED_SIZE, durable)
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

    def gives_log_back(self, machine: Machine, process: Process) -> None:
        """Check that a broker which releases byte 0 does not claim to serve an epoch afterwards."""
        serving = machine.slot(Slot.SERVING_EPOCH)
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
            _must_be_durable(machine, confirm - ACK_CHECKED_SIZE, confirm)

    def cut_is_over(self, machine: Machine) -> None:
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
        if machine.left_behind:
            raise Violation(
                f"{machine.name} has emptied its store except for {machine.left_behind}"
            )

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
        _must_be_durable(machine, end - ACK_CHECKED_SIZE, end)

    def _must_be_in_the_set(self, machine: Machine, size: int) -> None:
        """Check that the size published for the broker does not exceed the published set."""
        is_holder = self.holder is not None and self.holder.node == machine.name
        if is_holder and size > len(self.published) and not self.went_back:
            raise Violation(
                f"{machine.name} publishes IN_SYNC_SIZE {size}; the set has {len(self.published)}"
            )

    def _must_be_granted_still(self, machine: Machine, process: Process) -> None:
        """Check that the broker has reloaded its grant after it took byte 0; recovery takes a
        while."""
        if process.fence_loaded_us < machine.taken_us[Role.APPEND]:
            raise Violation(
                f"the broker of {machine.name} recovers the log for a grant that it loaded "
                "before it took byte 0"
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

    def _must_be_of_the_epoch_that_is_appended(self, machine: Machine, process: Process) -> None:
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

    # -- the log ---------------------------------------------------------------------------

    def confirm_moved(self, node: Machine, confirm: int) -> None:
        """Check a confirm offset (B, D): its bytes are durable and equal to the confirmed log, or
        extend it."""
        known = len(self.confirmed)
        self._must_be_one_history(node, min(confirm, known), "confirms")
        _must_be_durable(node, confirm - ACK_CHECKED_SIZE, confirm)
        if confirm > known:
            self.records.extend(node.log(known, confirm))
            self.check_members(f"when {node.name} confirmed {confirm}")

    def acknowledged(
        self, node: Machine, start: int, end: int, body: bytes, copies: int, *, by_the_group: bool
    ) -> None:
        """Check a successful answer (A): the record is confirmed, and as many nodes have it as
        reported."""
        self.answers(node, "acknowledges")
        raw = node.log(start, end)
        if body not in raw:
            raise Violation(
                f"{node.name} acknowledged [{start}, {end}); that range has another record"
            )
        if by_the_group and len(self.published) < self.min_in_sync:
            raise Violation(
                f"{node.name} acknowledges with {len(self.published)} members, {self.min_in_sync} "
                "is the "
                "minimum"
            )
        if by_the_group and self.confirmed[start:end] != raw:
            raise Violation(
                f"A: {node.name} acknowledged the record at {start}, which the confirmed history "
                f"of {len(self.confirmed)} bytes does not have there"
            )
        _must_be_durable(node, start, end)
        found = sum(other.durable_log(start, end) == raw for other in self._nodes()) + len(
            self.replaced
        )
        if found < copies:
            raise Violation(
                f"{node.name} reports {copies} copies of the record at {start}; {found} have it"
            )
        self.acked.append(Acked(start, end, copies))

    def stored(self, node: Machine, admitted_us: int) -> None:
        """Check that the page allowed a stored send at some time since admitted_us, when it
        arrived."""
        self.stored_count += 1
        self.late_count += self._now_us() - admitted_us > LATE_US
        broker = node.processes.get("broker")
        held, fenced = node.slot(Slot.SENDS_HELD), node.slot(Slot.FENCED)
        few = node.slot(Slot.IN_SYNC_SIZE) < node.slot(Slot.MIN_IN_SYNC)
        watched = (Slot.SENDS_HELD, Slot.FENCED, Slot.IN_SYNC_SIZE, Slot.MIN_IN_SYNC)
        changed_us = max(node.changed_us.get(slot, 0) for slot in watched)
        if broker is None or max(changed_us, broker.resumed_us) >= admitted_us:
            return  # The page may have allowed the send when it arrived.
        if held or fenced or few:
            why = "sends are held" if held else "it is fenced" if fenced else "the set is too small"
            raise Violation(f"the broker of {node.name} stores a message while {why}")

    def answers(self, node: Machine, what: str) -> None:
        """Check that the broker loaded grant and deadline, and found both valid, in the step of its
        loop in which it answers for the group."""
        broker = node.processes.get("broker")
        if broker is None or broker.loop is None or self.clocks_wrong:
            return
        last_check, step = broker.last_check, broker.loop.steps
        if broker.resumed_at == step:
            # The process was paused between the loads and the answer. No program can prevent that.
            return
        if last_check.step != step or not last_check.in_time:
            raise Violation(
                f"{node.name} {what} in step {step}; it loaded its grant in step {last_check.step}"
                + ("" if last_check.in_time else ", after the deadline")
            )
        serving = node.slot(Slot.SERVING_EPOCH)
        if serving and serving < self.epoch and self._now_us() - self.won_us > ANSWER_MAX_US:
            raise Violation(f"{node.name} {what} in epoch {serving}, but {self.epoch} was acquired")

    def read(self, node: Machine, end: int) -> None:
        """Check that a consumer sees only the confirmed log up to end (C)."""
        self._must_be_one_history(node, end, "shows consumers")
        self.reads_count += 1

    def pulled(
        self,
        node: Machine,
        topic: str,
        queue: int,
        offset: int,
        found: Sequence[bytes],
        max_offset: int,
        dispatched: int,
        dispatched_since: int,
    ) -> None:
        """Check the messages that a consumer received from a queue offset on. dispatched and
        dispatched_since: the dispatched offset before and after the read."""
        fewest = len(self.records.seen(topic, queue, dispatched))
        known = self.records.seen(topic, queue, dispatched_since)
        wanted = known[offset : offset + len(found)]
        # A log copied since then has no queue file for a queue whose messages have all expired.
        live = bisect_left(known, node.begins_at, key=lambda place: place.start)
        is_short = max_offset < fewest or (fewest > offset >= live and not found)
        is_short = is_short and fewest > live
        if max_offset > len(known) or (is_short and node.name not in self.lost_queues):
            raise Violation(
                f"{node.name} returns {len(found)} messages of {topic}/{queue} from {offset} on, "
                "with "
                f"{max_offset} as max offset; up to {dispatched} it has {fewest}"
            )
        if found != [bytes(self.confirmed[place.start : place.end]) for place in wanted]:
            raise Violation(
                f"{node.name} returns wrong messages of {topic}/{queue} from {offset} on"
            )

    def state(self, node: Machine, state: BrokerState, end: int) -> None:
        """Check the state that a broker serves: every topic has the value that the log has below
        end, or a later one."""
        lacking = [
            name
            for name in self.records.topics_at(end)
            if state.topics.get(name) not in self.records.configs_of(name, end)
        ]
        if lacking:
            raise Violation(f"{node.name} serves without the topics {lacking} of its log")

    def read_at_master(self, node: Machine, epoch: int, newest_before: int) -> None:
        """Check reads from a master. newest_before: epoch of the lease before the broker checked
        its grant."""
        opened = node.slot(Slot.EPOCH_RECORD_END)
        if node.slot(Slot.SERVING_EPOCH) == epoch and (node.name, epoch) not in self._covered:
            if min(node.slot(Slot.DISPATCHED), node.slot(Slot.CONFIRM)) < opened:
                raise Violation(f"{node.name} serves reads before its queues cover epoch {epoch}")
            # A reput that rebuilds the queues later starts from an earlier offset. Every read is
            # checked on its own.
            self._covered.add((node.name, epoch))
        if epoch < newest_before and not self.clocks_wrong:
            raise Violation(
                f"{node.name} answers reads as the master of epoch {epoch}, and epoch "
                f"{newest_before} was acquired before it loaded its grant"
            )

    def has_led(self, node: str, epoch: object) -> bool:
        """Whether that node has acquired that epoch."""
        return isinstance(epoch, int) and epoch in self._won and self._won[epoch].node == node

    def next_serial(self) -> int:
        """Return a number that no other message has."""
        self._serial += 1
        return self._serial

    def check_members(self, when: str) -> None:
        """Check that each member of the published set has all confirmed bytes on its disk (A).

        The same holds for the winner of the lease, since only members can win it, and for each
        member of a set that a write under way may publish.
        """
        end = len(self.confirmed)
        possible = (member for lease in self.possible_leases() for member in lease.in_sync)
        members = {*self.published, *possible} if end else set()
        for node in self._nodes():
            if Member(node.name, node.incarnation) not in members or node.is_being_emptied:
                continue
            if node.name in self.damaged:
                continue
            first = node.first_file(durable=True)
            is_long = self._expired_below(first)
            found = node.durable_log(first, end)
            if found != self.confirmed[first:] or not is_long:
                raise Violation(
                    f"A: {node.name} is in the in-sync set and its disk lacks confirmed bytes, "
                    f"{first} to {end}, {when}: {_difference(found, self.confirmed[first:], first)}"
                )

    def check_own_confirm(self, node: Machine) -> None:
        """Check that the confirm offset that a node has noted lies in its log, with the confirmed
        bytes (D)."""
        confirm = node.noted_confirm
        first = node.begins_at
        is_same = node.log(first, confirm) == self.confirmed[first:confirm]
        if node.name not in self.damaged and not (is_same and self._expired_below(first)):
            raise Violation(
                f"D: {node.name} has noted {confirm} as confirmed, but lacks some of it"
            )

    def check_equal_histories(self) -> None:
        """Check that two logs with the same (epoch, start) have equal bytes as far as both reach
        (F)."""
        nodes = [
            node
            for node in self._nodes()
            if node.end and not node.has_intent and node.name not in self.damaged
        ]
        for index, one in enumerate(nodes):
            for other in nodes[index + 1 :]:
                _check_pair(one, other)

    def _must_be_one_history(self, node: Machine, end: int, what: str) -> None:
        first = node.begins_at
        found, known = node.log(first, end), self.confirmed[first:end]
        is_same = node.name in self.damaged or found == known
        if end > len(self.confirmed) or not is_same or not self._expired_below(first):
            raise Violation(
                f"C: {node.name} {what} {end} bytes; the confirmed log of "
                f"{len(self.confirmed)} differs: {_difference(found, known, first)}"
            )

    # -- the lease -------------------------------------------------------------------------

    def lease_changed(self, before: Stored | None, now: Stored | None) -> None:
        """Check a write, creation or deletion of the lease object."""
        if now is None:
            self.deleted = True
            return
        lease = now.lease
        # Also for a lease that went back: nodes that have not read a newer one use it.
        for member in (*self.published, *(before.lease.in_sync if before else ()), *lease.in_sync):
            self.member_us[member] = self._now_us()
        shown = (int(lease.epoch), lease.in_sync_version)
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
                if lease.epoch not in known:
                    raise Violation(
                        f"{member.node} joins the set, and its table has no epoch {lease.epoch}"
                    )
        self._newest = shown
        if before is not None:
            self._must_have_run_out(before.lease, lease)
            self._must_not_be_paused(before.lease, lease)
        self.applied_us = self._now_us()
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

    def needs_help(self, node: Machine, role: NodeRole, confirm: int) -> None:
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
            raise Violation(f"{node.name} is {role.name}without damage")

    def expires(self, machine: Machine, until: int) -> None:
        """Check that retention deletes only confirmed and dispatched bytes, which no copying slave
        needs."""
        needed, confirm = machine.slot(Slot.NEEDED_FROM), machine.slot(Slot.CONFIRM)
        needed_us = self._now_us() - machine.changed_us.get(Slot.NEEDED_FROM, 0)
        is_master = machine.slot(Slot.SERVING_EPOCH) != 0
        if is_master and 0 < needed < until and needed_us > ANSWER_MAX_US:
            raise Violation(
                f"{machine.name} deletes its log below {until}; a slave still copies it "
                f"from {needed} on"
            )
        if until > min(confirm, machine.slot(Slot.DISPATCHED_DURABLE)):
            raise Violation(
                f"{machine.name} deletes its log below {until}; the confirm offset is {confirm}"
            )
        self.expired = max(self.expired, until)

    # -- inside ----------------------------------------------------------------------------

    def _expired_below(self, first: int) -> bool:
        """Whether a log may begin at first: some broker's retention has deleted the bytes before
        it."""
        return first <= self.expired

    def _is_overtaken(self, node: Machine) -> bool:
        """Whether the log of another node begins after the end of this node's log."""
        return any(other.begins_at > node.end for other in self.others(node))

    def _now_us(self) -> int:
        return self._nodes()[0].timeline.now_us

    @property
    def unwritten_us(self) -> int:
        """Time since the lease was last written."""
        return self._now_us() - self.applied_us

    def others(self, machine: Machine) -> list[Machine]:
        """All other nodes."""
        return [node for node in self._nodes() if node is not machine]

    def node(self, name: str) -> Machine:
        """The node of that name."""
        return next(node for node in self._nodes() if node.name == name)

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


def _must_be_durable(node: Machine, start: int, end: int) -> None:
    start = max(node.begins_at, start)
    if node.durable_log(start, end) != node.log(start, end):
        raise Violation(f"{node.name} reports [{start}, {end}) as on its disk, and it is not")


def _difference(one: bytes | bytearray, other: bytes | bytearray, first: int) -> str:
    """Describe the first difference. first: physical offset of the first byte of both."""
    size = max(len(one), len(other))
    at = next((at for at in range(size) if one[at : at + 1] != other[at : at + 1]), size)
    return f"first difference at {first + at}"


def _check_pair(one: Machine, other: Machine) -> None:
    mine, theirs = one.table, other.table
    for table, size in ((mine, one.end), (theirs, other.end)):
        if any(entry.start > size for entry in table[:-1]):
            return  # A start removes such entries. Until then they mean nothing.
    common = set(mine) & set(theirs)
    if not common:
        return
    newest = max(common)
    ends = dict(zip(mine, [entry.start for entry in mine[1:]], strict=False))
    ends_there = dict(zip(theirs, [entry.start for entry in theirs[1:]], strict=False))
    upto = min(ends.get(newest, one.end), ends_there.get(newest, other.end), one.end, other.end)
    first = max(one.begins_at, other.begins_at)
    mine_upto, theirs_upto = one.log(first, upto), other.log(first, upto)
    if mine_upto != theirs_upto:
        raise Violation(
            f"F: {one.name} and {other.name} both have epoch {newest.epoch} from {newest.start}, "
            f"but differ below {upto}: {_difference(mine_upto, theirs_upto, first)}"
        )


def _must_not_repeat(machine: Machine) -> None:
    """Check that a replica which describes its log has no intent that would repeat a cut or a
    resync."""
    if machine.has_durable_intent:
        raise Violation(
            f"{machine.name} describes its log, but its next start would cut or empty it again"
        )
