"""One replica of a group: every decision of ha, as one object (docs/replication.md). Pure.

Events in, effects out (``events``, ``effects``), the boot-time clock as an argument. The shell
carries effects out in their order; the simulation runs the same object on a simulated world. This
module sends each event to the part that it concerns and moves between those parts: ``following`` a
master, a ``campaign`` for the lease, a ``mastership``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from services.ha import founding, payloads, status
from services.ha.campaign import Campaign, Patience
from services.ha.effects import Effect, Fence, PersistConfirm, Publish, TakeAppendLock
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
from services.ha.failover import Happening, State, copies
from services.ha.following import Following
from services.ha.frames import BadFrame
from services.ha.lease.session import LeaseSession, Settled
from services.ha.lease.value import Lease
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
from services.ha.setup import Found, LogBytes, Setup
from tidemark.formats.checkpoint import NodeRole, Slot

__all__ = ["Found", "LogBytes", "Replica", "Setup"]

CONFIRM_WRITTEN_MS: Final = 1000
"""The confirm checkpoint on disk is at most so old."""
HELD_FRAMES_MAX: Final = 65_536
"""Frames that wait for a promise to be written; the window of a link is far less."""


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
        self.following = Following(self.own, self.peers, self.promises)
        self.campaign: Campaign | founding.Founding | None = None
        self.term: Mastership | None = None
        self._patience = Patience(self.own, self.peers, random)
        self._held: list[Received] = []
        self._confirm_written = (found.confirm, 0)
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
            if own.state is not State.HALTED and session.due(own.now_ms):
                own.out.put(*session.read(own.now_ms))
            self.following.tick()
            self._consider()
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
        if self.term is not None:
            self._lease_of_term(answer.settled)
            return
        if self.campaign is not None:
            self.campaign.answered(event, answer.settled)
            return
        self._follow_lease()
        self._consider()

    def _note_lease(self) -> None:
        own, session = self.own, self.own.session
        if session.backwards:
            own.alarm(
                "lease-went-backwards",
                "The lease shows less than was seen before: nobody takes or renews it. See "
                "`tidemark cluster recreate-lease`.",
            )
        elif session.stored is not None:
            own.calm("lease-went-backwards")
            own.calm("lease-missing")
            own.known_in_sync = session.stored.lease.in_sync
        if own.initialised or not own.holds_records:
            self.promises.see(session.seen)

    def _lease_of_term(self, settled: Settled | None) -> None:
        term, session = self.term, self.own.session
        assert term is not None
        if session.stored is None:
            if session.absent:
                self._depose("the lease is gone")
            return
        if not session.holds(term.epoch):
            holder = session.stored.lease.holder
            self._depose(f"the lease is {holder.node if holder else 'nobody'}'s")
            return
        term.answered(settled)

    def _follow_lease(self) -> None:
        own, stored = self.own, self.own.session.stored
        if stored is None or own.session.backwards:
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
        if not own.broker_serves or own.now_ms < own.paused_until_ms:
            return
        found = self._patience.over(session.stored, unchanged_ms)
        if found is None:
            return
        self.following.leave("campaigning")
        own.happen(Happening.STANDS, found.value)
        self.campaign = Campaign(own, self.promises, won=self._won, lost=self._lost)

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

    def _lost(self, reason: str) -> None:
        self.campaign = None
        self.own.paused_until_ms = self.own.now_ms + self.own.times.renew_ms
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
        if term.lock_given:
            own.out.ask(TakeAppendLock, self._torn_down)
        else:
            self._follower_again()

    def _torn_down(self, done: Done) -> None:
        own = self.own
        own.end, own.durable = done.end, done.durable
        self._follower_again()

    def _follower_again(self) -> None:
        own = self.own
        own.happen(Happening.TORN_DOWN)
        if own.halted is not None:
            own.happen(Happening.DAMAGED, own.halted.detail)
            return
        own.out.put(Publish(((Slot.ROLE, NodeRole.FOLLOWER),)))
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
                self.own.out.put(*self.own.session.read(self.own.now_ms))

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

    def _command(self, command: Command) -> None:
        raise NotImplementedError

    def status(self, now_ms: int) -> dict[str, Any]:
        """The answer to ``GET /v1/cluster``."""
        self.own.now_ms = max(self.own.now_ms, now_ms)
        return status.cluster_status(self.own, self.peers, self.term)
