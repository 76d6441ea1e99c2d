"""What the simulation knows of the world outside: what was confirmed, and must never change.

Every move of a node's confirm offset counts as if all below it had been acknowledged and read, in
former masters, too, which is stricter than what the broker does. Every store to a node's page is
judged before it is visible. Letters are those of ``docs/replication.md``, what must hold. No node
sees this.
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
ACK_LOOK_SIZE: Final = 8192
"""Bytes before an acknowledged end that are compared with the disk."""
CLOCK_SLACK_MS: Final = 1
CLOCK_DRIFT_MAX: Final = 0.05
ANSWER_MAX_US: Final = 5_000
"""Between the loads that allow an answer and the answer, unless the process is stopped."""
LATE_US: Final = 500_000
"""Senders wait less for a member that ends in order."""
SILENT_MS_MAX: Final = 1_700
"""A broker counts as silent by then, and no write of the lease that began before is repeated."""


class Acked(NamedTuple):
    """A send that was answered with success."""

    start: int
    end: int
    copies: int


class History:
    """The confirmed log, the lease's past, and who acted in which epoch."""

    def __init__(self, nodes: Callable[[], list[Machine]]) -> None:
        self._nodes = nodes
        self.records = Confirmed()
        self.confirmed = self.records.log
        """The one history of the group."""
        self.acked: list[Acked] = []
        self.stored_count = 0
        self.late_count = 0
        """Stored sends that were answered later than ``LATE_US``."""
        self.reads_count = 0
        self.epoch = 0
        """The largest that the lease ever had."""
        self.deleted = False
        """The lease object was deleted at some time."""
        self.is_restored = False
        """An older lease was put back."""
        self.went_back = False
        """The object says less than it did: a late request made it anew after it was deleted."""
        self._newest = (0, 0)
        self.published: tuple[Member, ...] = ()
        """The in-sync set as the object says it, or said it last."""
        self.holder: Holder | None = None
        self.member_us: dict[Member, int] = {}
        """When a member left the set, or the lease was written with it last."""
        self.epochs_count = 0
        self.damaged: set[str] = set()
        """Nodes of which a bit of the log was flipped."""
        self.spoilt: set[str] = set()
        """Nodes to which a piece of log came that was none."""
        self._covered: set[tuple[str, int]] = set()
        """Nodes that took reads in an epoch when their queues covered its first record."""
        self.lost_queues: set[str] = set()
        """Nodes of which queue files were removed: until they are made again, queues end early."""
        self.strangers: set[str] = set()
        """Nodes whose store belongs to no group: they wait for an order."""
        self.is_forced = False
        """An operator makes a node the only member of the set."""
        self.is_restored = False
        """An operator puts an older lease in the place of the present one."""
        self.expired = 0
        """Where the log begins of whoever has let most of it go."""
        self.large_share = 0.0
        """Of the messages that producers send, those that are large; 0: as many as usual."""
        self.late_topics: list[str] = []
        """Producers send to these, too, from some time on."""
        self.producers_rest = False
        """No producer sends."""
        self.replaced: set[str] = set()
        """Nodes whose volume was replaced: they may be copied anew."""
        self.clocks_lie = False
        """Clocks were set wrong on purpose: reads may be stale then, and nothing else."""
        self.of_terms: dict[Process, set[int]] = {}
        """Epochs of the term before and after the decision that a start of ha carries out."""
        self.reigns: dict[Process, int | None] = {}
        """Epoch of the term that is the same before and after it."""
        self.epoch_of: Callable[[Machine], int | None] = lambda machine: None
        """Says under which epoch the broker of a node holds the log; None: it does not."""
        self.perhaps: Callable[[], list[Lease]] = list
        """Says what the lease may say next."""
        self.times = LOCAL
        self.least = 1
        """Members without which nothing is acknowledged."""
        self._sent_ms: dict[int, tuple[Process, int]] = {}
        """Who sent each write of the lease, and when by its clock."""
        self._applied_ms: dict[Process, int] = {}
        """When the write was sent that made a start of ha the holder, the last one that did."""
        self.applied_us = 0
        """When the lease was last written."""
        self.released_us = 0
        """When the lease was last given back."""
        self.told_us: dict[str, int] = {}
        """When a node heard last that the lease was given to it."""
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
        """A process is about to store to the page of its node."""
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
        """A process is about to write to the log, or has replaced the epoch table."""
        if not machine.holds(Role.APPEND, process):
            raise Violation(f"{process.name} of {machine.name} {what} without byte 0")

    def promises(self, machine: Machine, epoch: int) -> None:
        """A replica promises an epoch: its volume does, not its node. Behind the promise the volume
        belongs to the group, so its identity is on the disk before."""
        if not machine.durable_incarnation:
            raise Violation(f"{machine.name} promises epoch {epoch}, and its disk has no identity")
        if epoch < machine.durably_promised:
            raise Violation(
                f"{machine.name} promises epoch {epoch}, having promised {machine.durably_promised}"
            )
        self._promised.add((Member(machine.name, machine.incarnation), epoch))
        self.promised(machine, epoch)

    def says(self, machine: Machine, frame: Frame) -> None:
        """A replica speaks under an epoch to its master: it has promised that one, durably."""
        promised = machine.durably_promised
        if frame.epoch < promised and frame.type is not FrameType.PROMISE_OK:
            raise Violation(
                f"{machine.name} says {frame.type.name} in epoch {frame.epoch}, having promised "
                f"{promised}"
            )
        if frame.epoch > promised:
            raise Violation(
                f"{machine.name} says {frame.type.name} in epoch {frame.epoch}, and its disk is "
                f"sure of the promise of {promised} only"
            )

    def greets(self, machine: Machine, hello: Hello) -> None:
        """A slave describes its log, from which its master finds the divergence point."""
        _must_not_repeat(machine)
        _must_be_durable(machine, hello.durable - ACK_LOOK_SIZE, hello.durable)
        if hello.end > machine.end or machine.durable_table[: len(hello.table)] != hello.table:
            raise Violation(
                f"{machine.name} tells its master of a log up to {hello.end} with the epochs "
                f"{hello.table}; it ends at {machine.end} and has {machine.durable_table}"
            )
        behind = machine.durable_table[len(hello.table) :]
        if behind and hello.table and hello.end > behind[0].start:
            raise Violation(
                f"{machine.name} tells its master of a log up to {hello.end} without the epoch "
                f"that begins at {behind[0].start}"
            )

    def welcomes(self, machine: Machine, ok: HelloOk) -> None:
        """A master tells a slave up to where their logs are the same, and what its own has."""
        if not self._expired_below(ok.first_offset) or ok.first_offset > machine.begins_at:
            raise Violation(
                f"{machine.name} tells a slave of a log from {ok.first_offset} on; it begins at "
                f"{machine.begins_at}"
            )
        common = machine.log(ok.point - ok.crc_size, ok.point)
        if len(common) < ok.crc_size or (common and zlib.crc32(common) != ok.crc):
            raise Violation(
                f"{machine.name} tells a slave of CRC-32 {ok.crc:#010x} over the {ok.crc_size} "
                f"bytes before {ok.point}; it is {zlib.crc32(common):#010x}"
            )
        if not ok.confirm <= ok.end <= machine.end:
            raise Violation(
                f"{machine.name} tells a slave of a log up to {ok.end}, confirmed up to "
                f"{ok.confirm}; it ends at {machine.end}"
            )

    def acknowledges(self, machine: Machine, appended: int, durable: int) -> None:
        """A slave says what it has."""
        _must_not_repeat(machine)
        _must_be_durable(machine, durable - ACK_LOOK_SIZE, durable)
        if appended > machine.end:
            raise Violation(f"{machine.name} says that it has {appended}; it has {machine.end}")

    def counts(self, machine: Machine, member: Member, end: int) -> None:
        """A master counts what a member acknowledged: that one has it, and it is the same."""
        other = self.node(member.node)
        if other.is_being_emptied:
            return  # it had the log; its link ends when it is another member
        start = max(machine.begins_at, other.begins_at, end - ACK_LOOK_SIZE)
        if self.damaged & {machine.name, member.node}:
            return  # on the disk it is another now
        same = other.durable_log(start, end) == machine.log(start, end)
        if not same and other.incarnation == member.incarnation:
            raise Violation(
                f"{machine.name} counts that {member.node} has its log up to {end}: it has not"
            )

    def asks(
        self,
        machine: Machine,
        before: Lease | None,
        wanted: Lease,
        *,
        renews: bool = False,
        switches: bool = False,
    ) -> None:
        """A node is about to write the lease, or to make it. switches: its planned switch has fixed
        the log's end."""
        self._sent_ms[wanted.renewed] = machine.processes["ha"], machine.boot_ms()
        if before is None:
            self._must_be_promised_by_all(machine, wanted)
        elif switches and wanted.holder is None and wanted.handover_to:
            target = self.node(wanted.handover_to)
            # Another disk since it acknowledged the end is another member, and cannot take over.
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
        """A node that renews has a broker that lives, or has not run for long itself."""
        silent_ms = machine.boot_ms() - machine.slot(Slot.BROKER_HEARTBEAT_MS)
        ran_ms = (self._now_us() - machine.processes["ha"].resumed_us) // 1000
        if min(silent_ms, ran_ms) > SILENT_MS_MAX and not self.clocks_lie:
            raise Violation(
                f"{machine.name} goes on renewing the lease, and its broker is silent for "
                f"{silent_ms} ms"
            )

    def _must_be_promised_by_all(self, machine: Machine, wanted: Lease) -> None:
        """A master that makes the object again: nobody else can have won its epoch meanwhile."""
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
        """A process releases byte 0: nothing that it says of the log may come behind that."""
        serving = machine.slot(Slot.SERVING_EPOCH)
        if process.name == "broker" and serving:
            raise Violation(
                f"the broker of {machine.name} gives byte 0 back and still serves epoch {serving}"
            )

    def notes_confirm(self, machine: Machine) -> None:
        """What a node writes down as confirmed is in its log, whatever comes next."""
        confirm, end = machine.noted_confirm, machine.end
        if confirm > end:
            raise Violation(
                f"{machine.name} notes {confirm} as confirmed, and its log ends at {end}"
            )
        if not machine.is_being_emptied:
            _must_be_durable(machine, confirm - ACK_LOOK_SIZE, confirm)

    def cut_is_over(self, machine: Machine) -> None:
        """What was begun is called finished: it is on the disk, bytes, names and marks."""
        if machine.is_being_emptied:
            redone.check_emptied(machine)
        else:
            redone.check_cut_ends(machine)
        for path in machine.unsynced():
            raise Violation(f"{machine.name} has finished what it began, and {path} is not durable")
        if machine.is_being_emptied and machine.durable_incarnation == machine.resync_of:
            raise Violation(f"{machine.name} is emptied, and still the member that it was")

    def cuts(self, machine: Machine, point: int) -> None:
        """A replica has begun to cut its log: what it takes was never confirmed, and is kept."""
        check_cut(machine, point, self.confirmed)
        redone.check_cut_begins(machine, self.confirmed)

    def becomes_another(self, machine: Machine, *, alone: bool) -> None:
        """A store was emptied: nobody may have it mapped."""
        if not alone:
            raise Violation(f"{machine.name} empties its store while broker or reput may use it")
        if machine.left_behind:
            raise Violation(f"{machine.name} has emptied its store but for {machine.left_behind}")

    def enters(self, machine: Machine, table: Sequence[EpochStart], *, begins: bool) -> None:
        """An epoch gets its entry; begins: by its master, whose log ends where it starts."""
        first = machine.slot(Slot.MIN)
        if begins and table[0].start > first:
            raise Violation(
                f"{machine.name} begins with the table {table}, and the bytes from {first} to "
                f"{table[0].start} belong to no epoch"
            )
        # The first epoch of a store that was alone has its older bytes, too.
        starts = (machine.end,) if len(table) > 1 else (machine.end, first)
        if begins and table[-1].start not in starts and machine.end:
            raise Violation(
                f"{machine.name} begins epoch {table[-1].epoch} at {table[-1].start}, and its log "
                f"ends at {machine.end}"
            )

    def settled(self, machine: Machine, end: int) -> None:
        """A thread of the disk says that the log ends there, all of it on disk."""
        _must_be_durable(machine, end - ACK_LOOK_SIZE, end)

    def _must_be_in_the_set(self, machine: Machine, size: int) -> None:
        """Senders are promised as many copies as the published set has members, or fewer."""
        is_holder = self.holder is not None and self.holder.node == machine.name
        if is_holder and size > len(self.published) and not self.went_back:
            raise Violation(
                f"{machine.name} tells its broker of {size} members; the set has "
                f"{len(self.published)}"
            )

    def _must_be_granted_still(self, machine: Machine, process: Process) -> None:
        """A broker looks at its grant again once it holds byte 0: what follows takes a while."""
        if process.asked_us < machine.taken_us[Role.APPEND]:
            raise Violation(
                f"the broker of {machine.name} recovers the log for a grant that it looked at "
                "before it took byte 0"
            )

    def _must_be_within_the_lease(
        self, machine: Machine, process: Process, deadline_ms: int
    ) -> None:
        """The holder stops before anybody else may begin, counted from its last write."""
        limit_ms = self._applied_ms.get(process, 0) + self.times.lease_ms
        if deadline_ms > limit_ms - self.times.margin_ms + CLOCK_SLACK_MS and not self.clocks_lie:
            raise Violation(
                f"{machine.name} may answer until {deadline_ms}, and its lease ends at {limit_ms}"
            )

    def _must_be_of_the_epoch_that_is_appended(self, machine: Machine, process: Process) -> None:
        """Senders of another epoch would take the confirm offset for theirs."""
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
                f"and its broker still appends under epoch {appending}"
            )

    # -- the log ---------------------------------------------------------------------------

    def confirm_moved(self, node: Machine, confirm: int) -> None:
        """B, D: a node says that its log up to confirm may be seen."""
        known = len(self.confirmed)
        self._must_be_one_history(node, min(confirm, known), "confirms")
        _must_be_durable(node, confirm - ACK_LOOK_SIZE, confirm)
        if confirm > known:
            self.records.extend(node.log(known, confirm))
            self.check_members(f"when {node.name} confirmed {confirm}")

    def acknowledged(
        self, node: Machine, start: int, end: int, body: bytes, copies: int, *, by_the_group: bool
    ) -> None:
        """A send was answered: A, and as many copies as the answer says."""
        self.answers(node, "acknowledges")
        raw = node.log(start, end)
        if body not in raw:
            raise Violation(f"{node.name} acknowledged [{start}, {end}), where another record is")
        if by_the_group and len(self.published) < self.least:
            raise Violation(
                f"{node.name} acknowledges with {len(self.published)} members, {self.least} is the "
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
                f"{node.name} answered that {copies} nodes have the record at {start}; "
                f"{found} have it"
            )
        self.acked.append(Acked(start, end, copies))

    def stored(self, node: Machine, admitted_us: int) -> None:
        """A send was stored that came at admitted_us: what the page said since then allowed it."""
        self.stored_count += 1
        self.late_count += self._now_us() - admitted_us > LATE_US
        broker = node.processes.get("broker")
        held, fenced = node.slot(Slot.SENDS_HELD), node.slot(Slot.FENCED)
        few = node.slot(Slot.IN_SYNC_SIZE) < node.slot(Slot.MIN_IN_SYNC)
        watched = (Slot.SENDS_HELD, Slot.FENCED, Slot.IN_SYNC_SIZE, Slot.MIN_IN_SYNC)
        changed_us = max(node.changed_us.get(slot, 0) for slot in watched)
        if broker is None or max(changed_us, broker.resumed_us) >= admitted_us:
            return  # it may have been allowed when it was asked
        if held or fenced or few:
            why = "sends are held" if held else "it is fenced" if fenced else "the set is too small"
            raise Violation(f"the broker of {node.name} stores a message while {why}")

    def answers(self, node: Machine, what: str) -> None:
        """An answer that speaks for the group leaves in the step of the broker's loop in which it
        looked at grant and deadline, and found both well."""
        broker = node.processes.get("broker")
        if broker is None or broker.loop is None or self.clocks_lie:
            return
        looked, step = broker.looked, broker.loop.steps
        if broker.resumed_at == step:
            return  # stopped between the loads and the answer: no program can help that
        if looked.step != step or not looked.in_time:
            raise Violation(
                f"{node.name} {what} in step {step}, and looked at its grant in step {looked.step}"
                + ("" if looked.in_time else ", when it had run out")
            )
        serving = node.slot(Slot.SERVING_EPOCH)
        if serving and serving < self.epoch and self._now_us() - self.won_us > ANSWER_MAX_US:
            raise Violation(f"{node.name} {what} in epoch {serving}, and {self.epoch} was acquired")

    def read(self, node: Machine, end: int) -> None:
        """A consumer was shown the log up to end: C."""
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
        """A consumer was given messages from a queue offset on; dispatched: before and behind."""
        fewest = len(self.records.seen(topic, queue, dispatched))
        known = self.records.seen(topic, queue, dispatched_since)
        wanted = known[offset : offset + len(found)]
        # Of a queue all of whose messages have expired, a log that was copied since has no file.
        live = bisect_left(known, node.begins_at, key=lambda place: place.start)
        is_short = max_offset < fewest or (fewest > offset >= live and not found)
        is_short = is_short and fewest > live
        if max_offset > len(known) or (is_short and node.name not in self.lost_queues):
            raise Violation(
                f"{node.name} shows {len(found)} messages of {topic}/{queue} from {offset} on, and "
                f"{max_offset} as its end; up to {dispatched} it has {fewest}"
            )
        if found != [bytes(self.confirmed[place.start : place.end]) for place in wanted]:
            raise Violation(f"{node.name} shows other messages of {topic}/{queue} from {offset} on")

    def state(self, node: Machine, state: BrokerState, end: int) -> None:
        """A broker serves with that state: it has all that the log tells below end, or what the
        log tells of it since."""
        lacking = [
            name
            for name in self.records.topics_at(end)
            if state.topics.get(name) not in self.records.tells_of(name, end)
        ]
        if lacking:
            raise Violation(f"{node.name} serves without the topics {lacking} of its log")

    def read_at_master(self, node: Machine, epoch: int, newest_before: int) -> None:
        """A master says that it may answer; newest_before: the lease's epoch when it was asked."""
        opened = node.slot(Slot.EPOCH_RECORD_END)
        if node.slot(Slot.SERVING_EPOCH) == epoch and (node.name, epoch) not in self._covered:
            if min(node.slot(Slot.DISPATCHED), node.slot(Slot.CONFIRM)) < opened:
                raise Violation(f"{node.name} takes reads before its queues cover epoch {epoch}")
            # A reput that makes the queues again later goes back: each read judges that by itself.
            self._covered.add((node.name, epoch))
        if epoch < newest_before and not self.clocks_lie:
            raise Violation(
                f"{node.name} answers reads as the master of epoch {epoch}, and epoch "
                f"{newest_before} was acquired before it looked"
            )

    def has_led(self, node: str, epoch: object) -> bool:
        """Whether that node has acquired that epoch."""
        return isinstance(epoch, int) and epoch in self._won and self._won[epoch].node == node

    def next_serial(self) -> int:
        """A number that no other message has."""
        self._serial += 1
        return self._serial

    def check_members(self, when: str) -> None:
        """A: each member of the published set has on disk all that was ever confirmed.

        So does whoever wins the lease, since only members can; and each member of a set that a
        write on its way may publish.
        """
        end = len(self.confirmed)
        perhaps = (member for lease in self.perhaps() for member in lease.in_sync)
        members = {*self.published, *perhaps} if end else set()
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
                    f"A: {node.name} is in the in-sync set and lacks on disk what was confirmed, "
                    f"{first} to {end}, {when}: {_parting(found, self.confirmed[first:], first)}"
                )

    def check_own_confirm(self, node: Machine) -> None:
        """D: what a node has noted as confirmed is in its log, and is the one history."""
        confirm = node.noted_confirm
        first = node.begins_at
        is_same = node.log(first, confirm) == self.confirmed[first:confirm]
        if node.name not in self.damaged and not (is_same and self._expired_below(first)):
            raise Violation(f"D: {node.name} has noted {confirm} as confirmed and lacks some of it")

    def check_equal_histories(self) -> None:
        """F: where two logs have the same (epoch, start), they are the same as far as both go."""
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
                f"C: {node.name} {what} {end} bytes, and the one history of "
                f"{len(self.confirmed)} is another: {_parting(found, known, first)}"
            )

    # -- the lease -------------------------------------------------------------------------

    def lease_changed(self, before: Stored | None, now: Stored | None) -> None:
        """The object was written, made or deleted."""
        if now is None:
            self.deleted = True
            return
        lease = now.lease
        # Also of a lease that went back: nodes that have not seen a newer one go by it.
        for member in (*self.published, *(before.lease.in_sync if before else ()), *lease.in_sync):
            self.member_us[member] = self._now_us()
        shown = (int(lease.epoch), lease.in_sync_version)
        is_another = shown == self._newest and lease.in_sync != self.published
        # A first lease that was deleted before its holder acted on it is founded again.
        is_founded_again = self.deleted and lease.epoch not in self._acted
        self.went_back = shown < self._newest or (is_another and not is_founded_again)
        if self.went_back and not (self.deleted or self.is_restored):
            raise Violation(f"the lease goes back from {self._newest} to {shown}")
        if self.went_back:
            return  # believed by nobody: whoever acts on it never acquired anything
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
                    continue  # it had the epoch; what was acknowledged waits for that volume
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
        """Nobody takes the lease from another volume before that one has stopped answering."""
        if before.holder is None or now.holder is None or now.epoch == before.epoch:
            return
        left = [member for member in now.in_sync if member != before.holder.member]
        is_another = before.holder.member != now.holder.member
        if is_another and before.holder.member in now.in_sync and len(left) >= now.min_in_sync:
            raise Violation(
                f"{now.holder.node} takes the lease from {before.holder.node} and keeps it in the "
                f"set, which needs {now.min_in_sync} of {len(now.in_sync)}"
            )
        kept_ms = (self._now_us() - self.applied_us) // 1000
        in_time = kept_ms * (1 + CLOCK_DRIFT_MAX) < self.times.lease_ms
        if in_time and before.holder.member != now.holder.member and not self.clocks_lie:
            raise Violation(
                f"{now.holder.node} takes the lease {kept_ms} ms after {before.holder.node} had "
                f"renewed it for {self.times.lease_ms}"
            )

    def _must_not_be_paused(self, before: Lease, now: Lease) -> None:
        """While automatic failover is paused, nobody takes a lease that has only run out."""
        if not before.paused or now.holder is None or now.epoch == before.epoch:
            return
        is_own = before.holder is not None and before.holder.member == now.holder.member
        is_given = before.holder is None and before.handover_to == now.holder.node
        if not (is_own or is_given):
            raise Violation(
                f"{now.holder.node} takes the lease of {before.holder and before.holder.node}, and "
                "automatic failover is paused"
            )

    def acts(self, epoch: int, holder: Holder, how: str) -> None:
        """E: somebody does what only the master of an epoch may do."""
        if self._won.get(epoch) != holder:
            raise Violation(f"E: {holder.node} {how} in epoch {epoch}, which it never acquired")
        if self._acted.setdefault(epoch, holder) != holder:
            raise Violation(f"E: {holder.node} {how} in epoch {epoch}, in which another one acted")
        promised = self.node(holder.node).durably_promised
        if promised != epoch:
            raise Violation(
                f"{holder.node} {how} in epoch {epoch}; the promise on its disk is {promised}"
            )

    def granted(self, epoch: int, holder: Holder, boot: tuple[int, int]) -> None:
        """A master grants its epoch to its broker. boot: of its node."""
        self.acts(epoch, holder, "grants")
        if epoch in self._boots:
            raise Violation(f"{holder.node} grants epoch {epoch} a second time")
        self._boots[epoch] = boot

    def serves(self, node: Machine, epoch: int, boot: tuple[int, int]) -> None:
        """E: a broker begins to append under an epoch, which was granted to it in this boot."""
        holder = self._won.get(epoch)
        if holder is None or holder.node != node.name:
            raise Violation(f"E: the broker of {node.name} serves epoch {epoch} of {holder}")
        if self._boots.get(epoch) != boot:
            raise Violation(
                f"E: the broker of {node.name} serves epoch {epoch}, of before the machine was "
                "started again"
            )
        self._served.add(epoch)

    def promised(self, node: Machine, epoch: int) -> None:
        """Nobody promises an epoch that nobody acquired, or it is locked out of the living one."""
        if epoch > self.epoch and not self.deleted:
            raise Violation(f"{node.name} promises epoch {epoch}, and nobody has acquired it")

    def needs_help(self, node: Machine, role: NodeRole, confirm: int) -> None:
        """Nothing was damaged: nobody halts, and nobody gives up what it knows to be confirmed.

        A node of which nothing was confirmed yet may be copied anew: what it has, its master lost
        before it was on any disk.
        """
        is_stranger = role is NodeRole.HALTED and node.name in self.strangers
        if node.name in self.damaged or is_stranger:
            return
        if role is NodeRole.RESYNC and self._is_overtaken(node):
            return
        if role is NodeRole.HALTED or (confirm > 0 and node.name not in self.replaced):
            raise Violation(f"{node.name} is {role.name}, and nothing was damaged")

    def expires(self, machine: Machine, until: int) -> None:
        """A broker lets the log begin at until: what goes is confirmed, and no slave that copies
        needs it."""
        needed, confirm = machine.slot(Slot.NEEDED_FROM), machine.slot(Slot.CONFIRM)
        needed_us = self._now_us() - machine.changed_us.get(Slot.NEEDED_FROM, 0)
        is_master = machine.slot(Slot.SERVING_EPOCH) != 0
        if is_master and 0 < needed < until and needed_us > ANSWER_MAX_US:
            raise Violation(
                f"{machine.name} lets its log begin at {until}, and a slave has yet to copy it "
                f"from {needed} on"
            )
        if until > min(confirm, machine.slot(Slot.DISPATCHED_DURABLE)):
            raise Violation(
                f"{machine.name} lets its log begin at {until}, and only {confirm} is confirmed"
            )
        self.expired = max(self.expired, until)

    # -- inside ----------------------------------------------------------------------------

    def _expired_below(self, first: int) -> bool:
        """Whether a log may begin there: what is before was let go by some broker."""
        return first <= self.expired

    def _is_overtaken(self, node: Machine) -> bool:
        """Whether another node's log begins behind the end of that one's."""
        return any(other.begins_at > node.end for other in self.others(node))

    def _now_us(self) -> int:
        return self._nodes()[0].timeline.now_us

    @property
    def unwritten_us(self) -> int:
        """How long ago the lease was last written."""
        return self._now_us() - self.applied_us

    def others(self, machine: Machine) -> list[Machine]:
        """All nodes but that one."""
        return [node for node in self._nodes() if node is not machine]

    def node(self, name: str) -> Machine:
        """The node of that name."""
        return next(node for node in self._nodes() if node.name == name)

    def _note_holder(self, epoch: int, holder: Holder) -> None:
        won = self._won.setdefault(epoch, holder)
        if won != holder:
            if epoch in self._acted or not self.deleted:
                raise Violation(f"E: epoch {epoch} was acquired by {won.node} and {holder.node}")
            # A number taken twice, harmlessly: nothing ever bore it before the object was deleted.
            self._won[epoch] = holder
        if epoch > self.epoch:
            self.epoch, self.won_us = epoch, self._now_us()
            self.epochs_count += 1


def _must_be_durable(node: Machine, start: int, end: int) -> None:
    start = max(node.begins_at, start)
    if node.durable_log(start, end) != node.log(start, end):
        raise Violation(f"{node.name} says that [{start}, {end}) is on its disk, and it is not")


def _parting(one: bytes | bytearray, other: bytes | bytearray, first: int) -> str:
    """first: physical offset of the first byte of both."""
    size = max(len(one), len(other))
    at = next((at for at in range(size) if one[at : at + 1] != other[at : at + 1]), size)
    return f"they part at {first + at}"


def _check_pair(one: Machine, other: Machine) -> None:
    mine, theirs = one.table, other.table
    for table, size in ((mine, one.end), (theirs, other.end)):
        if any(entry.start > size for entry in table[:-1]):
            return  # a start drops such entries; until then they say nothing
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
            f"and differ below {upto}: {_parting(mine_upto, theirs_upto, first)}"
        )


def _must_not_repeat(machine: Machine) -> None:
    """A replica that speaks of its log has finished cutting and emptying it, whatever comes."""
    if machine.has_durable_intent:
        raise Violation(
            f"{machine.name} speaks of its log, and its next start would cut or empty it again"
        )
