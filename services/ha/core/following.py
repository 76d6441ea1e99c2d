"""The replica as a slave: finds the master, has the logs compared, copies. Pure.

The master is the holder of the lease, or the sender of a PROMISE with a newer epoch. Every link
begins with a settled log and a divergence check, and ends with the epoch. Step before: an epoch is
promised. Step after: ``copied_log`` writes the bytes (effect Copy), and the master counts the ACKs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from services.ha.core.effects import Cut, Publish, Resync, Settle
from services.ha.core.events import Copied, CopyFault, Done
from services.ha.core.peers import Peers
from services.ha.core.promises import Promises
from services.ha.core.replica_context import DAMAGE, RETRIED_FAULTS, ReplicaContext
from services.ha.core.slave_protocol import SlaveLink, SlaveLog
from services.ha.core.states import State, Trigger, copies
from services.ha.core.truncation import CutPlan, HaltPlan, InOrder, LogsDiffer, Outcome, ResyncPlan
from services.ha.wire.payloads import Append, HelloOk, ResyncRequired
from tidemark.formats.checkpoint import NodeRole, Slot, Trouble

FAULT_PAUSE_MS: Final = 2000
"""Pause after a failed copy, before the bytes are requested again."""
DAMAGED: Final = Trouble.DAMAGED.name.lower()
"""Value of ``trouble`` in STATUS of a node whose log is damaged."""
RESYNC: Final = "resync"
"""Alarm from the command until the master's bytes arrive in order again."""


class FollowedMaster(NamedTuple):
    """The node to follow, and its epoch."""

    node: str
    epoch: int


