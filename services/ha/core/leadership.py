"""Who reigns here: from the lease's answers to campaigns, terms and their ends. Pure.

At most one of the three is there: a campaign for the lease, a term, or neither, when the replica
follows. A term ends by fencing the broker first and taking the append lock back; only then does the
replica follow again (docs/replication.md, states). Step before: ``lease.session``. Step after:
``campaign``, ``founding``, ``recreation``, ``mastership``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from services.ha.core import founding
from services.ha.core.campaign import Campaign, Claim, Patience
from services.ha.core.effects import Fence, Publish
from services.ha.core.events import LeaseAnswered, LeaseOutcome
from services.ha.core.failover import State, Trigger, copies
from services.ha.core.following import Following
from services.ha.core.mastership import Mastership
from services.ha.core.orders import LeaseEdits
from services.ha.core.own import Own
from services.ha.core.peers import Peers
from services.ha.core.promises import Promises
from services.ha.core.recreation import Recreation
from services.ha.lease.session import Settled
from services.ha.lease.value import Lease
from tidemark.formats.checkpoint import NodeRole, Slot

UNADOPTED: Final = "unadopted-store"
UNANSWERED_MAX: Final = 3
"""Requests without an outcome, one after the other, that are worth an alarm."""

_WON_BY: Final = {Claim.OWN.value: "startup", Claim.EXPIRED.value: "lost_peer"}

Outcome = Callable[[Lease | None, str], None]
"""Of a campaign that an operator ordered: the lease if it was won, else why it was lost."""


class Leadership:
    """The lease and what this replica makes of it; one for the life of the process."""

    def __init__(
        self,
        own: Own,
        peers: Peers,
        promises: Promises,
        following: Following,
        random: Callable[[], float],
    ) -> None:
        """random: for the waits that keep candidates apart."""
        self.own, self.peers, self.promises, self.following = own, peers, promises, following
        self.campaign: Campaign | founding.Founding | Recreation | None = None
        self.term: Mastership | None = None
        self.edits = LeaseEdits(own)
        self._patience = Patience(own, peers, random)
        self._recreate: tuple[Lease, int] | None = None
        """The lease that was found gone, to be made again, and the old term's deadline."""
        self._outcome: Outcome | None = None
        self._backwards_answers = 0
        self._absent_since_ms: int | None = None
        """Since when there is no lease, as far as this start knows."""
        self._unanswered = 0
        self._why = "startup"

    @property
    def can_stand(self) -> bool:
        """Whether a campaign could begin: nothing is half done here, and broker and reput move, so
        that the epoch would be opened."""
        own = self.own
        ready = copies(own.state) and self.campaign is None and not own.table_writes
        return ready and not own.idle_service and not own.stopping

    def tick(self) -> None:
        """Time passed."""
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
        self.edits.tick()

    def answered(self, event: LeaseAnswered) -> None:
        """A request to the lease ended."""
        own, session = self.own, self.own.session
        answer = session.answered(event, own.now_ms)
        own.out.put(*answer.effects)
        self._note_lease(event.outcome)
        self.edits.settled(answer.settled)
        if self.term is not None:
            self._lease_of_term(self.term, answer.settled)
        elif self.campaign is not None:
            self.campaign.answered(event, answer.settled)
        else:
            self._follow_lease()
            self._consider()

    def stand(self, why: str, *, forced: bool = False, outcome: Outcome | None = None) -> None:
        """Campaign; ``can_stand`` was looked at. outcome: told how it ends."""
        own = self.own
        self._outcome = outcome
        self.following.leave("campaigning")
        own.move(Trigger.STANDS, why)
        self._why = _WON_BY.get(why, "manual")
        self.campaign = Campaign(own, self.promises, won=self._won, lost=self._lost, forced=forced)

    def higher_epoch(self, epoch: int) -> None:
        """An epoch above all that is promised was heard of: whatever is older is over."""
        reason = f"epoch {epoch} was heard of"
        self.depose(reason)
        if self.campaign is not None:
            self.campaign.end(reason)
        self.following.leave(reason)
        # A lease that shows less than an epoch that somebody has taken went back.
        self.own.session.seen = max(self.own.session.seen, (epoch, 0))

    def depose(self, reason: str) -> None:
        """End the term: fence the broker first, then everything that spoke for it."""
        own, term = self.own, self.term
        if term is None:
            return
        self.term = None
        own.count.depositions += 1
        own.out.put(Fence())
        own.move(Trigger.DEPOSED, reason)
        term.end(reason)
        term.take_lock(self._follower_again)

    def give_up(self, reason: str) -> None:
        """Neither reign nor campaign."""
        self.depose(reason)
        if self.campaign is not None:
            self.campaign.end(reason)

    def released(self, node: str) -> None:
        """The lease was released for another node: this term is over, in peace."""
        term = self.term
        assert term is not None
        self.own.count.switchovers += 1
        self.term = None
        term.end(f"handed over to {node}")
        term.take_lock(self._follower_again)

    def _note_lease(self, outcome: LeaseOutcome) -> None:
        own, session = self.own, self.own.session
        if outcome is LeaseOutcome.UNKNOWN:
            self._unanswered += 1
            if self._unanswered >= UNANSWERED_MAX:
                own.alarm("lease-unavailable", f"The lease cannot be reached: {session.reason}.")
            return
        self._unanswered = 0
        own.calm("lease-unavailable")
        if session.latency_ms is not None and session.latency_ms > own.times.renew_ms:
            own.alarm("lease-slow", "The lease answers more slowly than it is to be renewed.")
        else:
            own.calm("lease-slow")
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
            self._absent_since_ms = None
            own.calm("lease-went-backwards")
            own.calm("lease-missing")
            lease = session.stored.lease
            own.known_in_sync = lease.in_sync
            own.known_in_sync_at = lease.epoch, lease.in_sync_version
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
            self.depose(f"the lease is {holder.node if holder else 'nobody'}'s")
        else:
            term.answered(settled)

    def _lease_gone(self, term: Mastership) -> None:
        """Stop answering; then ask for what making the lease again takes."""
        own = self.own
        # One above this term's, no more: members refuse if they know of anything above the term.
        lease = founding.first_lease(own, term.epoch + 1)._replace(
            in_sync=tuple(sorted({own.member, *term.in_sync.wait_set})),
            in_sync_version=own.session.seen[1] + 1,
        )
        self._recreate = lease, term.deadline_ms or own.now_ms
        own.alarm("lease-missing", "The lease was deleted; it is made again if all agree.")
        self.depose("the lease is gone")

    def _follow_lease(self) -> None:
        own, stored = self.own, self.own.session.stored
        if stored is None or own.session.backwards or own.halted is not None:
            return
        lease = stored.lease
        if lease.holder is not None and lease.holder.member != own.member:
            self.following.learned(lease.holder.node, lease.epoch)
        self.following.published()

    def _consider(self) -> None:
        """Begin a campaign when the lease may be taken."""
        own, session = self.own, self.own.session
        if not self.can_stand:
            return
        if session.absent:
            self._consider_founding()
            return
        unchanged_ms = session.unchanged_ms(own.now_ms)
        if not session.can_write or session.stored is None or unchanged_ms is None:
            return
        if own.now_ms < own.paused_until_ms or not self.peers.surveyed or session.reason:
            return  # a lease that cannot be reached now is not to be had either
        found = self._patience.over(session.stored, unchanged_ms)
        if found is None:
            return
        self.stand(found.value)

    def _consider_founding(self) -> None:
        """There is no lease: make the group's first one, if the rules say that it is to be here."""
        own, session = self.own, self.own.session
        reason = founding.hindrance(own, self.peers)
        if reason is not None:
            own.state_reason = reason
            since_ms = self._absent_since_ms
            if since_ms is None:
                self._absent_since_ms = own.now_ms
            elif own.now_ms - since_ms > own.times.link_dead_ms + own.times.request_timeout_ms:
                # Not before: nodes that start together wait for each other for a moment.
                own.alarm("lease-missing", reason)
            return
        if not session.free:
            return
        self.following.leave("founding the group")
        own.move(Trigger.STANDS, "the group's first lease")
        self._why = "startup"
        lease = founding.first_lease(own, self.promises.highest + 1)
        self.campaign = founding.Founding(own, lease, won=self._won, lost=self._lost)

    def _won(self, lease: Lease) -> None:
        own = self.own
        self.campaign = None
        own.move(Trigger.WON, f"epoch {lease.epoch}")
        own.count.won_by[self._why] += 1
        if self._why == "manual":
            # Otherwise: 1. An operator orders a switch to a node that stood still a moment ago. 2.
            # For that stall the node, now master, hands the lease back at once.
            own.liveness.forget()
        self.following.master = None
        self.term = Mastership(own, self.peers, self.promises, lease, depose=self.depose)
        self._tell_outcome(lease, "")

    def _lost(self, reason: str) -> None:
        self.campaign = None
        pause_ms = self.own.times.renew_ms
        self.own.paused_until_ms = max(self.own.paused_until_ms, self.own.now_ms + pause_ms)
        self._tell_outcome(None, reason)
        self._follow_lease()

    def _tell_outcome(self, lease: Lease | None, reason: str) -> None:
        outcome, self._outcome = self._outcome, None
        if outcome is not None:
            outcome(lease, reason)

    def _follower_again(self) -> None:
        own = self.own
        if not own.move(Trigger.TORN_DOWN):
            return  # halted, or being emptied, already
        if own.halted is not None:
            own.move(Trigger.DAMAGED, own.halted.detail)
            return
        own.out.put(Publish(((Slot.ROLE, NodeRole.FOLLOWER),)))
        if self._recreate is not None:
            (lease, deadline_ms), self._recreate = self._recreate, None
            own.move(Trigger.STANDS, "the lease is to be made again")
            self._why = "startup"
            self.campaign = Recreation(
                own, self.peers, lease, deadline_ms=deadline_ms, won=self._won, lost=self._lost
            )
            self.campaign.tick()
            return
        self._follow_lease()
        self._consider()
