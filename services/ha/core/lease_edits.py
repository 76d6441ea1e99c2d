"""Changes of the lease that an operator orders (docs/replication.md, operating). Pure.

They go through the one lease session of this process, one at a time, and are computed from the
lease as it is when the change is written. Step before: ``admin_commands``. Step after: the lease.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from services.ha.core.admin_rules import AlreadySo, Refused, no_such_node
from services.ha.core.effects import Reply
from services.ha.core.replica_context import ReplicaContext
from services.ha.core.switchover import released
from services.ha.lease.session import WriteOutcome
from services.ha.lease.texts import is_readable
from services.ha.lease.value import Lease

EDIT_ATTEMPTS: Final = 5
EDIT_MS_MAX: Final = 5000


class _Edit(NamedTuple):
    """A change of the lease that was ordered."""

    token: int
    change: Callable[[Lease | None], Lease]
    """Computes the new lease from the present one; raises Refused, AlreadySo."""
    creates: bool
    """The lease may be absent or have gone back."""
    since_ms: int
    what: str
    """What is under way, for the refusal of a second change."""
    attempts: int = 0
    wanted: Lease | None = None
    """The proposed lease; None if none is unsettled."""
    unanswered: bool = False
    """An attempt had no answer and may have been applied for a while."""
    has_read: bool = False
    """The lease was read for this change, because it seemed to have been made already."""


class LeaseEdits:
    """Commands that change only the lease; one at a time."""

    def __init__(self, context: ReplicaContext) -> None:
        self._context = context
        self._edit: _Edit | None = None

    def begin(
        self,
        token: int,
        change: Callable[[Lease | None], Lease],
        *,
        creates: bool = False,
        what: str = "another order changes the lease",
    ) -> None:
        """Begin a change; the command is answered when it is settled. Raises Refused.

        what: the change in words, for the refusal of another one meanwhile.
        """
        if self._edit is not None:
            raise Refused(f"{self._edit.what}. Nothing was done.", "Try again.")
        self._edit = _Edit(token, change, creates, self._context.now_ms, what)
        self.tick()

    def tick(self) -> None:
        """Propose the change as soon as the session can."""
        edit, context = self._edit, self._context
        if edit is None:
            return
        if edit.wanted is not None:
            if context.session.unsettled is None:
                self._refuse(
                    "the lease write was abandoned, but may have been applied: check `tidemark "
                    "cluster status`"
                )
            return
        if context.now_ms - edit.since_ms > EDIT_MS_MAX:
            self._refuse(
                f"the lease could not be read or written: {context.session.reason or 'no answer'}"
            )
            return
        session = context.session
        if not session.free or (session.stored is None and not (edit.creates and session.absent)):
            return
        if session.backwards and not edit.creates:
            self._refuse("the lease has gone backwards; see `tidemark cluster recreate-lease`")
            return
        try:
            wanted = edit.change(None if session.stored is None else session.stored.lease)
        except Refused as refused:
            self._edit = None
            context.out.put(refused.reply(edit.token))
            return
        except AlreadySo as so:
            assert session.stored is not None
            if not self._is_fresh(edit):
                return
            self._edit = None
            body = _body(session.stored.lease)
            # 1. A write is applied and its answer lost. 2. The master renews the lease on top of
            #    it. 3. The second try finds the wanted state: who made the change is unknown.
            body |= {"changed": None} if edit.unanswered else so.body
            context.out.put(Reply(edit.token, ok=True, body=body))
            return
        if not is_readable(wanted):
            self._refuse("no node could read the changed lease. Nothing was changed")
            return
        self._edit = edit._replace(wanted=wanted, attempts=edit.attempts + 1)
        if session.stored is None:
            context.out.put(*session.create(wanted, context.now_ms))
        else:
            context.out.put(*session.propose(wanted, context.now_ms, despite=edit.creates))

    def _is_fresh(self, edit: _Edit) -> bool:
        """Return whether the lease was read since the command; otherwise request a read.

        1. An operator pauses failover at another node.
        2. The operator resumes it here, before this node has read the lease again.

        Without the read the reply would be that failover is already on.
        """
        context, session = self._context, self._context.session
        if edit.has_read and not session.reason:
            return True
        if not edit.has_read or session.due(context.now_ms):
            context.out.put(*session.read(context.now_ms))
        self._edit = edit._replace(has_read=True)
        return False

    def settled(self, settled: WriteOutcome | None) -> None:
        """Handle a settled write of the lease, which may be the ordered one."""
        edit = self._edit
        if edit is None or settled is None or settled.wanted is not edit.wanted:
            return
        if settled.applied:
            self._edit = None
            body = {**_body(settled.wanted), "changed": True}
            self._context.out.put(Reply(edit.token, ok=True, body=body))
        elif edit.attempts >= EDIT_ATTEMPTS:
            self._refuse("others changed the lease at the same time, several times")
        else:
            unanswered = edit.unanswered or settled.unanswered
            # A read has shown that the write was not applied.
            self._edit = edit._replace(wanted=None, unanswered=unanswered, has_read=True)

    def _refuse(self, detail: str) -> None:
        edit, self._edit = self._edit, None
        if edit is not None:
            self._context.out.put(Refused(f"{detail}.").reply(edit.token))


def _body(lease: Lease) -> dict[str, Any]:
    in_sync = [member.node for member in lease.in_sync]
    body = {"epoch": lease.epoch, "paused": lease.paused, "in_sync": in_sync}
    return body if lease.members is None else {**body, "nodes": list(lease.replicas)}


def set_paused(paused: bool) -> Callable[[Lease | None], Lease]:
    """Return the change that pauses automatic failover, or resumes it."""

    def change(lease: Lease | None) -> Lease:
        assert lease is not None
        if lease.paused == paused:
            state = "paused" if paused else "on"
            raise AlreadySo(f"automatic failover is {state} already. Nothing was changed.")
        return lease._replace(paused=paused)

    return change


def released_for(context: ReplicaContext, target: str) -> Callable[[Lease | None], Lease]:
    """Return the change that releases the lease for target."""

    def change(lease: Lease | None) -> Lease:
        if lease is None or lease.holder is None or lease.holder.member != context.member:
            raise Refused("the lease is not this node's any more")
        return released(lease, context, target)

    return change


def without_member(context: ReplicaContext, node: str) -> Callable[[Lease | None], Lease]:
    """Return the change that removes a node from the set; only the master may make it."""

    def change(lease: Lease | None) -> Lease:
        assert lease is not None
        if lease.holder != context.holder:
            raise Refused(f"{context.name} is not the master any more. Nothing was changed.")
        if node == context.name:
            raise Refused(
                f"{node} is the master. Nothing was changed.", "Use `tidemark cluster switchover`."
            )
        remaining = tuple(member for member in lease.in_sync if member.node != node)
        if remaining == lease.in_sync:
            if node not in context.names:
                raise no_such_node(context, node)
            raise AlreadySo(f"{node} is not in the in-sync set. Nothing was changed.")
        if len(remaining) < lease.min_in_sync:
            raise Refused(
                f"{len(remaining)} members would remain; min_in_sync is {lease.min_in_sync}. "
                "Nothing was changed.",
                "Bring another node into the set first, or lower cluster.min_in_sync everywhere.",
            )
        version = lease.in_sync_version + 1
        return lease._replace(in_sync=remaining, in_sync_version=version)

    return change
