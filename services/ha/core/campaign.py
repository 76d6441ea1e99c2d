"""Takes the lease: which replica may, when, and in which steps (docs/replication.md, becoming
master). Pure.

The steps have the numbers of docs/replication.md:

1. Stop following and settle the log: its end is fixed, and nothing more is acknowledged.
2. Read the lease. If this replica may still take it, write it with a new epoch.
3. While the outcome is unknown, do nothing. Lost: follow again. Won: a term begins.

Nothing is promised before the lease is won. If this replica promised an epoch that no node gets, it
could no longer follow the present master. Step before: ``ElectionDelay``. Step after:
``mastership``.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from services.ha.core.effects import Level, Settle
from services.ha.core.events import Done, LeaseAnswered, LeaseOutcome
from services.ha.core.peers import Peers
from services.ha.core.promises import Promises
from services.ha.core.replica_context import ReplicaContext
from services.ha.core.states import Trigger
from services.ha.lease.session import WriteOutcome
from services.ha.lease.value import Lease, Stored
from tidemark.offsets import Epoch


class Claim(Enum):
    """Reason for which a replica may take the lease."""

    OWN = "own"
    """The lease names this volume: its holder is an earlier start of ha, or this process."""
    HANDED_OVER = "handed-over"
    """The lease was released for this node."""
    EXPIRED = "expired"
    """The lease was not renewed for its whole duration, measured with this process's clock."""


def claim(lease: Lease, context: ReplicaContext, unchanged_ms: int) -> Claim | None:
    """Return why this replica may take the lease; None if it may not take it yet.

    unchanged_ms: time since this process first saw the present holder and version.
    """
    if context.is_removed or context.member not in lease.in_sync:
        return None
    if lease.holder is not None and lease.holder.member == context.member:
        return Claim.OWN
    if lease.holder is None and lease.handover_to == context.name:
        return Claim.HANDED_OVER
    if lease.paused or unchanged_ms < context.times.lease_ms:
        return None
    return Claim.EXPIRED


def taken(lease: Lease, context: ReplicaContext, epoch: int) -> Lease:
    """Return the lease as the winner writes it.

    If enough members remain, the old holder, unless it is this replica, leaves the set: a dead
    master must not delay the first acknowledgement. Settings that changed since the last term are
    recorded.
    """
    in_sync, holder = lease.in_sync, lease.holder
    if holder is not None and holder.member != context.member:
        remaining = tuple(member for member in in_sync if member != holder.member)
        if len(remaining) >= lease.min_in_sync:
            in_sync = remaining
    version = lease.in_sync_version + (in_sync != lease.in_sync)
    return lease._replace(
        holder=context.holder,
        epoch=Epoch(epoch),
        in_sync=in_sync,
        in_sync_version=version,
        min_in_sync=context.setup.least_in_sync(lease),
        replicas=context.names,
        handover_to=None,
        master_address=context.setup.own.api,
        members=context.members_to_write(),
    )


def lease_over(context: ReplicaContext) -> bool:
    """Return whether the lease is released, has expired, or belongs to this volume."""
    session = context.session
    unchanged_ms = session.unchanged_ms(context.now_ms)
    if session.stored is None or session.backwards or unchanged_ms is None:
        return False
    holder = session.stored.lease.holder
    if holder is None or holder.member == context.member:
        return True
    return unchanged_ms >= context.times.lease_ms