class Following:
    """The slave's part of one start of ha."""

    def __init__(
        self, context: ReplicaContext, peers: Peers, promises: Promises, random: Callable[[], float]
    ) -> None:
        """random: for the lease session of a new incarnation."""
        self._context, self._peers, self._promises = context, peers, promises
        self._random = random
        self._rewrite = 0
        """Token of the last cut or resync."""
        self._emptied: Done | None = None
        self.master: FollowedMaster | None = None
        self.link: SlaveLink | None = None
        self._settling = False
        self._tried: int | None = None
        """The connection on which HELLO was sent last; each has one divergence check."""
        self._not_before_ms = 0
        self._ends = False
        """Whether this replica is about to end, or to be emptied."""

    @property
    def linked(self) -> bool:
        """Whether the divergence check has passed, so that bytes arrive from a master."""
        return self.link is not None and self.link.in_order

    @property
    def _leaves(self) -> bool:
        """Whether this replica joins no set any more."""
        return self._ends or self._context.stopping

    @property
    def rewriting(self) -> bool:
        """Whether a cut or a resync is under way. Damage may have changed the state meanwhile."""
        return self._context.out.awaits(self._rewrite) or self._emptied is not None

    def learned(self, node: str, epoch: int) -> None:
        """Follow the node, which holds the lease with that epoch; an older epoch is ignored."""
        master = FollowedMaster(node, epoch)
        if node == self._context.name or master == self.master:
            return
        if epoch < self._promises.promised or (self.master and epoch <= self.master.epoch):
            return
        self.leave(f"epoch {epoch} is {node}'s")
        self.master = master
        self._not_before_ms = 0  # bytes that could not be copied were another master's
        self._peers.hurry(node)
        self._promises.promise(epoch, self.tick)

    def forget_master(self) -> None:
        """Forget the master, because this replica is the master now."""
        self.master = None

    def leave(self, reason: str) -> None:
        """Stop following; no ACK leaves after this."""
        link, self.link = self.link, None
        if link is not None:
            self._peers.close(link.link, reason)
        self._context.move(Trigger.LINK_LOST, reason)

    def end(self) -> bool:
        """Announce to the master, once on each link, that this replica ends; return whether the
        master may still wait for it.

        A replica that catches up, or has no link yet, may be in the set, for example the old master
        after a planned switch. If it ended without waiting, senders would wait for a silent member.
        Its announcement could also be lost: 1. it closes a link on which bytes arrive; 2. the
        kernel resets the connection; 3. the master writes before it reads, and drops what it had
        received.
        """
        self._ends = True
        if self.link is not None:
            self._context.out.put(*self.link.leave())
            if self.link.in_order:
                return not self.link.closed
        master = self._expected_master()
        return master is not None and self._peers.recent(master) is not None

    def _expected_master(self) -> str | None:
        """Return the master's node, or the one for which the lease was released."""
        if self.master is not None:
            return self.master.node
        stored = self._context.session.stored
        return None if stored is None else stored.lease.handover_to

    def heard_since(self, since_ms: int) -> bool:
        """Return whether the link is up and a frame of the master has come after that time."""
        return self.link is not None and self.link.heard_ms > since_ms

    def stay(self, reason: str) -> None:
        """Take the announcement back; it ended with its link."""
        self._ends = False
        self.leave(reason)

    def tick(self) -> None:
        """Begin to follow if nothing is under way, and end a dead link."""
        context = self._context
        self._renew()
        if self.link is not None:
            if self.link.dead(context.now_ms):
                self.leave("nothing heard from the master")
            elif self.link.closed:
                self._dropped("the link was closed")
            return
        if not copies(context.state) or self._settling or context.table_writes:
            return
        if context.now_ms < self._not_before_ms:
            return
        master = self.master
        if master is None or self._promises.pending or master.epoch != self._promises.promised:
            return
        if self._leaves and not (context.stopping and context.is_spare):
            return
        peer = self._peers.by_node.get(master.node)
        if peer is not None and peer.link is not None and peer.link != self._tried:
            self._begin(master, peer.link)

    def down(self, link: int, reason: str) -> None:
        """Note that a connection has ended."""
        if self.link is not None and self.link.link == link:
            self._dropped(reason or "connection lost")

    def received(self, link: int, payload: HelloOk | ResyncRequired | Append) -> None:
        """Handle a frame of the master whose epoch is the promised one."""
        slave = self.link
        if slave is None or slave.link != link:
            return
        context = self._context
        if isinstance(payload, Append):
            context.out.put(*slave.append(payload, context.now_ms))
            self._confirmed(slave)
            return
        if isinstance(payload, HelloOk):
            outcome, effects = slave.hello_ok(payload, context.log.crc_before, context.now_ms)
        else:
            outcome, effects = slave.resync_required(payload, context.now_ms)
        if isinstance(outcome, InOrder) and context.damage:
            # The damage was found while no other node led. Now another one does, and has the
            # damaged record. Nothing is acknowledged, because the master would then add this
            # replica to the set.
            self.leave("this log is damaged")
            context.halt(DAMAGE, context.damage)
            return
        context.out.put(*effects)
        if outcome is not None and self._leaves and not isinstance(outcome, InOrder):
            self._dropped("this replica is about to end, and rewrites nothing")
        elif outcome is not None:
            self._compared(outcome)

    def copied(self, event: Copied) -> None:
        """Acknowledge bytes that are in the log and on disk."""
        context, slave = self._context, self.link
        context.set_log_end(event.end, event.durable)
        context.writes_again()
        if slave is None:
            return
        context.out.put(*slave.copied(event.end, event.durable))
        self._confirmed(slave)

    def fault(self, event: CopyFault) -> None:
        """End the link after a failed copy; the next link begins at the end of the log."""
        context = self._context
        if context.state is State.RESYNC:
            return  # it concerns the log that is being emptied
        context.ends_at(event.end)
        self._not_before_ms = context.now_ms + FAULT_PAUSE_MS
        self.leave(f"{event.code}: {event.detail}")
        if event.code in RETRIED_FAULTS:
            context.alarm(event.code, event.detail)
        else:
            context.failed(event.code, event.detail)

    def resync(
        self, first_offset: int, reason: str, intended: Callable[[Done], None] = lambda _: None
    ) -> None:
        """Empty the store and begin again; broker and reput end meanwhile.

        intended: called once a crash cannot prevent it any more.
        """
        context, self._ends = self._context, False
        context.count.resyncs += 1
        context.alarm(RESYNC, f"The store is emptied and copied anew: {reason}.", reason=reason)
        context.out.put(Publish(((Slot.ROLE, NodeRole.RESYNC),)))
        begun = context.out.token(intended)
        self._rewrite = context.out.ask(
            lambda token: Resync(token, begun, first_offset, reason), self._resynced
        )

    def _begin(self, master: FollowedMaster, link: int) -> None:
        self._settling = True
        self._context.out.ask(Settle, lambda done: self._settled(done, master, link))

    def _settled(self, done: Done, master: FollowedMaster, link: int) -> None:
        context = self._context
        self._settling = False
        context.ends_at(done.end)
        context.durable = done.durable
        peer = self._peers.by_node.get(master.node)
        is_present = copies(context.state) and self.master == master
        if not is_present or peer is None or peer.link != link:
            return
        self._tried = link
        status = self._peers.fresh(master.node)
        log = SlaveLog(
            group=context.setup.group,
            member=context.member,
            version=peer.version,
            file_size=context.setup.file_size,
            promised=self._promises.promised,
            first_offset=context.first_offset,
            end=context.end,
            durable=context.durable,
            confirm=context.confirm,
            table=context.table,
            master_is_damaged=status is not None and status.facts.trouble == DAMAGED,
        )
        self.link = SlaveLink(
            link,
            epoch=master.epoch,
            own=log,
            new_token=self._table_token,
            rules=context.times,
            now_ms=context.now_ms,
        )
        context.out.put(*self.link.hello())
        if self._leaves:
            context.out.put(*self.link.leave())

    def _table_token(self) -> int:
        slave = self.link
        self._context.begin_table_write()
        return self._context.out.token(
            lambda done: self._table_persisted(slave, done), self._table_unwritten
        )

    def _table_unwritten(self, code: str, detail: str) -> None:
        context = self._context
        context.end_table_write()
        context.no_room(code, detail)
        self._not_before_ms = context.now_ms + FAULT_PAUSE_MS
        self.leave(f"{code}: {detail}")

    def _table_persisted(self, slave: SlaveLink | None, done: Done) -> None:
        # The link may have ended. The entry is on disk in any case; the next link begins without it
        # if its bytes never arrived.
        context = self._context
        context.end_table_write()
        if slave is None:
            return
        context.table = slave.table
        if slave is self.link:
            context.out.put(*slave.table_persisted(done.token))

    def _compared(self, outcome: Outcome) -> None:
        context = self._context
        match outcome:
            case InOrder(_, agrees):
                context.calm(RESYNC)
                if agrees:
                    context.logs_agree()
                context.move(Trigger.IN_ORDER)
                self.published()
            case CutPlan(point, table):
                self.link = None
                context.move(Trigger.MUST_CUT, f"{context.end - point} bytes from {point} on")
                context.count.truncations += 1
                context.count.truncated_bytes += context.end - point
                self._rewrite = context.out.ask(
                    lambda token: Cut(token, point, table), lambda done: self._cut(done, outcome)
                )
            case HaltPlan(point, confirm):
                self.link = None
                context.halt(
                    "cut-below-confirm",
                    f"the master's log parts from this one at {point}, and {confirm} was confirmed "
                    "here. Nothing was cut. Find out which history is right; `tidemark cluster "
                    "resync` gives this one up.",
                )
            case LogsDiffer():
                self._not_before_ms = context.now_ms + FAULT_PAUSE_MS
                self.leave("its log and this one differ")
                if context.damage:
                    context.halt(DAMAGE, context.damage)
                else:
                    context.logs_differ(outcome.start, outcome.end)
            case ResyncPlan(first_offset, reason):
                self.link = None
                self._must_resync(first_offset, reason)

    def _must_resync(self, first_offset: int, reason: str) -> None:
        context = self._context
        if context.damage and context.confirm > context.first_offset:
            context.halt(DAMAGE, context.damage)
            return
        context.move(Trigger.MUST_RESYNC, reason)
        self.resync(first_offset, reason)

    def _cut(self, done: Done, plan: CutPlan) -> None:
        context = self._context
        context.set_log_end(done.end, done.durable)
        context.table = plan.table
        if context.end < context.confirm:
            context.halt(
                "cut-below-confirm", f"the cut went to {context.end}, below {context.confirm}"
            )
            return
        context.move(Trigger.CUT)
        self.tick()

    def _resynced(self, done: Done) -> None:
        self._emptied = done
        self._context.session.abandon()
        self._renew()

    def _renew(self) -> None:
        """Continue as the new member, once the last lease request of the old one is answered."""
        context, done = self._context, self._emptied
        if done is None or not context.session.free:
            return
        self._emptied = None
        context.renew_identity(done.incarnation, self._random)
        context.table = ()
        context.first_offset = context.end = context.durable = context.confirm = done.end
        context.damage = ""
        if context.state is not State.HALTED:
            context.halted = None
        # If it was halted while the store was emptied, it stays halted and keeps that alarm.
        kept = (RESYNC,) if context.halted is None else (RESYNC, context.halted.code)
        for code in [code for code in context.alarms if code not in kept]:
            context.calm(code)
        context.say(
            "resynced", "The store is empty, under a new incarnation", start_offset=done.end
        )
        # Every connection was made under the old incarnation.
        self._peers.close_all("this node has a new incarnation")
        self.master = None
        context.move(Trigger.RESYNCED)
        context.out.put(Publish(((Slot.CONFIRM, context.confirm), (Slot.ROLE, NodeRole.FOLLOWER))))

    def published(self) -> None:
        """Update whether this replica is in the set, after the lease was read or the link began.

        A lease of an epoch before the master's does not show that, nor one with an older set than
        others have reported: the master may have left this replica out since.
        """
        context, session, master = self._context, self._context.session, self.master
        stored = session.stored
        if stored is None:
            return
        lease = stored.lease
        in_set = context.member in lease.in_sync
        is_old = (lease.epoch, lease.in_sync_version) < session.seen
        is_old = is_old or (master is not None and lease.epoch < master.epoch)
        if context.state is State.CATCHUP and in_set and not is_old:
            context.move(Trigger.PUBLISHED)
        elif context.state is State.IN_SYNC and not in_set:
            context.move(Trigger.REMOVED, "the master took this replica out of the in-sync set")

    def _confirmed(self, slave: SlaveLink) -> None:
        context = self._context
        if slave.confirm > context.confirm:
            context.confirm = slave.confirm
            context.out.put(Publish(((Slot.CONFIRM, context.confirm),)))
        if slave.closed:
            self._dropped("the master sent what cannot be")

    def _dropped(self, reason: str) -> None:
        self.link = None
        # A change of state is logged; otherwise only the reason changes, because a node that is not
        # master yet refuses often.
        if not self._context.move(Trigger.LINK_LOST, reason):
            self._context.state_reason = reason
