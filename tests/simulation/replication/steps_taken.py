"""What a replica may decide about itself and the others, by what its node and they really do.

The decisions are the product's; what is so is the world's. A rule here is about one step that is
wrong by itself, whatever comes of it later: faults beside it would hide that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from services.ha.core.campaign import Campaign
from services.ha.core.effects import LeasePut
from services.ha.core.failover import State
from services.ha.core.founding import Founding
from services.ha.core.in_sync import Peer
from services.ha.core.liveness import stall_ms
from services.ha.core.recreation import Recreation
from services.ha.core.replica import Replica
from services.ha.lease.value import Member
from services.ha.wire.payloads import StatusOk
from tests.simulation.replication.plan import TIMES
from tests.simulation.replication.terms_ended import TermsEnded
from tests.simulation.replication.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.replication.ha import Ha

NEEDED: Final = ("broker", "reput")
"""Services without which no epoch is opened."""
GONE_US: Final = 300_000
"""Whoever is gone is missed by then."""
SILENT_US: Final = (TIMES.broker_silent_ms + 400) * 1000
"""Whoever is stopped is taken for dead by then."""
STOOD_US: Final = (stall_ms(TIMES) + 20) * 1000
"""A process that stood still for so long knows that it did, also by a clock that is slow."""
PAUSED_US: Final = (TIMES.renew_ms - 50) * 1000
"""Whoever has lost a campaign lets others try for so long."""
RECREATED_US: Final = (TIMES.lease_ms - TIMES.margin_ms + TIMES.request_timeout_ms) * 1000
"""The old term had no more time left than a lease without its margin; ha may look a while later."""
UNANSWERED_US: Final = (TIMES.link_dead_ms + TIMES.heartbeat_ms + 100) * 1000
"""What a node said of itself counts no longer than that."""
HEARD_US: Final = (TIMES.link_dead_ms - 50) * 1000
"""Nobody whose link is there is silent for longer than the link lives without a word."""
JOINED_MS: Final = TIMES.lag_max_ms + 500
"""A slave that is to join the set has joined it by then, or is not waited for; ha judges that at
its next tick."""
RENEWED_US: Final = TIMES.lease_ms * 1000 // 2
"""A lease that was renewed so lately has not run out, whatever a request to it takes."""


class StepsTaken:
    """Of one start of ha."""

    def __init__(self, ha: Ha, replica: Replica) -> None:
        self._ha, self._replica = ha, replica
        self._campaign: object = None
        self._lost_us: int | None = None
        """When a campaign for the lease was lost last."""
        self._asked: tuple[int, int] | None = None
        """Epoch and version of the in-sync set that was asked for last."""
        self._told: set[str] = set()
        """Nodes that have described themselves to this start before the group's first lease."""
        self._recreating: tuple[object, int] | None = None
        """The attempt to make the lease again that goes on, and when it began."""
        self._terms = TermsEnded(ha, replica)

    def handled(self) -> None:
        """It has decided what an event means: who stands for the lease could serve with it."""
        self._must_wait_for_linked()
        self._must_wait_for_members()
        self._must_copy_in_sync()
        self._must_give_up_in_time()
        self._terms.handled()
        campaign, before = self._replica.leadership.campaign, self._campaign
        self._campaign = campaign
        ha, now_us = self._ha, self._ha.machine.timeline.now_us
        leads = self._replica.leadership.term is not None
        if isinstance(before, Campaign) and campaign is None and not leads:
            self._lost_us = now_us
        if campaign is before or not isinstance(campaign, Campaign | Founding):
            return
        if ha.history.clocks_lie:
            return  # whose clock leaps takes itself to have stood still
        if isinstance(campaign, Campaign) and not campaign._forced:
            self._must_have_let_others_try()
            self._must_have_run_out()
        if lacking := self._lacking():
            raise Violation(f"{ha.node} stands for the lease, and its {lacking}")
        if isinstance(campaign, Founding):
            self._must_have_heard_all()

    def _lacking(self) -> str:
        """What is known to be away of the services that serve an epoch, in words; empty: nothing
        is."""
        ha, now_us = self._ha, self._ha.machine.timeline.now_us
        for service in NEEDED:
            process = ha.machine.processes.get(service)
            if process is None or (process.alive and not process.paused):
                continue
            limit_us = SILENT_US if process.alive else GONE_US
            idle_us = now_us - max(process.idle_us, ha.process.resumed_us)
            if idle_us > limit_us:
                return f"{service} is gone or stopped for {idle_us} µs"
        return ""

    def says(self, status: StatusOk) -> None:
        """It says what it is: others hand over to it, or do not, by that."""
        ha, facts = self._ha, status.facts
        if ha.history.clocks_lie:
            return
        if facts.services_move and (lacking := self._lacking()):
            raise Violation(f"{ha.node} says that it can serve, and its {lacking}")

    def _must_have_let_others_try(self) -> None:
        ha = self._ha
        now_us = ha.machine.timeline.now_us
        # A master that releases the lease for this node says so: it need not wait then.
        if self._lost_us is None or ha.history.told_us.get(ha.node) == now_us:
            return
        paused_us = now_us - self._lost_us
        if paused_us < PAUSED_US:
            raise Violation(f"{ha.node} stands again {paused_us} µs after a campaign that it lost")

    def _must_copy_in_sync(self) -> None:
        """Whoever says that it is in sync has a link on which the master's bytes come."""
        own, following = self._replica.context, self._replica.following
        if own.state is State.IN_SYNC and following.link is None:
            raise Violation(f"{self._ha.node} is in sync, and copies from nobody")

    def told(self, node: str) -> None:
        """A node describes itself."""
        self._told.add(node)

    def _must_give_up_in_time(self) -> None:
        """A master that makes a deleted lease again has not more time for that than its old term
        had, which is less than a lease; only its write may take longer."""
        campaign, began = self._replica.leadership.campaign, self._recreating
        ha = self._ha
        now_us = ha.machine.timeline.now_us
        if not isinstance(campaign, Recreation) or campaign._writing:
            self._recreating = None
        elif began is None or began[0] is not campaign:
            self._recreating = campaign, now_us
        elif now_us - max(began[1], ha.process.resumed_us) > RECREATED_US:
            raise Violation(
                f"{ha.node} asks for promises of epoch {campaign.epoch} for "
                f"{now_us - began[1]} µs, and its old term is over"
            )

    def _must_wait_for_linked(self) -> None:
        """A master waits for who is to join the set as long as it follows."""
        term = self._replica.leadership.term
        if term is None or term.over:
            return
        linked = {link.peer for link in term.links.values()}
        for member in term.in_sync.adding:
            if member not in linked:
                raise Violation(f"{self._ha.node} waits for {member.node}, which has no link")

            self._must_not_wait_for_ever(member.node, term.in_sync.adding[member].since_ms)
            if term._durable.get(member, 0) < term.confirm.value:
                raise Violation(
                    f"{self._ha.node} waits for {member.node}, which is to join the set and lacks "
                    f"some of the {term.confirm.value} bytes that are confirmed"
                )

    def _must_not_wait_for_ever(self, node: str, since_ms: int) -> None:
        """Senders wait no longer for a slave that is to join the set than for a member."""
        ha, waited_ms = self._ha, self._replica.context.now_ms - since_ms
        ran_ms = (ha.machine.timeline.now_us - ha.process.resumed_us) // 1000
        if min(waited_ms, ran_ms) > JOINED_MS and not ha.history.clocks_lie:
            raise Violation(f"{ha.node} has waited for {node} to join the set for {waited_ms} ms")

    def _must_wait_for_members(self) -> None:
        """A master waits for every member of the published set, and of each set that one of its
        writes on the way may publish."""
        term, history = self._replica.leadership.term, self._ha.history
        if term is None or term.over or history.epoch != term.epoch or history.went_back:
            return
        if history.holder != self._ha.holder:
            return
        perhaps = [lease.in_sync for lease in history.perhaps() if lease.epoch == term.epoch]
        members = {*history.published, *(member for each in perhaps for member in each)}
        missing = members - term.in_sync.wait_set - {self._ha.member}
        if missing:
            raise Violation(
                f"{self._ha.node} waits for {sorted(m.node for m in term.in_sync.wait_set)} only, "
                f"and {sorted(m.node for m in missing)} may be in the published set"
            )

    def _must_have_run_out(self) -> None:
        """Whoever stands for the lease of another node has seen it unchanged for long: a node that
        cannot read it does not leave a master that renews it."""
        ha, history = self._ha, self._ha.history
        stored, now_us = self._replica.session.stored, ha.machine.timeline.now_us
        holder = None if stored is None else stored.lease.holder
        if stored is None or holder is None or holder.member == ha.member:
            return
        if history.epoch != stored.lease.epoch or history.holder != holder:
            return  # it had run out, and another node was faster
        # What was on its way when the process was stopped says how the lease was then.
        lately = now_us - ha.process.resumed_us < TIMES.lease_ms * 1000
        renewed_us = now_us - history.applied_us
        if renewed_us < RENEWED_US and not lately and history.told_us.get(ha.node) != now_us:
            raise Violation(
                f"{ha.node} stands for the lease of {holder.node}, which was renewed "
                f"{renewed_us} µs ago"
            )

    def promises(self, epoch: int) -> None:
        """It is about to promise an epoch: its own term of an older one is over."""
        term = self._replica.leadership.term
        if term is not None and not term.over and term.epoch < epoch:
            raise Violation(
                f"{self._ha.node} promises epoch {epoch}, and goes on with its own, {term.epoch}"
            )

    def _must_have_heard_all(self) -> None:
        """Whoever founds a group knows of every node that its volume never was in one, and which
        one has records."""
        ha, now_us = self._ha, self._ha.machine.timeline.now_us
        unheard = {other.name for other in ha.history.others(ha.machine)} - self._told
        if unheard and not ha.history.epoch:
            raise Violation(f"{ha.node} founds the group, and has not heard {sorted(unheard)}")
        for other in ha.history.others(ha.machine):
            process = other.processes.get("ha")
            if process is not None and process.alive and not process.paused:
                continue
            gone_us = now_us - max(
                other.off_us if process is None else process.idle_us, ha.process.resumed_us
            )
            if gone_us > UNANSWERED_US:
                raise Violation(
                    f"{ha.node} founds the group, and {other.name} has been silent for {gone_us} µs"
                )

    def asks(self, put: LeasePut) -> None:
        """It asks for another set: whoever has just stood still itself has not heard the others
        meanwhile, and removes nobody for that."""
        base, wanted = put.base.lease, put.lease
        asked, self._asked = self._asked, (int(wanted.epoch), wanted.in_sync_version)
        if asked == self._asked or base.epoch != wanted.epoch or wanted.holder is None:
            return  # said before it stood still, a next term, or a switch
        ha, term = self._ha, self._replica.leadership.term
        ran_us = ha.machine.timeline.now_us - ha.process.resumed_us
        if term is None or ha.process.stood_us < STOOD_US or ran_us > HEARD_US:
            return
        if ha.history.clocks_lie:
            return
        nodes = {member.node for member in wanted.in_sync}
        for member in sorted({*base.in_sync} - {*wanted.in_sync}):
            if member.node not in nodes and not _is_leaving(term.in_sync.peers, member):
                raise Violation(
                    f"{ha.node} stood still for {ha.process.stood_us} µs, and removes "
                    f"{member.node} from the set {ran_us} µs later"
                )


def _is_leaving(peers: dict[Member, Peer], member: Member) -> bool:
    """Whether it has said that it ends."""
    return member in peers and peers[member].leaving
