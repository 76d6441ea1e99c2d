"""One term of this node as master, from the won lease to its end. Pure.

The steps have the numbers of "Becoming master" in docs/replication.md; 1 to 3 are in ``campaign``,
9 is done by broker and reput:

4. The epoch is promised.
5. It gets its entry in the table.
6. The append lock goes to the broker, which appends the epoch's record.
7. The epoch is announced to all nodes.
8. The in-sync set grows and shrinks by its rules, even before the epoch is open.
10. When the epoch's record is confirmed, the node is master.

This node's own durable end counts once the broker serves the epoch, and no confirm offset of the
epoch is published before that: it would confirm a send whose record belongs to an older epoch. Step
before: ``campaign``. Step after: the broker answers senders as the confirm offset moves.
"""

from __future__ import annotations

from collections.abc import Callable

from services.ha.core.announcement import Announcement
from services.ha.core.append_lock import AppendLock
from services.ha.core.confirm import ConfirmOffset
from services.ha.core.effects import Grant, PersistTable, Publish
from services.ha.core.in_sync import InSync
from services.ha.core.liveness import stall_ms
from services.ha.core.master_protocol import MasterLink, MasterLog
from services.ha.core.peers import Incoming, Peers
from services.ha.core.promises import Promises
from services.ha.core.replica_context import ReplicaContext, with_entry, without_gone
from services.ha.core.states import Trigger
from services.ha.core.switchover import Switchover
from services.ha.lease.value import Lease, Member
from services.ha.wire.payloads import Ack, Hello
from tidemark.formats.checkpoint import NodeRole, Slot
from tidemark.formats.epochs import EpochStart
from tidemark.offsets import Epoch, PhysicalOffset


