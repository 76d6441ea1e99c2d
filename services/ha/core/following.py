"""A replica that is not master: finds the one that is, is compared with it, copies. Pure.

Whom to follow is what the lease says, or the PROMISE of a new master, whichever is the newer epoch.
Every link begins with a settled log and a divergence check, and ends with the epoch. Step before:
an epoch is promised. Step after: the log's thread copies (effect Copy), the master counts ACKs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from services.ha.core.effects import Cut, Publish, Resync, Settle
from services.ha.core.events import Copied, CopyFault, Done
from services.ha.core.failover import State, Trigger, copies
from services.ha.core.own import DAMAGE, RETRIED_FAULTS, Own
from services.ha.core.peers import Peers
from services.ha.core.promises import Promises
from services.ha.core.slave_protocol import SlaveLink, SlaveLog
from services.ha.core.truncation import CutPlan, Halt, InOrder, LogsDiffer, Outcome, ResyncPlan
from services.ha.wire.payloads import Append, HelloOk, ResyncRequired
from tidemark.formats.checkpoint import NodeRole, Slot, Trouble

FAULT_PAUSE_MS: Final = 2000
"""After bytes that could not be copied, before they are asked for again."""
DAMAGED: Final = Trouble.DAMAGED.name.lower()
"""What a node whose log is damaged says of itself in STATUS."""
RESYNC: Final = "resync"
"""Alarm from the order until bytes of the master come in order again."""


class Master(NamedTuple):
    """Whom to follow."""

    node: str
    epoch: int


class Following:
    """The slave's part of one start of ha."""

    def __init__(
        self, own: Own, peers: Peers, promises: Promises, random: Callable[[], float]
    ) -> None:
        """random: for the lease session of a new incarnation."""
        self._own, self._peers, self._promises = own, peers, promises
        self._random = random
        self._rewrite = 0
        """Token of the last cut or resync."""
        self._emptied: Done | None = None
        self.master: Master | None = None
        self.link: SlaveLink | None = None
        self._settling = False
        self._tried: int | None = None
        """The connection on which HELLO was sent last: each has one divergence check."""
        self._not_before_ms = 0

    @property
    def linked(self) -> bool:
        """Whether bytes come, or may come, from a master."""
        return self.link is not None and self.link.in_order

    @property
    def rewriting(self) -> bool:
        """Whether a cut or a resync is under way; damage may have changed the state meanwhile."""
        return self._own.out.awaits(self._rewrite) or self._emptied is not None

    def learned(self, node: str, epoch: int) -> None:
        """That node holds the lease with that epoch; an older epoch says nothing."""
        master = Master(node, epoch)
        if node == self._own.name or master == self.master:
            return
        if epoch < self._promises.promised or (self.master and epoch <= self.master.epoch):
            return
        self.leave(f"epoch {epoch} is {node}'s")
        self.master = master
        self._not_before_ms = 0  # what could not be copied was another master's
        self._peers.hurry(node)
        self._promises.promise(epoch, self.tick)

    def leave(self, reason: str) -> None:
        """Stop following whoever is followed: no ack leaves after this."""
        link, self.link = self.link, None
        if link is not None:
            self._peers.close(link.link, reason)
        self._own.move(Trigger.LINK_LOST, reason)

    def end(self) -> bool:
        """This process is to end: tell the master, once; whether it may wait for this replica."""
        if self.link is None:
            return False
        self._own.out.put(*self.link.leave())
        return self.link.leaving and self.linked and self._own.state is State.IN_SYNC

    def tick(self) -> None:
        """Begin where nothing is begun, end what is dead."""
        own = self._own
        self._renew()
        if self.link is not None:
            if self.link.dead(own.now_ms):
                self.leave("nothing heard from the master")
            elif self.link.closed:
                self._dropped("the link was closed")
            return
        if not copies(own.state) or self._settling or own.table_writes:
            return
        if own.now_ms < self._not_before_ms:
            return
        master = self.master
        if master is None or self._promises.pending or master.epoch != self._promises.promised:
            return
        if own.stopping:
            return
        peer = self._peers.by_node.get(master.node)
        if peer is not None and peer.link is not None and peer.link != self._tried:
            self._begin(master, peer.link)

    def down(self, link: int, reason: str) -> None:
        """A connection is gone."""
        if self.link is not None and self.link.link == link:
            self._dropped(reason or "connection lost")

    def received(self, link: int, payload: HelloOk | ResyncRequired | Append) -> None:
        """The master says something; its epoch is the promised one."""
        slave = self.link
        if slave is None or slave.link != link:
            return
        own = self._own
        if isinstance(payload, Append):
            own.out.put(*slave.append(payload, own.now_ms))
            self._confirmed(slave)
            return
        if isinstance(payload, HelloOk):
            outcome, effects = slave.hello_ok(payload, own.log.crc_before, own.now_ms)
        else:
            outcome, effects = slave.resync_required(payload, own.now_ms)
        if isinstance(outcome, InOrder) and own.damage:
            # Met when nobody else led. Another one does now, and has what is damaged here. Nothing
            # is acknowledged: the master would add this replica to the set.
            self.leave("this log is damaged")
            own.halt(DAMAGE, own.damage)
            return
        own.out.put(*effects)
        if outcome is not None:
            self._compared(outcome)

    def copied(self, event: Copied) -> None:
        """Bytes are in the log, and on disk: acknowledge them."""
        own, slave = self._own, self.link
        own.end, own.durable = event.end, event.durable
        own.writes_again()
        if slave is None:
            return
        own.out.put(*slave.copied(event.end, event.durable))
        self._confirmed(slave)

    def fault(self, event: CopyFault) -> None:
        """Bytes could not be copied: the link ends, and the next one begins with what is there."""
        own = self._own
        if own.state is State.RESYNC:
            return  # of the log that is being emptied
        own.ends_at(event.end)
        self._not_before_ms = own.now_ms + FAULT_PAUSE_MS
        self.leave(f"{event.code}: {event.detail}")
        if event.code in RETRIED_FAULTS:
            own.alarm(event.code, event.detail)
        else:
            own.failed(event.code, event.detail)

    def resync(self, first_offset: int, reason: str) -> None:
        """Empty the store and begin again; broker and reput end meanwhile."""
        own = self._own
        own.count.resyncs += 1
        own.alarm(RESYNC, f"The store is emptied and copied anew: {reason}.", reason=reason)
        own.out.put(Publish(((Slot.ROLE, NodeRole.RESYNC),)))
        self._rewrite = own.out.ask(
            lambda token: Resync(token, first_offset, reason), self._resynced
        )

    def _begin(self, master: Master, link: int) -> None:
        self._settling = True
        self._own.out.ask(Settle, lambda done: self._settled(done, master, link))

    def _settled(self, done: Done, master: Master, link: int) -> None:
        own = self._own
        self._settling = False
        own.ends_at(done.end)
        own.durable = done.durable
        peer = self._peers.by_node[master.node]
        if not copies(own.state) or self.master != master or peer.link != link:
            return
        self._tried = link
        said = self._peers.fresh(master.node)
        log = SlaveLog(
            group=own.setup.group,
            member=own.member,
            version=peer.version,
            file_size=own.setup.file_size,
            promised=self._promises.promised,
            first_offset=own.first_offset,
            end=own.end,
            durable=own.durable,
            confirm=own.confirm,
            table=own.table,
            master_is_damaged=said is not None and said.facts.get("trouble") == DAMAGED,
        )
        self.link = SlaveLink(
            link,
            epoch=master.epoch,
            own=log,
            new_token=self._table_token,
            rules=own.times,
            now_ms=own.now_ms,
        )
        own.out.put(*self.link.hello())

    def _table_token(self) -> int:
        slave = self.link
        self._own.table_writes += 1
        return self._own.out.token(
            lambda done: self._table_persisted(slave, done), self._table_unwritten
        )

    def _table_unwritten(self, code: str, detail: str) -> None:
        own = self._own
        own.table_writes -= 1
        own.no_room(code, detail)
        self._not_before_ms = own.now_ms + FAULT_PAUSE_MS
        self.leave(f"{code}: {detail}")

    def _table_persisted(self, slave: SlaveLink | None, done: Done) -> None:
        # The link may be over by now. The entry is on disk in any case; the next link begins
        # without it if its bytes never came.
        own = self._own
        own.table_writes -= 1
        if slave is None:
            return
        own.table = slave.table
        if slave is self.link:
            own.out.put(*slave.table_persisted(done.token))

    def _compared(self, outcome: Outcome) -> None:
        own = self._own
        match outcome:
            case InOrder(_, agrees):
                own.calm(RESYNC)
                if agrees:
                    own.logs_agree()
                own.move(Trigger.IN_ORDER)
                self.published()
            case CutPlan(point, table):
                self.link = None
                own.move(Trigger.MUST_CUT, f"{own.end - point} bytes from {point} on")
                own.count.truncations += 1
                own.count.truncated_bytes += own.end - point
                self._rewrite = own.out.ask(
                    lambda token: Cut(token, point, table), lambda done: self._cut(done, outcome)
                )
            case Halt(point, confirm):
                self.link = None
                own.halt(
                    "cut-below-confirm",
                    f"the master's log parts from this one at {point}, and {confirm} was confirmed "
                    "here. Nothing was cut. Find out which history is right; `tidemark cluster "
                    "resync` gives this one up.",
                )
            case LogsDiffer():
                self._not_before_ms = own.now_ms + FAULT_PAUSE_MS
                self.leave("its log and this one differ")
                if own.damage:
                    own.halt(DAMAGE, own.damage)
                else:
                    own.logs_differ(outcome.start, outcome.end)
            case ResyncPlan(first_offset, reason):
                self.link = None
                self._must_resync(first_offset, reason)

    def _must_resync(self, first_offset: int, reason: str) -> None:
        own = self._own
        if own.damage and own.confirm > own.first_offset:
            own.halt(DAMAGE, own.damage)
            return
        own.move(Trigger.MUST_RESYNC, reason)
        self.resync(first_offset, reason)

    def _cut(self, done: Done, plan: CutPlan) -> None:
        own = self._own
        own.end, own.durable, own.table = done.end, done.durable, plan.table
        if own.end < own.confirm:
            own.halt("cut-below-confirm", f"the cut went to {own.end}, below {own.confirm}")
            return
        own.move(Trigger.CUT)
        self.tick()

    def _resynced(self, done: Done) -> None:
        self._emptied = done
        self._own.session.abandon()
        self._renew()

    def _renew(self) -> None:
        """Go on as the new member, once the old one's last request to the lease is answered."""
        own, done = self._own, self._emptied
        if done is None or not own.session.free:
            return
        self._emptied = None
        own.renew_identity(done.incarnation, self._random)
        own.table = ()
        own.first_offset = own.end = own.durable = own.confirm = done.end
        own.damage = ""
        if own.state is not State.HALTED:
            own.halted = None
        # Halted while the store was emptied, it stays so, and says why.
        kept = (RESYNC,) if own.halted is None else (RESYNC, own.halted.code)
        for code in [code for code in own.alarms if code not in kept]:
            own.calm(code)
        own.say("resynced", "The store is empty, under a new incarnation", start_offset=done.end)
        # Every connection was made under the old name.
        self._peers.close_all("this node has a new incarnation")
        self.master = None
        own.move(Trigger.RESYNCED)
        own.out.put(Publish(((Slot.CONFIRM, own.confirm), (Slot.ROLE, NodeRole.FOLLOWER))))

    def published(self) -> None:
        """The lease was read, or the link began: is this replica in the set?

        A lease of an epoch before the master's says nothing of that: the master may have left this
        replica out when it took the lease.
        """
        own, stored, master = self._own, self._own.session.stored, self.master
        if stored is None:
            return
        in_set = own.member in stored.lease.in_sync
        is_old = master is not None and stored.lease.epoch < master.epoch
        if own.state is State.CATCHUP and in_set and not is_old:
            own.move(Trigger.PUBLISHED)
        elif own.state is State.IN_SYNC and not in_set:
            own.move(Trigger.REMOVED, "the master took this replica out of the in-sync set")

    def _confirmed(self, slave: SlaveLink) -> None:
        own = self._own
        if slave.confirm > own.confirm:
            own.confirm = slave.confirm
            own.out.put(Publish(((Slot.CONFIRM, own.confirm),)))
        if slave.closed:
            self._dropped("the master sent what cannot be")

    def _dropped(self, reason: str) -> None:
        self.link = None
        # Said by the change of state, if it is one: a node that is not master yet refuses often.
        if not self._own.move(Trigger.LINK_LOST, reason):
            self._own.state_reason = reason
