"""One replica of a group: every decision of ha, as one object (docs/replication.md). Pure.

Events in, effects out (``events``, ``effects``), the boot-time clock as an argument. The shell
carries effects out in their order; the simulation runs the same object on a simulated world. This
module sends each event to the part that it concerns and moves between those parts: ``following`` a
master, a ``campaign`` for the lease, a ``mastership``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from services.ha import founding, orders, payloads, status
from services.ha.campaign import Campaign, Claim, Patience
from services.ha.effects import Effect, Fence, PersistConfirm, Publish, Reply
from services.ha.events import (
    Command,
    Copied,
    CopyFault,
    Done,
    Event,
    Failed,
    LeaseAnswered,
    LinkDown,
    LinkUp,
    Received,
    Sensed,
    Tick,
)
from services.ha.failover import Happening, State, copies, reigns
from services.ha.following import Following
from services.ha.frames import BadFrame
from services.ha.lease.session import LeaseSession, Settled
from services.ha.lease.value import Holder, Lease, Member
from services.ha.mastership import Mastership
from services.ha.own import Counters, Own
from services.ha.payloads import (
    Ack,
    Append,
    CampaignNow,
    Fenced,
    Hello,
    HelloOk,
    Payload,
    Promise,
    PromiseOk,
    PromisePurpose,
    ResyncRequired,
    Status,
    StatusOk,
)
from services.ha.peers import Peers
from services.ha.promises import Promises
from services.ha.recreation import Recreation
from services.ha.setup import Found, LogBytes, Setup
from services.ha.switchover import Switchover
from tidemark.formats.checkpoint import NodeRole, Slot

__all__ = ["Found", "LogBytes", "Replica", "Setup"]

CONFIRM_WRITTEN_MS: Final = 1000
"""The confirm checkpoint on disk is at most so old."""
SWITCH_PAUSE_MS: Final = 10_000
"""Between two switches that trouble asks for."""
SWITCH_MS_MAX: Final = 5000
"""An operator waits no longer for the target."""
UNADOPTED: Final = "unadopted-store"
HELD_FRAMES_MAX: Final = 65_536
"""Frames that wait for a promise to be written; the window of a link is far less."""


class _Switch(NamedTuple):
    """A planned switch whose outcome an operator waits for."""

    token: int
    since_ms: int
    released_to: str | None = None


class Replica:
    """One start of ha on one volume. Byte 0 is held and the log recovered when it is made."""

    def __init__(
        self, setup: Setup, found: Found, *, log: LogBytes, random: Callable[[], float]
    ) -> None:
        """random: uniform in [0, 1): keeps candidates apart and renewals out of step."""
        self.setup, self.found = setup, found
        seen = (found.seen_epoch, found.seen_version)
        session = LeaseSession(found.holder(setup), setup.times, seen, random)
        self.own = Own(setup, found, log, session)
        self.promises = Promises(self.own, found.promised, seen)
        self.peers = Peers(self.own)
        self.following = Following(self.own, self.peers, self.promises, random)
        self.campaign: Campaign | founding.Founding | Recreation | None = None
        self.term: Mastership | None = None
        self._patience = Patience(self.own, self.peers, random)
        self._edits = orders.LeaseEdits(self.own)
        self._recreate: tuple[Lease, int] | None = None
        """The lease that was found gone, to be made again, and the old term's deadline."""
        self._given: tuple[int, Holder] | None = None
        """The last promise given for making the lease again: the same question, the same answer."""
        self._switch: _Switch | None = None
        self._switch_not_before_ms = 0
        self._failover: tuple[int, orders.Loss] | None = None
        self._held: list[Received] = []
        self._confirm_written = (found.confirm, 0)
        self._backwards_answers = 0
        self._begun = False

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """What is to be done because of event. The first one of all begins."""
        own = self.own
        own.now_ms = now_ms
        if not self._begun:
            self._begin()
        match event:
            case Tick():
                self._tick()
            case Sensed():
                self._sensed(event)
            case Received():
                self._received(event)
            case LeaseAnswered():
                self._lease_answered(event)
            case Copied():
                self.following.copied(event)
            case CopyFault():
                self.following.fault(event)
            case Done() | Failed():
                own.out.answered(event)
                self._release_held()
            case LinkUp(link, peer, outbound, version):
                self.peers.up(link, peer, outbound=outbound, version=version)
                self.following.tick()
            case LinkDown(link, node, reason):
                self._link_down(link, node, reason)
            case Command():
                self._command(event)
        if own.halted is not None:
            self._depose(own.halted.detail)
        return own.out.take()

    @property
    def state(self) -> State:
        """What it is."""
        return self.own.state

    @property
    def session(self) -> LeaseSession:
        """What it knows of the lease."""
        return self.own.session

    @property
    def count(self) -> Counters:
        """Since this start."""
        return self.own.count

    # Beginning, time

    def _begin(self) -> None:
        own, found = self.own, self.found
        self._begun = True
        boot = self.setup.boot
        own.out.put(
            Publish(
                (
                    (Slot.CONFIRM, min(found.confirm, found.end)),
                    (Slot.HA_BOOT_ID_HIGH, boot[0]),
                    (Slot.HA_BOOT_ID_LOW, boot[1]),
                    (Slot.MIN_IN_SYNC, self.setup.min_in_sync),
                )
            )
        )
        if found.halted is not None:
            code, _, sentence = found.halted.partition(": ")
            own.halt(code, sentence or code)
            return
        own.happen(Happening.RECOVERED)
        own.out.put(Publish(((Slot.ROLE, NodeRole.FOLLOWER),)))

    def _tick(self) -> None:
        own, session = self.own, self.own.session
        own.out.put(*session.tick(own.now_ms))
        if self.term is not None:
            self.term.tick()
        else:
            if self.campaign is not None:
                self.campaign.tick()
            if own.state is not State.RESYNC and session.due(own.now_ms):
                own.out.put(*session.read(own.now_ms))
            self.following.tick()
            self._consider()
        self._edits.tick()
        self._watch_switch()
        self.peers.tick(self.promises.promised, self._urgent())
        self._write_confirm()

    def _urgent(self) -> str | None:
        """The node that has the lease and is not master yet: clients here wait to hear of it."""
        master = self.following.master
        told = None if master is None else self.peers.fresh(master.node)
        if master is None or told is None or told.state == State.MASTER.value:
            return None
        return master.node

    def _write_confirm(self) -> None:
        own = self.own
        written, at_ms = self._confirm_written
        if own.confirm > written and own.now_ms - at_ms >= CONFIRM_WRITTEN_MS:
            self._confirm_written = own.confirm, own.now_ms
            own.out.put(PersistConfirm(own.confirm))

    def _sensed(self, sensed: Sensed) -> None:
        own = self.own
        own.sensed = sensed
        own.first_offset = max(own.first_offset, sensed.first_offset)
        if self.term is not None:
            self.term.sensed()

    # The lease

    def _lease_answered(self, event: LeaseAnswered) -> None:
        own, session = self.own, self.own.session
        answer = session.answered(event, own.now_ms)
        own.out.put(*answer.effects)
        self._note_lease()
        self._edits.settled(answer.settled)
        if self.term is not None:
            self._lease_of_term(self.term, answer.settled)
        elif self.campaign is not None:
            self.campaign.answered(event, answer.settled)
        else:
            self._follow_lease()
            self._consider()

    def _note_lease(self) -> None:
        own, session = self.own, self.own.session
        if session.backwards:
            self._backwards_answers += 1
        else:
            self._backwards_answers = 0
        # One answer may have been on its way since before we heard of a newer epoch.
        if self._backwards_answers > 1:
            own.alarm(
                "lease-went-backwards",
                "The lease shows less than was seen before: nobody takes or renews it. See "
                "`tidemark cluster recreate-lease`.",
            )
        elif session.stored is not None and not session.backwards:
            own.calm("lease-went-backwards")
            own.calm("lease-missing")
            own.known_in_sync = session.stored.lease.in_sync
        if own.initialised or not own.holds_records:
            self.promises.see(session.seen)
        elif (
            session.stored is not None
            and own.halted is None
            and own.member not in session.stored.lease.in_sync
        ):
            own.halt(
                UNADOPTED,
                "this store holds records and no group's marker, and the group has a lease "
                "already. Nothing was changed. `tidemark cluster adopt` lets the master compare it "
                "with its own log, and cut or copy what differs; or empty the store.",
            )

    def _lease_of_term(self, term: Mastership, settled: Settled | None) -> None:
        session = self.own.session
        if term.switch is not None and term.switch.releasing:
            term.switch.answered(settled)
            if self.term is None:
                return
        if session.stored is None:
            if session.absent:
                self._lease_gone(term)
        elif not session.holds(term.epoch):
            holder = session.stored.lease.holder
            self._depose(f"the lease is {holder.node if holder else 'nobody'}'s")
        else:
            term.answered(settled)

    def _lease_gone(self, term: Mastership) -> None:
        """Stop answering; then ask for what making the lease again takes."""
        own = self.own
        epoch = max(term.epoch, own.session.given_up) + 1
        lease = founding.first_lease(own, epoch)._replace(
            in_sync=tuple(sorted({own.member, *term.in_sync.wait_set})),
            in_sync_version=own.session.seen[1] + 1,
        )
        self._recreate = lease, term.deadline_ms or own.now_ms
        own.alarm("lease-missing", "The lease was deleted; it is made again if all agree.")
        self._depose("the lease is gone")

    def _follow_lease(self) -> None:
        own, stored = self.own, self.own.session.stored
        if stored is None or own.session.backwards or own.halted is not None:
            return
        lease = stored.lease
        if lease.holder is not None and lease.holder.member != own.member:
            self.following.learned(lease.holder.node, lease.epoch)
        self.following.published()

    # Becoming master, and the end of it

    def _consider(self) -> None:
        """Begin a campaign when the lease may be taken."""
        own, session = self.own, self.own.session
        if not copies(own.state) or self.campaign is not None or own.table_writes:
            return
        if session.absent:
            self._consider_founding()
            return
        unchanged_ms = session.unchanged_ms(own.now_ms)
        if not session.can_write or session.stored is None or unchanged_ms is None:
            return
        if not own.broker_serves or own.now_ms < own.paused_until_ms or not self.peers.surveyed:
            return
        found = self._patience.over(session.stored, unchanged_ms)
        if found is None:
            return
        self._stand(found.value)

    def _stand(self, why: str, *, forced: bool = False) -> None:
        own = self.own
        self.following.leave("campaigning")
        own.happen(Happening.STANDS, why)
        self.campaign = Campaign(own, self.promises, won=self._won, lost=self._lost, forced=forced)

    def _consider_founding(self) -> None:
        """There is no lease: make the group's first one, if the rules say that it is to be here."""
        own, session = self.own, self.own.session
        reason = founding.hindrance(own, self.peers)
        if reason is not None:
            own.alarm("lease-missing", reason)
            return
        if not session.free or not own.broker_serves:
            return
        self.following.leave("founding the group")
        own.happen(Happening.STANDS, "the group's first lease")
        lease = founding.first_lease(own, self.promises.highest + 1)
        self.campaign = founding.Founding(own, lease, won=self._won, lost=self._lost)

    def _won(self, lease: Lease) -> None:
        own = self.own
        self.campaign = None
        own.happen(Happening.WON, f"epoch {lease.epoch}")
        self.following.master = None
        self.term = Mastership(own, self.peers, self.promises, lease, depose=self._depose)
        if self._failover is not None:
            (token, loss), self._failover = self._failover, None
            body = {"master": own.name, "epoch": lease.epoch, **loss.body}
            own.out.put(Reply(token, ok=True, body=body))

    def _lost(self, reason: str) -> None:
        self.campaign = None
        self.own.paused_until_ms = self.own.now_ms + self.own.times.renew_ms
        if self._failover is not None:
            (token, loss), self._failover = self._failover, None
            self._refuse(token, orders.Refused(f"{reason}. Nothing was lost.", **loss.body))
        self._follow_lease()

    def _depose(self, reason: str) -> None:
        """End the term: fence the broker first, then everything that spoke for it."""
        own, term = self.own, self.term
        if term is None:
            return
        self.term = None
        own.count.depositions += 1
        own.out.put(Fence())
        own.happen(Happening.DEPOSED, reason)
        term.end(reason)
        self._edits.abandoned()
        term.take_lock(self._follower_again)

    def _follower_again(self) -> None:
        own = self.own
        own.happen(Happening.TORN_DOWN)
        if own.halted is not None:
            own.happen(Happening.DAMAGED, own.halted.detail)
            return
        own.out.put(Publish(((Slot.ROLE, NodeRole.FOLLOWER),)))
        if self._recreate is not None:
            (lease, deadline_ms), self._recreate = self._recreate, None
            own.happen(Happening.STANDS, "the lease is to be made again")
            self.campaign = Recreation(
                own, self.peers, lease, deadline_ms=deadline_ms, won=self._won, lost=self._lost
            )
            self.campaign.tick()
            return
        self._follow_lease()
        self._consider()

    # Frames

    def _received(self, event: Received) -> None:
        if not self.peers.open(event.link):
            return
        self.peers.heard(event.link)
        if self.promises.pending:
            self._hold(event)
            return
        self._take(event)

    def _hold(self, event: Received) -> None:
        """What comes while an epoch is being promised waits, in its order."""
        if len(self._held) >= HELD_FRAMES_MAX:
            self.peers.close(event.link, "too many frames wait for a promise")
            return
        self._held.append(event)

    def _release_held(self) -> None:
        while self._held and not self.promises.pending:
            held, self._held = self._held, []
            for index, event in enumerate(held):
                if self.promises.pending:
                    self._held = held[index:]
                    break
                if self.peers.open(event.link):
                    self._take(event)

    def _take(self, event: Received) -> None:
        link, frame = event
        try:
            payload = payloads.parse(frame)
        except BadFrame as error:
            self.peers.close(link, f"bad-frame: {error}")
            return
        if isinstance(payload, (Status, StatusOk)):
            self._status(link, payload)
            return
        if isinstance(payload, Promise) and payload.purpose is PromisePurpose.CREATE_LEASE:
            self._asked_for_lease(link, frame.epoch, payload)
            return
        if isinstance(self.campaign, Recreation):
            if isinstance(payload, PromiseOk) and frame.epoch == self.campaign.epoch:
                self.campaign.promised(link)
                return
            if isinstance(payload, Fenced):
                self.campaign.refused(link)
        if frame.epoch < self.promises.promised:
            self.own.count.refused_frames += 1
            self.peers.send(link, self.promises.promised, Fenced(self.promises.promised))
            self.peers.close(link, f"epoch {frame.epoch} of it is over")
            return
        if frame.epoch > self.promises.promised:
            self._higher_epoch(event)
            return
        self._in_epoch(link, frame.epoch, payload)

    def _higher_epoch(self, event: Received) -> None:
        """Promise it durably before anything is made of the frame; a term of less is over."""
        epoch = event.frame.epoch
        if event.frame.epoch > self.promises.highest:
            self._depose(f"epoch {epoch} was heard of")
            if self.campaign is not None:
                self.campaign.fence(epoch)
            self.following.leave(f"epoch {epoch} was heard of")
        # A lease that shows less than an epoch that somebody has taken went back.
        self.own.session.seen = max(self.own.session.seen, (epoch, 0))
        self._hold(event)
        self.promises.promise(epoch)

    def _in_epoch(self, link: int, epoch: int, payload: Payload) -> None:
        peers, term = self.peers, self.term
        match payload:
            case Append() | HelloOk() | ResyncRequired():
                self.following.received(link, payload)
            case Ack():
                if term is not None:
                    term.ack(link, payload)
            case Hello():
                self._hello(link, payload)
            case Promise():
                self._asked_to_promise(link, epoch, payload)
            case PromiseOk():
                peer = peers.outgoing(link)
                if term is not None and peer is not None:
                    term.promised(peer.node, payload)
            case Fenced():
                self.own.count.fenced_frames += 1
            case CampaignNow():
                self._released_for_us(link)

    def _hello(self, link: int, hello: Hello) -> None:
        incoming = self.peers.incoming.get(link)
        if incoming is None:
            self.peers.close(link, "HELLO on a connection of the other direction")
        elif self.term is None:
            self.peers.close(link, "not the master")
        else:
            self.term.hello(incoming, hello)

    def _asked_to_promise(self, link: int, epoch: int, promise: Promise) -> None:
        own = self.own
        if promise.purpose is PromisePurpose.NEW_TERM:
            self.following.learned(promise.candidate.node, epoch)
        answer = PromiseOk(
            self.promises.promised, own.data_epoch, own.end, own.durable, own.confirm
        )
        self.peers.send(link, epoch, answer)

    def _asked_for_lease(self, link: int, epoch: int, promise: Promise) -> None:
        """A master whose lease is gone asks before anybody has the epoch: refused unless nothing
        newer than its term is known here."""
        own, present = self.own, epoch - 1
        busy = self.campaign is not None or self.term is not None or reigns(own.state)
        newest = max(self.promises.highest, own.session.seen[0])
        again = self._given == (epoch, promise.candidate) and self.promises.highest == epoch
        if busy or not own.initialised or (newest > present and not again):
            self.peers.send(link, self.promises.promised, Fenced(self.promises.promised))
            return
        self._given = epoch, promise.candidate
        # No ack of the old epoch leaves after the promise.
        self.following.leave(f"epoch {epoch} is promised to {promise.candidate.node}")
        previous = self.promises.promised
        answer = PromiseOk(previous, own.data_epoch, own.end, own.durable, own.confirm)
        self.promises.promise(epoch, lambda: self.peers.send(link, epoch, answer))

    def _released_for_us(self, link: int) -> None:
        """The master says that it released the lease for this node: no need to wait."""
        own, slave = self.own, self.following.link
        if slave is None or slave.link != link or self.campaign is not None:
            return
        if copies(own.state) and own.broker_serves and not own.table_writes:
            self._stand(Claim.HANDED_OVER.value)

    def _link_down(self, link: int, node: str, reason: str) -> None:
        self.peers.down(link, node, reason)
        self.following.down(link, reason)
        if self.term is not None:
            self.term.down(link)

    # What others and operators are told

    def _status(self, link: int, payload: Status | StatusOk) -> None:
        if isinstance(payload, StatusOk):
            self.peers.told(link, payload)
            return
        self.peers.send(
            link,
            self.promises.promised,
            status.own_status(self.own, self.term, self.promises.promised),
        )

    # Orders

    def _command(self, order: Command) -> None:
        try:
            self._order(order)
        except orders.Refused as refused:
            self._refuse(order.token, refused)

    def _refuse(self, token: int, refused: orders.Refused) -> None:
        self.own.out.put(Reply(token, ok=False, body=refused.body))

    def _order(self, order: Command) -> None:
        own, token = self.own, order.token
        match order.name:
            case "switchover":
                self._order_switch(order)
            case "failover":
                self._order_failover(order)
            case "pause" | "resume":
                self._edits.begin(token, orders.set_paused(order.name == "pause"))
            case "remove-member":
                node = order.arguments.get("node", "")
                self._edits.begin(token, orders.without_member(own, node))
            case "recreate-lease":
                lease = orders.recreated(own, self.peers, self.promises.highest, order)
                if order.arguments.get("dry_run") == "true":
                    body = {"epoch": lease.epoch, "in_sync": [m.node for m in lease.in_sync]}
                    own.out.put(Reply(token, ok=True, body={**body, "to": lease.handover_to}))
                else:
                    self._edits.begin(token, lambda _: lease, creates=True)
            case "resync":
                self._order_resync(order)
            case "adopt":
                self._order_adopt(token)
            case _:
                raise orders.Refused(f"there is no order {order.name!r}. Nothing was done.")

    def _order_switch(self, order: Command) -> None:
        term = self.term
        if term is None or not term.opened:
            master, _ = status.master_of(self.own, self.peers)
            raise orders.Refused(
                f"{self.own.name} is not the master. Nothing was done.",
                "Send the order to the master.",
                master=master,
            )
        if term.switch is not None:
            raise orders.Refused("a switch is under way. Nothing was done.")
        target = self._target(term, order.arguments.get("to"))
        self._switch = _Switch(order.token, self.own.now_ms)
        self._begin_switch(term, target)

    def _target(self, term: Mastership, to: str | None) -> Member:
        """The slave to switch to. Raises Refused."""
        own = self.own
        if to == own.name:
            raise orders.Refused(f"{to} is the master. Nothing was done.")
        fit = term.fit_targets(self.peers)
        chosen = [member for member in fit if to is None or member.node == to]
        if not chosen:
            raise orders.Refused(
                f"{to or 'no slave'} is in the in-sync set, follows, and is without trouble. "
                "Nothing was done."
                if to is None
                else f"{to} is not in the in-sync set, does not follow, or has trouble of its own. "
                "Nothing was done.",
                "See `tidemark cluster status`.",
                in_sync=[member.node for member in term.in_sync.published],
            )
        return chosen[0]

    def _begin_switch(self, term: Mastership, target: Member) -> None:
        own = self.own
        own.say("switchover", f"Planned switch to {target.node}", to=target.node)
        term.switch = Switchover(
            own,
            self.peers,
            term,
            target,
            failed=self._switch_failed,
            released=self._switch_released,
        )

    def _switch_failed(self, reason: str, fenced: bool) -> None:
        own, term = self.own, self.term
        switch, self._switch = self._switch, None
        self._switch_not_before_ms = own.now_ms + SWITCH_PAUSE_MS
        own.say("switchover-failed", f"The planned switch failed: {reason}", level=logging.WARNING)
        if switch is not None:
            detail = f"{reason}. {own.name} goes on as master."
            if fenced:
                detail = f"{reason}. {own.name} campaigns again at once, with a new epoch."
            self._refuse(switch.token, orders.Refused(detail, "Try again."))
        if term is not None:
            term.switch = None
            own.out.put(Publish(((Slot.SENDS_HELD, 0),)))
            if fenced:
                self._depose(f"a planned switch failed: {reason}")

    def _switch_released(self, node: str) -> None:
        """The lease is the target's to take: this term is over."""
        own, term = self.own, self.term
        assert term is not None
        own.count.switchovers += 1
        if self._switch is not None:
            self._switch = self._switch._replace(released_to=node)
        self.term = None
        term.end(f"handed over to {node}")
        term.take_lock(self._follower_again)

    def _watch_switch(self) -> None:
        """Begin a switch that trouble asks for; answer the operator once the target is master."""
        own, term, switch = self.own, self.term, self._switch
        if term is not None and term.opened and term.switch is None:
            trouble = status.trouble_of(own)
            if trouble and own.now_ms >= self._switch_not_before_ms:
                self._switch_not_before_ms = own.now_ms + SWITCH_PAUSE_MS
                fit = term.fit_targets(self.peers)
                if fit:
                    own.alarm("handed-over", f"This node has trouble: {trouble}.")
                    self._begin_switch(term, fit[0])
        if switch is None or switch.released_to is None:
            return
        told = self.peers.fresh(switch.released_to)
        took_ms = own.now_ms - switch.since_ms
        if told is not None and told.state == State.MASTER.value:
            body = {"master": switch.released_to, "epoch": told.promised, "took_ms": took_ms}
            own.out.put(Reply(switch.token, ok=True, body=body))
            self._switch = None
        elif took_ms > SWITCH_MS_MAX:
            self._switch = None
            detail = f"the lease was released for {switch.released_to}, which is not master yet."
            self._refuse(switch.token, orders.Refused(detail, "See `tidemark cluster status`."))

    def _order_failover(self, order: Command) -> None:
        loss = orders.guard_failover(self.own, self.peers, order)
        if order.arguments.get("dry_run") == "true":
            self.own.out.put(Reply(order.token, ok=True, body=loss.body))
            return
        if self.campaign is not None or self.own.table_writes:
            raise orders.Refused("a campaign or a copy is under way. Nothing was done.", "Again.")
        self._failover = order.token, loss
        self._stand("an operator orders it", forced=True)

    def _order_resync(self, order: Command) -> None:
        own = self.own
        if order.arguments.get("group") != own.setup.group:
            raise orders.Refused(
                f"the group's name is not {order.arguments.get('group')!r}. Nothing was done.",
                "Type the name of the group, to show that you mean this one.",
            )
        master, reason = status.master_of(own, self.peers)
        told = None if master is None else self.peers.fresh(master)
        if master is None or told is None:
            raise orders.Refused(
                f"there is no master to copy from: {reason or 'it does not answer'}. Nothing was "
                "done.",
            )
        if own.table_writes or not own.happen(Happening.ORDERED_RESYNC, "an operator orders it"):
            raise orders.Refused(f"{own.name} is {own.state.value}. Nothing was done.")
        self.following.leave("an operator orders a resync")
        self.following.resync(told.first_offset, "an operator orders it")
        body = {"node": own.name, "copies_from": master, "bytes": told.end - told.first_offset}
        own.out.put(Reply(order.token, ok=True, body=body))

    def _order_adopt(self, token: int) -> None:
        own = self.own
        if own.halted is None or own.halted.code != UNADOPTED:
            raise orders.Refused(f"{own.name} does not hold a store to adopt. Nothing was done.")
        own.halted = None
        own.calm(UNADOPTED)
        own.initialised = True
        own.happen(Happening.ADOPTED, "an operator orders it")
        own.out.put(Publish(((Slot.ROLE, NodeRole.FOLLOWER),)))
        self.promises.see(own.session.seen)
        own.out.put(Reply(token, ok=True, body={"node": own.name, "log_end": own.end}))

    def status(self, now_ms: int) -> dict[str, Any]:
        """The answer to ``GET /v1/cluster``."""
        self.own.now_ms = max(self.own.now_ms, now_ms)
        return status.cluster_status(self.own, self.peers, self.term)