class Mastership:
    """One term. ``depose`` is called when it must end; after ``end`` it does nothing more."""

    def __init__(
        self,
        context: ReplicaContext,
        peers: Peers,
        promises: Promises,
        lease: Lease,
        *,
        depose: Callable[[str], None],
    ) -> None:
        """lease: as this term acquired it. This node's log is settled and on disk up to its end."""
        self._context, self._peers, self._depose = context, peers, depose
        self.epoch = lease.epoch
        self.start = context.end
        """Offset of the epoch's first record."""
        self.confirm = ConfirmOffset(context.confirm)
        self.in_sync = InSync(
            context.member,
            lease,
            epoch_start=self.start,
            times=context.times,
            now_ms=context.now_ms,
        )
        self.links: dict[int, MasterLink] = {}
        self.opened = False
        self.over = False
        self.switch: Switchover | None = None
        self._lock = AppendLock(context)
        self._announcement = Announcement(context, peers, self.epoch)
        self.granted: int | None = None
        """Nonce of the broker's start that has the grant of the epoch."""
        self.granted_ms: int | None = None
        """Time of the grant."""
        self.serving = False
        """Whether the broker serves the epoch."""
        self.gate_open = False
        """Whether the broker accepts sends."""
        self._flushed = 0
        self._flush_began_ms: int | None = None
        """Since when the broker's disk has flushed nothing, although there is something to flush;
        None: there is nothing."""
        self._won_ms = self.moved_ms = context.now_ms
        self._is_late = False
        self._marks: tuple[int, ...] = ()
        self._deadline_ms = context.session.deadline_ms(self.epoch)
        self._ready = False
        """Whether the table has the epoch, so that slaves can be compared."""
        self._early: dict[int, tuple[Incoming, Hello]] = {}
        """HELLOs received before that, the last one of each connection."""
        self._durable: dict[Member, int] = {}
        self._published: dict[Slot, int] = {}
        promises.promise(self.epoch, self._promised)

    @property
    def deadline_ms(self) -> int | None:
        """Time until which the broker may answer; None: it may not."""
        return self._deadline_ms

    @property
    def opening_ms(self) -> int | None:
        """Time since the lease was won while the gate is closed; None: the gate is open."""
        return None if self.gate_open else self._context.now_ms - self._won_ms

    @property
    def begun_ms(self) -> int:
        """Time of the grant; before it, the time at which the lease was won."""
        return self._won_ms if self.granted_ms is None else self.granted_ms

    @property
    def unflushed_ms(self) -> int:
        """Time for which the broker's disk has flushed nothing of what is written."""
        since_ms = self._flush_began_ms
        return 0 if since_ms is None else self._context.now_ms - since_ms

    @property
    def durable_elsewhere(self) -> bool:
        """Whether a slave has more of the log on disk than this node."""
        return any(end > self._context.durable for end in self._durable.values())

    def note_late(self) -> None:
        """Note that the epoch should have opened by now: a node with the whole log may join the
        set, so that it can take the lease."""
        self._is_late = True

    @property
    def hindrance(self) -> str:
        """What the broker's gate waits for, in words."""
        context, snapshot = self._context, self._context.snapshot
        if context.cannot_open:
            return context.cannot_open
        if self.granted is None:
            return "ha's disk has not written the beginning of the epoch"
        if not self.serving:
            return "the broker has not recovered the log yet"
        if not self.opened:
            waited = ", ".join(sorted(member.node for member in self.in_sync.wait_set))
            return f"{waited or context.name} must confirm the first record of the epoch"
        return f"reput has dispatched the log up to {snapshot.dispatched} of {context.end}"

    @property
    def log(self) -> MasterLog:
        """The log as it is now."""
        context = self._context
        foreign = context.snapshot.foreign
        return MasterLog(
            context.table, context.first_offset, context.end, self.confirm.value, foreign
        )

    # Events

    def observe(self) -> None:
        """Handle what the broker has published."""
        context, snapshot = self._context, self._context.snapshot
        if self.granted is None:
            self._grant()
            return
        if self.switch is not None and self.switch.fenced:
            return
        if snapshot.broker_nonce != self.granted:
            self._broker_lost("the broker that served the epoch is gone")
        elif snapshot.serving_epoch == self.epoch:
            self.serving = True
            context.end = max(context.end, snapshot.written)
            context.durable = max(context.durable, snapshot.flushed)
            self._note_flush()
            self.turn()
            self.gate_open = self.gate_open or (self.opened and snapshot.gate_open)
            if self.switch is not None:
                self.switch.turn()
        elif self.serving:
            self._broker_lost("the broker has stopped serving the epoch")

    def restart_clocks(self) -> None:
        """Restart the clocks of slaves and disk after a stall of this process."""
        if self._flush_began_ms is not None:
            self._flush_began_ms = self._context.now_ms
        if self._ready:
            self.in_sync.begin(self._context.now_ms)

    def hello(self, incoming: Incoming, hello: Hello) -> None:
        """Compare the logs with a slave that wants to follow."""
        if not self._ready:
            self._early[incoming.link] = incoming, hello
            return
        context = self._context
        link = self.links.get(incoming.link)
        if link is None:
            for other in [old for old in self.links.values() if old.peer.node == hello.node]:
                self._drop(other, "a newer link of that node")
            link = MasterLink(
                incoming.link,
                incoming.peer,
                epoch=self.epoch,
                group=context.setup.group,
                version=incoming.version,
                file_size=context.setup.file_size,
                rules=context.times,
                now_ms=context.now_ms,
            )
            self.links[incoming.link] = link
            self.in_sync.linked(link.peer, context.now_ms)
        self.in_sync.heard(link.peer, context.now_ms)
        context.out.put(*link.hello(hello, self.log, context.log.crc_before, context.now_ms))
        self._judge(link)

    def ack(self, number: int, ack: Ack) -> None:
        """Count what a slave acknowledged."""
        context, link = self._context, self.links.get(number)
        if link is None:
            return
        context.out.put(*link.ack(ack, self.log, context.now_ms))
        # Not if the whole group is stopped: its members stay electable for the next start.
        if ack.leaving and not link.closed and not context.stopping:
            self.in_sync.leaving(link.peer)
        if link.acked_end is not None:
            self._durable[link.peer] = link.acked_end
            self.in_sync.acknowledged(
                link.peer,
                link.acked_end,
                own_end=context.end,
                confirm=self.confirm.value,
                now_ms=context.now_ms,
                is_late=self._is_late,
            )
        if link.closed:
            context.count.implausible_acks += 1
        self._judge(link)
        self.turn()
        if self.switch is not None:
            self.switch.turn()

    def promised(self, node: str) -> None:
        """Note that a node has promised the epoch."""
        self._announcement.answered(node)

    def up(self) -> None:
        """Note that there is a new connection."""
        self._announce()

    def down(self, number: int) -> None:
        """Note that a connection has ended."""
        self._early.pop(number, None)
        link = self.links.get(number)
        if link is not None:
            self._forget(link)

    def answered(self) -> None:
        """Handle an answer to a lease request; the lease still names this term."""
        context, session = self._context, self._context.session
        assert session.stored is not None
        self._know_set()
        deadline_ms = session.deadline_ms(self.epoch)
        if deadline_ms != self._deadline_ms:
            self._deadline_ms = deadline_ms
            if self.granted is not None and deadline_ms is not None:
                context.out.put(Publish(((Slot.LEASE_DEADLINE, deadline_ms),)))
        self.turn()

    def leave_removed(self) -> None:
        """End the links of nodes that were removed from the group: nothing of them counts."""
        for link in list(self.links.values()):
            if link.peer.node not in self._context.names:
                self._drop(link, f"{link.peer.node} was removed from the group")

    def follows(self, node: str) -> bool:
        """Return whether a slave of that name is linked."""
        return any(link.peer.node == node for link in self.links.values())

    def tick(self) -> None:
        """Check deadline, dead links and the set, and renew the lease."""
        now = self._context.now_ms
        if self._deadline_ms is None or (now >= self._deadline_ms and not self._may_renew_late()):
            self._depose("the lease was not renewed in time")
            return
        self._note_progress()
        for link in list(self.links.values()):
            if link.dead(now):
                self._drop(link, "nothing heard from the slave")
            elif self.in_sync.left(link.peer):
                self._drop(link, "it ends, and no sender waits for it")
        self.in_sync.expire(now)
        self._announce()
        self._grant()
        if self.switch is None or not self.switch.releasing:
            self._write_lease()
        self.turn()
        if self.switch is not None:
            self.switch.tick()
        self._publish(Slot.NEEDED_FROM, self._needed_from())

    def turn(self) -> None:
        """Advance the confirm offset and stream what can be sent."""
        context = self._context
        if self.over:
            return
        durable = context.durable if self.serving else None
        # Before the confirm offset, because the answer to its waiters names the number of copies.
        self._publish_size()
        if self.confirm.advance(durable, self._durable, self.in_sync.wait_set):
            context.note_confirm(self.confirm.value)
            context.out.put(Publish(((Slot.CONFIRM, self.confirm.value),)))
        record_end = context.snapshot.epoch_record_end if self.serving else 0
        if not self.opened and 0 < record_end <= self.confirm.value:
            self.opened = True
            context.writes_again()
            context.out.put(Publish(((Slot.ROLE, NodeRole.MASTER),)))
            context.move(Trigger.OPENED)
        log = self.log
        for link in list(self.links.values()):
            awaited = link.peer in self.in_sync.wait_set
            context.out.put(*link.stream(log, context.now_ms, awaited=awaited))
            self._judge(link)

    def end(self, reason: str) -> None:
        """End the term: close its links, and ignore later events."""
        self.over = True
        for link in list(self.links.values()):
            self._drop(link, reason)
        for number in self._early:
            self._peers.close(number, reason)
        self._early.clear()
        self._context.session.abandon()
        if self.switch is not None:
            self.switch.deposed(reason)

    def begin_switch(
        self,
        target: Member,
        *,
        failed: Callable[[str, bool, bool], None],
        released: Callable[[str], None],
    ) -> None:
        """Begin a planned switch to target; for the callbacks see ``Switchover``."""
        self.switch = Switchover(
            self._context, self._peers, self, target, failed=failed, released=released
        )

    def end_switch(self) -> None:
        """Accept sends again after a planned switch failed."""
        self.switch = None
        self._context.out.put(Publish(((Slot.SENDS_HELD, 0),)))

    def stop_serving(self) -> None:
        """Note that the broker is fenced: its flushes no longer count."""
        self.serving = False

    def take_lock(self, then: Callable[[], None]) -> None:
        """Take the append lock back, see ``AppendLock.take``."""
        self._lock.take(then)

    # Steps 4 to 7

    def _promised(self) -> None:
        context = self._context
        if self.over:
            return
        # Bytes from before the group had epochs belong to its first epoch.
        start = self.start if context.table else context.first_offset
        entry = EpochStart(Epoch(self.epoch), PhysicalOffset(start))
        table = with_entry(without_gone(context.table, context.first_offset), entry)
        context.begin_table_write()
        context.out.ask(
            lambda token: PersistTable(token, table), lambda _: self._entered(table), self._no_room
        )

    def _no_room(self, code: str, detail: str) -> None:
        self._context.end_table_write()
        self._context.no_room(code, detail)

    def _entered(self, table: tuple[EpochStart, ...]) -> None:
        context = self._context
        context.end_table_write()
        context.table = table
        if self.over:
            return
        self._ready = True
        self.in_sync.begin(context.now_ms)
        self._lock.give(self._grant)
        early, self._early = self._early, {}
        for incoming, hello in early.values():
            if self._peers.open(incoming.link):
                self.hello(incoming, hello)
        self._announce()

    def _grant(self) -> None:
        context = self._context
        if not self._lock.given or self.granted is not None or self.over:
            return
        if not context.broker_serves or self._deadline_ms is None:
            return
        self.granted, self.granted_ms = context.snapshot.broker_nonce, context.now_ms
        self._know_set()
        context.out.put(
            Publish(
                (
                    (Slot.IN_SYNC_SIZE, self.in_sync.size(context.now_ms)),
                    (Slot.MIN_IN_SYNC, self.in_sync.least),
                    (Slot.NEEDED_FROM, self._needed_from()),
                    (Slot.SENDS_HELD, 0),
                )
            ),
            Grant(self.epoch, self.granted, self._deadline_ms),
        )

    def _announce(self) -> None:
        if self._ready and not self.opened:
            self._announcement.send()

    def _note_progress(self) -> None:
        """Note the time at which anything moved that leads to an open epoch."""
        snapshot = self._context.snapshot
        marks = (
            self.granted or 0,
            snapshot.serving_epoch,
            snapshot.epoch_record_end,
            snapshot.dispatched,
            self.confirm.value,
            *sorted(self._durable.values()),
        )
        if marks != self._marks:
            self._marks, self.moved_ms = marks, self._context.now_ms

    def _note_flush(self) -> None:
        """Note since when the disk has flushed nothing, except during a stall of the broker."""
        context, snapshot = self._context, self._context.snapshot
        if snapshot.flushed >= snapshot.written:
            self._flush_began_ms = None
        elif (
            self._flush_began_ms is None
            or snapshot.flushed != self._flushed
            or context.liveness.broker.still_ms >= stall_ms(context.times)
        ):
            self._flush_began_ms = context.now_ms
        self._flushed = snapshot.flushed

    # The lease and the set

    def _may_renew_late(self) -> bool:
        """Return whether the deadline passed during a stall of this process, and may still be
        moved.

        1. A master is stopped for less than a lease, and continues after its deadline. 2. Until
        then its broker answered no sender, because of the deadline on the page. 3. If the lease can
        still be renewed, no other node has taken it: the term continues, and clients see only the
        pause. If it cannot be renewed within one request, the term is over.
        """
        context, liveness = self._context, self._context.liveness
        return (
            liveness.woke_ms is not None
            and context.now_ms - liveness.woke_ms < context.times.request_timeout_ms
            and liveness.stood_ms < context.times.lease_ms
            and context.session.holds(self.epoch)
        )

    def _write_lease(self) -> None:
        """Change the set if necessary, else renew the lease when it is due."""
        context, session, now = self._context, self._context.session, self._context.now_ms
        if not session.can_write or session.stored is None:
            if session.due(now):
                context.out.put(*session.read(now))
            return
        if not context.broker_serves:
            return  # a node that serves no clients must not keep the lease
        lease = session.stored.lease
        # Until the table has the epoch, slaves get no answer, and are not to blame for silence.
        may_change = self._ready and self.switch is None
        wanted = self.in_sync.wanted(now) if may_change else None
        if wanted is not None:
            change = lease._replace(in_sync=wanted, in_sync_version=lease.in_sync_version + 1)
            context.out.put(*session.propose(change, now))
            # From here on the change may be published, so the members that it adds are waited for.
            self._know_set()
        elif session.due(now) or lease.members != context.members_to_write():
            # A node of an earlier version may have held the lease, and written it without members.
            kept = lease._replace(members=context.members_to_write())
            context.out.put(*session.propose(kept, now))

    def _know_set(self) -> None:
        session = self._context.session
        assert session.stored is not None
        if session.backwards:
            # Otherwise: 1. An older lease of this very term is put back, without a member that was
            # added since. 2. Records are acknowledged without that member. 3. The lease is created
            # again with the newest set, that member takes it, and those records are lost.
            return
        in_sync, count = self.in_sync, self._context.count
        joins, leaves = in_sync.joins, in_sync.leaves
        in_sync.known(session.stored.lease, session.unsettled)
        count.in_sync_joins += in_sync.joins - joins
        count.in_sync_leaves += in_sync.leaves - leaves
        self._publish_size()

    def _broker_lost(self, reason: str) -> None:
        if self.switch is None:
            self._depose(reason)
        else:
            # The records are in the log: the switch no longer needs the broker.
            self.switch.go_on()

    # Links

    def _judge(self, link: MasterLink) -> None:
        if link.closed and link.link in self.links:
            self._forget(link)

    def _drop(self, link: MasterLink, reason: str) -> None:
        self._peers.close(link.link, reason)
        self._forget(link)

    def _forget(self, link: MasterLink) -> None:
        del self.links[link.link]
        if not any(other.peer == link.peer for other in self.links.values()):
            self._durable.pop(link.peer, None)
            self.in_sync.unlinked(link.peer)

    def _needed_from(self) -> int:
        """Return the lowest offset that a connected slave has yet to copy; 0: there is none."""
        ends = [link.appended for link in self.links.values() if link.appended is not None]
        # A slave that has yet to copy byte 0 needs the first file, and so does one that needs byte
        # 1.
        return max(1, min(ends)) if ends else 0

    def _publish_size(self) -> None:
        self._publish(Slot.IN_SYNC_SIZE, self.in_sync.size(self._context.now_ms))

    def _publish(self, slot: Slot, value: int) -> None:
        """Publish a slot that is valid during the term if it changed, once the epoch is granted."""
        if self.granted is None or self._published.get(slot) == value:
            return
        self._published[slot] = value
        self._context.out.put(Publish(((slot, value),)))
