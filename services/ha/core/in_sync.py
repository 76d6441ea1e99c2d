"""The in-sync set of one term: its members, additions and removals (docs/replication.md, the set).

Pure. The set is stored in the lease; this module decides how the master wants to change it. The
master waits for a member from before the write that publishes it until the write that removes it is
known to be applied. So every member of the published set has everything that is confirmed. Step
before: acknowledgements, silence. Step after: a change of the lease, and the wait set of the
confirm offset.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from services.ha.lease.value import Lease, Member
from shared.cluster.time_rules import TimeRules

GROWTH_PAUSE_MS: Final = 1000
"""Interval between two attempts to publish a member (docs/replication.md, times)."""


class Addition(NamedTuple):
    """A replica that the master waits for, and that is to be added to the set."""

    until: int
    """End of the log when the wait began; the replica is added once it has acknowledged it."""
    since_ms: int


class MemberProgress:
    """The master's view of one replica in this term."""

    __slots__ = ("durable", "heard_ms", "leaving", "mark", "marked_ms", "reached_ms")

    def __init__(self, now_ms: int) -> None:
        self.heard_ms = now_ms
        """Time of its last frame; at first the start of the term."""
        self.durable: int | None = None
        """End acknowledged on the present link; None without an acknowledgement or a link."""
        self.leaving = False
        """Whether it announced on its last link that its process is about to end."""
        self.mark: int | None = None
        self.marked_ms = now_ms
        self.reached_ms = now_ms
        """Time of the newest log end that it has completely on disk."""

    def acknowledged(self, durable: int, own_end: int, now_ms: int) -> None:
        """Record the end of the log that the replica has on disk."""
        self.durable = durable
        if durable >= own_end:
            self.reached_ms, self.mark = now_ms, None
        elif self.mark is None or durable >= self.mark:
            if self.mark is not None:
                self.reached_ms = self.marked_ms
            self.mark, self.marked_ms = own_end, now_ms

    def lag_ms(self, own_end: int, now_ms: int) -> int | None:
        """Return the age of the newest log end that the replica has; None: unknown on this link."""
        if self.durable is None:
            return None
        return 0 if self.durable >= own_end else now_ms - self.reached_ms