class ElectionDelay:
    """Decides when a replica that may take the lease begins its campaign."""

    def __init__(self, context: ReplicaContext, peers: Peers, random: Callable[[], float]) -> None:
        self._context, self._peers, self._random = context, peers, random
        self._seen: tuple[str, str] | None = None
        self._extra_ms = 0

    def over(self, stored: Stored, unchanged_ms: int) -> Claim | None:
        """Return the reason to begin now; None: wait."""
        context = self._context
        found = claim(stored.lease, context, unchanged_ms)
        unfit = context.damage or context.liveness.stalling
        if found is Claim.OWN and unfit and len(stored.lease.in_sync) > 1:
            # A next term here improves nothing: the others get the time of an expired lease.
            found = Claim.EXPIRED if unchanged_ms >= context.times.lease_ms else None
        if found is not Claim.EXPIRED:
            return found
        holder = stored.lease.holder
        if context.damage and holder is not None and holder.member != context.member:
            # A damaged node continues with its own lease if no other node campaigns. It does not
            # take the lease of another node: between two starts the disk may have lost more.
            return None
        if self._seen != (stored.uid, stored.version):
            self._seen = stored.uid, stored.version
            self._extra_ms = int(self._random() * context.times.wait_random_ms)
        wait_ms = self._extra_ms + self._rank(stored.lease) * context.times.wait_rank_ms
        if context.trouble:
            wait_ms += context.times.lease_ms  # any healthy member comes first
        return found if unchanged_ms >= context.times.lease_ms + wait_ms else None

    def _rank(self, lease: Lease) -> int:
        """Return the number of candidates with priority: those with a longer log, then in
        configured order."""
        context, names = self._context, self._context.names
        mine = (context.end, -names.index(context.name))
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
    """One attempt to take the lease."""

    def __init__(
        self,
        context: ReplicaContext,
        promises: Promises,
        *,
        won: Callable[[Lease], None],
        lost: Callable[[str], None],
        forced: bool = False,
    ) -> None:
        """Call this after following has ended. won, lost: one of them is called once, with the
        lease or the reason. forced: an operator makes this replica the only member, even if it
        lacks confirmed records."""
        self._context, self._promises, self._forced = context, promises, forced
        self._won, self._lost = won, lost
        self._stage = _Stage.SETTLING
        self._asked = False
        self.over = False
        context.out.ask(Settle, self._settled)

    def tick(self) -> None:
        """Read the lease once the log is settled and no other request is open."""
        context = self._context
        if self._stage is _Stage.READING and not self._asked and context.session.free:
            self._asked = True
            context.out.put(*context.session.read(context.now_ms))

    def end(self, reason: str) -> None:
        """End the attempt: another node has a higher epoch, or this replica must not lead.

        A write that is under way may still be applied, and is given up: this process never acts on
        its epoch. If the lease then names this volume, a new campaign begins, with a newly settled
        log.
        """
        if self._stage is _Stage.WRITING:
            self._context.session.abandon()
        self._end(reason)

    def answered(self, event: LeaseAnswered, settled: WriteOutcome | None) -> None:
        """Handle the answer to a request, after the session has processed it."""
        if self.over:
            return
        if self._stage is _Stage.READING and self._asked:
            self._read(event)
        elif self._stage is _Stage.WRITING and settled is not None:
            self._written(settled)

    def _settled(self, done: Done) -> None:
        context = self._context
        context.set_log_end(done.end, done.durable)
        if self.over:
            return
        self._stage = _Stage.READING
        self.tick()

    def _read(self, event: LeaseAnswered) -> None:
        context, session = self._context, self._context.session
        stored = session.stored
        if event.outcome is not LeaseOutcome.FOUND or stored is None or not session.can_write:
            self._end(f"the lease could not be read: {session.reason or event.outcome.value}")
            return
        unchanged_ms = session.unchanged_ms(context.now_ms) or 0
        if not self._forced and claim(stored.lease, context, unchanged_ms) is None:
            self._end("the lease may not be taken now")
            return
        if self._forced and not lease_over(context):
            self._end("the lease has not run out")
            return
        # The epoch is above every promised or given up one, so that it belongs to this term alone.
        epoch = max(stored.lease.epoch, session.given_up, self._promises.highest) + 1
        self._stage = _Stage.WRITING
        wanted = taken(stored.lease, context, epoch)
        if self._forced:
            version = stored.lease.in_sync_version + 1
            wanted = wanted._replace(in_sync=(context.member,), in_sync_version=version)
        if wanted.min_in_sync != stored.lease.min_in_sync:
            context.say(
                "min-in-sync-changed",
                f"min_in_sync is {wanted.min_in_sync} from epoch {epoch} on, it was "
                f"{stored.lease.min_in_sync}",
                level=Level.WARNING,
                min_in_sync=wanted.min_in_sync,
                before=stored.lease.min_in_sync,
            )
        context.out.put(*session.propose(wanted, context.now_ms))

    def _written(self, settled: WriteOutcome) -> None:
        session = self._context.session
        epoch = settled.wanted.epoch
        if not settled.applied or not session.holds(epoch):
            self._end("another one was first")
        elif epoch <= self._promises.highest:
            # Another node took over while the answer to this write was under way.
            self._end(f"epoch {self._promises.highest} was promised meanwhile")
        else:
            self.over = True
            self._context.count.elections_won += 1
            assert session.stored is not None
            self._won(session.stored.lease)

    def _end(self, reason: str) -> None:
        self.over = True
        self._context.count.elections_lost += 1
        self._context.move(Trigger.LOST, reason)
        self._lost(reason)
