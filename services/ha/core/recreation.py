"""Creates the lease again after a living master's lease object was deleted. Pure.

1. The broker is fenced and ha has the append lock: the end of the log is fixed.
2. Every member of the wait set promises the next epoch. A member that refuses, or is silent until
   the deadline of the old term, ends the attempt.
3. The object is created with that epoch and the wait set, and a new term begins.

Memory and deadline alone do not suffice: a late master could create an epoch that its successor
holds already (docs/replication.md). Step before: a read found nothing. Step after: ``mastership``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from services.ha.core.events import LeaseAnswered
from services.ha.core.peers import Peers
from services.ha.core.replica_context import ReplicaContext
from services.ha.core.states import Trigger
from services.ha.lease.session import WriteOutcome
from services.ha.lease.value import Lease, Member
from services.ha.wire.payloads import Promise, PromisePurpose

ASK_AGAIN_MS: Final = 1000


class Recreation:
    """One attempt, with the interface of a ``Campaign``."""

    def __init__(
        self,
        context: ReplicaContext,
        peers: Peers,
        lease: Lease,
        *,
        deadline_ms: int,
        won: Callable[[Lease], None],
        lost: Callable[[str], None],
    ) -> None:
        """lease: the lease to create; its set is the wait set. deadline_ms: deadline of the term
        that is over."""
        self._context, self._peers, self._lease = context, peers, lease
        self._deadline_ms = deadline_ms
        self._won, self._lost = won, lost
        self._asked_ms: dict[Member, int] = {}
        self._missing = {member for member in lease.in_sync if member != context.member}
        self._writing = False
        self.over = False

    @property
    def epoch(self) -> int:
        """The requested epoch."""
        return self._lease.epoch

    def tick(self) -> None:
        """Ask the members that have not answered; create the lease when all have."""
        context = self._context
        if self.over or self._writing:
            return
        if context.now_ms >= self._deadline_ms:
            silent = ", ".join(sorted(member.node for member in self._missing))
            self._end(f"{silent or 'the lease'} did not answer before the old term's deadline")
        elif self._missing:
            self._ask()
        elif context.session.free:
            self._writing = True
            context.out.put(*context.session.create(self._lease, context.now_ms))

    def promised(self, link: int) -> None:
        """Count the promise of a member, by its volume."""
        peer = self._peers.outgoing(link)
        if peer is not None and peer.member in self._missing:
            self._missing.discard(peer.member)
            self.tick()

    def refused(self, link: int) -> None:
        """End the attempt: a member has promised more, or tries to take the lease itself."""
        peer = self._peers.outgoing(link)
        if peer is not None and peer.member in self._missing and not self._writing:
            self._end(f"{peer.node} refuses to promise epoch {self.epoch}")

    def end(self, reason: str) -> None:
        """End the attempt; a write under way is given up, as in a ``Campaign``."""
        if self._writing:
            self._context.session.abandon()
        self._end(reason)

    def answered(self, event: LeaseAnswered, settled: WriteOutcome | None) -> None:
        """Handle the answer to a request, after the session has processed it."""
        del event
        session = self._context.session
        if self.over:
            return
        if not self._writing:
            if session.stored is not None:
                self._end("the lease is there again")
        elif settled is not None:
            if settled.applied and session.holds(self.epoch) and session.stored is not None:
                self.over = True
                self._context.count.elections_won += 1
                self._won(session.stored.lease)
            else:
                self._end("another one was first")

    def _ask(self) -> None:
        context = self._context
        for member in sorted(self._missing):
            peer = self._peers.by_node.get(member.node)
            if peer is None or peer.link is None:
                continue
            asked_ms = self._asked_ms.get(member)
            if asked_ms is None or context.now_ms - asked_ms >= ASK_AGAIN_MS:
                self._asked_ms[member] = context.now_ms
                promise = Promise(PromisePurpose.CREATE_LEASE, context.holder)
                self._peers.send(peer.link, self.epoch, promise)

    def _end(self, reason: str) -> None:
        self.over = True
        self._context.count.elections_lost += 1
        self._context.move(Trigger.LOST, reason)
        self._lost(reason)
