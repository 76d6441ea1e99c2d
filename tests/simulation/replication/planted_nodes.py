"""Planted mistakes about changes of the group's nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final
from unittest.mock import patch

from services.ha.core import members, peers
from services.ha.core.lease_edits import LeaseEdits
from services.ha.core.mastership import Mastership
from services.ha.core.replica_context import ReplicaContext
from services.ha.lease.value import Lease, Membership
from tests.simulation.replication.mutation import change

Planting = Iterator[None]
Change = Callable[[Lease | None], Lease]

REMOVED_NODE_KEPT_IN_THE_SET: Final = change(
    members,
    (
        "_changed(lease, present, remaining)._replace(in_sync=in_sync)",
        "_changed(lease, present, remaining)",
    ),
)
"""A removal leaves the member in the set, which still may become master."""
CHANGED_WITHOUT_AGREEMENT: Final = change(
    members, ("if 2 * len(missing) >= len(term.in_sync.published):", "if False:")
)
"""A change begins although most of the set does not use the nodes of the last one."""


@contextmanager
def change_from_an_old_lease() -> Planting:
    """A change is computed from the lease as it was when the command came."""
    without = members.without_node

    def old(
        context: ReplicaContext, term: Mastership, name: str
    ) -> Callable[[Lease | None], Lease]:
        known, decide = context.known_lease, without(context, term, name)
        return lambda lease: decide(lease)._replace(
            in_sync=tuple(member for member in known.in_sync if member.node != name)
            if known is not None
            else ()
        )

    with patch.object(members, "without_node", old):
        yield


@contextmanager
def two_changes_at_once() -> Planting:
    """A change that comes during another one waits, and is made of what that one leaves."""
    begin, tick = LeaseEdits.begin, LeaseEdits.tick
    waiting: dict[LeaseEdits, list[Callable[[], None]]] = {}

    def begin_later(
        self: LeaseEdits, token: int, change: Change, *, creates: bool = False, what: str = ""
    ) -> None:
        if self._edit is None:
            begin(self, token, change, creates=creates, what=what)
        else:
            again = partial(begin, self, token, change, creates=creates, what=what)
            waiting.setdefault(self, []).append(again)

    def tick_both(self: LeaseEdits) -> None:
        tick(self)
        if self._edit is None and waiting.get(self):
            waiting[self].pop(0)()

    def present(context: ReplicaContext, lease: Lease | None, begun: Membership) -> Membership:
        del lease, begun
        return context.members

    with (
        patch.object(LeaseEdits, "begin", begin_later),
        patch.object(LeaseEdits, "tick", tick_both),
        patch.object(members, "_present", present),
    ):
        yield


@contextmanager
def links_of_removed_nodes_kept() -> Planting:
    """The master goes on with a removed node, and takes it into the set again."""

    def nothing(_: Mastership | peers.Peers) -> None:
        return

    with (
        patch.object(Mastership, "leave_removed", nothing),
        patch.object(peers.Peers, "follow_members", nothing),
    ):
        yield
