"""A living master whose lease object was deleted makes it again (docs/replication.md). Pure.

1. The broker is fenced, the append lock is ha's: the log's end is fixed.
2. Every member of the wait set promises the next epoch. One that refuses, or is silent until the
   deadline of the old term, ends the attempt.
3. The object is made with that epoch and the wait set; a new term begins.

Memory and deadline alone are not enough: a late master could make the very epoch again that its
successor holds already. Step before: a read found nothing. Step after: ``mastership``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from services.ha.core.events import LeaseAnswered
from services.ha.core.failover import Trigger
from services.ha.core.own import Own
from services.ha.core.peers import Peers
from services.ha.lease.session import Settled
from services.ha.lease.value import Lease, Member
from services.ha.wire.payloads import Promise, PromisePurpose

ASK_AGAIN_MS: Final = 1000


class Recreation:
    """One attempt; looks like a ``Campaign`` to the replica."""

    def __init__(
        self,
        own: Own,
        peers: Peers,
        lease: Lease,
        *,
        deadline_ms: int,
        won: Callable[[Lease], None],
        lost: Callable[[str], None],
    ) -> None:
        """lease: to be made, its set the wait set. deadline_ms: of the term that is over."""
        self._own, self._peers, self._lease = own, peers, lease
        self._deadline_ms = deadline_ms
        self._won, self._lost = won, lost
        self._asked_ms: dict[Member, int] = {}
        self._missing = {member for member in lease.in_sync if member != own.member}
        self._writing = False
        self.over = False

    @property
    def epoch(self) -> int:
        """That it asks for."""
        return self._lease.epoch

    def tick(self) -> None:
        """Ask those that have not answered; write when all have."""
        own = self._own
        if self.over or self._writing:
            return
        if own.now_ms >= self._deadline_ms:
            silent = ", ".join(sorted(member.node for member in self._missing))
            self._end(f"{silent or 'the lease'} did not answer before the old term's deadline")
        elif self._missing:
            self._ask()
        elif own.session.free:
            self._writing = True
            own.out.put(*own.session.create(self._lease, own.now_ms))

    def promised(self, link: int) -> None:
        """A member promised the epoch; it counts by volume."""
        peer = self._peers.outgoing(link)
        if peer is not None and peer.member in self._missing:
            self._missing.discard(peer.member)
            self.tick()

    def refused(self, link: int) -> None:
        """A member has promised more, or wants the lease itself."""
        peer = self._peers.outgoing(link)
        if peer is not None and peer.member in self._missing and not self._writing:
            self._end(f"{peer.node} refuses to promise epoch {self.epoch}")

    def end(self, reason: str) -> None:
        """The attempt is over; what is being written is given up, as in a ``Campaign``."""
        if self._writing:
            self._own.session.abandon()
        self._end(reason)

    def answered(self, event: LeaseAnswered, settled: Settled | None) -> None:
        """The session has taken an answer in."""
        del event
        session = self._own.session
        if self.over:
            return
        if not self._writing:
            if session.stored is not None:
                self._end("the lease is there again")
        elif settled is not None:
            if settled.applied and session.holds(self.epoch) and session.stored is not None:
                self.over = True
                self._own.count.elections_won += 1
                self._won(session.stored.lease)
            else:
                self._end("another one was first")

    def _ask(self) -> None:
        own = self._own
        for member in sorted(self._missing):
            peer = self._peers.by_node.get(member.node)
            if peer is None or peer.link is None:
                continue
            asked_ms = self._asked_ms.get(member)
            if asked_ms is None or own.now_ms - asked_ms >= ASK_AGAIN_MS:
                self._asked_ms[member] = own.now_ms
                promise = Promise(PromisePurpose.CREATE_LEASE, own.holder)
                self._peers.send(peer.link, self.epoch, promise)

    def _end(self, reason: str) -> None:
        self.over = True
        self._own.count.elections_lost += 1
        self._own.move(Trigger.LOST, reason)
        self._lost(reason)