class InSync:
    """The set of one term, and the changes that its master wants."""

    def __init__(
        self, own: Member, lease: Lease, *, epoch_start: int, times: TimeRules, now_ms: int
    ) -> None:
        """lease: as this term acquired it. epoch_start: offset of its first record."""
        self._own, self._epoch_start, self._times = own, epoch_start, times
        self._published = lease.in_sync
        self._min = lease.min_in_sync
        self._perhaps: tuple[Member, ...] = ()
        self._began_ms = now_ms
        self._tried_ms: dict[Member, int] = {}
        self.adding: dict[Member, Addition] = {}
        self.peers: dict[Member, MemberProgress] = {}
        self.wait_set: frozenset[Member] = frozenset()
        """The other members whose durable ends the confirm offset needs."""
        self.joins = self.leaves = 0
        """Members that were published and removed in this term."""
        self._settle()

    def known(self, lease: Lease, unsettled: Lease | None) -> None:
        """Store the set in the lease, and the set of a write whose outcome is not known yet."""
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
        """Count the silence and the lag of all peers from now on.

        Before this, the master did not answer slaves, so they are not to blame for silence or lag.
        The next acknowledgement may reach a mark from before this; nor is that counted as lag.
        """
        self._began_ms = now_ms
        for peer in self.peers.values():
            peer.heard_ms = peer.reached_ms = now_ms
            peer.mark = None

    @property
    def least(self) -> int:
        """min_in_sync of the lease: with fewer members nothing is acknowledged."""
        return self._min

    @property
    def published(self) -> tuple[Member, ...]:
        """The published set as last known."""
        return self._published

    def peer(self, member: Member) -> MemberProgress:
        """Return the view of a replica; a new one begins with the start of the term."""
        peer = self.peers.get(member)
        if peer is None:
            peer = self.peers[member] = MemberProgress(self._began_ms)
        return peer

    def lags_ms(self, own_end: int, now_ms: int) -> dict[str, int | None]:
        """Return the lag of each node, by its volume that was heard last."""
        heard = sorted(self.peers.items(), key=lambda item: item[1].heard_ms)
        return {member.node: peer.lag_ms(own_end, now_ms) for member, peer in heard}

    def linked(self, member: Member, now_ms: int) -> None:
        """Note a link that passed the comparison of logs; nothing on it counts yet.

        ``unlinked`` was called for the previous link. It removed the acknowledged end and a pending
        addition, so the member is added only by what it acknowledges on this link.
        """
        peer = self.peer(member)
        peer.heard_ms, peer.leaving = now_ms, False

    def heard(self, member: Member, now_ms: int) -> None:
        """Note that a frame of the member came."""
        self.peer(member).heard_ms = now_ms

    def unlinked(self, member: Member) -> None:
        """Note that the member's link has ended: acknowledgements on it no longer count."""
        peer = self.peer(member)
        peer.durable = peer.mark = None
        self._falter(member)

    def leaving(self, member: Member) -> None:
        """Note that the member's process is about to end: it is removed as soon as possible."""
        self.peer(member).leaving = True
        self._falter(member)

    def left(self, member: Member) -> bool:
        """Return whether the member announced its end, and the master no longer waits for it."""
        return self.peer(member).leaving and member not in self.wait_set

    def acknowledged(
        self,
        member: Member,
        durable: int,
        *,
        own_end: int,
        confirm: int,
        now_ms: int,
        is_late: bool = False,
    ) -> None:
        """Record that the member acknowledged the log up to durable on its present link.

        is_late: whether this master has reported that it does not open the epoch.
        """
        peer = self.peer(member)
        peer.heard_ms = now_ms
        peer.acknowledged(durable, own_end, now_ms)
        if peer.leaving or member in self._published or member in self.adding:
            return
        # Below either offset it lacks what the successor of this term must have; with nothing of
        # the epoch it lacks the epoch's entry, too.
        has_epoch = durable > self._epoch_start and durable >= confirm
        # A master that cannot append the first record gives the lease only to a member. A node with
        # the whole log is then as good as the members were at the beginning of the epoch.
        is_level = is_late and durable >= own_end == self._epoch_start
        if has_epoch or is_level:
            self.adding[member] = Addition(own_end, now_ms)
            self._settle()

    def wanted(self, now_ms: int) -> tuple[Member, ...] | None:
        """Return the set to publish next, None if the published one needs no change.

        The caller must write it at once: the change is noted as tried.
        """
        return self._without_silent(now_ms) or self._with_next(now_ms)

    def size(self, now_ms: int) -> int:
        """Return how many members of the published set were heard lately.

        While a change is not known to be applied, the smaller number counts. A silent member is not
        counted, even if the set may not shrink. Otherwise: 1. All slaves are down, and the set
        keeps its minimum size, so that one of them can be elected. 2. A send finds the set large
        enough, and is stored. 3. It is acknowledged at ``disk``, or never confirmed.
        """
        counted = [self._published] if not self._perhaps else [self._published, self._perhaps]
        return min(self.heard_of(each, now_ms) for each in counted)

    def heard_of(self, members: Iterable[Member], now_ms: int) -> int:
        """Return how many of these members were heard lately."""
        return sum(self._is_heard(member, now_ms) for member in members)

    def _is_heard(self, member: Member, now_ms: int) -> bool:
        if member == self._own:
            return True
        return now_ms - self.peer(member).heard_ms < self._times.link_dead_ms

    def expire(self, now_ms: int) -> None:
        """Give up additions that take too long."""
        for member, addition in list(self.adding.items()):
            if now_ms - addition.since_ms > self._times.lag_max_ms:
                self._falter(member)

    def silent(self, member: Member, now_ms: int) -> bool:
        """Return whether the member delays acknowledgements, or soon will: it is silent, too far
        behind for too long, or about to end."""
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
        # The set never shrinks below the minimum. Then sends are refused, and the silent member
        # stays electable in case this master is lost next.
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
        # A write that adds it may be under way. Then it is in ``_perhaps``, and the master waits
        # for it until the outcome is known.
        if self.adding.pop(member, None) is not None:
            self._settle()

    def _settle(self) -> None:
        waited: set[Member] = {*self._published, *self._perhaps, *self.adding}
        self.wait_set = frozenset(waited - {self._own})


def with_member(members: Iterable[Member], new: Member) -> tuple[Member, ...]:
    """Return the sorted set with the member new, and without other incarnations of its node.

    Two incarnations of one node would count as two copies, and one of them is gone.
    """
    return tuple(sorted([*(m for m in members if m.node != new.node), new]))
