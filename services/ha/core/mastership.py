"""One term of this node as master, from the won lease to its end (docs/replication.md). Pure.

4. The epoch is promised. 5. It gets its entry in the table. 6. The append lock goes to the broker,
which appends the epoch's record. 7. All are told. 8. The in-sync set grows and shrinks by its
rules, before the epoch is open too. 10. When that record is confirmed, the node is master.

The own durable end counts from when the broker serves the epoch, and no confirm offset of the epoch
is published before: the record of an older epoch must not be answered by it. Step before:
``campaign``. Step after: the broker answers senders as the confirm offset moves.
"""

from __future__ import annotations

from collections.abc import Callable

from services.ha.core.announcement import Announcement
from services.ha.core.append_lock import AppendLock
from services.ha.core.confirm import ConfirmOffset
from services.ha.core.effects import Grant, PersistTable, Publish
from services.ha.core.failover import Trigger
from services.ha.core.in_sync import InSync
from services.ha.core.master_protocol import MasterLink, MasterLog
from services.ha.core.own import Own, with_entry, without_gone
from services.ha.core.peers import Incoming, Peers
from services.ha.core.promises import Promises
from services.ha.core.switchover import Switchover
from services.ha.lease.session import Settled
from services.ha.lease.value import Lease, Member
from services.ha.wire.payloads import Ack, Hello
from tidemark.formats.checkpoint import NodeRole, Slot
from tidemark.formats.epochs import EpochStart
from tidemark.offsets import Epoch, PhysicalOffset


