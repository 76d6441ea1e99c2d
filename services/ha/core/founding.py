"""Making the lease where there is none: the group's first one (docs/replication.md). Pure.

Only a node whose volume never belonged to a group founds one, and only when every configured node
says the same of its own: a lost lease together with one replaced volume must not start an empty
group beside a full one. The first configured node does it, unless exactly one holds records. Step
before: STATUS of all. Step after: ``mastership``, as after any won lease.
"""

from __future__ import annotations

from collections.abc import Callable

from services.ha.core.effects import Settle
from services.ha.core.events import Done, LeaseAnswered
from services.ha.core.failover import Trigger
from services.ha.core.own import Own
from services.ha.core.peers import Peers
from services.ha.lease.session import Settled
from services.ha.lease.value import Lease
from tidemark.offsets import Epoch


def hindrance(own: Own, peers: Peers) -> str | None:
    """Why this node does not make the group's first lease now; None: it does."""
    if own.initialised:
        return "There is no lease, and this group had one. See `tidemark cluster recreate-lease`."
    holding = [own.name] if own.holds_records else []
    for node in own.others:
        status = peers.fresh(node)
        if status is None:
            return f"There is no lease yet, and {node} does not answer."
        if status.initialised:
            return (
                f"There is no lease, and {node} belonged to a group that had one. See `tidemark "
                "cluster recreate-lease`."
            )
        if status.holds_records:
            holding.append(node)
    if len(holding) > 1:
        return (
            f"There is no lease yet, and {', '.join(sorted(holding))} hold records: which are the "
            "group's? Empty the others."
        )
    founder = holding[0] if holding else own.setup.names[0]
    return None if founder == own.name else f"There is no lease yet; {founder} makes it."


def first_lease(own: Own, epoch: int) -> Lease:
    """What a group begins with."""
    return Lease(
        holder=own.holder,
        epoch=Epoch(epoch),
        in_sync=(own.member,),
        in_sync_version=1,
        min_in_sync=own.setup.min_in_sync,
        replicas=own.setup.names,
        master_address=own.setup.own.api,
    )


class Founding:
    """One attempt to make the lease; looks like a ``Campaign`` to the replica."""

    def __init__(
        self,
        own: Own,
        lease: Lease,
        *,
        won: Callable[[Lease], None],
        lost: Callable[[str], None],
    ) -> None:
        """lease: to be made, with this start of ha as its holder. won, lost: called once."""
        self._own, self._lease = own, lease
        self._won, self._lost = won, lost
        self._settled_log = self._asked = False
        self.over = False
        own.out.ask(Settle, self._settled)

    def tick(self) -> None:
        """Write, once the log is settled and nothing else is asked."""
        own = self._own
        if self._settled_log and not self._asked and own.session.free and not self.over:
            self._asked = True
            own.out.put(*own.session.create(self._lease, own.now_ms))

    def end(self, reason: str) -> None:
        """The attempt is over; what is being written is given up, as in a ``Campaign``."""
        if self._asked:
            self._own.session.abandon()
        self._end(reason)

    def answered(self, event: LeaseAnswered, settled: Settled | None) -> None:
        """The session has taken an answer in."""
        del event
        if self.over or not self._asked or settled is None:
            return
        session = self._own.session
        if settled.applied and session.holds(self._lease.epoch) and session.stored is not None:
            self.over = True
            self._own.count.elections_won += 1
            self._won(session.stored.lease)
        else:
            self._end("another one was first")

    def _settled(self, done: Done) -> None:
        self._own.end, self._own.durable = done.end, done.durable
        self._settled_log = True
        self.tick()

    def _end(self, reason: str) -> None:
        self.over = True
        self._own.count.elections_lost += 1
        self._own.move(Trigger.LOST, reason)
        self._lost(reason)
