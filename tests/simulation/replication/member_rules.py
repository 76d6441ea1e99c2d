"""What a master may conclude about the other members: their lag, and who leaves the in-sync set.

The judge follows the end of the master's log, and the ends that members acknowledge in the frames
that arrive. So it knows since when each member lacks something, and when it was last heard.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from services.ha.core.effects import LeasePut
from services.ha.core.events import Event, Received, Tick
from services.ha.core.liveness import stall_ms
from services.ha.core.mastership import Mastership
from services.ha.core.replica import Replica
from services.ha.lease.value import Lease, Member
from services.ha.wire.frames import FrameType
from services.ha.wire.payloads import Ack
from tests.simulation.replication.lease_object import Weather
from tests.simulation.replication.plan import TIMES
from tests.simulation.replication.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.replication.ha import Ha

KEPT_MS: Final = 5_000
"""Age of the oldest acknowledgement that explains a lag."""
ROUNDED_MS: Final = 2
FRESH_US: Final = 2_000_000
"""A status of a node counts for less than this, also if it came late."""
OVERDUE_MS: Final = 500
"""A member that is silent or far behind has left the set within this time: ha decides at its next
tick, and a request takes two ways to the lease."""


class _Copy:
    """The log of one member, as the frames that arrived show it."""

    def __init__(self, heard_ms: int) -> None:
        self.heard_ms = heard_ms
        """When it last sent HELLO or ACK; at first the start of the term."""
        self.end = 0
        """The last end that it acknowledged in this term."""
        self.acks: list[tuple[int, int]] = []
        """Times of acknowledgements on the present link, each with the uncertainty that it leaves:
        the lag right before it, and the time since the previous one."""
        self.has_caught_up = False
        """Whether it had the whole log since its link began. Before, any lag may be assumed: what
        it acknowledged on an earlier link may be lost."""
        self.leaves = False
        """Whether it has announced its end on its last link."""


class MemberRules:
    """The members of one master, in its present term."""

    def __init__(self, ha: Ha, replica: Replica) -> None:
        self._ha, self._replica = ha, replica
        self._term: Mastership | None = None
        self._turned_ms = 0
        self._began_ms = 0
        """Since when silence and lag count."""
        self._woke_ms = 0
        """When this start of ha continued after its last stall in the present term."""
        self._is_ready = False
        self._ends: list[int] = []
        self._grown_ms: list[int] = []
        """When the log had each of these ends for the first time, as far as ha knows."""
        self._copies: dict[Member, _Copy] = {}
        self._overdue: dict[Member, int] = {}
        """Since when each member should have left."""
        self._asked: tuple[int, int] | None = None
        self._begun = self._over = 0
        """Terms of this start."""

    # -- events ----------------------------------------------------------------------------

    def handled(self, event: Event, ack: Ack | None, now_ms: int) -> None:
        """Note what the event has shown. ack: its acknowledgement, if it has one."""
        term, passed_ms = self._replica.leadership.term, now_ms - self._turned_ms
        self._turned_ms = now_ms
        if term is not self._term:
            self._count_terms(term)
        if term is None or term is not self._term:
            self._term, self._is_ready, self._began_ms = term, False, now_ms
            self._copies, self._overdue, self._ends, self._grown_ms = {}, {}, [], []
        if term is None:
            return
        if passed_ms >= stall_ms(TIMES):
            self._woke_ms = now_ms
        if (term._ready and not self._is_ready) or passed_ms >= stall_ms(TIMES):
            self._begin(now_ms)
        self._is_ready = term._ready
        if isinstance(event, Received) and event.frame.epoch == term.epoch:
            self._note_frame(term, event, ack, now_ms)
        if not self._ends or self._replica.context.end > self._ends[-1]:
            self._ends.append(self._replica.context.end)
            self._grown_ms.append(now_ms)
        for member, copy in self._copies.items():
            if copy.acks and not self._is_linked(term, member):
                copy.acks, copy.has_caught_up = [], False
        self._must_count_on_links(term)
        if isinstance(event, Tick):
            self._check_set(now_ms)
            self._must_end_silent_links(term, now_ms)

    def _count_terms(self, term: Mastership | None) -> None:
        """Check that the counters of ha have each term that began and each that ended."""
        self._begun += term is not None
        self._over += self._term is not None
        count = self._replica.context.count
        counted = sum(count.won_by.values()), count.depositions + count.switchovers
        if counted != (self._begun, self._over):
            raise Violation(
                f"{self._ha.node} has counted {counted} terms begun and ended; there were "
                f"{self._begun, self._over}"
            )

    def _begin(self, now_ms: int) -> None:
        self._began_ms = now_ms
        for copy in self._copies.values():
            copy.heard_ms = now_ms
            copy.acks, copy.has_caught_up = [each for each in copy.acks[-1:]], False

    def _note_frame(self, term: Mastership, event: Received, ack: Ack | None, now_ms: int) -> None:
        link = term.links.get(event.link)
        if link is None or event.frame.type not in (FrameType.HELLO, FrameType.ACK):
            return
        copy = self._copies.setdefault(link.peer, _Copy(self._began_ms))
        copy.heard_ms = now_ms
        if event.frame.type is FrameType.HELLO:
            copy.leaves, copy.has_caught_up, copy.acks = False, False, []
        if ack is None or link.acked_end is None:
            return
        own_end = self._ends[-1] if self._ends else self._replica.context.end
        before_ms = copy.acks[-1][0] if copy.acks else now_ms
        slack_ms = max(self._lag_ms(copy.end, now_ms), now_ms - before_ms)
        while copy.acks and now_ms - copy.acks[0][0] >= KEPT_MS:
            del copy.acks[0]
        copy.acks.append((now_ms, slack_ms))
        copy.end = ack.durable
        copy.leaves = copy.leaves or ack.leaving
        copy.has_caught_up = copy.has_caught_up or copy.end >= own_end

    # -- what is true ----------------------------------------------------------------------

    def _is_linked(self, term: Mastership, member: Member) -> bool:
        return any(link.peer == member for link in term.links.values())

    def _lag_ms(self, end: int, now_ms: int) -> int:
        """Time since which the log has been longer than end."""
        index = bisect_right(self._ends, end)
        if index == len(self._ends):
            return 0
        return now_ms - max(self._grown_ms[index], self._began_ms)

    def _lag_ms_max(self, copy: _Copy, now_ms: int) -> int:
        """The largest lag that a master may assume, because it compares with an earlier end of its
        log at each acknowledgement only."""
        if not copy.has_caught_up:
            return now_ms - self._began_ms
        lag_ms = self._lag_ms(copy.end, now_ms)
        known = [slack for at_ms, slack in copy.acks if at_ms >= now_ms - lag_ms - ROUNDED_MS]
        most_ms = lag_ms + max(now_ms - copy.acks[-1][0], *known, 0)
        return min(now_ms - self._began_ms, most_ms)

    # -- rules -----------------------------------------------------------------------------

    def shows(self, lags: dict[str, int | None], now_ms: int) -> None:
        """Check the lags that a node reports: a master those of all slaves that it has linked,
        another node none."""
        node, term = self._ha.node, self._term
        if term is None:
            if lags:
                raise Violation(f"{node} is no master and reports the lags {lags}")
            return
        if self._ha.history.clocks_wrong:
            return
        for member, copy in self._present.items():
            self._must_show(member, copy, lags.get(member.node), now_ms)

    @property
    def _present(self) -> dict[Member, _Copy]:
        """The members of which no other volume was heard in this term."""
        nodes = [member.node for member in self._copies]
        return {each: copy for each, copy in self._copies.items() if nodes.count(each.node) == 1}

    def answers(self, answer: Mapping[str, Any], now_ms: int) -> None:
        """Check what ``GET /v1/cluster`` shows of the members: a master knows it from their
        acknowledgements, other nodes from a recent status of the master."""
        history, nodes = self._ha.history, {each["node"]: each for each in answer["nodes"]}
        master, own_end = answer["master"], self._replica.context.end
        if history.clocks_wrong:
            return
        if self._term is not None and master == self._ha.node:
            for member, copy in self._present.items():
                node = nodes.get(member.node)
                if node is None or node["role"] is None:
                    continue  # It was removed, or does not answer on the connection of this node.
                self._must_show(member, copy, node["lag_ms"], now_ms)
                shown = node["durable_end"], node["lag_bytes"]
                known = copy.end, max(0, own_end - copy.end)
                if copy.acks and shown != known:
                    raise Violation(
                        f"{self._ha.node} shows {shown} as durable end and lag of {member.node}; "
                        f"it has acknowledged {known}"
                    )
            return
        fresh_us = self._ha.machine.timeline.now_us - FRESH_US
        sent = [lags for at_us, lags in history.lags_sent.get(master, []) if at_us > fresh_us]
        for name, node in nodes.items():
            lag_ms = node["lag_ms"]
            if lag_ms is None or name == master:
                continue
            if not any(lags.get(name) == lag_ms for lags in sent):
                raise Violation(
                    f"{self._ha.node} shows that {name} is {lag_ms} ms behind; its master {master} "
                    f"has sent {[lags.get(name) for lags in sent]} of late"
                )

    def _must_show(self, member: Member, copy: _Copy, shown: int | None, now_ms: int) -> None:
        node = self._ha.node
        if (shown is None) != (not copy.acks):
            raise Violation(
                f"{node} reports the lag {shown} of {member.node}, which has acknowledged "
                f"{len(copy.acks)} times on its present link"
            )
        if shown is None:
            return
        lag_ms, most_ms = self._lag_ms(copy.end, now_ms), self._lag_ms_max(copy, now_ms)
        if member.node in self._ha.history.damaged:
            lag_ms = 0  # It may have cut off what it had acknowledged on an earlier link.
        is_so = lag_ms - ROUNDED_MS <= shown <= most_ms + ROUNDED_MS
        if not is_so or (shown and copy.end >= self._ends[-1]):
            raise Violation(
                f"{node} reports that {member.node} is {shown} ms behind; it has the log up to "
                f"{copy.end}, which is {lag_ms} ms old, and at most {most_ms} may be assumed"
            )

    def writes_lease(self, put: LeasePut) -> None:
        """Check that a master removes no member that answers, is hardly behind and stays."""
        base, wanted, term = put.base.lease, put.lease, self._term
        asked, self._asked = self._asked, (int(wanted.epoch), wanted.in_sync_version)
        is_same_term = term is not None and base.epoch == wanted.epoch == term.epoch
        if asked == self._asked or not is_same_term or wanted.holder is None:
            return
        edits = self._replica.leadership.edits
        if edits._edit is not None or self._ha.history.clocks_wrong:
            return  # An operator removes it.
        now_ms, nodes = self._replica.context.now_ms, {member.node for member in wanted.in_sync}
        for member in sorted({*base.in_sync} - {*wanted.in_sync}):
            why = self._why_kept(member, now_ms)
            if member.node not in nodes and why:
                raise Violation(f"{self._ha.node} removes {member.node} from the set: {why}")

    def _why_kept(self, member: Member, now_ms: int) -> str:
        """Why a member must stay in the set; empty if it need not."""
        copy = self._copies.get(member)
        silent_ms = now_ms - (self._began_ms if copy is None else copy.heard_ms)
        if silent_ms >= TIMES.link_dead_ms - ROUNDED_MS or (copy is not None and copy.leaves):
            return ""
        if copy is None:
            return f"it was given {silent_ms} ms to connect"
        most_ms = self._lag_ms_max(copy, now_ms)
        if most_ms >= TIMES.lag_max_ms - ROUNDED_MS:
            return ""
        return f"it was heard {silent_ms} ms ago and is at most {most_ms} ms behind"

    def _must_count_on_links(self, term: Mastership) -> None:
        """Check that an end counts only on the link on which it was acknowledged."""
        for member, end in () if term.over else term._durable.items():
            copy = self._copies.get(member)
            if copy is None or not copy.acks or copy.end != end:
                raise Violation(
                    f"{self._ha.node} counts {end} of {member.node}, which has acknowledged "
                    f"{copy.end if copy and copy.acks else 'nothing'} on its present link"
                )

    def _must_end_silent_links(self, term: Mastership, now_ms: int) -> None:
        for link in term.links.values():
            copy = self._copies.get(link.peer)
            silent_ms = now_ms - max(self._woke_ms, 0 if copy is None else copy.heard_ms)
            if copy is not None and silent_ms > TIMES.link_dead_ms + ROUNDED_MS:
                raise Violation(
                    f"{self._ha.node} keeps its link to {link.peer.node}, which is silent for "
                    f"{silent_ms} ms"
                )

    def _check_set(self, now_ms: int) -> None:
        """Check that a member which is silent or far behind leaves the set in time."""
        ha, term, lease = self._ha, self._term, self._shrinkable()
        if term is None or lease is None:
            self._overdue.clear()
            return
        for member in lease.in_sync:
            copy = self._copies.get(member)
            silent_ms = now_ms - (self._began_ms if copy is None else copy.heard_ms)
            lag_ms = 0 if copy is None else self._lag_ms(copy.end, now_ms)
            if member == ha.member or (
                silent_ms < TIMES.link_dead_ms + ROUNDED_MS
                and lag_ms < TIMES.lag_max_ms + ROUNDED_MS
            ):
                self._overdue.pop(member, None)
            elif now_ms - self._overdue.setdefault(member, now_ms) > OVERDUE_MS:
                raise Violation(
                    f"{ha.node} keeps {member.node} in the set, which was silent for "
                    f"{silent_ms} ms and is {lag_ms} ms behind"
                )

    def _shrinkable(self) -> Lease | None:
        """The lease of this master if it can remove a member and does not do so now: it reads and
        writes the lease, and more members are in the set than the minimum."""
        ha, term, session = self._ha, self._term, self._replica.session
        obstacles = ha.lease.unreachable | ha.lease.deaf
        calm = ha.lease.weather == Weather(ha.lease.weather.delay_max_ms)
        if term is None or not calm or ha.node in obstacles or ha.history.clocks_wrong:
            return None
        if not term._ready or term.switch is not None or not self._replica.context.broker_serves:
            return None
        lease = None if session.stored is None else session.stored.lease
        is_own = lease is not None and lease.holder == ha.holder == ha.history.holder
        if lease is None or not is_own or ha.history.went_back or session.backwards:
            return None
        if session.unsettled is not None and session.unsettled.in_sync != lease.in_sync:
            return None
        return lease if len(lease.in_sync) > lease.min_in_sync else None
