"""Creates the first lease of a group (docs/replication.md). Pure.

A node creates it only if its volume never belonged to a group, and only if every configured node
reports the same of its own. Otherwise a lost lease together with one replaced volume would start an
empty group beside a full one. The first configured node creates it, unless exactly one node holds
records: then that one does. Step before: STATUS of all. Step after: ``mastership``, as after any
won lease.
"""

from __future__ import annotations

from collections.abc import Callable

from services.ha.core.effects import Settle
from services.ha.core.events import Done, LeaseAnswered
from services.ha.core.peers import Peers, do_not_answer
from services.ha.core.replica_context import ReplicaContext
from services.ha.core.states import Trigger
from services.ha.lease.session import WriteOutcome
from services.ha.lease.value import Lease
from tidemark.offsets import Epoch


def hindrance(context: ReplicaContext, peers: Peers) -> str | None:
    """Return why this node does not create the first lease now; None if it may."""
    if context.initialised:
        return "There is no lease, and this group had one. See `tidemark cluster recreate-lease`."
    holding = [context.name] if context.holds_records else []
    silent: list[str] = []
    for node in context.others:
        status = peers.fresh(node)
        if status is None:
            silent.append(node)
            continue
        if status.initialised:
            return (
                f"There is no lease, and {node} belonged to a group that had one. See `tidemark "
                "cluster recreate-lease`."
            )
        if status.holds_records:
            holding.append(node)
    if silent:
        return f"There is no lease yet, and {do_not_answer(silent)}."
    if len(holding) > 1:
        return (
            f"There is no lease yet, and {', '.join(sorted(holding))} hold records. Empty all "
            "nodes but the one whose records the group is to have."
        )
    founder = holding[0] if holding else context.names[0]
    return None if founder == context.name else f"There is no lease yet; {founder} makes it."


def first_lease(context: ReplicaContext, epoch: int) -> Lease:
    """Return the lease with which a group begins."""
    return Lease(
        holder=context.holder,
        epoch=Epoch(epoch),
        in_sync=(context.member,),
        in_sync_version=1,
        min_in_sync=context.setup.min_in_sync,
        replicas=context.names,
        master_address=context.setup.own.api,
        members=context.members_to_write(),
    )


class Founding:
    """One attempt to create the lease, with the interface of a ``Campaign``."""

    def __init__(
        self,
        context: ReplicaContext,
        lease: Lease,
        *,
        won: Callable[[Lease], None],
        lost: Callable[[str], None],
    ) -> None:
        """lease: names this start of ha as its holder. won, lost: one of them is called once."""
        self._context, self._lease = context, lease
        self._won, self._lost = won, lost
        self._settled_log = self._asked = False
        self.over = False
        context.out.ask(Settle, self._settled)

    def tick(self) -> None:
        """Create the lease once the log is settled and no other request is open."""
        context = self._context
        if self._settled_log and not self._asked and context.session.free and not self.over:
            self._asked = True
            context.out.put(*context.session.create(self._lease, context.now_ms))

    def end(self, reason: str) -> None:
        """End the attempt; a write under way is given up, as in a ``Campaign``."""
        if self._asked:
            self._context.session.abandon()
        self._end(reason)

    def answered(self, event: LeaseAnswered, settled: WriteOutcome | None) -> None:
        """Handle the answer to a request, after the session has processed it."""
        del event
        if self.over or not self._asked or settled is None:
            return
        session = self._context.session
        if settled.applied and session.holds(self._lease.epoch) and session.stored is not None:
            self.over = True
            self._context.count.elections_won += 1
            self._won(session.stored.lease)
        else:
            self._end("another one was first")

    def _settled(self, done: Done) -> None:
        self._context.set_log_end(done.end, done.durable)
        self._settled_log = True
        self.tick()

    def _end(self, reason: str) -> None:
        self.over = True
        self._context.count.elections_lost += 1
        self._context.move(Trigger.LOST, reason)
        self._lost(reason)