class Mastership:
    """One term. ``depose`` is called when it must end; after ``end`` it does nothing more."""

    def __init__(
        self,
        own: Own,
        peers: Peers,
        promises: Promises,
        lease: Lease,
        *,
        depose: Callable[[str], None],
    ) -> None:
        """lease: as this term acquired it; the own log is settled and on disk up to its end."""
        self._own, self._peers, self._promises, self._depose = own, peers, promises, depose
        self.epoch = lease.epoch
        self.start = own.end
        """Where the epoch's first record begins."""
        self.confirm = ConfirmOffset(own.confirm)
        self.in_sync = InSync(
            own.member, lease, epoch_start=self.start, times=own.times, now_ms=own.now_ms
        )
        self.links: dict[int, MasterLink] = {}
        self.opened = False
        self.over = False
        self.switch: Switchover | None = None
        self._lock = AppendLock(own)
        self._announcement = Announcement(own, peers, self.epoch)
        self.granted: int | None = None
        """Nonce of the broker's start that serves the epoch."""
        self.granted_ms: int | None = None
        """Since when it may."""
        self.serving = False
        """It has begun to."""
        self.gate_open = False
        """It takes sends."""
        self._won_ms = self.moved_ms = own.now_ms
        self._marks: tuple[int, ...] = ()
        self._deadline_ms = own.session.deadline_ms(self.epoch)
        self._ready = False
        """The table has the epoch: slaves can be compared."""
        self._early: dict[int, tuple[Incoming, Hello]] = {}
        """HELLOs that came before, the last one of each connection."""
        self._durable: dict[Member, int] = {}
        self._published: dict[Slot, int] = {}
        promises.promise(self.epoch, self._promised)

    @property
    def deadline_ms(self) -> int | None:
        """Until when the broker may answer."""
        return self._deadline_ms

    @property
    def opening_ms(self) -> int | None:
        """Since when the lease is this node's and its gate not open; None: it is."""
        return None if self.gate_open else self._own.now_ms - self._won_ms

    @property
    def hindrance(self) -> str:
        """What the broker's gate waits for, in words."""
        own, sensed = self._own, self._own.sensed
        idle = own.idle_service
        if idle:
            return f"{idle} is not there, or does not move"
        if not self.serving:
            return "the broker has not recovered the log yet"
        if not self.opened:
            waited = [member.node for member in self.in_sync.wait_set]
            return f"{', '.join(sorted(waited)) or 'this node'} has not confirmed its first record"
        return f"reput has dispatched the log up to {sensed.dispatched} of {own.end}"

    @property
    def log(self) -> MasterLog:
        """The log as it is now."""
        own = self._own
        foreign = own.sensed.foreign
        return MasterLog(own.table, own.first_offset, own.end, self.confirm.value, foreign)

    def fit_targets(self, peers: Peers, *, ordered: bool = False) -> list[Member]:
        """Slaves that could take over now, the one with most of the log first.

        One that has not said lately how it is comes behind all that have. ordered: also those
        whose services stood still and move again, behind all others.
        """
        fit = []
        for link in self.links.values():
            node = link.peer.node
            if not self.unfit(node, peers, ordered=ordered):
                stalled = bool(self.unfit(node, peers, ordered=False))
                silent = peers.fresh(node) is None
                fit.append((stalled, silent, -(link.counts or 0), link.peer))
        return [member for *_, member in sorted(fit)]

    def unfit(self, node: str, peers: Peers, *, ordered: bool) -> str:
        """Why a slave could not take over now, in words; empty: it could. ordered: as above."""
        link = next((link for link in self.links.values() if link.peer.node == node), None)
        published = self.in_sync.published
        if link is None and any(member.node == node for member in published):
            return "does not follow"
        if link is None or link.peer not in published:
            return "is not in the in-sync set"
        if link.counts is None:
            return "does not follow yet"
        if self.in_sync.peer(link.peer).leaving:
            return "is about to end"
        facts = {} if (told := peers.fresh(node)) is None else told.facts
        stalled = ordered and facts.get("stalls_are_over") is True
        if facts.get("broker") is False or (facts.get("trouble") and not stalled):
            return f"cannot take over: {facts.get('reason') or facts.get('trouble')}"
        return ""

    # What happens

    def sensed(self) -> None:
        """Look at what the broker has published."""
        own, sensed = self._own, self._own.sensed
        if self.granted is None:
            self._grant()
            return
        if self.switch is not None and self.switch.fenced:
            return
        if sensed.broker_nonce != self.granted:
            self._broker_lost("the broker that served the epoch is gone")
        elif sensed.serving_epoch == self.epoch:
            self.serving = True
            own.end = max(own.end, sensed.written)
            own.durable = max(own.durable, sensed.flushed)
            self.turn()
            self.gate_open = self.gate_open or (self.opened and sensed.gate_open)
            if self.switch is not None:
                self.switch.turn()
        elif self.serving:
            self._broker_lost("the broker has stopped serving the epoch")

    def woke(self) -> None:
        """This process stood still: no slave could be heard, so none was silent or behind."""
        if self._ready:
            self.in_sync.begin(self._own.now_ms)

    def hello(self, incoming: Incoming, hello: Hello) -> None:
        """A slave wants to follow: compare the logs."""
        if not self._ready:
            self._early[incoming.link] = incoming, hello
            return
        own = self._own
        link = self.links.get(incoming.link)
        if link is None:
            for other in [old for old in self.links.values() if old.peer.node == hello.node]:
                self._drop(other, "a newer link of that node")
            link = MasterLink(
                incoming.link,
                incoming.peer,
                epoch=self.epoch,
                group=own.setup.group,
                version=incoming.version,
                file_size=own.setup.file_size,
                rules=own.times,
                now_ms=own.now_ms,
            )
            self.links[incoming.link] = link
            self.in_sync.linked(link.peer, own.now_ms)
        self.in_sync.peer(link.peer).heard_ms = own.now_ms
        own.out.put(*link.hello(hello, self.log, own.log.crc_before, own.now_ms))
        self._judge(link)

    def ack(self, number: int, ack: Ack) -> None:
        """A slave says what it has."""
        own, link = self._own, self.links.get(number)
        if link is None:
            return
        own.out.put(*link.ack(ack, self.log, own.now_ms))
        # Not of a group that ends as a whole: its members stay electable for the next start.
        if ack.leaving and not link.closed and not own.stopping:
            self.in_sync.leaving(link.peer)
        if link.counts is not None:
            self._durable[link.peer] = link.counts
            self.in_sync.acknowledged(
                link.peer,
                link.counts,
                own_end=own.end,
                confirm=self.confirm.value,
                now_ms=own.now_ms,
            )
        if link.closed:
            own.count.implausible_acks += 1
        self._judge(link)
        self.turn()
        if self.switch is not None:
            self.switch.turn()

    def promised(self, node: str) -> None:
        """A node respects the epoch."""
        self._announcement.answered(node)

    def down(self, number: int) -> None:
        """A connection is gone."""
        self._early.pop(number, None)
        link = self.links.get(number)
        if link is not None:
            self._forget(link)

    def answered(self, settled: Settled | None) -> None:
        """The lease was read or written; it names this term still, the caller has checked."""
        own, session = self._own, self._own.session
        assert session.stored is not None
        self._know_set()
        deadline_ms = session.deadline_ms(self.epoch)
        if deadline_ms != self._deadline_ms:
            self._deadline_ms = deadline_ms
            if self.granted is not None and deadline_ms is not None:
                own.out.put(Publish(((Slot.LEASE_DEADLINE, deadline_ms),)))
        self.turn()

    def follows(self, node: str) -> bool:
        """Whether a slave with this name is linked."""
        return any(link.peer.node == node for link in self.links.values())

    def tick(self) -> None:
        """Time passed: deadline, dead links, the set, renewals."""
        now = self._own.now_ms
        if self._deadline_ms is None or (now >= self._deadline_ms and not self._may_renew_late()):
            self._depose("the lease was not renewed in time")
            return
        self._note_progress()
        for link in list(self.links.values()):
            if link.dead(now):
                self._drop(link, "nothing heard from the slave")
            elif self.in_sync.left(link.peer):
                self._drop(link, "it ends, and nobody waits for it")
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
        """Take in what is new: confirm what is confirmed, stream what can be sent."""
        own = self._own
        if self.over:
            return
        durable = own.durable if self.serving else None
        # Before the confirm offset: the answer to who waits for that names the copies.
        self._publish_size()
        if self.confirm.advance(durable, self._durable, self.in_sync.wait_set):
            own.note_confirm(self.confirm.value)
            own.out.put(Publish(((Slot.CONFIRM, self.confirm.value),)))
        record_end = own.sensed.epoch_record_end if self.serving else 0
        if not self.opened and 0 < record_end <= self.confirm.value:
            self.opened = True
            own.writes_again()
            own.out.put(Publish(((Slot.ROLE, NodeRole.MASTER),)))
            own.move(Trigger.OPENED)
        log = self.log
        for link in list(self.links.values()):
            link.awaited = link.peer in self.in_sync.wait_set
            own.out.put(*link.stream(log, own.now_ms))
            self._judge(link)

    def end(self, reason: str) -> None:
        """The term is over: its links are closed, nothing counts any more."""
        self.over = True
        for link in list(self.links.values()):
            self._drop(link, reason)
        for number in self._early:
            self._peers.close(number, reason)
        self._early.clear()
        self._own.session.abandon()
        if self.switch is not None:
            self.switch.deposed(reason)

    def take_lock(self, then: Callable[[], None]) -> None:
        """Have the append lock back; see ``AppendLock.take``."""
        self._lock.take(then)

    # Steps 4 to 7

    def _promised(self) -> None:
        own = self._own
        if self.over:
            return
        # Bytes from before the group had epochs belong to its first one.
        start = self.start if own.table else own.first_offset
        entry = EpochStart(Epoch(self.epoch), PhysicalOffset(start))
        table = with_entry(without_gone(own.table, own.first_offset), entry)
        own.table_writes += 1
        own.out.ask(
            lambda token: PersistTable(token, table), lambda _: self._entered(table), self._no_room
        )

    def _no_room(self, code: str, detail: str) -> None:
        self._own.table_writes -= 1
        self._own.no_room(code, detail)

    def _entered(self, table: tuple[EpochStart, ...]) -> None:
        own = self._own
        own.table_writes -= 1
        own.table = table
        if self.over:
            return
        self._ready = True
        self.in_sync.begin(own.now_ms)
        self._lock.give(self._grant)
        early, self._early = self._early, {}
        for incoming, hello in early.values():
            if self._peers.open(incoming.link):
                self.hello(incoming, hello)
        self._announce()

    def _grant(self) -> None:
        own = self._own
        if not self._lock.given or self.granted is not None or self.over:
            return
        if not own.broker_serves or self._deadline_ms is None:
            return
        self.granted, self.granted_ms = own.sensed.broker_nonce, own.now_ms
        self._know_set()
        own.out.put(
            Publish(
                (
                    (Slot.IN_SYNC_SIZE, self.in_sync.size(own.now_ms)),
                    (Slot.MIN_IN_SYNC, self.in_sync.least),
                    (Slot.NEEDED_FROM, self._needed_from()),
                    (Slot.SENDS_HELD, 0),
                )
            ),
            Grant(self.epoch, self.granted, self._deadline_ms),
        )

    def _announce(self) -> None:
        if self._ready and not self.opened:
            self._announcement.tell()

    def _note_progress(self) -> None:
        """Whatever opens the epoch moved one of these."""
        sensed = self._own.sensed
        marks = (
            self.granted or 0,
            sensed.serving_epoch,
            sensed.epoch_record_end,
            sensed.dispatched,
            self.confirm.value,
            *sorted(self._durable.values()),
        )
        if marks != self._marks:
            self._marks, self.moved_ms = marks, self._own.now_ms

    # The lease and the set

    def _may_renew_late(self) -> bool:
        """Whether the deadline passed while this process stood still, and may be moved still.

        1. A master is stopped for less than a lease, and goes on behind its deadline. 2. Until then
        its broker answered nobody, by the deadline on the page. 3. If the lease can still be
        renewed, nobody else has taken it: the term goes on, and no client sees more than the pause.
        If it cannot, or not within one request, the term is over.
        """
        own, liveness = self._own, self._own.liveness
        return (
            liveness.woke_ms is not None
            and own.now_ms - liveness.woke_ms < own.times.request_timeout_ms
            and liveness.stood_ms < own.times.lease_ms
            and own.session.holds(self.epoch)
        )

    def _write_lease(self) -> None:
        """Change the set if it is to be changed, else renew when it is time."""
        own, session, now = self._own, self._own.session, self._own.now_ms
        if not session.can_write or session.stored is None:
            if session.due(now):
                own.out.put(*session.read(now))
            return
        if not own.broker_serves:
            return  # a node that serves nobody must not keep the lease
        lease = session.stored.lease
        wanted = self.in_sync.wanted(now) if self.switch is None else None
        if wanted is not None:
            change = lease._replace(in_sync=wanted, in_sync_version=lease.in_sync_version + 1)
            own.out.put(*session.propose(change, now))
            # From here on it may be published: those that it adds are waited for.
            self._know_set()
        elif session.due(now):
            own.out.put(*session.renew(now))

    def _know_set(self) -> None:
        session = self._own.session
        assert session.stored is not None
        if session.backwards:
            # Otherwise: 1. An older lease is put back, of this very term, which lacks a member that
            # was added since. 2. What is acknowledged without that member is lost if the lease is
            # made again, with the newest set, and it takes it.
            return
        in_sync, count = self.in_sync, self._own.count
        joins, leaves = in_sync.joins, in_sync.leaves
        in_sync.known(session.stored.lease, session.unsettled)
        count.in_sync_joins += in_sync.joins - joins
        count.in_sync_leaves += in_sync.leaves - leaves
        self._publish_size()

    def _broker_lost(self, reason: str) -> None:
        if self.switch is None:
            self._depose(reason)
        else:
            # What it appended is in the log: the switch that has begun needs it no more.
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
        """The lowest offset that a connected slave has yet to copy; 0: none does."""
        ends = [link.appended for link in self.links.values() if link.appended is not None]
        # A slave that has yet to copy the first byte of all needs the first file: so does byte 1.
        return max(1, min(ends)) if ends else 0

    def _publish_size(self) -> None:
        self._publish(Slot.IN_SYNC_SIZE, self.in_sync.size(self._own.now_ms))

    def _publish(self, slot: Slot, value: int) -> None:
        """Of the slots that stand while the term does: only what changed, once it is granted."""
        if self.granted is None or self._published.get(slot) == value:
            return
        self._published[slot] = value
        self._own.out.put(Publish(((slot, value),)))
