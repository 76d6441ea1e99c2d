"""Taking the lease: who may, when, and by which steps (docs/replication.md, becoming master). Pure.

1. Stop following, settle the log: its end is fixed, and nothing is acknowledged any more.
2. Read the lease, which must still be there for the taking; write it with the next epoch.
3. Not known to be applied: mute, until it is. Lost: follow again. Won: a term begins.

Nothing is promised before the lease is won: a promise of an epoch that nobody got would lock this
replica out of the living master. Step before: patience. Step after: ``mastership``.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from services.ha.core.effects import Level, Settle
from services.ha.core.events import Done, LeaseAnswered, LeaseOutcome
from services.ha.core.failover import Trigger
from services.ha.core.own import Own
from services.ha.core.peers import Peers
from services.ha.core.promises import Promises
from services.ha.lease.session import Settled
from services.ha.lease.value import Lease, Stored
from tidemark.offsets import Epoch


class Claim(Enum):
    """Why the lease may be taken."""

    OWN = "own"
    """It names this volume: who held it is gone, or is this very process."""
    HANDED_OVER = "handed-over"
    """It was released for this node."""
    EXPIRED = "expired"
    """Nobody renewed it for as long as it lasts, by this process's clock alone."""


def claim(lease: Lease, own: Own, unchanged_ms: int) -> Claim | None:
    """Why this replica may take the lease, None if it may not (yet).

    unchanged_ms: how long ago this process first saw the present holder and version.
    """
    if own.member not in lease.in_sync:
        return None
    if lease.holder is not None and lease.holder.member == own.member:
        return Claim.OWN
    if lease.holder is None and lease.handover_to == own.name:
        return Claim.HANDED_OVER
    if lease.paused or unchanged_ms < own.times.lease_ms:
        return None
    return Claim.EXPIRED


def taken(lease: Lease, own: Own, epoch: int) -> Lease:
    """The lease as a winner writes it.

    The old holder leaves the set if it is another replica and enough members remain: a dead master
    must not hold up the first acknowledgement. Settings that were changed since the last term are
    recorded.
    """
    in_sync, holder = lease.in_sync, lease.holder
    if holder is not None and holder.member != own.member:
        remaining = tuple(member for member in in_sync if member != holder.member)
        if len(remaining) >= lease.min_in_sync:
            in_sync = remaining
    version = lease.in_sync_version + (in_sync != lease.in_sync)
    return lease._replace(
        holder=own.holder,
        epoch=Epoch(epoch),
        in_sync=in_sync,
        in_sync_version=version,
        min_in_sync=own.setup.least_in_sync(lease),
        replicas=own.setup.names,
        handover_to=None,
        master_address=own.setup.own.api,
    )


def lease_over(own: Own) -> bool:
    """Whether the lease is released, has run out, or is this volume's own."""
    session = own.session
    unchanged_ms = session.unchanged_ms(own.now_ms)
    if session.stored is None or session.backwards or unchanged_ms is None:
        return False
    holder = session.stored.lease.holder
    if holder is None or holder.member == own.member:
        return True
    return unchanged_ms >= own.times.lease_ms


class Patience:
    """When a replica that may take the lease begins to."""

    def __init__(self, own: Own, peers: Peers, random: Callable[[], float]) -> None:
        self._own, self._peers, self._random = own, peers, random
        self._seen: tuple[str, str] | None = None
        self._extra_ms = 0

    def over(self, stored: Stored, unchanged_ms: int) -> Claim | None:
        """Why to begin now; None: wait."""
        own = self._own
        found = claim(stored.lease, own, unchanged_ms)
        unfit = own.damage or own.liveness.stalling
        if found is Claim.OWN and unfit and len(stored.lease.in_sync) > 1:
            # Nothing is gained by a next term here: the others get the time of an expired lease.
            found = Claim.EXPIRED if unchanged_ms >= own.times.lease_ms else None
        if found is not Claim.EXPIRED:
            return found
        holder = stored.lease.holder
        if own.damage and holder is not None and holder.member != own.member:
            # It goes on in its own lease where nobody else stands. It takes no other node's:
            # between two starts nobody knows what else the disk has lost.
            return None
        if self._seen != (stored.uid, stored.version):
            self._seen = stored.uid, stored.version
            self._extra_ms = int(self._random() * own.times.wait_random_ms)
        wait_ms = self._extra_ms + self._rank(stored.lease) * own.times.wait_rank_ms
        if own.trouble:
            wait_ms += own.times.lease_ms  # any sound member comes first
        return found if unchanged_ms >= own.times.lease_ms + wait_ms else None

    def _rank(self, lease: Lease) -> int:
        """How many others should come first: those with more of the log, then in their order."""
        own, names = self._own, self._own.setup.names
        mine = (own.end, -names.index(own.name))
        rank = 0
        for member in lease.in_sync:
            status = self._peers.fresh(member.node)
            if status is None or status.incarnation != member.incarnation:
                continue
            rank += (status.end, -names.index(member.node)) > mine
        return rank


