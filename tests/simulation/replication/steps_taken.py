"""Rules for single decisions of a replica, checked against the true state of its node and the
others.

Each rule is about one step that is wrong by itself, whatever follows: other faults would hide the
consequences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from services.ha.core.campaign import Campaign
from services.ha.core.effects import LeasePut
from services.ha.core.founding import Founding
from services.ha.core.in_sync import MemberProgress
from services.ha.core.liveness import stall_ms
from services.ha.core.recreation import Recreation
from services.ha.core.replica import Replica
from services.ha.core.states import State
from services.ha.lease.value import Member
from services.ha.wire.payloads import StatusOk
from tests.simulation.replication.confirmed_log import ACK_CHECKED_SIZE, must_be_durable
from tests.simulation.replication.lease_history import CLOCK_DRIFT_MAX
from tests.simulation.replication.plan import TIMES
from tests.simulation.replication.terms_ended import TermsEnded
from tests.simulation.replication.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.replication.ha import Ha

NEEDED: Final = ("broker", "reput")
"""Services without which no epoch is opened."""
GONE_US: Final = 300_000
"""Time within which a service that is gone is missed."""
SILENT_US: Final = (TIMES.broker_silent_ms + 400) * 1000
"""Time within which a paused service counts as dead."""
PAUSE_KNOWN_US: Final = (stall_ms(TIMES) + 20) * 1000
"""A process that was paused for this long knows it, also by a slow clock."""
PAUSED_US: Final = (TIMES.renew_ms - 50) * 1000
"""Time for which the loser of a campaign lets others try."""
RECREATED_US: Final = (TIMES.lease_ms - TIMES.margin_ms + TIMES.request_timeout_ms) * 1000
"""The old term had less time left than a lease without its margin, and ha may notice the loss
later."""
UNANSWERED_US: Final = (TIMES.link_dead_ms + TIMES.heartbeat_ms + 100) * 1000
"""A status of a node counts no longer than this."""
HEARD_US: Final = (TIMES.link_dead_ms - 50) * 1000
"""A node with a link is not silent for longer than this, or the link ends."""
JOINED_MS: Final = TIMES.lag_max_ms + 500
"""Time within which a slave that is to join has joined, or is no longer waited for. ha checks that
at its next tick."""
RENEWED_US: Final = TIMES.lease_ms * 1000 // 2
"""A lease that was renewed this recently has not run out, whatever a request takes."""


class StepsTaken:
    """Checks the decisions of one start of ha."""

    def __init__(self, ha: Ha, replica: Replica) -> None:
        self._ha, self._replica = ha, replica
        self._campaign: object = None
        self._lost_us: int | None = None
        """When a campaign for the lease was last lost."""
        self._asked: tuple[int, int] | None = None
        """Epoch and version of the in-sync set in the last request."""
        self._described: set[str] = set()
        """Nodes whose status this start received before the group's first lease."""
        self._recreating: tuple[object, int] | None = None
        """The present attempt to recreate the lease, and when it began."""
        self._terms = TermsEnded(ha, replica)

    def handled(self) -> None:
        """Check a decision after it was made: a candidate must be able to serve."""
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
        if ha.history.clocks_wrong:
            return  # A process whose clock jumps assumes that it was paused.
        if isinstance(campaign, Campaign) and not campaign._forced:
            self._must_pause_after_loss()
            self._must_have_run_out()
        if lacking := self._missing_service():
            raise Violation(f"{ha.node} campaigns for the lease, but its {lacking}")
        if isinstance(campaign, Founding):
            self._must_know_all_nodes()

    def _missing_service(self) -> str:
        """Description of the first service that is known to be gone or paused; empty if all run."""
        ha, now_us = self._ha, self._ha.machine.timeline.now_us
        for service in NEEDED:
            process = ha.machine.processes.get(service)
            if process is None or (process.alive and not process.paused):
                continue
            limit_us = SILENT_US if process.alive else GONE_US
            idle_us = now_us - max(process.idle_us, ha.process.resumed_us)
            if idle_us > limit_us:
                return f"{service} is gone or paused for {idle_us} µs"
        return ""

    def sends_status(self, status: StatusOk) -> None:
        """Check the reported status, by which other nodes choose a target."""
        ha, facts = self._ha, status.facts
        known = ha.history.sets.get(facts.in_sync_at, [()])
        seen = status.seen_epoch, status.in_sync_version
        if status.in_sync not in known or seen < facts.in_sync_at:
            raise Violation(
                f"{ha.node} reports the set {status.in_sync} of the lease {facts.in_sync_at}, and "
                f"{seen} as the newest; that lease had {known}"
            )
        if status.promised > ha.machine.durably_promised:
            raise Violation(
                f"{ha.node} reports the promise of {status.promised}; its disk has "
                f"{ha.machine.durably_promised}"
            )
        if not self._replica.following.rewriting:
            must_be_durable(ha.machine, status.durable - ACK_CHECKED_SIZE, status.durable)
        if ha.history.clocks_wrong:
            return
        if facts.services_move and (lacking := self._missing_service()):
            raise Violation(f"{ha.node} reports that it can serve, but its {lacking}")

    def _must_pause_after_loss(self) -> None:
        ha = self._ha
        now_us = ha.machine.timeline.now_us
        # The node need not wait if a master has released the lease for it.
        if self._lost_us is None or ha.history.campaign_now_us.get(ha.node) == now_us:
            return
        paused_us = now_us - self._lost_us
        if paused_us < PAUSED_US:
            raise Violation(f"{ha.node} campaigns again {paused_us} µs after it lost a campaign")

    def _must_copy_in_sync(self) -> None:
        """Check that a replica which reports in-sync has a link on which it copies."""
        own, following = self._replica.context, self._replica.following
        if own.state is State.IN_SYNC and following.link is None:
            raise Violation(f"{self._ha.node} is in sync without a link to a master")

    def receives_status(self, node: str) -> None:
        """Note the status of a node."""
        self._described.add(node)

    def _must_give_up_in_time(self) -> None:
        """Check that a master recreates a deleted lease only while its old term would have lasted,
        which is less than a lease. Only the write may take longer."""
        campaign, began = self._replica.leadership.campaign, self._recreating
        ha = self._ha
        now_us = ha.machine.timeline.now_us
        if not isinstance(campaign, Recreation) or campaign._writing:
            self._recreating = None
        elif began is None or began[0] is not campaign:
            self._recreating = campaign, now_us
        elif now_us - max(began[1], ha.process.resumed_us) > RECREATED_US:
            raise Violation(
                f"{ha.node} requests promises of epoch {campaign.epoch} for "
                f"{now_us - began[1]} µs, but its old term is over"
            )

    def _must_wait_for_linked(self) -> None:
        """Check that a master waits for a joining member only while that member follows."""
        term = self._replica.leadership.term
        if term is None or term.over:
            return
        linked = {link.peer for link in term.links.values()}
        for member in term.in_sync.adding:
            if member not in linked:
                raise Violation(f"{self._ha.node} waits for {member.node}, which has no link")

            self._must_end_waiting(member.node, term.in_sync.adding[member].since_ms)
            if term._durable.get(member, 0) < term.confirm.value:
                raise Violation(
                    f"{self._ha.node} waits for {member.node}, which is to join the set and lacks "
                    f"some of the {term.confirm.value} bytes that are confirmed"
                )

    def _must_end_waiting(self, node: str, since_ms: int) -> None:
        """Check that sends wait for a joining slave no longer than for a member."""
        ha, waited_ms = self._ha, self._replica.context.now_ms - since_ms
        ran_ms = (ha.machine.timeline.now_us - ha.process.resumed_us) // 1000
        if min(waited_ms, ran_ms) > JOINED_MS and not ha.history.clocks_wrong:
            raise Violation(f"{ha.node} has waited for {node} to join the set for {waited_ms} ms")

    def _must_wait_for_members(self) -> None:
        """Check that a master waits for every member of the published set, and of each set that a
        write under way may publish."""
        term, history = self._replica.leadership.term, self._ha.history
        if term is None or term.over or history.epoch != term.epoch:
            return
        if history.holder != self._ha.holder:
            return
        possible = [
            lease.in_sync for lease in history.possible_leases() if lease.epoch == term.epoch
        ]
        members = {*history.published, *(member for each in possible for member in each)}
        missing = members - term.in_sync.wait_set - {self._ha.member}
        if missing:
            raise Violation(
                f"{self._ha.node} waits for {sorted(m.node for m in term.in_sync.wait_set)} only, "
                f"but {sorted(m.node for m in missing)} may be in the published set"
            )

    def _must_have_run_out(self) -> None:
        """Check that a candidate has seen the lease of another node unchanged for long. A node that
        cannot read the lease must not campaign against a master that renews it."""
        ha, history = self._ha, self._ha.history
        stored, now_us = self._replica.session.stored, ha.machine.timeline.now_us
        holder = None if stored is None else stored.lease.holder
        if stored is None or holder is None or holder.member == ha.member:
            return
        if history.epoch != stored.lease.epoch or history.holder != holder:
            return  # The lease had run out and another node was faster.
        if history.gap_us * (1 + CLOCK_DRIFT_MAX) >= TIMES.lease_ms * 1000:
            return  # The lease had run out and its holder wrote it again.
        leader = history.node(holder.node).processes.get("ha")
        if leader is None or not leader.alive or now_us - leader.begun_us < RENEWED_US:
            return  # A late write of a process that is gone is no renewal.
        # An answer that was under way when the process was paused has an older lease.
        lately = now_us - ha.process.resumed_us < TIMES.lease_ms * 1000
        renewed_us = now_us - history.applied_us
        if (
            renewed_us < RENEWED_US
            and not lately
            and history.campaign_now_us.get(ha.node) != now_us
        ):
            raise Violation(
                f"{ha.node} campaigns for the lease of {holder.node}, which was renewed "
                f"{renewed_us} µs ago"
            )

    def promises(self, epoch: int) -> None:
        """Check that a replica which promises an epoch has ended its own older term."""
        term = self._replica.leadership.term
        if term is not None and not term.over and term.epoch < epoch:
            raise Violation(
                f"{self._ha.node} promises epoch {epoch} and goes on with its own epoch "
                f"{term.epoch}"
            )

    def _must_know_all_nodes(self) -> None:
        """Check that a founder has the status of every node: none of the volumes was in a group,
        and which one has records."""
        ha, now_us = self._ha, self._ha.machine.timeline.now_us
        unheard = {other.name for other in ha.history.others(ha.machine)} - self._described
        if unheard and not ha.history.epoch:
            raise Violation(f"{ha.node} founds the group without the status of {sorted(unheard)}")
        for other in ha.history.others(ha.machine):
            process = other.processes.get("ha")
            if process is not None and process.alive and not process.paused:
                continue
            gone_us = now_us - max(
                other.off_us if process is None else process.idle_us, ha.process.resumed_us
            )
            if gone_us > UNANSWERED_US:
                raise Violation(
                    f"{ha.node} founds the group, but {other.name} has been silent for {gone_us} µs"
                )

    def writes_lease(self, put: LeasePut) -> None:
        """Check that a replica which was paused removes no member for silence during that pause."""
        base, wanted = put.base.lease, put.lease
        asked, self._asked = self._asked, (int(wanted.epoch), wanted.in_sync_version)
        if asked == self._asked or base.epoch != wanted.epoch or wanted.holder is None:
            return  # It was requested before the pause, by the next term, or by a switch.
        ha, term = self._ha, self._replica.leadership.term
        ran_us = ha.machine.timeline.now_us - ha.process.resumed_us
        if term is None or ha.process.pause_us < PAUSE_KNOWN_US or ran_us > HEARD_US:
            return
        edit = self._replica.leadership.edits._edit
        ordered = None if edit is None else edit.wanted
        is_ordered = ordered is not None and ordered.in_sync == wanted.in_sync
        if is_ordered or ha.history.clocks_wrong:
            return  # An operator removes it.
        nodes = {member.node for member in wanted.in_sync}
        for member in sorted({*base.in_sync} - {*wanted.in_sync}):
            if member.node not in nodes and not _is_leaving(term.in_sync.peers, member):
                raise Violation(
                    f"{ha.node} was paused for {ha.process.pause_us} µs and removes "
                    f"{member.node} from the set {ran_us} µs later"
                )


def _is_leaving(peers: dict[Member, MemberProgress], member: Member) -> bool:
    """Whether the member has reported its shutdown."""
    return member in peers and peers[member].leaving
