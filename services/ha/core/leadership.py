"""The lease and this replica's claim to it: campaigns, terms and their ends. Pure.

There is at most one of them: a campaign for the lease, or a term. With neither, the replica
follows. A term ends by fencing the broker first and taking the append lock back; only then does the
replica follow again (docs/replication.md, states). Step before: ``lease.session``. Step after:
``campaign``, ``founding``, ``recreation``, ``mastership``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from services.ha.core import founding
from services.ha.core.campaign import Campaign, Claim, ElectionDelay
from services.ha.core.effects import Fence, Publish
from services.ha.core.events import LeaseAnswered, LeaseOutcome
from services.ha.core.following import Following
from services.ha.core.lease_edits import LeaseEdits
from services.ha.core.mastership import Mastership
from services.ha.core.peers import Peers
from services.ha.core.promises import Promises
from services.ha.core.recreation import Recreation
from services.ha.core.replica_context import ReplicaContext
from services.ha.core.states import State, Trigger, copies
from services.ha.lease.session import WriteOutcome
from services.ha.lease.value import Lease
from tidemark.formats.checkpoint import NodeRole, Slot

UNADOPTED: Final = "unadopted-store"
REMOVED: Final = "removed-node"
"""Alarm of a node that the group does not have."""
UNANSWERED_MAX: Final = 3
"""Consecutive requests without an outcome that raise an alarm."""

_WON_BY: Final = {Claim.OWN.value: "startup", Claim.EXPIRED.value: "lost_peer"}

Outcome = Callable[[Lease | None, str], None]
"""Called at the end of an ordered campaign: with the lease if it was won, else with the reason."""


class Leadership:
    """Campaigns and terms of one process."""

    def __init__(
        self,
        context: ReplicaContext,
        peers: Peers,
        promises: Promises,
        following: Following,
        random: Callable[[], float],
    ) -> None:
        """random: for the waits that keep candidates apart."""
        self.context, self.peers, self.promises, self.following = (
            context,
            peers,
            promises,
            following,
        )
        self.campaign: Campaign | founding.Founding | Recreation | None = None
        self.term: Mastership | None = None
        self.edits = LeaseEdits(context)
        self._election_delay = ElectionDelay(context, peers, random)
        self._recreate: tuple[Lease, int] | None = None
        """The deleted lease that is to be created again, and the deadline of the old term."""
        self._outcome: Outcome | None = None
        self._backwards_answers = 0
        self._absent_since_ms: int | None = None
        """Since when there is no lease, as far as this start knows; None: there is one."""
        self._unanswered = 0
        self._why = "startup"

    @property
    def can_campaign(self) -> bool:
        """Whether a campaign could begin: nothing is under way here, broker and reput are
        responsive, and the disk writes, so that the epoch would be opened."""
        context = self.context
        ready = copies(context.state) and self.campaign is None and not context.table_writes
        return ready and not context.cannot_open and not context.stopping

    def tick(self) -> None:
        """Send the requests that are due and update campaign, term and following."""
        context, session = self.context, self.context.session
        context.out.put(*session.tick(context.now_ms))
        if self.term is not None:
            self.term.tick()
        else:
            if self.campaign is not None:
                self.campaign.tick()
            if context.state is not State.RESYNC and session.due(context.now_ms):
                context.out.put(*session.read(context.now_ms))
            self.following.tick()
            self._consider()
        self.edits.tick()

    def answered(self, event: LeaseAnswered) -> None:
        """Handle the answer to a request to the lease."""
        context, session = self.context, self.context.session
        answer = session.answered(event, context.now_ms)
        context.out.put(*answer.effects)
        self._note_lease(event.outcome)
        self.edits.settled(answer.settled)
        if self.term is not None:
            self._lease_of_term(self.term, answer.settled)
        elif self.campaign is not None:
            self.campaign.answered(event, answer.settled)
        else:
            self._follow_lease()
            self._consider()

    def begin_campaign(
        self, why: str, *, forced: bool = False, outcome: Outcome | None = None
    ) -> None:
        """Begin a campaign; ``can_campaign`` must hold. outcome: called with its result."""
        context = self.context
        self._outcome = outcome
        self.following.leave("campaigning")
        context.move(Trigger.CAMPAIGNS, why)
        self._why = _WON_BY.get(why, "manual")
        self.campaign = Campaign(
            context, self.promises, won=self._won, lost=self._lost, forced=forced
        )

    def higher_epoch(self, epoch: int) -> None:
        """Handle an epoch above all promised ones: terms and links of lower epochs end."""
        reason = f"epoch {epoch} was heard of"
        self.depose(reason)
        if self.campaign is not None:
            self.campaign.end(reason)
        self.following.leave(reason)
        # If the lease shows an older epoch than one that another node has taken, it was set back.
        self.context.session.note_seen((epoch, 0))

    def depose(self, reason: str) -> None:
        """End the term: fence the broker first, then everything else."""
        context, term = self.context, self.term
        if term is None:
            return
        self.term = None
        context.count.depositions += 1
        context.out.put(Fence())
        context.move(Trigger.DEPOSED, reason)
        term.end(reason)
        term.take_lock(self._follower_again)

    def give_up(self, reason: str) -> None:
        """End the term or the campaign."""
        self.depose(reason)
        if self.campaign is not None:
            self.campaign.end(reason)

    def released(self, node: str) -> None:
        """End the term regularly, after the lease was released for another node."""
        term = self.term
        assert term is not None
        self.context.count.switchovers += 1
        self.term = None
        term.end(f"handed over to {node}")
        term.take_lock(self._follower_again)

    def _note_lease(self, outcome: LeaseOutcome) -> None:
        context, session = self.context, self.context.session
        if outcome is LeaseOutcome.UNKNOWN:
            self._unanswered += 1
            if self._unanswered >= UNANSWERED_MAX:
                context.alarm(
                    "lease-unavailable", f"The lease cannot be reached: {session.reason}."
                )
            return
        self._unanswered = 0
        context.calm("lease-unavailable")
        if session.latency_ms is not None and session.latency_ms > context.times.renew_ms:
            context.alarm("lease-slow", "The lease answers more slowly than it must be renewed.")
        else:
            context.calm("lease-slow")
        if session.backwards:
            self._backwards_answers += 1
        else:
            self._backwards_answers = 0
        # One answer may have been sent before this node heard of a newer epoch.
        if self._backwards_answers > 1:
            context.alarm(
                "lease-went-backwards",
                "The lease shows less than was seen before: it is neither taken nor renewed. See "
                "`tidemark cluster recreate-lease`.",
            )
        elif session.stored is not None and not session.backwards:
            self._absent_since_ms = None
            context.calm("lease-went-backwards")
            context.calm("lease-missing")
            context.known_lease = session.stored.lease
            self._note_members(session.stored.lease)
        if context.initialised or not context.holds_records:
            self.promises.see(session.seen)
        elif (
            session.stored is not None
            and context.halted is None
            and context.member not in session.stored.lease.in_sync
        ):
            context.halt(
                UNADOPTED,
                "this store holds records and no group's marker, and the group has a lease "
                "already. No record was changed. `tidemark cluster adopt` lets the master compare "
                "the log with its own, and cut or copy what differs; or empty the store.",
            )

    def _note_members(self, lease: Lease) -> None:
        """Follow the nodes that the lease has, if they are later than those known here."""
        context = self.context
        if not context.note_members(lease):
            return
        self.peers.follow_members()
        if self.term is not None:
            self.term.leave_removed()
        if context.is_removed:
            context.alarm(
                REMOVED,
                f"{context.name} is not a node of the group with the replication address of its "
                "configuration: it was removed, or not added yet. It copies nothing and cannot "
                "become master. `tidemark cluster add-node` adds it.",
            )
        else:
            context.calm(REMOVED)

    def _lease_of_term(self, term: Mastership, settled: WriteOutcome | None) -> None:
        session = self.context.session
        if term.switch is not None and term.switch.releasing:
            term.switch.answered(settled)
            if self.term is None:
                return
        if session.stored is None:
            if session.absent:
                self._lease_gone(term)
        elif not session.holds(term.epoch):
            holder = session.stored.lease.holder
            self.depose(f"the lease is held by {holder.node if holder else 'no node'}")
        else:
            term.answered()

    def _lease_gone(self, term: Mastership) -> None:
        """Depose, then ask the members for the promises that creating the lease again needs."""
        context = self.context
        # Exactly one above this term's: members refuse if they know of an epoch above the term.
        lease = founding.first_lease(context, term.epoch + 1)._replace(
            in_sync=tuple(sorted({context.member, *term.in_sync.wait_set})),
            in_sync_version=context.session.seen[1] + 1,
        )
        self._recreate = lease, term.deadline_ms or context.now_ms
        context.alarm("lease-missing", "The lease was deleted; it is recreated if all agree.")
        self.depose("the lease is gone")

    def _follow_lease(self) -> None:
        context, stored = self.context, self.context.session.stored
        if stored is None or context.session.backwards or context.halted is not None:
            return
        lease = stored.lease
        if lease.holder is not None and lease.holder.member != context.member:
            self.following.learned(lease.holder.node, lease.epoch)
        self.following.published()

    def _consider(self) -> None:
        """Begin a campaign when the lease may be taken."""
        context, session = self.context, self.context.session
        if not self.can_campaign:
            return
        if session.absent:
            self._consider_founding()
            return
        unchanged_ms = session.unchanged_ms(context.now_ms)
        if not session.can_write or session.stored is None or unchanged_ms is None:
            return
        if context.now_ms < context.paused_until_ms or not self.peers.surveyed or session.reason:
            return  # a lease that cannot be reached cannot be taken either
        found = self._election_delay.over(session.stored, unchanged_ms)
        if found is None:
            return
        self.begin_campaign(found.value)

    def _consider_founding(self) -> None:
        """Create the group's first lease if there is none and the rules allow it here."""
        context, session = self.context, self.context.session
        reason = founding.hindrance(context, self.peers)
        if reason is not None:
            context.state_reason = reason
            since_ms = self._absent_since_ms
            if since_ms is None:
                self._absent_since_ms = context.now_ms
            elif (
                context.now_ms - since_ms
                > context.times.link_dead_ms + context.times.request_timeout_ms
            ):
                # Not earlier: nodes that start together wait for each other for a moment.
                context.alarm("lease-missing", reason)
            return
        if not session.free:
            return
        self.following.leave("founding the group")
        context.move(Trigger.CAMPAIGNS, "the group's first lease")
        self._why = "startup"
        lease = founding.first_lease(context, self.promises.highest + 1)
        self.campaign = founding.Founding(context, lease, won=self._won, lost=self._lost)

    def _won(self, lease: Lease) -> None:
        context = self.context
        self.campaign = None
        context.move(Trigger.WON, f"epoch {lease.epoch}")
        context.count.won_by[self._why] += 1
        if self._why == "manual" and context.liveness.stalling:
            # Otherwise: 1. An operator orders a switch to a node that stalled a moment ago. 2.
            # Because of that stall the node, now master, hands the lease back at once. The lease
            # does not name who ordered the switch. But a master that hands over by itself does not
            # choose a node with this trouble, and any other node keeps the memory of its stalls.
            context.liveness.forget()
        self.following.forget_master()
        self.term = Mastership(context, self.peers, self.promises, lease, depose=self.depose)
        self._report_outcome(lease, "")

    def _lost(self, reason: str) -> None:
        self.campaign = None
        pause_ms = self.context.times.renew_ms
        self.context.paused_until_ms = max(
            self.context.paused_until_ms, self.context.now_ms + pause_ms
        )
        self._report_outcome(None, reason)
        self._follow_lease()

    def _report_outcome(self, lease: Lease | None, reason: str) -> None:
        outcome, self._outcome = self._outcome, None
        if outcome is not None:
            outcome(lease, reason)

    def _follower_again(self) -> None:
        context = self.context
        if not context.move(Trigger.TORN_DOWN):
            return  # it is halted, or being emptied, already
        if context.halted is not None:
            context.move(Trigger.DAMAGED, context.halted.detail)
            return
        context.out.put(Publish(((Slot.ROLE, NodeRole.FOLLOWER),)))
        if self._recreate is not None:
            (lease, deadline_ms), self._recreate = self._recreate, None
            context.move(Trigger.CAMPAIGNS, "the lease is being recreated")
            self._why = "startup"
            self.campaign = Recreation(
                context, self.peers, lease, deadline_ms=deadline_ms, won=self._won, lost=self._lost
            )
            self.campaign.tick()
            return
        self._follow_lease()
        self._consider()
