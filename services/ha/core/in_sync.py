"""Who is in the in-sync set, who is to be added and who removed (docs/replication.md, the set).

Pure. One per term. The set lives in the lease; this decides what the master wants of it. A member
is waited for from before the write that publishes it, until after the write that removes it is
known to be applied: so every member of the published set has everything that was acknowledged.
Step before: acknowledgements, silence. Step after: a change of the lease, and the wait set of the
confirm offset.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from services.ha.lease.value import Lease, Member
from shared.cluster.time_rules import TimeRules

GROWTH_PAUSE_MS: Final = 1000
"""A member is published at most once in so long (docs/replication.md, times)."""


class Addition(NamedTuple):
    """A replica that is waited for, to be added to the set."""

    until: int
    """What the log's end was when it began to be waited for: it is added when it has that."""
    since_ms: int


class Peer:
    """What the master knows of one replica in this term."""

    __slots__ = ("durable", "heard_ms", "leaving", "mark", "marked_ms", "reached_ms")

    def __init__(self, now_ms: int) -> None:
        self.heard_ms = now_ms
        """When its last frame came; at first the term's start."""
        self.durable: int | None = None
        """Acknowledged on the present link; None: nothing was, or there is no link."""
        self.leaving = False
        """It said on its last link that its process is about to end."""
        self.mark: int | None = None
        self.marked_ms = now_ms
        self.reached_ms = now_ms
        """It has on disk what was the log's end at this time."""

    def acknowledged(self, durable: int, own_end: int, now_ms: int) -> None:
        """Note what it has on disk."""
        self.durable = durable
        if durable >= own_end:
            self.reached_ms, self.mark = now_ms, None
        elif self.mark is None or durable >= self.mark:
            if self.mark is not None:
                self.reached_ms = self.marked_ms
            self.mark, self.marked_ms = own_end, now_ms

    def lag_ms(self, own_end: int, now_ms: int) -> int | None:
        """How old the newest end is that it has reached; None: not known on this link."""
        if self.durable is None:
            return None
        return 0 if self.durable >= own_end else now_ms - self.reached_ms


