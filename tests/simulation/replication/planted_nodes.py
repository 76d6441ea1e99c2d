"""Planted mistakes about changes of the group's nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final
from unittest.mock import patch

from services.ha.core import members, peers
from services.ha.core.mastership import Mastership
from services.ha.core.replica_context import ReplicaContext
from services.ha.lease.value import Lease, Membership
from tests.simulation.replication.mutation import change

Planting = Iterator[None]

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
    """Any node changes the nodes, from the version that it used when the command came."""

    def present(context: ReplicaContext, lease: Lease | None, begun: Membership) -> Membership:
        del context, lease
        return begun

    with patch.object(members, "_present", present):
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