class _Stage(Enum):
    SETTLING = "settling"
    READING = "reading"
    WRITING = "writing"


class Campaign:
    """One attempt."""

    def __init__(
        self,
        own: Own,
        promises: Promises,
        *,
        won: Callable[[Lease], None],
        lost: Callable[[str], None],
        forced: bool = False,
    ) -> None:
        """Following is over. won, lost: called once, with the lease as it is or why it was lost.

        forced: an operator makes this replica the only member, whatever it lacks.
        """
        self._own, self._promises, self._forced = own, promises, forced
        self._won, self._lost = won, lost
        self._stage = _Stage.SETTLING
        self._asked = False
        self.over = False
        own.out.ask(Settle, self._settled)

    def tick(self) -> None:
        """Read the lease once the log is settled and nothing else is asked."""
        own = self._own
        if self._stage is _Stage.READING and not self._asked and own.session.free:
            self._asked = True
            own.out.put(*own.session.read(own.now_ms))

    def end(self, reason: str) -> None:
        """The attempt is over: another one has a higher epoch, or this replica must not lead.

        What is on its way may still be applied, and is given up: its epoch is never acted on, and
        should the lease name this volume then, that is a new campaign, from a newly settled log.
        """
        if self._stage is _Stage.WRITING:
            self._own.session.abandon()
        self._end(reason)

    def answered(self, event: LeaseAnswered, settled: Settled | None) -> None:
        """The session has taken an answer in."""
        if self.over:
            return
        if self._stage is _Stage.READING and self._asked:
            self._read(event)
        elif self._stage is _Stage.WRITING and settled is not None:
            self._written(settled)

    def _settled(self, done: Done) -> None:
        own = self._own
        own.end, own.durable = done.end, done.durable
        if self.over:
            return
        self._stage = _Stage.READING
        self.tick()

    def _read(self, event: LeaseAnswered) -> None:
        own, session = self._own, self._own.session
        stored = session.stored
        if event.outcome is not LeaseOutcome.FOUND or stored is None or not session.can_write:
            self._end(f"the lease could not be read: {session.reason or event.outcome.value}")
            return
        unchanged_ms = session.unchanged_ms(own.now_ms) or 0
        if not self._forced and claim(stored.lease, own, unchanged_ms) is None:
            self._end("the lease is not to be had")
            return
        if self._forced and not lease_over(own):
            self._end("the lease has not run out")
            return
        # Above everything that was ever promised or given up, so that it means this term alone.
        epoch = max(stored.lease.epoch, session.given_up, self._promises.highest) + 1
        self._stage = _Stage.WRITING
        wanted = taken(stored.lease, own, epoch)
        if self._forced:
            version = stored.lease.in_sync_version + 1
            wanted = wanted._replace(in_sync=(own.member,), in_sync_version=version)
        if wanted.min_in_sync != stored.lease.min_in_sync:
            own.say(
                "min-in-sync-changed",
                f"min_in_sync is {wanted.min_in_sync} from epoch {epoch} on, it was "
                f"{stored.lease.min_in_sync}",
                level=Level.WARNING,
                min_in_sync=wanted.min_in_sync,
                before=stored.lease.min_in_sync,
            )
        own.out.put(*session.propose(wanted, own.now_ms))

    def _written(self, settled: Settled) -> None:
        session = self._own.session
        epoch = settled.wanted.epoch
        if not settled.applied or not session.holds(epoch):
            self._end("another one was first")
        elif epoch <= self._promises.highest:
            # Taken over while our own success was on its way to us.
            self._end(f"epoch {self._promises.highest} was promised meanwhile")
        else:
            self.over = True
            self._own.count.elections_won += 1
            assert session.stored is not None
            self._won(session.stored.lease)

    def _end(self, reason: str) -> None:
        self.over = True
        self._own.count.elections_lost += 1
        self._own.move(Trigger.LOST, reason)
        self._lost(reason)