class InSync:
    """The set of one term, and the changes that its master wants."""

    def __init__(
        self, own: Member, lease: Lease, *, epoch_start: int, times: TimeRules, now_ms: int
    ) -> None:
        """lease: as this term acquired it. epoch_start: where its first record begins."""
        self._own, self._epoch_start, self._times = own, epoch_start, times
        self._published = lease.in_sync
        self._min = lease.min_in_sync
        self._perhaps: tuple[Member, ...] = ()
        self._began_ms = now_ms
        self._tried_ms: dict[Member, int] = {}
        self.adding: dict[Member, Addition] = {}
        self.peers: dict[Member, Peer] = {}
        self.wait_set: frozenset[Member] = frozenset()
        """The others whose durable ends the confirm offset needs."""
        self.joins = self.leaves = 0
        """Members that were published and removed in this term."""
        self._settle()

    def known(self, lease: Lease, unsettled: Lease | None) -> None:
        """Take what the lease says, and what it may say without our knowing."""
        perhaps = () if unsettled is None else unsettled.in_sync
        if (lease.in_sync, perhaps) == (self._published, self._perhaps):
            return
        self.joins += len(set(lease.in_sync) - set(self._published))
        self.leaves += len(set(self._published) - set(lease.in_sync))
        self._published, self._perhaps, self._min = lease.in_sync, perhaps, lease.min_in_sync
        for member in self.adding.keys() & set(lease.in_sync):
            del self.adding[member]
        self._settle()

    def begin(self, now_ms: int) -> None:
        """Slaves can be answered from now on: before, none of them could be silent or behind."""
        self._began_ms = now_ms
        for peer in self.peers.values():
            peer.heard_ms = peer.reached_ms = now_ms

    @property
    def least(self) -> int:
        """Members without which nothing is acknowledged, as the lease says."""
        return self._min

    @property
    def published(self) -> tuple[Member, ...]:
        """As last known."""
        return self._published

    def peer(self, member: Member) -> Peer:
        """What is known of a replica; of an unheard one nothing but when the term began."""
        peer = self.peers.get(member)
        if peer is None:
            peer = self.peers[member] = Peer(self._began_ms)
        return peer

    def lags_ms(self, own_end: int, now_ms: int) -> dict[str, int | None]:
        """How far behind in time each node is, by the volume of it that was heard last."""
        heard = sorted(self.peers.items(), key=lambda item: item[1].heard_ms)
        return {member.node: peer.lag_ms(own_end, now_ms) for member, peer in heard}

    def linked(self, member: Member, now_ms: int) -> None:
        """A link to it passed the comparison of logs: nothing on it counts yet.

        ``unlinked`` was called for the link before: it forgot what was acknowledged there, and that
        the member was to be added. So it is added by what it acknowledges on this link alone.
        """
        peer = self.peer(member)
        peer.heard_ms, peer.leaving = now_ms, False

    def unlinked(self, member: Member) -> None:
        """Its link is over: what it acknowledged there counts no more."""
        peer = self.peer(member)
        peer.durable = peer.mark = None
        self._falter(member)

    def leaving(self, member: Member) -> None:
        """Its process is about to end: it is not waited for longer than it takes to remove it."""
        self.peer(member).leaving = True
        self._falter(member)

    def left(self, member: Member) -> bool:
        """Whether it said that it ends, and nothing waits for it any more."""
        return self.peer(member).leaving and member not in self.wait_set

    def acknowledged(
        self, member: Member, durable: int, *, own_end: int, confirm: int, now_ms: int
    ) -> None:
        """It has the log up to durable on disk, says its present link."""
        peer = self.peer(member)
        peer.heard_ms = now_ms
        peer.acknowledged(durable, own_end, now_ms)
        if peer.leaving or member in self._published or member in self.adding:
            return
        # Below either it lacks what this term's successor must have; with nothing of the epoch it
        # lacks the epoch's entry, too.
        if durable > self._epoch_start and durable >= confirm:
            self.adding[member] = Addition(own_end, now_ms)
            self._settle()

    def wanted(self, now_ms: int) -> tuple[Member, ...] | None:
        """The set to publish next, None if the published one is as it should be.

        The caller writes it at once, or does not take it into account: a wish is noted as tried.
        """
        return self._without_silent(now_ms) or self._with_next(now_ms)

    def size(self, now_ms: int) -> int:
        """Members of the published set that were heard lately, the smaller number while a change is
        not known.

        A silent member of a set that may not shrink is not counted. Otherwise: 1. all slaves are
        down, and the set keeps its least size, so that one of them can be elected; 2. a send finds
        a set that is large enough, and is stored; 3. it is acknowledged at ``disk``, or nobody
        ever confirms it.
        """
        counted = [self._published] if not self._perhaps else [self._published, self._perhaps]
        return min(sum(self._is_heard(member, now_ms) for member in each) for each in counted)

    def _is_heard(self, member: Member, now_ms: int) -> bool:
        if member == self._own:
            return True
        return now_ms - self.peer(member).heard_ms < self._times.link_dead_ms

    def expire(self, now_ms: int) -> None:
        """Give up waiting for additions that do not get there."""
        for member, addition in list(self.adding.items()):
            if now_ms - addition.since_ms > self._times.lag_max_ms:
                self._falter(member)

    def silent(self, member: Member, now_ms: int) -> bool:
        """Whether it holds the others up, or soon will: not heard, too far behind for too long, or
        about to end."""
        peer = self.peer(member)
        behind_ms = now_ms - peer.reached_ms
        return (
            peer.leaving
            or not self._is_heard(member, now_ms)
            or behind_ms >= self._times.lag_max_ms
        )

    def _without_silent(self, now_ms: int) -> tuple[Member, ...] | None:
        others = [member for member in self._published if member != self._own]
        silent = [member for member in others if self.silent(member, now_ms)]
        silent.sort(key=lambda member: self.peer(member).heard_ms)
        # Never below the minimum: then sends are refused, and the silent one stays electable, which
        # is what is wanted if this master is lost next.
        gone = silent[: max(0, len(self._published) - self._min)]
        if not gone:
            return None
        return tuple(member for member in self._published if member not in gone)

    def _with_next(self, now_ms: int) -> tuple[Member, ...] | None:
        for member, addition in self.adding.items():
            durable = self.peer(member).durable
            if durable is None or durable < addition.until:
                continue
            if now_ms - self._tried_ms.get(member, -GROWTH_PAUSE_MS) < GROWTH_PAUSE_MS:
                continue
            self._tried_ms[member] = now_ms
            return with_member(self._published, member)
        return None

    def _falter(self, member: Member) -> None:
        # A write that adds it may be on its way: then it is in ``_perhaps``, and waited for until
        # the outcome is known.
        if self.adding.pop(member, None) is not None:
            self._settle()

    def _settle(self) -> None:
        waited: set[Member] = {*self._published, *self._perhaps, *self.adding}
        self.wait_set = frozenset(waited - {self._own})


def with_member(members: Iterable[Member], new: Member) -> tuple[Member, ...]:
    """The set with new, and without any other incarnation of that node, sorted.

    Two of one node would count as two copies, and one of them is gone.
    """
    return tuple(sorted([*(m for m in members if m.node != new.node), new]))
